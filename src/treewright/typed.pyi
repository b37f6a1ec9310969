"""Type stubs for `typed.py`. Names that are not in `__all__` do not exist at run time."""

# Only A has a default: pyright wants one for each later type variable, but those are always inferred.
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

from treewright.module import ReplaceMethod

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
TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False  # see fields.py

@type_check_only
class Unannotated:
    """The type of a lambda's argument, and of the missing function in `jit(...)` without one."""

P = ParamSpec("P")
Rest = ParamSpec("Rest")
Whole = ParamSpec("Whole")
# Without the bound, pyright infers `object` for the parameter of a lambda, which has no attributes.
A = TypeVar("A", bound=Any, default=Any)
B = TypeVar("B", bound=Any, default=Any)
X = TypeVar("X")
Y = TypeVar("Y")
Z = TypeVar("Z")
F = TypeVar("F", bound=Callable[..., Any])
# pyright reads both and uses the first, which would make the gradient of a lambda Any.
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
    """`jax.new_ref`: a ref with a copy of an array."""

class WithReplace:
    """A base for classes with `@pytree_dataclass` that declares their method `replace` to type checkers."""

    if sys.version_info >= (3, 13):
        replace: ClassVar[ReplaceMethod]

        # zuban finds no other form, and pyright none in a class with a custom `__init__`.
        def __replace__(self, /, **changes: Any) -> Self: ...
    else:
        def replace(self, /, **changes: Any) -> Self: ...

# fmt: off


# A class, not a Protocol: pyrefly and zuban do not bind a Protocol's method by a different self type.
@type_check_only
class Jitted(Generic[P, R_co]):
    """A jitted function, or a jitted method, which binds like any method."""

    if not TYPE_CHECKING_WITH_PYREFLY and MYPY:
        # There it is also the type of the result of `jit` without a function.
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
        """Delete the compiled programs."""
    @overload
    def __get__(self, obj: None, owner: Any = ..., /) -> Self: ...
    @overload
    def __get__(self: Callable[Concatenate[A, Rest], R], obj: A, owner: Any = ...,
                /) -> BoundJitted[Rest, Concatenate[A, Rest], R]: ...

@type_check_only
class BoundJitted(Generic[P, Whole, R_co]):
    """A jitted method bound to an object. Calls omit the object, but `lower` and the like need it as an argument."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def trace(self, *args: Whole.args, **kwargs: Whole.kwargs) -> jax.stages.Traced:
        """The traced program, before it is lowered."""
    def lower(self, *args: Whole.args, **kwargs: Whole.kwargs) -> jax.stages.Lowered:
        """The lowered program, to be compiled by `.compile()`."""
    def eval_shape(self, *args: Whole.args, **kwargs: Whole.kwargs) -> R_co:
        """The result with a `jax.ShapeDtypeStruct` for each leaf."""

@type_check_only
class JittedMethod(Generic[P, R_co]):
    """The result of `jit_method`: like `Jitted`, but a subclass may override it."""

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

# ty and pyrefly use only the last overload: with several matches, they infer nothing, or the wrong one.
@type_check_only
class Gradient(Generic[P, Open]):
    """The result of `grad`. A lambda has no argument type: its gradient has the type of the argument in the call."""

    if not TYPE_CHECKING_WITH_PYREFLY and (MYPY or sys.version_info.major < 3):  # the version test is for pyright
        @overload
        def __call__(self: Gradient[P, Unannotated], x: X, /, *args: P.args, **kwargs: P.kwargs) -> X: ...
    @overload
    def __call__(self, x: Open, /, *args: P.args, **kwargs: P.kwargs) -> Open: ...

@type_check_only
class ValueAndGradient(Generic[P, R, Open]):
    """The result of `value_and_grad`, likewise."""

    if not TYPE_CHECKING_WITH_PYREFLY and (MYPY or sys.version_info.major < 3):
        @overload
        def __call__(self: ValueAndGradient[P, R, Unannotated], x: X, /, *args: P.args, **kwargs: P.kwargs
                     ) -> tuple[R, X]: ...
    @overload
    def __call__(self, x: Open, /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Open]: ...

@type_check_only
class Derivative(Generic[Of, P, R_co]):
    """The result of `jacfwd` and the like: an array if both argument and result are arrays."""

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


# mypy supports `functools.partial(jit, ...)` only if `jit` is not overloaded. Without `fun`, `Result` has its default,
# and a `Jitted` of it accepts the function. zuban would use that default for generic functions; it evaluates the second
# condition as false, while mypy evaluates none in this order and uses the first definition.
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

# pyright lets only functions override methods, so there the result is a function, without `.lower`. It reports that
# these and the last two overlap, as intended.
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
    """`jax.jit` for a method that overrides a method, jitted or not, or is overridden."""
@overload
def jit_method(*, in_shardings: Any = ...,  # pyright: ignore[reportOverlappingOverload]  # see above
               out_shardings: Any = ..., static_argnums: Numbers = ..., static_argnames: Names = ...,
               donate_argnums: Numbers = ..., donate_argnames: Names = ..., keep_unused: bool = ...,
               inline: bool = ..., compiler_options: dict[str, Any] | None = ...) -> _JitMethod: ...

@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
         fun: Callable[Concatenate[Open, P], Any], argnums: Literal[0] = ..., has_aux: Literal[False] = ...,
         holomorphic: bool = ..., allow_int: bool = ...) -> Gradient[P, Open]:
    """`jax.grad`: the gradient has the type of the differentiated argument."""
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
         fun: Callable[Concatenate[A, B, P], Any], argnums: Literal[1], has_aux: Literal[False] = ...,
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], B]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
         fun: Callable[Concatenate[A, B, P], Any], argnums: Both, has_aux: Literal[False] = ...,
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
         fun: Callable[Concatenate[A, P], tuple[Any, Aux]], argnums: Literal[0] = ..., *, has_aux: Literal[True],
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
         fun: Callable[Concatenate[A, P], tuple[Any, Aux]], argnums: Literal[0], has_aux: Literal[True],
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
         fun: Callable[Concatenate[A, B, P], tuple[Any, Aux]], argnums: Literal[1], has_aux: Literal[True],
         holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[B, Aux]]: ...
@overload
def grad(fun: Callable[P, Any], argnums: int | Sequence[int], has_aux: bool = ..., holomorphic: bool = ...,
         allow_int: bool = ...) -> Callable[P, Any]: ...

@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
                   fun: Callable[Concatenate[Open, P], R], argnums: Literal[0] = ..., has_aux: Literal[False] = ...,
                   holomorphic: bool = ..., allow_int: bool = ...) -> ValueAndGradient[P, R, Open]:
    """`jax.value_and_grad`: the value has the return type of `fun`, the gradient the type of the argument."""
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
                   fun: Callable[Concatenate[A, B, P], R], argnums: Literal[1], has_aux: Literal[False] = ...,
                   holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[R, B]]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
                   fun: Callable[Concatenate[A, B, P], R], argnums: Both, has_aux: Literal[False] = ...,
                   holomorphic: bool = ..., allow_int: bool = ...
                   ) -> Callable[Concatenate[A, B, P], tuple[R, tuple[A, B]]]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
                   fun: Callable[Concatenate[Open, P], tuple[R, Aux]], argnums: Literal[0] = ..., *,
                   has_aux: Literal[True], holomorphic: bool = ..., allow_int: bool = ...
                   ) -> ValueAndGradient[P, tuple[R, Aux], Open]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
                   fun: Callable[Concatenate[Open, P], tuple[R, Aux]], argnums: Literal[0], has_aux: Literal[True],
                   holomorphic: bool = ..., allow_int: bool = ...) -> ValueAndGradient[P, tuple[R, Aux], Open]: ...
@overload
def value_and_grad(  # type: ignore[overload-overlap, unused-ignore]  # some runs of mypy report it
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
    """`jax.checkpoint` with the signature of `fun`; the backward pass recomputes intermediate values."""
@overload
def remat(*, prevent_cse: bool | Sequence[bool] = ..., policy: Callable[..., bool] | None = ...,
          static_argnums: int | tuple[int, ...] = ..., static_argnames: Names = ...) -> _Keeps: ...

def eval_shape(fun: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """`jax.eval_shape`: the result of `fun` with a `jax.ShapeDtypeStruct` for each leaf."""

def device_put(x: T, device: Any = ..., *, src: Any = ..., donate: Any = ..., may_alias: Any = ...) -> T:
    """`jax.device_put`: the same tree on other devices."""

# Separate overloads for one to three trees: with `...`, a lambda's parameters are unknown to strict pyright.
@overload
def tree_map(f: Callable[[Any], Any], tree: T, *, is_leaf: Callable[[Any], bool] | None = ...) -> T:
    """`jax.tree.map`: a tree of the same class, whose leaves are the results of `f`."""
@overload
def tree_map(f: Callable[[Any, Any], Any], tree: T, second: Any, /, *,
             is_leaf: Callable[[Any], bool] | None = ...) -> T: ...
@overload
def tree_map(f: Callable[[Any, Any, Any], Any], tree: T, second: Any, third: Any, /, *,
             is_leaf: Callable[[Any], bool] | None = ...) -> T: ...
@overload
def tree_map(f: Callable[..., Any], tree: T, /, *rest: Any, is_leaf: Callable[[Any], bool] | None = ...) -> T: ...

# Separate overloads for up to three operands: a TypeVarTuple gives lambdas no types. The last overload accepts none of
# those calls, since mypy infers Any if two overloads accept a lambda.
@overload
def cond(pred: Any, true_fun: Callable[[], R], false_fun: Callable[[], R]) -> R:
    """`jax.lax.cond`: both branches accept the operands and return the same type."""
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
    """`jax.lax.switch`: all branches accept the operands and return the same type."""
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
    """`jax.lax.fori_loop`: the carry has one type."""

def while_loop(cond_fun: Callable[[T], Any], body_fun: Callable[[T], T], init_val: T) -> T:
    """`jax.lax.while_loop`: the carry has one type."""

def scan(f: Callable[[T, X], tuple[T, Y]], init: T, xs: X | None = ..., length: int | None = ..., reverse: bool = ...,
         unroll: int | bool = ...) -> tuple[T, Y]:
    """`jax.lax.scan`: the carry has one type, and the other results of `f` are stacked."""

# The callables next to F, which a lambda does not match, only give types to its parameters: in strict pyright they
# would be unknown. mypy would infer Never for the result of a function that returns Any.
if not TYPE_CHECKING_WITH_PYREFLY and MYPY:
    def vmap(fun: F, in_axes: Any = ..., out_axes: Any = ..., axis_name: Any = ..., axis_size: int | None = ...,
             spmd_axis_name: Any = ..., sum_match: bool = ...) -> F: ...
else:
    def vmap(fun: F | Callable[[Any], Never] | Callable[[Any, Any], Never] | Callable[[Any, Any, Any], Never],
             in_axes: Any = ..., out_axes: Any = ..., axis_name: Any = ..., axis_size: int | None = ...,
             spmd_axis_name: Any = ..., sum_match: bool = ...) -> F:
        """`jax.vmap`: the same signature; arrays have one more axis."""
