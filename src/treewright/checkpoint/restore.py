"""A tree from the leaves of a checkpoint, whole or a part: in the form of another tree, or by the manifest alone."""

import dataclasses
import functools
import importlib.util
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Literal, Protocol, TypeVar, cast

import jax

from treewright._values.reach import class_of
from treewright._values.text import did_you_mean, first_names, first_of
from treewright.checkpoint.compare import (
    Mismatch,
    Moves,
    alike,
    leaf_mismatches,
    lines_of,
    node_mismatches,
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


class Reader(Protocol):
    """An engine: reads arrays that a manifest lists, each verified by its digest.

    With each goes the leaf of the tree that it is for, whose sharding it may have at once, or None.
    """

    def __call__(self, wanted: Iterable[tuple[Leaf, Leaf | None]], /) -> Iterator[tuple[list[Leaf], list[Any]]]:
        """The arrays, some at a time and in any order, each with what the manifest says of it."""
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
    whole = {leaf.steps[depth:]: leaf for leaf in manifest.leaves if leaf.steps[:depth] == root}
    parts = {leaf.steps: dataclasses.replace(leaf, steps=steps, tied=leaf.array) for steps, leaf in whole.items()}
    branches = tuple(
        dataclasses.replace(branch, steps=branch.steps[depth:])
        for branch in manifest.branches
        if branch.steps[:depth] == root
    )

    def read_part(wanted: Iterable[tuple[Leaf, Leaf | None]]) -> Iterator[tuple[list[Leaf], list[Any]]]:
        for leaves, arrays in read((whole[leaf.steps], target) for leaf, target in wanted):
            yield [parts[leaf.steps] for leaf in leaves], arrays

    return dataclasses.replace(manifest, branches=branches, leaves=tuple(parts.values())), read_part


# Into a tree


def restored(manifest: Manifest, read: Reader, like: T, options: LoadOptions) -> T:
    """The tree of a checkpoint, with the structure, the statics and the placement of `like`.

    Raises:
        CheckpointMismatchError: If they differ in what the options do not allow; no array has been read then, unless
            `migrate` had to see them.
        CheckpointDamagedError: If an array is not what was saved.
    """
    target, originals = target_of(like), manifest.leaves
    manifest = renamed_manifest(manifest, options.renamed or {})
    moves = Moves.between(manifest, target)
    let_through, refused = _sorted(options, node_mismatches(manifest, target, moves.fields), moves.mismatches)
    targets = {leaf.name: leaf for leaf in target.leaves}
    if options.migrate is None:
        saved = {leaf.name: leaf for leaf in manifest.leaves if leaf.name not in moves.to_static}
        wanted = {name: leaf for name, leaf in targets.items() if name not in moves.children}
        refused += leaf_mismatches(saved, wanted, allow_cast=options.allow_cast, strict=options.strict)
    refuse_mismatches(refused)
    values = _values(zip(originals, manifest.leaves, strict=True), targets, moves, read, options)
    also_let_through, refused = _sorted(options, moves.static_mismatches(values))
    refuse_mismatches(refused)
    _warn([*let_through, *also_let_through], options)
    values = {name: value for name, value in values.items() if name not in moves.to_static}
    values |= moves.placed_children(targets)
    if options.migrate is not None:
        return filled(options.migrate(values), like, options)
    tree = _with_leaves(like, target, values)
    dropped = [leaf for leaf in manifest.leaves if leaf.name not in targets and leaf.name not in moves.to_static]
    initial = [leaf for leaf in target.leaves if leaf.name not in values]
    _tell_partial(len(values), dropped, initial, [mismatch for mismatch in let_through if mismatch.kind != "static"])
    return cast("T", tree)


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


def _tell_partial(taken: int, dropped: Iterable[Leaf], initial: Iterable[Leaf], others: Iterable[object] = ()) -> None:
    """Warn of what `strict=False` let through, if anything.

    Args:
        taken: How many leaves were loaded.
        dropped: Leaves that were saved, and for which the tree has no place.
        initial: Leaves of the tree that were not saved.
        others: Classes that differ.
    """
    kinds = (
        ("Dropped, since the tree has no place for them:", [f"{leaf.path}: {leaf.form}" for leaf in dropped]),
        ("Not saved, so they have the value that they had in the tree:", [f"{x.path}: {x.form}" for x in initial]),
        ("Of other classes:", [str(mismatch) for mismatch in others]),
    )
    parts = ["\n  ".join([title, *first_of(lines)]) for title, lines in kinds if lines]
    if parts:
        leaves = "1 leaf was loaded" if taken == 1 else f"{taken} leaves were loaded"
        warn("\n".join([f"Not all of the checkpoint fitted the tree (strict=False); {leaves}.", *parts]))


def _values(
    leaves: Iterable[tuple[Leaf, Leaf]], targets: Mapping[str, Leaf], moves: Moves, read: Reader, options: LoadOptions
) -> dict[str, Any]:
    """The saved leaves by name: those that the tree has a place for, or all of them for `migrate`.

    Each comes as it was saved, since the engines know it by that name, and as it is called now.
    """
    needed = {
        original.name: (original, leaf)
        for original, leaf in leaves
        if options.migrate is not None or leaf.name in targets or leaf.name in moves.to_static
    }
    if options.migrate is not None or not any(original.tied for original, _ in needed.values()):
        read_as = {name: name for name in needed}  # `migrate` may change one in place
    else:
        read_as = _read_as((original, _place_of(targets.get(leaf.name))) for original, leaf in needed.values())
    values: dict[str, Any] = {}
    wanted = [needed[name] for name in dict.fromkeys(read_as.values())]
    for originals, arrays in read((original, targets.get(leaf.name)) for original, leaf in wanted):
        becoming = [_becoming(needed[original.name][1], targets, options) for original in originals]
        values.update(zip((original.name for original in originals), restored_leaves(arrays, becoming), strict=True))
    return {leaf.name: values[read_as[name]] for name, (_, leaf) in needed.items()}


def _read_as(leaves: Iterable[tuple[Leaf, Hashable]]) -> dict[str, str]:
    """By the names of leaves, those of the leaves that are read for them: one for all that are to be one array."""
    first: dict[tuple[Steps, Hashable], str] = {}
    return {leaf.name: first.setdefault((leaf.array, place), leaf.name) for leaf, place in leaves}


def _place_of(target: Leaf | None) -> Hashable:
    """What has to be the same of two leaves of a tree, so that one array may stand for both.

    A live tree says itself whether it has one array there. Two can be donated, and one can't be twice.
    """
    if target is None or isinstance(target.value, jax.ShapeDtypeStruct):
        return target and (target.form, sharding_of(target))
    return id(target.value)


def _becoming(leaf: Leaf, targets: Mapping[str, Leaf], options: LoadOptions) -> Leaf:
    """What a saved leaf is to become. For `migrate`, and to be compared with a static, arrays become numpy arrays.

    And refs what they hold.
    """
    if options.migrate is None and leaf.name in targets:
        target = targets[leaf.name]
        if isinstance(target.value, jax.ShapeDtypeStruct):  # which does not say whether it stands for a ref
            return dataclasses.replace(target, form=target.form._replace(ref=leaf.form.ref))
        return target
    form = leaf.form._replace(kind="numpy" if leaf.form.kind == "array" else leaf.form.kind, ref=False)
    return dataclasses.replace(leaf, form=form)


def filled(values: Mapping[str, Any], like: T, options: LoadOptions) -> T:
    """A tree like `like` with copies of these values, by flat name.

    Raises:
        CheckpointMismatchError: If names, shapes, dtypes or kinds differ in what the options do not allow.
        CheckpointError: If a value can't be a leaf, or a leaf without a value is abstract in the tree.
    """
    given: dict[str, Leaf] = {}
    for name, value in values.items():
        try:
            given[name] = Leaf((name,), name, form_of(value), value=value)
        except CanNotBeSavedError as problem:
            raise CheckpointError(f"The value named {name!r} {problem}.") from problem
    target = target_of(like)
    wanted = {leaf.name: leaf for leaf in target.leaves}
    refuse_mismatches(list(leaf_mismatches(given, wanted, allow_cast=options.allow_cast, strict=options.strict)))
    becoming = [leaf for leaf in target.leaves if leaf.name in given]
    arrays = [_copied(stored(given[leaf.name].value)) for leaf in becoming]
    leaves = dict(zip((leaf.name for leaf in becoming), restored_leaves(arrays, becoming), strict=True))
    tree = _with_leaves(like, target, leaves)
    dropped = [leaf for name, leaf in given.items() if name not in wanted]
    _tell_partial(len(leaves), dropped, [leaf for leaf in target.leaves if leaf.name not in leaves])
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
    read_as = _read_as((leaf, None) for leaf in manifest.leaves)
    values: dict[str, Any] = {}
    for leaves, arrays in read((leaf, None) for leaf in manifest.leaves if read_as[leaf.name] == leaf.name):
        values.update(zip((leaf.name for leaf in leaves), restored_leaves(arrays, leaves), strict=True))
    return parts.part((), {leaf.steps: values[read_as[leaf.name]] for leaf in manifest.leaves})


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
