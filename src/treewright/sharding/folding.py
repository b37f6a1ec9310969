"""Rows of a table that repeat: those of equal layers, and those of an optimiser's moments, as one row each."""

import dataclasses
import re
from collections.abc import Hashable, Iterable, Sequence

_INDEX = re.compile(r"\[(\d+)\]")
_STEP = re.compile(r"\.[^.\[]+|\[[^\]]*\]|[^.\[]+")
_FEW = 3  # rows below a part that stands at the top of a tree, from which on another such part repeats it


@dataclasses.dataclass(slots=True)
class Fold:
    """Rows that are equal but for their path: that of all of them, `.layers[0-79].kernel`, and their numbers.

    `also` are the parts of the tree that repeat them, such as `.opt_state[0].mu`.
    """

    path: str
    members: list[int]
    also: list[str]

    def __str__(self) -> str:
        return f"{self.path}, and in {', '.join(self.also)}" if self.also else self.path


def folded(rows: Sequence[tuple[str, Hashable]]) -> list[Fold]:
    """Rows in their order, each a path and what stands there, folded where what stands there is equal."""
    folds = _without_indices(rows)
    steps = [tuple(_STEP.findall(fold.path)) for fold in folds]
    contents = [rows[fold.members[0]][1] for fold in folds]
    first_of = _repeated_parts(steps, contents)
    repeated = [[path[:end] for end in range(1, len(path)) if path[:end] in first_of] for path in steps]
    numbers = {row: number for number, row in enumerate(zip(steps, contents, strict=True))}
    kept: dict[int, Fold] = dict(enumerate(folds))
    for number, (path, parts) in enumerate(zip(steps, repeated, strict=True)):
        for part in parts:
            first = numbers[(first_of[part], *path[len(part) :]), contents[number]]
            if not repeated[first]:  # else a smaller part of this one repeats what that one does
                kept[first].members += kept.pop(number).members
                kept[first].also.append("".join(part))
                break
    return list(kept.values())


def _without_indices(rows: Sequence[tuple[str, Hashable]]) -> list[Fold]:
    """The rows whose paths differ in indices alone as one."""
    groups: dict[tuple[str, Hashable], list[int]] = {}
    for number, (path, content) in enumerate(rows):
        groups.setdefault((_INDEX.sub("[]", path), content), []).append(number)
    folds: list[Fold] = []
    for (pattern, _), members in groups.items():
        columns = zip(*(map(int, _INDEX.findall(rows[number][0])) for number in members), strict=True)
        ranges = [ranges_text(sorted({*column})) for column in columns]
        texts = pattern.split("[]")
        path = texts[0] + "".join(f"[{one}]{text}" for one, text in zip(ranges, texts[1:], strict=True))
        folds.append(Fold(path, members, []))
    return folds


def _repeated_parts(steps: Sequence[tuple[str, ...]], contents: Sequence[Hashable]) -> dict[tuple[str, ...], str]:
    """The parts of a tree that repeat a part at its top, row by row, each with the step of the first such one."""
    sizes: dict[tuple[str, ...], int] = {}
    tops: dict[tuple[tuple[str, ...], Hashable], list[str]] = {}
    for path, content in zip(steps, contents, strict=True):
        for end in range(1, len(path)):
            sizes[path[:end]] = sizes.get(path[:end], 0) + 1
        if len(path) > 1:
            tops.setdefault((path[1:], content), []).append(path[0])
    equal: dict[tuple[tuple[str, ...], str], int] = {}
    for path, content in zip(steps, contents, strict=True):
        for end in range(1, len(path)):
            for top in tops.get((path[end:], content), ()):
                equal[path[:end], top] = equal.get((path[:end], top), 0) + 1
    first_of: dict[tuple[str, ...], str] = {}
    for (part, top), count in equal.items():
        if count == sizes[part] == sizes[top,] and (len(part) > 1 or count >= _FEW):
            first_of.setdefault(part, top)
    return {part: top for part, top in first_of.items() if part != (top,)}


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-2, 4` for numbers that ascend."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("-".join(map(str, one)) for one in ranges)


def first_steps(path: str, count: int) -> str:
    """The beginning of a path."""
    return "".join(_STEP.findall(path)[:count])
