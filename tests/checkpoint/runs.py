"""Runs: folders of steps, and ways to damage them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from treewright.checkpoint import CheckpointManager

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TREE = {"x": np.ones(2)}
LIKE = {"x": jnp.zeros(2, int)}


def saved(folder: Path, *steps: Any, **options: Any) -> CheckpointManager:
    """A manager that has saved `{"x": [step, step]}` under these steps, and saves in the background on every Python."""
    manager = CheckpointManager(folder / "steps", **options).__enter__()
    for step in steps:
        manager.save(step, {"x": jnp.full(2, int(step))})
    manager.wait()
    return manager


def hold_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no step get its name before the event is set."""
    let_go = threading.Event()
    rename = os.rename

    def held(source: Any, target: Any, **options: Any) -> None:
        if "orbax-checkpoint-tmp" in str(source):
            assert let_go.wait(10)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", held)
    return let_go


def file_of(folder: Path, step: int) -> Path:
    """The file of a step that one process saved."""
    return folder / "steps" / str(step) / "process_0.safetensors"
