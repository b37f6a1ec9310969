"""The manifest: what a checkpoint holds besides the bytes of its arrays, as JSON with a digest of its own.

A table of the distinct containers, a table of the distinct forms of leaves, the tree as a list of numbers, and a digest
for each leaf. The tree is in JAX's order: 2 stands for container 2, whose children follow, and ~2 for a leaf of form 2.
In place of a digest stands the number of an earlier leaf, where both are one array.
So 100,000 leaves take little more than their digests, and each thing that is the same is checked once. Reading does not
recurse, and everything is checked before any of it is used: nothing is imported, made or allocated here.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

from treewright._core.as_json import FORMS
from treewright._core.functions import class_of, public
from treewright._core.json_kinds import PLAIN, shown, statics_in
from treewright.checkpoint.digests import WHOLE, digest_of, index_of
from treewright.checkpoint.leaves import (
    DTYPES,
    KINDS,
    ON_DEVICE,
    SHARED,
    Form,
    Leaf,
    Steps,
    can_be,
    of_one_name,
)
from treewright.errors import CheckpointDamagedError, CheckpointError, StaticSerializationError

VERSION = 1
FORMAT = "treewright.checkpoint"
DEPTH = 200  # levels of a tree; deeper ones would end Python's stack on the way back
LONGEST = 90_000_000  # characters of JSON; safetensors ends at 100 MB for the header that holds it
ROOM = 1 << 29  # bytes that the entries of a tree may take, which a short list of numbers could make many of

STATIC_DEPTH = 64  # levels of a static; comparing and showing one takes several calls for each
DENSITY = 6  # characters of JSON for each list or object in it; a manifest has three times as many

DICTS = frozenset({"dict", "OrderedDict", "defaultdict"})
CONTAINERS = DICTS | {"node", "list", "tuple", "namedtuple", "none", "other"}
_FIELD_KINDS = frozenset({"child", "static", "buffer"})
_OF_CONTAINER: Mapping[str, type[Any]] = MappingProxyType({"kind": str, "children": list, "paths": list})
_OF_FORM: Mapping[str, type[Any]] = MappingProxyType({"kind": str, "shape": list, "dtype": str})
_STRINGS, _INTS = frozenset({str}), frozenset({int})

# The names in a file's metadata, and in the document that Orbax keeps of a step.
TEXT, DIGEST = "treewright", "treewright.digest"

T = TypeVar("T")


@public("treewright.checkpoint")
@dataclasses.dataclass(slots=True)  # not frozen, which takes four times as long to make
class Branch:
    """A node or container: its place, its class, the steps to its children, and if it is a node, fields and statics.

    `paths` holds what the path of each child has besides that of the container.

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
    paths: tuple[str, ...] = ()


def placed(like: Branch, steps: Steps, path: str) -> Branch:
    """The same container in another place."""
    return Branch(steps, path, like.kind, like.children, like.cls, like.keys, like.fields, like.statics, like.paths)


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
        """The document that is saved.

        Raises:
            CheckpointError: If the tree is larger than any that is loaded again.
        """
        entries: dict[Steps, Branch | Leaf] = {branch.steps: branch for branch in self.branches}
        entries |= {leaf.steps: leaf for leaf in self.leaves}
        containers: dict[Any, tuple[int, Branch]] = {}
        forms: dict[Form, int] = {}
        tree: list[int] = []
        digests: list[Any] = []
        places: dict[Steps, int] = {}
        waiting: list[Steps] = [()]
        room = ROOM
        while waiting:
            entry = entries[waiting.pop()]
            room -= _room_of(entry.steps, entry.path)
            if isinstance(entry, Leaf):
                tree.append(~forms.setdefault(entry.form, len(forms)))
                places[entry.steps] = len(digests)
                digest = entry.digests.get(WHOLE) or dict(entry.digests)
                digests.append(digest if entry.tied is None else places[entry.tied])
            else:
                tree.append(containers.setdefault(_kind_of(entry), (len(containers), entry))[0])
                waiting += [(*entry.steps, child) for child in reversed(entry.children)]
        if room < 0:
            raise CheckpointError(f"The tree can't be saved: its {len(entries):,} parts take more than {ROOM:,} bytes.")
        return {
            "format": FORMAT,
            "version": VERSION,
            "containers": [_container_json(container) for _, container in containers.values()],
            "forms": list(map(_form_json, forms)),
            "tree": tree,
            "digests": digests,
        }

    def to_metadata(self) -> dict[str, str]:
        """The document as text, and its digest.

        Raises:
            CheckpointError: If the tree is larger than any that is loaded again.
        """
        text = json.dumps(self.to_json(), separators=(",", ":"))
        if len(text) > LONGEST:
            raise CheckpointError(
                f"The tree can't be saved: its manifest would have {len(text)} characters, and {LONGEST} is the most."
            )
        return {TEXT: text, DIGEST: digest_of(text.encode())}


def _room_of(steps: Steps, path: str) -> int:
    """About how many bytes an entry takes."""
    return 200 + 8 * len(steps) + len(path)


def _kind_of(branch: Branch) -> Any:
    """What branches that are the same in all but their place have in common: they share what can't be compared."""
    shared = branch.keys, branch.fields, branch.statics
    return (branch.kind, branch.cls, branch.children, branch.paths, *map(id, shared))


def _container_json(branch: Branch) -> dict[str, Any]:
    return {
        "kind": branch.kind,
        "children": list(branch.children),
        "paths": list(branch.paths),
        **_given("class", branch.cls),
        **_given("keys", None if branch.keys is None else list(branch.keys)),
        **_given("fields", dict(branch.fields)),
        **_given("statics", dict(branch.statics)),
    }


def _form_json(form: Form) -> dict[str, Any]:
    return {
        "kind": form.kind,
        "shape": list(form.shape),
        "dtype": form.dtype,
        **_given("weak", form.weak),
        **_given("key", form.key),
        **_given("ref", form.ref),
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


def from_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """The manifest in the metadata of a file, or in the document of a step, every entry checked.

    Raises:
        CheckpointDamagedError: If it is not what was saved, or not a manifest.
        CheckpointError: If a newer Treewright wrote it.
    """
    try:
        text, saved = (_take(metadata, key, str) for key in (TEXT, DIGEST))
        now = digest_of(text.encode(errors="surrogatepass"))
        if now != saved:  # before anything else: the version may be what is damaged
            raise _WrongError(f"it has the digest {now}, and {shown(saved)} was saved")
        return from_json(parsed(text, "manifest"))
    except _WrongError as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {error}.") from error


def from_json(content: Any) -> Manifest:
    """The manifest in a document, every entry checked.

    Raises:
        CheckpointDamagedError: If the document is not a manifest.
        CheckpointError: If a newer Treewright wrote it.
    """
    try:
        if _take(content, "format", str) != FORMAT:
            raise _WrongError(f"the format is {shown(content['format'])}, not {FORMAT!r}")
        version = _take(content, "version", int)
        if version > VERSION:
            raise CheckpointError(
                f"The checkpoint has format version {version}, and this Treewright reads up to {VERSION}. "
                f"Load it with a newer version."
            )
        if version < 1:
            raise _WrongError(f"there is no format version {version}")
        containers, forms = _table(content, "containers", _container), _table(content, "forms", _form)
        manifest = _manifest(containers, forms, _take(content, "tree", list), _take(content, "digests", list))
        if any(of_one_name(manifest.leaves)):
            raise _WrongError("two leaves have one name")
    except (_WrongError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {error}.") from error
    return manifest


def _manifest(containers: list[Branch], forms: list[Form], tree: list[int], digests: list[Any]) -> Manifest:
    """The entries of a tree, each with the place that it has."""
    if not _INTS.issuperset(map(type, tree)) or not _between(tree, -len(forms), len(containers)):
        raise _WrongError("'tree' holds more than numbers of containers and forms")
    # By their number first: the places of children that are nowhere could take any memory.
    children = sum(len(containers[number].children) for number in tree if number >= 0)
    if children != len(tree) - 1 or len(digests) != sum(number < 0 for number in tree):
        raise _WrongError("its entries do not make one tree")
    branches: list[Branch] = []
    leaves: list[Leaf] = []
    waiting: list[tuple[Steps, str]] = [((), "")]
    room = ROOM
    for number in tree:
        if not waiting:
            raise _WrongError("its entries do not make one tree")
        steps, path = waiting.pop()
        room -= _room_of(steps, path)
        if len(steps) > DEPTH:
            raise _WrongError(f"an entry lies {len(steps)} levels deep, and {DEPTH} is the limit")
        if room < 0:
            raise _WrongError(f"its entries would take more than {ROOM:,} bytes")
        if number < 0:
            leaves.append(_leaf(steps, path or "the tree", forms[~number], digests[len(leaves)], leaves))
            continue
        like = containers[number]
        branches.append(placed(like, steps, path))
        pairs = zip(reversed(like.children), reversed(like.paths), strict=True)
        waiting += [((*steps, child), path + more) for child, more in pairs]
    return Manifest(tuple(branches), tuple(leaves))


def _leaf(steps: Steps, path: str, form: Form, digest: Any, before: list[Leaf]) -> Leaf:
    """A leaf with its digests, or with the number of an earlier one whose array it is."""
    if type(digest) is not int:
        return Leaf(steps, path, form, _digests(digest, form.shape, path))
    first = before[digest] if 0 <= digest < len(before) else None
    if first is None or first.form != form or first.tied is not None or form.kind not in SHARED:
        raise _WrongError(f"{shown(path)} can't be one array with the leaf {digest}")
    return Leaf(steps, path, form, first.digests, tied=first.steps)


def _between(numbers: Sequence[int], first: int, end: int) -> bool:
    return not numbers or first <= min(numbers) <= max(numbers) < end


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


def _checked(entry: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    """An entry, whose values have to be of these very types."""
    if type(entry) is not dict:
        raise _WrongError(f"there should be an object, and there is {shown(entry)}")
    entries = cast("dict[str, Any]", entry)
    for key, kind in kinds.items():
        if type(entries.get(key)) is not kind:
            raise _WrongError(f"{key!r} is not of the type {kind.__name__}")
    return entries


def _take(entry: Any, key: str, kind: type[Any]) -> Any:
    return _checked(entry, {key: kind})[key]


def _take_if_there(entry: dict[str, Any], key: str, kind: type[Any], otherwise: Any) -> Any:
    return _take(entry, key, kind) if key in entry else otherwise


def _table(content: dict[str, Any], key: str, row: Callable[[Any], T]) -> list[T]:
    rows: list[T] = []
    for entry in _take(content, key, list):
        try:
            rows.append(row(entry))
        except (_WrongError, StaticSerializationError) as error:
            raise _WrongError(f"{key}[{len(rows)}]: {str(error.args[0]).rstrip('.')}") from error
    return rows


def _texts(items: Sequence[Any], key: str) -> tuple[str, ...]:
    if not _STRINGS.issuperset(map(type, items)):
        raise _WrongError(f"{key!r} holds more than strings")
    return tuple(items)


def _container(entry: Any) -> Branch:
    """A container, or a node, as it would be at the root."""
    entry = _checked(entry, _OF_CONTAINER)
    kind, children, paths = entry["kind"], _texts(entry["children"], "children"), _texts(entry["paths"], "paths")
    if kind not in CONTAINERS:
        raise _WrongError(f"{shown(kind)} is not a kind of container")
    if len(set(children)) != len(children) or len(paths) != len(children):
        raise _WrongError("two of its children have one name, or it has other paths than children")
    fields: dict[str, Any] = _take_if_there(entry, "fields", dict, {})
    if not all(type(field) is str and field in _FIELD_KINDS for field in fields.values()):
        raise _WrongError("a field has an unknown kind")
    statics: dict[str, Any] = _take_if_there(entry, "statics", dict, {})
    if kind == "node" and statics.keys() != {name for name, field in fields.items() if field == "static"}:
        raise _WrongError("fields and statics disagree")
    if kind == "defaultdict" and statics.keys() != {"default_factory"}:
        raise _WrongError("it is a defaultdict without its factory")
    keys: list[Any] | None = _take_if_there(entry, "keys", list, None)
    if (kind in DICTS) != (keys is not None) or (keys is not None and len(keys) != len(children)):
        raise _WrongError("it has other keys than children")
    for static in (*statics.values(), *(keys or ())):
        check_static(static)
    cls = _take(entry, "class", str) if kind in {"node", "namedtuple", "other"} else None
    return Branch((), "", kind, children, cls, None if keys is None else tuple(keys), fields, statics, paths)


def _form(entry: Any) -> Form:
    entry = _checked(entry, _OF_FORM)
    kind, dtype, shape = entry["kind"], entry["dtype"], tuple(entry["shape"])
    if kind not in KINDS or dtype not in DTYPES:
        raise _WrongError(f"no {shown(kind)} of {shown(dtype)} can be saved")
    few = len(shape) <= 64 and _INTS.issuperset(map(type, shape)) and _between(shape, 0, 2**63)
    # numpy multiplies all sizes but those that are 0.
    if not few or math.prod(size or 1 for size in shape) * DTYPES[dtype].itemsize >= 2**63:
        raise _WrongError("a leaf has an impossible shape")
    if not can_be(kind, shape, dtype):
        raise _WrongError(f"a leaf of kind {kind} has the shape {shape} and the dtype {dtype}")
    key = _take(entry, "key", str) if kind == "key" else None
    weak, ref = (_take_if_there(entry, name, bool, otherwise=False) for name in ("weak", "ref"))
    if ref and kind not in ON_DEVICE:
        raise _WrongError(f"a leaf is a ref of kind {kind}, and a ref holds an array or a key")
    return Form(kind, shape, dtype, weak, key, ref)


def _digests(entry: Any, shape: tuple[int, ...], path: str) -> dict[str, str]:
    """The digests of the blocks of a leaf, of which there may be one for all of it."""
    digests: dict[str, Any] = {WHOLE: entry} if type(entry) is str else entry
    if type(digests) is not dict or not digests:
        raise _WrongError(f"there is no digest of {shown(path)}")
    for digest in digests.values():
        if type(digest) is not str or len(digest) != 32:
            raise _WrongError(f"{shown(path)} has the digest {shown(digest)}")
    if WHOLE in digests and len(digests) == 1:
        return digests
    try:
        size = sum(_size_of(place, shape) for place in digests)
    except ValueError as error:
        raise _WrongError(f"{shown(path)}: {error}") from error
    if size != math.prod(shape):
        raise _WrongError(f"the digests of {shown(path)} do not cover it")
    return digests


def _size_of(place: str, shape: tuple[int, ...]) -> int:
    return math.prod(part.stop - part.start for part in index_of(place, shape))
