"""The differences between a checkpoint and a tree: classes, statics and leaves, by path, each with its remedy."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from treewright._core.text import cut_text, first_names
from treewright._trees.diff import excerpts
from treewright.checkpoint.arrays import ARRAYS, NARROWED, ON_HOST, Form
from treewright.checkpoint.manifest import Branch, Leaf, Manifest
from treewright.checkpoint.tree import ABSENT, likeness, may_be_same_name, shown_static
from treewright.errors import CheckpointMismatchError

MismatchKind = Literal["missing", "unexpected", "shape", "dtype", "kind", "class", "static"]

_LENGTH = 200  # of a static or a path in a message
_MANY = 20  # differences, above which a message shows a sample of each kind

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
        lines = [f"The checkpoint does not fit the tree, {count}:", *(f"  {line}" for line in lines_of(mismatches))]
        remedies = dict.fromkeys([*first, *(mismatch.remedy for mismatch in mismatches)])
        message = "\n".join([*lines, "What to do:", *(f"  {remedy}" for remedy in remedies)])
        raise CheckpointMismatchError(message, tuple(mismatches))


def lines_of(mismatches: Sequence[Mismatch], line: Callable[[Mismatch], str] = str) -> list[str]:
    """A line for each; of very many, a sample of each kind."""
    if len(mismatches) <= _MANY:
        return list(map(line, mismatches))
    by_kind: dict[str, list[Mismatch]] = {}
    for mismatch in mismatches:
        by_kind.setdefault(mismatch.kind, []).append(mismatch)
    samples = ((kind, [line(one) for one in some[:5]], len(some) - 5) for kind, some in by_kind.items())
    return [
        text
        for kind, lines, left in samples
        for text in (*lines, *([f"and {left:,} more of the kind {kind!r}"] if left > 0 else ()))
    ]


# Nodes


def node_mismatches(saved: Manifest, wanted: Manifest) -> Iterator[Mismatch]:
    """Classes and statics that differ, and nodes without leaves that only one side has."""
    ours = {branch.name: branch for branch in saved.branches}
    theirs = {branch.name: branch for branch in wanted.branches}
    for name, branch in ours.items():
        if name in theirs:
            yield from _of_one_place(branch, theirs[name])
    yield from _lone_nodes(saved, wanted, theirs, "unexpected")
    yield from _lone_nodes(wanted, saved, ours, "missing")


def _lone_nodes(
    entries: Manifest, others: Manifest, branches: Mapping[str, Branch], kind: MismatchKind
) -> Iterator[Mismatch]:
    """Nodes that only one side has and that hold statics but no leaves, so that no leaf is missing either."""
    lone = [branch for branch in entries.branches if branch.statics and branch.name not in branches]
    leaves = {leaf.name for leaf in others.leaves} if lone else set[str]()
    above: set[str] = set()
    for leaf in entries.leaves if lone else ():
        name = leaf.name
        while name and (name := name.rpartition(".")[0]) not in above:
            above.add(name)
    for branch in lone:
        if branch.name not in above and branch.name not in leaves:
            shown = (
                f"{branch.cls}({', '.join(f'{name}={shown_static(value)}' for name, value in branch.statics.items())})"
            )
            saved, wanted = (shown, "nothing") if kind == "unexpected" else ("nothing", shown)
            yield Mismatch(branch.shown_path, kind, saved, wanted)


def _of_one_place(old: Branch, new: Branch) -> Iterator[Mismatch]:
    saved, wanted = old.cls or old.kind, new.cls or new.kind
    if "node" in {old.kind, new.kind}:
        if saved != wanted:
            in_script = any(name.startswith("__main__:") for name in (saved, wanted))
            moved = may_be_same_name(saved, wanted)
            if not (moved and in_script):  # one script's class is another's import
                yield Mismatch(new.shown_path, "class", saved, wanted, soft=moved)
    elif old.cls is not None and new.cls is not None and saved.rpartition(":")[2] != wanted.rpartition(":")[2]:
        yield Mismatch(new.shown_path, "class", saved, wanted)  # of containers, only the class's own name counts
    if "node" in {old.kind, new.kind} or old.kind == new.kind:  # a dict of another kind has other statics
        for name in {**old.statics, **new.statics}:
            before, after = old.statics.get(name, ABSENT), new.statics.get(name, ABSENT)
            alike = likeness(before, after)
            if alike != "same":
                shown = _static_text(before), _static_text(after)
                yield Mismatch(f"{new.path}.{name}", "static", *shown, soft=alike == "soft")


def _static_text(form: Any) -> str:
    """A static for a message; two descriptions of one text are told apart by their digests."""
    digest = f" #{str(form[2])[:8]}" if isinstance(form, list) and form[:1] == ["described"] and len(form) > 2 else ""
    return f"{shown_static(form)}{digest}"


# Leaves


LeafPair = tuple[Leaf | None, Leaf | None]  # what was saved under a name, and what the tree has there


def paired(saved: Iterable[Leaf], wanted: Iterable[Leaf]) -> list[LeafPair]:
    """Leaves of one name beside each other."""
    left = {leaf.name: leaf for leaf in saved}
    pairs: list[LeafPair] = [(left.pop(leaf.name, None), leaf) for leaf in wanted]
    return [*((leaf, None) for leaf in left.values()), *pairs]


def leaf_mismatches(pairs: Iterable[LeafPair], *, allow_cast: bool, strict: bool) -> Iterator[Mismatch]:
    """The differences between leaves of one name."""
    for saved, wanted in pairs:
        if saved is not None and wanted is not None:
            if saved.form != wanted.form:
                yield from _form_mismatches(wanted.path, saved.form, wanted.form, allow_cast=allow_cast)
        elif strict and saved is not None:
            yield Mismatch(saved.path, "unexpected", str(saved.form), "nothing")
        elif strict and wanted is not None:
            yield Mismatch(wanted.path, "missing", "nothing", str(wanted.form))


def _form_mismatches(path: str, saved: Form, wanted: Form, *, allow_cast: bool) -> Iterator[Mismatch]:
    if saved.key != wanted.key:
        yield Mismatch(path, "kind", str(saved), str(wanted))
        return
    if saved.kind == "array" and wanted.kind in ON_HOST and saved.dtype in {wanted.dtype, NARROWED.get(wanted.dtype)}:
        saved = saved._replace(kind=wanted.kind, dtype=wanted.dtype)  # what jit makes of a number, and of 64 bits
    if saved.kind != wanted.kind and not ARRAYS.issuperset({saved.kind, wanted.kind}) and not allow_cast:
        yield Mismatch(path, "kind", str(saved), str(wanted))
        return
    if saved.shape != wanted.shape:
        yield Mismatch(path, "shape", str(saved.shape), str(wanted.shape))
    if saved.dtype != wanted.dtype and not allow_cast:
        yield Mismatch(path, "dtype", saved.dtype, wanted.dtype)


# A part of the other


def part_advice(saved: Manifest, wanted: Manifest) -> list[str]:
    """The cure for a model that is loaded from a whole training state, and the other way round."""
    if not saved.branches or not wanted.branches:
        return []
    ours, theirs = saved.branches[0], wanted.branches[0]
    if _are_alike(ours, theirs):
        return []
    parts = [branch.name for branch in saved.branches[1:] if _are_alike(branch, theirs)]
    if parts:
        others = f" Also there: {first_names(map(repr, parts[1:]))}." if parts[1:] else ""
        what = theirs.cls or f"a {theirs.kind} with these keys"
        return [f"A part of the checkpoint: part={parts[0]!r}, where it holds {what}.{others}"]
    inside = [branch.path for branch in wanted.branches[1:] if _are_alike(branch, ours)]
    return [f"Only a part of the tree was saved: load into that part, like=tree{inside[0]}."] if inside else []


def _are_alike(one: Branch, other: Branch) -> bool:
    """Whether two nodes are of one class, or two dicts have the same keys."""
    if one.cls is None or other.cls is None:
        return one.cls == other.cls and one.kind == other.kind and {*one.children} == {*other.children} != set()
    return one.cls == other.cls or may_be_same_name(one.cls, other.cls)
