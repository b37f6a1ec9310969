"""The map in CONTRIBUTING.md and the ways in docs/inside.md: they name the files that are there, as they are there.

`UPDATE_SNAPSHOTS=1` writes the map anew.
"""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.test_house import ROOT, SOURCE, tree
from tests.test_layers import LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
INSIDE = ROOT / "docs" / "inside.md"
FILE = re.compile(r"`([\w/]+\.py)`")


def subject_of(path: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(tree(path)) or "").partition("\n")[0]


def floor_of(module: str) -> str:
    return module.partition(".")[0]


def in_order(paths: Iterable[Path], package: Path, order: list[str]) -> list[Path]:
    """From the ground up: floors by their lowest module, and in each the package itself before its modules."""

    def place(path: Path) -> tuple[int, bool, int, str]:
        parts = path.relative_to(package).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        floors = [floor_of(known) for known in order]
        floor = -1 if not module else floors.index(floor_of(module)) if floor_of(module) in floors else len(order)
        return floor, path.name != "__init__.py", order.index(module) if module in order else len(order), module

    return sorted(paths, key=place)


def map_of(package: Path, order: list[str]) -> str:
    """Each file of a package with its subject, as a tree."""
    lines = [f"{package.parent.name}/{package.name}/"]
    for path in in_order(package.rglob("*.py"), package, order):
        folder = path.parent.relative_to(package)
        if path.name == "__init__.py" and folder.parts:
            lines.append(f"  {f'{folder}/':<21} {subject_of(path)}")
        else:
            stub = " (+ .pyi)" if path.with_suffix(".pyi").exists() else ""
            name = "  " * len(folder.parts) + path.name + stub
            lines.append(f"  {name:<21} {subject_of(path)}")
    return "\n".join(lines)


def floors_of(layers: Mapping[str, tuple[str, ...]]) -> str:
    """Which floor imports which."""
    imported: dict[str, dict[str, None]] = {}
    for module, others in layers.items():
        below = imported.setdefault(floor_of(module), {})
        below.update(dict.fromkeys(floor_of(other) for other in others if floor_of(other) != floor_of(module)))
    floors = list(imported)
    return "\n".join(
        f"{floor:<11} {', '.join(sorted(below, key=floors.index)) or '-'}" for floor, below in imported.items()
    )


def block_below(page: str, heading: str) -> str:
    """The first fenced block below a heading."""
    return page.partition(f"\n{heading}\n")[2].partition("```text\n")[2].partition("\n```")[0]


def hold_block(heading: str, expected: str) -> None:
    page = CONTRIBUTING.read_text(encoding="utf-8")
    written = block_below(page, heading)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        CONTRIBUTING.write_text(page.replace(f"\n{written}\n", f"\n{expected}\n"), encoding="utf-8")
        written = expected
    assert written == expected, f"CONTRIBUTING.md, {heading!r}, should say (UPDATE_SNAPSHOTS=1 writes it):\n{expected}"


def missing_files(page: str, *folders: Path) -> Iterator[str]:
    """The Python files that a page names and none of the folders has."""
    return (name for name in FILE.findall(page) if not any((folder / name).is_file() for folder in folders))


def test_the_map_has_each_file_in_order_with_the_first_line_of_its_docstring() -> None:
    hold_block("### The map", map_of(SOURCE, list(LAYERS)))


def test_the_floors_are_those_that_the_layers_have() -> None:
    hold_block("### What may import what", floors_of(LAYERS))


def test_the_ways_through_the_house_name_files_that_exist() -> None:
    page = INSIDE.read_text(encoding="utf-8")

    assert len({*FILE.findall(page)}) > 20
    assert list(missing_files(page, SOURCE, ROOT)) == []


def test_a_map_has_packages_before_their_modules_and_floors_from_the_ground_up(tmp_path: Path) -> None:
    package = tmp_path / "src" / "house"
    (package / "floor").mkdir(parents=True)
    for name in ("__init__", "ground", "attic", "floor/__init__", "floor/bath", "floor/hall"):
        (package / f"{name}.py").write_text(f'"""What {name} is.\n\nMore of it."""\n')

    (package / "floor" / "hall.pyi").touch()

    assert map_of(package, ["ground", "floor.hall", "floor.bath", "floor"]).splitlines() == [
        "src/house/",
        "  __init__.py           What __init__ is.",
        "  ground.py             What ground is.",
        "  floor/                What floor/__init__ is.",
        "    hall.py (+ .pyi)    What floor/hall is.",
        "    bath.py             What floor/bath is.",
        "  attic.py              What attic is.",
    ]


def test_floors_import_what_their_modules_import() -> None:
    layers = {"ground": (), "floor.hall": ("ground",), "floor.bath": ("floor.hall",), "roof": ("floor.bath", "ground")}

    assert floors_of(layers).splitlines() == [
        "ground      -",
        "floor       ground",
        "roof        ground, floor",
    ]


def test_a_map_that_is_wrong_is_told_with_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "CONTRIBUTING.md"
    page.write_text("# Title\n\n### The map\n\nWords.\n\n```text\nold\n```\n\nMore.\n")
    monkeypatch.setattr("tests.test_map.CONTRIBUTING", page)
    monkeypatch.delenv("UPDATE_SNAPSHOTS", raising=False)

    with pytest.raises(AssertionError, match=r"CONTRIBUTING.md, '### The map', should say"):
        hold_block("### The map", "new")
    monkeypatch.setenv("UPDATE_SNAPSHOTS", "1")
    hold_block("### The map", "new")
    assert block_below(page.read_text(), "### The map") == "new"


def test_files_that_a_page_names_and_are_not_there_are_found(tmp_path: Path) -> None:
    (tmp_path / "floor").mkdir()
    (tmp_path / "floor" / "hall.py").touch()

    assert list(missing_files("`floor/hall.py` and `floor/bath.py`, not `x`", tmp_path)) == ["floor/bath.py"]
