"""One step of a training run in Orbax's folders: what is written for a tree, and how it is read again."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import base64
import contextlib
import ctypes
import importlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from treewright._core.functions import class_of
from treewright._core.jax_private import process_count
from treewright._processes import of_all_processes
from treewright.checkpoint.atomic import local_path, marked, others_write
from treewright.checkpoint.digests import digest_of, digests_of, gathered, verify
from treewright.checkpoint.leaves import DTYPES, Leaf, Steps, sharding_of, stored, untied
from treewright.checkpoint.manifest import Manifest, from_metadata, parsed
from treewright.checkpoint.restore import Reader, Wanted
from treewright.checkpoint.tree import manifest_of
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

STATE, MANIFEST, EXTRAS = "state", "manifest", "extras"  # the items of a step
_JSON = "metadata"  # the file in which Orbax keeps an item that is JSON
LISTING = "_CHECKPOINT_METADATA"  # the file in which it lists the items of a step

# Orbax holds what it reads twice until a call returns, so each call reads a part: of 1 GB the peak is 1.1 GB in parts
# of 64 MB and 1.7 GB in one (benchmarks: checkpoint). It reads its list of all leaves in each call, so there are few.
_PART, _MOST_PARTS = 1 << 24, 64


def engine() -> Any:
    """The Orbax package."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise missing_extra("CheckpointManager", "orbax-checkpoint", "checkpoint") from error
    return orbax.checkpoint


def folder_of_run(directory: str | os.PathLike[str]) -> Path:
    """Where the steps of a run are: a folder on a local or mounted disk, or in a bucket that Orbax writes to."""
    if not str(directory).startswith("gs:/"):
        path = local_path(directory).absolute()
        if (path / LISTING).is_file():
            raise CheckpointError(
                f"{path} is a step. Give the folder that it is in: CheckpointManager('{path.parent}')."
            )
        if path.is_file():
            raise CheckpointError(f"{path} is a file, and a CheckpointManager needs a folder. load(path) reads a file.")
        return path
    epath: Any = importlib.import_module("etils.epath")  # on which Orbax stands
    folder: Path = epath.Path("gs://" + str(directory)[4:].lstrip("/"))  # `Path` drops a slash
    try:
        folder.exists()
    except ImportError as error:
        raise missing_extra("CheckpointManager('gs://...')", "gcsfs", "gcs") from error
    except Exception as error:  # each library below has errors of its own
        raise CheckpointError(f"{folder} can't be reached: {error}") from error
    return folder


def is_local(folder: Path) -> bool:
    """Whether it is on a local or mounted disk, with locks and `fsync`."""
    return isinstance(cast("object", folder), Path)


# Writing


def unfinished_steps(folder: Path, number: object) -> list[Path]:
    """Steps that Orbax has not given their names yet."""
    return list(folder.glob(f"{number}.orbax-checkpoint-tmp*"))


def clear_away_steps(folder: Path) -> None:
    """Remove unfinished steps of dead processes. On NFS a lock may call a living one dead, and a mark does not."""
    with contextlib.suppress(OSError):  # on a full disk nothing is cleared away, and steps can be deleted
        mark = marked(folder)
        left = unfinished_steps(folder, "*")  # before the marks, which are made earlier and last longer
        alone = not others_write(mark)
        mark.unlink()
        for step in left if alone else ():
            shutil.rmtree(step, ignore_errors=True)


def _problems(leaves: Iterable[Leaf]) -> Iterator[str]:
    """What a step can't hold."""
    for leaf in leaves:
        if 0 in leaf.form.shape:
            yield f"{leaf.path} has the shape {leaf.form.shape}, and Orbax saves no array without elements"
        if not _is_dtype_of_engine(leaf.form.dtype):
            yield f"{leaf.path} has the dtype {leaf.form.dtype}, which Orbax does not save"
        if process_count() > 1 and isinstance(leaf.value, jax.Array) and leaf.value.is_fully_addressable:
            yield (
                f"{leaf.path} lies on this process alone, which others can't see. Place it with a sharding over all of "
                f"them"
            )


def _is_dtype_of_engine(name: str) -> bool:
    import tensorstore  # on which Orbax stands

    try:
        tensorstore.dtype(name)
    except ValueError:
        return False
    return True


def items_of(tree: object, extras: "Extras") -> dict[str, Any]:
    """The items of a step, as Orbax takes them: arrays as nested dicts, the manifest, and what is beside the tree."""
    manifest = manifest_of(tree, _problems)
    if not manifest.leaves:
        raise CheckpointError("The tree can't be saved: it has no leaves, and Orbax saves no empty tree.")
    kept = untied(manifest.leaves)
    arrays = [stored(leaf.value) for leaf in kept]
    for leaf, digests in zip(kept, gathered(digests_of(arrays)), strict=True):
        leaf.digests = digests
    args = engine().args
    items = {STATE: args.PyTreeSave(_nested(kept, arrays)), MANIFEST: args.JsonSave(manifest.to_metadata())}
    if extras.metadata or extras.items:
        items[EXTRAS] = args.JsonSave(_extras_document(extras))
    return items


def handlers() -> dict[str, Any]:
    """What Orbax writes the items with."""
    orbax = engine()
    return {
        STATE: orbax.PyTreeCheckpointHandler(use_compression=False),
        MANIFEST: orbax.JsonCheckpointHandler(),
        EXTRAS: orbax.JsonCheckpointHandler(),
    }


def _nested(leaves: Iterable[Leaf], values: Iterable[Any]) -> dict[str, Any]:
    """The values as nested dicts by the steps of their leaves."""
    root: dict[str, Any] = {}
    for leaf, value in zip(leaves, values, strict=True):
        *above, last = leaf.array or ("value",)
        inside = root
        for step in above:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return root


# Beside the tree


class Extras(NamedTuple):
    """What a step holds beside its tree: metadata, one for all processes, and items, of which each has its own."""

    metadata: dict[str, Any]
    items: dict[str, Any]


def extras_of(metadata: Mapping[str, Any] | None, items: Mapping[str, Any] | None) -> Extras:
    """What is beside the tree, as JSON: numpy's and JAX's numbers as numbers, bytes in base 64."""
    return Extras(*(_as_json(name, value or {}) for name, value in (("metadata", metadata), ("items", items))))


def _as_json(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(json.dumps(dict(value), default=_json_default))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{name} can't be saved: {error}. It may hold what JSON can, bytes, and arrays of rank 0; of a data "
            f"iterator, give its state."
        ) from error
    return result


def _json_default(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if issubclass(class_of(value), np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0:
        return np.asarray(value).item()
    raise TypeError(f"{type(value).__name__} is not JSON")


_BYTES = "bytes in base 64"


def _with_bytes(entry: dict[str, Any]) -> Any:
    return base64.b64decode(entry[_BYTES]) if entry.keys() == {_BYTES} else entry


def _extras_document(extras: Extras) -> dict[str, Any]:
    """The document that is saved: the items of all processes, and a digest."""
    mine = json.dumps(extras.items)
    every = [mine.encode()] if process_count() == 1 else of_all_processes(mine.encode())
    content = json.dumps({"metadata": extras.metadata, "items": [json.loads(items) for items in every]})
    return {"content": content, "digest": digest_of(content.encode())}


def saved_extras(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a step holds beside its tree: the metadata, and the items of each process that saved."""
    if EXTRAS not in _items_in(folder):
        return {}, [{}]
    with _reading(f"What is beside the tree of step {folder.name}"):
        document = json.loads(_text(folder / EXTRAS / _JSON))
        if digest_of(document["content"].encode()) != document["digest"]:
            raise ValueError("its digest is not the one that was saved")
        content = json.loads(document["content"], object_hook=_with_bytes)
        metadata, items = content["metadata"], content["items"]
        if {type(metadata), *map(type, items)} != {dict}:
            raise ValueError("it holds something other than objects")
        return metadata, list(items)


# Reading


@contextlib.contextmanager
def _reading(what: str) -> Generator[None]:
    """Whatever is raised while a step is read means damage: Orbax has no error of its own for it."""
    try:
        yield
    except Exception as error:
        raise CheckpointDamagedError(f"{what} can't be read: {error}") from error


def _text(path: Path) -> str:
    """The text of a regular file."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    return path.read_text(encoding="utf-8")


def _items_in(folder: Path) -> frozenset[str]:
    """The names of the items that were saved in a step."""
    with _reading(f"The list of items of step {folder.name}"):
        listed = json.loads(_text(folder / LISTING))["item_handlers"]
        return frozenset(cast("dict[str, Any]", listed)) if isinstance(listed, dict) else frozenset({"default"})


def saved_manifest(folder: Path) -> Manifest:
    """The manifest of a step."""
    with _reading(f"Step {folder.name}"):
        there = (folder / MANIFEST).exists()
    if not there and MANIFEST not in _items_in(folder):
        raise CheckpointError(
            f"Step {folder.name} in {folder.parent} has no manifest: another program saved it with Orbax. "
            f"from_names(read_names({str(folder)!r}), like=...) puts its arrays into a tree."
        )
    with _reading(f"The manifest of step {folder.name}"):
        text = _text(folder / MANIFEST / _JSON)
    return from_metadata(parsed(text, "manifest"))


def reader_of(folder: Path) -> Reader:
    """A reader of the arrays of a step."""
    orbax = engine()

    def read(wanted: Iterable[Wanted]) -> Iterator[tuple[list[Wanted], list[Any]]]:
        with _reading(f"Step {folder.name}"):
            _refuse_special_files(folder)
            engine = orbax.Checkpointer(orbax.PyTreeCheckpointHandler())
        for part in _parts(list(wanted)):
            leaves = [leaf for leaf, _ in part]
            shardings = [None if target is None else sharding_of(target) for _, target in part]
            args = orbax.args.PyTreeRestore(
                item=_nested(leaves, map(_abstract, leaves, shardings)),
                restore_args=_nested(leaves, map(_restore_args, leaves, shardings)),
                partial_restore=True,
            )
            with _reading(f"Step {folder.name}"):
                nested = engine.restore(folder / STATE, args=args)
                arrays = [_at(nested, leaf.array) for leaf in leaves]
            del nested
            for array, leaf in zip(arrays, leaves, strict=True):
                _check_form(array, leaf)
            verify(arrays, leaves)
            yield part, arrays
            arrays.clear()  # before the next part is read, and whoever got them still has the list
            _give_back_memory()

    return read


def _give_back_memory() -> None:
    """Give the system what was freed, of which glibc keeps some for each of Orbax's threads.

    Without, restoring 500 MB takes 1.26 times as much at most, and with it 1.15, in the same time.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _refuse_special_files(folder: Path) -> None:
    """A pipe in place of a file would let a reader wait for ever. In a bucket there are none."""
    for path in folder.rglob("*") if is_local(folder) else ():
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError(f"{path} is neither a file nor a folder")


def _parts(wanted: list[Wanted]) -> Iterator[list[Wanted]]:
    """Leaves in parts that are read one after the other, so that an array may become several."""
    enough = max(_PART, sum(leaf.form.nbytes for leaf, _ in wanted) // _MOST_PARTS)
    part: dict[Steps, Wanted] = {}
    size = 0
    for leaf, target in wanted:
        if leaf.array in part or size >= enough:
            yield list(part.values())
            part, size = {}, 0
        part[leaf.array] = leaf, target
        size += leaf.form.nbytes
    if part:
        yield list(part.values())


def _at(nested: Any, steps: Steps) -> Any:
    for step in steps or ("value",):
        nested = nested[step]
    return nested


def _abstract(leaf: Leaf, sharding: Any) -> Any:
    struct: Callable[..., Any] = jax.ShapeDtypeStruct
    return struct(leaf.form.shape, DTYPES[leaf.form.dtype], sharding=sharding)


def _restore_args(leaf: Leaf, sharding: Any) -> Any:
    """How an array is read: with a sharding, or as a numpy array."""
    orbax = engine()
    if sharding is None:
        return orbax.RestoreArgs(restore_type=np.ndarray)
    return orbax.ArrayRestoreArgs(
        restore_type=jax.Array, sharding=sharding, global_shape=leaf.form.shape, dtype=DTYPES[leaf.form.dtype]
    )


def _check_form(array: Any, leaf: Leaf) -> None:
    if not hasattr(array, "nbytes"):  # Orbax gives what it was asked with for what it does not find
        raise CheckpointDamagedError(f"{leaf.path} is damaged: the step has no array for it.")
    if array.shape != leaf.form.shape or array.dtype != DTYPES[leaf.form.dtype]:
        raise CheckpointDamagedError(
            f"{leaf.path} is damaged: it is a {array.dtype}{array.shape}, and a {leaf.form} was saved."
        )
