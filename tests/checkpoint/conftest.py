"""The fixture `engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint.engines import ByFile, ByManager

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[ByFile, ByManager], ids=["file", "manager"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Both ways of saving a tree, one after the other."""
    return request.param(tmp_path)
