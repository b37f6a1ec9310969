"""The sharded decoder in other libraries: how many lines it needs there, counted; and that it is the same decoder."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
compare: Any = importlib.import_module("benchmarks.lines.compare")

PROGRAM = '''
"""A program.

It has a docstring.
"""

import math

# The model.


class Net:
    """A net."""

    # Of one layer.
    size = (
        3,
    )
    text = """
    not a docstring
    """


# The sharding

BOTH = ("outer", "inner")
KEPT: dict = {

    "data": {},
}
AXES = {}  # which no rule is


def split(x):
    """Nothing."""
    return x


# The program

print(math.pi)
'''


def test_code_is_counted_without_blank_lines_comments_and_docstrings() -> None:
    assert compare.counted(PROGRAM) == {"model": 7, "rules": 4, "sharding": 3}


@pytest.mark.parametrize("marker", ["# The model.", "# The sharding", "# The program"])
def test_a_program_without_a_marker_is_refused(marker: str) -> None:
    with pytest.raises(ValueError, match=r"A program has the markers # The model\., # The sharding, # The program, in"):
        compare.counted(PROGRAM.replace(marker, "# Other"))


@pytest.mark.parametrize("page", ["docs/sharding.md", "examples/README.md"])
def test_the_pages_show_the_lines_as_they_are_counted(page: str) -> None:
    assert compare.counts() in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_decoders_of_other_libraries_have_our_losses_and_our_layouts(compute: str) -> None:
    pytest.importorskip("flax")
    command = [sys.executable, "benchmarks/lines/compare.py", "--run", "--compute", compute]

    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("the same parts on each device") == 12


@pytest.mark.exhaustive
def test_an_array_that_another_decoder_does_not_split_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = importlib.import_module("benchmarks.lines.decoder_equinox")
    monkeypatch.setattr(decoder, "AXES", {name: axes for name, axes in decoder.AXES.items() if name != "up"})

    difference, same = compare.differences(decoder.__name__, "tensor", "float32", 2)

    assert difference < 1e-4
    assert not same
