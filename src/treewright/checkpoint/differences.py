"""Compare a checkpoint with a tree: differences of classes, statics and leaves by path, each with a fix."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, Literal

from treewright._base.lines import excerpts, first_lines
from treewright._base.text import cut_text, first_names
from treewright._json import OF_CLASS, encoded_text
from treewright._trees.diff import ABSENT
from treewright.checkpoint.arrays import ARRAYS, NARROWED, NUMBERS, keeps_kind
from treewright.checkpoint.manifest import LeafRecord, Manifest, NodeRecord, join_name
from treewright.checkpoint.tree import may_be_same_name
from treewright.errors import CheckpointMismatchError

MismatchKind = Literal["missing", "unexpected", "shape", "dtype", "kind", "class", "static", "optimiser"]

_LENGTH = 200  # characters of a static or a path in a message
_NAMED = frozenset({"name", *OF_CLASS})  # encoded statics that begin with a name

_FIXES: MappingProxyType[str, str] = MappingProxyType(
    {
        "missing": "If a leaf was renamed: renamed={'old.name': 'new.name'}. If it is new: add it in migrate=, or "
        "strict=False to keep the tree's value.",
        "unexpected": "If a leaf was removed: strict=False.",
        "shape": "Different shape: convert the array in migrate=.",
        "dtype": "Different dtype: allow_cast=True.",
        "cast": "Floats are not cast to ints, or complex numbers to real ones: convert the array in migrate=.",
        "kind": "A number instead of an array, or the reverse: allow_cast=True.",
        "key": "Different kind of key: create it in migrate= with jax.random.wrap_key_data or jax.random.key.",
        "class": "If a class moved: __checkpoint_name__ = '<the saved name>' in its body, or strict=False.",
        "optimiser": "Different optimiser: load only the parameters, part='params', and initialise its state again.",
        "static": "Different static: build the tree as it was saved, or on_static='warn' to keep the tree's static.",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between a checkpoint and a tree: its path, its kind, the saved value and the tree's.

    `is_warning` marks differences that are never errors: of a static without an exact encoding, such as a closure, and
    of a class or function that moved.

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

    @property
    def fix(self) -> str:
        """The option to pass, or the line to write."""
        if self.kind == "class" and self.saved.startswith("optax.") and self.wanted.startswith("optax."):
            return _FIXES["optimiser"]
        if self.kind == "kind" and "(key" in self.saved + self.wanted:
            return _FIXES["key"]
        loses = self.kind == "dtype" and not keeps_kind(self.saved, self.wanted)
        return _FIXES["cast" if loses else self.kind]


def raise_mismatches(mismatches: Sequence[Mismatch], first: Sequence[str] = ()) -> None:
    """Raise one error for all mismatches, if there are any, with `first` and the fix for each kind."""
    if mismatches:
        count = "a difference" if len(mismatches) == 1 else f"{len(mismatches):,} differences"
        lines = [
            f"The checkpoint does not fit the tree, {count}:",
            *(f"  {line}" for line in first_lines(list(map(str, mismatches)))),
        ]
        fixes = dict.fromkeys([*first, *(mismatch.fix for mismatch in mismatches)])
        message = "\n".join([*lines, "What to do:", *(f"  {fix}" for fix in fixes)])
        raise CheckpointMismatchError(message, tuple(mismatches))


def mismatches(saved: Manifest, wanted: Manifest, *, allow_cast: bool = False) -> Iterator[Mismatch]:
    """The differences of classes, statics and leaves, and the nodes and leaves that only one side has."""
    nodes = {node.name: node for node in wanted.nodes}
    for node in saved.nodes:
        if node.name in nodes:
            yield from _mismatches_in_place(node, nodes[node.name])
    for path, text in _only_in(saved, wanted):
        yield Mismatch(path, "unexpected", text, "nothing")
    for path, text in _only_in(wanted, saved):
        yield Mismatch(path, "missing", "nothing", text)
    leaves = {leaf.name: leaf for leaf in wanted.leaves}
    for leaf in saved.leaves:
        if leaf.name in leaves and leaf.form != leaves[leaf.name].form:
            yield from _form_mismatches(leaf, leaves[leaf.name], allow_cast=allow_cast)


def _mismatches_in_place(old: NodeRecord, new: NodeRecord) -> Iterator[Mismatch]:
    saved, wanted = old.cls or old.kind, new.cls or new.kind
    has_node = "node" in {old.kind, new.kind}
    moved = has_node and may_be_same_name(saved, wanted)
    if has_node:  # a script's own class may be imported elsewhere
        in_script = saved.startswith("__main__:") or wanted.startswith("__main__:")
        is_same = saved == wanted or (moved and in_script)
    else:  # for containers, only the class's own name counts
        is_same = None in {old.cls, new.cls} or saved.rpartition(":")[2] == wanted.rpartition(":")[2]
    if not is_same:
        yield Mismatch(new.shown_path, "class", saved, wanted, is_warning=moved)
    if has_node or old.kind == new.kind:  # dicts of different kinds have different statics
        for name in {**old.statics, **new.statics}:
            before, after = old.statics.get(name, ABSENT), new.statics.get(name, ABSENT)
            result = compare_statics(before, after)
            if result != "same":
                is_optimiser = _is_optimiser(before) and _is_optimiser(after)
                texts = _changed_settings(before, after) if is_optimiser else (static_text(before), static_text(after))
                kind: MismatchKind = "optimiser" if is_optimiser else "static"
                yield Mismatch(f"{new.path}.{name}", kind, *texts, is_warning=result == "similar")


def _only_in(manifest: Manifest, other: Manifest) -> Iterator[tuple[str, str]]:
    """Paths and texts of leaves that the other side lacks; and of nodes with statics, unless their leaves tell."""
    nodes, leaves = ({record.name for record in records} for records in (other.nodes, other.leaves))
    lone = [node for node in manifest.nodes if node.statics and node.name not in nodes]
    names = [leaf.name.split(".") for leaf in manifest.leaves] if lone else []
    with_leaves = {name for steps in names for name in itertools.accumulate(steps, join_name)}
    for node in lone:
        if node.name not in with_leaves:
            statics = (f"{name}={static_text(value)}" for name, value in node.statics.items())
            yield node.shown_path, f"{node.cls}({', '.join(statics)})"
    for leaf in manifest.leaves:
        if leaf.name not in leaves:
            yield leaf.path, str(leaf.form)


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


def _form_mismatches(one: LeafRecord, other: LeafRecord, *, allow_cast: bool) -> Iterator[Mismatch]:
    saved, wanted, path = one.form, other.form, other.path
    if saved.kind == "array" and wanted.kind in NUMBERS and saved.dtype in {wanted.dtype, NARROWED.get(wanted.dtype)}:
        saved = saved._replace(kind=wanted.kind, dtype=wanted.dtype)  # jit converts a number, to 32 bits by default
    both_arrays = ARRAYS.issuperset({saved.kind, wanted.kind})
    if saved.key != wanted.key or (saved.kind != wanted.kind and not both_arrays and not allow_cast):
        yield Mismatch(path, "kind", str(saved), str(wanted))
        return
    if saved.shape != wanted.shape:
        yield Mismatch(path, "shape", str(saved.shape), str(wanted.shape))
    if saved.dtype != wanted.dtype and not (allow_cast and keeps_kind(saved.dtype, wanted.dtype)):
        yield Mismatch(path, "dtype", saved.dtype, wanted.dtype)


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
