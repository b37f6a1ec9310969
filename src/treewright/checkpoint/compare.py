"""What a checkpoint and a tree disagree about, and what to do about it."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from treewright._core.as_json import FORMS
from treewright._core.freeze import FrozenMapping
from treewright._core.functions import class_of, public
from treewright._core.json_kinds import listed, named, number, pair, parts_of, sizes, static, text
from treewright._core.text import cut_text, did_you_mean, excerpts, first_of
from treewright.checkpoint.leaves import (
    ARRAYS,
    NARROWED,
    ON_HOST,
    Form,
    Leaf,
    Steps,
    name_of,
    of_one_name,
    restored_leaves,
    stored,
)
from treewright.checkpoint.manifest import Branch, Manifest
from treewright.checkpoint.tree import ReadingCodec, manifest_of, same_name
from treewright.errors import CheckpointError, CheckpointMismatchError, StaticSerializationError

MismatchKind = Literal["missing", "unexpected", "shape", "dtype", "kind", "class", "static"]
Likeness = Literal["same", "described", "different"]
_LIKENESSES: tuple[Likeness, ...] = ("same", "described", "different")  # from best to worst
_LENGTH = 200  # of a static or a path in a message
_MANY = 20  # differences from which on a message shows some of each kind

_ABSENT: Any = object()  # in place of a static that only the other side has

_REMEDIES: MappingProxyType[MismatchKind, str] = MappingProxyType(
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


@public("treewright.checkpoint")
@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between a checkpoint and a tree: where, of what kind, what was saved and what the tree has.

    `soft` marks a static that has no exact form, such as a closure, and whose description differs.

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


def refuse_mismatches(mismatches: Sequence[Mismatch]) -> None:
    """Raise if there are any, all at once, with what to do about each kind."""
    if not mismatches:
        return
    count = "a difference" if len(mismatches) == 1 else f"{len(mismatches):,} differences"
    lines = [f"The checkpoint does not fit the tree, {count}:", *(f"  {line}" for line in lines_of(mismatches))]
    remedies = dict.fromkeys(f"  {_REMEDIES[mismatch.kind]}" for mismatch in mismatches)
    raise CheckpointMismatchError("\n".join([*lines, "What to do:", *remedies]), tuple(mismatches))


def lines_of(mismatches: Sequence[Mismatch], line: Callable[[Mismatch], str] = str) -> list[str]:
    """A line for each; where there are very many, for some of each kind, and how many there are besides."""
    if len(mismatches) <= _MANY:
        return list(map(line, mismatches))
    of_kind: dict[MismatchKind, list[str]] = {}
    for mismatch in mismatches:
        of_kind.setdefault(mismatch.kind, []).append(line(mismatch))
    return [line for kind, lines in of_kind.items() for line in first_of(lines, 5, more=f"more of the kind {kind!r}")]


# Nodes


def node_mismatches(saved: Manifest, wanted: Manifest, moved: set[Steps]) -> Iterator[Mismatch]:
    """Classes and statics that differ, and nodes without leaves that only one side has.

    Fields in `moved`, which are static on one side and a child on the other, are compared elsewhere.
    """
    ours = {branch.steps: branch for branch in saved.branches}
    theirs = {branch.steps: branch for branch in wanted.branches}
    for steps, branch in ours.items():
        other = theirs.get(steps)
        if other is not None and (branch.cls or other.cls or branch.statics or other.statics):
            yield from _both(branch, other, moved)
    yield from _lone(saved, wanted, theirs, "unexpected")
    yield from _lone(wanted, saved, ours, "missing")


def _lone(
    entries: Manifest, others: Manifest, branches: Mapping[Steps, Branch], kind: MismatchKind
) -> Iterator[Mismatch]:
    """Nodes that only one side has and that hold statics but no leaves, so that no leaf is missing either."""
    lone = [branch for branch in entries.branches if branch.statics and branch.steps not in branches]
    leaves = {leaf.steps for leaf in others.leaves} if lone else set[Steps]()
    above_leaves: set[Steps] = set()
    for leaf in entries.leaves if lone else ():
        steps = leaf.steps
        while steps and (steps := steps[:-1]) not in above_leaves:
            above_leaves.add(steps)
    for branch in lone:
        if branch.steps not in above_leaves and branch.steps not in leaves:
            statics = ", ".join(f"{name}={shown_static(value)}" for name, value in branch.statics.items())
            shown = f"{branch.cls}({statics})"
            saved, wanted = (shown, "nothing") if kind == "unexpected" else ("nothing", shown)
            yield Mismatch(branch.path or "the tree", kind, saved, wanted)


def _both(old: Branch, new: Branch, moved: set[Steps]) -> Iterator[Mismatch]:
    saved, wanted = old.cls or old.kind, new.cls or new.kind
    if "node" in {old.kind, new.kind}:
        same = same_name(saved, wanted)
    else:  # containers: only the names of classes tell them apart, wherever these are defined
        same = old.cls is None or new.cls is None or saved.rpartition(":")[2] == wanted.rpartition(":")[2]
    if not same:
        yield Mismatch(new.path or "the tree", "class", saved, wanted)
    statics = "node" in {old.kind, new.kind} or old.kind == new.kind  # a dict of another kind has others
    for name in {**old.statics, **new.statics} if statics else ():
        if (*new.steps, name) in moved:
            continue
        before, after = old.statics.get(name, _ABSENT), new.statics.get(name, _ABSENT)
        likeness = alike(before, after)
        if likeness != "same":
            path = f"{new.path}.{name}"
            yield Mismatch(path, "static", shown_static(before), shown_static(after), soft=likeness == "described")


_UNORDERED = frozenset({"frozenset", "FrozenMapping", "dict"})
_NAMED = frozenset({"name", "enum", "flag", "namedtuple", "node", "dataclass"})  # whose first part is a name


def alike(saved: Any, wanted: Any) -> Likeness:
    """Whether two statics in typed form are the same, or differ only where both are mere descriptions."""
    kind = class_of(saved)
    if class_of(wanted) is not kind:
        return "different"
    return _alike_forms(saved, wanted) if kind is list else _equal(saved, wanted)


def _equal(saved: Any, wanted: Any) -> Likeness:
    return "same" if repr(saved) == repr(wanted) else "different"


def _alike_forms(saved: list[Any], wanted: list[Any]) -> Likeness:
    kind = saved[0]
    if kind != wanted[0] or len(saved) != len(wanted):
        return "different"
    if kind == "described":
        return "same" if saved == wanted else "described"
    if kind in _NAMED and not same_name(saved[1], wanted[1]):
        return "different"
    start = 2 if kind in _NAMED else 1
    sides: list[list[Any]] = [saved[start:], wanted[start:]]
    if kind in _UNORDERED:
        sides = [sorted(side, key=repr) for side in sides]
    parts = parts_of(FORMS[kind], start - 1)
    return _worst(_alike_parts(*each) for each in zip(*sides, parts, strict=False))


def _alike_parts(saved: Any, wanted: Any, part: Any) -> Likeness:
    if part in {text, number, sizes}:
        return _equal(saved, wanted)
    if part is not named:
        pairs = list(part(saved)), list(part(wanted))
        return _worst(map(alike, *pairs)) if len(pairs[0]) == len(pairs[1]) else "different"
    return _worst(alike(saved[name], wanted[name]) for name in saved) if set(saved) == set(wanted) else "different"


def _worst(likenesses: Iterable[Likeness]) -> Likeness:
    return _LIKENESSES[max(map(_LIKENESSES.index, likenesses), default=0)]


def shown_static(encoded: Any) -> str:
    """A static in typed form as a person would write it."""
    if encoded is _ABSENT:
        return "nothing"
    if class_of(encoded) is not list:
        return repr(encoded)
    kind, *parts = encoded
    if kind in {"name", "described", "dtype", "float"}:
        return str(parts[0])
    if kind in {"enum", "flag"}:
        return ".".join(map(str, parts))
    if kind == "tuple":
        return f"({', '.join(map(shown_static, parts))}{',' if len(parts) == 1 else ''})"
    name, start = (str(parts[0]), 1) if kind in _NAMED else (kind, 0)
    return f"{name}({', '.join(map(_shown_part, parts[start:], parts_of(FORMS[kind], start)))})"


def _shown_part(value: Any, part: Any) -> str:
    if part is static:
        return shown_static(value)
    if part is named:
        return ", ".join(f"{name}={shown_static(inner)}" for name, inner in value.items())
    if part is pair:
        return ": ".join(map(shown_static, value))
    if part is listed:
        return f"[{', '.join(map(shown_static, value))}]"
    return repr(value)


# Leaves


Pair = tuple[Leaf | None, Leaf | None]


def paired(saved: Sequence[Leaf], wanted: Sequence[Leaf]) -> list[Pair]:
    """Leaves of one name, in the order of those that are wanted; before them, saved ones that nobody wants."""
    if [leaf.name for leaf in saved] == [leaf.name for leaf in wanted]:  # without a table, in a fifth of the time
        return list(zip(saved, wanted, strict=True))
    left = {leaf.name: leaf for leaf in saved}
    pairs: list[Pair] = [(left.pop(leaf.name, None), leaf) for leaf in wanted]
    return [*((leaf, None) for leaf in left.values()), *pairs]


def leaf_mismatches(pairs: Iterable[Pair], *, allow_cast: bool, strict: bool) -> Iterator[Mismatch]:
    """What differs between leaves of one name."""
    for saved, wanted in pairs:
        if saved is not None and wanted is not None:
            if saved.form != wanted.form:
                yield from _forms_differ(wanted.path, saved.form, wanted.form, allow_cast=allow_cast)
        elif strict and saved is not None:
            yield Mismatch(saved.path, "unexpected", str(saved.form), "nothing")
        elif strict and wanted is not None:
            yield Mismatch(wanted.path, "missing", "nothing", str(wanted.form))


def _forms_differ(path: str, saved: Form, wanted: Form, *, allow_cast: bool) -> Iterator[Mismatch]:
    if saved.key != wanted.key:
        yield Mismatch(path, "kind", str(saved), str(wanted))
        return
    if saved.kind == "array" and wanted.kind in ON_HOST and saved.dtype in {wanted.dtype, NARROWED.get(wanted.dtype)}:
        saved = saved._replace(kind=wanted.kind, dtype=wanted.dtype)  # what jit makes of a number, and of 64 bits
    both_arrays = saved.kind in ARRAYS and wanted.kind in ARRAYS
    if saved.kind != wanted.kind and not both_arrays and not allow_cast:
        yield Mismatch(path, "kind", str(saved), str(wanted))
        return
    if saved.shape != wanted.shape:
        yield Mismatch(path, "shape", str(saved.shape), str(wanted.shape))
    if saved.dtype != wanted.dtype and not allow_cast:
        yield Mismatch(path, "dtype", saved.dtype, wanted.dtype)


# Other names


def renamed_manifest(manifest: Manifest, renamed: Mapping[str, str]) -> Manifest:
    """The manifest with other names. A key is a run of steps, as `out` or `params.out`, and is found at any depth."""
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
        meant = did_you_mean(unused[0], steps)
        raise CheckpointError(f"renamed: nothing that was saved is called {unused[0]!r}{meant}.")
    for leaf, other in of_one_name(leaves):
        raise CheckpointError(f"renamed: {leaf.path} and {other.path} would both be called {leaf.name!r}.")
    return dataclasses.replace(manifest, branches=branches, leaves=leaves)


def _renamed_fields(branch: Branch, new_steps: Callable[[Steps], Steps]) -> dict[str, Any]:
    """The fields of a node under their new names, where only the last step changed."""

    def new_name(name: str) -> str:
        *above, last = new_steps((*branch.steps, name))
        return last if tuple(above) == new_steps(branch.steps) else name

    return {
        "fields": {new_name(name): kind for name, kind in branch.fields.items()},
        "statics": {new_name(name): value for name, value in branch.statics.items()},
    }


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
    mismatches: list[Mismatch]

    @classmethod
    def between(cls, manifest: Manifest, target: Manifest) -> "Moves":
        """The moves from what was saved to what the tree has."""
        moves = cls(set(), {}, {}, [])
        nodes = {branch.steps: branch for branch in target.branches if branch.fields}
        pairs = [(old, nodes[old.steps]) for old in manifest.branches if old.steps in nodes]
        for old, new in pairs:
            for name, kind in old.fields.items():
                if name not in new.fields or (kind == "static") == (new.fields[name] == "static"):
                    continue
                moves.fields.add((*new.steps, name))
                if kind == "static":
                    moves.add_child(old, new, name)
                else:
                    moves.add_static(manifest, new, name)
        return moves

    def add_child(self, old: Branch, new: Branch, name: str) -> None:
        """A saved static that the tree has as a child: its value becomes that of the leaves."""
        values = _named_leaves(old.statics[name], (*new.steps, name))
        if values is None:
            static = shown_static(old.statics[name])
            self.mismatches.append(Mismatch(f"{new.path}.{name}", "static", static, "a child"))
        else:
            self.children.update(values)

    def add_static(self, manifest: Manifest, new: Branch, name: str) -> None:
        """A saved child that the tree has as a static: their values have to be the same."""
        steps, path = (*new.steps, name), f"{new.path}.{name}"
        expected = _named_leaves(new.statics[name], steps)
        below = {leaf.name for leaf in manifest.leaves if leaf.steps[: len(steps)] == steps}
        if expected is None or below != set(expected):
            self.mismatches.append(Mismatch(path, "static", "a child", shown_static(new.statics[name])))
            expected = {}
        self.to_static.update({leaf: (path, expected.get(leaf)) for leaf in below})

    def static_mismatches(self, values: Mapping[str, Any]) -> Iterator[Mismatch]:
        """Saved leaves whose value is not that of the static which the tree has in their place."""
        for name, (path, expected) in self.to_static.items():
            saved = np.asarray(values[name])
            if expected is not None and not np.array_equal(saved, np.asarray(expected).astype(saved.dtype)):
                yield Mismatch(path, "static", str(saved.tolist()), repr(expected))

    def placed_children(self, target: Manifest) -> dict[str, Any]:
        """The values that become leaves, in the form that the tree has for them; of another shape, as they are."""
        targets = {leaf.name: leaf for leaf in target.leaves if leaf.name in self.children}
        return {name: _placed(value, targets.get(name)) for name, value in self.children.items()}


def _placed(value: Any, target: Leaf | None) -> Any:
    array = np.array(stored(value))
    if target is None or target.form.key is not None or array.shape != target.form.shape:
        return value
    return restored_leaves([array], [target])[0]


def _named_leaves(encoded: Any, steps: Steps) -> dict[str, Any] | None:
    """The leaves of a static in typed form, by the names that they would have as children; None if it has others."""
    try:
        value: Any = ReadingCodec().decode(encoded)
        leaves = manifest_of(dict(value) if class_of(value) is FrozenMapping else value).leaves
    except (CheckpointError, StaticSerializationError, TypeError, ValueError):  # a function: not a leaf
        return None
    return {name_of((*steps, *leaf.steps)): leaf.value for leaf in leaves}
