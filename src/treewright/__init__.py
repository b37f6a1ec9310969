"""Classes that are pytrees: nodes with static fields, for JAX."""

__version__ = "0.1.0"

__all__ = [
    "AsArray",
    "Converted",
    "Converter",
    "FrozenArray",
    "FrozenMapping",
    "Module",
    "Static",
    "StaticValue",
    "TrainState",
    "buffer",
    "cond",
    "device_put",
    "errors",
    "eval_shape",
    "field",
    "fori_loop",
    "freeze",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jit_method",
    "pytree_dataclass",
    "remat",
    "replace",
    "static",
    "switch",
    "tree_map",
    "value_and_grad",
]

TYPE_CHECKING = False  # for checkers it is true; importing it from typing would take most of the time that this takes
if TYPE_CHECKING:
    from treewright import errors
    from treewright._nodes.converted import AsArray, Converted, Converter
    from treewright._nodes.dataclass import pytree_dataclass
    from treewright._nodes.fields import buffer, field, static
    from treewright._nodes.freeze import FrozenArray, FrozenMapping, freeze
    from treewright._nodes.module import Module
    from treewright._nodes.replacing import replace
    from treewright._nodes.static_types import StaticValue
    from treewright._nodes.wrapper import Static
    from treewright.train import TrainState
    from treewright.transforms import (
        cond,
        device_put,
        eval_shape,
        fori_loop,
        grad,
        hessian,
        jacfwd,
        jacrev,
        jit,
        jit_method,
        remat,
        switch,
        tree_map,
        value_and_grad,
    )
else:
    # Resolved on first use, so that `import treewright` loads no jax. Not for checkers: a module-level __getattr__
    # would let them take every misspelled name.
    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        from importlib import import_module

        homes = {
            "AsArray": "_nodes.converted",
            "Converted": "_nodes.converted",
            "Converter": "_nodes.converted",
            "FrozenArray": "_nodes.freeze",
            "FrozenMapping": "_nodes.freeze",
            "Module": "_nodes.module",
            "Static": "_nodes.wrapper",
            "StaticValue": "_nodes.static_types",
            "TrainState": "train",
            "buffer": "_nodes.fields",
            "cond": "transforms",
            "device_put": "transforms",
            "eval_shape": "transforms",
            "field": "_nodes.fields",
            "fori_loop": "transforms",
            "freeze": "_nodes.freeze",
            "grad": "transforms",
            "hessian": "transforms",
            "jacfwd": "transforms",
            "jacrev": "transforms",
            "jit": "transforms",
            "jit_method": "transforms",
            "pytree_dataclass": "_nodes.dataclass",
            "remat": "transforms",
            "replace": "_nodes.replacing",
            "static": "_nodes.fields",
            "switch": "transforms",
            "tree_map": "transforms",
            "value_and_grad": "transforms",
        }
        if name == "errors":
            return import_module("treewright.errors")
        if name not in homes:
            raise AttributeError(f"module 'treewright' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"treewright.{homes[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
