"""Paths as text: steps, patterns, and the error for a place that does not exist."""

import ast
import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from treewright._base.functions import earlier_class_hint
from treewright._base.jax_private import DictKey, GetAttrKey, Key, SequenceKey
from treewright._base.text import class_name, did_you_mean, short_text
from treewright._reports import first_lines
from treewright._trees.level import is_leaf_class
from treewright._trees.places import Place, all_entries, walk
from treewright.errors import MissingPlaceError

_MAX_SEARCHED = 1000  # places in which a hint looks for a name
_STEP = re.compile(
    r"""(?P<deep>\.?\*\*)
    | \.?(?P<field>(?:[^\W\d]|\*(?!\*))(?:\w|\*(?!\*))*)
    | \[\*\]""",
    re.VERBOSE,
)


def name_in(key: Key) -> Any:
    """The field's name, index or dict key in a key; the text of a foreign key."""
    if isinstance(key, GetAttrKey):
        return key.name
    if isinstance(key, SequenceKey):
        return key.idx
    return key.key if hasattr(key, "key") else str(key)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a pattern. `name` is a field's name or glob, an index, or a dict key."""

    kind: Literal["field", "item", "every item", "deep"]
    name: Any

    @property
    def is_literal(self) -> bool:
        """Whether the step matches at most one place."""
        return self.kind == "item" or "*" not in str(self.name)

    def matches(self, field: str | None) -> bool:
        """Whether the step may be a field of this name, or for None any item."""
        if self.kind == "field":
            return field is not None and fnmatchcase(field, self.name)
        return self.kind == "deep" or (self.kind == "every item" and field is None)


@functools.lru_cache
def parse(text: str) -> tuple[Step, ...]:
    """The steps of a path or pattern.

    `.name` is a field, `[3]` an item, `['name']` a dict entry; `.*` matches any field, `.enc*` any field whose name
    begins with `enc`, `[*]` any item, and `**` any number of steps: `**.bias` matches every field named bias.
    """
    steps: list[Step] = []
    end = 0
    while end < len(text):
        item = _item(text, end)
        if item:
            steps.append(item[0])
            end = item[1]
            continue
        match = _STEP.match(text, end)
        if match is None or (match["field"] and end and text[end] != "."):
            raise ValueError(
                f"{text!r} is not a path: {text[end:]!r} is not a step. A step is .name, [0], ['name'], .*, [*] or **, "
                f'as in ".layers[*].kernel" or "**.bias".{with_items(text)}'
            )
        kind: Any = "deep" if match["deep"] else "field" if match["field"] else "every item"
        steps.append(Step(kind, match[0].lstrip(".")))
        end = match.end()
    return tuple(steps)


def _item(text: str, start: int) -> tuple[Step, int] | None:
    """The step `[key]` at this position, and its end. The key is a literal: `0`, `'a]'`, `('a', 1)`."""
    for bracket in re.finditer(r"\]", text) if text.startswith("[", start) else ():
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return Step("item", ast.literal_eval(text[start + 1 : bracket.start()])), bracket.end()
    return None


def with_items(text: str) -> str:
    """A hint if the text has indices as in flat names: `layers.0.bias` or `layers.*.bias`."""
    meant = re.sub(r"\.(\d+|\*)(?=[.[]|$)", r"[\1]", text)
    return "" if meant == text else f" Did you mean {meant!r}?"


def key_of(place: Place, step: Step) -> Key:
    return GetAttrKey(str(step.name)) if step.kind == "field" else item_key(place.value, step.name)


def matching(root: Place, steps: Sequence[Step]) -> Iterator[Place]:
    """The topmost places at the end of the steps, in the order of the tree.

    Each place has the indices of the steps that may come next. For `**.bias` these are 0 and 1 at the root and below
    it, and 2, the end, at a field named bias.
    """

    def ready(indices: Iterable[int]) -> frozenset[int]:
        """The steps that may come next, with those after a `**`, which may stand for no step."""
        found = set(indices)
        found.update(i + 1 for i, step in enumerate(steps) if step.kind == "deep" and i in found)
        return frozenset(found)

    @functools.cache  # nodes of a class have the same fields, and most items differ only in their index
    def after(now: frozenset[int], field: str | None, items: tuple[int, ...]) -> frozenset[int]:
        return ready(i + (steps[i].kind != "deep") for i in now if i in items or steps[i].matches(field))

    is_leaf: Callable[[Any], bool] = functools.cache(is_leaf_class)
    queue = [(root, ready([0]))]
    while queue:
        place, now = queue.pop()
        if len(steps) in now:
            yield place
            continue
        keys = [(i, item_key(place.value, steps[i].name)) for i in now if steps[i].kind == "item"]
        inner = []
        for key, child in all_entries(place.value) or ():
            items = tuple(i for i, item in keys if item == key) if keys else ()
            then = after(now, key.name if isinstance(key, GetAttrKey) else None, items)
            if len(steps) in then or (then and not is_leaf(type(child))):
                inner.append((Place(child, key, place), then))
        queue.extend(reversed(inner))


# Places that exist, and those that do not


def item_key(value: Any, item: Any) -> Key:
    """The key for `value[item]`; an index may be negative."""
    if not issubclass(type(value), (list, tuple)) or not hasattr(item, "__index__"):
        keys = (key for key, _ in all_entries(value) or ())
        return next((key for key in keys if not isinstance(key, GetAttrKey) and name_in(key) == item), DictKey(item))
    index: int = item.__index__()
    if -len(value) <= index < 0:
        index += len(value)
    names: Any = getattr(value, "_fields", None)
    return GetAttrKey(names[index]) if names and 0 <= index < len(names) else SequenceKey(index)


def missing_place(place: Place, key: Key) -> MissingPlaceError:
    value: Any = place.value
    kind = "None" if value is None else class_name(value)
    where = place.name if place.name == kind else f"{place.name} ({kind})"
    if type(value) in {list, tuple} and value:
        return MissingPlaceError(f"{where} has no {key}. It has [0] to [{len(value) - 1}].")
    entries = all_entries(value)
    if entries is None:
        hint = ""
        if hasattr(value, "at") and not isinstance(key, GetAttrKey):
            hint = " To change a part of an array, use .apply(lambda array: array.at[...].set(...))."
        elif hasattr(value, "at") and hasattr(value, str(name_in(key))):
            hint = " Places are not values: to compute with the array, use .apply(lambda array: ...)."
        return MissingPlaceError(f"{place.name} is a leaf, {short_text(value)}, without a place {key} below it.{hint}")
    by_name = {str(name_in(entry)): str(entry) for entry, _ in entries}
    meant = did_you_mean(str(name_in(key)), by_name, show=by_name.__getitem__)
    near = itertools.islice(walk(place, Place.entries), _MAX_SEARCHED)
    deeper = (each.key for each in near if each is not place and each.parent is not place)
    patterns = dict.fromkeys(f'"**{each}"' for each in deeper if name_in(each) == name_in(key))
    hint = f" To select it at any depth, write {' or '.join(patterns)}." if patterns else ""
    names = listed([str(entry) for entry, _ in entries])
    return MissingPlaceError(f"{where} has no {key}{meant}. It has {names}.{hint}{earlier_class_hint(type(value))}")


def listed(names: Sequence[str]) -> str:
    """The first twelve names, separated by commas; `nothing` if there are none."""
    return ", ".join(first_lines(names, 12)) or "nothing"
