"""Saved entries under other names."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from treewright.checkpoint.manifest import Branch, Leaf, Manifest, Steps
from treewright.errors import CheckpointError


def renamed_manifest(manifest: Manifest, renamed: Mapping[str, str]) -> Manifest:
    """The manifest with other names. A key is a run of steps, as `out` or `params.out`, and is found at any depth.

    Raises:
        CheckpointError: If a key is found nowhere, or two leaves would have one name.
    """
    if not renamed:
        return manifest
    runs = [(tuple(old.split(".")), tuple(new.split("."))) for old, new in renamed.items()]
    runs.sort(key=lambda run: -len(run[0]))
    used: set[Steps] = set()

    def new_steps(steps: Steps) -> Steps:
        result: list[str] = []
        while steps:
            old, new = next(((a, b) for a, b in runs if steps[: len(a)] == a), (steps[:1], steps[:1]))
            used.add(old)
            result += new
            steps = steps[len(old) :]
        return tuple(result)

    branches = tuple(
        dataclasses.replace(branch, steps=new_steps(branch.steps), **_renamed_fields(branch, new_steps))
        for branch in manifest.branches
    )
    leaves = tuple(dataclasses.replace(leaf, steps=new_steps(leaf.steps)) for leaf in manifest.leaves)
    unused = [".".join(old) for old, _ in runs if old not in used]
    if unused:
        steps = {step for entry in (*manifest.branches, *manifest.leaves) for step in entry.steps}
        close = difflib.get_close_matches(unused[0], steps, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise CheckpointError(f"renamed: nothing that was saved is called {unused[0]!r}{hint}.")
    _refuse_one_name_twice(leaves)
    return Manifest(branches, leaves)


def _renamed_fields(branch: Branch, new_steps: Callable[[Steps], Steps]) -> dict[str, Any]:
    """The fields of a node under their new names, where only the last step changed."""

    def new_name(name: str) -> str:
        found = new_steps((*branch.steps, name))
        return found[-1] if found[:-1] == new_steps(branch.steps) else name

    return {
        "fields": {new_name(name): kind for name, kind in branch.fields.items()},
        "statics": {new_name(name): value for name, value in branch.statics.items()},
    }


def _refuse_one_name_twice(leaves: Iterable[Leaf]) -> None:
    paths: dict[str, str] = {}
    for leaf in leaves:
        first = paths.setdefault(leaf.name, leaf.path)
        if first is not leaf.path:
            raise CheckpointError(f"renamed: {first} and {leaf.path} would both be called {leaf.name!r}.")
