"""A place in a tree: its text, what is there, and patterns that many places match.

A path is a tuple of JAX's keys, as `jax.tree_util.tree_flatten_with_path` gives it. The fields of a node, children and
statics alike, are `GetAttrKey`s.
"""

import dataclasses
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from treewright._jax import GetAttrKey, SequenceKey, jax_trees
from treewright._nodes.node import finished_pair
from treewright._nodes.spec import spec_of

Key: TypeAlias = Any  # GetAttrKey, SequenceKey, DictKey, FlattenedIndexKey, or what a foreign class registered
Path: TypeAlias = tuple[Key, ...]


_STEP = re.compile(
    r"""(?P<deep>\*\*)
    | \.?(?P<field>[^\W\d][\w*]*|\*[\w*]*)
    | \[(?P<index>-?\d+|\*)\]
    | \[(?P<quote>['"])(?P<entry>.*?)(?P=quote)\]""",
    re.VERBOSE,
)


def path_text(path: Path, root: str = "") -> str:
    """A path as users would write it: `state.params.layers[2].kernel` for the root `state`."""
    return root + "".join(map(str, path))


def field_key(name: str) -> Key:
    """The key of a field."""
    return GetAttrKey(name)


def place_of(key: Key) -> tuple[Literal["field", "item"], Any]:
    """What a key names: a field by its name, or an item by its index, its dict key or a foreign key's own text."""
    if isinstance(key, GetAttrKey):
        return "field", key.name
    if isinstance(key, SequenceKey):
        return "item", key.idx
    return "item", key.key if hasattr(key, "key") else str(key)


def entries_of(tree: object) -> tuple[tuple[Key, Any], ...] | None:
    """The children of a node or container, each with its key; None for a leaf. Nothing is unflattened.

    Raises:
        UnfinishedNodeError: If `tree` is a node whose `__init__` has not returned.
    """
    if hasattr(type(tree), "__node_spec__"):
        return tuple(zip(spec_of(tree).keys, finished_pair(tree)[0], strict=True))

    def is_below(part: object) -> bool:
        return part is not tree

    entries: list[tuple[Path, Any]]
    entries, _ = jax_trees.tree_flatten_with_path(tree, is_leaf=is_below)
    if len(entries) == 1 and not entries[0][0]:
        return None
    return tuple((path[0], child) for path, child in entries)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a pattern. `name` is a field's name or glob, an index, a dict key, or `"*"`.

    A step of the kind `"name"` is a field as well as a dict entry of that name.
    """

    kind: Literal["field", "item", "name", "deep"]
    name: str | int

    def takes(self, key: Key) -> bool:
        """Whether the step goes where `key` goes."""
        kind, place = place_of(key)
        if self.kind == "name":
            return bool(place == self.name)
        if kind != self.kind:
            return False
        return fnmatchcase(place, str(self.name)) if kind == "field" else self.name in {"*", place}


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """A text such as `.layers[*].kernel`, taken apart. `str` gives the text back."""

    text: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.text

    def matches(self, path: Path) -> bool:
        """Whether the pattern leads to this place."""
        return _leads(self.steps, path)

    def covers(self, path: Path) -> bool:
        """Whether the pattern leads to this place or to one above it."""
        return any(_leads(self.steps, path[:length]) for length in range(len(path) + 1))


def _leads(steps: Sequence[Step], path: Path) -> bool:
    if not steps:
        return not path
    if steps[0].kind == "deep":
        return any(_leads(steps[1:], path[start:]) for start in range(len(path) + 1))
    return bool(path) and steps[0].takes(path[0]) and _leads(steps[1:], path[1:])


def parse(text: str) -> Pattern:
    """The pattern of a path's text.

    `.name` is a field, `[3]` an item, `['name']` a dict entry; `.*` is any field, `.enc*` any whose name starts so,
    `[*]` any item, and `**` any number of steps: `**.bias` is every field named bias.

    Raises:
        ValueError: If the text is no path; the message shows where it stops being one.
    """
    steps: list[Step] = []
    end = 0
    while end < len(text):
        found = _STEP.match(text, end)
        if found is None or (found["field"] and end and text[end] != "."):
            raise ValueError(
                f"{text!r} is no path: {text[end:]!r} is not a step. A step is .name, [0], ['name'], .*, [*] or **, as "
                f'in ".layers[*].kernel" or "**.bias".'
            )
        steps.append(_step(found))
        end = found.end()
    return Pattern(text, tuple(steps))


def _step(found: re.Match[str]) -> Step:
    if found["deep"]:
        return Step("deep", "**")
    if found["field"]:
        return Step("field", found["field"])
    if found["index"]:
        return Step("item", "*" if found["index"] == "*" else int(found["index"]))
    return Step("item", found["entry"])
