"""`TrainState`: parameters, optimiser state and step of a training run, as one node.

The types are in `__init__.pyi`.
"""

import operator
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeVar

from treewright._base.jax_private import jax_trees, path_text
from treewright._base.text import short_text
from treewright._core import StaticValue, field, first_text, info_of, is_node, note, reject, static
from treewright._trees.devices import placed_with
from treewright._trees.level import reject_classes, strong
from treewright._trees.partition import combine, partition
from treewright._trees.places import Place, note_redefined_classes, walk
from treewright._trees.specs import trainable
from treewright.errors import ChildWarning, missing_extra, warn_user
from treewright.module import Module
from treewright.train import rules
from treewright.train.structure import are_per_example, differences

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
        default=None, doc="The optimiser's state; by default `tx.init(params)`, without the buffers."
    )

    def __post_init__(self) -> None:
        if self.opt_state is None:
            self.params = _strong_tree(self.params)
            self.opt_state = _initial_opt_state(type(self), self.params, self.tx)

    @classmethod
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
        state = cls(apply_fn=apply_fn, params=params, tx=tx, **fields)
        leaves, treedef = jax_trees.tree_flatten((state.step, state.opt_state))
        placed = placed_with(jax_trees.tree_leaves(params), leaves)
        if placed is leaves:
            return state
        step, opt_state = treedef.unflatten(placed)
        return state.replace(step=step, opt_state=opt_state)

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
        _reject_other_types(self, changes)
        try:
            import optax
        except ImportError as error:
            raise missing_extra("TrainState.apply_gradients", "optax", "train") from error
        weights: Any  # optax's type of parameters excludes nodes
        weights, old_buffers = partition(self.params, trainable)
        new_buffers: Any = old_buffers
        if buffers is not None:
            new_buffers = _strong_tree(partition(buffers, trainable)[1])
            _reject_other_type(type(self), "buffers", "params", old_buffers, new_buffers)
        trained: Any = partition(grads, trainable)[0]
        problem = _gradient_problem(weights, trained, grads)
        if problem and not are_per_example(weights, trained):
            raise _rejection(self, grads, problem)
        loss: Any = extra.get("value_fn")
        if loss is not None:
            extra |= {"grad": trained, "value_fn": lambda weights: loss(combine(weights, old_buffers))}
        try:
            updates, opt_state = self.tx.update(trained, self.opt_state, weights, **extra)
        except Exception as error:
            if problem:
                raise _rejection(self, grads, problem) from error
            note(rules.PARAMETERS, error, self.params)
            note(rules.FAILED, error, self, weights, trained)
            note_redefined_classes(error, self.params, grads, self.opt_state)
            raise
        wrong = first_text(rules.UPDATES, self, weights, trained, updates, opt_state)
        if wrong:
            raise _rejection(self, grads, problem or wrong)
        updated: Any = optax.apply_updates(weights, updates)
        params = combine(updated, new_buffers)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)


def _warn_of_trained_numbers(params: Any) -> None:
    """Warn about numbers in fields without a specifier: an `eps: float = 1e-5` would be trained."""
    if not any(map(_is_number, jax_trees.tree_leaves(params))):
        return
    for place in walk(Place(partition(params, trainable)[0])):
        in_nodes = (step for step in reversed(place.ancestors) if step.parent and is_node(step.parent.value))
        step: Any = next(in_nodes, None) if _is_number(place.value) else None
        if step is None:
            continue
        info = info_of(step.parent.value)
        field, warned = info.by_name[step.key.name], f"{step.key.name} (trained)"
        if field.is_plain and warned not in info.table.warned:
            text = rules.trained_number(path_text(place.path, "params"), info.cls, field, place.value)
            warn_user(text, ChildWarning)
            info.table.warned.add(warned)  # not if the warning was an error, which must come again


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, float | complex | np.inexact)


def _initial_opt_state(cls: type[Any], params: Any, tx: Any) -> Any:
    """The optimiser's state for parameters without their buffers."""
    reject_classes(f"{cls.__qualname__}.create", params)
    weights: Any = partition(params, trainable)[0]
    reject(rules.CREATE, TypeError, cls, weights, tx)
    try:
        return _strong_tree(tx.init(weights))
    except Exception as error:
        note(rules.PARAMETERS, error, params)
        raise


def _reject_other_types(state: TrainState[Any], changes: dict[str, Any]) -> None:
    """Raise an error for new values of fields that would retrace the next step."""
    cls, fields = type(state), info_of(state).by_name
    for name in changes.keys() & fields.keys():
        old, new = getattr(state, name), fields[name].convert(changes[name], cls)
        if old is not None and not fields[name].is_static:
            _reject_other_type(cls, name, name, old, new)


def _reject_other_type(cls: type[Any], argument: str, root: str, old: Any, new: Any) -> None:
    found = differences(root, old, new, with_types=True)
    if found:
        raise ValueError(rules.retracing_value(cls, argument, found))


def _strong_tree(tree: Any) -> Any:
    """A tree without weakly typed leaves, which would trace a step twice; the tree itself if it has none."""
    leaves, treedef = jax_trees.tree_flatten(tree)
    strong_leaves = list(map(strong, leaves))
    return tree if all(map(operator.is_, leaves, strong_leaves)) else treedef.unflatten(strong_leaves)


def _gradient_problem(weights: Any, trained: Any, grads: Any) -> str | None:
    """Why gradients do not match the weights; None if they do."""
    found = differences("params", weights, trained)
    return first_text(rules.GRADIENTS, found, weights, grads) if found else None


def _rejection(state: TrainState[Any], grads: Any, problem: str) -> ValueError:
    rejection = ValueError(f"{type(state).__qualname__}.apply_gradients: {problem}")
    note_redefined_classes(rejection, state.params, grads, state.opt_state)
    return rejection
