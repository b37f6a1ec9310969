"""Arrays that other programs saved, by name, and tables from their names to ours."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import importlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treewright._core.text import did_you_mean, first_of
from treewright.checkpoint.atomic import local_path
from treewright.checkpoint.leaves import NAMES
from treewright.checkpoint.steps import engine as orbax_engine
from treewright.checkpoint.tree import manifest_of, refuse
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

Row = str | tuple[str, Callable[[Any], Any]] | None
Table = Mapping[str, Row]

_GUESSED = 20  # names for which a message says which were meant: more are not shown, and each takes a while
_INDEX = ".safetensors.index.json"  # of a model in several files, as Hugging Face writes it


# Reading


def names_in(path: str | os.PathLike[str], template: Any) -> dict[str, Any]:
    """The arrays in a file or folder that another program wrote, as numpy arrays by flat name."""
    path = local_path(path)
    try:
        if path.is_dir():
            read = _folder_reader(path)
        elif path.is_file():
            read = _index if path.name.endswith(_INDEX) else _file_reader(path, template)
        else:
            raise CheckpointError(f"{path} is neither a file nor a folder.")
        return {name: _on_host(value) for name, value in read(path).items()}
    except (CheckpointError, ImportError):
        raise
    except Exception as error:  # each reader has errors of its own
        raise CheckpointDamagedError(f"{path} can't be read: {error}") from error


def _on_host(value: Any) -> Any:
    array: Any = np.asarray(value)
    return array if array.dtype in NAMES and array.flags.c_contiguous else np.ascontiguousarray(array)


def _file_reader(path: Path, template: Any) -> Callable[[Path], Mapping[str, Any]]:
    """How a file is read, by its first bytes: a name may say anything."""
    with path.open("rb") as file:
        head = file.read(16)
    if head[:6] == b"\x93NUMPY":
        return _equinox_by_place if template is None else lambda path: _equinox(path, template)
    if head[8:9] == b"{" and path.stat().st_size >= 8 + int.from_bytes(head[:8], "little"):
        return _safetensors
    if head[:2] == b"PK":
        return _npz
    if head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        raise CheckpointError(_pickled(path))
    if head[:1] and (0x80 <= head[0] <= 0x8F or head[0] in {0xDE, 0xDF}):  # a map in msgpack
        return _flax
    raise CheckpointError(
        f"{path} is not of a format that Treewright reads: safetensors, flax's msgpack, equinox's leaves, npz, or a "
        f"folder of Orbax. Its first bytes are {head!r}."
    )


def _pickled(path: Path) -> str:
    return (
        f"{path} is a pickle, which runs code of whoever wrote it, so Treewright does not read it. If you trust it, "
        f"write it as safetensors with what made it: safetensors.torch.save_file(torch.load(path, weights_only=True), "
        f"'model.safetensors')."
    )


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise missing_extra(f"Reading a file that {package} wrote", package, extra) from error


def _safetensors(path: Path) -> Mapping[str, Any]:
    values: Mapping[str, Any] = _library("safetensors.numpy", "checkpoint").load_file(path)
    return values


def _index(path: Path) -> Mapping[str, Any]:
    """A model in several files: all of them, which lie beside the list."""
    weights: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    values: dict[str, Any] = {}
    for name in sorted(set(weights.values())):
        if Path(name).name != name:
            raise ValueError(f"it names {name!r}, which does not lie beside it")
        values.update(_safetensors(path.with_name(name)))
    missing = sorted(set(weights) - set(values))
    if missing:
        raise ValueError(f"none of its files has {missing[0]!r}")
    return values


def _npz(path: Path) -> Mapping[str, Any]:
    opened: Any = np.load(path, allow_pickle=False)
    with opened:
        if any(name.endswith("data.pkl") for name in opened.files):  # as torch.save writes
            raise CheckpointError(_pickled(path))
        return {name: opened[name] for name in opened.files}


def _flax(path: Path) -> Mapping[str, Any]:
    return _flat(_library("flax.serialization", "interop").msgpack_restore(path.read_bytes()))


def _equinox(path: Path, template: Any) -> Mapping[str, Any]:
    equinox = _library("equinox", "interop")
    return _flat(equinox.filter(equinox.tree_deserialise_leaves(path, template), equinox.is_array))


def _equinox_by_place(path: Path) -> Mapping[str, Any]:
    """The leaves in their order, by number: equinox writes no names."""
    values: dict[str, Any] = {}
    data = path.read_bytes()
    file = io.BytesIO(data)
    while file.tell() < len(data):
        values[str(len(values))] = np.load(file, allow_pickle=False)
    return values


def _flat(tree: Any) -> Mapping[str, Any]:
    return {leaf.name: leaf.value for leaf in manifest_of(tree).leaves}


def _folder_reader(path: Path) -> Callable[[Path], Mapping[str, Any]]:
    """How a folder is read: an item of Orbax, a step with one item that holds arrays, or a model in several files."""
    indices = sorted(path.glob(f"*{_INDEX}"))
    if indices:
        return lambda _: _index(indices[0])
    items = [path] if _holds_arrays(path) else sorted(filter(_holds_arrays, path.iterdir()))
    if len(items) == 1:
        return lambda _: _orbax(items[0])
    if items:
        raise CheckpointError(f"{path} holds several trees of Orbax. Give one of them: {_listed(items)}.")
    steps = [
        inside for inside in sorted(path.iterdir()) if inside.is_dir() and any(map(_holds_arrays, inside.iterdir()))
    ]
    if steps:
        raise CheckpointError(f"{path} is a folder of steps. Give one of them: {_listed(steps)}.")
    raise CheckpointError(f"{path} is a folder, and neither a checkpoint of Orbax nor a model in several files.")


def _listed(names: Iterable[object]) -> str:
    return ", ".join(first_of(list(map(str, names))))


def _holds_arrays(path: Path) -> bool:
    return (path / "_METADATA").is_file()


def _orbax(path: Path) -> Mapping[str, Any]:
    """The arrays of an Orbax tree, on the host, wherever they lay when they were saved."""
    import jax

    orbax = orbax_engine()
    checkpointer = orbax.Checkpointer(orbax.PyTreeCheckpointHandler())
    found = checkpointer.metadata(path.absolute())
    saved = getattr(found, "item_metadata", found)
    saved = getattr(saved, "tree", saved)
    each = orbax.RestoreArgs(restore_type=np.ndarray)
    on_host: Any = jax.tree.unflatten(jax.tree.structure(saved), [each] * len(jax.tree.leaves(saved)))
    return _flat(checkpointer.restore(path.absolute(), args=orbax.args.PyTreeRestore(restore_args=on_host)))


# Names by a table


def translated(values: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The values under the names that a table has for them."""
    patterns = {row: _pattern(row) for row in table if "*" in row}
    unused = dict.fromkeys(table)
    problems: list[str] = []
    placed: dict[str, list[_Placed]] = {}
    for name, value in values.items():
        found = {row: match.groups() for row, pattern in patterns.items() if (match := pattern.fullmatch(name))}
        if name in table and name not in patterns:
            found[name] = ()
        for row in found:
            unused.pop(row, None)
        if len(found) != 1:
            meant = did_you_mean(name, table) if len(problems) < _GUESSED else ""
            rows = f"several rows: {', '.join(map(repr, found))}" if found else f"no row{meant}"
            problems.append(f"{name} is in {rows}")
            continue
        ((row, steps),) = found.items()
        entry = table[row]
        target, convert = entry if isinstance(entry, tuple) else (entry, None)
        if target is None:
            continue
        if target.count("*") > len(steps):
            problems.append(f"the row {row!r} has fewer stars than {target!r}")
            continue
        ours, rest = _filled(target, steps)
        placed.setdefault(ours, []).append(_Placed(rest, name, value if convert is None else convert(value)))
    problems += [f"the row {row!r} meets no name" for row in unused]
    result: dict[str, Any] = {}
    for name, parts in placed.items():
        try:
            result[name] = _stacked(parts)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    refuse("The table does not fit the names:", problems)
    return result


class _Placed(NamedTuple):
    """A value that gets a name of ours: the steps of its old name that have no place in the new one, and that name."""

    steps: tuple[str, ...]
    name: str
    value: Any


def _pattern(row: str) -> re.Pattern[str]:
    """Each `*` of a row stands for one step of a name."""
    return re.compile(r"([^.]+)".join(map(re.escape, row.split("*"))))


def _filled(target: str, steps: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A name of ours with the steps in place of its stars, and the steps for which it has none."""
    left = len(steps) - target.count("*")
    parts = zip(target.split("*"), (*steps[left:], ""), strict=True)
    return "".join(part + step for part, step in parts), steps[:left]


def _stacked(parts: list[_Placed]) -> Any:
    """One value as it is; several, whose steps are numbers from 0, along a new first axis."""
    if len(parts) == 1 and not parts[0].steps:
        return parts[0].value
    numbers = {int(part.steps[0]): part.value for part in parts if len(part.steps) == 1 and part.steps[0].isdecimal()}
    if len(parts) != len(numbers) or set(numbers) != set(range(len(parts))):
        names = _listed(part.name for part in parts)
        raise ValueError(f"these would be stacked, and their numbers are not 0, 1, 2 and so on: {names}")
    return np.stack([numbers[number] for number in range(len(parts))])
