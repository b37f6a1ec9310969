"""Checkpoints: one file to share, a folder of steps for a training run. Both keep the statics and verify every leaf."""

from typing import TYPE_CHECKING

from treewright.checkpoint.differences import Mismatch
from treewright.checkpoint.file import load, read_manifest, save
from treewright.checkpoint.fit import Fit
from treewright.checkpoint.manifest import Branch, Leaf, Manifest
from treewright.checkpoint.names import from_names, read_names, to_names
from treewright.errors import missing_extra

if TYPE_CHECKING:
    from treewright.checkpoint.steps import CheckpointManager, Restored
else:

    def __getattr__(name: str) -> object:
        """What needs Orbax, which takes a second to import."""
        if name in {"CheckpointManager", "Restored"}:
            try:
                from treewright.checkpoint import steps
            except ImportError as error:
                raise missing_extra(name, "orbax-checkpoint", "checkpoint") from error
            return getattr(steps, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Branch",
    "CheckpointManager",
    "Fit",
    "Leaf",
    "Manifest",
    "Mismatch",
    "Restored",
    "from_names",
    "load",
    "read_manifest",
    "read_names",
    "save",
    "to_names",
]


def __dir__() -> list[str]:
    return __all__
