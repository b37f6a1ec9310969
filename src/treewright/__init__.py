"""Classes that are pytrees: nodes with static fields, for JAX."""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from treewright._nodes.dataclass import pytree_dataclass as pytree_dataclass
    from treewright._nodes.fields import buffer as buffer
    from treewright._nodes.fields import field as field
    from treewright._nodes.fields import static as static
    from treewright._nodes.freeze import FrozenArray as FrozenArray
    from treewright._nodes.freeze import FrozenMapping as FrozenMapping
    from treewright._nodes.freeze import freeze as freeze
    from treewright._nodes.module import Module as Module
    from treewright._nodes.wrapper import Static as Static
    from treewright._trees.update import replace as replace
    from treewright.train import TrainState as TrainState
else:
    _HOMES = MappingProxyType(
        {
            "FrozenArray": "_nodes.freeze",
            "FrozenMapping": "_nodes.freeze",
            "Module": "_nodes.module",
            "Static": "_nodes.wrapper",
            "TrainState": "train",
            "buffer": "_nodes.fields",
            "errors": "errors",
            "field": "_nodes.fields",
            "freeze": "_nodes.freeze",
            "pytree_dataclass": "_nodes.dataclass",
            "replace": "_trees.update",
            "static": "_nodes.fields",
        }
    )
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> Any:
        """A public name, imported on first use: `import treewright` alone loads no jax."""
        if name not in _HOMES:
            raise AttributeError(f"module 'treewright' has no attribute {name!r}")
        home = import_module(f"treewright.{_HOMES[name]}")
        value = home if name == "errors" else getattr(home, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
