"""JAX's own functions under types that checkers can follow: `treewright.typed.jit is jax.jit`.

JAX's signatures give `Any` for what these functions return, so a wrong argument of a jitted function, or of a gradient,
passes unseen. Functions that keep types by themselves (`jax.vmap`, `jax.lax.scan`, `jax.lax.while_loop`,
`jax.lax.stop_gradient`) are not here.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, TypeVarTuple, overload

import jax

__all__ = [
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
    "remat",
    "switch",
    "tree_map",
    "value_and_grad",
]

P = ParamSpec("P")
Rest = ParamSpec("Rest")
Whole = ParamSpec("Whole")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Aux = TypeVar("Aux")
Operands = TypeVarTuple("Operands")


class Compiles(Protocol[P, R_co]):
    """What can be called and, before that, traced, lowered and compiled with the same arguments."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """The traced program, before it is lowered."""
        ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """The lowered program, to be compiled by `.compile()`."""
        ...

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The result with a `jax.ShapeDtypeStruct` for each leaf."""
        ...

    def clear_cache(self) -> None:
        """Forget what has been compiled."""
        ...


class Jitted(Compiles[P, R_co], Protocol[P, R_co]):
    """The type of a jitted function; of a jitted method, too, which binds like any method."""

    @overload
    def __get__(self, obj: None, owner: Any = ..., /) -> Self: ...
    @overload
    def __get__(
        self: "Jitted[Concatenate[A, Rest], R]", obj: A, owner: Any = ..., /
    ) -> "BoundJitted[Rest, Concatenate[A, Rest], R]": ...
    def __get__(self, obj: Any, owner: Any = None, /) -> Any: ...


class BoundJitted(Protocol[P, Whole, R_co]):
    """The type of a jitted method of one object: called without it, but `lower` and the like take it as an argument."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def trace(self, *args: Whole.args, **kwargs: Whole.kwargs) -> jax.stages.Traced:
        """The traced program, before it is lowered."""
        ...

    def lower(self, *args: Whole.args, **kwargs: Whole.kwargs) -> jax.stages.Lowered:
        """The lowered program, to be compiled by `.compile()`."""
        ...

    def eval_shape(self, *args: Whole.args, **kwargs: Whole.kwargs) -> R_co:
        """The result with a `jax.ShapeDtypeStruct` for each leaf."""
        ...


class JittedMethod(Protocol[P, R_co]):
    """The type of what `jit_method` gives: as `Jitted`, and a subclass may override it with another."""

    def __call__(self, obj: Any, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __get__(self, obj: None, owner: Any = ..., /) -> Self: ...
    @overload
    def __get__(self, obj: object, owner: Any = ..., /) -> "BoundJitted[P, Concatenate[Any, P], R_co]": ...
    def __get__(self, obj: Any, owner: Any = None, /) -> Any: ...


if TYPE_CHECKING:
    # fmt: off
    @overload
    def jit(fun: Callable[P, R], /, *, in_shardings: Any = ..., out_shardings: Any = ...,
            static_argnums: int | Sequence[int] | None = ..., static_argnames: str | Sequence[str] | None = ...,
            donate_argnums: int | Sequence[int] | None = ..., donate_argnames: str | Sequence[str] | None = ...,
            keep_unused: bool = ..., inline: bool = ...,
            compiler_options: dict[str, Any] | None = ...) -> Jitted[P, R]: ...
    @overload
    def jit(*, in_shardings: Any = ..., out_shardings: Any = ...,
            static_argnums: int | Sequence[int] | None = ..., static_argnames: str | Sequence[str] | None = ...,
            donate_argnums: int | Sequence[int] | None = ..., donate_argnames: str | Sequence[str] | None = ...,
            keep_unused: bool = ..., inline: bool = ...,
            compiler_options: dict[str, Any] | None = ...) -> "_Jit": ...
    def jit(*args: Any, **options: Any) -> Any:
        """`jax.jit`: the result has the signature of `fun`; `.lower`, `.trace` and `.eval_shape` have it too."""

    @overload
    def jit_method(fun: Callable[Concatenate[Any, P], R], /) -> JittedMethod[P, R]: ...
    @overload
    def jit_method(*, static_argnums: int | Sequence[int] | None = ...,
                   static_argnames: str | Sequence[str] | None = ...,
                   donate_argnums: int | Sequence[int] | None = ...,
                   donate_argnames: str | Sequence[str] | None = ...) -> "_JitMethod": ...
    def jit_method(*args: Any, **options: Any) -> Any:
        """`jax.jit` for a method that a subclass overrides by another jitted one, which pyright refuses for `jit`."""

    class _Jit(Protocol):
        def __call__(self, fun: Callable[P, R], /) -> Jitted[P, R]: ...

    class _JitMethod(Protocol):
        def __call__(self, fun: Callable[Concatenate[Any, P], R], /) -> JittedMethod[P, R]: ...

    @overload
    def grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
             fun: Callable[Concatenate[A, P], Any], argnums: Literal[0] = ..., *, has_aux: Literal[False] = ...,
             holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], A]: ...
    @overload
    def grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
             fun: Callable[Concatenate[A, B, P], Any], argnums: Literal[1], *, has_aux: Literal[False] = ...,
             holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], B]: ...
    @overload
    def grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
             fun: Callable[Concatenate[A, B, P], Any], argnums: tuple[Literal[0], Literal[1]], *,
             has_aux: Literal[False] = ..., holomorphic: bool = ...,
             allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[A, B]]: ...
    @overload
    def grad(fun: Callable[Concatenate[A, P], tuple[Any, Aux]], argnums: Literal[0] = ..., *, has_aux: Literal[True],
             holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
    @overload
    def grad(fun: Callable[Concatenate[A, B, P], tuple[Any, Aux]], argnums: Literal[1], *, has_aux: Literal[True],
             holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[B, Aux]]: ...
    @overload
    def grad(fun: Callable[P, Any], argnums: int | Sequence[int], *, has_aux: bool = ..., holomorphic: bool = ...,
             allow_int: bool = ...) -> Callable[P, Any]: ...
    def grad(*args: Any, **options: Any) -> Any:
        """`jax.grad`: the gradient has the type of the argument that it is taken for."""

    @overload
    def value_and_grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
                       fun: Callable[Concatenate[A, P], R], argnums: Literal[0] = ..., *, has_aux: Literal[False] = ...,
                       holomorphic: bool = ..., allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[R, A]]: ...
    @overload
    def value_and_grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
                       fun: Callable[Concatenate[A, B, P], R], argnums: Literal[1], *, has_aux: Literal[False] = ...,
                       holomorphic: bool = ...,
                       allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[R, B]]: ...
    @overload
    def value_and_grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
                       fun: Callable[Concatenate[A, B, P], R], argnums: tuple[Literal[0], Literal[1]], *,
                       has_aux: Literal[False] = ..., holomorphic: bool = ...,
                       allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[R, tuple[A, B]]]: ...
    @overload
    def value_and_grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
                       fun: Callable[Concatenate[A, P], tuple[R, Aux]], argnums: Literal[0] = ..., *,
                       has_aux: Literal[True], holomorphic: bool = ...,
                       allow_int: bool = ...) -> Callable[Concatenate[A, P], tuple[tuple[R, Aux], A]]: ...
    @overload
    def value_and_grad(  # type: ignore[overload-overlap]  # the last one takes what the others do not
                       fun: Callable[Concatenate[A, B, P], tuple[R, Aux]], argnums: Literal[1], *,
                       has_aux: Literal[True], holomorphic: bool = ...,
                       allow_int: bool = ...) -> Callable[Concatenate[A, B, P], tuple[tuple[R, Aux], B]]: ...
    @overload
    def value_and_grad(fun: Callable[P, R], argnums: int | Sequence[int], *, has_aux: bool = ...,
                       holomorphic: bool = ..., allow_int: bool = ...) -> Callable[P, tuple[R, Any]]: ...
    def value_and_grad(*args: Any, **options: Any) -> Any:
        """`jax.value_and_grad`: the value as `fun` gives it, and the gradient as the type of its argument."""

    class _Jacobian(Protocol):
        @overload
        def __call__(self, fun: Callable[Concatenate[jax.Array, P], jax.Array], /
                     ) -> Callable[Concatenate[jax.Array, P], jax.Array]: ...
        @overload
        def __call__(self, fun: Callable[P, Any], /, argnums: int | Sequence[int] = ..., *, has_aux: bool = ...,
                     holomorphic: bool = ...) -> Callable[P, Any]: ...

    jacfwd: _Jacobian
    jacrev: _Jacobian
    hessian: _Jacobian

    @overload
    def remat(fun: Callable[P, R], /, *, prevent_cse: bool = ..., policy: Callable[..., bool] | None = ...,
              static_argnums: int | tuple[int, ...] = ...) -> Callable[P, R]: ...
    @overload
    def remat(*, prevent_cse: bool = ..., policy: Callable[..., bool] | None = ...,
              static_argnums: int | tuple[int, ...] = ...) -> "_Keeps": ...
    def remat(*args: Any, **options: Any) -> Any:
        """`jax.checkpoint`, which keeps the signature; intermediate values are computed anew in the backward pass."""

    class _Keeps(Protocol):
        def __call__(self, fun: Callable[P, R], /) -> Callable[P, R]: ...

    def eval_shape(fun: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`jax.eval_shape`: the result of `fun` with a `jax.ShapeDtypeStruct` for each leaf."""
        ...

    def device_put(x: T, device: Any = ..., *, src: Any = ..., donate: Any = ..., may_alias: Any = ...) -> T:
        """`jax.device_put`: the same tree on other devices."""
        ...

    def tree_map(f: Callable[..., Any], tree: T, /, *rest: Any, is_leaf: Callable[[Any], bool] | None = ...) -> T:
        """`jax.tree.map`: a tree of the same class; its leaves are what `f` makes them."""
        ...

    def cond(pred: Any, true_fun: Callable[[*Operands], R], false_fun: Callable[[*Operands], R], /,
             *operands: *Operands) -> R:
        """`jax.lax.cond`: both branches take the operands and give one type."""
        ...

    def switch(index: Any, branches: Sequence[Callable[[*Operands], R]], /, *operands: *Operands) -> R:
        """`jax.lax.switch`: all branches take the operands and give one type."""
        ...

    def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, T], T], init_val: T, *,
                  unroll: int | bool | None = ...) -> T:
        """`jax.lax.fori_loop`: the loop carries one type."""
        ...
    # fmt: on
else:
    jit = jit_method = jax.jit
    grad, value_and_grad = jax.grad, jax.value_and_grad
    jacfwd, jacrev, hessian = jax.jacfwd, jax.jacrev, jax.hessian
    remat, eval_shape, device_put = jax.checkpoint, jax.eval_shape, jax.device_put
    tree_map = jax.tree.map
    cond, switch, fori_loop = jax.lax.cond, jax.lax.switch, jax.lax.fori_loop
