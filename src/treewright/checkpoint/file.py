"""One checkpoint as one safetensors file: `save`, `load` and `read_manifest`."""

import contextlib
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

import jax

from treewright._base.text import short_text
from treewright._processes import process_count
from treewright.checkpoint.arrays import DTYPES, array_to_save, digest_of_pieces
from treewright.checkpoint.blocks import BlockReader, block_name
from treewright.checkpoint.disk import atomic_write, is_folder, parsing
from treewright.checkpoint.fit import MISSING, LoadOptions, check_options
from treewright.checkpoint.format import CODES, open_safetensors, write_safetensors
from treewright.checkpoint.host import local_blocks, on_host, pieces_of
from treewright.checkpoint.loading import load_tree
from treewright.checkpoint.manifest import DIGEST, TEXT, LeafRecord, Manifest, from_metadata
from treewright.checkpoint.tree import parts_to_save
from treewright.errors import CheckpointError

T = TypeVar("T")
StrPath = str | os.PathLike[str]


def save(path: StrPath, tree: object) -> None:
    """Save a tree as one safetensors file, with its classes, its statics and a digest of every leaf.

    The write is atomic: a temporary file in the same folder is written, flushed to disk and renamed. The new file has
    the permissions of the one that it replaces; if `path` is a symbolic link, its target is replaced.

    Args:
        path: The file to write. Its folder must exist; an existing file is replaced.
        tree: Any pytree of arrays, typed keys and numbers. Arrays on several devices are gathered.

    Raises:
        CheckpointError: If something in the tree can't be saved (the message lists all paths) or the file can't be
            written.
        ImportError: If xxhash is not installed.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0), "steps": (1, 2)})
        >>> load(path)
        {'steps': (1, 2), 'w': Array([0., 1., 2.], dtype=float32)}
    """
    target = local_path(path)
    parts = parts_to_save(tree, problems_of=_problems)
    # Wide dtypes first, so that each array in the file is aligned.
    leaves = sorted(parts.manifest.leaves, key=lambda leaf: -DTYPES[leaf.form.dtype].itemsize)
    blocks = on_host({leaf.name: local_blocks(array_to_save(parts.values[leaf.name])) for leaf in leaves})

    def pieces_of_leaf(leaf: LeafRecord) -> Iterator[Any]:
        return pieces_of((DTYPES[leaf.form.dtype], leaf.form.shape), blocks[leaf.name])

    for leaf in leaves:
        leaf.digest = digest_of_pieces(pieces_of_leaf(leaf))
    forms = {block_name(leaf, 0, ()): (leaf.form.dtype, leaf.form.shape) for leaf in leaves}
    pieces = (piece for leaf in leaves for piece in pieces_of_leaf(leaf))
    metadata = parts.manifest.to_metadata()
    try:
        with atomic_write(target) as temporary:
            write_safetensors(temporary, forms, pieces, metadata)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        if isinstance(error, FileNotFoundError) and not is_folder(folder := Path(os.path.realpath(target)).parent):
            raise CheckpointError(f"{target} could not be written: the folder {folder} does not exist.") from error
        raise CheckpointError(f"{target} could not be written and is unchanged: {error}") from error


def _problems(_: LeafRecord, value: Any) -> Iterator[str]:
    """Reasons why a file can't contain a leaf."""
    if process_count() > 1 and isinstance(value, jax.Array) and not value.is_fully_addressable:
        yield "is on several processes. Save it with CheckpointManager"


@overload
def load(path: StrPath, like: T, **options: Unpack[LoadOptions]) -> T: ...
@overload
def load(path: StrPath, **options: Unpack[LoadOptions]) -> Any: ...
def load(path: StrPath, like: Any = MISSING, **options: Any) -> Any:
    """Load a tree saved by `save`, verifying every leaf.

    With `like`, the result has its treedef, and its arrays get the shardings of `like`. Classes, statics, shapes and
    dtypes are compared before any array is read. Without `like`, the result consists of lists, tuples, dicts, arrays
    and numbers: a node or named tuple becomes a dict of its children, and statics are omitted.

    Args:
        path: The file.
        like: The tree to load into, live or abstract (from `jax.eval_shape`, with or without shardings).
        **options: The part to load, and the allowed differences from `like`. See `LoadOptions`.

    Raises:
        CheckpointMismatchError: If the file does not fit `like`; its `differences` has all of them.
        CheckpointDamagedError: If the file differs from the saved one.
        CheckpointError: If it lacks a manifest or the part, or needs a different version of Treewright.
        OSError: If the file system fails.
        TypeError: If an option is unknown, or needs `like`.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> save(path := os.path.join(tempfile.mkdtemp(), "model"), {"w": jnp.arange(3.0)})
        >>> load(path, like=jax.eval_shape(lambda: {"w": jnp.zeros(3)}))
        {'w': Array([0., 1., 2.], dtype=float32)}
        >>> load(path, like={"w": jnp.zeros((3, 1))})
        Traceback (most recent call last):
            ...
        treewright.errors.CheckpointMismatchError: The checkpoint does not fit the tree, a difference:
          ['w']: shape (3,) saved, (3, 1) in the tree
        What to do:
          Different shape: convert the array in migrate=.
    """
    checked = check_options(like, options)
    with open_saved(local_path(path)) as (manifest, read):
        return load_tree(manifest, read, like, checked)


def read_manifest(path: StrPath) -> Manifest:
    """Read the records of a file saved by `save`: nodes with classes and statics, leaves with shapes and dtypes.

    Reads no array and imports nothing.

    Raises:
        CheckpointDamagedError: If the header or the manifest is damaged.
        CheckpointError: If the file lacks a manifest, or has a different format version.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> {leaf.name: leaf.form.shape for leaf in read_manifest(path).leaves}
        {'w': (3,)}
    """
    with open_saved(local_path(path)) as (manifest, _):
        return manifest


def read_names(path: StrPath) -> dict[str, Any]:
    """Read the arrays of any safetensors file, as numpy arrays by name; the input of `from_names`.

    Args:
        path: The file.

    Raises:
        OSError: If it can't be opened or read.
        CheckpointDamagedError: If it is not a safetensors file, or is truncated.
        CheckpointError: If it has a dtype that NumPy does not have.

    Examples:
        >>> import tempfile, os
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> from treewright.checkpoint import from_names, read_names
        >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
        >>> save_file({"layer.w": np.ones(2, np.float32)}, path)
        >>> from_names(read_names(path), like={"layer": {"w": jnp.zeros(2)}})
        {'layer': {'w': Array([1., 1.], dtype=float32)}}
    """
    path = local_path(path)
    arrays: dict[str, Any] = {}
    with open_safetensors(path) as file, parsing(str(path)):
        for name, entry in file.entries.items():
            if entry["dtype"] not in CODES:
                raise CheckpointError(f"{name!r} in {path} has the dtype {entry['dtype']}, which NumPy does not have.")
            arrays[name] = file.read(name, CODES[entry["dtype"]], entry["shape"])
    return arrays


@contextlib.contextmanager
def open_saved(path: Path) -> Generator[tuple[Manifest, BlockReader]]:
    """The manifest of a file, and the reader of its arrays.

    Raises:
        OSError: If it can't be opened.
        CheckpointDamagedError: If it is not a safetensors file, or its manifest is damaged.
        CheckpointError: If it is not a file, lacks a manifest, or has a different format version.
    """
    with open_safetensors(path) as file:
        if file.metadata.keys().isdisjoint({TEXT, DIGEST}):
            raise CheckpointError(
                f"{path} has no manifest: a different program wrote this safetensors file. Load it by name: "
                f"from_names(read_names(path), like=...)."
            )
        try:
            manifest = from_metadata(file.metadata)
        except CheckpointError as error:
            raise type(error)(f"{path} can't be loaded: {error}") from error

        yield manifest, BlockReader(manifest, lambda _: file)


def local_path(path: StrPath) -> Path:
    """A path on a local or mounted disk.

    Raises:
        TypeError: If it is not a path.
        CheckpointError: If it is empty, a URL, or begins with `~`.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(
            f"The path must be a str or a Path, got {short_text(path)}. It is the first argument: save(path, tree)."
        )
    text = os.fsdecode(path)
    if not text:
        raise CheckpointError("The path is empty.")
    if text.startswith("~/"):
        raise CheckpointError(f"{text} would create a folder named '~'. Pass pathlib.Path({text!r}).expanduser().")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):  # `Path` makes gs:/bucket of gs://bucket
        raise CheckpointError(
            f"{text} is a URL, and atomic writes need a path on a local or mounted disk: '/data/run' instead of "
            f"file:///data/run. Mount a bucket, or let Orbax save steps in it: CheckpointManager('gs://bucket/run'), "
            f"with the URL as a str."
        )
    return Path(text)
