"""A tree as one node with all its leaves, which `jit` takes apart in one call, however many nodes the tree has."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from treewright._jax import Path, jax_trees, path_text


@dataclasses.dataclass(frozen=True, slots=True)
class PathKey:
    """The whole path of a leaf as one key."""

    path: Path

    def __str__(self) -> str:
        return path_text(self.path)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FlatStructure:
    """A treedef that is compared by identity: to compare two equal ones, `jit` would walk through both at each call."""

    treedef: Any


class FlatTree:
    """A tree as `jit` gets it from a `loop`.

    JAX unflattens it to the tree itself, and calls its leaves by their paths in the tree.

    Args:
        structure: What `jit` compares.
        leaves: The leaves.
    """

    __slots__ = ("results", "structure")

    def __init__(self, structure: FlatStructure, leaves: list[Any]) -> None:
        self.structure = structure
        self.results: list[tuple[list[Any], Any]] = [(leaves, None)]

    @property
    def leaves(self) -> list[Any]:
        """The newest leaves: those of the last of the results, each of which is leaves and something else."""
        return self.results[-1][0]

    @property
    def tree(self) -> Any:
        """The tree."""
        return _tree(self.structure, self.leaves)

    @property
    def paths(self) -> list[Path]:
        """The path of each leaf in the tree."""
        return [path for path, _ in jax_trees.tree_flatten_with_path(self.tree)[0]]


def _flatten(flat: FlatTree) -> tuple[list[Any], FlatStructure]:
    return flat.results[-1][0], flat.structure


def _flatten_with_keys(flat: FlatTree) -> tuple[list[tuple[PathKey, Any]], FlatStructure]:
    return [(PathKey(path), leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)], flat.structure


def _tree(structure: FlatStructure, leaves: Sequence[Any]) -> Any:
    return structure.treedef.unflatten(leaves)


jax_trees.register_pytree_with_keys(FlatTree, _flatten_with_keys, _tree, _flatten)
