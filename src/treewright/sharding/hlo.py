"""What the text of a compiled program says: the arrays that a device holds, and the collectives, counted through loops.

The text is HLO, which XLA writes for people, and which changes a little from version to version: what can't be read is
left out of `axes` and `repeats`, and counts once.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treewright._core.functions import public

_KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = (?P<result>\(.*?\)|\S+) (?P<operation>[\w-]+)\((?P<rest>.*)")
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,<=]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_BODY = re.compile(r"body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_OF_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_TILED = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\)?)?")
_BITS = re.compile(r"[a-z]+(\d+)")


@public("treewright.sharding")
@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """Collectives of one kind over the same mesh axes and arrays.

    Attributes:
        kind: `"all-gather"`, `"all-reduce"`, `"reduce-scatter"`, `"all-to-all"`, `"collective-permute"` or
            `"collective-broadcast"`.
        arrays: The whole arrays, as the compiler writes them.
        axes: The mesh axes whose devices talk to each other; None where the program does not tell.
        nbytes: The bytes of the arrays in one of them: of what is gathered the result, of what is scattered all.
        count: How many of them one run of the program has, each in a loop as often as that runs.
    """

    kind: str
    arrays: tuple[str, ...]
    axes: tuple[str, ...] | None
    nbytes: int
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Array:
    """An array that a device holds while a program runs: `dtype` and `shape` as HLO has them."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        bits = _BITS.match(self.dtype)  # tokens and the like have none
        return math.prod(self.shape) * (8 if self.dtype == "pred" else int(bits[1]) if bits else 0) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Instruction:
    """One line of a program: the function that it is in, what it does, what it gives; its operands and settings."""

    computation: str
    operation: str
    arrays: tuple[_Array, ...]
    rest: str


def _instructions(text: str) -> tuple[str, list[_Instruction]]:
    """The name of the computation that a program begins with, and all of its lines."""
    entry, computation = "", ""
    found: list[_Instruction] = []
    for line in text.splitlines():
        if not line.startswith(" "):
            head = _COMPUTATION.match(line)
            if head is not None:
                computation = head["name"]
                entry = computation if head["entry"] else entry
            continue
        match = _INSTRUCTION.match(line) if computation else None
        if match is not None:
            arrays = tuple(
                _Array(one["dtype"], tuple(int(size.strip("<=")) for size in one["shape"].split(",") if size))
                for one in _ARRAY.finditer(match["result"])
            )
            found.append(_Instruction(computation, match["operation"], arrays, match["rest"]))
    return entry, found


def shapes_in(text: str, *, computed: bool = False) -> set[tuple[int, ...]]:
    """The shapes of what a device holds while a program runs; `computed`, also of what it has number by number."""
    _, lines = _instructions(text)
    fused = {name for line in lines if line.operation == "fusion" for name in _CALLED.findall(line.rest)}
    return {array.shape for line in lines if computed or line.computation not in fused for array in line.arrays}


def donated_parameters(text: str) -> frozenset[int]:
    """The parameters of a program into whose memory it writes a result."""
    head = text.split("\n", 1)[0]
    start = head.find("input_output_alias={")
    if start < 0:
        return frozenset()
    end = head.find("}, entry_computation_layout", start)
    return frozenset(int(number) for number in _ALIAS.findall(head[start : end if end > 0 else None]))


def collectives_in(text: str, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
    """The collectives of a program, most bytes first; those of a loop of unknown length count once."""
    entry, lines = _instructions(text)
    runs = _runs(entry, lines)
    counts: dict[Collective, int] = {}
    for line in lines:
        kind = line.operation.removesuffix("-start")
        if kind not in _KINDS or not runs.get(line.computation):
            continue
        groups = _groups(line.rest, mesh)
        # The asynchronous ones give their operands too, first; a permute also two numbers.
        arrays = line.arrays
        if line.operation != kind and kind in {"all-gather", "collective-permute"} and len(arrays) > 1:
            arrays = arrays[1:2] if kind == "collective-permute" else arrays[len(arrays) // 2 :]
        size = len(groups[0]) if kind == "reduce-scatter" and groups else 1
        nbytes = size * sum(one.nbytes for one in arrays)
        same = Collective(kind, tuple(map(str, arrays)), _axes(groups, mesh), nbytes, 0)
        counts[same] = counts.get(same, 0) + runs[line.computation]
    found = (dataclasses.replace(same, count=count) for same, count in counts.items())
    return tuple(sorted(found, key=lambda one: -one.nbytes * one.count))


def _runs(entry: str, lines: Sequence[_Instruction]) -> dict[str, int]:
    """How often each computation runs."""
    calls: dict[str, list[tuple[str, int]]] = {}
    for line in lines:
        trips = _TRIPS.search(line.rest)
        body = _BODY.search(line.rest)
        called = [*_CALLED.findall(line.rest)]
        for names in _BRANCHES.findall(line.rest):
            called += [name.strip(" %") for name in names.split(",")]
        for name in called:
            repeats = int(trips[1]) if trips and body and body[1] == name else 1
            calls.setdefault(line.computation, []).append((name, repeats))
    runs: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        for inner, repeats in calls.get(name, ()):
            visit(inner, times * repeats)

    visit(entry, 1)
    return runs


def _groups(rest: str, mesh: Mapping[str, int]) -> list[Any]:
    """The devices that talk to each other, by their place in the mesh; nothing where the text has another form."""
    listed, iota, of_mesh = _LISTED.search(rest), _IOTA.search(rest), _OF_MESH.search(rest)
    if listed is not None:
        groups = [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
        return groups or [tuple(range(math.prod(mesh.values())))]
    if iota is not None:
        return [*_devices(iota[2], iota[3]).reshape(_numbers(iota[1]))]
    if of_mesh is not None:
        sizes = {name: int(size) for name, size in re.findall(r"'([\w-]+)'=(\d+)", of_mesh[1])}
        taken = [name for name in sizes if re.search(rf"'{name}'(?!:)", of_mesh[3])]
        if len(taken) == of_mesh[3].count(",") + 1:  # and no axis in parts
            tiled = _TILED.match(of_mesh[2] or "")
            devices = _devices(tiled[1], tiled[2]) if tiled else np.arange(math.prod(sizes.values()))
            last = [place for place, name in enumerate(sizes) if name in taken]
            apart = np.moveaxis(devices.reshape(tuple(sizes.values())), last, range(-len(last), 0))
            return [*apart.reshape(-1, math.prod(sizes[name] for name in taken))]
    return []


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _devices(shape: str, order: str | None) -> Any:
    """The numbers of devices, counted in this shape and read in another order of its axes."""
    counted = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return (counted.transpose(_numbers(order)) if order else counted).reshape(-1)


def _axes(groups: Sequence[Any], mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The fewest mesh axes within which all these groups lie."""
    if not (groups and mesh):
        return None
    places: list[Any] = [np.unravel_index(group, tuple(mesh.values())) for group in groups]
    return tuple(name for axis, name in enumerate(mesh) if any(len({*map(int, one[axis])}) > 1 for one in places))
