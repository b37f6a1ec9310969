"""From a manifest and a template to a tree: compare, read, rename, migrate, place. The engines only read arrays."""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import jax
import numpy as np

from treewright.checkpoint.compare import Difference, leaf_differences, mismatch, node_differences
from treewright.checkpoint.leaves import CanNotBeSavedError, Form, form_of, leaf_of, stored
from treewright.checkpoint.manifest import Leaf, Manifest
from treewright.checkpoint.moves import Moves
from treewright.checkpoint.renaming import renamed_manifest
from treewright.checkpoint.survey import Place, Survey, survey
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
    """An engine: reads arrays that a manifest lists, each verified by its digest, in the order asked for.

    `like` is the leaf of the template that an array is for, whose sharding it may have at once, or None.
    """

    def __call__(self, wanted: Iterable[tuple[Leaf, Place | None]]) -> Iterator[Any]:
        """The arrays."""
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
    manifest = renamed_manifest(manifest, options.renamed or {})
    moves = Moves.between(manifest, target)
    nodes = node_differences(manifest.branches, target.branches, moves.fields)
    through, hard = _sorted(options, nodes, moves.differences)
    if options.migrate is None:
        hard += _leaf_problems(manifest, target, moves, options)
    if hard:
        raise mismatch(hard)
    values = _values(manifest, target, moves, read, options)
    more, hard = _sorted(options, moves.statics_that_differ(values))
    if hard:
        raise mismatch(hard)
    _warn([*through, *more], options)
    values = {name: value for name, value in values.items() if name not in moves.to_static}
    values |= moves.placed_children(target)
    if options.migrate is not None:
        return fitted(options.migrate(values), target, options, copy=True)
    return fitted(values, target, dataclasses.replace(options, strict=False))


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


def _values(manifest: Manifest, target: Survey, moves: Moves, read: Reader, options: Options) -> dict[str, Any]:
    """The saved arrays by name: those that the tree has a place for, or all of them for `migrate`."""
    places = {place.name: place for place in target.leaves}
    needed = [
        leaf
        for leaf in manifest.leaves
        if options.migrate is not None or leaf.name in places or leaf.name in moves.to_static
    ]
    arrays = read((leaf, places.get(leaf.name)) for leaf in needed)
    values: dict[str, Any] = {}
    for leaf, array in zip(needed, arrays, strict=True):
        place = places.get(leaf.name)
        if options.migrate is not None or place is None:
            values[leaf.name] = leaf_of(array, _on_host(leaf.form), None, leaf.path)
        else:
            values[leaf.name] = leaf_of(array, place.form, place.value, place.path)
    return values


def _on_host(form: Form) -> Form:
    """For `migrate`: arrays as numpy arrays, unless JAX has placed them already."""
    return dataclasses.replace(form, kind="numpy") if form.kind == "array" else form


# Fitting named values into a tree


def fitted(values: Mapping[str, Any], target: Survey, options: Options, *, copy: bool = False) -> Any:
    """The tree of `target` with these values, by flat name.

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
    leaves = [_leaf_in(place, values, copy=copy) for place in target.leaves]
    return jax.tree.unflatten(target.treedef, leaves)


def _leaf_in(place: Place, values: Mapping[str, Any], *, copy: bool) -> Any:
    if place.name in values:
        value = stored(values[place.name])
        if copy and isinstance(value, np.ndarray):
            value = np.array(value)  # the caller may change theirs
        return leaf_of(value, place.form, place.value, place.path)
    if isinstance(place.value, jax.ShapeDtypeStruct):
        raise CheckpointError(
            f"{place.path} was not saved, and the tree has no value for it: it is abstract. Load into a live tree, or "
            f"give a value in migrate=."
        )
    return place.value
