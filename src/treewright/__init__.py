"""Classes that are pytrees: nodes with static fields, for JAX."""

__version__ = "0.1.0"

__all__ = [
    "FrozenArray",
    "FrozenMapping",
    "Module",
    "Static",
    "TrainState",
    "buffer",
    "diff",
    "errors",
    "field",
    "freeze",
    "pytree_dataclass",
    "replace",
    "static",
]

TYPE_CHECKING = False  # for checkers it is true; importing it from typing would take most of the time that this takes
if TYPE_CHECKING:
    from treewright import errors
    from treewright._nodes.dataclass import pytree_dataclass
    from treewright._nodes.fields import buffer, field, static
    from treewright._nodes.freeze import FrozenArray, FrozenMapping, freeze
    from treewright._nodes.module import Module
    from treewright._nodes.wrapper import Static
    from treewright._trees.diff import diff
    from treewright._trees.update import replace
    from treewright.train import TrainState
else:
    # Resolved on first use, so that `import treewright` loads no jax. Not for checkers: a module-level __getattr__
    # would let them take every misspelled name.
    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        from importlib import import_module

        homes = {
            "FrozenArray": "_nodes.freeze",
            "FrozenMapping": "_nodes.freeze",
            "Module": "_nodes.module",
            "Static": "_nodes.wrapper",
            "TrainState": "train",
            "buffer": "_nodes.fields",
            "diff": "_trees.diff",
            "field": "_nodes.fields",
            "freeze": "_nodes.freeze",
            "pytree_dataclass": "_nodes.dataclass",
            "replace": "_trees.update",
            "static": "_nodes.fields",
        }
        if name == "errors":
            return import_module("treewright.errors")
        if name not in homes:
            raise AttributeError(f"module 'treewright' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"treewright.{homes[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
