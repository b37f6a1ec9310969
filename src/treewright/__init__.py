"""Classes that are pytrees: nodes with static fields, for JAX."""

__version__ = "0.1.0"

__all__ = [
    "AsArray",
    "Converted",
    "Converter",
    "Difference",
    "FrozenArray",
    "FrozenMapping",
    "Hazard",
    "Module",
    "RetraceReport",
    "Static",
    "StaticValue",
    "TrainState",
    "allclose",
    "at",
    "buffer",
    "check_statics",
    "combine",
    "cond",
    "count",
    "device_put",
    "diff",
    "edit",
    "errors",
    "eval_shape",
    "explain",
    "explain_retraces",
    "field",
    "find_aliases",
    "fori_loop",
    "freeze",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jit_method",
    "max_traces",
    "nbytes",
    "node_at",
    "partition",
    "pytree_dataclass",
    "remat",
    "replace",
    "spec_like",
    "split_key_like",
    "stack",
    "static",
    "summary",
    "switch",
    "traced",
    "trainable",
    "tree_map",
    "unstack",
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
    from treewright._trees.batches import node_at, split_key_like, stack, unstack
    from treewright._trees.closeness import allclose
    from treewright._trees.diff import Difference, diff
    from treewright._trees.drafts import edit
    from treewright._trees.sizes import count, find_aliases, nbytes
    from treewright._trees.specs import combine, partition, spec_like, trainable
    from treewright._trees.update import at
    from treewright.retrace.blocks import explain_retraces, max_traces
    from treewright.retrace.decorator import traced
    from treewright.retrace.explanation import explain
    from treewright.retrace.hazards import Hazard, check_statics
    from treewright.retrace.report import RetraceReport
    from treewright.tables import summary
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
            "_nodes.converted": ("AsArray", "Converted", "Converter"),
            "_nodes.dataclass": ("pytree_dataclass",),
            "_nodes.fields": ("buffer", "field", "static"),
            "_nodes.freeze": ("FrozenArray", "FrozenMapping", "freeze"),
            "_nodes.module": ("Module",),
            "_nodes.replacing": ("replace",),
            "_nodes.static_types": ("StaticValue",),
            "_nodes.wrapper": ("Static",),
            "_trees.batches": ("node_at", "split_key_like", "stack", "unstack"),
            "_trees.closeness": ("allclose",),
            "_trees.diff": ("Difference", "diff"),
            "_trees.drafts": ("edit",),
            "_trees.sizes": ("count", "find_aliases", "nbytes"),
            "_trees.specs": ("combine", "partition", "spec_like", "trainable"),
            "_trees.update": ("at",),
            "retrace.blocks": ("explain_retraces", "max_traces"),
            "retrace.decorator": ("traced",),
            "retrace.explanation": ("explain",),
            "retrace.hazards": ("Hazard", "check_statics"),
            "retrace.report": ("RetraceReport",),
            "tables": ("summary",),
            "train": ("TrainState",),
            "transforms": (
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
            ),
        }
        if name == "errors":
            return import_module("treewright.errors")
        home = next((module for module, names in homes.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'treewright' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"treewright.{home}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
