"""Trees that changed since they were saved: other names, and fields that were static and are a child now."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from treewright._nodes.classes import class_of
from treewright._nodes.freeze import FrozenMapping
from treewright.checkpoint.compare import Difference, shown_static
from treewright.checkpoint.leaves import Placing, leaves_of, stored
from treewright.checkpoint.manifest import Branch, Leaf, Manifest, Steps, name_of
from treewright.checkpoint.names import ReadingCodec
from treewright.checkpoint.survey import Place, Survey, survey
from treewright.errors import CheckpointError, StaticSerializationError

# Other names


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
        every = [entry.steps for entry in manifest.branches] + [entry.steps for entry in manifest.leaves]
        steps = {step for place in every for step in place}
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


# Other kinds of fields


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """Fields that are static on one side and a child on the other.

    `children` holds values of saved statics by the names of the leaves that they become; `to_static` the saved leaves
    that became a static, with the place and the value that the tree has there.
    """

    fields: set[Steps]
    children: dict[str, Any]
    to_static: dict[str, tuple[str, Any]]
    differences: list[Difference]

    @classmethod
    def between(cls, manifest: Manifest, target: Survey) -> "Moves":
        """The moves from what was saved to what the tree has."""
        moves = cls(set(), {}, {}, [])
        nodes = {branch.steps: branch for branch in target.branches if branch.fields}
        for old in manifest.branches:
            new = nodes.get(old.steps)
            for name in old.fields if new is not None else ():
                was, now = old.fields[name] == "static", (new.fields if new else old.fields).get(name)
                if new is None or now is None or was == (now == "static"):
                    continue
                moves.fields.add((*new.steps, name))
                if was:
                    moves.add_child(old, new, name)
                else:
                    moves.add_static(manifest, new, name)
        return moves

    def add_child(self, old: Branch, new: Branch, name: str) -> None:
        """A saved static that the tree has as a child: its value becomes that of the leaves."""
        found = _named_leaves(old.statics[name], (*new.steps, name))
        if found is None:
            self.differences.append(
                Difference(f"{new.path}.{name}", "static", shown_static(old.statics[name]), "a child")
            )
        else:
            self.children.update(found)

    def add_static(self, manifest: Manifest, new: Branch, name: str) -> None:
        """A saved child that the tree has as a static: their values have to be the same."""
        steps, path = (*new.steps, name), f"{new.path}.{name}"
        expected = _named_leaves(new.statics[name], steps)
        below = {leaf.name for leaf in manifest.leaves if leaf.steps[: len(steps)] == steps}
        if expected is None or below != set(expected):
            self.differences.append(Difference(path, "static", "a child", shown_static(new.statics[name])))
            expected = {}
        self.to_static.update({leaf: (path, expected.get(leaf)) for leaf in below})

    def statics_that_differ(self, values: Mapping[str, Any]) -> Iterator[Difference]:
        """Saved leaves whose value is not that of the static which the tree has in their place."""
        for name, (path, expected) in self.to_static.items():
            saved = np.asarray(values[name])
            if expected is not None and not np.array_equal(saved, np.asarray(expected).astype(saved.dtype)):
                yield Difference(path, "static", str(saved.tolist()), repr(expected))

    def placed_children(self, target: Survey) -> dict[str, Any]:
        """The values that become leaves, in the form that the tree has for them; of another shape, as they are."""
        places = {place.name: place for place in target.leaves}
        return {name: _placed(value, places.get(name)) for name, value in self.children.items()}


def _placed(value: Any, place: Place | None) -> Any:
    array = np.array(stored(value))
    if place is None or place.form.key is not None or array.shape != place.form.shape:
        return value
    (leaf,) = leaves_of([array], [Placing(place.form, place.value, place.path)])
    return leaf


def _named_leaves(encoded: Any, steps: Steps) -> dict[str, Any] | None:
    """The leaves of a static in typed form, by the names that they would have as children; None if it has others."""
    try:
        value: Any = ReadingCodec().decode(encoded)
    except (CheckpointError, StaticSerializationError, TypeError, ValueError):  # a function: no leaf
        return None
    found = survey(dict(value) if class_of(value) is FrozenMapping else value)
    if found.problems:
        return None
    return {name_of((*steps, *place.steps)): place.value for place in found.leaves}
