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

from treewright._nodes.as_json import FORMS
from treewright._nodes.json_kinds import PLAIN, shown, statics_in
from treewright._values.reach import class_of, public
from treewright.checkpoint.digests import WHOLE, digest_of, index_of
from treewright.checkpoint.leaves import (
    DTYPES,
    KINDS,
    ON_DEVICE,
    Form,
    Leaf,
    Steps,
    can_be,
    name_of,
    of_one_name,
    untied,
)
from treewright.errors import CheckpointDamagedError, CheckpointError, StaticSerializationError

VERSION = 2
FORMAT = "treewright.checkpoint"
DEPTH = 200  # levels of a tree; deeper ones would end Python's stack on the way back
LONGEST = 90_000_000  # characters of JSON; safetensors ends at 100 MB for the header that holds it

STATIC_DEPTH = 64  # levels of a static; comparing and showing one takes several calls for each
DENSITY = 6  # characters of JSON for each list or object in it; a manifest has three times as many

DICTS = frozenset({"dict", "OrderedDict", "defaultdict"})
CONTAINERS = DICTS | {"node", "list", "tuple", "namedtuple", "none", "other"}
_FIELD_KINDS = frozenset({"child", "static", "buffer"})
_OF_BRANCH: Mapping[str, type[Any]] = MappingProxyType({"steps": list, "path": str, "kind": str, "children": list})
_OF_LEAF: Mapping[str, type[Any]] = MappingProxyType(
    {"steps": list, "path": str, "kind": str, "shape": list, "dtype": str, "digest": dict}
)
_STRINGS, _INTS = frozenset({str}), frozenset({int})


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

    `version` is that of the format. Since 2 there are the statics of nodes that other libraries registered.

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
    version: int = VERSION

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
            "version": self.version,
            "nodes": [_branch_json(branch) for branch in self.branches],
            "leaves": [_leaf_json(leaf) for leaf in self.leaves],
            **_given("ties", {leaf.name: name_of(leaf.tied) for leaf in self.leaves if leaf.tied is not None}),
        }


def with_digests(manifest: Manifest, digests: Iterable[Mapping[str, str]]) -> Manifest:
    """The manifest of a tree as it is saved: its leaves with their digests, and without their values.

    Args:
        manifest: The tree, taken apart.
        digests: Those of each array, in the order of the leaves that are not tied to another.
    """
    of_array = dict(zip((leaf.steps for leaf in untied(manifest.leaves)), digests, strict=True))
    leaves = [Leaf(leaf.steps, leaf.path, leaf.form, of_array[leaf.array], tied=leaf.tied) for leaf in manifest.leaves]
    return Manifest(manifest.branches, tuple(leaves))


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
        **_given("ref", form.ref),
        "digest": dict(leaf.digests),
    }


def _given(key: str, value: Any) -> dict[str, Any]:
    """The entry, which is left out where there is nothing to say."""
    return {} if value in (None, False, {}) else {key: value}


# Reading


class _WrongError(ValueError):
    """What is wrong with an entry."""


def parsed(text: str | bytes, what: str) -> dict[str, Any]:
    """The object in a JSON text, which takes at most some twenty times the memory of its text.

    Small lists would take more: those of 24 MB of JSON, 600 MB.

    Raises:
        CheckpointDamagedError: If there is none.
    """
    try:
        if len(text) > LONGEST:
            raise CheckpointDamagedError(
                f"The {what} has {len(text)} characters, and none has more than {LONGEST}: it is damaged."
            )
        characters = text if isinstance(text, str) else text.decode()
        lists = characters.count("[") - characters.count("][")  # those of paths begin no list
        if (lists + characters.count("{")) * DENSITY > len(characters) + 1000:
            raise CheckpointDamagedError(f"The {what} is made of more lists than it could have: it is damaged.")
        document: Any = json.loads(characters, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamagedError(f"The {what} is not JSON: {error}.") from error
    if type(document) is not dict:
        raise CheckpointDamagedError(
            f"The {what} is damaged: there should be an object, and there is {shown(document)}."
        )
    return cast("dict[str, Any]", document)


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def from_text(text: str) -> Manifest:
    """The manifest in the JSON of a document, every entry checked.

    Raises:
        CheckpointDamagedError: If the document is not what was saved, or not a manifest.
        CheckpointError: If a newer Treewright wrote it.
    """
    return from_json(parsed(text, "manifest"), text)


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
            raise _WrongError(f"the format is {shown(content['format'])}, not {FORMAT!r}")
        version = _take(content, "version", int)
        _check_digest(content, _take(document, "digest", str), text)  # first: the version may be what is damaged
        if version > VERSION:
            raise CheckpointError(
                f"The checkpoint has format version {version}, and this Treewright reads up to {VERSION}. "
                f"Load it with a newer version."
            )
        if version < 1:
            raise _WrongError(f"there is no format version {version}")
        branches = tuple(map(_branch, _take(content, "nodes", list)))
        leaves = tuple(map(_leaf, _take(content, "leaves", list)))
        _check_whole(branches, leaves)
        leaves = _tied(leaves, _take_if_there(content, "ties", dict, {}))
    except (_WrongError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {error}.") from error
    return Manifest(branches, leaves, version)


def check_static(encoded: Any) -> None:
    """Return if this is a static in typed form, of a depth that can be read.

    Raises:
        StaticSerializationError: If it is not.
    """
    waiting = [(encoded, 0)] if class_of(encoded) not in PLAIN else []
    while waiting:
        static, depth = waiting.pop()
        if depth > STATIC_DEPTH:
            raise StaticSerializationError(f"it goes more than {STATIC_DEPTH} levels deep")
        waiting.extend((inner, depth + 1) for inner in statics_in(static, FORMS))


def _check_digest(content: Any, saved: str, text: str) -> None:
    tail = _tail(saved)
    # `to_text` writes ASCII. Other JSON may hold half of a character, which can't be encoded.
    as_written = text.isascii() and text.startswith(_HEAD) and text.endswith(tail)
    if as_written and digest_of(text[len(_HEAD) : -len(tail)].encode()) == saved:
        return
    now = digest_of(_canonical(content))
    if saved != now:
        raise _WrongError(f"it has the digest {now}, and {saved} was saved")


def _checked(entry: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    """An entry, whose values have to be of these very types."""
    if type(entry) is not dict:
        raise _WrongError(f"there should be an object, and there is {shown(entry)}")
    entries = cast("dict[str, Any]", entry)
    for key, kind in kinds.items():
        if type(entries.get(key)) is not kind:
            place = entries.get("path")
            where = f" of {shown(place)}" if type(place) is str and place else ""
            raise _WrongError(f"{key!r}{where} is not of the type {kind.__name__}")
    return entries


def _take(entry: Any, key: str, kind: type[Any]) -> Any:
    return _checked(entry, {key: kind})[key]


def _take_if_there(entry: dict[str, Any], key: str, kind: type[Any], otherwise: Any) -> Any:
    return _take(entry, key, kind) if key in entry else otherwise


def _texts(items: list[Any], key: str) -> tuple[str, ...]:
    if not _STRINGS.issuperset(map(type, items)):
        raise _WrongError(f"{key!r} holds more than strings")
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
        raise _WrongError(f"{shown(kind)} is not a kind of container")
    fields: dict[str, Any] = _take_if_there(entry, "fields", dict, {})
    if not all(type(field) is str and field in _FIELD_KINDS for field in fields.values()):
        raise _WrongError(f"a field of {shown(path)} has an unknown kind")
    statics: dict[str, Any] = _take_if_there(entry, "statics", dict, {})
    if kind == "node" and statics.keys() != {name for name, field in fields.items() if field == "static"}:
        raise _WrongError(f"fields and statics of {shown(path)} disagree")
    if kind == "defaultdict" and statics.keys() != {"default_factory"}:
        raise _WrongError(f"{shown(path)} is a defaultdict without its factory")
    keys: list[Any] | None = _take_if_there(entry, "keys", list, None)
    if (kind in DICTS) != (keys is not None) or (keys is not None and len(keys) != len(children)):
        raise _WrongError(f"{shown(path)} has other keys than children")
    try:
        for static in (*statics.values(), *(keys or ())):
            check_static(static)
    except StaticSerializationError as error:
        raise _WrongError(f"a static or key of {shown(path)}: {error.args[0].rstrip('.')}") from error
    cls = _take(entry, "class", str) if kind in {"node", "namedtuple", "other"} else None
    return Branch(_steps(entry), path, kind, children, cls, None if keys is None else tuple(keys), fields, statics)


def _leaf(entry: Any) -> Leaf:
    entry = _checked(entry, _OF_LEAF)
    path, kind, dtype, shape = entry["path"], entry["kind"], entry["dtype"], tuple(entry["shape"])
    if kind not in KINDS or dtype not in DTYPES:
        raise _WrongError(f"{shown(path)} is a {shown(kind)} of {shown(dtype)}, and no such leaf can be saved")
    if (
        len(shape) > 64
        or not _INTS.issuperset(map(type, shape))
        or (shape and not 0 <= min(shape) <= max(shape) < 2**63)
    ):
        raise _WrongError(f"{shown(path)} has an impossible shape")
    if not can_be(kind, shape, dtype):
        raise _WrongError(f"{shown(path)}, of kind {kind}, has the shape {shape} and the dtype {dtype}")
    key = _take(entry, "key", str) if kind == "key" else None
    weak, ref = (_take_if_there(entry, name, bool, otherwise=False) for name in ("weak", "ref"))
    if ref and kind not in ON_DEVICE:
        raise _WrongError(f"{shown(path)} is a ref of kind {kind}, and a ref holds an array or a key")
    form = Form(kind, shape, dtype, weak, key, ref)
    _check_digests(entry["digest"], shape, path)
    return Leaf(_steps(entry), path, form, entry["digest"])


def _check_digests(digests: dict[str, Any], shape: tuple[int, ...], path: str) -> None:
    for digest in digests.values():
        if type(digest) is not str or len(digest) != 32:
            raise _WrongError(f"{shown(path)} has the digest {shown(digest)}")
    if digests.keys() == {WHOLE}:
        return
    try:
        size = sum(_size_of(place, shape) for place in digests)
    except ValueError as error:
        raise _WrongError(f"{shown(path)}: {error}") from error
    if not digests or size != math.prod(shape):
        raise _WrongError(f"the digests of {shown(path)} do not cover it")


def _size_of(place: str, shape: tuple[int, ...]) -> int:
    return math.prod(part.stop - part.start for part in index_of(place, shape))


def _tied(leaves: tuple[Leaf, ...], ties: dict[str, Any]) -> tuple[Leaf, ...]:
    """The leaves, some of them tied to others, which have to be the same but for their place."""
    if not ties:
        return leaves
    named = {leaf.name: leaf for leaf in leaves}
    for name, other in ties.items():
        pair = named.get(name), named.get(other) if type(other) is str else None
        if None in pair or other in ties or len({(str(leaf.form), str(leaf.digests)) for leaf in pair if leaf}) != 1:
            raise _WrongError(f"{shown(name)} can't be tied to {shown(other)}")
    return tuple(
        dataclasses.replace(leaf, tied=named[ties[leaf.name]].steps) if leaf.name in ties else leaf for leaf in leaves
    )


def _check_whole(branches: tuple[Branch, ...], leaves: tuple[Leaf, ...]) -> None:
    """Every entry hangs on exactly one other, but for the root; names are unique."""
    # By their number first: the steps of children that are nowhere can take far more memory than their names.
    if sum(len(branch.children) for branch in branches) != len(branches) + len(leaves) - 1:
        raise _WrongError("its entries do not make one tree")
    listed = [(*branch.steps, child) for branch in branches for child in branch.children]
    present = [branch.steps for branch in branches] + [leaf.steps for leaf in leaves]
    if len(set(present)) != len(present) or len(set(listed)) != len(listed) or {(), *listed} != set(present):
        raise _WrongError("its entries do not make one tree")
    if any(of_one_name(leaves)):
        raise _WrongError("two leaves have one name")
