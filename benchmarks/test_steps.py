"""Steps of a run beside Orbax's manager. `steps.py` measures each case in a process of its own; minutes in all."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import steps
from interleaved import REPLAYED, replay

pytest.importorskip("orbax.checkpoint")
GROUPS = {f"{action} {name}": name for name in steps.CASES for action in steps.ACTIONS}
measured = functools.cache(steps.measure)


@REPLAYED
@pytest.mark.parametrize("way", [steps.OURS, steps.ORBAX])
@pytest.mark.parametrize("title", [*GROUPS, steps.BEST_STEPS])
def test_steps(title: str, way: str, benchmark: Any) -> None:
    benchmark.group = title
    replay(benchmark, measured(GROUPS.get(title, title))[title][way])
