"""A tree from the leaves of a checkpoint: in the form of another, or from nothing."""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, cast

import jax

from treewright._values.reach import class_of
from treewright.checkpoint.compare import (
    Difference,
    Moves,
    leaf_differences,
    mismatch,
    node_differences,
    renamed_manifest,
)
from treewright.checkpoint.leaves import CanNotBeSavedError, Form, Placing, form_of, leaves_of, stored
from treewright.checkpoint.manifest import Branch, Leaf, Manifest, Steps
from treewright.checkpoint.tree import Place, ReadingCodec, Survey, class_name, survey
from treewright.errors import CheckpointError, CheckpointWarning

OnStatic = Literal["error", "warn", "ignore"]
Migrate = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How much a checkpoint may differ from the tree that it is loaded into."""

    on_static: OnStatic = "error"
    allow_cast: bool = False
    strict: bool = True
    renamed: Mapping[str, str] | None = None
    migrate: Migrate | None = None

    def __post_init__(self) -> None:
        if self.on_static not in {"error", "warn", "ignore"}:
            raise ValueError(f"on_static takes 'error', 'warn' or 'ignore', got {self.on_static!r}.")


class Reader(Protocol):
    """An engine: reads arrays that a manifest lists, each verified by its digest.

    With each goes the leaf of the template that it is for, whose sharding it may have at once, or None.
    """

    def __call__(self, wanted: Iterable[tuple[Leaf, Place | None]], /) -> Iterator[tuple[list[Leaf], list[Any]]]:
        """The arrays, some at a time and in any order, each with what the manifest says of it."""
        ...


def template(tree: Any) -> Survey:
    """A tree to load into, taken apart.

    Raises:
        CheckpointError: If a leaf of it is of no kind that can be loaded.
    """
    found = survey(tree, abstract=True)
    if found.problems:
        raise CheckpointError("\n  ".join(["Nothing can be loaded into this tree:", *found.problems]))
    return found


def restored(manifest: Manifest, read: Reader, like: Any, options: Options) -> Any:
    """The tree of a checkpoint, with the structure, the statics and the placement of `like`.

    Raises:
        CheckpointMismatchError: If they differ in what the options do not allow; no array has been read then, unless
            `migrate` had to see them.
        CheckpointDamagedError: If an array is not what was saved.
    """
    target = template(like)
    originals, manifest = manifest.leaves, renamed_manifest(manifest, options.renamed or {})
    moves = Moves.between(manifest, target)
    nodes = node_differences(manifest, target, moves.fields)
    through, hard = _sorted(options, nodes, moves.differences)
    if options.migrate is None:
        hard += _leaf_problems(manifest, target, moves, options)
    if hard:
        raise mismatch(hard)
    values = _values(zip(originals, manifest.leaves, strict=True), target, moves, read, options)
    more, hard = _sorted(options, moves.statics_that_differ(values))
    if hard:
        raise mismatch(hard)
    _warn([*through, *more], options)
    values = {name: value for name, value in values.items() if name not in moves.to_static}
    values |= moves.placed_children(target)
    if options.migrate is not None:
        return fitted(options.migrate(values), target, options)
    _refuse_abstract(place for place in target.leaves if place.name not in values)
    return jax.tree.unflatten(target.treedef, [values.get(place.name, place.value) for place in target.leaves])


def _sorted(options: Options, *found: Iterable[Difference]) -> tuple[list[Difference], list[Difference]]:
    """Differences of classes and statics: those that are let through, and those that are not."""
    through: list[Difference] = []
    hard: list[Difference] = []
    for difference in itertools.chain(*found):
        static = difference.kind == "static"
        passes = (difference.soft or options.on_static != "error") if static else not options.strict
        (through if passes else hard).append(difference)
    return through, hard


def _warn(let_through: Iterable[Difference], options: Options) -> None:
    statics = [f"  {difference}" for difference in let_through if difference.kind == "static"]
    if statics and options.on_static != "ignore":
        text = "\n".join(["The checkpoint was saved with other statics; the tree keeps its own:", *statics])
        warnings.warn(text, CheckpointWarning, stacklevel=4)


def _leaf_problems(manifest: Manifest, target: Survey, moves: Moves, options: Options) -> list[Difference]:
    saved = {leaf.name: (leaf.path, leaf.form) for leaf in manifest.leaves if leaf.name not in moves.to_static}
    wanted = {place.name: (place.path, place.form) for place in target.leaves if place.name not in moves.children}
    return list(leaf_differences(saved, wanted, allow_cast=options.allow_cast, strict=options.strict))


def _values(
    leaves: Iterable[tuple[Leaf, Leaf]], target: Survey, moves: Moves, read: Reader, options: Options
) -> dict[str, Any]:
    """The saved arrays by name: those that the tree has a place for, or all of them for `migrate`.

    Each leaf comes with what it was before it was renamed, since the engines know it by that.
    """
    places = {place.name: place for place in target.leaves}
    needed = {
        original.name: (original, leaf)
        for original, leaf in leaves
        if options.migrate is not None or leaf.name in places or leaf.name in moves.to_static
    }
    values: dict[str, Any] = {}
    for found, arrays in read((original, places.get(leaf.name)) for original, leaf in needed.values()):
        renamed = [needed[original.name][1] for original in found]
        placings = [_placing(leaf, places.get(leaf.name), options) for leaf in renamed]
        values.update(zip((leaf.name for leaf in renamed), leaves_of(arrays, placings), strict=True))
    return values


def _placing(leaf: Leaf, place: Place | None, options: Options) -> Placing:
    if place is not None and options.migrate is None:
        return Placing(place.form, place.value, place.path)
    # For `migrate`, or to be compared with a static: numpy arrays in place of those on a device.
    form = leaf.form._replace(kind="numpy") if leaf.form.kind == "array" else leaf.form
    return Placing(form, None, leaf.path)


# Fitting named values into a tree


def fitted(values: Mapping[str, Any], target: Survey, options: Options) -> Any:
    """The tree of `target` with copies of these values, by flat name.

    Raises:
        CheckpointMismatchError: If names, shapes, dtypes or kinds differ in what the options do not allow.
        CheckpointError: If a value is no leaf, or a leaf without a value is abstract in the tree.
    """
    given: dict[str, tuple[str, Form]] = {}
    for name, value in values.items():
        try:
            given[name] = (name, form_of(value))
        except CanNotBeSavedError as problem:
            raise CheckpointError(f"The value named {name!r} {problem}.") from problem
    wanted = {place.name: (place.path, place.form) for place in target.leaves}
    found = list(leaf_differences(given, wanted, allow_cast=options.allow_cast, strict=options.strict))
    if found:
        raise mismatch(found)
    _refuse_abstract(place for place in target.leaves if place.name not in values)
    places = [place for place in target.leaves if place.name in values]
    arrays = [_copied(stored(values[place.name])) for place in places]
    placings = [Placing(place.form, place.value, place.path) for place in places]
    leaves = dict(zip((place.name for place in places), leaves_of(arrays, placings), strict=True))
    return jax.tree.unflatten(target.treedef, [leaves.get(place.name, place.value) for place in target.leaves])


def _copied(array: Any) -> Any:
    return array if isinstance(array, jax.Array) else array.copy()  # the caller may change theirs


def _refuse_abstract(places: Iterable[Place]) -> None:
    """Leaves that get no value have to have one already."""
    abstract = [place.path for place in places if isinstance(place.value, jax.ShapeDtypeStruct)]
    if abstract:
        raise CheckpointError(
            f"{', '.join(abstract)}: not saved, and abstract in the tree, so there is no value. Load into a live tree, "
            f"or give values in migrate=."
        )


def rebuilt(manifest: Manifest, read: Reader, codec: ReadingCodec) -> Any:
    """The tree of a checkpoint, of classes and functions that the codec finds.

    Raises:
        CheckpointError: If one can't be found or made. No array has been read then.
        CheckpointDamagedError: If an array is not what was saved.
    """
    parts = _Parts(manifest, codec)
    values: dict[str, Any] = {}
    for leaves, arrays in read((leaf, None) for leaf in manifest.leaves):
        placings = [Placing(leaf.form, None, leaf.path) for leaf in leaves]
        values.update(zip((leaf.name for leaf in leaves), leaves_of(arrays, placings), strict=True))
    return parts.part((), values)


class _Parts:
    """Everything but the leaves, checked before an array is read; `part` puts them in."""

    def __init__(self, manifest: Manifest, codec: ReadingCodec) -> None:
        """Find all classes and statics.

        Raises:
            CheckpointError: If one can't be found or made; the message lists all of them.
        """
        self.branches = {branch.steps: branch for branch in manifest.branches}
        self.leaves = {leaf.steps: leaf for leaf in manifest.leaves}
        self.codec = codec
        self.made: dict[Steps, Any] = {}
        problems: list[str] = []
        for branch in manifest.branches:
            try:
                self.made[branch.steps] = self.prepared(branch)
            except Exception as error:  # noqa: BLE001  a file may say anything, and all its problems come at once
                problems.append(f"{branch.path or 'the tree'}: {error}")
        if problems:
            raise CheckpointError("\n  ".join(["The tree can't be made from its file alone:", *problems]))

    def prepared(self, branch: Branch) -> Any:
        """What a container needs besides its children: keys, or the class and the statics."""
        if branch.kind == "dict":
            keys = [self.codec.decode(key) for key in cast("tuple[Any, ...]", branch.keys)]
            if len(dict.fromkeys(keys)) != len(keys):
                raise CheckpointError("two of its keys are the same.")
            return keys
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
        for name, value in branch.statics.items():
            if _is_described(value):
                raise CheckpointError(f"the static {name} was saved as a description only: load(path, like=...).")
        return cls, self.codec.decode_statics(cls, dict(branch.statics))

    def part(self, steps: Steps, values: Mapping[str, Any]) -> Any:
        """The part of the tree that begins here."""
        leaf: Leaf | None = self.leaves.get(steps)
        if leaf is not None:
            return values[leaf.name]
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
            case "dict":
                return dict(zip(made, children, strict=True))
            case _:
                return cast("Any", tuple).__new__(made, children)


def _is_described(encoded: Any) -> bool:
    if class_of(encoded) is dict:
        return any(map(_is_described, encoded.values()))
    return class_of(encoded) is list and (encoded[:1] == ["described"] or any(map(_is_described, encoded[1:])))
