"""The manifest: structure, statics and digests of a checkpoint, as JSON protected by its own digest.

It has a record for each node or container and one for each leaf, both in JAX's order. Reading it imports nothing and
creates no object of a user's class.
"""

import dataclasses
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from treewright._base.text import cut_text
from treewright.checkpoint.arrays import KINDS, Form, Layout, digest_of
from treewright.checkpoint.disk import parsing
from treewright.errors import CheckpointError

VERSION = 8  # earlier versions were never released
MAX_BYTES = 100_000_000  # limit of a header, as in safetensors; parsed JSON needs about 20 times the memory
TEXT, DIGEST = "treewright", "treewright.digest"  # keys in a file's metadata
ROOT_LEAF = "value"  # the name of the only leaf of a tree that is a leaf


def join_name(name: str, step: str) -> str:
    """The name of a child: `params.layers.0` and `kernel` give `params.layers.0.kernel`."""
    return f"{name}.{step}" if name else step


def renamer(renamed: Mapping[str, str]) -> tuple[Callable[[str], str], dict[str, None]]:
    """A function that renames whole components at any depth, and the old names that it has not found yet."""
    runs = sorted(renamed, key=lambda run: -run.count("."))
    unused = dict.fromkeys(runs)

    def new_run(match: re.Match[str]) -> str:
        unused.pop(match[0], None)
        return renamed[match[0]]

    pattern = re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, runs))})(?![^.])")
    return lambda name: pattern.sub(new_run, name), unused


# Neither frozen nor slotted: construction would take three times as long, and `vars(record)` has the JSON.


@dataclasses.dataclass
class LeafRecord:
    """The record of a leaf: its flat name (`params.layers.0.kernel`), its path, its form and its digest.

    In a step, each process writes its blocks of JAX arrays, and their digests, to its own file. `layout` is an index
    into the manifest's layouts, which record the process that wrote each block.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> (leaf,) = read_manifest(path).leaves
        >>> leaf.name, leaf.path, str(leaf.form), len(leaf.digest)
        ('w', "['w']", 'float32[3] (array)', 32)
    """

    name: str
    path: str
    form: Form
    digest: str = ""
    layout: int | None = None
    saved_name: str = ""  # if it was renamed; never written

    @property
    def array(self) -> str:
        """The name under which its array is saved."""
        return self.saved_name or self.name


@dataclasses.dataclass
class NodeRecord:
    """The record of a node or container: its name, path, kind and class, the names of its children, and its statics.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"name": Static("first")})
        >>> root, name = read_manifest(path).nodes
        >>> root.kind, root.children, name.cls, name.statics
        ('dict', ('name',), 'treewright:Static', {'value': 'first'})
    """

    name: str
    path: str
    kind: str
    children: tuple[str, ...]
    cls: str | None = None
    keys: tuple[Any, ...] = ()  # for a dict; encoded as statics are
    statics: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @property
    def shown_path(self) -> str:
        """The path for messages."""
        return self.path or "the tree"


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The records of a checkpoint: nodes with classes and statics, leaves with shapes, dtypes and digests.

    A step also has its `metrics`, the number of `processes` that saved it, and the `layouts` of its arrays over them.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager:
        ...     manager.save(1, {"w": jnp.ones(3)})
        ...     manifest = manager.manifest()
        >>> [node.kind for node in manifest.nodes], [leaf.name for leaf in manifest.leaves]
        (['dict'], ['w'])
    """

    nodes: tuple[NodeRecord, ...]
    leaves: tuple[LeafRecord, ...]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    processes: int = 1
    layouts: tuple[Layout, ...] = ()

    def layout_of(self, leaf: LeafRecord) -> Layout:
        """The blocks of a leaf. A leaf that is not a JAX array is one block, equal in all processes."""
        return Layout((1,) * len(leaf.form.shape), ((0, 1),)) if leaf.layout is None else self.layouts[leaf.layout]

    def with_names(self, new_name: Callable[[str], str]) -> "Manifest":
        """A copy with nodes, statics and leaves renamed."""
        nodes: list[NodeRecord] = []
        for node in self.nodes:
            renamed = {new_name(join_name(node.name, field)): value for field, value in node.statics.items()}
            statics = {place.rpartition(".")[2]: value for place, value in renamed.items()}
            nodes.append(dataclasses.replace(node, name=new_name(node.name), statics=statics))
        leaves = [dataclasses.replace(leaf, name=new_name(leaf.name), saved_name=leaf.array) for leaf in self.leaves]
        return dataclasses.replace(self, nodes=tuple(nodes), leaves=tuple(leaves))

    def to_metadata(self) -> dict[str, str]:
        """The records as JSON, and the digest of the JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return seal({"version": VERSION, **fields})


def seal(document: Any, key: str = TEXT) -> dict[str, str]:
    """A document as JSON, and the digest of the JSON, under the key and `KEY.digest`."""
    text = json.dumps(document, separators=(",", ":"), check_circular=False, default=_fields_of)  # a third of the time
    return {key: text, f"{key}.digest": digest_of(text.encode())}


def _fields_of(record: LeafRecord | NodeRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name != "saved_name"}


def unseal(metadata: Mapping[str, Any], key: str = TEXT) -> Any:
    """The document that `seal` wrote.

    Raises:
        KeyError: If it is missing.
        ValueError: If the digest does not match.
    """
    text, saved = metadata[key], metadata[f"{key}.digest"]
    now = digest_of(text.encode(errors="surrogatepass"))
    if now != saved:
        raise ValueError(f"its digest is {now}, but {cut_text(str(saved), 40)} was saved")
    return json.loads(text)


# Reading


def from_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """The manifest in a file's metadata.

    Raises:
        CheckpointDamagedError: If the digest does not match, or it is not a manifest.
        CheckpointError: If it has a different format version.
    """
    with parsing("The manifest", "is damaged"):
        return _manifest(unseal(metadata))  # the digest first: the version may be damaged


def check_version(version: Any) -> None:
    """Check the format version of a checkpoint.

    Raises:
        CheckpointError: If it is another one.
    """
    if version != VERSION:
        fix = "a newer version" if version > VERSION else "the version that saved it, and save to_names(tree)"
        raise CheckpointError(
            f"The checkpoint has format version {version}, but this Treewright reads version {VERSION}. Load it with "
            f"{fix}."
        )


def _manifest(document: Any) -> Manifest:
    check_version(document["version"])
    manifest = Manifest(
        nodes=tuple([_node_record(**record) for record in document["nodes"]]),
        leaves=_leaves(document["leaves"]),
        metrics=dict(document["metrics"]),
        processes=document["processes"],
        layouts=tuple([_layout(tuple(grid), tuple(map(tuple, writers))) for grid, writers in document["layouts"]]),
    )
    nodes, leaves = manifest.nodes, manifest.leaves
    if type(manifest.processes) is not int or manifest.processes < 1:
        raise ValueError(f"its number of processes is {manifest.processes!r}")
    if any(type(value) not in {int, float} for value in manifest.metrics.values()):
        raise ValueError("its metrics are not numbers")
    names = [*(node.name for node in nodes), *(leaf.name for leaf in leaves)]
    expected = ["" if nodes else ROOT_LEAF, *(join_name(x.name, step) for x in nodes for step in x.children)]
    if len({*names}) != len(names) or sorted(names) != sorted(expected):
        raise ValueError("its records do not form one tree")
    for leaf in leaves:
        grid = manifest.layout_of(leaf).grid
        if any(size % count for size, count in zip(leaf.form.shape, grid, strict=True)):
            raise ValueError(f"{leaf.name!r} can't have the blocks {grid}")
    return manifest


def _leaves(records: Any) -> tuple[LeafRecord, ...]:
    form_of = functools.cache(_form)  # many leaves share few forms

    def leaf_record(*, name: Any, path: Any, form: Any, digest: Any, layout: Any) -> LeafRecord:
        is_layout = layout is None or (type(layout) is int and layout >= 0)
        if not (type(name) is type(path) is type(digest) is str and is_layout):
            raise ValueError(f"its record of {name!r} is invalid")
        kind, shape, *rest = form
        return LeafRecord(name, path, form_of(kind, tuple(shape), *rest), digest, layout)

    return tuple([leaf_record(**record) for record in records])


def _layout(grid: tuple[Any, ...], writers: tuple[Any, ...]) -> Layout:
    numbers = [*grid, *(count for _, count in writers), *(process + 1 for process, _ in writers)]
    is_right = all(type(number) is int and number > 0 for number in numbers)
    if not is_right or sum(count for _, count in writers) != math.prod(grid):
        raise ValueError(f"its layout {grid} is invalid")
    return Layout(grid, writers)


def _node_record(*, children: Any, keys: Any, statics: Any, **texts: Any) -> NodeRecord:
    node = NodeRecord(**texts, children=tuple(map(str, children)), keys=tuple(keys), statics=dict(statics))
    is_text = all(isinstance(text, str) or (text is None and name == "cls") for name, text in texts.items())
    if not is_text or len(node.keys) not in {0, len(node.children)}:
        raise ValueError(f"its record {node} is invalid")
    return node


def _form(kind: Any, shape: tuple[int, ...], *rest: Any) -> Form:
    form = Form(kind, shape, *rest)
    is_shape = all(type(size) is int and size >= 0 for size in shape) and (
        kind in {"array", "numpy", "key"} or not shape
    )
    is_key = isinstance(form.key, str) if kind == "key" else form.key is None
    if kind not in KINDS or not is_shape or not is_key or form.ref not in (True, False) or form.nbytes > sys.maxsize:
        raise ValueError(f"its form {form} is invalid")
    return form
