"""The two ways of saving a tree behind one interface, and exact comparison of trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from treewright.checkpoint import CheckpointManager, load, save

if TYPE_CHECKING:
    from pathlib import Path


class ByFile:
    """Saves a tree as one file, and loads it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tree.safetensors"

    def save(self, tree: Any) -> None:
        save(self.path, tree)

    save_again = save

    def load(self, **options: Any) -> Any:
        return load(self.path, **options)


class ByManager:
    """Saves a tree as a step, and restores it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "steps"

    def save(self, tree: Any) -> None:
        with CheckpointManager(self.folder) as manager:
            manager.save(1, tree)

    def save_again(self, tree: Any) -> None:
        self.folder = self.folder.with_name(f"{self.folder.name}-again")
        self.save(tree)

    def load(self, **options: Any) -> Any:
        return CheckpointManager(self.folder).restore(**options)


def assert_same(one: Any, other: Any) -> None:
    """Treedef, and each leaf's type, dtype and bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(a) is type(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def flip_a_bit(file: Path, place: int | None = None) -> None:
    """Flip one in the middle of a file, or at a place: at -1 of the last value."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    file.write_bytes(data)
