"""The manifest: what a checkpoint says about the bytes of its arrays, as JSON with a digest of its own.

One record for each node or container and one for each leaf, both in JAX's order, each with the name of its place.
Nothing is imported or made here.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from treewright._core.text import cut_text
from treewright.checkpoint.arrays import KINDS, Form, digest_of
from treewright.errors import CheckpointDamagedError, CheckpointError

VERSION = 3  # no other was ever released
FORMAT = "treewright.checkpoint"
LARGEST = 100_000_000  # bytes of a manifest; safetensors ends there too, and JSON takes some twenty times the memory
TEXT, DIGEST = "treewright", "treewright.digest"  # the names in a file's metadata, and in the item of a step
ROOT_LEAF = "value"  # the name of a tree that is one leaf


def join_name(name: str, step: str) -> str:
    """The name of a place below another: `params.layers.0.kernel`."""
    return f"{name}.{step}" if name else step


# Not frozen or slotted: that takes three times as long to make, and `vars` of a record is its JSON.


@dataclasses.dataclass
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


@dataclasses.dataclass
class Branch:
    """The record of a node or container: its name, path, kind and class, the steps to its children, and its statics.

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
    keys: tuple[Any, ...] = ()  # of a dict, as JSON of statics
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

    def untied(self) -> list[Leaf]:
        """The leaves that have an array of their own."""
        return [leaf for leaf in self.leaves if leaf.tied is None]

    def with_names(self, new_name: Callable[[str], str | None]) -> "Manifest":
        """Its records by other names, those of statics too; without those whose new name is None."""
        branches: list[Branch] = []
        for branch in self.branches:
            if (name := new_name(branch.name)) is not None:
                renamed = {new_name(join_name(branch.name, field)): value for field, value in branch.statics.items()}
                statics = {str(place).rpartition(".")[2]: value for place, value in renamed.items()}
                branches.append(dataclasses.replace(branch, name=name, statics=statics))
        leaves = [
            dataclasses.replace(leaf, name=name, tied=leaf.array)
            for leaf in self.leaves
            if (name := new_name(leaf.name)) is not None
        ]
        return dataclasses.replace(self, branches=tuple(branches), leaves=tuple(leaves))

    def to_metadata(self) -> dict[str, str]:
        """The records as JSON, and its digest.

        Raises:
            CheckpointError: If it is larger than any that is read again.
        """
        nodes, leaves = list(map(vars, self.branches)), list(map(vars, self.leaves))
        document = {"format": FORMAT, "version": VERSION, "nodes": nodes, "leaves": leaves}
        document |= {"metrics": self.metrics, "items": self.items}
        text = json.dumps(document, separators=(",", ":"), check_circular=False)  # which takes a third of the time
        if len(text) > LARGEST:
            raise CheckpointError(
                f"The tree can't be saved: its manifest would have {len(text):,} bytes, and {LARGEST:,} is the most."
            )
        return {TEXT: text, DIGEST: digest_of(text.encode())}


# Reading


def from_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """The manifest in the metadata of a file, or in the item of a step.

    Raises:
        CheckpointDamagedError: If it is not what was saved, or not a manifest.
        CheckpointError: If another version of the format wrote it.
    """
    try:
        text, saved = metadata[TEXT], metadata[DIGEST]
        if len(text) > LARGEST:
            raise ValueError(f"it has {len(text):,} characters, and none has more than {LARGEST:,}")
        now = digest_of(text.encode(errors="surrogatepass"))
        if now != saved:  # before anything else: the version may be what is damaged
            raise ValueError(f"it has the digest {now}, and {cut_text(str(saved), 40)} was saved")
        return _manifest(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CheckpointDamagedError(f"The manifest is damaged: {cut_text(str(error), 200)}.") from error


def _manifest(document: Any) -> Manifest:
    if document["format"] != FORMAT:
        raise ValueError(f"the format is {document['format']!r}, not {FORMAT!r}")
    if (version := document["version"]) != VERSION:
        cure = "Load it with a newer version."
        if version < VERSION:
            cure = "Load it with the commit that saved it, which was never released, and save to_names(tree)."
        raise CheckpointError(
            f"The checkpoint has format version {version}, and this Treewright reads version {VERSION}. {cure}"
        )
    branches = tuple(
        Branch(
            **record
            | {name: str(record[name]) for name in ("name", "path", "kind")}
            | {"children": tuple(map(str, record["children"])), "keys": tuple(record["keys"])}
            | {"cls": record["cls"] and str(record["cls"]), "statics": dict(record["statics"])}
        )
        for record in document["nodes"]
    )
    form = functools.cache(_form)  # few forms are many leaves
    leaves = tuple(
        Leaf(
            record["name"],
            str(record["path"]),
            form(kind, tuple(shape), *rest),
            dict(record["digests"]),
            record["tied"],
        )
        for record in document["leaves"]
        for kind, shape, *rest in [record["form"]]
    )
    names = [*(branch.name for branch in branches), *(leaf.name for leaf in leaves)]
    places = ["" if branches else ROOT_LEAF, *(join_name(x.name, step) for x in branches for step in x.children)]
    if len(names) != len(places) or len({*names}) != len(names) or {*names} != {*places}:
        raise ValueError("its records do not make one tree")
    arrays = {leaf.name: leaf for leaf in leaves if leaf.tied is None}
    for leaf in leaves:
        if leaf.tied is not None:
            leaf.digests = arrays[leaf.tied].digests
            if arrays[leaf.tied].form != leaf.form:
                raise ValueError(f"{leaf.name!r} can't be one array with {leaf.tied!r}")
    return Manifest(branches, leaves, dict(document["metrics"]), tuple(document["items"]))


def _form(kind: Any, shape: tuple[int, ...], *rest: Any) -> Form:
    form = Form(kind, shape, *rest)
    is_scalar = kind not in {"array", "numpy", "key"}
    if kind not in KINDS or min(shape, default=0) < 0 or (is_scalar and shape) or form.nbytes > sys.maxsize:
        raise ValueError(f"there is no {form}")
    return form
