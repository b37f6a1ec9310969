"""The differences between a checkpoint and a tree: classes, statics and leaves, by path, each with its remedy."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal

from treewright._core.text import cut_text, first_names
from treewright._json import shown
from treewright._lines import first_of
from treewright._trees.diff import ABSENT, excerpts
from treewright.checkpoint.arrays import ARRAYS, NARROWED, ON_HOST
from treewright.checkpoint.manifest import Branch, Leaf, Manifest, join_name
from treewright.checkpoint.tree import may_be_same_name
from treewright.errors import CheckpointMismatchError

LeafPair = tuple[Leaf | None, Leaf | None]  # what was saved under a name, and what the tree has there
MismatchKind = Literal["missing", "unexpected", "shape", "dtype", "kind", "class", "static"]

_LENGTH = 200  # of a static or a path in a message
_NAMED = frozenset({"name", "enum", "flag", "namedtuple", "node", "dataclass"})  # static forms that begin with a name

_REMEDIES: MappingProxyType[str, str] = MappingProxyType(
    {
        "missing": "A leaf that was renamed: renamed={'old.name': 'new.name'}. A new one: migrate=, or strict=False to "
        "keep the value that the tree has.",
        "unexpected": "A leaf that is gone: strict=False.",
        "shape": "Another shape: change the array in migrate=.",
        "dtype": "Another dtype: allow_cast=True.",
        "kind": "A number in place of an array or the other way: allow_cast=True.",
        "key": "A key of another kind: make it in migrate=, by jax.random.wrap_key_data(...) or jax.random.key(...).",
        "class": "A class that moved: __checkpoint_name__ = '<the saved name>' in its body, or strict=False.",
        "static": "Another static: build the tree as it was saved, or on_static='warn' to keep what the tree has.",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between a checkpoint and a tree: where, of what kind, what was saved and what the tree has.

    `soft` marks a static that has no exact form, such as a closure, and a name that moved: warnings, never errors.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> try:
        ...     from_names({"w": jnp.ones(3)}, like={"w": jnp.ones(4)})
        ... except errors.CheckpointMismatchError as error:
        ...     error.differences
        (Mismatch(path="['w']", kind='shape', saved='(3,)', wanted='(4,)', soft=False),)
    """

    path: str
    kind: MismatchKind
    saved: str
    wanted: str
    soft: bool = False

    def __str__(self) -> str:
        path = cut_text(self.path, _LENGTH)
        if self.kind == "missing":
            return f"{path}: not saved, the tree has {cut_text(self.wanted, _LENGTH)}"
        if self.kind == "unexpected":
            return f"{path}: saved as {cut_text(self.saved, _LENGTH)}, not in the tree"
        saved, wanted = excerpts((self.saved, self.wanted), _LENGTH)
        return f"{path}: {self.kind} {saved} saved, {wanted} in the tree"

    @property
    def remedy(self) -> str:
        """The option or the line that lets it through."""
        is_key = self.kind == "kind" and "(key" in self.saved + self.wanted
        return _REMEDIES["key" if is_key else self.kind]


def refuse_mismatches(mismatches: Sequence[Mismatch], first: Sequence[str] = ()) -> None:
    """Raise if there are any, all at once, with the remedy of each kind after `first`."""
    if mismatches:
        count = "a difference" if len(mismatches) == 1 else f"{len(mismatches):,} differences"
        lines = [
            f"The checkpoint does not fit the tree, {count}:",
            *(f"  {line}" for line in first_of(list(map(str, mismatches)))),
        ]
        remedies = dict.fromkeys([*first, *(mismatch.remedy for mismatch in mismatches)])
        message = "\n".join([*lines, "What to do:", *(f"  {remedy}" for remedy in remedies)])
        raise CheckpointMismatchError(message, tuple(mismatches))


def mismatches(
    saved: Manifest, wanted: Manifest, leaves: Iterable[LeafPair], *, allow_cast: bool = False
) -> Iterator[Mismatch]:
    """Classes, statics and leaves that differ, and nodes without leaves that only one side has."""
    ours, theirs = ({branch.name: branch for branch in manifest.branches} for manifest in (saved, wanted))
    for name, branch in ours.items():
        if name in theirs:
            yield from _mismatches_in_place(branch, theirs[name])
    for branch in _lone_branches(saved, theirs):
        yield Mismatch(branch.shown_path, "unexpected", _node_text(branch), "nothing")
    for branch in _lone_branches(wanted, ours):
        yield Mismatch(branch.shown_path, "missing", "nothing", _node_text(branch))
    for before, after in leaves:
        if before is not None and after is not None:
            if before.form != after.form:
                yield from _form_mismatches(before, after, allow_cast=allow_cast)
        elif before is not None:
            yield Mismatch(before.path, "unexpected", str(before.form), "nothing")
        elif after is not None:
            yield Mismatch(after.path, "missing", "nothing", str(after.form))


def _mismatches_in_place(old: Branch, new: Branch) -> Iterator[Mismatch]:
    saved, wanted = old.cls or old.kind, new.cls or new.kind
    has_node = "node" in {old.kind, new.kind}
    moved = has_node and may_be_same_name(saved, wanted)
    if has_node:  # one script's class is another's import
        in_script = saved.startswith("__main__:") or wanted.startswith("__main__:")
        is_same = saved == wanted or (moved and in_script)
    else:  # of containers, only the class's own name counts
        is_same = None in {old.cls, new.cls} or saved.rpartition(":")[2] == wanted.rpartition(":")[2]
    if not is_same:
        yield Mismatch(new.shown_path, "class", saved, wanted, soft=moved)
    if has_node or old.kind == new.kind:  # a dict of another kind has other statics
        for name in {**old.statics, **new.statics}:
            before, after = old.statics.get(name, ABSENT), new.statics.get(name, ABSENT)
            alike = likeness(before, after)
            if alike != "same":
                texts = static_text(before), static_text(after)
                yield Mismatch(f"{new.path}.{name}", "static", *texts, soft=alike == "soft")


def _lone_branches(manifest: Manifest, others: dict[str, Branch]) -> list[Branch]:
    """Nodes that only one side has, with statics and without leaves, so that no leaf is missing either."""
    lone = [branch for branch in manifest.branches if branch.statics and branch.name not in others]
    leaves = [leaf.name.split(".") for leaf in manifest.leaves] if lone else []
    with_leaves = {name for steps in leaves for name in accumulate(steps, join_name)}
    return [branch for branch in lone if branch.name not in with_leaves]


def _node_text(branch: Branch) -> str:
    return f"{branch.cls}({', '.join(f'{name}={static_text(value)}' for name, value in branch.statics.items())})"


# Statics as JSON


def likeness(saved: Any, wanted: Any) -> str:
    """How alike two statics are as JSON: "same", "soft" if only descriptions or moved names differ, or "different"."""
    if type(saved) is not type(wanted):
        return "different"
    if not isinstance(saved, list):
        return "same" if repr(saved) == repr(wanted) else "different"
    if saved[:1] != wanted[:1] or len(saved) != len(wanted):
        return "different"
    kind = saved[0] if saved and isinstance(saved[0], str) else None
    if kind == "described":
        return "same" if saved[2:] == wanted[2:] else "soft"
    pairs, each = list(zip(saved[1:], wanted[1:], strict=True)), ["same"]
    if kind in _NAMED and all(isinstance(part, str) for part in pairs[0]):
        name, other = pairs.pop(0)
        if name != other:
            each.append("soft" if may_be_same_name(name, other) else "different")
    return max([*each, *(likeness(*pair) for pair in pairs)], key=("same", "soft", "different").index)


def static_text(form: Any) -> str:
    """A static as a person would write it; with digests where two descriptions may have one text."""
    return "nothing" if form is ABSENT else shown(_with_digests(form))


def _with_digests(form: Any) -> Any:
    if not isinstance(form, list):
        return form
    if form[:1] == ["described"] and len(form) > 2:
        return ["described", f"{form[1]} #{str(form[2])[:8]}"]
    return [_with_digests(part) for part in form]


# Leaves


def paired(saved: Iterable[Leaf], wanted: Iterable[Leaf]) -> list[LeafPair]:
    """Leaves of one name beside each other."""
    left = {leaf.name: leaf for leaf in saved}
    pairs: list[LeafPair] = [(left.pop(leaf.name, None), leaf) for leaf in wanted]
    return [*((leaf, None) for leaf in left.values()), *pairs]


def _form_mismatches(one: Leaf, other: Leaf, *, allow_cast: bool) -> Iterator[Mismatch]:
    saved, wanted, path = one.form, other.form, other.path
    if saved.kind == "array" and wanted.kind in ON_HOST and saved.dtype in {wanted.dtype, NARROWED.get(wanted.dtype)}:
        saved = saved._replace(kind=wanted.kind, dtype=wanted.dtype)  # what jit makes of a number, and of 64 bits
    both_arrays = ARRAYS.issuperset({saved.kind, wanted.kind})
    if saved.key != wanted.key or (saved.kind != wanted.kind and not both_arrays and not allow_cast):
        yield Mismatch(path, "kind", str(saved), str(wanted))
        return
    if saved.shape != wanted.shape:
        yield Mismatch(path, "shape", str(saved.shape), str(wanted.shape))
    if saved.dtype != wanted.dtype and not allow_cast:
        yield Mismatch(path, "dtype", saved.dtype, wanted.dtype)


def part_advice(saved: Manifest, wanted: Manifest) -> list[str]:
    """The cure for a model that is loaded from a whole training state, and the other way round."""
    ours, theirs = ([_likeness_key(branch) for branch in manifest.branches] for manifest in (saved, wanted))
    if not ours or not theirs or ours[0] == theirs[0]:
        return []
    parts = [branch.name for branch, key in zip(saved.branches, ours, strict=True) if key == theirs[0]]
    inside = [branch.path for branch, key in zip(wanted.branches, theirs, strict=True) if key == ours[0]]
    if parts:
        others = f" Also there: {first_names(map(repr, parts[1:]))}." if parts[1:] else ""
        what = wanted.branches[0].cls or f"a {wanted.branches[0].kind} with these keys"
        return [f"A part of the checkpoint: part={parts[0]!r}, where it holds {what}.{others}"]
    return [f"Only a part of the tree was saved: load into that part, like=tree{inside[0]}."] if inside else []


def _likeness_key(branch: Branch) -> object:
    """What two nodes of one class have in common, wherever it is defined, and two dicts with the same keys."""
    return branch.cls.rpartition(":")[2] if branch.cls else (branch.kind, {*branch.children})
