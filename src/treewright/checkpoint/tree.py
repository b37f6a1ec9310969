"""Convert a tree to a manifest and leaves, and those to plain lists, tuples and dicts."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._base.jax_private import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from treewright._core import first_text, info_of, is_node
from treewright._json import encode
from treewright._reports import first_lines
from treewright._trees.level import Level, level_of
from treewright.checkpoint.arrays import NOT_A_LEAF, UnsupportedLeafError, form_of
from treewright.checkpoint.manifest import ROOT_LEAF, LeafRecord, Manifest, NodeRecord, join_name
from treewright.checkpoint.rules import NO_LEAF, NO_TREE, OBJECT
from treewright.errors import CheckpointError, StaticSerializationError

_DECLARED = "__checkpoint_name__"
_DICTS = frozenset({dict, OrderedDict, defaultdict})
_CONTAINERS = _DICTS | {list, tuple, type(None)}
_ARRAYS = (jax.Array, np.ndarray, np.generic)  # always leaves; asking JAX takes 5 us
_STEPS = MappingProxyType({GetAttrKey: "name", DictKey: "key", SequenceKey: "idx", FlattenedIndexKey: "key"})
_PLAIN_KEYS = (str, int, float, type(None))  # JSON values


# Names


def class_name(cls: type[Any]) -> str:
    """The `__checkpoint_name__` in the class body, otherwise `module:qualname`."""
    declared = vars(cls).get(_DECLARED)
    if declared is not None:
        return str(declared)
    module = "treewright" if cls.__module__.startswith("treewright._") else cls.__module__
    return f"{module}:{cls.__qualname__}"


def may_be_same_name(name: str, other: str) -> bool:
    """Whether two different names may refer to one class or function that moved.

    A script's own classes are called `__main__:Net`, and libraries move the contents of private modules, such as
    `optax._src.transform`.
    """
    (module, _, qualname), (other_module, _, other_qualname) = name.partition(":"), other.partition(":")
    if not qualname or qualname != other_qualname:
        return False
    package = module.partition(".")[0]
    private = package == "treewright" or "._" in module + other_module
    return "__main__" in {module, other_module} or (private and package == other_module.partition(".")[0])


# From a tree to its records


class Parts(NamedTuple):
    """A tree as records and leaves by name, with the names of the statics that are local to a process."""

    manifest: Manifest
    values: dict[str, Any]
    local: frozenset[str] = frozenset()


def parts_to_save(
    tree: Any, *, abstract: bool = False, problems_of: Callable[[LeafRecord, Any], Iterable[str]] = lambda *_: ()
) -> Parts:
    """The records and leaves of a tree, in the order in which JAX flattens it.

    Args:
        tree: Any pytree.
        abstract: Whether the tree is a template, whose leaves may be `jax.ShapeDtypeStruct`s.
        problems_of: Returns reasons why a leaf can't be saved, which complete sentences that begin with its path.

    Raises:
        CheckpointError: If something can't be saved; the message lists all problems by path.
    """
    records = _Records(problems_of, abstract=abstract)
    records.add_tree(tree)
    if records.problems:
        title = (
            "Nothing can be loaded into this tree" if abstract else "The tree can't be saved, and nothing was written"
        )
        raise CheckpointError("\n  ".join([f"{title}:", *first_lines(records.problems)]))
    return Parts(Manifest(tuple(records.nodes), tuple(records.leaves)), records.values, frozenset(records.local))


class _Records:
    """The records and leaves of a tree that were found, and the reasons why it can't be saved."""

    def __init__(self, problems_of: Callable[[LeafRecord, Any], Iterable[str]], *, abstract: bool) -> None:
        self._abstract, self._problems_of = abstract, problems_of
        self.nodes, self.leaves, self.values = list[NodeRecord](), list[LeafRecord](), dict[str, Any]()
        self.local, self.problems = set[str](), list[str]()
        self._refs: dict[int, str] = {}  # the first path of each ref, by id

    def add_tree(self, tree: Any) -> None:
        """Add the nodes, containers and leaves of a tree, in JAX's order. A name that occurs twice is a problem."""
        known_leaves = (*_ARRAYS, jax.ShapeDtypeStruct) if self._abstract else _ARRAYS
        paths: dict[str, str] = {}
        queue: list[tuple[Any, str, str, type[Any]]] = [(tree, "", "", type(None))]
        while queue:
            value, name, path, parent = queue.pop()
            level = None if isinstance(value, known_leaves) else level_of(value)
            if level is None and not path:
                name, path = ROOT_LEAF, "the tree"
            if paths.setdefault(name, path) is not path:
                self.problems.append(f"{path} and {paths[name] or 'the tree'} would both be named {name!r}")
            elif level is None:
                self._add_leaf(value, name, path, parent)
            else:
                self._add_node(value, level, name, path)
                cls = type(value)
                below = [(child, join_name(name, _step_of(key)), f"{path}{key}", cls) for key, child in level.children]
                queue.extend(reversed(below))

    def _add_leaf(self, value: Any, name: str, path: str, parent: type[Any]) -> None:
        try:
            leaf = LeafRecord(name, path, form_of(value, abstract=self._abstract))
        except UnsupportedLeafError as problem:
            rules = NO_TREE if path == "the tree" else NO_LEAF
            advice = f". {first_text(rules, value, parent) or OBJECT}"
            self.problems.append(f"{path} {problem}{advice if str(problem).endswith(NOT_A_LEAF) else ''}")
            return
        if leaf.form.ref and not self._abstract and self._refs.setdefault(id(value), path) is not path:
            first = self._refs[id(value)]
            self.problems.append(f"{path} is the same ref as {first}, but would be restored as a second one")
        self.leaves.append(leaf)
        self.values[name] = value
        self.problems += [f"{path} {problem}" for problem in self._problems_of(leaf, value)]

    def _add_node(self, value: Any, level: Level, name: str, path: str) -> None:
        if is_node(value):
            self.local |= {join_name(name, field.name) for field in info_of(value).statics if field.local}
        try:
            self.nodes.append(_node_record(value, level, name, path))
        except (StaticSerializationError, RecursionError) as error:
            self.problems.append(f"{path or 'the tree'} has a static that can't be saved: {error}")


def to_names(tree: object) -> dict[str, Any]:
    """The leaves of a tree by flat name, as in a checkpoint.

    Raises:
        CheckpointError: If two leaves would have the same name, or a leaf can't be saved.

    Examples:
        >>> from treewright.checkpoint import to_names
        >>> to_names({"layers": [{"bias": 1.0}, {"bias": 2.0}]})
        {'layers.0.bias': 1.0, 'layers.1.bias': 2.0}
    """
    return parts_to_save(tree).values


def _step_of(key: Any) -> str:
    """A key as part of a name; `keystr(simple=True)` takes 3 us."""
    attribute = _STEPS.get(type(key))
    return str(key if attribute is None else getattr(key, attribute))


def _node_record(part: Any, level: Level, name: str, path: str) -> NodeRecord:
    """The record of a node or container."""
    cls = type(part)
    is_namedtuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    kind = cls.__name__ if cls in _CONTAINERS else "namedtuple" if is_namedtuple else "other"
    kind = "node" if is_node(part) else kind
    steps = tuple([_step_of(key) for key, _ in level.children])
    keys = tuple(encode(key.key) for key, _ in level.children) if cls in _DICTS else ()
    if cls in _CONTAINERS or kind == "namedtuple":
        statics = [("default_factory", part.default_factory)] if cls is defaultdict else []
    else:
        statics = [(str(key).lstrip("."), value) for key, value in level.statics]
    of_class = None if cls in _CONTAINERS else class_name(cls)
    encoded = {key: encode(value) for key, value in statics}
    return NodeRecord(name, path, kind, steps, of_class, keys, encoded)


# From records to plain containers


def tree_of(manifest: Manifest, leaves: Mapping[str, Any]) -> Any:
    """The leaves in plain lists, tuples and dicts. Imports nothing and creates no object of a user's class.

    A node, a named tuple or a different library's container becomes a dict of its children, without statics.
    """
    values = dict(leaves)
    for node in sorted(manifest.nodes, key=lambda node: -len(node.name)):  # children come first
        below = [values.pop(join_name(node.name, step)) for step in node.children]
        values[node.name] = _container(node, below)
    (tree,) = values.values()
    return tree


def _container(node: NodeRecord, children: list[Any]) -> Any:
    match node.kind:
        case "NoneType":
            return None
        case "list":
            return children
        case "tuple":
            return tuple(children)
        case _:
            pairs = zip(node.keys or node.children, node.children, strict=True)
            keys = [key if isinstance(key, _PLAIN_KEYS) else step for key, step in pairs]
            return dict(zip(keys if len({*keys}) == len(keys) else node.children, children, strict=True))
