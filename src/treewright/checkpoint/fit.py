"""How a checkpoint fits a tree: every difference by path with its cure, and the tree with the leaves in it."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import jax
import numpy as np

from treewright._core.text import counted, did_you_mean, first_names, first_of, short_text
from treewright.checkpoint.arrays import (
    ON_HOST,
    Form,
    UnsupportedLeafError,
    form_of,
    leaf_from,
    sharding_of,
    stored,
)
from treewright.checkpoint.differences import (
    LeafPair,
    Mismatch,
    leaf_mismatches,
    lines_of,
    node_mismatches,
    paired,
    part_advice,
    refuse_mismatches,
)
from treewright.checkpoint.manifest import Branch, Leaf, Manifest, join_name
from treewright.checkpoint.tree import (
    Blueprint,
    Finder,
    Modules,
    Parts,
    parts_of_target,
)
from treewright.errors import CheckpointError, CheckpointWarning, warn_user

T = TypeVar("T")
OnStatic = Literal["error", "warn", "ignore"]
Migrate = Callable[[dict[str, Any]], Mapping[str, Any]]

MISSING: Any = ...  # in place of `like`, for which None is a tree


class Fit(TypedDict, total=False):
    """How far a checkpoint may differ from the tree that it is loaded into.

    Attributes:
        part: The flat name of the part that is loaded, as `"params.layers.0"`.
        on_static: What to do if a static differs: `"error"`, or `"warn"` and `"ignore"` to keep that of the tree. A
            static without an exact form, such as a closure, is compared by a digest, and a difference is a warning.
        allow_cast: Whether a leaf may have another dtype in the tree, and is cast to it.
        strict: Whether leaves that only one side has, and other classes, are errors. If not, a warning lists them, and
            leaves that were not saved keep the value that they have in the tree.
        renamed: New names by old ones, of one or several steps, found at any depth: `{"out": "head"}` renames
            `params.out.kernel` and the optimiser's `opt_state.0.mu.out.kernel`.
        migrate: A function from all saved leaves, by flat name, to those that the tree is to have.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import Fit, load, save
        >>> options: Fit = {"renamed": {"w": "kernel"}, "allow_cast": True}
        >>> save(path := f"{tempfile.mkdtemp()}/x", {"w": 1})
        >>> load(path, like={"kernel": 0.0}, **options)
        {'kernel': 1.0}
    """

    part: str | None
    on_static: OnStatic
    allow_cast: bool
    strict: bool
    renamed: Mapping[str, str] | None
    migrate: Migrate | None


class Alone(TypedDict, total=False):
    """What a tree is made of where there is none to load into.

    Attributes:
        part: The flat name of the part that is loaded.
        modules: One or several modules, or their names, which are imported. Only their own classes and functions are
            found, Treewright's, and the states of optax.
        statics: Values of statics that were saved as descriptions, by flat name: `{"tx": optax.adam(1e-3)}`.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import Alone, load, save
        >>> options: Alone = {"part": "a", "modules": ["collections"]}
        >>> save(path := f"{tempfile.mkdtemp()}/x", {"a": [1, 2], "b": 3})
        >>> load(path, **options)
        [1, 2]
    """

    part: str | None
    modules: Modules
    statics: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Options:
    part: str | None = None
    on_static: OnStatic = "error"
    allow_cast: bool = False
    strict: bool = True
    renamed: Mapping[str, str] | None = None
    migrate: Migrate | None = None
    modules: Modules = ()
    statics: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.on_static not in {"error", "warn", "ignore"}:
            raise ValueError(f"on_static takes 'error', 'warn' or 'ignore', got {self.on_static!r}.")
        if self.part is not None and not isinstance(self.part, str):
            raise TypeError(f"part= takes the flat name of one part, such as 'params', got {short_text(self.part)}.")


def checked_options(like: Any, options: Mapping[str, Any]) -> _Options:
    """The options, with defaults.

    Raises:
        TypeError: If one is unknown, or is only for loading with `like`, or without.
    """
    names = [field.name for field in dataclasses.fields(_Options)]
    for name in options:
        if name not in names:
            cure = "like=" if name in {"template", "target", "tree"} else ""
            meant = f" Write {cure} instead." if cure else f"{did_you_mean(name, ['like', *names])}."
            raise TypeError(f"got an unexpected option {name!r}{meant} The options: like, {', '.join(names)}.")
    if isinstance(like, type):
        made = f"like=jax.eval_shape(lambda: {like.__qualname__}(...))"
        raise TypeError(f"like= is the class {like.__qualname__}. Give an instance, or what describes one: {made}.")
    only = Alone if like is MISSING else Fit
    others = [name for name, value in options.items() if name not in only.__annotations__ and value]
    if others and like is MISSING:
        raise TypeError(f"{others[0]}= says how a checkpoint may differ from a tree: give one to load into, like=tree.")
    if others:
        raise TypeError(
            f"{others[0]}= says what a tree is made of if there is no like=. With like=, classes and statics are its "
            f"own: leave it out."
        )
    return _Options(**options)


class Request(NamedTuple):
    """An array that is to be read: the record of its leaf, and the sharding that it gets, or None for the host."""

    leaf: Leaf
    sharding: Any


Read = Callable[[list[Request]], Iterator[Any]]  # an engine: verified arrays, in the order in which they are asked for


def restored(manifest: Manifest, read: Read, like: Any, options: _Options) -> Any:
    """The tree of a checkpoint, or a part of it, into `like` or from its records alone.

    Raises:
        CheckpointMismatchError: If it does not fit `like`. No array has been read then, unless `migrate` needed them.
        CheckpointDamagedError: If an array is not what was saved.
        CheckpointError: If there is no such part, or the tree can't be made.
    """
    if options.part is not None:
        manifest = part_of(manifest, options.part)
    if like is not MISSING:
        return _into_tree(manifest, read, like, options)
    blueprint = Blueprint(manifest, Finder(manifest, options.modules), options.statics or {})
    return blueprint.build(_values([(leaf, leaf.form, None) for leaf in manifest.leaves], read))


def part_of(manifest: Manifest, part: str) -> Manifest:
    """The manifest of a part, as of a tree of its own."""
    names = [entry.name for entry in manifest.entries]
    if part not in names:
        raise CheckpointError(f"part={part!r}: nothing that was saved has this name{did_you_mean(part, names)}.")
    alone = all(leaf.name != part for leaf in manifest.leaves)

    def inner(name: str) -> str:
        return name[len(part) + 1 :] if alone else "value"

    def is_inside(name: str) -> bool:
        return name == part or name.startswith(f"{part}.")

    branches = [b for b in manifest.branches if is_inside(b.name)]
    leaves = [leaf for leaf in manifest.leaves if is_inside(leaf.name)]
    return dataclasses.replace(
        manifest,
        branches=tuple(dataclasses.replace(branch, name=inner(branch.name)) for branch in branches),
        leaves=tuple(dataclasses.replace(leaf, name=inner(leaf.name), tied=leaf.array) for leaf in leaves),
    )


# Other names


def renamed_manifest(manifest: Manifest, renamed: Mapping[str, str]) -> Manifest:
    """The manifest with other names. A key is a run of steps, as `out` or `params.out`, and is found at any depth."""
    runs = sorted(
        ((tuple(old.split(".")), new.split(".")) for old, new in renamed.items()), key=lambda run: -len(run[0])
    )
    used: set[tuple[str, ...]] = set()

    def new_name(name: str) -> str:
        steps, result = tuple(name.split(".")), list[str]()
        while steps:
            old, new = next(((a, b) for a, b in runs if steps[: len(a)] == a), (steps[:1], [steps[0]]))
            used.add(old)
            result += new
            steps = steps[len(old) :]
        return ".".join(result)

    branches = tuple(_renamed_branch(branch, new_name) for branch in manifest.branches)
    leaves = tuple(dataclasses.replace(x, name=new_name(x.name), tied=x.array) for x in manifest.leaves)
    unused = [".".join(old) for old, _ in runs if old not in used]
    if unused:
        steps = {step for entry in manifest.entries for step in entry.name.split(".")}
        meant = did_you_mean(unused[0], steps)
        raise CheckpointError(f"renamed: nothing that was saved is called {unused[0]!r}{meant}.")
    first: dict[str, Leaf] = {}
    for leaf in leaves:
        other = first.setdefault(leaf.name, leaf)
        if other is not leaf:
            raise CheckpointError(f"renamed: {other.path} and {leaf.path} would both be called {leaf.name!r}.")
    return dataclasses.replace(manifest, branches=branches, leaves=leaves)


def _renamed_branch(branch: Branch, new_name: Callable[[str], str]) -> Branch:
    name = new_name(branch.name) if branch.name else ""

    def renamed_field(field: str) -> str:
        above, _, last = new_name(join_name(branch.name, field)).rpartition(".")
        return last if above == name else field

    fields = {renamed_field(field): kind for field, kind in branch.fields.items()}
    statics = {renamed_field(field): value for field, value in branch.statics.items()}
    return dataclasses.replace(branch, name=name, fields=fields, statics=statics)


# Into a tree


def _into_tree(manifest: Manifest, read: Read, like: T, options: _Options) -> T:
    target = parts_of_target(like)
    if options.renamed:
        manifest = renamed_manifest(manifest, options.renamed)
    advice = part_advice(manifest, target.manifest)
    allowed: list[Mismatch] = []
    refused: list[Mismatch] = []
    for mismatch in node_mismatches(manifest, target.manifest):
        by_option = options.on_static != "error" if mismatch.kind == "static" else not options.strict
        (allowed if mismatch.soft or by_option else refused).append(mismatch)
    pairs = paired(manifest.leaves, target.manifest.leaves)
    if options.migrate is None:
        refused += leaf_mismatches(pairs, allow_cast=options.allow_cast, strict=options.strict)
    refuse_mismatches(refused, advice)
    if options.migrate is not None:
        values = _values([(leaf, _host_form(leaf.form), None) for leaf in manifest.leaves], read, keep_ties=False)
        _warn_of_statics(allowed, options)
        return filled(_migrated(options.migrate, values), like, allow_cast=options.allow_cast, strict=options.strict)
    wanted = [
        (saved, _target_form(saved, leaf, target.values[leaf.name]), target.values[leaf.name])
        for saved, leaf in pairs
        if saved is not None and leaf is not None
    ]
    _refuse_nothing(len(wanted), target, advice)
    _refuse_values_left_abstract(target, {saved.name for saved, _, _ in wanted})
    values = _values(wanted, read)
    _warn_of_statics(allowed, options)
    _warn_of_partial(pairs, [mismatch for mismatch in allowed if mismatch.kind != "static" and not mismatch.soft])
    return _with_leaves(like, target, values)


def _migrated(migrate: Migrate, values: dict[str, Any]) -> Mapping[str, Any]:
    result = migrate(values)
    if not isinstance(result, Mapping):
        raise TypeError(
            f"migrate= returned {short_text(result)}. It is given the saved values by flat name, and returns a dict of "
            f"what the tree is to have, by flat name too."
        )
    return result


def _refuse_nothing(count: int, target: Parts, advice: Sequence[str]) -> None:
    """Raise if a tree would come back as it was given: an untrained template for a trained model."""
    if not count and target.values:
        cures = "\n  ".join(["What to do:", *(advice or ["Look at what was saved: read_manifest(path).leaves."])])
        raise CheckpointError(
            f"No leaf of the checkpoint has a place in the tree, so nothing would be loaded.\n{cures}"
        )


def _refuse_values_left_abstract(target: Parts, names: "set[str]") -> None:
    abstract = [
        leaf.path
        for leaf in target.manifest.leaves
        if leaf.name not in names and isinstance(target.values[leaf.name], jax.ShapeDtypeStruct)
    ]
    if abstract:
        raise CheckpointError(
            f"{', '.join(first_of(abstract))}: not saved, and abstract in the tree, so there is no value. Load into a "
            f"live tree, or give values in migrate=."
        )


def _target_form(saved: Leaf, target: Leaf, value: Any) -> Form:
    """The form that a leaf gets: that of the tree, which may not say that it is abstract for a ref."""
    is_ref = saved.form.ref and isinstance(value, jax.ShapeDtypeStruct)
    return target.form._replace(ref=True) if is_ref else target.form


def _host_form(form: Form) -> Form:
    """The form in which `migrate` gets a leaf: arrays are numpy's."""
    return form._replace(kind="numpy" if form.kind == "array" else form.kind, ref=False)


def _values(wanted: list[tuple[Leaf, Form, Any]], read: Read, *, keep_ties: bool = True) -> dict[str, Any]:
    """The leaves of a tree by name.

    Args:
        wanted: Saved leaves, the form that each gets, and the leaf of the tree in whose place it is put.
        read: The engine.
        keep_ties: Whether leaves that were one array are one again, where the tree has room for that.
    """
    first: dict[Hashable, str] = {}
    same_as = {leaf.name: leaf.name for leaf, _, _ in wanted}
    if keep_ties:
        for leaf, form, value in wanted:
            same_as[leaf.name] = first.setdefault((leaf.array, _tie_of(form, value)), leaf.name)
    once = [(leaf, form, value) for leaf, form, value in wanted if same_as[leaf.name] == leaf.name]
    arrays = read(
        [Request(leaf, None if form.kind in ON_HOST else sharding_of(value, form)) for leaf, form, value in once]
    )
    values = {
        leaf.name: leaf_from(array, form, value, leaf.path)
        for (leaf, form, value), array in zip(once, arrays, strict=True)
    }
    return {name: values[same] for name, same in same_as.items()}


def _tie_of(form: Form, value: Any) -> Hashable:
    """What has to be the same of two leaves of a tree, so that one array may be both.

    A live tree shows itself whether it has one array there: two can be donated, and one can't be twice.
    """
    if value is None or isinstance(value, jax.ShapeDtypeStruct):
        return form, sharding_of(value, form)
    return id(value)


def _with_leaves(like: T, target: Parts, values: Mapping[str, Any]) -> T:
    leaves = [values.get(leaf.name, target.values[leaf.name]) for leaf in target.manifest.leaves]
    tree: T = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return tree


def filled(values: Mapping[str, Any], like: T, *, allow_cast: bool, strict: bool) -> T:
    """A tree like `like` with copies of these values, by flat name.

    Raises:
        CheckpointMismatchError: If names, shapes, dtypes or kinds differ in what the options do not allow.
        CheckpointError: If a value can't be a leaf, or a leaf without a value is abstract in the tree.
    """
    given: dict[str, Leaf] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"A value is named by text, such as 'layers.0.kernel', got {short_text(name)}.")
        try:
            given[name] = Leaf(name, name, form_of(value))
        except UnsupportedLeafError as problem:
            raise CheckpointError(f"The value named {name!r} {problem}.") from problem
    target = parts_of_target(like)
    pairs = paired(given.values(), target.manifest.leaves)
    refuse_mismatches(list(leaf_mismatches(pairs, allow_cast=allow_cast, strict=strict)))
    both = [leaf for leaf in target.manifest.leaves if leaf.name in given]
    _refuse_nothing(len(both), target, [])
    _refuse_values_left_abstract(target, {leaf.name for leaf in both})
    leaves = {
        leaf.name: leaf_from(_copied(stored(values[leaf.name])), leaf.form, target.values[leaf.name], leaf.path)
        for leaf in both
    }
    _warn_of_partial(pairs)
    return _with_leaves(like, target, leaves)


def _copied(array: Any) -> Any:
    return np.array(array) if isinstance(array, np.ndarray) else array  # the caller may change theirs


# Warnings


def _warn_of_statics(allowed: Sequence[Mismatch], options: _Options) -> None:
    shown = [one for one in allowed if one.soft or one.kind == "static"]
    if shown and options.on_static != "ignore":
        lines = "\n  ".join(lines_of(shown))
        warn_user(f"The checkpoint was saved with other statics; the tree keeps its own:\n  {lines}", CheckpointWarning)


def _warn_of_partial(pairs: Sequence[LeafPair], others: Iterable[object] = ()) -> None:
    """Warn of what `strict=False` let through, if anything.

    Args:
        pairs: Leaves that were saved, and those of the tree.
        others: Classes that differ.
    """
    dropped = [f"{saved.path}: {saved.form}" for saved, wanted in pairs if saved is not None and wanted is None]
    initial = [f"{wanted.path}: {wanted.form}" for saved, wanted in pairs if saved is None and wanted is not None]
    kinds = (
        ("Dropped, since the tree has no place for them:", dropped),
        ("Not saved, so they have the value that they had in the tree:", initial),
        ("Of other classes:", [str(mismatch) for mismatch in others]),
    )
    parts = ["\n  ".join([title, *first_of(lines)]) for title, lines in kinds if lines]
    if parts:
        loaded = [wanted.path for saved, wanted in pairs if saved is not None and wanted is not None]
        leaves = f"{counted(len(loaded), 'leaf was', 'leaves were')} loaded: {first_names(loaded, 20)}"
        text = "\n".join([f"Not all of the checkpoint fitted the tree (strict=False); {leaves}", *parts])
        warn_user(text, CheckpointWarning)
