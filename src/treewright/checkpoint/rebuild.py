"""A tree from its manifest alone: containers by their kind, nodes of classes from an explicit list of modules."""

from collections.abc import Mapping
from typing import Any, cast

from treewright._nodes.classes import class_of
from treewright.checkpoint.leaves import Placing, leaves_of
from treewright.checkpoint.manifest import Branch, Leaf, Manifest, Steps
from treewright.checkpoint.names import ReadingCodec, class_name
from treewright.checkpoint.restore import Reader
from treewright.errors import CheckpointError


def rebuilt(manifest: Manifest, read: Reader, codec: ReadingCodec) -> Any:
    """The tree of a checkpoint, of classes and functions that the codec finds.

    Raises:
        CheckpointError: If one can't be found or made. No array has been read then.
        CheckpointDamagedError: If an array is not what was saved.
    """
    parts = _Parts(manifest, codec)
    values: dict[str, Any] = {}
    for leaves, arrays in read((leaf, None) for leaf in manifest.leaves):
        placings = [Placing(leaf.form, None, leaf.path) for leaf in leaves]
        values.update(zip((leaf.name for leaf in leaves), leaves_of(arrays, placings), strict=True))
    return parts.part((), values)


class _Parts:
    """Everything but the leaves, checked before an array is read; `part` puts them in."""

    def __init__(self, manifest: Manifest, codec: ReadingCodec) -> None:
        """Find all classes and statics.

        Raises:
            CheckpointError: If one can't be found or made; the message lists all of them.
        """
        self.branches = {branch.steps: branch for branch in manifest.branches}
        self.leaves = {leaf.steps: leaf for leaf in manifest.leaves}
        self.codec = codec
        self.made: dict[Steps, Any] = {}
        problems: list[str] = []
        for branch in manifest.branches:
            try:
                self.made[branch.steps] = self.prepared(branch)
            except Exception as error:  # noqa: BLE001  a file may say anything, and all its problems come at once
                problems.append(f"{branch.path or 'the tree'}: {error}")
        if problems:
            raise CheckpointError("\n  ".join(["The tree can't be made from its file alone:", *problems]))

    def prepared(self, branch: Branch) -> Any:
        """What a container needs besides its children: keys, or the class and the statics."""
        if branch.kind == "dict":
            keys = [self.codec.decode(key) for key in cast("tuple[Any, ...]", branch.keys)]
            if len(dict.fromkeys(keys)) != len(keys):
                raise CheckpointError("two of its keys are the same.")
            return keys
        if branch.kind == "namedtuple":
            cls = self.codec.find_class(str(branch.cls), "named tuple", tuple, "_fields")
            if cls._fields != branch.children:
                raise CheckpointError(f"{branch.cls} has the fields {', '.join(cls._fields)} now.")
            return cls
        if branch.kind == "node":
            return self.node(branch)
        if branch.kind == "other":
            raise CheckpointError(f"a {branch.cls} is neither a node nor a container of Python: load(path, like=...).")
        return None

    def node(self, branch: Branch) -> Any:
        """The class of a node and its statics."""
        cls = self.codec.find_class(str(branch.cls), "node", object)
        spec: Any = cls.__node_spec__
        now = {field.name: field.kind == "static" for field in spec.fields}
        then = {name: kind == "static" for name, kind in branch.fields.items()}
        if now != then or {field.name for field in spec.children} != set(branch.children):
            raise CheckpointError(
                f"{class_name(cls)} has other fields now: {', '.join(now)}, saved were {', '.join(then)}. "
                f"Load into a tree of the new class: load(path, like=...)."
            )
        for name, value in branch.statics.items():
            if _is_described(value):
                raise CheckpointError(f"the static {name} was saved as a description only: load(path, like=...).")
        return cls, self.codec.decode_statics(cls, dict(branch.statics))

    def part(self, steps: Steps, values: Mapping[str, Any]) -> Any:
        """The part of the tree that begins here."""
        leaf: Leaf | None = self.leaves.get(steps)
        if leaf is not None:
            return values[leaf.name]
        branch, made = self.branches[steps], self.made[steps]
        if branch.kind == "node":
            cls, statics = made
            names = [field.name for field in cls.__node_spec__.children]
            return cls.tree_unflatten(statics, [self.part((*steps, name), values) for name in names])
        children = tuple(self.part((*steps, child), values) for child in branch.children)
        match branch.kind:
            case "none":
                return None
            case "list":
                return list(children)
            case "tuple":
                return children
            case "dict":
                return dict(zip(made, children, strict=True))
            case _:
                return cast("Any", tuple).__new__(made, children)


def _is_described(encoded: Any) -> bool:
    if class_of(encoded) is dict:
        return any(map(_is_described, encoded.values()))
    return class_of(encoded) is list and (encoded[:1] == ["described"] or any(map(_is_described, encoded[1:])))
