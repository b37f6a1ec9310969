"""What differs between the releases of JAX that this package runs on, from 0.9.0 to the newest."""

from typing import Any, TypeAlias

import jax

Key: TypeAlias = Any  # GetAttrKey, SequenceKey, DictKey, FlattenedIndexKey, or what a foreign class registered
Path: TypeAlias = tuple[Key, ...]

jax_trees: Any = jax.tree_util  # whose annotations leave keys and treedefs open


def path_text(path: Path, root: str = "") -> str:
    """A path as users would write it: `state.params.layers[2].kernel` for the root `state`."""
    return root + "".join(map(str, path))


def field_key(name: str) -> Key:
    """The key of a field."""
    return jax_trees.GetAttrKey(name)


# The frames of JAX in which a call of a jitted function can be read while it is traced, and while it is compiled. In
# 0.9.0 only `_trace_for_jit` shows a trace; since then it stands below `_infer_params`, with the same call.
TRACING = frozenset({"_infer_params", "_trace_for_jit"})
FRAMES = TRACING | {"_run_python_pjit"}
