"""Released libraries, moved by the command, give the same numbers with as many traces."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.move.moved import RELEASED, CanNotFetchError, moved

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RELEASED)
def test_a_released_library_gives_the_same_numbers_and_traces_as_often(name: str, tmp_path: Path) -> None:
    missing = [module for module in RELEASED[name].needs if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}")
    try:
        result = moved(name, tmp_path)
    except CanNotFetchError as error:
        pytest.skip(str(error))

    assert result.before == result.after
    assert result.lines[1] <= 5
