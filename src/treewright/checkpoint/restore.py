"""A tree from the leaves of a checkpoint, whole or a part: in the form of another tree, or by the manifest alone."""

import dataclasses
import functools
import importlib.util
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Literal, Protocol, TypeVar, cast

import jax

from treewright._core.functions import class_of
from treewright._core.text import counted, did_you_mean, first_names, first_of, first_text
from treewright.checkpoint.compare import (
    Mismatch,
    Moves,
    Pair,
    alike,
    leaf_mismatches,
    lines_of,
    node_mismatches,
    paired,
    refuse_mismatches,
    renamed_manifest,
    shown_static,
)
from treewright.checkpoint.leaves import CanNotBeSavedError, Leaf, Steps, form_of, restored_leaves, sharding_of, stored
from treewright.checkpoint.manifest import DICTS, Branch, Manifest
from treewright.checkpoint.tree import ReadingCodec, WritingCodec, class_name, refuse, target_of
from treewright.errors import CheckpointError, CheckpointWarning, StaticSerializationError, warn_user

T = TypeVar("T")
OnStatic = Literal["error", "warn", "ignore"]
Migrate = Callable[[dict[str, Any]], Mapping[str, Any]]
Modules = str | ModuleType | Sequence[str | ModuleType]

ALONE: Any = ...  # in place of `like`: None is a tree


@dataclasses.dataclass(frozen=True, slots=True)
class LoadOptions:
    """How much a checkpoint may differ from the tree that it goes into, and what else `load` was told."""

    on_static: OnStatic = "error"
    allow_cast: bool = False
    strict: bool = True
    renamed: Mapping[str, str] | None = None
    migrate: Migrate | None = None
    part: str | None = None
    modules: Modules = ()
    statics: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.on_static not in {"error", "warn", "ignore"}:
            raise ValueError(f"on_static takes 'error', 'warn' or 'ignore', got {self.on_static!r}.")
        if not isinstance(cast("object", self.part), str | None):
            raise TypeError(f"part= takes the flat name of one part, such as 'params', got {first_text(self.part)}.")


Wanted = tuple[Leaf, Leaf | None]  # a leaf that was saved, and what it becomes, whose sharding it may have at once


class Reader(Protocol):
    """An engine: reads arrays that a manifest lists, each verified by its digest."""

    def __call__(self, wanted: Iterable[Wanted], /) -> Iterator[tuple[list[Wanted], list[Any]]]:
        """The arrays, some at a time and in any order, each with what was asked."""
        ...


# What is taken


def taken(manifest: Manifest, read: Reader, like: Any, options: LoadOptions) -> Any:
    """The tree of a checkpoint, or the part of it that a path leads to.

    Raises:
        CheckpointMismatchError: If it does not fit `like`.
        CheckpointDamagedError: If an array is not what was saved.
        CheckpointError: If there is no such part, or the tree can't be made.
        TypeError: If options were given that only loading with `like`, or only loading without, has.
    """
    if like is not ALONE and (options.modules or options.statics):
        raise TypeError(
            "modules= and statics= say what a tree is made of if there is no like=. With like=, classes and statics "
            "are its own: leave them out."
        )
    if isinstance(like, type):
        made = f"like=jax.eval_shape(lambda: {like.__qualname__}(...))"
        raise TypeError(f"like= is the class {like.__qualname__}. Give an instance, or what describes one: {made}.")
    part, modules, statics = options.part, options.modules, options.statics
    if like is ALONE and options != LoadOptions(part=part, modules=modules, statics=statics):
        raise TypeError(
            "on_static=, allow_cast=, strict=, renamed= and migrate= say how a checkpoint may differ from like=: give "
            "a tree to load into."
        )
    if part is not None:
        manifest, read = _of_part(manifest, read, part)
    if like is not ALONE:
        return restored(manifest, read, like, options)
    allowed = [modules] if isinstance(modules, str | ModuleType) else modules
    return restored_alone(manifest, read, ReadingCodec(["treewright", *_optax(manifest), *allowed]), statics or {})


def _optax(manifest: Manifest) -> list[str]:
    """optax, if the checkpoint holds a state of it and it is installed: its states are named tuples of arrays."""
    named = any((branch.cls or "").startswith("optax.") for branch in manifest.branches)
    return ["optax"] if named and importlib.util.find_spec("optax") else []


def _of_part(manifest: Manifest, read: Reader, part: str) -> tuple[Manifest, Reader]:
    """The manifest below a place, as of a tree of its own, and a reader of it."""
    every = [branch.steps for branch in manifest.branches] + [leaf.steps for leaf in manifest.leaves]
    named = {".".join(steps): steps for steps in every}
    if part not in named:
        raise CheckpointError(f"part={part!r}: nothing that was saved has this name{did_you_mean(part, named)}.")
    root = named[part]
    depth = len(root)
    whole = [leaf for leaf in manifest.leaves if leaf.steps[:depth] == root]
    leaves = tuple(dataclasses.replace(leaf, steps=leaf.steps[depth:], tied=leaf.array) for leaf in whole)
    branches = tuple(
        dataclasses.replace(branch, steps=branch.steps[depth:])
        for branch in manifest.branches
        if branch.steps[:depth] == root
    )
    return dataclasses.replace(manifest, branches=branches, leaves=leaves), _by_other_names(read, whole, leaves)


def _by_other_names(read: Reader, saved: Iterable[Leaf], called: Iterable[Leaf]) -> Reader:
    """A reader of leaves that are called otherwise than they were when they were saved."""
    pairs = list(zip(saved, called, strict=True))
    then, now = {leaf.name: old for old, leaf in pairs}, {old.name: leaf for old, leaf in pairs}

    def read_by_other_names(wanted: Iterable[Wanted]) -> Iterator[tuple[list[Wanted], list[Any]]]:
        for group, arrays in read((then[leaf.name], becoming) for leaf, becoming in wanted):
            yield [(now[leaf.name], becoming) for leaf, becoming in group], arrays

    return read_by_other_names


# Into a tree


def restored(manifest: Manifest, read: Reader, like: T, options: LoadOptions) -> T:
    """The tree of a checkpoint, with the structure, the statics and the placement of `like`.

    Raises:
        CheckpointMismatchError: If they differ in what the options do not allow; no array has been read then, unless
            `migrate` had to see them.
        CheckpointDamagedError: If an array is not what was saved.
    """
    target = target_of(like)
    if options.renamed:
        saved, manifest = manifest.leaves, renamed_manifest(manifest, options.renamed)
        read = _by_other_names(read, saved, manifest.leaves)
    moves = Moves.between(manifest, target)
    let_through, refused = _sorted(options, node_mismatches(manifest, target, moves.fields), moves.mismatches)
    pairs = paired(_without(manifest.leaves, moves.to_static), _without(target.leaves, moves.children))
    if options.migrate is not None:
        wanted = [(leaf, _on_host(leaf)) for leaf in manifest.leaves]
    else:
        refused += leaf_mismatches(pairs, allow_cast=options.allow_cast, strict=options.strict)
        wanted = [(leaf, _becoming(leaf, its)) for leaf, its in pairs if leaf is not None and its is not None]
        wanted += [(leaf, _on_host(leaf)) for leaf in manifest.leaves if leaf.name in moves.to_static]
    refuse_mismatches(refused)
    values = _values(wanted, read, ties=options.migrate is None)
    also_let_through, refused = _sorted(options, moves.static_mismatches(values))
    refuse_mismatches(refused)
    _warn([*let_through, *also_let_through], options)
    for name in moves.to_static:
        del values[name]
    values |= moves.placed_children(target)
    if options.migrate is not None:
        migrated: Any = options.migrate(values)
        if not isinstance(migrated, Mapping):
            raise TypeError(
                f"migrate= returned {first_text(migrated)}. It is given the saved values by flat name, and returns a "
                f"dict of what the tree is to have, by flat name too."
            )
        return filled(cast("Any", migrated), like, options)
    tree = _with_leaves(like, target, values)
    _tell_partial(len(values), pairs, [mismatch for mismatch in let_through if mismatch.kind != "static"])
    return cast("T", tree)


def _without(leaves: Sequence[Leaf], names: Container[str] | None) -> Sequence[Leaf]:
    return [leaf for leaf in leaves if leaf.name not in names] if names else leaves


def _sorted(options: LoadOptions, *mismatches: Iterable[Mismatch]) -> tuple[list[Mismatch], list[Mismatch]]:
    """Differences of classes and statics: those that are let through, and those that are not."""
    let_through: list[Mismatch] = []
    refused: list[Mismatch] = []
    for mismatch in itertools.chain(*mismatches):
        static = mismatch.kind == "static"
        passes = (mismatch.soft or options.on_static != "error") if static else not options.strict
        (let_through if passes else refused).append(mismatch)
    return let_through, refused


def _warn(let_through: Iterable[Mismatch], options: LoadOptions) -> None:
    statics = [mismatch for mismatch in let_through if mismatch.kind == "static"]
    if statics and options.on_static != "ignore":
        warn("\n  ".join(["The checkpoint was saved with other statics; the tree keeps its own:", *lines_of(statics)]))


def warn(text: str) -> None:
    """Warn with the user's line: the first outside of Treewright."""
    warn_user(text, CheckpointWarning)


def _tell_partial(taken: int, pairs: Sequence[Pair], others: Iterable[object] = ()) -> None:
    """Warn of what `strict=False` let through, if anything.

    Args:
        taken: How many leaves were loaded.
        pairs: Leaves that were saved, and those of the tree.
        others: Classes that differ.
    """
    dropped = [saved for saved, wanted in pairs if saved is not None and wanted is None]
    initial = [wanted for saved, wanted in pairs if saved is None and wanted is not None]
    kinds = (
        ("Dropped, since the tree has no place for them:", [f"{leaf.path}: {leaf.form}" for leaf in dropped]),
        ("Not saved, so they have the value that they had in the tree:", [f"{x.path}: {x.form}" for x in initial]),
        ("Of other classes:", [str(mismatch) for mismatch in others]),
    )
    parts = ["\n  ".join([title, *first_of(lines)]) for title, lines in kinds if lines]
    if parts:
        kept = first_names((wanted.path for saved, wanted in pairs if saved is not None and wanted is not None), 20)
        leaves = f"{counted(taken, 'leaf was', 'leaves were')} loaded{f': {kept}' if kept else '.'}"
        warn("\n".join([f"Not all of the checkpoint fitted the tree (strict=False); {leaves}", *parts]))


def _values(wanted: list[tuple[Leaf, Leaf]], read: Reader, *, ties: bool) -> dict[str, Any]:
    """What saved leaves become, by name.

    Args:
        wanted: The leaves, and what each is to become.
        read: How their arrays are read.
        ties: Whether leaves that were one array are one again, where that can be.
    """
    read_as: Mapping[str, str] = {}
    once: list[Wanted] = list(wanted)
    if ties and any(leaf.tied for leaf, _ in wanted):
        read_as = _read_as((leaf, _place_of(becoming)) for leaf, becoming in wanted)
        once = [one for one in once if read_as[one[0].name] == one[0].name]
    values: dict[str, Any] = {}
    for group, arrays in read(once):
        leaves = restored_leaves(arrays, [becoming or leaf for leaf, becoming in group])
        values.update(zip([leaf.name for leaf, _ in group], leaves, strict=True))
    return {leaf.name: values[read_as.get(leaf.name, leaf.name)] for leaf, _ in wanted}


def _read_as(leaves: Iterable[tuple[Leaf, Hashable]]) -> dict[str, str]:
    """By the names of leaves, those of the leaves that are read for them: one for all that are to be one array."""
    first: dict[tuple[Steps, Hashable], str] = {}
    return {leaf.name: first.setdefault((leaf.array, place), leaf.name) for leaf, place in leaves}


def _place_of(becoming: Leaf) -> Hashable:
    """What has to be the same of two leaves of a tree, so that one array may stand for both.

    A live tree says itself whether it has one array there. Two can be donated, and one can't be twice.
    """
    if becoming.value is None or isinstance(becoming.value, jax.ShapeDtypeStruct):
        return becoming.form, sharding_of(becoming)
    return id(becoming.value)


def _becoming(saved: Leaf, target: Leaf) -> Leaf:
    """What a saved leaf is to become: that of the tree, which may not say that it stands for a ref."""
    if saved.form.ref and isinstance(target.value, jax.ShapeDtypeStruct):
        return dataclasses.replace(target, form=target.form._replace(ref=True))
    return target


def _on_host(saved: Leaf) -> Leaf:
    """What a leaf becomes for `migrate`, or to be compared with a static: a numpy array, of a ref what it holds."""
    form = saved.form._replace(kind="numpy" if saved.form.kind == "array" else saved.form.kind, ref=False)
    return dataclasses.replace(saved, form=form)


def filled(values: Mapping[str, Any], like: T, options: LoadOptions) -> T:
    """A tree like `like` with copies of these values, by flat name.

    Raises:
        CheckpointMismatchError: If names, shapes, dtypes or kinds differ in what the options do not allow.
        CheckpointError: If a value can't be a leaf, or a leaf without a value is abstract in the tree.
    """
    given: dict[str, Leaf] = {}
    for name, value in values.items():
        if not isinstance(cast("object", name), str):
            raise TypeError(f"A value is named by text, such as 'layers.0.kernel', got {first_text(name)}.")
        try:
            given[name] = Leaf((name,), name, form_of(value), value=value)
        except CanNotBeSavedError as problem:
            raise CheckpointError(f"The value named {name!r} {problem}.") from problem
    target = target_of(like)
    pairs = paired(list(given.values()), target.leaves)
    refuse_mismatches(list(leaf_mismatches(pairs, allow_cast=options.allow_cast, strict=options.strict)))
    becoming = [leaf for leaf in target.leaves if leaf.name in given]
    arrays = [_copied(stored(given[leaf.name].value)) for leaf in becoming]
    leaves = dict(zip((leaf.name for leaf in becoming), restored_leaves(arrays, becoming), strict=True))
    tree = _with_leaves(like, target, leaves)
    _tell_partial(len(leaves), pairs)
    return cast("T", tree)


def _copied(array: Any) -> Any:
    return array if isinstance(array, jax.Array) else array.copy()  # the caller may change theirs


def _with_leaves(like: Any, target: Manifest, values: Mapping[str, Any]) -> Any:
    """The tree with these leaves, by name; the others have to have a value already."""
    kept = [leaf for leaf in target.leaves if leaf.name not in values]
    abstract = [leaf.path for leaf in kept if isinstance(leaf.value, jax.ShapeDtypeStruct)]
    if abstract:
        raise CheckpointError(
            f"{', '.join(first_of(abstract))}: not saved, and abstract in the tree, so there is no value. Load into a "
            f"live tree, or give values in migrate=."
        )
    leaves = [values.get(leaf.name, leaf.value) for leaf in target.leaves]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


# From the manifest alone


def restored_alone(
    manifest: Manifest, read: Reader, codec: ReadingCodec, statics: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """The tree of a checkpoint, of classes and functions that the codec finds.

    Args:
        manifest: What the checkpoint says.
        read: How its arrays are read.
        codec: Where classes and functions may come from.
        statics: Values of statics that were saved as descriptions, by flat name.

    Raises:
        CheckpointError: If one can't be found or made. No array has been read then.
        CheckpointDamagedError: If an array is not what was saved.
    """
    parts = _Parts(manifest, codec, statics)
    values = _values([(leaf, leaf) for leaf in manifest.leaves], read, ties=True)
    return parts.part((), {leaf.steps: values[leaf.name] for leaf in manifest.leaves})


class _Parts:
    """Everything but the leaves, checked before an array is read; `part` puts them in."""

    def __init__(self, manifest: Manifest, codec: ReadingCodec, given: Mapping[str, Any]) -> None:
        """Find all classes and statics.

        Raises:
            CheckpointError: If one can't be found or made; the message lists all of them.
        """
        self.branches = {branch.steps: branch for branch in manifest.branches}
        self.codec = codec
        self.given = dict(given)
        self.made: dict[Steps, Any] = {}
        problems: dict[str, list[str]] = {}
        for branch in manifest.branches:
            try:
                self.made[branch.steps] = self.prepared(branch)
            except Exception as error:  # noqa: BLE001  a file may say anything, and all its problems come at once
                problems.setdefault(str(error), []).append(branch.path or "the tree")
        lines = [f"{first_names(paths)}: {problem}" for problem, paths in problems.items()]
        lines += [f"statics={{{name!r}: ...}}: no static of this name was described" for name in self.given]
        refuse("The tree can't be made from its file alone:", lines)

    def prepared(self, branch: Branch) -> Any:
        """What a container needs besides its children: keys, or the class and the statics."""
        if branch.kind in DICTS:
            keys = self.codec.decode_keys(cast("tuple[Any, ...]", branch.keys))
            if len(dict.fromkeys(keys)) != len(keys):
                raise CheckpointError("two of its keys are the same.")
            return keys, self.empty_dict(branch)
        if branch.kind == "namedtuple":
            cls = self.codec.find_class(str(branch.cls), "named tuple", tuple, "_fields")
            if cls._fields != branch.children:
                raise CheckpointError(f"{branch.cls} has the fields {', '.join(cls._fields)} now.")
            return cls
        if branch.kind == "node":
            return self.node(branch)
        if branch.kind == "other":
            raise CheckpointError(f"a {branch.cls} is neither a node nor a container of Python: load(path, like=...).")
        return None

    def empty_dict(self, branch: Branch) -> Any:
        """What makes an empty dict of this kind."""
        if branch.kind != "defaultdict":
            return OrderedDict if branch.kind == "OrderedDict" else dict
        empty: Any = functools.partial(cast("Any", defaultdict), self.codec.decode(branch.statics["default_factory"]))
        empty()  # a forged factory is none: said here, before an array is read
        return empty

    def node(self, branch: Branch) -> Any:
        """The class of a node and its statics."""
        cls = self.codec.find_class(str(branch.cls), "node", object)
        spec: Any = cls.__node_spec__
        now = {field.name: field.kind == "static" for field in spec.fields}
        then = {name: kind == "static" for name, kind in branch.fields.items()}
        if now != then or {field.name for field in spec.children} != set(branch.children):
            raise CheckpointError(
                f"{class_name(cls)} has other fields now: {', '.join(now)}, saved were {', '.join(then)}. "
                f"Load into a tree of the new class: load(path, like=...)."
            )
        statics = {name: self.static(branch, name, encoded) for name, encoded in branch.statics.items()}
        return cls, self.codec.decode_statics(cls, branch.statics, statics)

    def static(self, branch: Branch, name: str, encoded: Any) -> Any:
        """The value of a static: the one that was given, if it was only described."""
        if not _is_described(encoded):
            try:
                return self.codec.decode(encoded)
            except (CheckpointError, StaticSerializationError) as error:
                raise CheckpointError(f"the static {name}: {error}") from error
        place = ".".join((*branch.steps, name))
        if place not in self.given:
            raise CheckpointError(
                f"the static {name} was saved as a description only: {shown_static(encoded)[:200]}. Give its value: "
                f"statics={{{place!r}: ...}}, or a tree that has it: load(path, like=...)."
            )
        value = self.given.pop(place)
        if alike(encoded, now := WritingCodec().encode(value)) != "same":
            warn(f"{branch.path}.{name}: saved was {shown_static(encoded)[:200]}, given is {shown_static(now)[:200]}")
        return value

    def part(self, steps: Steps, values: Mapping[Steps, Any]) -> Any:
        """The part of the tree that begins here."""
        if steps in values:
            return values[steps]
        branch, made = self.branches[steps], self.made[steps]
        if branch.kind == "node":
            cls, statics = made
            names = [field.name for field in cls.__node_spec__.children]
            return cls.tree_unflatten(statics, [self.part((*steps, name), values) for name in names])
        children = tuple(self.part((*steps, child), values) for child in branch.children)
        match branch.kind:
            case "none":
                return None
            case "list":
                return list(children)
            case "tuple":
                return children
            case kind if kind in DICTS:
                keys, empty = made
                filled: Any = empty()
                filled.update(zip(keys, children, strict=True))
                return filled
            case _:
                return cast("Any", tuple).__new__(made, children)


def _is_described(encoded: Any) -> bool:
    if class_of(encoded) is dict:
        return any(map(_is_described, encoded.values()))
    return class_of(encoded) is list and (encoded[:1] == ["described"] or any(map(_is_described, encoded[1:])))
