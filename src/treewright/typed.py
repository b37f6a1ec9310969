"""JAX's own functions under types that checkers can follow: `treewright.typed.jit is jax.jit`.

In JAX's signatures these functions return `Any`, so checkers miss a wrong argument of a jitted function or of a
gradient. JAX's own `vmap`, `scan` and `while_loop` preserve types in all checkers but zuban.

The types are in `typed.pyi`. `WithReplace` is not from JAX: it is a base class that declares a method to checkers.
"""

# JAX's annotations, which the stub replaces, are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import jax

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

Ref, new_ref = jax.Ref, jax.new_ref
jit = jit_method = jax.jit
grad, value_and_grad = jax.grad, jax.value_and_grad
jacfwd, jacrev, hessian = jax.jacfwd, jax.jacrev, jax.hessian
remat, eval_shape, device_put = jax.checkpoint, jax.eval_shape, jax.device_put
tree_map, vmap = jax.tree.map, jax.vmap
cond, switch, fori_loop = jax.lax.cond, jax.lax.switch, jax.lax.fori_loop
scan, while_loop = jax.lax.scan, jax.lax.while_loop


class WithReplace:
    """A base for classes with `@pytree_dataclass` that declares their method `replace` to type checkers.

    A decorator can't declare a method. At run time every such class has the method, and this base is empty.

    Examples:
        >>> from treewright.typed import WithReplace
        >>> @pytree_dataclass
        ... class Cell(WithReplace):
        ...     steps: int
        >>> Cell(1).replace(steps=2)
        Cell(steps=2)
    """

    __slots__ = ()
