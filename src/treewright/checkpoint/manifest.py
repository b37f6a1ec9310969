"""The manifest: what a checkpoint holds besides the bytes of its arrays, as JSON with a digest of its own.

A list of the nodes and containers and a list of the leaves, each with its steps from the root. The lists are flat, so
reading does not recurse, and every entry is checked before any is used: nothing is imported, made or allocated here.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

from treewright._values.reach import public
from treewright.checkpoint.digests import WHOLE, digest_of, index_of
from treewright.checkpoint.leaves import DTYPES, KINDS, Form, Leaf, Steps, of_one_name
from treewright.errors import CheckpointDamagedError, CheckpointError

VERSION = 1
FORMAT = "treewright.checkpoint"
DEPTH = 200  # levels of a tree; deeper ones would end Python's stack on the way back
LONGEST = 90_000_000  # characters of JSON; safetensors ends at 100 MB for the header that holds it

CONTAINERS = frozenset({"node", "dict", "list", "tuple", "namedtuple", "none", "other"})
_FIELD_KINDS = frozenset({"child", "static", "buffer"})
_OF_BRANCH: Mapping[str, type[Any]] = MappingProxyType({"steps": list, "path": str, "kind": str, "children": list})
_OF_LEAF: Mapping[str, type[Any]] = MappingProxyType(
    {"steps": list, "path": str, "kind": str, "shape": list, "dtype": str, "digest": dict}
)


@public("treewright.checkpoint")
@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """A node or container: its place, its class, the steps to its children, and if it is a node, fields and statics.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"name": Static("first")})
        >>> root, name = read_manifest(path).branches
        >>> root.kind, root.children, name.cls, name.statics
        ('dict', ('name',), 'treewright:Static', {'value': 'first'})
    """

    steps: Steps
    path: str
    kind: str
    children: tuple[str, ...]
    cls: str | None = None
    keys: tuple[Any, ...] | None = None  # of a dict, in the typed form of statics
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    statics: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@public("treewright.checkpoint")
@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds: its nodes with classes and statics, its leaves with shapes, dtypes and digests.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager:
        ...     manager.save(1, {"w": jnp.ones(3)})
        ...     manager.wait()
        ...     manifest = manager.manifest()
        >>> [branch.kind for branch in manifest.branches], [leaf.name for leaf in manifest.leaves]
        (['dict'], ['w'])
    """

    branches: tuple[Branch, ...]
    leaves: tuple[Leaf, ...]

    def to_json(self) -> dict[str, Any]:
        """The document that is saved, digest included."""
        content = self._content()
        return {"manifest": content, "digest": digest_of(_canonical(content))}

    def to_text(self) -> str:
        """The document as JSON, in ASCII."""
        content = _canonical(self._content())
        return f"{_HEAD}{content.decode()}{_tail(digest_of(content))}"

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "nodes": [_branch_json(branch) for branch in self.branches],
            "leaves": [_leaf_json(leaf) for leaf in self.leaves],
        }


def with_digests(manifest: Manifest, digests: Iterable[Mapping[str, str]]) -> Manifest:
    """The manifest of a tree as it is saved: its leaves with their digests, and without their values."""
    pairs = zip(manifest.leaves, digests, strict=True)
    return Manifest(manifest.branches, tuple(Leaf(leaf.steps, leaf.path, leaf.form, each) for leaf, each in pairs))


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


_HEAD = '{"manifest":'


def _tail(digest: str) -> str:
    return f',"digest":"{digest}"}}'


def _branch_json(branch: Branch) -> dict[str, Any]:
    return {
        "steps": list(branch.steps),
        "path": branch.path,
        "kind": branch.kind,
        "children": list(branch.children),
        **_given("class", branch.cls),
        **_given("keys", None if branch.keys is None else list(branch.keys)),
        **_given("fields", dict(branch.fields)),
        **_given("statics", dict(branch.statics)),
    }


def _leaf_json(leaf: Leaf) -> dict[str, Any]:
    form = leaf.form
    return {
        "steps": list(leaf.steps),
        "path": leaf.path,
        "kind": form.kind,
        "shape": list(form.shape),
        "dtype": form.dtype,
        **_given("weak", form.weak),
        **_given("key", form.key),
        "digest": dict(leaf.digests),
    }


def _given(key: str, value: Any) -> dict[str, Any]:
    """The entry, which is left out where there is nothing to say."""
    return {} if value in (None, False, {}) else {key: value}


# Reading


class _WrongError(ValueError):
    """What is wrong with an entry."""


def from_text(text: str) -> Manifest:
    """The manifest in the JSON of a document, every entry checked.

    Raises:
        CheckpointDamagedError: If the document is not what was saved, or not a manifest.
        CheckpointError: If a newer Treewright wrote it.
    """
    if len(text) > LONGEST:
        raise CheckpointDamagedError(
            f"The manifest has {len(text)} characters, and none has more than {LONGEST}: it is damaged."
        )
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is not JSON: {error}.") from error
    return from_json(document, text)


def from_json(document: Any, text: str = "") -> Manifest:
    """The manifest in a document, every entry checked.

    Args:
        document: The document, as parsed JSON.
        text: The JSON that it was read from, if that is at hand: it makes the check of the digest faster.

    Raises:
        CheckpointDamagedError: If the document is not what was saved, or not a manifest.
        CheckpointError: If a newer Treewright wrote it.
    """
    try:
        content = _take(document, "manifest", dict)
        if _take(content, "format", str) != FORMAT:
            raise _WrongError(f"the format is {content['format']!r}, not {FORMAT!r}")
        version = _take(content, "version", int)
        if version > VERSION:
            raise CheckpointError(
                f"The checkpoint has format version {version}, and this Treewright reads up to {VERSION}. "
                f"Load it with a newer version."
            )
        if version < 1:
            raise _WrongError(f"there is no format version {version}")
        _check_digest(content, _take(document, "digest", str), text)
        branches = tuple(map(_branch, _take(content, "nodes", list)))
        leaves = tuple(map(_leaf, _take(content, "leaves", list)))
        _check_whole(branches, leaves)
    except (_WrongError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {error}.") from error
    return Manifest(branches, leaves)


def _check_digest(content: Any, saved: str, text: str) -> None:
    tail = _tail(saved)
    if text.startswith(_HEAD) and text.endswith(tail) and digest_of(text[len(_HEAD) : -len(tail)].encode()) == saved:
        return  # the very text that `to_text` wrote
    now = digest_of(_canonical(content))
    if saved != now:
        raise _WrongError(f"it has the digest {now}, and {saved} was saved")


def _checked(entry: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    """An entry, whose values have to be of these very types."""
    if type(entry) is not dict:
        raise _WrongError(f"there should be an object, and there is {str(entry)[:80]!r}")
    entries = cast("dict[str, Any]", entry)
    for key, kind in kinds.items():
        if type(entries.get(key)) is not kind:
            raise _WrongError(f"{key!r} is not of the type {kind.__name__} in {str(entries)[:80]}")
    return entries


def _take(entry: Any, key: str, kind: type[Any]) -> Any:
    return _checked(entry, {key: kind})[key]


def _take_if_there(entry: dict[str, Any], key: str, kind: type[Any], otherwise: Any) -> Any:
    return _take(entry, key, kind) if key in entry else otherwise


def _texts(items: list[Any], key: str) -> tuple[str, ...]:
    if not set(map(type, items)) <= {str}:
        raise _WrongError(f"{key!r} holds more than strings: {str(items)[:80]}")
    return tuple(items)


def _steps(entry: dict[str, Any]) -> Steps:
    steps = _texts(entry["steps"], "steps")
    if len(steps) > DEPTH:
        raise _WrongError(f"an entry lies {len(steps)} levels deep, and {DEPTH} is the limit")
    return steps


def _branch(entry: Any) -> Branch:
    entry = _checked(entry, _OF_BRANCH)
    path, kind, children = entry["path"], entry["kind"], _texts(entry["children"], "children")
    if kind not in CONTAINERS:
        raise _WrongError(f"{kind!r} is not a kind of container")
    fields: dict[str, Any] = _take_if_there(entry, "fields", dict, {})
    if not all(type(field) is str and field in _FIELD_KINDS for field in fields.values()):
        raise _WrongError(f"a field of {path} has an unknown kind: {str(fields)[:80]}")
    statics: dict[str, Any] = _take_if_there(entry, "statics", dict, {})
    if set(statics) != {name for name, field in fields.items() if field == "static"}:
        raise _WrongError(f"fields and statics of {path} disagree")
    keys: list[Any] | None = _take_if_there(entry, "keys", list, None)
    if (kind == "dict") != (keys is not None) or (keys is not None and len(keys) != len(children)):
        raise _WrongError(f"{path} has other keys than children")
    cls = _take(entry, "class", str) if kind in {"node", "namedtuple", "other"} else None
    return Branch(_steps(entry), path, kind, children, cls, None if keys is None else tuple(keys), fields, statics)


def _leaf(entry: Any) -> Leaf:
    entry = _checked(entry, _OF_LEAF)
    path, kind, dtype = entry["path"], entry["kind"], entry["dtype"]
    if kind not in KINDS or dtype not in DTYPES:
        raise _WrongError(f"{path} is a {kind!r} of {dtype!r}, and no such leaf can be saved")
    shape, digests = tuple(entry["shape"]), entry["digest"]
    sizes_are_whole = set(map(type, shape)) <= {int} and all(0 <= size < 2**63 for size in shape)
    if len(shape) > 64 or not sizes_are_whole:
        raise _WrongError(f"{path} has the shape {str(entry['shape'])[:80]}")
    key = _take(entry, "key", str) if kind == "key" else None
    form = Form(kind, shape, dtype, _take_if_there(entry, "weak", bool, otherwise=False), key)
    _check_digests(digests, shape, path)
    return Leaf(_steps(entry), path, form, digests)


def _check_digests(digests: dict[str, Any], shape: tuple[int, ...], path: str) -> None:
    for digest in digests.values():
        if type(digest) is not str or len(digest) != 32:
            raise _WrongError(f"{path} has the digest {str(digest)[:80]!r}")
    if digests.keys() == {WHOLE}:
        return
    try:
        size = sum(_size_of(place, shape) for place in digests)
    except ValueError as error:
        raise _WrongError(f"{path}: {error}") from error
    if not digests or size != math.prod(shape):
        raise _WrongError(f"the digests of {path} do not cover it")


def _size_of(place: str, shape: tuple[int, ...]) -> int:
    return math.prod(part.stop - part.start for part in index_of(place, shape))


def _check_whole(branches: tuple[Branch, ...], leaves: tuple[Leaf, ...]) -> None:
    """Every entry hangs on exactly one other, but for the root; names are unique."""
    listed = [(*branch.steps, child) for branch in branches for child in branch.children]
    present = [branch.steps for branch in branches] + [leaf.steps for leaf in leaves]
    if len(set(present)) != len(present) or len(set(listed)) != len(listed) or {(), *listed} != set(present):
        raise _WrongError("its entries do not make one tree")
    if any(of_one_name(leaves)):
        raise _WrongError("two leaves have one name")
