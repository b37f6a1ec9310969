"""The same classes in each library, written as its own documentation writes them.

Each has `Norm` (one child), `Attention` (four), `MLP`, `Eight` and `Block`, all but the last with one static.
"""

import functools
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np


class Spelling(NamedTuple):
    """How a library spells a class with a static field."""

    imports: str
    decorators: str = ""
    base: str = ""
    static: str = ""  # a static field after its name; empty if the library has none


LIBRARIES = {
    "register_dataclass": Spelling(
        "import dataclasses",
        decorators="@jax.tree_util.register_dataclass\n@dataclasses.dataclass(frozen=True)\n",
        static=": {type} = dataclasses.field(metadata={{'static': True}})",
    ),
    "flax.struct": Spelling(
        "from flax import struct", decorators="@struct.dataclass\n", static=": {type} = struct.field(pytree_node=False)"
    ),
    "equinox": Spelling("import equinox as eqx", base="(eqx.Module)", static=": {type} = eqx.field(static=True)"),
    "chex": Spelling("import chex", decorators="@chex.dataclass(frozen=True)\n"),
    "jax_dataclasses": Spelling(
        "import jax_dataclasses as jdc", decorators="@jdc.pytree_dataclass\n", static=": jdc.Static[{type}]"
    ),
    "simple_pytree": Spelling(
        "import simple_pytree",
        decorators="@simple_pytree.dataclass\n",
        base="(simple_pytree.Pytree)",
        static=": {type} = simple_pytree.static_field()",
    ),
    "jarp": Spelling("import jarp", decorators="@jarp.define\n", static=": {type} = jarp.static()"),
}
OURS = {
    "treewright.pytree_dataclass": Spelling(
        "from treewright import pytree_dataclass, static",
        decorators="@pytree_dataclass\n",
        static=": {type} = static()",
    ),
    "treewright.Module": Spelling(
        "from treewright import Module, static", base="(Module)", static=": {type} = static()"
    ),
}
SPELLINGS = {**LIBRARIES, **OURS}
NAMES = ("tuple", "dict", *SPELLINGS)
FIELDS = {
    "Norm": ("scale",),
    "Attention": ("query", "key", "value", "out"),
    "MLP": ("gate", "up", "down"),
    "Eight": tuple(f"c{i}" for i in range(8)),
    "Block": ("norm1", "attention", "norm2", "mlp"),
}
STATICS: dict[str, dict[str, Any]] = {
    "Norm": {"epsilon": 1e-6},
    "Attention": {"heads": 8},
    "MLP": {"activation": "silu"},
    "Eight": {"width": 64},
    "Block": {},
}
BY_CHILDREN = {1: "Norm", 4: "Attention", 8: "Eight"}
LAYERS = 24


def class_text(name: str, cls: str) -> str:
    """The class statement in the spelling of a library."""
    spelling = SPELLINGS[name]
    lines = [f"class {cls}{spelling.base}:", *(f"    {field}: {_child_type(cls)}" for field in FIELDS[cls])]
    lines += [f"    {field}{spelling.static.format(type=type(value).__name__)}" for field, value in statics(name, cls)]
    return spelling.decorators + "\n".join(lines) + "\n"


def _child_type(cls: str) -> str:
    return "Any" if cls == "Block" else "jax.Array"


def statics(name: str, cls: str) -> list[tuple[str, Any]]:
    """The static fields of a class and their values; none in a library without static fields."""
    return list(STATICS[cls].items()) if name in SPELLINGS and SPELLINGS[name].static else []


@functools.cache
def peer(name: str) -> Any:
    """The classes of a library, as attributes."""
    if name in {"tuple", "dict"}:
        cls = dict if name == "dict" else lambda **fields: tuple(fields.values())
        return SimpleNamespace(**dict.fromkeys(FIELDS, cls))
    if name == "flax.nnx":
        return importlib.import_module("peers.nnx")
    module = ModuleType(f"peers.{name}")
    sys.modules[module.__name__] = module  # dataclasses look up the module of a class
    texts = [
        "import jax",
        "from typing import Any",
        SPELLINGS[name].imports,
        *(class_text(name, cls) for cls in FIELDS),
    ]
    exec("\n".join(texts), vars(module))  # noqa: S102 - text from this file
    return module


def arrays(count: int) -> list[jax.Array]:
    """Scalars `f32[]`, each a separate array."""
    return [jax.device_put(np.float32(i)) for i in range(count)]


def node(name: str, cls: str, leaves: list[Any]) -> Any:
    """One node of a class with one static."""
    values = STATICS[cls].items() if name == "flax.nnx" else statics(name, cls)
    return getattr(peer(name), cls)(**dict(zip(FIELDS[cls], leaves, strict=True)), **dict(values))


def nodes(name: str, children: int, count: int = 100) -> list[Any]:
    """Nodes with one static and this number of children."""
    leaves = arrays(count * children)
    return [node(name, BY_CHILDREN[children], leaves[i * children : (i + 1) * children]) for i in range(count)]


def layers(name: str, size: int = 2) -> list[Any]:
    """24 layers of a transformer: 216 arrays `f32[size]`."""

    def layer() -> Any:
        parts = ("Norm", "Attention", "Norm", "MLP")
        leaves = ([jax.device_put(np.full(size, 0.01, np.float32)) for _ in FIELDS[part]] for part in parts)
        return node(name, "Block", [node(name, part, values) for part, values in zip(parts, leaves, strict=True)])

    return [layer() for _ in range(LAYERS)]
