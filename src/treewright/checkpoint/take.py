"""What is taken from a checkpoint, and from where: all of it or a part, into a tree or as it says itself."""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from treewright._values.text import did_you_mean, first_text
from treewright.checkpoint.leaves import Leaf
from treewright.checkpoint.manifest import Manifest
from treewright.checkpoint.restore import LoadOptions, Reader, restored, restored_alone
from treewright.checkpoint.tree import ReadingCodec
from treewright.errors import CheckpointError

Modules = str | ModuleType | Sequence[str | ModuleType]

ALONE: Any = ...  # in place of `like`: None is a tree


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path on a local or mounted disk.

    Raises:
        CheckpointError: If it is an address, as `gs://bucket/run`: `Path` would make a folder called `gs:` of it.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        raise TypeError(
            f"A path comes first, and then what is saved or loaded. The path is {first_text(path)}."
        ) from None
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise CheckpointError(
            f"{text} is not on a local or mounted disk, without which a file can't appear whole or not at all. Mount "
            f"it, or save to a disk and copy. A CheckpointManager can save into a bucket: gs://..."
        )
    return Path(text)


def taken(  # noqa: PLR0917  one call for the file and the manager
    manifest: Manifest,
    read: Reader,
    like: Any,
    options: LoadOptions,
    part: str | None,
    modules: Modules,
    statics: Mapping[str, Any] | None,
) -> Any:
    """The tree of a checkpoint, or the part of it that a path leads to.

    Raises:
        CheckpointMismatchError: If it does not fit `like`.
        CheckpointDamagedError: If an array is not what was saved.
        CheckpointError: If there is no such part, or the tree can't be made.
        TypeError: If options were given that only loading with `like`, or only loading without, has.
    """
    if like is not ALONE and (modules or statics):
        raise TypeError(
            "modules= and statics= say what a tree is made of if there is no like=. With like=, classes and statics "
            "are its own: leave them out."
        )
    if isinstance(like, type):
        made = f"like=jax.eval_shape(lambda: {like.__qualname__}(...))"
        raise TypeError(f"like= is the class {like.__qualname__}. Give an instance, or what describes one: {made}.")
    if like is ALONE and options != LoadOptions():
        raise TypeError(
            "on_static=, allow_cast=, strict=, renamed= and migrate= say how a checkpoint may differ from like=: give "
            "a tree to load into."
        )
    if part is not None:
        manifest, read = _of_part(manifest, read, part)
    if like is not ALONE:
        return restored(manifest, read, like, options)
    allowed = [modules] if isinstance(modules, str | ModuleType) else modules
    return restored_alone(manifest, read, ReadingCodec(["treewright", *_optax(manifest), *allowed]), statics or {})


def _optax(manifest: Manifest) -> list[str]:
    """optax, if the checkpoint holds a state of it and it is installed: its states are named tuples of arrays."""
    named = any((branch.cls or "").startswith("optax.") for branch in manifest.branches)
    return ["optax"] if named and importlib.util.find_spec("optax") else []


def _of_part(manifest: Manifest, read: Reader, part: str) -> tuple[Manifest, Reader]:
    """The manifest below a place, as of a tree of its own, and a reader of it."""
    every = [branch.steps for branch in manifest.branches] + [leaf.steps for leaf in manifest.leaves]
    named = {".".join(steps): steps for steps in every}
    if part not in named:
        raise CheckpointError(f"part={part!r}: nothing that was saved has this name{did_you_mean(part, named)}.")
    root = named[part]
    depth = len(root)
    whole = {leaf.steps[depth:]: leaf for leaf in manifest.leaves if leaf.steps[:depth] == root}
    parts = {leaf.steps: dataclasses.replace(leaf, steps=steps) for steps, leaf in whole.items()}
    branches = tuple(
        dataclasses.replace(branch, steps=branch.steps[depth:])
        for branch in manifest.branches
        if branch.steps[:depth] == root
    )

    def read_part(wanted: Iterable[tuple[Leaf, Leaf | None]]) -> Iterator[tuple[list[Leaf], list[Any]]]:
        for leaves, arrays in read((whole[leaf.steps], target) for leaf, target in wanted):
            yield [parts[leaf.steps] for leaf in leaves], arrays

    return dataclasses.replace(manifest, branches=branches, leaves=tuple(parts.values())), read_part
