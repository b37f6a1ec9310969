"""Released libraries give the same numbers with as many traces after the command has moved them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.move.released_libraries import RELEASED, CanNotFetchError, moved

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RELEASED)
def test_released_libraries_give_the_same_numbers_and_traces(name: str, tmp_path: Path) -> None:
    try:
        result = moved(name, tmp_path)
    except CanNotFetchError as error:
        pytest.skip(str(error))

    assert result.before == result.after
    assert result.lines[1] <= 5
