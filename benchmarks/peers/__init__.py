"""The same classes in each library, written as its own documentation does.

Each module has `Norm` (one child), `Attention` (four), `MLP`, `Eight` and `Block`, all but the last with one static.
"""

import importlib
from types import ModuleType
from typing import Any

import jax
import numpy as np

BUILT_IN = {"tuple": "tuples", "dict": "dicts"}
LIBRARIES = {
    "register_dataclass": "jax_register_dataclass",
    "flax.struct": "flax_struct",
    "equinox": "equinox_module",
    "chex": "chex_dataclass",
    "jax_dataclasses": "jdc",
    "simple_pytree": "simple",
    "jarp": "jarp_define",
}
NNX = {"flax.nnx": "nnx"}  # only for the step
OURS = {"treewright.pytree_dataclass": "ours_decorated", "treewright.Module": "ours_module"}
NAMES = {**BUILT_IN, **LIBRARIES, **OURS}
LAYERS = 24


def peer(name: str) -> ModuleType:
    """The module with the classes of a library."""
    return importlib.import_module(f"peers.{({**NAMES, **NNX})[name]}")


def arrays(count: int) -> list[jax.Array]:
    """Scalars `f32[]`, each a separate array."""
    return [jax.device_put(np.float32(i)) for i in range(count)]


def node(name: str, cls: str, leaves: list[Any]) -> Any:
    """One node of a class with one static."""
    library, static = peer(name), STATICS[cls]
    fields = dict(zip(FIELDS[cls], leaves, strict=True))
    return getattr(library, cls)(**fields, **({} if getattr(library, "NO_STATICS", False) else static))


FIELDS = {
    "Norm": ("scale",),
    "Attention": ("query", "key", "value", "out"),
    "MLP": ("gate", "up", "down"),
    "Eight": tuple(f"c{i}" for i in range(8)),
}
STATICS: dict[str, dict[str, Any]] = {
    "Norm": {"epsilon": 1e-6},
    "Attention": {"heads": 8},
    "MLP": {"activation": "silu"},
    "Eight": {"width": 64},
}
BY_CHILDREN = {1: "Norm", 4: "Attention", 8: "Eight"}


def nodes(name: str, children: int, count: int = 100) -> list[Any]:
    """So many nodes with one static and so many children."""
    leaves = arrays(count * children)
    return [node(name, BY_CHILDREN[children], leaves[i * children : (i + 1) * children]) for i in range(count)]


def layers(name: str, size: int = 2) -> list[Any]:
    """24 layers of a transformer: 216 arrays `f32[size]`."""
    block = peer(name).Block

    def leaves(count: int) -> list[Any]:
        return [jax.device_put(np.full(size, 0.01, np.float32)) for _ in range(count)]

    def layer() -> Any:
        return block(
            norm1=node(name, "Norm", leaves(1)),
            attention=node(name, "Attention", leaves(4)),
            norm2=node(name, "Norm", leaves(1)),
            mlp=node(name, "MLP", leaves(3)),
        )

    return [layer() for _ in range(LAYERS)]
