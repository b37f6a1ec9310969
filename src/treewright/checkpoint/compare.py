"""What differs between a saved manifest and the tree that it is to be loaded into, by path, before an array is read."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from treewright._nodes.classes import class_of
from treewright.checkpoint.leaves import ARRAYS, Form
from treewright.checkpoint.manifest import Branch, Manifest, Steps
from treewright.checkpoint.names import same_name
from treewright.checkpoint.survey import Survey
from treewright.errors import CheckpointMismatchError

DifferenceKind = Literal["missing", "unexpected", "shape", "dtype", "kind", "class", "static"]
Likeness = Literal["same", "described", "different"]
_LENGTH = 200  # of a static in a message

ABSENT: Any = object()

_REMEDIES: MappingProxyType[DifferenceKind, str] = MappingProxyType(
    {
        "missing": "A leaf that was renamed: renamed={'old.name': 'new.name'}. A new one: migrate=, or strict=False to "
        "keep the value that the tree has.",
        "unexpected": "A leaf that is gone: strict=False.",
        "shape": "Another shape: change the array in migrate=.",
        "dtype": "Another dtype: allow_cast=True.",
        "kind": "A number in place of an array or the other way: allow_cast=True.",
        "class": "A class that moved: __checkpoint_name__ = '<the saved name>' in its body, or strict=False.",
        "static": "Another static: build the tree as it was saved, or on_static='warn' to keep what the tree has.",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One difference: where, of what kind, what was saved and what the tree has.

    `soft` marks a static that has no exact form, such as a closure, and whose description differs.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> try:
        ...     from_names({"w": jnp.ones(3)}, like={"w": jnp.ones(4)})
        ... except errors.CheckpointMismatchError as error:
        ...     error.differences
        (Difference(path="['w']", kind='shape', saved='(3,)', wanted='(4,)', soft=False),)
    """

    path: str
    kind: DifferenceKind
    saved: str
    wanted: str
    soft: bool = False

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.path}: not saved, the tree has {self.wanted}"
        if self.kind == "unexpected":
            return f"{self.path}: saved as {self.saved}, not in the tree"
        saved, wanted = _excerpts(self.saved, self.wanted)
        return f"{self.path}: {self.kind} {saved} saved, {wanted} in the tree"


def _excerpts(*texts: str) -> list[str]:
    """Texts that may be long, from shortly before the place where they begin to differ."""
    if max(map(len, texts)) <= _LENGTH:
        return [*texts]
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    start = max(0, sum(1 for _ in same) - _LENGTH // 4)
    lead = "..." if start else ""
    return [f"{lead}{text[start : start + _LENGTH]}{'...' * (len(text) > start + _LENGTH)}" for text in texts]


def mismatch(differences: Iterable[Difference]) -> CheckpointMismatchError:
    """The error for these differences, all of them, with what to do about each kind."""
    found = tuple(differences)
    kinds: dict[DifferenceKind, None] = dict.fromkeys(difference.kind for difference in found)
    lines = [f"  {difference}" for difference in found]
    remedies = [f"  {_REMEDIES[kind]}" for kind in kinds]
    count = "a difference" if len(found) == 1 else f"{len(found)} differences"
    text = "\n".join([f"The checkpoint does not fit the tree, {count}:", *lines, "What to do:", *remedies])
    return CheckpointMismatchError(text, found)


# Nodes


def node_differences(saved: Manifest, wanted: Survey, moved: set[Steps]) -> Iterator[Difference]:
    """Classes and statics that differ, and nodes without leaves that only one side has.

    Args:
        saved: The manifest.
        wanted: The tree, taken apart.
        moved: The places of fields that are static on one side and a child on the other; they are compared elsewhere.
    """
    ours = {branch.steps: branch for branch in saved.branches}
    theirs = {branch.steps: branch for branch in wanted.branches}
    for steps, branch in ours.items():
        if steps in theirs:
            yield from _both(branch, theirs[steps], moved)
    yield from _lone(saved, {*theirs, *(leaf.steps for leaf in wanted.leaves)}, "unexpected")
    yield from _lone(wanted, {*ours, *(leaf.steps for leaf in saved.leaves)}, "missing")


def _lone(entries: Manifest | Survey, others: set[Steps], kind: DifferenceKind) -> Iterator[Difference]:
    """Nodes of one side alone that hold statics and no leaves: nothing else would tell of them."""
    above_leaves = {leaf.steps[:end] for leaf in entries.leaves for end in range(len(leaf.steps))}
    for branch in entries.branches:
        if branch.statics and branch.steps not in others and branch.steps not in above_leaves:
            statics = ", ".join(f"{name}={shown_static(value)}" for name, value in branch.statics.items())
            shown = f"{branch.cls}({statics})"
            saved, wanted = (shown, "nothing") if kind == "unexpected" else ("nothing", shown)
            yield Difference(branch.path or "the tree", kind, saved, wanted)


def _both(old: Branch, new: Branch, moved: set[Steps]) -> Iterator[Difference]:
    saved, wanted = old.cls or old.kind, new.cls or new.kind
    if "node" in {old.kind, new.kind}:
        same = same_name(saved, wanted)
    else:  # containers: only the names of classes tell them apart, wherever these are defined
        same = old.cls is None or new.cls is None or _last(saved) == _last(wanted)
    if not same:
        yield Difference(new.path or "the tree", "class", saved, wanted)
    for name in {**old.statics, **new.statics}:
        if (*new.steps, name) in moved:
            continue
        before, after = old.statics.get(name, ABSENT), new.statics.get(name, ABSENT)
        likeness = alike(before, after)
        if likeness != "same":
            path = f"{new.path}.{name}"
            yield Difference(path, "static", shown_static(before), shown_static(after), soft=likeness == "described")


def _last(name: str) -> str:
    return name.rpartition(":")[2]


_UNORDERED = frozenset({"frozenset", "FrozenMapping"})
_NAMED = frozenset({"name", "enum", "flag", "namedtuple", "node", "dataclass"})


def alike(saved: Any, wanted: Any) -> Likeness:
    """Whether two statics in typed form are the same, or differ only where both are mere descriptions."""
    kind = class_of(saved)
    if class_of(wanted) is not kind:
        return "different"
    if kind is list:
        return _alike_lists(saved, wanted)
    if kind is dict:
        return _worst(alike(saved[name], wanted[name]) for name in saved) if set(saved) == set(wanted) else "different"
    return "same" if repr(saved) == repr(wanted) else "different"


def _alike_lists(saved: list[Any], wanted: list[Any]) -> Likeness:
    if len(saved) != len(wanted):
        return "different"
    if not saved:
        return "same"
    if saved[0] == wanted[0] == "described":
        return "same" if saved == wanted else "described"
    if saved[0] == wanted[0] and saved[0] in _UNORDERED:
        return _worst(map(alike, sorted(saved, key=repr), sorted(wanted, key=repr)))
    start = 0
    if saved[0] == wanted[0] and saved[0] in _NAMED and len(saved) > 1:
        if not same_name(str(saved[1]), str(wanted[1])):
            return "different"
        start = 2
    return _worst(map(alike, saved[start:], wanted[start:]))


def _worst(found: Iterable[Likeness]) -> Likeness:
    seen = set(found)
    if "different" in seen:
        return "different"
    return "described" if "described" in seen else "same"


def shown_static(encoded: Any) -> str:
    """A static in typed form as a person would write it."""
    if encoded is ABSENT:
        return "nothing"
    if class_of(encoded) is not list:
        return repr(encoded)
    kind, *parts = encoded or [""]
    if kind in {"name", "described", "dtype", "float"}:
        return " ".join(map(str, parts))
    if kind in {"enum", "flag"}:
        return ".".join(map(str, parts))
    if kind == "tuple":
        return f"({', '.join(map(shown_static, parts))}{',' if len(parts) == 1 else ''})"
    name = str(parts.pop(0)) if kind in _NAMED else kind
    return f"{name}({', '.join(map(shown_static, parts))})"


# Leaves


def leaf_differences(
    saved: Mapping[str, tuple[str, Form]], wanted: Mapping[str, tuple[str, Form]], *, allow_cast: bool, strict: bool
) -> Iterator[Difference]:
    """What differs between leaves, by flat name: each is `(path, form)`."""
    if strict:
        yield from (
            Difference(path, "unexpected", str(form), "nothing")
            for name, (path, form) in saved.items()
            if name not in wanted
        )
    for name, (path, form) in wanted.items():
        if name in saved:
            yield from _forms_differ(path, saved[name][1], form, allow_cast=allow_cast)
        elif strict:
            yield Difference(path, "missing", "nothing", str(form))


def _forms_differ(path: str, saved: Form, wanted: Form, *, allow_cast: bool) -> Iterator[Difference]:
    if saved.key != wanted.key:
        yield Difference(path, "kind", str(saved), str(wanted))
        return
    both_arrays = saved.kind in ARRAYS and wanted.kind in ARRAYS
    if saved.kind != wanted.kind and not both_arrays and not allow_cast:
        yield Difference(path, "kind", str(saved), str(wanted))
        return
    if saved.shape != wanted.shape:
        yield Difference(path, "shape", str(saved.shape), str(wanted.shape))
    if saved.dtype != wanted.dtype and not allow_cast:
        yield Difference(path, "dtype", saved.dtype, wanted.dtype)
