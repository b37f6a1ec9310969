"""Checkpoints: one file to share, a folder of steps for a training run. Both keep the statics and verify every leaf."""

from treewright.checkpoint.api import from_names, load, read_manifest, read_names, save, to_names
from treewright.checkpoint.compare import Mismatch
from treewright.checkpoint.ending import Preemption
from treewright.checkpoint.leaves import Leaf
from treewright.checkpoint.manager import CheckpointManager, Restored
from treewright.checkpoint.manifest import Branch, Manifest

__all__ = [
    "Branch",
    "CheckpointManager",
    "Leaf",
    "Manifest",
    "Mismatch",
    "Preemption",
    "Restored",
    "from_names",
    "load",
    "read_manifest",
    "read_names",
    "save",
    "to_names",
]
