"""Names of other libraries that users look for in `treewright`, each with what to write here."""

from types import MappingProxyType

_JAX = "jax.{0} itself: statics are not leaves, so nothing is filtered"

INSTEAD = MappingProxyType(
    {
        "CheckpointManager": "from treewright.checkpoint import CheckpointManager",
        "Param": "an annotated field, kernel: jax.Array; for an array that is not trained, buffer()",
        "PyTreeNode": "the base class Module",
        "TooManyTracesError": "from treewright.errors import TooManyTracesError",
        "Variable": "an annotated field, kernel: jax.Array; for an array that is not trained, buffer()",
        "apply_updates": "state.apply_gradients(grads=grads) of a TrainState, or optax.apply_updates",
        "dataclass": "pytree_dataclass",
        **{f"filter_{name}": _JAX.format(name) for name in ("grad", "jit", "value_and_grad", "vmap")},
        "filter": "partition(tree, where), which returns the selected leaves and the others",
        **dict.fromkeys(("grad", "jit", "vmap"), "JAX's own function, or treewright.typed for its types"),
        "is_array": "partition(tree, trainable(tree)); statics are not leaves, so nothing else is filtered",
        "is_inexact_array": "partition(tree, trainable(tree)); statics are not leaves, so nothing else is filtered",
        "load": "from treewright.checkpoint import load",
        "nn": "adopt(equinox.nn.Linear(...)) or adopt(flax.nnx.Linear(...)): there are no layers here",
        "register_dataclass": "jax.tree_util.register_dataclass, or for your own class pytree_dataclass",
        "save": "from treewright.checkpoint import save",
        "split_key_like": "optax.tree.split_key_like(key, tree)",
        "static_field": "static()",
        "tree_at": "at(tree, where).set(value)",
        "tree_deserialise_leaves": "load(path, like=tree) from treewright.checkpoint",
        "tree_equal": "a == b, or diff(a, b) for the differences",
        "tree_pprint": "print(tree), or summary(tree)",
        "tree_serialise_leaves": "save(path, tree) from treewright.checkpoint",
    }
)
"""The replacement of each name. `docs/migrating` has the names of equinox and flax in full."""
