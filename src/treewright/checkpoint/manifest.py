"""The manifest: what a checkpoint says about the bytes of its arrays, as JSON with a digest of its own.

One entry for each node or container and one for each leaf, both in JAX's order, each with the name of its place.
Nothing is imported or made here.
"""

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from typing import Any

from treewright._core.text import cut_text
from treewright.checkpoint.arrays import WHOLE, Form, bounds_of, check_form, digest_of
from treewright.errors import CheckpointDamagedError, CheckpointError

VERSION = 2  # 1 was never released
FORMAT = "treewright.checkpoint"
LARGEST = 100_000_000  # bytes of a manifest; safetensors ends there too, and JSON takes some twenty times the memory
DEPTH = 200  # levels of a tree; deeper ones would end Python's stack on the way back
TEXT, DIGEST = "treewright", "treewright.digest"  # the names in a file's metadata, and in the item of a step

DICTS = frozenset({"dict", "OrderedDict", "defaultdict"})
ROOT_LEAF = "value"  # the name of a tree that is one leaf


def join_name(name: str, step: str) -> str:
    """The name of a place below another: `params.layers.0.kernel`."""
    return f"{name}.{step}" if name else step


@dataclasses.dataclass(slots=True)  # not frozen, which takes three times as long to make
class Leaf:
    """The record of a leaf: its flat name (`params.layers.0.kernel`), its path, its form, the digests of its blocks.

    Where one array occurs in several places, it is kept for the first, and the others are `tied` to that name.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> (leaf,) = read_manifest(path).leaves
        >>> leaf.name, leaf.path, str(leaf.form), list(leaf.digests)
        ('w', "['w']", 'float32[3] (array)', ['all'])
    """

    name: str
    path: str
    form: Form
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    tied: str | None = None

    @property
    def array(self) -> str:
        """The name under which its array is kept."""
        return self.name if self.tied is None else self.tied


@dataclasses.dataclass(slots=True)
class Branch:
    """The record of a node or container: its name, path and class, the steps to its children, its fields and statics.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"name": Static("first")})
        >>> root, name = read_manifest(path).branches
        >>> root.kind, root.children, name.cls, name.statics
        ('dict', ('name',), 'treewright:Static', {'value': 'first'})
    """

    name: str
    path: str
    kind: str
    children: tuple[str, ...]
    cls: str | None = None
    keys: tuple[Any, ...] | None = None  # of a dict, as JSON of statics
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    statics: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @property
    def shown_path(self) -> str:
        """The path for messages."""
        return self.path or "the tree"


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The records of a checkpoint: nodes with classes and statics, leaves with shapes, dtypes and digests.

    `metrics` and `items` are those of a step; `items` has one entry for each process that saved it.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager:
        ...     manager.save(1, {"w": jnp.ones(3)})
        ...     manifest = manager.manifest()
        >>> [branch.kind for branch in manifest.branches], [leaf.name for leaf in manifest.leaves]
        (['dict'], ['w'])
    """

    branches: tuple[Branch, ...]
    leaves: tuple[Leaf, ...]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    items: tuple[Mapping[str, Any], ...] = ()

    @property
    def entries(self) -> "tuple[Branch | Leaf, ...]":
        """All records: nodes and containers, and leaves."""
        return (*self.branches, *self.leaves)

    def untied(self) -> list[Leaf]:
        """The leaves that have an array of their own."""
        return [leaf for leaf in self.leaves if leaf.tied is None]

    def to_metadata(self) -> dict[str, str]:
        """The document as text, and its digest.

        Raises:
            CheckpointError: If it is larger than any that is read again.
        """
        document = {
            "format": FORMAT,
            "version": VERSION,
            "nodes": list(map(_branch_json, self.branches)),
            "leaves": list(map(_leaf_json, self.leaves)),
            **({"metrics": dict(self.metrics)} if self.metrics else {}),
            **({"items": list(self.items)} if any(self.items) else {}),
        }
        text = json.dumps(document, separators=(",", ":"))
        if len(text) > LARGEST:
            raise CheckpointError(
                f"The tree can't be saved: its manifest would have {len(text):,} bytes, and {LARGEST:,} is the most."
            )
        return {TEXT: text, DIGEST: digest_of(text.encode())}


def _branch_json(branch: Branch) -> dict[str, Any]:
    return {
        "name": branch.name,
        "path": branch.path,
        "kind": branch.kind,
        "children": list(branch.children),
        **({} if branch.cls is None else {"class": branch.cls}),
        **({} if branch.keys is None else {"keys": list(branch.keys)}),
        **({"fields": dict(branch.fields)} if branch.fields else {}),
        **({"statics": dict(branch.statics)} if branch.statics else {}),
    }


def _leaf_json(leaf: Leaf) -> dict[str, Any]:
    form, digests = leaf.form, leaf.digests
    record: dict[str, Any] = {
        "name": leaf.name,
        "path": leaf.path,
        "kind": form.kind,
        "shape": list(form.shape),
        "dtype": form.dtype,
    }
    if form.weak:
        record["weak"] = True
    if form.key is not None:
        record["key"] = form.key
    if form.ref:
        record["ref"] = True
    if leaf.tied is None:
        record["digest"] = digests[WHOLE] if digests.keys() == {WHOLE} else dict(digests)
    else:
        record["tied"] = leaf.tied
    return record


# Reading


def from_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """The manifest in the metadata of a file, or in the item of a step.

    Raises:
        CheckpointDamagedError: If it is not what was saved, or not a manifest.
        CheckpointError: If another version of the format wrote it.
    """
    try:
        text, saved = _typed(metadata, {TEXT: str, DIGEST: str}).values()
        if len(text) > LARGEST:
            raise ValueError(f"it has {len(text):,} characters, and none has more than {LARGEST:,}")
        now = digest_of(text.encode(errors="surrogatepass"))
        if now != saved:  # before anything else: the version may be what is damaged
            raise ValueError(f"it has the digest {now}, and {cut_text(saved, 40)} was saved")
        return _manifest(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {error}.") from error


Types = Mapping[str, type[Any]]
_DOCUMENT: Types = types.MappingProxyType(
    {"format": str, "version": int, "nodes": list, "leaves": list, "metrics": dict, "items": list}
)
_ENTRY: Types = types.MappingProxyType({"name": str, "path": str, "kind": str})
_NODE: Types = types.MappingProxyType(
    {**_ENTRY, "children": list, "class": str, "keys": list, "fields": dict, "statics": dict}
)
_LEAF: Types = types.MappingProxyType(
    {**_ENTRY, "shape": list, "dtype": str, "weak": bool, "key": str, "ref": bool, "tied": str}
)
_OPTIONAL = frozenset({"metrics", "items", "class", "keys", "fields", "statics", "weak", "key", "ref", "tied"})


def _typed(entry: Any, types: Types) -> dict[str, Any]:
    """The values of a JSON object, each of which has to be of this very type."""
    if not isinstance(entry, Mapping):
        raise TypeError(f"there should be an object, and there is {cut_text(repr(entry), 40)}")
    for key, kind in types.items():
        if type(entry.get(key)) is not kind and (key in entry or key not in _OPTIONAL):
            raise TypeError(f"{key!r} is not of the type {kind.__name__}")
    return {key: entry[key] for key in types if key in entry}


def _manifest(document: Any) -> Manifest:
    found = _typed(document, _DOCUMENT)
    if found["format"] != FORMAT:
        raise ValueError(f"the format is {cut_text(found['format'], 40)!r}, not {FORMAT!r}")
    if found["version"] != VERSION:
        cure = "Load it with a newer version."
        if found["version"] < VERSION:
            cure = "Load it with the commit that saved it, which was never released, and save to_names(tree)."
        raise CheckpointError(
            f"The checkpoint has format version {found['version']}, and this Treewright reads version {VERSION}. {cure}"
        )
    branches, leaves = tuple(map(_branch, found["nodes"])), tuple(map(_leaf, found["leaves"]))
    names = sorted([*(branch.name for branch in branches), *(leaf.name for leaf in leaves)])
    children = [join_name(branch.name, step) for branch in branches for step in branch.children]
    if len({*names}) != len(names) or names != sorted([*children, "" if branches else ROOT_LEAF]):
        raise ValueError("its entries do not make one tree")
    arrays = {leaf.name: leaf for leaf in leaves if leaf.tied is None}
    for leaf in leaves:
        first = arrays.get(leaf.array)
        if first is None or first.form != leaf.form:
            raise ValueError(f"{cut_text(leaf.name, 60)!r} can't be one array with {cut_text(leaf.array, 60)!r}")
        leaf.digests = first.digests
    return Manifest(branches, leaves, found.get("metrics", {}), tuple(found.get("items", [])))


def _branch(entry: Any) -> Branch:
    found = _typed(entry, _NODE)
    children = tuple(map(str, found.pop("children")))
    keys, cls = found.pop("keys", None), found.pop("class", None)
    return Branch(**found, children=children, cls=cls, keys=None if keys is None else tuple(keys))


def _leaf(entry: Any) -> Leaf:
    found = _typed(entry, _LEAF)
    name, path, tied = found.pop("name"), found.pop("path"), found.pop("tied", None)
    form = Form(**found | {"shape": tuple(found["shape"])})  # pyright: ignore[reportArgumentType]
    check_form(form)
    return Leaf(name, path, form, _digests(entry.get("digest"), form.shape) if tied is None else {}, tied)


def _digests(entry: Any, shape: tuple[int, ...]) -> dict[str, str]:
    """The digests of the blocks of a leaf, which cover all of it."""
    digests = {WHOLE: entry} if type(entry) is str else _typed(entry, dict.fromkeys(entry or "?", str))
    blocks = [bounds_of(place, shape) for place in digests]
    if sum(math.prod(end - start for start, end in block) for block in blocks) != math.prod(shape):
        raise ValueError("its digests do not cover it")
    return digests
