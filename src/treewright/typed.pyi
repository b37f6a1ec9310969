"""What checkers know of `typed.py`. What is not in `__all__` has no name at run time."""

# A default for A alone: pyright asks for one on each type variable behind it, but none of those is ever left open.
# pyright: reportGeneralTypeIssues=false
# mypy: always-false=TYPE_CHECKING_WITH_PYREFLY
# mypy: disable-error-code="unreachable"
import sys
from collections.abc import Callable, Sequence
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    overload,
    type_check_only,
)

import jax
from jax.typing import ArrayLike
from typing_extensions import TypeVar, TypeVarTuple

from treewright._core.instance import ReplaceMethod

__all__ = [
    "Ref",
    "WithReplace",
    "cond",
    "device_put",
    "eval_shape",
    "fori_loop",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jit_method",
    "new_ref",
    "remat",
    "scan",
    "switch",
    "tree_map",
    "value_and_grad",
    "vmap",
    "while_loop",
]

MYPY: Literal[False] = False
TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False  # as in fields.py

@type_check_only
class Unannotated:
    """What stands for the type of a lambda's argument, and for a function that `jit` has yet to be given."""

P = ParamSpec("P")
Rest = ParamSpec("Rest")
Whole = ParamSpec("Whole")
# Without the bound, pyright takes the parameter of a lambda for an object that has no attribute.
A = TypeVar("A", bound=Any, default=Any)
B = TypeVar("B", bound=Any, default=Any)
X = TypeVar("X")
Y = TypeVar("Y")
Z = TypeVar("Z")
F = TypeVar("F", bound=Callable[..., Any])
# pyright, which reads both and goes by the first, would take the gradient of a lambda for Any.
if TYPE_CHECKING_WITH_PYREFLY or (not MYPY and sys.version_info.major < 3):
    Open = TypeVar("Open", bound=Any, default=Unannotated)
else:
    Open = TypeVar("Open", bound=Any, default=Any)
Result = TypeVar("Result", default=Unannotated)
Of = TypeVar("Of")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Aux = TypeVar("Aux")
More = TypeVarTuple("More")
Numbers: TypeAlias = int | Sequence[int] | None
Names: TypeAlias = str | Sequence[str] | None
Both: TypeAlias = tuple[Literal[0], Literal[1]]

class Ref(jax.Ref):
    """An array that changes in place: `ref[...]` reads it, and `ref[...] = value` writes it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, idx: Any) -> jax.Array: ...
    def __setitem__(self, idx: Any, x: ArrayLike) -> None: ...
    def __len__(self) -> int: ...
    def addupdate(self, x: ArrayLike, idx: Any = ()) -> None: ...

def new_ref(init_val: ArrayLike, *, memory_space: Any = ..., kind: Any = ..., pin: bool = ...) -> Ref:
    """`jax.new_ref`: a ref that holds a copy of an array."""

class WithReplace:
    """A base for classes with `@pytree_dataclass`, whose `replace` type checkers know of by it."""

    if sys.version_info >= (3, 13):
        replace: ClassVar[ReplaceMethod]

        # zuban finds no other, and pyright none in a class that has an `__init__` of its own.
        def __replace__(self, /, **changes: Any) -> Self: ...
    else:
        def replace(self, /, **changes: Any) -> Self: ...

# fmt: off


# A class and not a Protocol: pyrefly and zuban bind no method of a Protocol by a self type that is another.
@type_check_only
class Jitted(Generic[P, R_co]):
    """A jitted function, or a jitted method, which binds like any method."""

    if not TYPE_CHECKING_WITH_PYREFLY and MYPY:
        # There it also stands for what `jit` without a function gives.
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        @overload
        def __call__(self: Jitted[..., Unannotated], fun: Callable[Whole, R], /) -> Jitted[Whole, R]: ...
    else:
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """The traced program, before it is lowered."""
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """The lowered program, to be compiled by `.compile()`."""
    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The result with a `jax.ShapeDtypeStruct` for each leaf."""
    def clear_cache(self) -> None:
        """Forget what has been compiled."""
    @overload
    def __get__(self, obj: None, owner: Any = ..., /) -> Self: ...
    @overload
    def __get__(self: Callable[Concatenate[A, Rest], R], obj: A, owner: Any = ...,
                /) -> BoundJitted[Rest, Concatenate[A, Rest], R]: ...

@type_check_only
class BoundJitted(Generic[P, Whole, R_co]):
    """A jitted method of one object: called without it, but `lower` and the like take it as an argument."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def trace(self, *args: Whole.args, **kwargs: Whole.kwargs) -> jax.stages.Traced:
        """The traced program, before it is lowered."""
    def lower(self, *args: Whole.args, **kwargs: Whole.kwargs) -> jax.stages.Lowered:
        """The lowered program, to be compiled by `.compile()`."""
    def eval_shape(self, *args: Whole.args, **kwargs: Whole.kwargs) -> R_co:
        """The result with a `jax.ShapeDtypeStruct` for each leaf."""

@type_check_only
class JittedMethod(Generic[P, R_co]):
    """What `jit_method` gives: as `Jitted`, and a subclass may override it with another."""

    def __call__(self, obj: Any, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __get__(self, obj: None, owner: Any = ..., /) -> Self: ...
    @overload
    def __get__(self, obj: object, owner: Any = ..., /) -> BoundJitted[P, Concatenate[Any, P], R_co]: ...

@type_check_only
class _Jit(Protocol):
    def __call__(self, fun: Callable[P, R], /) -> Jitted[P, R]: ...

@type_check_only
class _JitMethod(Protocol):
    def __call__(self, fun: Callable[Concatenate[Any, P], R], /) -> JittedMethod[P, R]: ...

@type_check_only
class _Keeps(Protocol):
    def __call__(self, fun: Callable[P, R], /) -> Callable[P, R]: ...

# ty and pyrefly go by the last overload alone: of several that fit, they would give none, or the wrong one.
@type_check_only
class Gradient(Generic[P, Open]):
    """What `grad` gives; of a lambda, whose argument has no type, the gradient has the type that it is called with."""

    if not TYPE_CHECKING_WITH_PYREFLY and (MYPY or sys.version_info.major < 3):  # pyright takes the second for open
        @overload
        def __call__(self: Gradient[P, Unannotated], x: X, /, *args: P.args, **kwargs: P.kwargs) -> X: ...
    @overload
    def __call__(self, x: Open, /, *args: P.args, **kwargs: P.kwargs) -> Open: ...

@type_check_only
class ValueAndGradient(Generic[P, R, Open]):
    """What `value_and_grad` gives, in the same way."""

    if not TYPE_CHECKING_WITH_PYREFLY and (MYPY or sys.version_info.major < 3):
        @overload
        def __call__(self: ValueAndGradient[P, R, Unannotated], x: X, /, *args: P.args, **kwargs: P.kwargs
                     ) -> tuple[R, X]: ...
    @overload
    def __call__(self, x: Open, /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Open]: ...

@type_check_only
class Derivative(Generic[Of, P, R_co]):
    """What `jacfwd` and its like give: of an array by an array, an array."""

    @overload
    def __call__(self: Derivative[jax.Array, P, jax.Array], x: jax.Array, /, *args: P.args, **kwargs: P.kwargs
                 ) -> jax.Array: ...
    @overload
    def __call__(self, x: Of, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...

@type_check_only
class _Jacobian(Protocol):
    @overload
    def __call__(self, fun: Callable[Concatenate[A, P], R], *, holomorphic: bool = ...) -> Derivative[A, P, R]: ...
    @overload
    def __call__(self, fun: Callable[P, Any], argnums: int | Sequence[int], has_aux: bool = ...,
                 holomorphic: bool = ...) -> Callable[P, Any]: ...
    @overload
    def __call__(self, fun: Callable[P, Any], *, has_aux: bool, holomorphic: bool = ...) -> Callable[P, Any]: ...


# mypy follows `functools.partial(jit, ...)` where `jit` is not overloaded. Without `fun`, `Result` has its default, and
# a `Jitted` of that takes the function. zuban would give that default to generic functions; it reads the second
# condition as false, while mypy reads none written in this order and takes the first definition.
if not TYPE_CHECKING_WITH_PYREFLY and MYPY and "zuban" == sys.platform:  # noqa: SIM300
    def jit(fun: Callable[P, Result] = ..., /, *, in_shardings: Any = ..., out_shardings: Any = ...,
            static_argnums: Numbers = ..., static_argnames: Names = ..., donate_argnums: Numbers = ...,
            donate_argnames: Names = ..., keep_unused: bool = ..., inline: bool = ...,
            compiler_options: dict[str, Any] | None = ...) -> Jitted[P, Result]: ...
else:
    @overload  # type: ignore[no-redef, unused-ignore]
    def jit(fun: Callable[P, R], /, *, in_shardings: Any = ..., out_shardings: Any = ..., static_argnums: Numbers = ...,
            static_argnames: Names = ..., donate_argnums: Numbers = ..., donate_argnames: Names = ...,
            keep_unused: bool = ..., inline: bool = ...,
            compiler_options: dict[str, Any] | None = ...) -> Jitted[P, R]:
        """`jax.jit`: the result has the signature of `fun`; `.lower`, `.trace` and `.eval_shape` have it too."""
    @overload
    def jit(*, in_shardings: Any = ..., out_shardings: Any = ..., static_argnums: Numbers = ...,
            static_argnames: Names = ..., donate_argnums: Numbers = ..., donate_argnames: Names = ...,
            keep_unused: bool = ..., inline: bool = ..., compiler_options: dict[str, Any] | None = ...) -> _Jit: ...

# pyright lets functions alone override methods, so there the result is one, without `.lower`.
# It finds that these and the last two overlap, as is meant.
if not TYPE_CHECKING_WITH_PYREFLY and not MYPY and sys.version_info.major < 3:
    @overload
    def jit_method(fun: Callable[P, R], /, *, in_shardings: Any = ..., out_shardings: Any = ...,
                   static_argnums: Numbers = ..., static_argnames: Names = ..., donate_argnums: Numbers = ...,
                   donate_argnames: Names = ..., keep_unused: bool = ..., inline: bool = ...,
                   compiler_options: dict[str, Any] | None = ...) -> Callable[P, R]: ...
    @overload
    def jit_method(*, in_shardings: Any = ...,  # pyright: ignore[reportOverlappingOverload]  # the last one overlaps
                   out_shardings: Any = ..., static_argnums: Numbers = ..., static_argnames: Names = ...,
                   donate_argnums: Numbers = ..., donate_argnames: Names = ..., keep_unused: bool = ...,
                   inline: bool = ..., compiler_options: dict[str, Any] | None = ...) -> _Keeps: ...

@overload
def jit_method(fun: Callable[Concatenate[Any, P], R], /,  # pyright: ignore[reportOverlappingOverload]  # see above
               *, in_shardings: Any = ..., out_shardings: Any = ..., static_argnums: Numbers = ...,
               static_argnames: Names = ..., donate_argnums: Numbers = ..., donate_argnames: Names = ...,
               keep_unused: bool = ..., inline: bool = ...,
               compiler_options: dict[str, Any] | None = ...) -> JittedMethod[P, R]:
    """`jax.jit` for a method that overrides another one, jitted or not, or is overridden."""
@overload
def jit_method(*, in_shardings: Any = ...,  # pyright: ignore[reportOverlappingOverload]  # see above
               out_shardings: Any = ..., static_argnums: Numbers = ..., static_argnames: Names = ...,
               donate_argnums: Numbers = ..., donate_argnames: Names = ..., keep_unused: bool = ...,
               inline: bool = ..., compiler_options: dict[str, Any] | None = ...) -> _JitMethod: ...

@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
         fun: Callable[Concatenate[Open, P], Any], argnums: Literal[0] = ..., has_aux: Literal[False] = ...,
         holomorphic: bool = ..., allow_int: bool = ...) -> Gradient[P, Open]:
    """`jax.grad`: the gradient has the type of the argument that it is taken for."""
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
         fun: Callable[Concatenate[A, B, P], Any], argnums: Literal[1], has_aux: Literal[False] = ...,
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], B]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
         fun: Callable[Concatenate[A, B, P], Any], argnums: Both, has_aux: Literal[False] = ...,
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
         fun: Callable[Concatenate[A, P], tuple[Any, Aux]], argnums: Literal[0] = ..., *, has_aux: Literal[True],
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
         fun: Callable[Concatenate[A, P], tuple[Any, Aux]], argnums: Literal[0], has_aux: Literal[True],
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
         fun: Callable[Concatenate[A, B, P], tuple[Any, Aux]], argnums: Literal[1], has_aux: Literal[True],
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[B, Aux]]: ...
@overload
def grad(fun: Callable[P, Any], argnums: int | Sequence[int], has_aux: bool = ..., holomorphic: bool = ...,
         allow_int: bool = ...) -> Callable[P, Any]: ...

@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
                   fun: Callable[Concatenate[Open, P], R], argnums: Literal[0] = ..., has_aux: Literal[False] = ...,
                   holomorphic: bool = ..., allow_int: bool = ...) -> ValueAndGradient[P, R, Open]:
    """`jax.value_and_grad`: the value as `fun` gives it, and the gradient as the type of its argument."""
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
                   fun: Callable[Concatenate[A, B, P], R], argnums: Literal[1], has_aux: Literal[False] = ...,
                   holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[R, B]]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
                   fun: Callable[Concatenate[A, B, P], R], argnums: Both, has_aux: Literal[False] = ...,
                   holomorphic: bool = ..., allow_int: bool = ...
                   ) -> Callable[Concatenate[A, B, P], tuple[R, tuple[A, B]]]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
                   fun: Callable[Concatenate[Open, P], tuple[R, Aux]], argnums: Literal[0] = ..., *,
                   has_aux: Literal[True], holomorphic: bool = ..., allow_int: bool = ...
                   ) -> ValueAndGradient[P, tuple[R, Aux], Open]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
                   fun: Callable[Concatenate[Open, P], tuple[R, Aux]], argnums: Literal[0], has_aux: Literal[True],
                   holomorphic: bool = ..., allow_int: bool = ...) -> ValueAndGradient[P, tuple[R, Aux], Open]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy say so
                   fun: Callable[Concatenate[A, B, P], tuple[R, Aux]], argnums: Literal[1], has_aux: Literal[True],
                   holomorphic: bool = ..., allow_int: bool = ...
                   ) -> Callable[Concatenate[A, B, P], tuple[tuple[R, Aux], B]]: ...
@overload
def value_and_grad(fun: Callable[P, R], argnums: int | Sequence[int], has_aux: bool = ..., holomorphic: bool = ...,
                   allow_int: bool = ...) -> Callable[P, tuple[R, Any]]: ...

jacfwd: _Jacobian
jacrev: _Jacobian
hessian: _Jacobian

@overload
def remat(fun: Callable[P, R], *, prevent_cse: bool | Sequence[bool] = ..., policy: Callable[..., bool] | None = ...,
          static_argnums: int | tuple[int, ...] = ..., static_argnames: Names = ...) -> Callable[P, R]:
    """`jax.checkpoint`, which keeps the signature; intermediate values are computed again in the backward pass."""
@overload
def remat(*, prevent_cse: bool | Sequence[bool] = ..., policy: Callable[..., bool] | None = ...,
          static_argnums: int | tuple[int, ...] = ..., static_argnames: Names = ...) -> _Keeps: ...

def eval_shape(fun: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """`jax.eval_shape`: the result of `fun` with a `jax.ShapeDtypeStruct` for each leaf."""

def device_put(x: T, device: Any = ..., *, src: Any = ..., donate: Any = ..., may_alias: Any = ...) -> T:
    """`jax.device_put`: the same tree on other devices."""

# One, two and three trees by themselves: by way of `...`, strict pyright finds the parameters of a lambda unknown.
@overload
def tree_map(f: Callable[[Any], Any], tree: T, *, is_leaf: Callable[[Any], bool] | None = ...) -> T:
    """`jax.tree.map`: a tree of the same class; its leaves are what `f` makes them."""
@overload
def tree_map(f: Callable[[Any, Any], Any], tree: T, second: Any, /, *,
             is_leaf: Callable[[Any], bool] | None = ...) -> T: ...
@overload
def tree_map(f: Callable[[Any, Any, Any], Any], tree: T, second: Any, third: Any, /, *,
             is_leaf: Callable[[Any], bool] | None = ...) -> T: ...
@overload
def tree_map(f: Callable[..., Any], tree: T, /, *rest: Any, is_leaf: Callable[[Any], bool] | None = ...) -> T: ...

# Up to three operands by themselves: lambdas are given no types by way of a TypeVarTuple. The last overload takes none
# of those calls, since mypy gives Any where two overloads take a lambda.
@overload
def cond(pred: Any, true_fun: Callable[[], R], false_fun: Callable[[], R]) -> R:
    """`jax.lax.cond`: both branches take the operands and give one type."""
@overload
def cond(pred: Any, true_fun: Callable[[X], R], false_fun: Callable[[X], R], x: X, /) -> R: ...
@overload
def cond(pred: Any, true_fun: Callable[[X, Y], R], false_fun: Callable[[X, Y], R], x: X, y: Y, /) -> R: ...
@overload
def cond(pred: Any, true_fun: Callable[[X, Y, Z], R], false_fun: Callable[[X, Y, Z], R], x: X, y: Y, z: Z, /) -> R: ...
@overload
def cond(pred: Any, true_fun: Callable[[X, Y, Z, T, *More], R],
         false_fun: Callable[[X, Y, Z, T, *More], R], x: X, y: Y, z: Z, t: T, /, *more: *More) -> R: ...

@overload
def switch(index: Any, branches: Sequence[Callable[[], R]]) -> R:
    """`jax.lax.switch`: all branches take the operands and give one type."""
@overload
def switch(index: Any, branches: Sequence[Callable[[X], R]], x: X, /) -> R: ...
@overload
def switch(index: Any, branches: Sequence[Callable[[X, Y], R]], x: X, y: Y, /) -> R: ...
@overload
def switch(index: Any, branches: Sequence[Callable[[X, Y, Z], R]], x: X, y: Y, z: Z, /) -> R: ...
@overload
def switch(index: Any, branches: Sequence[Callable[[X, Y, Z, T, *More], R]],
           x: X, y: Y, z: Z, t: T, /, *more: *More) -> R: ...

def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, T], T], init_val: T, *,
              unroll: int | bool | None = ...) -> T:
    """`jax.lax.fori_loop`: the loop carries one type."""

def while_loop(cond_fun: Callable[[T], Any], body_fun: Callable[[T], T], init_val: T) -> T:
    """`jax.lax.while_loop`: the loop carries one type."""

def scan(f: Callable[[T, X], tuple[T, Y]], init: T, xs: X | None = ..., length: int | None = ..., reverse: bool = ...,
         unroll: int | bool = ...) -> tuple[T, Y]:
    """`jax.lax.scan`: the loop carries one type, and gives what `f` gives beside it, stacked."""

# The callables beside F, which no lambda fits, only give types to its parameters: in strict pyright they would be
# unknown. mypy would take the result of a function that returns Any for Never.
if not TYPE_CHECKING_WITH_PYREFLY and MYPY:
    def vmap(fun: F, in_axes: Any = ..., out_axes: Any = ..., axis_name: Any = ..., axis_size: int | None = ...,
             spmd_axis_name: Any = ..., sum_match: bool = ...) -> F: ...
else:
    def vmap(fun: F | Callable[[Any], Never] | Callable[[Any, Any], Never] | Callable[[Any, Any, Any], Never],
             in_axes: Any = ..., out_axes: Any = ..., axis_name: Any = ..., axis_size: int | None = ...,
             spmd_axis_name: Any = ..., sum_match: bool = ...) -> F:
        """`jax.vmap`: the signature stays; arrays have one axis more."""
