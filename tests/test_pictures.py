"""The pictures of the documentation show what their pages say: not blank, not loading, and dark where it is dark."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

Image: Any = pytest.importorskip("PIL.Image")

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def lines_of_text(picture: Any, side: int = 40) -> int:
    """How many separate lines have something written in them, looking past a margin that may be a panel's."""
    grey = picture.convert("L").crop((side, 0, picture.width // 2, picture.height))
    rows = [grey.crop((0, y, grey.width, y + 1)).getextrema() for y in range(grey.height)]
    return sum(written for written, _ in groupby(highest - lowest > 60 for lowest, highest in rows))


@pytest.mark.parametrize("name", ["notebook.png", "notebook-dark.png"])
def test_the_notebook_shows_the_tree_and_the_table_down_to_the_last_line(name: str) -> None:
    picture = Image.open(IMAGES / name)

    assert lines_of_text(picture.crop((0, 40, picture.width, 440))) >= 15  # the tree; "(Loading...)" is one line
    assert lines_of_text(picture.crop((0, 490, picture.width, picture.height))) >= 10
    assert lines_of_text(picture.crop((0, picture.height - 60, picture.width, picture.height))) >= 1


@pytest.mark.parametrize(("name", "dark"), [("notebook.png", False), ("notebook-dark.png", True)])
def test_the_notebook_has_the_colours_of_its_page(name: str, dark: bool) -> None:
    corner = Image.open(IMAGES / name).convert("L").getpixel((2, 2))

    assert (corner < 80) == dark
