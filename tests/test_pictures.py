"""Images in the documentation match their code and their pages: not blank, not loading, and dark on dark pages."""

from __future__ import annotations

import html
import importlib
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import skip_before_jax
from tests.expected_text import without_varying_parts

Image: Any = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


def lines_of_text(picture: Any, side: int = 40) -> int:
    """The number of lines with text, ignoring a margin that may belong to a panel."""
    grey = picture.convert("L").crop((side, 0, picture.width // 2, picture.height))
    rows = [grey.crop((0, y, grey.width, y + 1)).getextrema() for y in range(grey.height)]
    return sum(has_text for has_text, _ in groupby(highest - lowest > 60 for lowest, highest in rows))


@pytest.mark.parametrize(("name", "dark"), [("notebook.png", False), ("notebook-dark.png", True)])
def test_the_notebook_image_is_complete_and_has_the_colours_of_its_page(name: str, dark: bool) -> None:
    picture = Image.open(IMAGES / name)

    assert (picture.convert("L").getpixel((2, 2)) < 80) == dark
    assert lines_of_text(picture.crop((0, 40, picture.width, 440))) >= 15  # the tree; "(Loading...)" is one line
    assert lines_of_text(picture.crop((0, 490, picture.width, picture.height))) >= 10
    assert lines_of_text(picture.crop((0, picture.height - 60, picture.width, picture.height))) >= 1


def draw(name: str, folder: Path) -> tuple[str, str]:
    """The picture as its code draws it now, and the one in the docs."""
    pictures: Any = importlib.import_module("docs.pictures")
    getattr(pictures, f"draw_{name.replace('-', '_')}")(folder / "picture.svg")
    files = (folder / "picture.svg", IMAGES / f"{name}.svg")
    drawn, committed = (file.read_text(encoding="utf-8") for file in files)
    return drawn, committed


def words(svg: str) -> list[str]:
    """The lines of text in a picture, with the colour of each part, without measured times and their columns."""
    parts = re.findall(r'<text class="([^"]*)"[^>]*? y="([\d.]+)"[^>]*>([^<]*)</text>', svg)
    lines = [
        " ".join(
            f"{kind.removesuffix(' end')}: {html.unescape(text).strip()}" for kind, _, text in line if text.strip()
        )
        for _, line in groupby(parts, key=lambda part: part[1])
    ]
    text = re.sub(r" *\xa0[ \xa0]*", " ", "\n".join(filter(None, lines)))
    return without_varying_parts(re.sub(r"\d+%", "...%", re.sub(r"\b\d+ ms", "... ms", text))).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree", pytest.param("mesh", marks=pytest.mark.devices(4))])
def test_figures_match_their_code(name: str, tmp_path: Path) -> None:
    if name == "mesh":
        skip_before_jax(0, 10)  # shows the text of a PartitionSpec

    drawn, committed = draw(name, tmp_path)

    assert drawn == committed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["terminal", "timeline"])
def test_figures_with_measured_times_show_the_words_and_colours_of_their_code(name: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10)  # which counts one more trace in the program of the terminal
    drawn, committed = draw(name, tmp_path)

    assert words(drawn) == words(committed)


def curves(svg: str) -> list[list[tuple[float, ...]]]:
    """The points of each curve."""
    paths = re.findall(r'<path class="line \w" d="M([^"]+)"', svg)
    return [[tuple(map(float, point.split())) for point in path.split(" L")] for path in paths]


# Other processors round differently, so training ends at slightly different numbers, and a model writes other letters.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["first-model", "language-model", "reinforcement-learning", "lora"])
def test_curves_show_the_training_of_their_tutorial(name: str, tmp_path: Path) -> None:
    drawn, committed = draw(name, tmp_path)
    labels = [
        [line for line in words(svg) if not re.search(r": (\d+: .*|[\d.]+( .*)?)$", line)] for svg in (drawn, committed)
    ]

    assert labels[0] == labels[1]
    for now, before in zip(curves(drawn), curves(committed), strict=True):
        assert [x for x, _ in now] == pytest.approx([x for x, _ in before])
        assert now[0][1] == pytest.approx(before[0][1], abs=20)
        assert now[-1][1] == pytest.approx(before[-1][1], abs=20)


@pytest.mark.slow
def test_the_bars_of_the_step_are_those_of_its_benchmark() -> None:
    committed = (IMAGES / "step.svg").read_text(encoding="utf-8")
    names = re.findall(r'<text class="name [^>]*>([^<]*)<', committed)
    code = (
        "import warnings; warnings.simplefilter('ignore'); import test_step\n"
        f"print(*test_step.WAYS, sep='; ')\nprint(test_step.picture(dict.fromkeys({names}, [1.0, 2.0])))"
    )

    program = [sys.executable, "-c", code]
    run = subprocess.run(program, cwd=ROOT / "benchmarks", check=True, capture_output=True, text=True)
    ways, _, drawn = run.stdout.partition("\n")

    left_out = {way for way in ways.split("; ") if way not in names}
    assert left_out <= {"jarp"}  # needs Python 3.12, and the others were measured on 3.11
    assert without_numbers(drawn) == without_numbers(committed)


def without_numbers(svg: str) -> list[str]:
    """The words of a chart, sorted, because the bars are in the order of their times."""
    return sorted(re.findall(r"[^\s\d.]+", " ".join(re.findall(r"<text[^>]*>([^<]*)<", svg))))


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
