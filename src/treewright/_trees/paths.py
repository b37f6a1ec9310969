"""Paths: their text, and the patterns that lead to many places.

A path is a tuple of JAX's keys, as `jax.tree_util.tree_flatten_with_path` gives it. The fields of a node, children and
statics alike, are `GetAttrKey`s.
"""

import dataclasses
import re
from fnmatch import fnmatchcase
from typing import Any, Literal

from treewright._jax import GetAttrKey, Key, SequenceKey

_STEP = re.compile(
    r"""(?P<deep>\*\*)
    | \.?(?P<field>[^\W\d][\w*]*|\*[\w*]*)
    | \[(?P<index>-?\d+|\*)\]
    | \[(?P<quote>['"])(?P<entry>.*?)(?P=quote)\]""",
    re.VERBOSE,
)


def place_of(key: Key) -> tuple[Literal["field", "item"], Any]:
    """What a key names: a field by its name, or an item by its index, its dict key or a foreign key's own text."""
    if isinstance(key, GetAttrKey):
        return "field", key.name
    if isinstance(key, SequenceKey):
        return "item", key.idx
    return "item", key.key if hasattr(key, "key") else str(key)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a pattern. `name` is a field's name or glob, an index, a dict key, or `"*"`."""

    kind: Literal["field", "item", "deep"]
    name: str | int

    @property
    def is_literal(self) -> bool:
        """Whether the step leads to one place at most."""
        return self.kind != "deep" and "*" not in str(self.name)

    def takes(self, key: Key) -> bool:
        """Whether the step goes where `key` goes."""
        kind, name = place_of(key)
        if kind != self.kind:
            return False
        return fnmatchcase(name, str(self.name)) if kind == "field" else self.name in {"*", name}


def parse(text: str) -> tuple[Step, ...]:
    """The steps of a path's text, or of a pattern's.

    `.name` is a field, `[3]` an item, `['name']` a dict entry; `.*` is any field, `.enc*` any whose name starts so,
    `[*]` any item, and `**` any number of steps: `**.bias` is every field named bias.

    Raises:
        ValueError: If the text is not a path; the message shows where it stops being one.
    """
    steps: list[Step] = []
    end = 0
    while end < len(text):
        match = _STEP.match(text, end)
        if match is None or (match["field"] and end and text[end] != "."):
            raise ValueError(
                f"{text!r} is not a path: {text[end:]!r} is not a step. A step is .name, [0], ['name'], .*, [*] or **, "
                f'as in ".layers[*].kernel" or "**.bias".'
            )
        steps.append(_step(match))
        end = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["deep"]:
        return Step("deep", "**")
    if match["field"]:
        return Step("field", match["field"])
    if match["index"]:
        return Step("item", "*" if match["index"] == "*" else int(match["index"]))
    return Step("item", match["entry"])
