"""`TrainState`: parameters, optimiser state and step of a training run, as one node.

The types stand in `train.pyi`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Generic, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from typing_extensions import TypeVar

from treewright._nodes.fields import Converted, Converter, StaticValue, field, static
from treewright._nodes.module import Module
from treewright._trees.diff import telling_of_classes
from treewright._trees.masks import combine, partition, trainable
from treewright._trees.refs import first_ref, from_refs, write_changes
from treewright.errors import missing_extra

P = TypeVar("P", default=Any)  # for programs that write TrainState without a parameter, as flax has it


class Transformation(Protocol):
    """The two functions of an optimiser."""

    @property
    def init(self) -> Callable[[Any], Any]:
        """`init(params)` gives the optimiser's state."""
        ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """`update(grads, opt_state, params)` gives the updates and the new state."""
        ...


class Optimizer(Transformation, StaticValue, Protocol):
    """What `TrainState` asks of an optimiser: optax's `GradientTransformation`, or anything with its two functions."""


def _as_step(step: Any) -> Any:
    """An `i32[]` that is not weakly typed: a Python int would trace the training step twice."""
    return jnp.asarray(step, jnp.int32) if isinstance(step, int | np.integer | np.ndarray | jax.Array) else step


def _refuse_refs(state: object, **fields: object) -> None:
    """Refuse a state that could not be returned, or whose optimiser would be given refs."""
    for name, value in fields.items():
        path = first_ref(value)
        if path is not None:
            raise TypeError(
                f"{type(state).__qualname__}.{name}{path} is a ref. apply_gradients gives a new state, and JAX returns "
                f"no refs from jit, grad, scan and the like. Change the refs instead, and return only the metrics: "
                f"state = to_refs(state) before the first step, and state.update_in_place(grads=...) in it. For a new "
                f"state of arrays: from_refs(state).apply_gradients(grads=...)."
            )


class TrainState(Module, Generic[P], kw_only=True):
    """Everything that a training step takes and gives back.

    A program written for `flax.training.train_state.TrainState` runs with this one. Subclass it for more fields, such
    as batch statistics or a random key. An optimiser of optax that is built again with the same settings is the same
    static, and one with other settings traces again; one of your own functions is compared as any static function is.

    `buffer()` fields of the parameters are not trained: the optimiser gets `None` in their place, so it keeps nothing
    for them and neither gradients nor weight decay reach them.

    Examples:
        >>> import optax
        >>> state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.5))
        >>> state = state.apply_gradients(grads={"w": jnp.ones(2)})
        >>> state.params["w"].tolist(), int(state.step)
        ([0.5, 0.5], 1)
    """

    step: Annotated[Converted[ArrayLike, jax.Array], Converter(_as_step)] = field(
        default=Converted(0), doc="`i32[]`, the number of updates so far."
    )
    apply_fn: Callable[..., Any] | None = static(default=None, doc="What applies the model, or None.")
    params: P = field(doc="The parameters: a `Module`, a flax parameter dict, any pytree.")
    tx: Optimizer = static(doc="The optimiser, an `optax.GradientTransformation`.")
    opt_state: Any = field(doc="What `tx.init(params)` gave, for the parameters without their buffers.")

    @classmethod
    def create(cls, *, params: P, tx: Optimizer, apply_fn: Callable[..., Any] | None = None, **fields: Any) -> Self:
        """A state at step 0, with the optimiser's state for `params`.

        Args:
            params: The parameters, any pytree.
            tx: The optimiser.
            apply_fn: What applies the model, if the program wants to keep it here.
            **fields: Values of fields that a subclass adds.

        Raises:
            TypeError: If `tx` is not an optimiser.
        """
        if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
            raise TypeError(
                f"{cls.__qualname__}.create(tx=...) takes an optimiser with init and update, such as optax.adam(1e-3), "
                f"got {tx!r}."
            )
        weights, _ = partition(params, trainable)
        return cls(apply_fn=apply_fn, params=params, tx=tx, opt_state=tx.init(weights), **fields)

    def apply_gradients(self, *, grads: P, **changes: Any) -> Self:
        """The state after one update of the parameters.

        Buffers stay as they are; give new ones with `state.replace(params=...)` before. A state of refs has
        `update_in_place`.

        Args:
            grads: Gradients: a tree like `params`, or like the first half of `partition(params, trainable)`, for which
                no gradients of buffers have been computed.
            **changes: New values of other fields, such as batch statistics.

        Raises:
            ImportError: If optax is not installed.
        """
        try:
            import optax
        except ImportError as error:
            raise missing_extra("TrainState.apply_gradients", "optax", "train") from error
        weights: Any  # optax's own type of parameters leaves nodes out
        weights, buffers = partition(self.params, trainable)
        _refuse_refs(self, step=self.step, params=weights, opt_state=self.opt_state)
        with telling_of_classes(self.params, grads, self.opt_state):
            updates, opt_state = self.tx.update(partition(grads, trainable)[0], self.opt_state, weights)
            updated: Any = optax.apply_updates(weights, updates)
        params = combine(updated, buffers)
        state = self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state)):
            _refuse_refs(self, params=params, **changes)
        return state

    def update_in_place(self, *, grads: P, **changes: Any) -> None:
        """Do what `apply_gradients` does in the refs of this state, without a copy of it and without donation.

        For a state that `to_refs` made, in a jitted step that returns no state, only metrics. What `apply_gradients`
        leaves as it is, such as buffers, is not written, and may be an array.

        Args:
            grads: As for `apply_gradients`, of arrays: gradients with respect to `from_refs(params)`.
            **changes: New values of other fields, which hold refs.

        Raises:
            TypeError: If something that changes is not a ref, or changes its structure, shape or dtype.
            ImportError: If optax is not installed.

        Examples:
            >>> import optax
            >>> state = to_refs(TrainState.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.5)))
            >>> @jax.jit
            ... def step(state, x):
            ...     loss, grads = jax.value_and_grad(lambda params: params["w"] @ x)(from_refs(state.params))
            ...     state.update_in_place(grads=grads)
            ...     return loss
            >>> float(step(state, jnp.ones(2))), from_refs(state).params["w"].tolist()
            (2.0, [0.5, 0.5])
        """
        before = from_refs(self)
        write_changes(self, before, before.apply_gradients(grads=grads, **changes))
