"""Compare a checkpoint with a tree: differences of classes, statics and leaves by path, each with a fix."""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from treewright._base.text import cut_text
from treewright._core import first_text
from treewright._json import OF_CLASS, encoded_text
from treewright._reports import excerpts, first_lines, first_names
from treewright._trees.difference import ABSENT
from treewright.checkpoint.arrays import ARRAYS, NARROWED, NUMBERS, ON_HOST, Form, jax_dtype, keeps_kind
from treewright.checkpoint.manifest import LeafRecord, Manifest, NodeRecord, join_name, renamer
from treewright.checkpoint.rules import CAST, CLASS, FORM, NOT_IN_THE_TREE, NOT_MIGRATED, NOT_SAVED, OPTIMISER, STATIC
from treewright.checkpoint.tree import may_be_same_name
from treewright.errors import CheckpointMismatchError

MismatchKind = Literal["missing", "unexpected", "shape", "dtype", "kind", "class", "static", "optimiser"]

_MAX_COMPONENTS = 100_000  # in names; a tree with more is too deep for the search of moved subtrees
_LENGTH = 200  # characters of a static or a path in a message
_FIX_LENGTH = 2000  # characters of a fix, which may contain names
_NAMED = frozenset({"name", *OF_CLASS})  # encoded statics that begin with a name


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between a checkpoint and a tree: its path, its kind, the saved value and the tree's.

    `is_warning` marks differences that are never errors: of a static without an exact encoding, such as a closure, and
    of a class or function that moved. `fix` is the option to pass, or the line to write.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> try:
        ...     from_names({"w": jnp.ones(3)}, like={"w": jnp.ones(4)})
        ... except errors.CheckpointMismatchError as error:
        ...     error.differences
        (Mismatch(path="['w']", kind='shape', saved='(3,)', wanted='(4,)', is_warning=False),)
    """

    path: str
    kind: MismatchKind
    saved: str
    wanted: str
    is_warning: bool = False
    fix: str = dataclasses.field(default="", repr=False)

    def __str__(self) -> str:
        path = cut_text(self.path, _LENGTH)
        if self.kind == "missing":
            return f"{path}: not saved, the tree has {cut_text(self.wanted, _LENGTH)}"
        if self.kind == "unexpected":
            return f"{path}: saved as {cut_text(self.saved, _LENGTH)}, not in the tree"
        if self.kind == "optimiser":
            shown = f": {self.saved} saved, {self.wanted} in the tree" if self.saved else ""
            return f"{path}: a different optimiser, or different settings{shown}"
        saved, wanted = excerpts((self.saved, self.wanted), _LENGTH)
        return f"{path}: {self.kind} {saved} saved, {wanted} in the tree"


def raise_mismatches(mismatches: Sequence[Mismatch], fixes: Sequence[str]) -> None:
    """Raise one error for all mismatches, if there are any."""
    if mismatches:
        count = "a difference" if len(mismatches) == 1 else f"{len(mismatches):,} differences"
        lines = [
            f"The checkpoint does not fit the tree, {count}:",
            *(f"  {line}" for line in first_lines(list(map(str, mismatches)))),
        ]
        message = "\n".join(
            [*lines, "What to do:", *("  " + cut_text(fix, _FIX_LENGTH).replace("\n", "\n  ") for fix in fixes)]
        )
        raise CheckpointMismatchError(message, tuple(mismatches))


@dataclasses.dataclass(frozen=True)
class Differences:
    """The differences of classes, statics and leaves between a checkpoint and a tree, and their fixes.

    Attributes:
        saved: The manifest of the checkpoint, with the leaves that `migrate=` returned.
        wanted: The manifest of the tree.
        allow_cast: Whether leaves may be cast.
        abstract: The names of the tree's leaves that are `jax.ShapeDtypeStruct`s.
        changed: The names that `migrate=` added or removed; None without it.
    """

    saved: Manifest
    wanted: Manifest
    allow_cast: bool = False
    abstract: Collection[str] = ()
    changed: Collection[str] | None = None

    def listed(self) -> Iterator[Mismatch]:
        """All differences, also of nodes and leaves that only one side has."""
        nodes = {node.name: node for node in self.wanted.nodes}
        is_migrated = self.changed is not None
        above = self._nodes_above_changes()
        for node in self.saved.nodes:
            if node.name in nodes:
                yield from _mismatches_in_place(node, nodes[node.name], is_replaced=node.name in above)
        for path, text, is_node in _only_in(self.saved, self.wanted):
            yield Mismatch(path, "unexpected", text, "nothing", is_node and is_migrated, NOT_IN_THE_TREE)
        not_saved = NOT_MIGRATED if is_migrated else NOT_SAVED
        for path, text, is_node in _only_in(self.wanted, self.saved):
            yield Mismatch(path, "missing", "nothing", text, is_node and is_migrated, not_saved)
        leaves = {leaf.name: leaf for leaf in self.wanted.leaves}
        for leaf in self.saved.leaves:
            if leaf.name in leaves and leaf.form != leaves[leaf.name].form:
                is_abstract = leaf.name in self.abstract
                yield from _form_mismatches(
                    leaf, leaves[leaf.name], is_abstract=is_abstract, allow_cast=self.allow_cast
                )

    def _nodes_above_changes(self) -> set[str]:
        """The names of nodes and leaves below which `migrate=` has changed names."""
        found = {*(self.changed or ())}
        for manifest in (self.saved, self.wanted) if found else ():
            for node in reversed(manifest.nodes):  # children come after their parents
                if any(join_name(node.name, step) in found for step in node.children):
                    found.add(node.name)
        return found

    def fixes(self, rejected: Sequence[Mismatch]) -> list[str]:
        """The fixes for some of the differences, the most likely first."""
        fixes = dict.fromkeys(mismatch.fix for mismatch in rejected)
        if advice := part_advice(self.saved, self.wanted):
            return [*advice, *fixes]
        moved = moved_subtrees(self.saved.leaves, self.wanted.leaves) if self.changed is None and rejected else {}
        if not moved:
            return [*fixes]
        new_name, _ = renamer(moved)
        others = list(dataclasses.replace(self, saved=self.saved.with_names(new_name)).listed())
        is_one_leaf = sum(new_name(leaf.name) != leaf.name for leaf in self.saved.leaves) == 1  # may be a coincidence
        if not is_one_leaf and all(one.is_warning or one.kind in {"static", "optimiser"} for one in others):
            fixes = dict.fromkeys(one.fix for one in others if not one.is_warning)
        return [f"If leaves moved: renamed={moved!r}.", *fixes]


def _names_above(leaf: str) -> Iterator[str]:
    """The names of a leaf and of the nodes that contain it."""
    return itertools.accumulate(["", *leaf.split(".")], join_name)


def moved_subtrees(saved: Sequence[LeafRecord], wanted: Sequence[LeafRecord]) -> dict[str, str]:
    """The `renamed=` that moves subtrees which only the checkpoint has to those with the same leaves in the tree.

    Empty if none fits, or if several fit equally.
    """
    names, others = {leaf.name for leaf in saved}, {leaf.name for leaf in wanted}
    if sum(name.count(".") for name in names ^ others) > _MAX_COMPONENTS:
        return {}
    old, new = _subtrees(saved, names - others), _subtrees(wanted, others - names)
    places: dict[Any, list[str]] = {}
    for place, leaves in new.items():
        places.setdefault(leaves, []).append(place)
    pairs: dict[str, str] = {}
    for name, leaves in sorted(old.items(), key=lambda item: item[0].count(".")):
        if not any(above in pairs for above in _names_above(name)):
            fitting = places.get(leaves, [])
            beside = [place for place in fitting if place.rpartition(".")[0] == name.rpartition(".")[0]]
            if len(beside or fitting) == 1:
                pairs[name] = (beside or fitting)[0]
    goals = {
        join_name(name, rest) if rest else name: join_name(place, rest) if rest else place
        for name, place in pairs.items()
        for rest, _ in old[name]
    }
    if len({*goals.values()}) != len(goals):
        return {}
    for renamed in (_shortest(pairs), pairs) if pairs else ():
        new_name, _ = renamer(renamed)
        if all(new_name(name) == goals.get(name, name) for name in names):
            return renamed
    return {}


def _subtrees(leaves: Sequence[LeafRecord], lone: Collection[str]) -> dict[str, tuple[tuple[str, Form], ...]]:
    """The subtrees in which the other side has no leaf: by name, the leaves by the rest of their names."""
    shared = {above for leaf in leaves if leaf.name not in lone for above in _names_above(leaf.name)}
    found: dict[str, list[tuple[str, Form]]] = {}
    for leaf in leaves:
        for above in _names_above(leaf.name) if leaf.name in lone else ():
            if above and above not in shared:
                found.setdefault(above, []).append((leaf.name[len(above) + 1 :], leaf.form))
    return {name: tuple(sorted(rest)) for name, rest in found.items()}


def _shortest(pairs: dict[str, str]) -> dict[str, str]:
    """The pairs without the components that old and new name begin with: `mu.out` and `mu.head` give `out`, `head`."""
    short: dict[str, str] = {}
    for old, new in pairs.items():
        before, after = old.split("."), new.split(".")
        pairs_above = zip(before[:-1], after[:-1], strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs_above))
        short[".".join(before[same:])] = ".".join(after[same:])
    return short


def _mismatches_in_place(old: NodeRecord, new: NodeRecord, *, is_replaced: bool = False) -> Iterator[Mismatch]:
    """The differences of two nodes in one place. If `migrate=` replaced leaves of the node, another class is meant."""
    saved, wanted = old.cls or old.kind, new.cls or new.kind
    has_node = "node" in {old.kind, new.kind}
    moved = has_node and may_be_same_name(saved, wanted)
    if has_node:  # a script's own class may be imported elsewhere
        in_script = saved.startswith("__main__:") or wanted.startswith("__main__:")
        is_same = saved == wanted or (moved and in_script)
    else:  # for containers, only the class's own name counts
        is_same = None in {old.cls, new.cls} or saved.rpartition(":")[2] == wanted.rpartition(":")[2]
    if not is_same:
        fix = OPTIMISER if saved.startswith("optax.") and wanted.startswith("optax.") else CLASS
        yield Mismatch(new.shown_path, "class", saved, wanted, moved or is_replaced, fix)
    if has_node or old.kind == new.kind:  # dicts of different kinds have different statics
        for name in {**old.statics, **new.statics}:
            before, after = old.statics.get(name, ABSENT), new.statics.get(name, ABSENT)
            result = compare_statics(before, after)
            if result != "same":
                is_optimiser = _is_optimiser(before) and _is_optimiser(after)
                texts = _changed_settings(before, after) if is_optimiser else (static_text(before), static_text(after))
                kind: MismatchKind = "optimiser" if is_optimiser else "static"
                is_lone = ABSENT in (before, after) and is_replaced and not is_same
                fix = OPTIMISER if is_optimiser else STATIC
                yield Mismatch(f"{new.path}.{name}", kind, *texts, result == "similar" or is_lone, fix)


def _only_in(manifest: Manifest, other: Manifest) -> Iterator[tuple[str, str, bool]]:
    """Paths and texts of leaves that the other side lacks; and of nodes with statics, unless their leaves tell.

    The third value is whether it is a node.
    """
    nodes, leaves = ({record.name for record in records} for records in (other.nodes, other.leaves))
    lone = [node for node in manifest.nodes if node.statics and node.name not in nodes]
    names = [leaf.name.split(".") for leaf in manifest.leaves] if lone else []
    with_leaves = {name for steps in names for name in itertools.accumulate(steps, join_name)}
    for node in lone:
        if node.name not in with_leaves:
            statics = (f"{name}={static_text(value)}" for name, value in node.statics.items())
            yield node.shown_path, f"{node.cls}({', '.join(statics)})", True
    for leaf in manifest.leaves:
        if leaf.name not in leaves:
            yield leaf.path, str(leaf.form), False


# Statics as JSON


def compare_statics(saved: Any, wanted: Any) -> str:
    """Compare two encoded statics: "same", "similar" if only descriptions or moved names differ, or "different"."""
    if type(saved) is not type(wanted):
        return "different"
    if not isinstance(saved, list):
        return "same" if repr(saved) == repr(wanted) else "different"
    if saved[:1] != wanted[:1] or len(saved) != len(wanted):
        return "different"
    kind = saved[0] if saved and isinstance(saved[0], str) else None
    if kind == "described":
        return "same" if saved[2:] == wanted[2:] else "similar"
    pairs, each = list(zip(saved[1:], wanted[1:], strict=True)), ["same"]
    if kind in _NAMED and pairs and all(isinstance(part, str) for part in pairs[0]):
        name, other = pairs.pop(0)
        if name != other:
            each.append("similar" if may_be_same_name(name, other) else "different")
    return max([*each, *(compare_statics(*pair) for pair in pairs)], key=("same", "similar", "different").index)


def static_text(form: Any) -> str:
    """A static in Python syntax; descriptions with their digests."""
    return "nothing" if form is ABSENT else encoded_text(form)


def _is_optimiser(form: Any) -> bool:
    match form:
        case ["namedtuple", ["name", str(name)], *_]:
            return name.startswith("optax.") and ":GradientTransformation" in name
        case _:
            return False


def _changed_settings(saved: Any, wanted: Any) -> tuple[str, str]:
    """The settings that differ between two optimisers; empty if none is known, or they are not comparable."""
    pairs = list(zip(_settings_in(saved), _settings_in(wanted), strict=False))
    if any(one.partition("=")[0] != other.partition("=")[0] for one, other in pairs):
        return "", ""
    changed = dict.fromkeys(pair for pair in pairs if pair[0] != pair[1])
    return ", ".join(one for one, _ in changed), ", ".join(other for _, other in changed)


def _settings_in(form: Any) -> list[str]:
    match form:
        case ["described", _, _, [*settings]]:
            return list(map(str, settings))
        case [*parts]:
            return [setting for part in parts for setting in _settings_in(part)]
        case _:
            return []


# Leaves


def _form_mismatches(one: LeafRecord, other: LeafRecord, *, is_abstract: bool, allow_cast: bool) -> Iterator[Mismatch]:
    saved, wanted, path = one.form, other.form, other.path
    if _is_conversion_of_jax(saved, wanted, is_abstract=is_abstract):
        saved = saved._replace(kind=wanted.kind, dtype=wanted.dtype)
    fix = first_text(FORM, saved, wanted) or CAST
    both_arrays = ARRAYS.issuperset({saved.kind, wanted.kind})
    if saved.key != wanted.key or (saved.kind != wanted.kind and not both_arrays and not allow_cast):
        yield Mismatch(path, "kind", str(saved), str(wanted), fix=fix)
        return
    if saved.shape != wanted.shape:
        yield Mismatch(path, "shape", str(saved.shape), str(wanted.shape), fix=fix)
    if saved.dtype != wanted.dtype and not (allow_cast and keeps_kind(saved.dtype, wanted.dtype)):
        yield Mismatch(path, "dtype", saved.dtype, wanted.dtype, fix=fix)


def _is_conversion_of_jax(saved: Form, wanted: Form, *, is_abstract: bool) -> bool:
    """Whether `jit` and `eval_shape` make such an array of such a number, or the number became one in a step.

    They narrow 64 bits by default; so do arrays of numpy in a template of the same function.
    """
    kinds = {saved.kind, wanted.kind}
    if saved.shape != wanted.shape:
        return False
    if "array" in kinds and kinds & NUMBERS:
        number, array = (saved, wanted) if wanted.kind == "array" else (wanted, saved)
        return array.dtype in {number.dtype, NARROWED.get(number.dtype)}
    return is_abstract and saved.kind in ON_HOST and wanted.dtype == jax_dtype(saved.dtype)


def part_advice(saved: Manifest, wanted: Manifest) -> list[str]:
    """The fix for loading a model from a training state, or the reverse."""
    ours, theirs = ([_class_key(node) for node in manifest.nodes] for manifest in (saved, wanted))
    if not ours or not theirs or ours[0] == theirs[0]:
        return []
    parts = [node.name for node, key in zip(saved.nodes, ours, strict=True) if key == theirs[0]]
    inside = [node.path for node, key in zip(wanted.nodes, theirs, strict=True) if key == ours[0]]
    if parts:
        others = f" Others: {first_names(map(repr, parts[1:]))}." if parts[1:] else ""
        what = wanted.nodes[0].cls or f"a {wanted.nodes[0].kind} with these keys"
        return [f"The checkpoint contains {what} as a part: part={parts[0]!r}.{others}"]
    return [f"Only a part of the tree was saved. Load into that part: like=tree{inside[0]}."] if inside else []


def _class_key(node: NodeRecord) -> object:
    """Equal for nodes of classes with the same name in any module, and for dicts with the same keys."""
    return node.cls.rpartition(":")[2] if node.cls else (node.kind, {*node.children})
