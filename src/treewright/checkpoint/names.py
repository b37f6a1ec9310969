"""Trees as arrays by flat name, and back: for files of other programs, with tables from their names to ours."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from treewright._core.text import did_you_mean, first_names
from treewright.checkpoint.arrays import DTYPES
from treewright.checkpoint.file import StrPath, local_path, opened, reading
from treewright.checkpoint.fit import filled
from treewright.checkpoint.tree import parts_to_save, refuse

T = TypeVar("T")
Row = str | tuple[str, Callable[[Any], Any]] | None
Table = Mapping[str, Row]

_GUESSED = 20  # names for which a message guesses the row that was meant: each guess takes a while
# The dtypes of safetensors that its numpy reader does not know, by ours.
_CODES = MappingProxyType({"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"})


def to_names(tree: object) -> dict[str, Any]:
    """The leaves of a tree by the flat names under which checkpoints keep them.

    Raises:
        CheckpointError: If two leaves would have one name, or one can't be saved.

    Examples:
        >>> from treewright.checkpoint import to_names
        >>> to_names({"layers": [{"bias": 1.0}, {"bias": 2.0}]})
        {'layers.0.bias': 1.0, 'layers.1.bias': 2.0}
    """
    return parts_to_save(tree).values


def read_names(path: StrPath) -> dict[str, Any]:
    """The arrays in any safetensors file, as numpy arrays by name: the input of `from_names`.

    Args:
        path: The file.

    Raises:
        OSError: If it can't be opened or read.
        CheckpointDamagedError: If it is not a safetensors file, or is cut short.
        ImportError: If safetensors is not installed.

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
    with opened(path) as file, reading(str(path)):
        names = list(file.keys())
        others = {name for name in names if file.get_slice(name).get_dtype() in _CODES}
        arrays = {name: file.get_tensor(name) for name in names if name not in others}
        if others:
            with path.open("rb") as raw:
                length = int.from_bytes(raw.read(8), "little")
                header = json.loads(raw.read(length))
                for name in others:
                    entry = header[name]
                    raw.seek(8 + length + entry["data_offsets"][0])
                    dtype = DTYPES[_CODES[entry["dtype"]]]
                    arrays[name] = np.fromfile(raw, np.uint8, np.prod(entry["shape"], dtype=int)).view(dtype)
                    arrays[name] = arrays[name].reshape(entry["shape"])
    return {name: arrays[name] for name in names}


def from_names(
    values: Mapping[str, Any], *, like: T, table: Table | None = None, allow_cast: bool = False, strict: bool = True
) -> T:
    """A tree like `like` with these leaves, by flat name: the way from files of other programs.

    Args:
        values: Arrays and numbers by name, as `to_names` gives them. They are copied.
        like: A live or abstract tree, whose structure, statics and shardings the result has.
        table: Our names by theirs. `*` stands for one step: `{"h.*.w": "layers.*.kernel"}`. A pair adds a function
            that the array goes through: `{"fc.weight": ("fc.kernel", numpy.transpose)}`. None drops the array. Where
            our name has fewer stars, the arrays that the first of their stars numbers are stacked along a new first
            axis.
        allow_cast: Whether a value may have another dtype than the leaf, and is cast to it.
        strict: Whether names that only one side has are errors.

    Raises:
        CheckpointMismatchError: If names, shapes or dtypes differ.
        CheckpointError: If a name is in no row of the table or in several, or a row matches no name.
        TypeError: If `values` is a path or anything else than arrays by name.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> from_names({"w": jnp.ones(2)}, like={"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
        >>> from_names({"0.w": jnp.ones(1), "1.w": jnp.zeros(1)}, like=jnp.zeros((2, 1)), table={"*.w": "value"})
        Array([[1.],
               [0.]], dtype=float32)
    """
    if not isinstance(values, Mapping):
        raise TypeError("from_names takes arrays by name. Of a file: from_names(read_names(path), like=tree).")
    if table is not None:
        values = _translated(values, table)
    return filled(values, like, allow_cast=allow_cast, strict=strict)


class _Placed(NamedTuple):
    """A value under a name of ours: the steps of its old name that have no place in the new one, and that name."""

    steps: tuple[str, ...]
    name: str
    value: Any


def _translated(values: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The values under the names that a table has for them."""
    patterns = {row: re.compile(r"([^.]+)".join(map(re.escape, row.split("*")))) for row in table}
    unused = dict.fromkeys(table)
    problems: list[str] = []
    placed: dict[str, list[_Placed]] = {}
    for name, value in values.items():
        rows = {row: match.groups() for row, pattern in patterns.items() if (match := pattern.fullmatch(name))}
        for row in rows:
            unused.pop(row, None)
        if len(rows) != 1:
            meant = did_you_mean(name, table) if len(problems) < _GUESSED else ""
            where = f"several rows: {', '.join(map(repr, rows))}" if rows else f"no row{meant}"
            problems.append(f"{name} is in {where}")
            continue
        ((row, steps),) = rows.items()
        entry = table[row]
        target, convert = entry if isinstance(entry, tuple) else (entry, None)
        if target is None:
            continue
        left = len(steps) - target.count("*")
        if left < 0:
            problems.append(f"the row {row!r} has fewer stars than {target!r}")
            continue
        ours = "".join(part + step for part, step in zip(target.split("*"), (*steps[left:], ""), strict=True))
        converted = value if convert is None else convert(value)
        placed.setdefault(ours, []).append(_Placed(steps[:left], name, converted))
    problems += [f"the row {row!r} matches no name" for row in unused]
    result: dict[str, Any] = {}
    for name, parts in placed.items():
        try:
            result[name] = _stacked(parts)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    refuse("The table does not fit the names:", problems)
    return result


def _stacked(parts: list[_Placed]) -> Any:
    """One value as it is; several, whose steps are numbers from 0, along a new first axis."""
    if len(parts) == 1 and not parts[0].steps:
        return parts[0].value
    numbers = {int(part.steps[0]): part.value for part in parts if len(part.steps) == 1 and part.steps[0].isdecimal()}
    if len(parts) != len(numbers) or set(numbers) != set(range(len(parts))):
        names = first_names((part.name for part in parts), 20)
        raise ValueError(f"these would be stacked, and their numbers are not 0, 1, 2 and so on: {names}")
    return np.stack([numbers[number] for number in range(len(parts))])
