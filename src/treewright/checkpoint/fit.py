"""How a checkpoint fits a tree: what it may differ in, and the tree with the leaves in it."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import jax
import numpy as np

from treewright._core.jax_private import device_put, is_ref, typeof, untyped_jax
from treewright._core.text import did_you_mean, short_text
from treewright._lines import first_of
from treewright.checkpoint.arrays import DTYPES, ON_HOST, Form, UnsupportedLeafError, form_of, stored
from treewright.checkpoint.differences import (
    Mismatch,
    mismatches,
    paired,
    part_advice,
    refuse_mismatches,
)
from treewright.checkpoint.manifest import ROOT_LEAF, Leaf, Manifest
from treewright.checkpoint.tree import Decoder, Modules, Parts, parts_to_save
from treewright.errors import CheckpointError, CheckpointWarning, warn_user

T = TypeVar("T")

MISSING: Any = ...  # in place of `like`, for which None is a tree
_TOGETHER = 1 << 24  # bytes of arrays that are placed in one call; their copies on the host are let go after it


class Fit(TypedDict, total=False):
    """How far a checkpoint may differ from the tree that it is loaded into; and what it is made of without one.

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
        modules: Without `like`: one or several modules, or their names, which are imported. Only their own classes and
            functions are found, and Treewright's.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import Fit, load, save
        >>> options: Fit = {"renamed": {"w": "kernel"}, "allow_cast": True}
        >>> save(path := f"{tempfile.mkdtemp()}/x", {"w": 1})
        >>> load(path, like={"kernel": 0.0}, **options)
        {'kernel': 1.0}
    """

    part: str | None
    on_static: Literal["error", "warn", "ignore"]
    allow_cast: bool
    strict: bool
    renamed: Mapping[str, str] | None
    migrate: Callable[[dict[str, Any]], Mapping[str, Any]] | None
    modules: Modules


Options = Mapping[str, Any]  # all of `Fit`
_DEFAULTS: Options = MappingProxyType(
    dict.fromkeys(("part", "renamed", "migrate"))
    | {"on_static": "error", "allow_cast": False, "strict": True, "modules": ()}
)


def checked_options(like: Any, options: Options) -> Options:
    """The options, with defaults.

    Raises:
        TypeError: If one is unknown, or is only for loading with `like`, or without.
        ValueError: If `on_static` is none of its three.
    """
    if isinstance(like, type):
        made = f"like=jax.eval_shape(lambda: {like.__qualname__}(...))"
        raise TypeError(f"like= is the class {like.__qualname__}. Give an instance, or what describes one: {made}.")
    for name, value in options.items():
        if name not in _DEFAULTS:
            meant = ". Write like= instead" if name in {"template", "target", "tree"} else did_you_mean(name, _DEFAULTS)
            raise TypeError(f"got an unexpected option {name!r}{meant}. The options: like, {', '.join(_DEFAULTS)}.")
        if name == "part" or value == _DEFAULTS[name] or (name == "modules") is (like is MISSING):
            continue
        if name == "modules":
            raise TypeError("modules= is for loading without like=, whose classes are its own: leave it out.")
        raise TypeError(f"{name}= says how a checkpoint may differ from a tree: give one to load into, like=tree.")
    checked = {**_DEFAULTS, **options}
    if checked["on_static"] not in {"error", "warn", "ignore"}:
        raise ValueError(f"on_static takes 'error', 'warn' or 'ignore', got {checked['on_static']!r}.")
    return checked


class Wanted(NamedTuple):
    """A leaf that is to be read, and what it becomes in a tree.

    Attributes:
        leaf: What was saved.
        path: The place in the tree, for messages.
        form: The form there, which may have another dtype.
        value: The leaf of the tree in whose place it comes; None without a tree to load into.
        sharding: Of the array that was written for it; None on the host, and where nobody chose its place.
    """

    leaf: Leaf
    path: str
    form: Form
    value: Any = None
    sharding: Any = None

    @property
    def tie(self) -> Hashable:
        """What has to be the same of two leaves of a tree, so that one array may be both.

        A live tree shows itself whether it has one array there: two can be donated, and one can't be twice.
        """
        if self.value is None or isinstance(self.value, jax.ShapeDtypeStruct):
            return self.leaf.array, self.form, self.sharding
        return self.leaf.array, id(self.value)


# An engine: verified arrays, in the order in which they are asked for.
Read = Callable[[Sequence[Wanted]], Iterator[Any]]


def as_saved(leaf: Leaf, *, on_host: bool = False) -> Wanted:
    """A leaf as it was saved, or as an array of numpy."""
    form = leaf.form
    if on_host:
        form = form._replace(kind="numpy" if form.kind == "array" else form.kind, ref=False)
    return Wanted(leaf, leaf.path, form)


def restored(manifest: Manifest, read: Read, like: Any, options: Options) -> Any:
    """The tree of a checkpoint, or a part of it, into `like` or from its records alone.

    Raises:
        CheckpointMismatchError: If it does not fit `like`. No array has been read then, unless `migrate` needed them.
        CheckpointDamagedError: If an array is not what was saved.
        CheckpointError: If there is no such part, or the tree can't be made.
    """
    part, renamed, migrate = options["part"], options["renamed"], options["migrate"]
    if part is not None:
        manifest = _part_of(manifest, part)
    if like is MISSING:
        decoder = Decoder(manifest, options["modules"])
        return decoder.build(_values(list(map(as_saved, manifest.leaves)), read))
    if renamed:
        manifest = _renamed(manifest, renamed)
    if migrate is None:
        return _into_tree(manifest, read, like, options)
    branches_alone = Manifest(manifest.branches, ())
    _warn_of(_allowed_differences(branches_alone, parts_to_save(like, abstract=True), options), options)
    migrated = migrate(_values([as_saved(leaf, on_host=True) for leaf in manifest.leaves], read))
    if not isinstance(migrated, Mapping):
        raise TypeError(
            f"migrate= returned {short_text(migrated)}. It is given the saved values by flat name, and returns a dict "
            f"of what the tree is to have, by flat name too."
        )
    return filled(migrated, like, options)


def filled(values: Mapping[str, Any], like: T, options: Options) -> T:
    """A tree like `like` with copies of these values, by flat name.

    Raises:
        CheckpointMismatchError: If names, shapes, dtypes or kinds differ in what the options do not allow.
        CheckpointError: If a value can't be a leaf, or a leaf without a value is abstract in the tree.
    """
    leaves: list[Leaf] = []
    for name, value in values.items():
        try:
            leaves.append(Leaf(str(name), str(name), form_of(value)))
        except UnsupportedLeafError as problem:
            raise CheckpointError(f"The value named {name!r} {problem}.") from problem

    def read(wanted: Sequence[Wanted]) -> Iterator[Any]:
        arrays = (stored(values[each.leaf.name]) for each in wanted)
        return (np.array(array) if isinstance(array, np.ndarray) else array for array in arrays)  # theirs may change

    branches = parts_to_save(like, abstract=True).manifest.branches
    return _into_tree(Manifest(branches, tuple(leaves)), read, like, options)


def _part_of(manifest: Manifest, part: str) -> Manifest:
    """The manifest of a part, as of a tree of its own."""
    branches = [branch.name for branch in manifest.branches]
    names = [*branches, *(leaf.name for leaf in manifest.leaves)]
    if part not in names:
        raise CheckpointError(f"part={part!r}: nothing that was saved has this name{did_you_mean(str(part), names)}.")
    above = f"{part}."
    root = "" if part in branches else ROOT_LEAF
    return manifest.with_names(
        lambda name: root if name == part else name.removeprefix(above) if name.startswith(above) else None
    )


def _renamed(manifest: Manifest, renamed: Mapping[str, str]) -> Manifest:
    """The manifest with other names. A key is a run of steps, as `out` or `params.out`, and is found at any depth."""
    runs = {tuple(old.split(".")): new for old, new in sorted(renamed.items(), key=lambda run: -run[0].count("."))}
    unused = dict.fromkeys(runs)

    def new_name(name: str) -> str:
        steps, result = tuple(name.split(".")), list[str]()
        while steps:
            old = next((run for run in runs if steps[: len(run)] == run), steps[:1])
            unused.pop(old, None)
            result.append(runs.get(old, old[0]))
            steps = steps[len(old) :]
        return ".".join(result)

    other = manifest.with_names(new_name)
    for old in unused:
        steps = {step for leaf in manifest.leaves for step in leaf.name.split(".")}
        meant = did_you_mean(".".join(old), steps)
        raise CheckpointError(f"renamed: nothing that was saved is called {'.'.join(old)!r}{meant}.")
    first: dict[str, Leaf] = {}
    for leaf in other.leaves:
        if first.setdefault(leaf.name, leaf) is not leaf:
            paths = f"{first[leaf.name].path} and {leaf.path}"
            raise CheckpointError(f"renamed: {paths} would both be called {leaf.name!r}.")
    return other


# Into a tree


def _into_tree(manifest: Manifest, read: Read, like: T, options: Options) -> T:
    target = parts_to_save(like, abstract=True)
    allowed = _allowed_differences(manifest, target, options)
    wanted: list[Wanted] = []
    for saved, leaf in paired(manifest.leaves, target.manifest.leaves):
        if saved is not None and leaf is not None:
            value, form = target.values[leaf.name], leaf.form
            if saved.form.ref and isinstance(value, jax.ShapeDtypeStruct):  # which can't say that it is one
                form = form._replace(ref=True)
            wanted.append(Wanted(saved, leaf.path, form, value, _sharding_of(value, form)))
    _refuse_no_value(manifest, target, {each.leaf.name for each in wanted})
    values = {**target.values, **_values(wanted, read)}
    _warn_of(allowed, options)
    leaves = [values[leaf.name] for leaf in target.manifest.leaves]
    tree: T = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return tree


def _allowed_differences(manifest: Manifest, target: Parts, options: Options) -> list[Mismatch]:
    """The differences that the options let through. All others are refused at once.

    A manifest without leaves is one whose leaves are still to come.
    """
    pairs = paired(manifest.leaves, target.manifest.leaves) if manifest.leaves else []
    by_option = {"static": options["on_static"] != "error"}
    by_option |= dict.fromkeys(("missing", "unexpected", "class"), not options["strict"])
    allowed: list[Mismatch] = []
    refused: list[Mismatch] = []
    for mismatch in mismatches(manifest, target.manifest, pairs, allow_cast=options["allow_cast"]):
        (allowed if mismatch.soft or by_option.get(mismatch.kind) else refused).append(mismatch)
    refuse_mismatches(refused, part_advice(manifest, target.manifest))
    return allowed


def _refuse_no_value(manifest: Manifest, target: Parts, names: set[str]) -> None:
    """Raise if an abstract leaf would get no value, or no leaf one: an untrained template for a trained model."""
    if not names and target.values:
        advice = part_advice(manifest, target.manifest) or ["Look at what was saved: read_manifest(path).leaves."]
        cures = "\n  ".join(["What to do:", *advice])
        raise CheckpointError(
            f"No leaf of the checkpoint has a place in the tree, so nothing would be loaded.\n{cures}"
        )
    left = [leaf for leaf in target.manifest.leaves if leaf.name not in names]
    abstract = [leaf.path for leaf in left if isinstance(target.values[leaf.name], jax.ShapeDtypeStruct)]
    if abstract:
        raise CheckpointError(
            f"{', '.join(first_of(abstract))}: not saved, and abstract in the tree, so there is no value. Load into a "
            f"live tree, or give values in migrate=."
        )


def _warn_of(allowed: Sequence[Mismatch], options: Options) -> None:
    """Warn of what the options let through; with `on_static="ignore"`, not of statics."""
    shown = [one for one in allowed if options["on_static"] != "ignore" or not (one.soft or one.kind == "static")]
    if shown:
        lines = "\n  ".join(first_of(list(map(str, shown))))
        warn_user(f"Not all of the checkpoint fits the tree, which keeps its own:\n  {lines}", CheckpointWarning)


def _sharding_of(value: Any, form: Form) -> Any:
    """The sharding of the array that is written for a leaf. That of a key's data has further dimensions."""
    if form.kind in ON_HOST or (isinstance(value, jax.Array) and not value.committed):
        return None
    sharding = getattr(value, "sharding", None)
    if form.kind != "key" or not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    split = (*sharding.spec, *(None,) * (len(value.shape) - len(sharding.spec)))
    whole = (None,) * (len(form.shape) - len(value.shape))
    return jax.sharding.NamedSharding(sharding.mesh, untyped_jax.P(*split, *whole))


def _values(wanted: Sequence[Wanted], read: Read) -> dict[str, Any]:
    """The leaves of a tree by name. Those that were one array are one again, where the tree has room for that."""
    first: dict[Hashable, Wanted] = {}
    same_as = {each.leaf.name: first.setdefault(each.tie, each).leaf.name for each in wanted}
    values: dict[str, Any] = {}
    batch: dict[str, tuple[Any, Wanted]] = {}  # to be placed in one call
    size = 0
    for array, each in zip(read(list(first.values())), first.values(), strict=True):
        cast = array if each.leaf.form.dtype == each.form.dtype else array.astype(DTYPES[each.form.dtype])
        if each.form.kind in ON_HOST:
            values[each.leaf.name] = _on_host(np.asarray(cast), each.form)
            continue
        batch[each.leaf.name] = cast, each
        size += array.nbytes
        if size >= _TOGETHER:
            values.update(_placed(batch))
            batch, size = {}, 0
    values.update(_placed(batch))
    return {name: values[same] for name, same in same_as.items()}


def _on_host(array: Any, form: Form) -> Any:
    if form.kind == "numpy":
        return array
    return array[()] if form.kind == "numpy scalar" else array.item()


def _placed(batch: Mapping[str, tuple[Any, Wanted]]) -> dict[str, Any]:
    """The leaves of a tree on devices, for arrays that were read: of numpy, which nobody else changes, or of JAX.

    They are placed in one call: one by one, 2,000 small arrays take a third longer.

    Raises:
        CheckpointError: If a dtype needs 64 bits and JAX has them switched off, or a key another JAX.
    """
    arrays, wanted = [array for array, _ in batch.values()], [each for _, each in batch.values()]
    placed = device_put(arrays, [each.sharding for each in wanted])
    return dict(zip(batch, map(_leaf_from, placed, wanted), strict=True))


def _leaf_from(array: Any, wanted: Wanted) -> Any:
    path, form, value = wanted.path, wanted.form, wanted.value
    if array.dtype != DTYPES[form.dtype]:
        raise CheckpointError(
            f"{path} is a {form.dtype}, and JAX would make it a {array.dtype}. Load it with "
            f"jax.config.update('jax_enable_x64', True)."
        )
    if form.key is not None:
        try:
            array = untyped_jax.random.wrap_key_data(array, impl=form.key)
        except (ValueError, TypeError) as error:  # of no such implementation, or with data of another width
            raise CheckpointError(f"{path} is a key that this JAX does not have: {error}") from error
    if not form.ref:
        return array
    kind = getattr(typeof(value), "kind", None) if is_ref(value) else None
    return untyped_jax.new_ref(array, **({} if kind is None else {"kind": kind}))
