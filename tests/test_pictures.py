"""Images in the documentation match their pages: not blank, not loading, and dark on dark pages."""

from __future__ import annotations

import importlib
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import skip_before_jax

Image: Any = pytest.importorskip("PIL.Image")

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def lines_of_text(picture: Any, side: int = 40) -> int:
    """The number of lines with text, ignoring a margin that may belong to a panel."""
    grey = picture.convert("L").crop((side, 0, picture.width // 2, picture.height))
    rows = [grey.crop((0, y, grey.width, y + 1)).getextrema() for y in range(grey.height)]
    return sum(has_text for has_text, _ in groupby(highest - lowest > 60 for lowest, highest in rows))


@pytest.mark.parametrize("name", ["notebook.png", "notebook-dark.png"])
def test_the_notebook_image_is_complete(name: str) -> None:
    picture = Image.open(IMAGES / name)

    assert lines_of_text(picture.crop((0, 40, picture.width, 440))) >= 15  # the tree; "(Loading...)" is one line
    assert lines_of_text(picture.crop((0, 490, picture.width, picture.height))) >= 10
    assert lines_of_text(picture.crop((0, picture.height - 60, picture.width, picture.height))) >= 1


@pytest.mark.parametrize(("name", "dark"), [("notebook.png", False), ("notebook-dark.png", True)])
def test_the_notebook_image_has_the_colours_of_its_page(name: str, dark: bool) -> None:
    corner = Image.open(IMAGES / name).convert("L").getpixel((2, 2))

    assert (corner < 80) == dark


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree", "mesh"])
def test_figures_match_their_code(name: str, tmp_path: Path) -> None:
    if name == "mesh":
        skip_before_jax(0, 10)  # shows the text of a PartitionSpec
    pictures: Any = importlib.import_module("docs.pictures")

    getattr(pictures, f"draw_{name}")(tmp_path / "figure.svg")

    drawn, committed = (
        (folder / file).read_text(encoding="utf-8")
        for folder, file in ((tmp_path, "figure.svg"), (IMAGES, f"{name}.svg"))
    )
    assert drawn == committed


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.svg")), ids=lambda file: file.name)
def test_figures_support_dark_pages_and_are_used(file: Path) -> None:
    figure = ET.parse(file).getroot()
    pages = [
        page.read_text(encoding="utf-8") for page in [*IMAGES.parent.glob("**/*.md"), IMAGES.parents[1] / "README.md"]
    ]

    assert "viewBox" in figure.attrib
    assert (
        "prefers-color-scheme: dark" in file.read_text(encoding="utf-8") or file.name == "terminal.svg"
    )  # dark itself
    assert any(f"images/{file.name})" in page for page in pages)
