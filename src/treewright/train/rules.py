"""Rules: mistakes in training, each a function that returns the text for the user, or None.

CREATE      a state is created (the first text is the error)
GRADIENTS   gradients differ from the parameters
UPDATES     the optimiser returned updates and a state
PARAMETERS  `tx.init` or `tx.update` failed (notes on its error, which names no parameter)
FAILED      `tx.update` failed (notes)
"""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from treewright._base.jax_private import jax_trees, path_text, untyped_jax
from treewright._base.text import short_text
from treewright._core import FieldInfo, declared_as
from treewright._reports import first_lines
from treewright._trees.level import leaf_type_of
from treewright._trees.partition import partition
from treewright._trees.specs import trainable
from treewright.train.structure import are_per_example, differences

if TYPE_CHECKING:
    from treewright._trees.difference import Difference
    from treewright.train import TrainState


def _lines(found: Sequence[object]) -> str:
    return "".join(f"\n  {line}" for line in first_lines([*map(str, found)]))


# A state is created


def trained_number(path: str, cls: type[Any], field: FieldInfo, value: complex) -> str:
    """A number in a field without a specifier is a weight: after some steps `eps` may be negative."""
    return (
        f"{path} is a {type(value).__name__}, {value}, so the optimiser trains it. Say in {cls.__qualname__} what it "
        f"is. A setting:\n  {declared_as('static', field, cls)}\nA number that training leaves alone:\n"
        f"  {declared_as('buffer', field, cls)}\nA parameter, also if it is jnp.asarray({value}):\n"
        f"  {declared_as('child', field, cls)}"
    )


def no_optimiser(cls: type[Any], _: Any, tx: Any) -> str | None:
    """Optax's names are functions that return an optimiser."""
    if callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None)):
        return None
    return (
        f"{cls.__qualname__}.create(tx=...) needs an optimiser with init and update, such as optax.adam(1e-3), but got "
        f"{short_text(tx)}."
    )


def untrainable_leaf(_: type[Any], weights: Any, __: Any) -> str | None:
    """An optimiser would fail on it, without its name."""
    leaves = jax_trees.tree_leaves_with_path(weights)
    path, leaf = next(((path, leaf) for path, leaf in leaves if leaf_type_of(leaf).aval is None), (None, None))
    if path is None:
        return None
    return (
        f"{path_text(path, 'params')} is {short_text(leaf)}, but an optimiser trains only arrays and numbers. Make it "
        f"a static field, or wrap an equinox or flax layer with adopt()."
    )


CREATE = (no_optimiser, untrainable_leaf)


# A step


def retracing_value(cls: type[Any], argument: str, found: "list[Difference]") -> str:
    """A value of another type would compile the step again."""
    return (
        f"{cls.__qualname__}.apply_gradients({argument}=...) would change the type of the state, so the next step "
        f"would recompile. Differences, before -> after:{_lines(found)}\nValues for each example, as from vmap, "
        f"need a mean. If you want the new type: state.replace(...)."
    )


def function_among_gradients(_: "list[Difference]", __: Any, grads: Any) -> str | None:
    """`jax.grad` returns a function."""
    function = next(filter(callable, jax_trees.tree_leaves(grads)), None)
    if function is None:
        return None
    return (
        f"grads {'is' if grads is function else 'contains'} the function {short_text(function)}. Call it: grads = "
        f"jax.grad(loss)(state.params, ...)."
    )


def gradient_for_each_example(found: "list[Difference]", weights: Any, grads: Any) -> str | None:
    """Parameters would get the shapes of the gradients."""
    if not are_per_example(weights, partition(grads, trainable)[0]):
        return None
    return (
        f"grads has one gradient for each example, so params would get their shapes. Differences, params -> grads:"
        f"{_lines(found)}\nAverage them: grads = jax.tree.map(lambda grad: grad.mean(0), grads)."
    )


def gradients_of_another_tree(found: "list[Difference]", weights: Any, grads: Any) -> str:
    """The update would fail without a path, broadcast one to the other, or lose an imaginary part."""
    is_pair = isinstance(grads, tuple) and len(grads) == 2
    has_loss = is_pair and not differences("", weights, partition(grads[1], trainable)[0])
    fix = "\nIf this is the result of jax.value_and_grad, unpack it: value, grads = ..." if has_loss else ""
    return (
        f"grads must have the structure, shapes and dtypes of params. Differences, params -> grads:{_lines(found)}{fix}"
    )


GRADIENTS = (function_among_gradients, gradient_for_each_example, gradients_of_another_tree)


# What `tx.update` returned


def updates_that_do_not_fit(_: "TrainState[Any]", weights: Any, __: Any, updates: Any, ___: Any) -> str | None:
    """They would be truncated, broadcast, or fail without a path."""
    found = differences("params", weights, updates)
    if not found:
        return None
    return f"tx.update returned updates that can't be added to params. Differences, params -> updates:{_lines(found)}"


def _is_mask(state: Any) -> bool:
    return type(state).__name__ == "MaskedState"


def gradients_for_updates(state: "TrainState[Any]", _: Any, grads: Any, updates: Any, __: Any) -> str | None:
    """`optax.masked` returns what it excludes, so the parameters would go up the gradient.

    An optimiser without a mask that returns all of them, as `identity`, is meant to.
    """
    pairs = zip(jax_trees.tree_leaves_with_path(grads), jax_trees.tree_leaves(updates), strict=False)
    raw = {path_text(path, "params"): grad is update for (path, grad), update in pairs}
    is_meant = all(raw.values()) and not any(map(_is_mask, jax.tree.leaves(state.opt_state, is_leaf=_is_mask)))
    if is_meant or not any(raw.values()):
        return None
    return (
        f"tx.update returned the gradients of {', '.join(first_lines([path for path in raw if raw[path]], 3))} "
        f"unchanged, so they would be added to params. optax.masked does that with what its mask excludes. To freeze "
        f"it: optax.partition({{True: tx, False: optax.set_to_zero()}}, labels), with True for the parameters to "
        f"train. To add them, as in gradient ascent: optax.scale(1.0)."
    )


def state_of_other_shapes(state: "TrainState[Any]", _: Any, __: Any, ___: Any, new: Any) -> str | None:
    """The next step would recompile, or compute with a state that was broadcast."""
    found = [each for each in differences("opt_state", state.opt_state, new) if each.kind == "shape"]
    if not found:
        return None
    return (
        f"tx.update changed the shapes of opt_state. Differences, before -> after the update:{_lines(found)}\n"
        f"After changing tx or params, rebuild it: opt_state=tx.init(params)."
    )


UPDATES = (updates_that_do_not_fit, gradients_for_updates, state_of_other_shapes)


# The optimiser failed


def none_for_a_buffer(error: BaseException, params: Any) -> str | None:
    """A transformation that can't handle `None` names no parameter."""
    buffers = jax_trees.tree_leaves_with_path(partition(params, trainable)[1])
    if not buffers or "NoneType" not in str(error):
        return None
    return (
        f"{path_text(buffers[0][0], 'params')} is a buffer, so the optimiser gets None in its place, and this one "
        f"can't handle that. Keep what is not trained in a field of your own: class State(TrainState): stats: ..."
    )


def called_mask(error: BaseException, params: Any) -> str | None:
    """Optax calls a mask or labels that are callable, and so is a spec of a model."""
    called: Any = type(params).__call__
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    is_called = getattr(called, "__code__", None) in codes or str(error).startswith(f"{called.__qualname__}() ")
    if not is_called:
        return None
    return (
        f"tx.init(params) raised this. Optax calls a mask or labels that are callable, such as a spec of a "
        f"{type(params).__qualname__}. Pass a function: lambda params: spec_like(params, ...)."
    )


def integer_among_parameters(_: BaseException, __: "TrainState[Any]", ___: Any, grads: Any) -> str | None:
    """Its gradient has the dtype float0, with which nothing computes."""
    leaves = jax_trees.tree_leaves_with_path(grads)
    path = next((path for path, leaf in leaves if getattr(leaf, "dtype", None) == jax.dtypes.float0), None)
    if path is None:
        return None
    return (
        f"{path_text(path, 'params')} contains integers, which have no gradient, but the optimiser computes with all "
        f"of params. Declare its field as static(), or as buffer(), which is not trained."
    )


def state_of_another_optimiser(_: BaseException, state: "TrainState[Any]", weights: Any, __: Any) -> str | None:
    """`tx` or `params` was replaced, and `opt_state` was not."""
    found = differences("opt_state", untyped_jax.eval_shape(state.tx.init, weights), state.opt_state)
    if not found:
        return None
    return (
        f"opt_state does not match tx.init(params). Differences, tx.init(params) -> opt_state:{_lines(found)}\n"
        f"After changing tx or params, rebuild it: opt_state=tx.init(params)."
    )


PARAMETERS = (none_for_a_buffer, called_mask)
FAILED = (integer_among_parameters, state_of_another_optimiser)
