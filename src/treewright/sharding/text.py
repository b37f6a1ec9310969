"""Parts of messages and reports about shardings: mesh axes, and equal layers on one line."""

import re
from collections.abc import Hashable, Mapping, Sequence

from treewright._processes import ranges_text

ROOT = "the tree"
_INDEX = re.compile(r"\[(\d+)\]")


def axes_text(sizes: Mapping[str, int]) -> str:
    """`data 2, tensor 4`."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def folded(rows: Sequence[tuple[str, Hashable]]) -> list[tuple[str, list[int]]]:
    """Rows of path and content, with one row for equal layers, `.layers[0-79].kernel`, and their indices."""
    groups: dict[tuple[str, Hashable], list[int]] = {}
    for number, (path, content) in enumerate(rows):
        groups.setdefault((_INDEX.sub("[]", path), content), []).append(number)
    folds: list[tuple[str, list[int]]] = []
    for (pattern, _), members in groups.items():
        columns = zip(*(map(int, _INDEX.findall(rows[number][0])) for number in members), strict=True)
        ranges = [f"[{ranges_text(sorted({*column}))}]" for column in columns]
        first, *others = pattern.split("[]")
        folds.append((first + "".join(map("".join, zip(ranges, others, strict=True))), members))
    return folds
