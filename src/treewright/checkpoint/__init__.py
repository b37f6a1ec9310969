"""Checkpoints: a file to share, or the steps of a training run. Statics are compared and leaves verified."""

from typing import TYPE_CHECKING

from treewright.checkpoint.differences import Mismatch
from treewright.checkpoint.file import load, read_manifest, read_names, save
from treewright.checkpoint.fit import LoadOptions, from_names
from treewright.checkpoint.manifest import LeafRecord, Manifest, NodeRecord
from treewright.checkpoint.tree import to_names
from treewright.errors import missing_extra

if TYPE_CHECKING:
    from treewright.checkpoint.reading import Restored
    from treewright.checkpoint.steps import CheckpointManager
else:

    def __getattr__(name: str) -> object:
        """Import Orbax at first use, because it takes a second."""
        if name in {"CheckpointManager", "Restored"}:
            try:
                from treewright.checkpoint import steps
            except ImportError as error:
                raise missing_extra(name, "orbax-checkpoint", "checkpoint") from error
            return getattr(steps, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CheckpointManager",
    "LeafRecord",
    "LoadOptions",
    "Manifest",
    "Mismatch",
    "NodeRecord",
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
