"""Parts of reports: tables, truncated lists, counts, common prefixes, excerpts, meshes."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any


def table(rows: Sequence[Sequence[str]], *, right: Collection[str], rule: bool = False) -> list[str]:
    """The lines of a plain text table. The first row is the header; columns named in `right` are right-aligned."""
    head, *others = rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rules = [["-" * width for width in widths]] if rule else []
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ).rstrip()
        for row in (head, *rules, *others)
    ]


def first_lines(lines: Sequence[str], count: int = 20, *, more: str = "more") -> list[str]:
    """The first lines of a list, and the number of the remaining lines."""
    left = len(lines) - count
    return list(lines) if left <= 0 else [*lines[:count], f"and {left:,} {more}"]


def first_names(names: Iterable[str], count: int = 3) -> str:
    """The first of these names, and dots for the rest."""
    first = [*itertools.islice(names, count + 1)]
    return ", ".join([*first[:count], *("..." for _ in first[count:])])


def counted(count: int, one: str, many: str = "") -> str:
    """`1 trace`, `2,000 traces`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def common_prefix(texts: Collection[str]) -> str:
    """The longest common prefix of some strings."""
    first, last = min(texts), max(texts)  # All strings between them share their common prefix.
    return next((first[:index] for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first)


def excerpts(texts: Sequence[str], width: int, *, show: Callable[[str], str] = str) -> list[str]:
    """Texts that differ; a text longer than `width` is cut to begin shortly before the first difference."""
    same = len(common_prefix(texts))
    start = max(0, same - width // 3)
    end = start + width
    return [
        text
        if len(text) <= width
        else f"{'...' if start else ''}{show(text[start:end])}{'...' if end < len(text) else ''}"
        for text in texts
    ]


def mesh_text(mesh: Any) -> str:
    """`no mesh`, or a mesh by its axes: `a mesh of data=2, model=4 (Auto)`."""
    sizes: dict[str, int] = dict(getattr(mesh, "shape", None) or {})
    if not sizes:
        return "no mesh"
    kinds = dict.fromkeys(getattr(kind, "name", str(kind)) for kind in mesh.axis_types or ())
    return f"a mesh of {', '.join(f'{axis}={size}' for axis, size in sizes.items())} ({', '.join(kinds)})"
