"""The manifest: what a checkpoint says about the bytes of its arrays, as JSON with a digest of its own.

One entry for each node or container and one for each leaf, both in JAX's order, each with the name of its place. All of
it is checked before any of it is used. Nothing is imported, made or allocated here.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from treewright._core.text import cut_text
from treewright.checkpoint.arrays import SHARED, WHOLE, Form, bounds_of, digest_of, form_problem
from treewright.errors import CheckpointDamagedError, CheckpointError

VERSION = 2  # 1 was never released
FORMAT = "treewright.checkpoint"
LARGEST = 100_000_000  # bytes of a manifest; safetensors ends there too, and JSON takes some twenty times the memory
DEPTH = 200  # levels of a tree; deeper ones would end Python's stack on the way back
TEXT, DIGEST = "treewright", "treewright.digest"  # the names in a file's metadata, and in the item of a step

DICTS = frozenset({"dict", "OrderedDict", "defaultdict"})
_NAMED = frozenset({"node", "namedtuple", "other"})
_CONTAINERS = DICTS | _NAMED | {"list", "tuple", "none"}
_FIELD_KINDS = frozenset({"child", "static", "buffer"})
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


class _WrongError(ValueError):
    """What is wrong with an entry."""


def from_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """The manifest in the metadata of a file, or in the item of a step, every entry checked.

    Raises:
        CheckpointDamagedError: If it is not what was saved, or not a manifest.
        CheckpointError: If another version of the format wrote it.
    """
    try:
        text, saved = (_get(metadata, key, str) for key in (TEXT, DIGEST))
        if len(text) > LARGEST:
            raise _WrongError(f"it has {len(text):,} characters, and none has more than {LARGEST:,}")
        now = digest_of(text.encode(errors="surrogatepass"))
        if now != saved:  # before anything else: the version may be what is damaged
            raise _WrongError(f"it has the digest {now}, and {cut_text(saved, 40)} was saved")
        return _manifest(json.loads(text, parse_constant=_constant))
    except (ValueError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {error}.") from error


def _constant(name: str) -> float:
    if name == "NaN":  # a metric
        return math.nan
    return math.inf if name == "Infinity" else -math.inf


def _manifest(document: Any) -> Manifest:
    if _get(document, "format", str) != FORMAT:
        raise _WrongError(f"the format is {cut_text(document['format'], 40)!r}, not {FORMAT!r}")
    version = _get(document, "version", int)
    if version > VERSION:
        raise CheckpointError(
            f"The checkpoint has format version {version}, and this Treewright reads version {VERSION}. "
            f"Load it with a newer version."
        )
    if version < VERSION:
        raise CheckpointError(
            f"The checkpoint has format version {version}, which no released Treewright wrote, and this one reads "
            f"version {VERSION}. Load it with the commit that saved it, and save to_names(tree) with safetensors."
        )
    branches = [_entry(f"nodes[{i}]", _branch, entry) for i, entry in enumerate(_get(document, "nodes", list))]
    leaves = [_entry(f"leaves[{i}]", _leaf, entry) for i, entry in enumerate(_get(document, "leaves", list))]
    _check_tree(branches, leaves)
    _check_ties(leaves)
    metrics = _get(document, "metrics", dict) if "metrics" in document else {}
    if not all(type(value) in {int, float} for value in metrics.values()):
        raise _WrongError("a metric is not a number")
    items = _get(document, "items", list) if "items" in document else []
    if not all(type(entry) is dict for entry in items):
        raise _WrongError("'items' holds more than objects")
    return Manifest(tuple(branches), tuple(leaves), metrics, tuple(items))


def _entry(place: str, read: Any, entry: Any) -> Any:
    try:
        return read(entry)
    except _WrongError as error:
        raise _WrongError(f"{place}: {error}") from None


def _check_tree(branches: list[Branch], leaves: list[Leaf]) -> None:
    """Return if the entries make one tree, no deeper than any that is saved."""
    names = [*(branch.name for branch in branches), *(leaf.name for leaf in leaves)]
    children = [join_name(branch.name, step) for branch in branches for step in branch.children]
    root = "" if branches else ROOT_LEAF
    if len({*names}) != len(names) or len({*children}) != len(children) or {*names} != {root, *children}:
        raise _WrongError("its entries do not make one tree")
    depths = {root: 0}
    for branch in branches:
        if depths.get(branch.name, DEPTH) >= DEPTH:
            raise _WrongError(f"its nodes are out of order, or more than {DEPTH} levels deep")
        depths.update(
            dict.fromkeys((join_name(branch.name, step) for step in branch.children), depths[branch.name] + 1)
        )


def _check_ties(leaves: Iterable[Leaf]) -> None:
    before: dict[str, Leaf] = {}
    for leaf in leaves:
        if leaf.tied is not None:
            first = before.get(leaf.tied)
            if first is None or first.form != leaf.form or first.tied is not None or leaf.form.kind not in SHARED:
                raise _WrongError(f"{cut_text(leaf.name, 60)!r} can't be one array with {cut_text(leaf.tied, 60)!r}")
            leaf.digests = first.digests
        before[leaf.name] = leaf


def _get(entry: Any, key: str, kind: type[Any]) -> Any:
    """The value of a key, which has to be of this very type."""
    if type(entry) is not dict:
        raise _WrongError(f"there should be an object, and there is {cut_text(repr(entry), 40)}")
    if type(entry.get(key)) is not kind:
        raise _WrongError(f"{key!r} is not of the type {kind.__name__}")
    return entry[key]


def _texts(entry: Any, key: str) -> tuple[str, ...]:
    items = _get(entry, key, list)
    if not all(type(item) is str for item in items):
        raise _WrongError(f"{key!r} holds more than strings")
    return tuple(items)


def _branch(entry: Any) -> Branch:
    name, path, kind = (_get(entry, key, str) for key in ("name", "path", "kind"))
    children = _texts(entry, "children")
    if kind not in _CONTAINERS:
        raise _WrongError(f"{cut_text(kind, 40)!r} is not a kind of container")
    fields = _get(entry, "fields", dict) if "fields" in entry else {}
    statics = _get(entry, "statics", dict) if "statics" in entry else {}
    if not all(type(field) is str and field in _FIELD_KINDS for field in fields.values()):
        raise _WrongError("a field has an unknown kind")
    if kind == "node" and statics.keys() != {field for field, kind in fields.items() if kind == "static"}:
        raise _WrongError("fields and statics disagree")
    if kind == "defaultdict" and statics.keys() != {"default_factory"}:
        raise _WrongError("it is a defaultdict without its factory")
    keys = tuple(_get(entry, "keys", list)) if "keys" in entry else None
    if (kind in DICTS) != (keys is not None) or (keys is not None and len(keys) != len(children)):
        raise _WrongError("it has other keys than children")
    cls = _get(entry, "class", str) if kind in _NAMED else None
    return Branch(name, path, kind, children, cls, keys, fields, statics)


def _leaf(entry: Any) -> Leaf:
    name, path, kind, dtype = (_get(entry, key, str) for key in ("name", "path", "kind", "dtype"))
    weak, ref = (key in entry and _get(entry, key, bool) for key in ("weak", "ref"))
    implementation = _get(entry, "key", str) if "key" in entry else None
    form = Form(cast("Any", kind), tuple(_get(entry, "shape", list)), dtype, weak, implementation, ref)
    problem = form_problem(form)
    if problem is not None:
        raise _WrongError(problem)
    if "tied" in entry:
        return Leaf(name, path, form, tied=_get(entry, "tied", str))
    return Leaf(name, path, form, _digests(entry.get("digest"), form.shape))


def _digests(entry: Any, shape: tuple[int, ...]) -> dict[str, str]:
    """The digests of the blocks of a leaf, of which there may be one for all of it."""
    digests: Any = {WHOLE: entry} if type(entry) is str else entry
    if type(digests) is not dict or not digests:
        raise _WrongError("it has no digest")
    if not all(type(digest) is str and len(digest) == 32 for digest in digests.values()):
        raise _WrongError("it has a digest of another length")
    if digests.keys() != {WHOLE}:
        size = sum(math.prod(end - start for start, end in bounds_of(place, shape)) for place in digests)
        if size != math.prod(shape):
            raise _WrongError("its digests do not cover it")
    return cast("dict[str, str]", digests)
