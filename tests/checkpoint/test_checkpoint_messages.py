"""The messages of checkpoints as a text file, reviewed as a diff: `UPDATE_SNAPSHOTS=1 make test` writes it anew."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.documents import changed
from tests.checkpoint.models import Settings, net, scaled
from tests.test_snapshots import compare
from treewright import replace
from treewright.checkpoint import CheckpointManager, from_names, load, read_manifest, save
from treewright.checkpoint.manifest import VERSION, from_json
from treewright.errors import CheckpointError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TREE = {"a": np.ones(2, np.float32), "net": net()}


def loaded(folder: Path, saved: Any = TREE, **options: Any) -> Any:
    save(folder / "x", saved)
    return load(folder / "x", **options)


def flipped(folder: Path) -> Any:
    save(folder / "x", TREE)
    (folder / "x").write_bytes((folder / "x").read_bytes()[:-1] + b"\xff")
    return load(folder / "x", like=TREE)


def newer(folder: Path) -> Any:
    save(folder / "x", TREE)
    return from_json(changed(read_manifest(folder / "x").to_json(), ("version",), VERSION + 1))


def soft(folder: Path) -> Any:
    with pytest.warns(CheckpointWarning) as seen:
        loaded(folder, Settings(scaled(1.0)), like=Settings(scaled(2.0)))
    warning: Any = seen[0].message
    raise warning


def busy(folder: Path) -> Any:
    with CheckpointManager(folder) as manager:
        manager.save(1, TREE)
        CheckpointManager(folder).save(2, TREE)


def twice(folder: Path) -> Any:
    with CheckpointManager(folder) as manager:
        manager.save(1, TREE)
        manager.wait()
        manager.save(1, TREE)


MESSAGES: dict[str, Callable[[Path], Any]] = {
    "can't be saved": lambda folder: save(folder / "x", {"a": "text", "b": {"c": 2**70}, "b.c": 1}),
    "can't be saved as a step": lambda folder: CheckpointManager(folder).save(
        1, [jnp.zeros((0, 2)), jnp.ones(1, "uint2")]
    ),
    "no folder": lambda folder: save(folder / "none" / "x", 1),
    "too deep": lambda folder: save(folder / "x", jax.tree.unflatten(jax.tree.structure(deep()), [1])),
    "differences": lambda folder: loaded(folder, like={"a": np.ones(3), "b": 1, "net": replace(net(), width=4)}),
    "missing and abstract": lambda folder: loaded(
        folder, like=jax.eval_shape(lambda: {**TREE, "b": jnp.ones(1)}), strict=False
    ),
    "another description": soft,
    "class not allowed": loaded,
    "name that was not saved": lambda folder: loaded(folder, like=TREE, renamed={"nett": "net"}),
    "two of one name": lambda folder: loaded(folder, {"a": 1, "b": 2}, like=TREE, renamed={"a": "b"}),
    "value that is no leaf": lambda _: from_names({"a": "x"}, like={"a": 1}),
    "damaged array": flipped,
    "damaged manifest": lambda _: from_json({"format": "x"}),
    "newer version": newer,
    "no steps": lambda folder: CheckpointManager(folder).restore(like=1),
    "two managers": busy,
    "step that exists": twice,
    "no step": lambda folder: CheckpointManager(folder).save(-1, TREE),
}


def deep() -> Any:
    tree: Any = 1
    for _ in range(201):
        tree = [tree]
    return tree


def test_every_message_is_the_one_on_file(tmp_path: Path) -> None:
    parts: list[str] = []
    for number, (name, case) in enumerate(MESSAGES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises((CheckpointError, CheckpointWarning)) as caught:
            case(folder)
        text = f"{type(caught.value).__name__}: {caught.value}".replace(str(folder), "FOLDER")
        text = re.sub(r"\.treewright-saving-[-0-9a-f]+|(\[0\]){20,}", "...", text)
        lines = [wrapped for line in text.splitlines() for wrapped in textwrap.wrap(line, 110, break_on_hyphens=False)]
        parts.append(f"[{name}]\n" + "\n".join(lines))
    compare("checkpoint_messages.txt", "\n\n".join(parts) + "\n")
