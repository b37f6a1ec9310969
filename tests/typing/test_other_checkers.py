"""ty, pyrefly and zuban understand our programs as docs/types.md states; `make exhaustive` also runs basedpyright."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import skip_before_jax
from tests.typing.checkers import CHECKERS, errors
from tests.typing.study import LIBRARIES, share

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FASTEST = ["ty", "pyrefly", "zuban"]


def documented_share(library: str, checker: str) -> str:
    """The cell of the table in docs/types.md."""
    page = (ROOT / "docs" / "types.md").read_text(encoding="utf-8").replace("`", "")
    (row,) = re.findall(rf"^\| {re.escape(library)} \|(.*)\|$", page, re.MULTILINE)
    cells: list[str] = row.split("|")
    return cells[list(CHECKERS).index(checker)].strip()


@pytest.mark.parametrize("library", [name for name in LIBRARIES if name.startswith("treewright")])
@pytest.mark.parametrize("checker", [*FASTEST, pytest.param("basedpyright", marks=pytest.mark.exhaustive)])
def test_checkers_understand_nodes_as_documented(checker: str, library: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)  # the checkers read its annotations

    # The page has the shares with the locked versions; a newer checker, or an older JAX, moves one by a point.
    points = 100 * share(checker, LIBRARIES[library], tmp_path / "program")
    assert points == pytest.approx(float(documented_share(library, checker).rstrip("%")), abs=1.5)


@pytest.mark.parametrize("checker", FASTEST)
def test_a_program_that_trains_in_a_loop_and_saves_has_no_error(checker: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    program = (Path(__file__).parent / "cases" / "running.py").read_text(encoding="utf-8")

    assert errors(checker, program, tmp_path) == {}


ABSTRACT = """
import abc
from treewright import Module

class Shape(Module):
    size: float
    @abc.abstractmethod
    def area(self) -> float: ...

class Square(Shape):
    def area(self) -> float:
        return self.size

Square(2.0)
Shape(2.0)
"""


@pytest.mark.parametrize("checker", ["ty", "pyrefly", pytest.param("basedpyright", marks=pytest.mark.exhaustive)])
def test_checkers_reject_instances_of_abstract_modules(checker: str, tmp_path: Path) -> None:
    assert list(errors(checker, ABSTRACT, tmp_path)) == [15]
    with pytest.raises(TypeError, match="abstract"):
        exec(ABSTRACT, {"__name__": __name__})
