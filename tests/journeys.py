"""Count the functions of Treewright that an operation passes, so that their number can only fall."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import treewright

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

PACKAGE = Path(treewright.__file__).parent


def assert_passes_at_most(functions: int, files: int, run: Callable[[], object]) -> None:
    """Run it once and count; lambdas and comprehensions belong to the function around them."""
    called: set[types.CodeType] = set()

    def add(frame: types.FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and PACKAGE in Path(code.co_filename).parents and code.co_name[0] != "<":
            called.add(code)

    before = sys.getprofile()
    sys.setprofile(add)
    run()
    sys.setprofile(before)

    assert called, "nothing of Treewright ran"
    assert len(called) <= functions, sorted(code.co_qualname for code in called)
    assert len({code.co_filename for code in called}) <= files, sorted({code.co_filename for code in called})
