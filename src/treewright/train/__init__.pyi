"""Type stubs for `train`: fields are read-only, and `create` accepts the fields of the class."""

# mypy: always-false=TYPE_CHECKING_WITH_PYREFLY
# mypy: disable-error-code="unreachable"
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Never, ParamSpec, Protocol, Self, overload, type_check_only

import jax
from jax.typing import ArrayLike
from typing_extensions import TypeVar

from treewright._core.fields import StaticValue, field, static
from treewright.module import Module

MYPY: Literal[False] = False
TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False  # see fields.py

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
        """`init(params)` returns the optimiser's state."""
    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """`update(grads, opt_state, params)` returns the updates and the new state."""

class Optimizer(Transformation, StaticValue, Protocol):
    """The type of `TrainState.tx`: optax's `GradientTransformation`, or any object with its two functions."""

@type_check_only
class ReadOnly(Generic[Given_contra, Kept_co]):
    """A field that the constructor accepts but that can't be assigned, since `__set__` accepts no node."""

    @overload
    def __get__(self, node: None, owner: Any, /) -> Self: ...
    @overload
    def __get__(self, node: object, owner: Any, /) -> Kept_co: ...
    def __set__(self, node: Never, value: Given_contra, /) -> None: ...

# The default of the three fields that are optional in the constructor.
@type_check_only
def _default() -> Any: ...

@type_check_only
class _Cell(Generic[P]):
    """Invariant in its parameter, so subclasses do not match."""

    content: P

@type_check_only
class _NoParameters:
    """Matches only an unknown type."""

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
    # To pyright, the class in `TrainState.create(...)` is TrainState[Any], and so is the constructor's result. The
    # first overload is only for that class: subclasses and TrainState[Net] are not `_Open`.
    @overload
    def __get__(self, node: None, owner: _Open, /) -> _CreateOpen: ...
    @overload
    def __get__(self, node: Any, owner: Callable[Fields, State], /) -> Callable[Fields, State]: ...

class TrainState(Module, Generic[P], kw_only=True):
    """The state of a training loop: parameters, optimiser, optimiser state and step.

    Programs written for `flax.training.train_state.TrainState` run with it. Subclass it for more fields, such as batch
    statistics or a random key.
    """

    step: ReadOnly[ArrayLike, jax.Array] = field(default_factory=_default)
    """`i32[]`, the number of updates so far."""
    apply_fn: ReadOnly[Callable[..., Any] | None, Callable[..., Any] | None] = static(default_factory=_default)
    """The function that applies the model, or None."""
    params: ReadOnly[P, P]
    """The parameters: a `Module`, a flax parameter dict, any pytree."""
    tx: ReadOnly[Transformation, Optimizer] = static()
    """The optimiser, an `optax.GradientTransformation`."""
    opt_state: ReadOnly[Any, Any] = field(default_factory=_default)
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
                apply_fn: The function that applies the model, if the program calls `state.apply_fn`.
                **fields: Values of fields that a subclass adds.
            """
    else:
        @classmethod
        def _itself(cls) -> _Cell[Self]: ...

        create: ClassVar[_Create]
        """A state at step 0, with the optimiser's state for `params`; accepts the fields of the class."""

    def apply_gradients(
        self,
        *,
        grads: P,
        buffers: P | None = None,
        value: ArrayLike | None = None,
        value_fn: Callable[[P], ArrayLike] | None = None,
        **changes: Any,
    ) -> Self:
        """The state after one update of the parameters, which keep their structure, shapes and dtypes.

        Args:
            grads: Gradients: a tree like `params`, or like the first half of `partition(params, trainable)`, for which
                no gradients of buffers have been computed.
            buffers: The model with updated buffers, as returned by a loss with `has_aux=True`, or the second half of
                such a partition. Only its buffers are used. Without it, they stay as they are.
            value: The loss, for optimisers whose update needs it, such as `optax.contrib.reduce_on_plateau`.
            value_fn: The loss as a function of `params`, for a line search, as in `optax.lbfgs`.
            **changes: New values of the fields that a subclass adds, such as a random key.
        """
