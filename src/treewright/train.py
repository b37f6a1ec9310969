"""`TrainState`: parameters, optimiser state and step of a training run, as one node.

The types are in `train.pyi`.
"""

import functools
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import TypeVar

from treewright._base.jax_private import jax_trees, path_text, untyped_jax
from treewright._base.text import Verbatim, did_you_mean, short_text
from treewright._contents import contents
from treewright._core import FieldInfo, StaticValue, declared_as, field, info_of, is_node, static
from treewright._reports import first_lines
from treewright._trees.devices import placed_with
from treewright._trees.level import leaf_type_of, reject_classes, strong
from treewright._trees.partition import combine, partition
from treewright._trees.places import Place, note_redefined_classes, walk
from treewright._trees.specs import trainable
from treewright.errors import ChildWarning, NodeInitError, missing_extra, warn_user
from treewright.module import Module

if TYPE_CHECKING:
    from treewright._trees.difference import Difference

P = TypeVar("P", default=Any)  # the default is for TrainState without a parameter, as in flax


class Transformation(Protocol):
    """The two functions of an optimiser."""

    @property
    def init(self) -> Callable[[Any], Any]:
        """`init(params)` returns the optimiser's state."""
        ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """`update(grads, opt_state, params)` returns the updates and the new state."""
        ...


class Optimizer(Transformation, StaticValue, Protocol):
    """The type of `TrainState.tx`: optax's `GradientTransformation`, or any object with its two functions."""


def _as_step(step: Any) -> Any:
    """An `i32[]` that is not weakly typed: a Python int would trace the training step twice."""
    if not isinstance(step, str | int | float | np.generic | np.ndarray | jax.Array):
        return step
    if not jnp.issubdtype(getattr(step, "dtype", type(step)), jnp.integer):
        raise TypeError(f"step must be an integer, got {short_text(step)}.")
    return jnp.asarray(step, jnp.int32)


def _with_keywords(first: str, **names: str) -> Callable[[Any], Any]:
    """A method whose errors about positional arguments and about names of other libraries say what to write.

    Args:
        first: The first argument.
        names: The argument for each wrong name.
    """

    def decorator(method: Any) -> Any:
        @functools.wraps(method)
        def checked(owner: Any, *args: Any, **keywords: Any) -> Any:
            cls = owner if isinstance(owner, type) else type(owner)
            call, fields = f"{cls.__qualname__}.{method.__name__}", info_of(cls).by_name
            if args:
                raise TypeError(f"{call} needs keywords: write {first}=...")
            for wrong, right in names.items():
                if wrong in keywords and wrong not in fields:
                    raise TypeError(f"{call} has no argument {wrong}: write {right}=...")
            return method(owner, **keywords)

        return checked

    return decorator


_FROM_OPTIMIZER = Verbatim("tx.init(params)")  # the default of `opt_state`


class TrainState(Module, Generic[P], kw_only=True):
    """The state of a training loop: parameters, optimiser, optimiser state and step.

    Programs written for `flax.training.train_state.TrainState` run with it. Subclass it for more fields, such as batch
    statistics or a random key. An optax optimiser that is rebuilt with the same settings is the same static; different
    settings cause a retrace. An optimiser of your own functions is compared like any static function.

    `buffer()` fields of the parameters are not trained: the optimiser gets `None` in their place, so it has no state
    for them, and gradients and weight decay skip them.

    Examples:
        >>> import optax
        >>> state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.5))
        >>> state = state.apply_gradients(grads={"w": jnp.ones(2)})
        >>> state.params["w"].tolist(), int(state.step)
        ([0.5, 0.5], 1)
    """

    step: Any = field(default=0, converter=_as_step, doc="`i32[]`, the number of updates so far.")
    apply_fn: Callable[..., Any] | None = static(default=None, doc="The function that applies the model, or None.")
    params: P = field(doc="The parameters: a `Module`, a flax parameter dict, any pytree.")
    tx: Optimizer = static(doc="The optimiser, an `optax.GradientTransformation`.")
    opt_state: Any = field(
        default=_FROM_OPTIMIZER, doc="The optimiser's state; by default `tx.init(params)`, without the buffers."
    )

    def __post_init__(self) -> None:
        if self.opt_state is _FROM_OPTIMIZER:
            self.params = _strong_tree(self.params)
            self.opt_state = _initial_opt_state(type(self), self.params, self.tx)

    def __check_init__(self) -> None:
        if self.opt_state is _FROM_OPTIMIZER:
            raise NodeInitError(
                f"{type(self).__qualname__}.__post_init__ overrides that of TrainState, so opt_state was not computed. "
                f"Call it first: super().__post_init__()"
            )

    @classmethod
    @_with_keywords("params", optimizer="tx", optimiser="tx", model="params", opt="tx")
    def create(cls, *, params: P, tx: Optimizer, apply_fn: Callable[..., Any] | None = None, **fields: Any) -> Self:
        """A state at step 0, with the optimiser's state for `params`: the constructor, under flax's name.

        If all committed arrays of `params` are on one device or one mesh, `step` and the leaves of `opt_state` without
        a device are placed there too: otherwise a jitted step would compile a second time for its own results.

        Args:
            params: The parameters, any pytree. Python numbers in it become arrays, as they would in the first update.
            tx: The optimiser.
            apply_fn: The function that applies the model, if the program calls `state.apply_fn`.
            **fields: Values of fields that a subclass adds. Do not pass the same arrays to two fields if a step donates
                the state: pass a copy, `ema=jax.tree.map(jnp.copy, params)`.

        Raises:
            TypeError: If `tx` is not an optimiser, a leaf of `params` is neither an array nor a number, or a name in
                `fields` is not a field.
        """
        _warn_of_trained_numbers(params)
        params = _strong_tree(params)
        if "opt_state" not in fields:  # computed here for subclasses whose __post_init__ does not call ours
            fields["opt_state"] = _initial_opt_state(cls, params, tx)
        fields = {"apply_fn": apply_fn, "params": params, "tx": tx, **fields}
        _reject_own_init(cls, fields)
        state = cls(**fields)
        leaves, treedef = jax_trees.tree_flatten((state.step, state.opt_state))
        placed = placed_with(jax_trees.tree_leaves(params), leaves)
        if placed is leaves:
            return state
        step, opt_state = treedef.unflatten(placed)
        return state.replace(step=step, opt_state=opt_state)

    @_with_keywords("grads")
    def apply_gradients(
        self,
        *,
        grads: P,
        buffers: P | None = None,
        value: Any = None,
        value_fn: Callable[[P], Any] | None = None,
        **changes: Any,
    ) -> Self:
        """The state after one update of the parameters, which keep their structure, shapes and dtypes.

        Gradients may have a different float dtype. Optax determines the dtypes of the optimiser's state: for bfloat16
        parameters with float32 gradients they change in the first step, unless you cast the gradients.

        Args:
            grads: Gradients: a tree like `params`, or like the first half of `partition(params, trainable)`, for which
                no gradients of buffers have been computed. One gradient for each example, on a first axis, is accepted
                only by an optimiser that reduces them, such as `optax.contrib.dpsgd`.
            buffers: The model with updated buffers, as returned by a loss with `has_aux=True`, or the second half of
                such a partition. Only its buffers are used. Without it, they stay as they are.
            value: The loss, for optimisers whose update needs it, such as `optax.contrib.reduce_on_plateau`. This and
                the next are passed to `tx.update` unless they are None or the class has a field of that name.
            value_fn: The loss as a function of `params`, for a line search, as in `optax.lbfgs`, which also gets the
                gradients.
            **changes: New values of the fields that a subclass adds, such as a random key.

        Raises:
            ImportError: If optax is not installed.
            TypeError: If a name in `changes` is not a field; the message lists the close ones. Also if the update
                sets that field, or from the optimiser, if it needs `value` or `value_fn`.
            ValueError: If `grads` differs from `params` in structure or shape, or is complex for a real parameter. Also
                if `buffers` or a new value in `changes` has a different structure, shape or dtype, or if the optimiser
                returns updates or a state of different shapes, or some gradients unchanged.

        Examples:
            >>> import optax
            >>> class Centred(Module):
            ...     weight: jax.Array
            ...     mean: jax.Array = buffer()
            >>> def loss_of(model, x):
            ...     model = replace(model, mean=0.9 * model.mean + 0.1 * jnp.mean(x))
            ...     return jnp.mean((model.weight * (x - model.mean)) ** 2), model
            >>> state = TrainState.create(params=Centred(jnp.ones(()), jnp.zeros(())), tx=optax.sgd(0.1))
            >>> grads, model = jax.grad(loss_of, has_aux=True)(state.params, jnp.array([4.0, 6.0]))
            >>> state = state.apply_gradients(grads=grads, buffers=model)
            >>> print(f"{state.params.mean:.2f}")
            0.50
        """
        optional = {"value": value, "value_fn": value_fn}
        extra = {name: argument for name, argument in optional.items() if argument is not None}
        changes |= {name: extra.pop(name) for name in [*extra] if name in info_of(self).by_name}
        _reject_changes(self, changes)
        try:
            import optax
        except ImportError as error:
            raise missing_extra("TrainState.apply_gradients", "optax", "train") from error
        weights: Any  # optax's type of parameters excludes nodes
        weights, old_buffers = partition(self.params, trainable)
        new_buffers = old_buffers if buffers is None else _new_buffers(self, old_buffers, buffers)
        trained: Any = partition(grads, trainable)[0]
        problem = _gradient_problem(weights, trained, grads)
        if problem and not _are_per_example(weights, trained):
            raise _rejection(self, grads, problem)
        loss: Any = extra.get("value_fn")
        try:
            if loss is not None:
                extra |= {"grad": trained, "value_fn": lambda weights: loss(combine(weights, old_buffers))}
            updates, opt_state = self.tx.update(trained, self.opt_state, weights, **extra)
        except jax.errors.UnexpectedTracerError as error:
            _note_tracers(error, self.tx)
            raise
        except (TypeError, ValueError, AttributeError) as error:
            problem = problem or _state_problem(self, weights, trained)
            if not problem:
                _add_notes(error, self, grads)
                raise
            raise _rejection(self, grads, problem) from error
        wrong = _update_problem(self, (weights, trained), (updates, opt_state))
        if wrong:
            raise _rejection(self, grads, problem or wrong)
        updated: Any = optax.apply_updates(weights, updates)
        params = combine(updated, new_buffers)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)


_FLOATS = frozenset({float, complex})


def _warn_of_trained_numbers(params: Any) -> None:
    """Warn about Python floats in fields without a specifier: an `eps: float = 1e-5` would be trained."""
    if not any(type(leaf) in _FLOATS for leaf in jax_trees.tree_leaves(params)):
        return
    for place in walk(Place(partition(params, trainable)[0])):
        in_nodes = (step for step in reversed(place.ancestors) if step.parent and is_node(step.parent.value))
        step: Any = next(in_nodes, None) if type(place.value) in _FLOATS else None
        if step is None:
            continue
        info = info_of(step.parent.value)
        field, warned = info.by_name[step.key.name], f"{step.key.name} (trained)"
        if field.is_plain and warned not in info.table.warned:
            warn_user(_trained_number(path_text(place.path, "params"), info.cls, field, place.value), ChildWarning)
            info.table.warned.add(warned)  # not if the warning was an error, which must come again


def _trained_number(path: str, cls: type[Any], field: FieldInfo, value: complex) -> str:
    """A Python float in a field without a specifier is a weight: after some steps `eps` may be negative."""
    return (
        f"{path} is the Python {type(value).__name__} {value}, so the optimiser trains it. Say in {cls.__qualname__} "
        f"what it is. A setting:\n  {declared_as('static', field, cls)}\nA number that training leaves alone:\n"
        f"  {declared_as('buffer', field, cls)}\nA parameter, also if it is jnp.asarray({value}):\n"
        f"  {declared_as('child', field, cls)}"
    )


def _initial_opt_state(cls: type[Any], params: Any, tx: Any) -> Any:
    """The optimiser's state for parameters without their buffers."""
    reject_classes(f"{cls.__qualname__}.create", params)
    if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
        name = str(getattr(tx, "__qualname__", ""))
        factory = f" {name} is a factory, not an optimiser: pass tx={name}(...)." if name.isidentifier() else ""
        raise TypeError(
            f"{cls.__qualname__}.create(tx=...) needs an optimiser with init and update, such as optax.adam(1e-3), "
            f"but got {short_text(tx)}.{factory}"
        )
    weights: Any = partition(params, trainable)[0]
    for path, leaf in jax_trees.tree_leaves_with_path(weights):
        if leaf_type_of(leaf).aval is None:
            raise TypeError(
                f"{path_text(path, 'params')} is {short_text(leaf)}, but an optimiser trains only arrays and numbers. "
                f"Make it a static field, or wrap an equinox or flax layer with adopt()."
            )
    try:
        return _strong_tree(tx.init(weights))
    except Exception as error:
        _note_buffers(error, params)
        if _was_called(weights, error):
            error.add_note(
                f"tx.init(params) raised this. Optax calls a mask or labels that are callable, such as a spec of a "
                f"{type(weights).__qualname__}. Pass a function: lambda params: spec_like(params, ...)."
            )
        raise


def _was_called(node: Any, error: Exception) -> bool:
    """Whether an error is from a call of a node of this class."""
    called: Any = getattr(type(node), "__call__", None)  # noqa: B004  the method itself is needed
    code = getattr(called, "__code__", None)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return called is not None and (
        any(frame.f_code is code for frame in frames) or str(error).startswith(f"{called.__qualname__}() ")
    )


def _reject_own_init(cls: type[Any], fields: dict[str, Any]) -> None:
    """Raise an error that names an `__init__` of a subclass that does not accept the fields."""
    by_name, init = info_of(cls).by_name, cls.__init__
    if not all(name in by_name and by_name[name].init for name in fields):
        return  # the constructor lists the fields
    try:
        inspect.signature(init).bind_partial(None, **fields)
    except TypeError as error:
        arguments = ", ".join(f"{name}=..." for name in fields)
        raise TypeError(
            f"{cls.__qualname__}.create calls {cls.__qualname__}({arguments}), but its own __init__ {error}. Write "
            f"__post_init__ instead, or call the class directly."
        ) from None


_COMPUTED = ("step", "params", "opt_state")


def _reject_changes(state: TrainState[Any], changes: dict[str, Any]) -> None:
    """Raise an error for fields that the update computes, and for values that would retrace the next step."""
    name, fields = type(state).__qualname__, info_of(state).by_name
    computed = [field for field in _COMPUTED if field in changes]
    if computed:
        raise TypeError(
            f"{name}.apply_gradients sets step, params and opt_state itself. For a different value, change the state: "
            f"state.replace({computed[0]}=...)."
        )
    for unknown in changes.keys() - fields.keys():
        hint = did_you_mean(unknown, ("grads", "buffers", "value", "value_fn"))
        if hint:
            raise TypeError(f"{name}.apply_gradients has no argument {unknown}{hint}.")
    for changed in changes.keys() & fields.keys():
        old, new = getattr(state, changed), fields[changed].convert(changes[changed], type(state))
        wrong = (
            []
            if fields[changed].is_static or old is None
            else _structure_differences(changed, old, new, with_types=True)
        )
        if wrong:
            raise ValueError(
                f"{name}.apply_gradients({changed}=...) would change its type, so the next step would recompile. "
                f"Differences, before -> after:{_lines(wrong)}\n"
                f"If that is what you want: state.replace({changed}=...)."
            )


def _note_tracers(error: Exception, tx: Any) -> None:
    """Name the traced values that an optimiser captured."""
    names = dict.fromkeys(_names_of_tracers(tx, set()))
    if names:
        error.add_note(
            f"state.tx captured a traced value, {', '.join(names)}. Build the optimiser outside jit and the like, and "
            f"keep the value in its state: tx = optax.inject_hyperparams(optax.adam)(learning_rate=...)."
        )


def _names_of_tracers(value: Any, visited: set[int]) -> Iterator[str]:
    visited.add(id(value))
    for key, part in contents(value).items():
        if isinstance(part, Tracer):
            yield str(getattr(key, "name", getattr(key, "key", key)))
        elif id(part) not in visited:
            yield from _names_of_tracers(part, visited)


def _strong_tree(tree: Any) -> Any:
    """A tree without weakly typed leaves, which would trace a step twice; the tree itself if it has none."""
    leaves, treedef = jax_trees.tree_flatten(tree)
    strong_leaves = list(map(strong, leaves))
    return tree if all(map(operator.is_, leaves, strong_leaves)) else treedef.unflatten(strong_leaves)


def _new_buffers(state: TrainState[Any], old: Any, model: Any) -> Any:
    """The buffers of the new model, which must have the structure, shapes and dtypes of the old ones."""
    new = partition(model, trainable)[1]
    wrong = _structure_differences("params", old, new, with_types=True)
    if wrong:
        raise ValueError(
            f"{type(state).__qualname__}.apply_gradients(buffers=...) needs the buffers of params with the same shapes "
            f"and dtypes, or the next step would recompile:{_lines(wrong)}\n"
            f"Pass the model that the loss returns, or the second half of its partition. Statistics for each example, "
            f"from vmap, need jax.lax.pmean(..., axis_name) and out_axes=None, or a mean over the examples."
        )
    return _strong_tree(new)


def _gradient_problem(weights: Any, trained: Any, grads: Any) -> str:
    """The reason why gradients do not match the weights; empty if they do."""
    differing = _structure_differences("params", weights, trained)
    function = next(filter(callable, jax_trees.tree_leaves(trained)), None) if differing else None
    if function is not None:
        is_all = "is" if grads is function else "contains"
        return (
            f"grads {is_all} the function {short_text(function)}. Call it: grads = jax.grad(loss)(state.params, ...)."
        )
    kinds = {difference.kind for difference in differing}
    problem, fix = "must have the structure of params", ""
    if kinds == {"shape"} and _are_per_example(weights, trained):
        problem = "has one gradient for each example, so params would get their shapes"
        fix = "\nAverage them: grads = jax.tree.map(lambda grad: grad.mean(0), grads)."
    elif kinds == {"shape"}:
        problem = "differs in shape from params, so the update would fail or broadcast one to the other"
        fix = "\nTake the gradient with respect to params: grads = jax.grad(loss)(state.params, ...)."
    elif kinds == {"dtype"}:
        problem = "has dtypes that gradients of params can't have"
    elif _is_value_and_grad(weights, grads):
        fix = "\nThis looks like the result of jax.value_and_grad; unpack it: value, grads = ..."
    return f"grads {problem}. Differences, params -> grads:{_lines(differing)}{fix}" if differing else ""


def _is_value_and_grad(weights: Any, grads: Any) -> bool:
    is_pair = isinstance(grads, tuple) and len(grads) == 2
    value = grads[0] if is_pair else None
    loss: Any = value[0] if isinstance(value, tuple) and len(value) == 2 else value  # with has_aux, a pair
    is_loss = jax.tree.structure(loss).num_leaves == 1 and np.shape(loss) == ()
    return is_pair and is_loss and not _structure_differences("", weights, partition(grads[1], trainable)[0])


def _are_per_example(weights: Any, trained: Any) -> bool:
    """Whether the gradients have one more leading axis, of equal length in all."""
    leaves, others = jax.tree.leaves(weights), jax.tree.leaves(trained)
    lengths = {np.shape(other)[:1] for other in others}
    return len(lengths) == 1 and [*map(np.shape, leaves)] == [np.shape(other)[1:] for other in others]


def _update_problem(state: TrainState[Any], inputs: tuple[Any, Any], outputs: tuple[Any, Any]) -> str:
    """The reason why the outputs of `tx.update` can't be used; empty if they can."""
    (weights, trained), (updates, opt_state) = inputs, outputs
    differing = _structure_differences("params", weights, updates, of_updates=True)
    if differing:
        reason = "tx.update returned updates that can't be added to params. Differences, params -> updates:"
        return f"{reason}{_lines(differing)}"
    raw = _unchanged_gradients(trained, updates, state.opt_state)
    if raw:
        return (
            f"tx.update returned the gradients of {', '.join(raw)} unchanged, so they would be added to params. "
            f"optax.masked does that with what its mask excludes. To freeze it: optax.partition({{True: tx, False: "
            f"optax.set_to_zero()}}, labels), with True for the parameters to train. To add them, as in gradient "
            f"ascent: optax.scale(1.0)."
        )
    changed = [d for d in _structure_differences("opt_state", state.opt_state, opt_state) if d.kind == "shape"]
    if not changed:
        return ""
    reason = "tx.update changed the shapes of opt_state. Differences, before -> after the update:"
    return _state_problem(state, weights, trained) or f"{reason}{_lines(changed)}"


def _unchanged_gradients(trained: Any, updates: Any, opt_state: Any) -> list[str]:
    """The paths of updates that are gradients, unless the optimiser masks nothing and returns all, as `identity`."""
    pairs = zip(jax_trees.tree_leaves_with_path(trained), jax_trees.tree_leaves(updates), strict=False)
    raw = {path_text(path, "params"): grad is update for (path, grad), update in pairs}
    is_meant = all(raw.values()) and not _is_masked(opt_state)
    return [] if is_meant else first_lines([path for path, is_raw in raw.items() if is_raw], 3)


def _is_masked(opt_state: Any) -> bool:
    """Whether a state contains one of `optax.masked`."""

    def is_mask(state: Any) -> bool:
        return type(state).__name__ == "MaskedState"

    return any(map(is_mask, jax.tree.leaves(opt_state, is_leaf=is_mask)))


def _rejection(state: TrainState[Any], grads: Any, problem: str) -> ValueError:
    rejection = ValueError(f"{type(state).__qualname__}.apply_gradients: {problem}")
    _add_notes(rejection, state, grads)
    return rejection


def _add_notes(error: Exception, state: TrainState[Any], grads: Any) -> None:
    """Add notes about two classes of one name, buffers, and arguments that the optimiser needs."""
    _note_buffers(error, state.params)
    note_redefined_classes(error, state.params, grads, state.opt_state)
    missing = re.findall(r"'(value|value_fn)'", str(error)) if "required keyword-only" in str(error) else []
    if missing:
        arguments = ", ".join(f"{name}={'loss' if name == 'value' else 'loss_of_params'}" for name in missing)
        error.add_note(f"The optimiser needs more than gradients: state.apply_gradients(grads=grads, {arguments}).")


def _note_buffers(error: Exception, params: Any) -> None:
    """Name the buffers if a transformation fails on the `None` in their place."""
    buffers = jax_trees.tree_leaves_with_path(partition(params, trainable)[1])
    if buffers and "NoneType" in str(error):
        error.add_note(
            f"{path_text(buffers[0][0], 'params')} is a buffer, so the optimiser gets None in its place, and this one "
            f"can't handle that. Keep what is not trained in a field of your own: class State(TrainState): stats: ..."
        )


def _state_problem(state: TrainState[Any], weights: Any, trained: Any) -> str:
    """The reason why the optimiser failed, because optax names neither parameters nor state; empty if unknown."""
    for path, leaf in jax_trees.tree_leaves_with_path(trained):
        if getattr(leaf, "dtype", None) == jax.dtypes.float0:
            return (
                f"params{path_text(path)} contains integers, which have no gradient, but the optimiser computes with "
                f"all of params. Declare its field as static(), or as buffer(), which is not trained."
            )
    differing = _structure_differences("opt_state", untyped_jax.eval_shape(state.tx.init, weights), state.opt_state)
    if not differing:
        return ""
    return (
        f"opt_state does not match tx.init(params). Differences, tx.init(params) -> opt_state:{_lines(differing)}\n"
        f"After changing tx or params, rebuild it: opt_state=tx.init(params)."
    )


def _structure_differences(
    root: str, left: Any, right: Any, *, with_types: bool = False, of_updates: bool = False
) -> "list[Difference]":
    """The differences that prevent adding two trees; with `with_types`, also those that would retrace a jitted step."""
    (leaves, treedef), (others, other) = jax_trees.tree_flatten(left), jax_trees.tree_flatten(right)
    if treedef == other and all(map(_are_alike, leaves, others)):  # differences() would take five times as long
        return []
    from treewright._trees.diff import differences  # not needed in most steps

    kinds = {"class", "static", "added", "removed", "shape", *(("dtype", "value") if with_types else ())}
    all_differences = differences(left, right, values=False, path=(root,))
    return [d for d in all_differences if d.kind in kinds or (d.kind == "dtype" and _loses(d, of_updates=of_updates))]


def _are_alike(left: Any, right: Any) -> bool:
    """Whether two leaves are arrays with the same shape and dtype."""
    return hasattr(left, "dtype") and left.dtype == getattr(right, "dtype", None) and left.shape == right.shape


def _loses(difference: "Difference", *, of_updates: bool) -> bool:
    """Whether a sum in the dtype of the first would lose information of the second.

    Integers and bools have no gradients, so any dtype is accepted for them, but not for their updates.
    """
    kinds = (jnp.integer, jnp.floating, jnp.complexfloating)
    left, right = (
        next((rank for rank, kind in enumerate(kinds) if jnp.issubdtype(leaf_type_of(leaf).aval.dtype, kind)), -1)
        for leaf in (difference.left, difference.right)
    )
    if left < 1:
        return of_updates and left != right
    return right < 0 or right > left


def _lines(differences: Sequence[object]) -> str:
    return "".join(f"\n  {line}" for line in first_lines([*map(str, differences)]))
