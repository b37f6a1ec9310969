"""Load a checkpoint into a tree: the options, the comparison, and the arrays to read."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypedDict, TypeVar

import jax
import numpy as np

from treewright._base.text import cut_text, did_you_mean, short_text
from treewright._reports import first_lines
from treewright.checkpoint.arrays import UnsupportedLeafError, array_to_save, form_of, is_deleted
from treewright.checkpoint.differences import Differences, Mismatch, part_advice, raise_mismatches
from treewright.checkpoint.manifest import ROOT_LEAF, LeafRecord, Manifest, join_name, renamer
from treewright.checkpoint.placing import LeafRequest, Read, sharding_of, values_of
from treewright.checkpoint.tree import Parts, parts_to_save
from treewright.errors import CheckpointError, CheckpointWarning, warn_user

T = TypeVar("T")

MISSING: Any = ...  # the default of `like`; None is a tree


class LoadOptions(TypedDict, total=False):
    """Options of `load` and `restore`: the subtree to load, and the allowed differences from `like`.

    Without `like`, only `part` is allowed.

    Attributes:
        part: The flat name of the subtree to load, such as `"params.layers.0"`.
        on_static: If a static differs: `"error"`, or keep the tree's static with a warning (`"warn"`) or silently
            (`"ignore"`). A static without an exact encoding, such as a closure, is compared by a digest, and a
            difference is only a warning.
        allow_cast: Whether leaves may be cast to the tree's dtype.
        strict: Whether leaves that only one side has, and different classes, are errors. Otherwise a warning lists
            them, and leaves that were not saved keep the tree's values, unless `migrate` is given.
        renamed: New names by old names, of one or several components, at any depth: `{"out": "head"}` renames
            `params.out.kernel` and the optimiser's `opt_state.0.mu.out.kernel`.
        migrate: A function from the saved leaves, by flat name, to all leaves of the tree, by flat name. A leaf is read
            when the function uses its value. Differences of classes and containers above the changed names are only
            a warning.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import LoadOptions, load, save
        >>> options: LoadOptions = {"renamed": {"w": "kernel"}, "allow_cast": True}
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


Options = Mapping[str, Any]  # all of `LoadOptions`
_DEFAULTS: Options = MappingProxyType(
    dict.fromkeys(("part", "renamed", "migrate")) | {"on_static": "error", "allow_cast": False, "strict": True}
)


def check_options(like: Any, options: Options) -> Options:
    """The options, completed with defaults.

    Raises:
        TypeError: If an option is unknown, has a wrong type or needs `like`.
        ValueError: If `on_static` has an unknown value.
    """
    if isinstance(like, type):
        abstract = f"like=jax.eval_shape(lambda: {like.__qualname__}(...))"
        raise TypeError(f"like= is the class {like.__qualname__}. Pass an instance, or an abstract one: {abstract}.")
    for name, value in options.items():
        if name not in _DEFAULTS:
            meant, names = did_you_mean(cut_text(name), _DEFAULTS), ", ".join(_DEFAULTS)
            raise TypeError(f"got an unexpected option {short_text(name)}{meant}. The options: like, {names}.")
        if like is MISSING and name != "part" and value != _DEFAULTS[name]:
            raise TypeError(f"{name}= compares the checkpoint with a tree. Pass the tree to load into: like=tree.")
    checked = {**_DEFAULTS, **options}
    if checked["on_static"] not in ("error", "warn", "ignore"):
        raise ValueError(f"on_static= must be 'error', 'warn' or 'ignore', got {short_text(checked['on_static'])}.")
    part, renamed = checked["part"], checked["renamed"]
    if part is not None and (not isinstance(part, str) or not part):
        raise TypeError(f"part= must be the name of a subtree, such as part='params', got {short_text(part)}.")
    pairs = (renamed or {}).items() if isinstance(renamed, Mapping | None) else [(None, None)]
    if not all(isinstance(name, str) and name for pair in pairs for name in pair):
        raise TypeError(
            f"renamed= must be a dict of new names by old names, such as {{'out': 'head'}}, got {short_text(renamed)}."
        )
    return checked


def part_and_names(manifest: Manifest, options: Options) -> Manifest:
    """The manifest of the part to load, with new names.

    Raises:
        CheckpointError: If the part or an old name does not exist, or two leaves would have one name.
    """
    if options["part"] is not None:
        manifest = _part_of(manifest, options["part"])
    return _rename_manifest(manifest, options["renamed"]) if options["renamed"] else manifest


def from_names(values: Mapping[str, Any], *, like: T, allow_cast: bool = False, strict: bool = True) -> T:
    """Build a tree like `like` from leaves by flat name, such as the arrays in a different program's file.

    Args:
        values: Arrays and numbers by name, as returned by `to_names`. They are copied.
        like: A live or abstract tree. The result has its structure, statics and shardings.
        allow_cast: Whether values may be cast to the leaf's dtype.
        strict: Whether names that only one side has are errors.

    Raises:
        CheckpointMismatchError: If names, shapes or dtypes differ.
        CheckpointError: If a value can't be a leaf, or nothing would be loaded.
        TypeError: If `values` is not a mapping, such as a path.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> from_names({"w": jnp.ones(2)}, like={"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            "from_names needs a dict of arrays by name. To load a file: from_names(read_names(path), like=tree)."
        )
    options = check_options(like, {"allow_cast": allow_cast, "strict": strict})
    nodes = parts_to_save(like, abstract=True).manifest.nodes
    tree: T = into_tree(*replaced(Manifest(nodes, ()), values), like, options, lambda _: iter(()))
    return tree


def replaced(manifest: Manifest, values: Mapping[str, Any]) -> tuple[Manifest, dict[str, Any]]:
    """The manifest with the records of these values, and the values that are no records, by name."""
    given: dict[str, Any] = {}
    leaves: list[LeafRecord] = []
    for name, value in ((str(name), value) for name, value in values.items()):
        if isinstance(value, LeafRecord):
            leaves.append(value)
            continue
        try:
            leaves.append(LeafRecord(name, name, form_of(value)))
        except UnsupportedLeafError as problem:
            is_nested = isinstance(value, Mapping | list | tuple)
            fix = " Flatten nested values: from_names(to_names(values), like=...)." if is_nested else ""
            raise CheckpointError(f"The value named {short_text(name)} {problem}.{fix}") from problem
        given[name] = value
    return dataclasses.replace(manifest, leaves=tuple(leaves)), given


def _part_of(manifest: Manifest, part: str) -> Manifest:
    """The manifest of a subtree."""
    names = [*(node.name for node in manifest.nodes), *(leaf.name for leaf in manifest.leaves)]
    if part not in names:
        raise CheckpointError(f"part={short_text(part)} was not saved{did_you_mean(cut_text(part), names)}.")
    inside = {part}  # not every name that begins with it: a key may contain a dot
    for node in manifest.nodes:  # parents come first
        inside.update(join_name(node.name, step) for step in node.children if node.name in inside)
    nodes = tuple([node for node in manifest.nodes if node.name in inside])
    leaves = tuple([leaf for leaf in manifest.leaves if leaf.name in inside])
    root = "" if nodes else ROOT_LEAF
    subtree = dataclasses.replace(manifest, nodes=nodes, leaves=leaves)
    return subtree.with_names(lambda name: root if name == part else name.removeprefix(f"{part}."))


def _rename_manifest(manifest: Manifest, renamed: Mapping[str, str]) -> Manifest:
    """The manifest with new names. A key is one or several components, such as `out` or `params.out`, at any depth."""
    new_name, unused = renamer(renamed)
    other = manifest.with_names(new_name)
    for old in unused:
        steps = {step for leaf in manifest.leaves for step in leaf.name.split(".")}
        meant = did_you_mean(cut_text(old), steps)
        raise CheckpointError(f"renamed=: no saved name contains {short_text(old)}{meant}.")
    first: dict[str, LeafRecord] = {}
    for leaf in other.leaves:
        if first.setdefault(leaf.name, leaf) is not leaf:
            paths = f"{cut_text(first[leaf.name].path)} and {cut_text(leaf.path)}"
            raise CheckpointError(f"renamed=: {paths} would both be named {short_text(leaf.name)}.")
    return other


# Into a tree


def into_tree(
    manifest: Manifest,
    given: Mapping[str, Any],
    like: Any,
    options: Options,
    read: Read,
    *,
    changed: Collection[str] | None = None,
) -> Any:
    """A tree like `like` from the leaves of a manifest.

    Args:
        manifest: The manifest.
        given: The values of some of its leaves, by name. They are copied.
        like: The tree.
        options: The options.
        read: Reads the other leaves.
        changed: The names that `migrate` added or removed; None without it.

    Raises:
        CheckpointMismatchError: If the leaves do not fit `like`.
    """
    target = parts_to_save(like, abstract=True)
    abstract = {name for name, value in target.values.items() if isinstance(value, jax.ShapeDtypeStruct)}
    differences = Differences(manifest, target.manifest, options["allow_cast"], abstract, changed)
    allowed = _allowed_differences(differences, options)
    saved = {leaf.name: leaf for leaf in manifest.leaves}
    requests = [
        _request(saved[leaf.name], leaf, target.values[leaf.name])
        for leaf in target.manifest.leaves
        if leaf.name in saved
    ]
    _check_values(manifest, target, {each.leaf.name for each in requests})
    to_read = [each for each in requests if each.leaf.name not in given]
    to_copy = [each for each in requests if each.leaf.name in given]

    # Copied, because the caller may change them.
    arrays_given = (array_to_save(given[each.leaf.name]) for each in to_copy)
    copies = (np.array(array) if isinstance(array, np.ndarray) else array for array in arrays_given)
    values = {**target.values, **values_of(to_copy, copies), **values_of(to_read, read(to_read))}
    _warn_of(allowed, options)
    leaves = [values[leaf.name] for leaf in target.manifest.leaves]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _request(saved: LeafRecord, wanted: LeafRecord, value: Any) -> LeafRequest:
    is_ref = saved.form.ref and isinstance(value, jax.ShapeDtypeStruct)  # a ShapeDtypeStruct can't express refs
    form = wanted.form._replace(ref=True) if is_ref else wanted.form
    return LeafRequest(saved, wanted.path, form, value, sharding_of(value, form, wanted.path))


def _allowed_differences(differences: Differences, options: Options) -> list[Mismatch]:
    """The differences that the options allow. If there are others, raise an error that lists them."""
    by_option: dict[str, bool] = dict.fromkeys(("static", "optimiser"), options["on_static"] != "error")
    by_option |= dict.fromkeys(("unexpected", "class"), not options["strict"])
    by_option["missing"] = not options["strict"] and differences.changed is None  # migrate= is to provide all
    allowed: list[Mismatch] = []
    rejected: list[Mismatch] = []
    for mismatch in differences.listed():
        (allowed if mismatch.is_warning or by_option.get(mismatch.kind) else rejected).append(mismatch)
    raise_mismatches(rejected, differences.fixes(rejected))
    return allowed


def _check_values(manifest: Manifest, target: Parts, names: set[str]) -> None:
    """Raise if an abstract leaf would have no value, or if nothing would be loaded."""
    if not names and target.values:
        advice = part_advice(manifest, target.manifest) or ["List the saved leaves: read_manifest(path).leaves."]
        fixes = "\n  ".join(["What to do:", *advice])
        raise CheckpointError(f"No leaf of the checkpoint matches the tree, so nothing would be loaded.\n{fixes}")
    left = [leaf for leaf in target.manifest.leaves if leaf.name not in names]
    values = [(leaf.path, target.values[leaf.name]) for leaf in left]
    abstract = [
        cut_text(path, 200) for path, value in values if isinstance(value, jax.ShapeDtypeStruct) or is_deleted(value)
    ]
    if abstract:
        raise CheckpointError(
            f"{', '.join(first_lines(abstract))}: not saved, and abstract or donated in the tree, so there is no "
            f"value. Load into a live tree, or add values in migrate=."
        )


def _warn_of(allowed: Sequence[Mismatch], options: Options) -> None:
    """Warn about allowed differences; with `on_static="ignore"`, except statics."""
    shown = [one for one in allowed if options["on_static"] != "ignore" or not (one.is_warning or one.kind == "static")]
    if shown:
        is_kept = any(one.kind != "class" for one in shown)
        kept = "The tree keeps its own values" if is_kept else "The leaves were loaded into the classes of the tree"
        lines = "\n  ".join(first_lines(list(map(str, shown))))
        warn_user(f"The checkpoint and the tree differ. {kept}:\n  {lines}", CheckpointWarning)
