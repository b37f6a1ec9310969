"""What checkers know of `train.py`: no field is assigned to, and `create` takes the fields that a class has."""

# mypy: always-false=TYPE_CHECKING_WITH_PYREFLY
# mypy: disable-error-code="unreachable"
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Never, ParamSpec, Protocol, Self, overload, type_check_only

import jax
from jax.typing import ArrayLike
from typing_extensions import TypeVar

from treewright._core.fields import StaticValue, field, static
from treewright._core.module import Module

MYPY: Literal[False] = False
TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False  # as in fields.py

P = TypeVar("P", default=Any)
Q = TypeVar("Q")
Fields = ParamSpec("Fields")
State = TypeVar("State")
Given_contra = TypeVar("Given_contra", contravariant=True)
Kept_co = TypeVar("Kept_co", covariant=True)

class Transformation(Protocol):
    """The two functions of an optimiser."""

    @property
    def init(self) -> Callable[[Any], Any]:
        """`init(params)` gives the optimiser's state."""
    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """`update(grads, opt_state, params)` gives the updates and the new state."""

class Optimizer(Transformation, StaticValue, Protocol):
    """What `TrainState` asks of an optimiser: optax's `GradientTransformation`, or anything with its two functions."""

@type_check_only
class ReadOnly(Generic[Given_contra, Kept_co]):
    """A field that the constructor takes and no assignment does, since nothing can be the node of `__set__`."""

    @overload
    def __get__(self, node: None, owner: Any, /) -> Self: ...
    @overload
    def __get__(self, node: object, owner: Any, /) -> Kept_co: ...
    def __set__(self, node: Never, value: Given_contra, /) -> None: ...

# The constructor gives these three where they are not given.
@type_check_only
def _given() -> Any: ...

@type_check_only
class _Cell(Generic[P]):
    """Invariant in its parameter, so that no subclass passes for the class itself."""

    content: P

@type_check_only
class _NoParameters:
    """Only an unknown type is taken for this one."""

@type_check_only
class _Open(Protocol):
    """`TrainState` itself, without type arguments."""

    def _itself(self) -> _Cell[TrainState[_NoParameters]]: ...

@type_check_only
class _CreateOpen(Protocol):
    def __call__(self, *, params: Q, tx: Transformation, apply_fn: Callable[..., Any] | None = ...) -> TrainState[Q]:
        """A state at step 0, with the optimiser's state for `params`."""

@type_check_only
class _Create:
    # pyright takes the class in `TrainState.create(...)` for a TrainState[Any], and so the constructor's result. The
    # first overload is for that class alone: no subclass, and no TrainState[Net], is `_Open`.
    @overload
    def __get__(self, node: None, owner: _Open, /) -> _CreateOpen: ...
    @overload
    def __get__(self, node: Any, owner: Callable[Fields, State], /) -> Callable[Fields, State]: ...

class TrainState(Module, Generic[P], kw_only=True):
    """Everything that a training step takes and gives back.

    A program written for `flax.training.train_state.TrainState` runs with this one. Subclass it for more fields, such
    as batch statistics or a random key.
    """

    step: ReadOnly[ArrayLike, jax.Array] = field(default_factory=_given)
    """`i32[]`, the number of updates so far."""
    apply_fn: ReadOnly[Callable[..., Any] | None, Callable[..., Any] | None] = static(default_factory=_given)
    """What applies the model, or None."""
    params: ReadOnly[P, P]
    """The parameters: a `Module`, a flax parameter dict, any pytree."""
    tx: ReadOnly[Transformation, Optimizer] = static()
    """The optimiser, an `optax.GradientTransformation`."""
    opt_state: ReadOnly[Any, Any] = field(default_factory=_given)
    """The optimiser's state; by default `tx.init(params)`, without the buffers."""

    if not TYPE_CHECKING_WITH_PYREFLY and MYPY:
        @classmethod
        def create(
            cls, *, params: P, tx: Transformation, apply_fn: Callable[..., Any] | None = ..., **fields: Any
        ) -> Self:
            """A state at step 0, with the optimiser's state for `params`.

            Args:
                params: The parameters, any pytree.
                tx: The optimiser.
                apply_fn: What applies the model, if the program wants to keep it here.
                **fields: Values of fields that a subclass adds.
            """
    else:
        @classmethod
        def _itself(cls) -> _Cell[Self]: ...

        create: ClassVar[_Create]
        """A state at step 0, with the optimiser's state for `params`; takes them, `tx`, and a subclass's fields."""

    def apply_gradients(self, *, grads: P, buffers: P | None = None, **changes: Any) -> Self:
        """The state after one update of the parameters.

        Args:
            grads: Gradients: a tree like `params`, or like the first half of `partition(params, trainable)`, for which
                no gradients of buffers have been computed.
            buffers: The model with new buffers, as a loss with `has_aux=True` hands it out, or the second half of such
                a partition. Only its buffers are taken. Without it, they stay as they are.
            **changes: New values of the fields that a subclass adds, such as a random key.
        """
