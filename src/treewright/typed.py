"""JAX's own functions under types that checkers can follow: `treewright.typed.jit is jax.jit`.

JAX's signatures give `Any` for what these functions return, so a wrong argument of a jitted function, or of a gradient,
passes unseen. `vmap`, `scan` and `while_loop` keep types by themselves, in all checkers but zuban.

The types stand in `typed.pyi`. `WithReplace` is no function of JAX's: a base that tells checkers of a method.
"""

# JAX's own annotations are why there is a stub.
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
    """A base for classes with `@pytree_dataclass`, whose `replace` type checkers know of by it.

    A decorator can't tell them of a method. At run time every such class has the method, and this base has nothing.
    """

    __slots__ = ()
