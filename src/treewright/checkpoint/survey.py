"""A live or abstract tree taken apart: the entries of its manifest, its leaves, and what can't be saved."""

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from treewright._nodes.classes import class_of
from treewright._nodes.node import finished_pair
from treewright._nodes.spec import spec_of
from treewright._nodes.static_json import is_namedtuple
from treewright._trees.paths import entries_of, place_of
from treewright.checkpoint.leaves import CanNotBeSavedError, Form, form_of
from treewright.checkpoint.manifest import DEPTH, Branch, Steps, name_of
from treewright.checkpoint.names import WritingCodec, class_name
from treewright.errors import CheckpointError

_ARRAYS = (jax.Array, np.ndarray)  # known to be leaves; JAX takes 5 us to say so


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A leaf of a tree with its place, its flat name and its form."""

    steps: Steps
    path: str
    value: Any
    form: Form
    name: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", name_of(self.steps))


@dataclasses.dataclass(slots=True)
class Survey:
    """What a walk through a tree found. `problems` holds a sentence for each thing that can't be saved."""

    treedef: Any
    branches: list[Branch]
    leaves: list[Place]
    problems: list[str]

    def refuse(self, others: Iterable[str] = ()) -> None:
        """Raise for all that can't be saved.

        Raises:
            CheckpointError: If there is anything, here or among the problems that an engine adds.
        """
        every = [*self.problems, *others]
        if every:
            raise CheckpointError("\n  ".join(["The tree can't be saved, and nothing was written:", *every]))


def survey(tree: Any, *, abstract: bool = False) -> Survey:
    """Take a tree apart.

    Args:
        tree: Any pytree.
        abstract: Whether leaves may be `jax.ShapeDtypeStruct`s.
    """
    walk = _Walk(abstract=abstract)
    walk.visit(tree, "", ())
    walk.refuse_collisions()
    return Survey(jax.tree.structure(tree), walk.branches, walk.leaves, walk.problems)


class _Walk:
    """The collected entries of one walk."""

    def __init__(self, *, abstract: bool) -> None:
        self.abstract = abstract
        self.known_leaves = (*_ARRAYS, jax.ShapeDtypeStruct) if abstract else _ARRAYS
        self.codec = WritingCodec()
        self.branches: list[Branch] = []
        self.leaves: list[Place] = []
        self.problems: list[str] = []

    def visit(self, part: Any, path: str, steps: Steps) -> None:
        """Add the entries of a part of the tree, in the order in which JAX flattens it."""
        entries = None if isinstance(part, self.known_leaves) else entries_of(part)
        if entries is None:
            self.add_leaf(part, path or "the tree", steps)
            return
        if len(steps) == DEPTH:
            self.problems.append(f"{path} lies {DEPTH} levels deep, and no checkpoint goes deeper")
            return
        children = tuple(str(place_of(key)[1]) for key, _ in entries)
        self.branches.append(self.branch(part, path, steps, entries, children))
        for step, (key, child) in zip(children, entries, strict=True):
            self.visit(child, f"{path}{key}", (*steps, step))

    def add_leaf(self, leaf: Any, path: str, steps: Steps) -> None:
        """Add a leaf, or why it can't be saved."""
        try:
            self.leaves.append(Place(steps, path, leaf, form_of(leaf, abstract=self.abstract)))
        except CanNotBeSavedError as problem:
            self.problems.append(f"{path} {problem}")

    def branch(
        self, part: Any, path: str, steps: Steps, entries: tuple[tuple[Any, Any], ...], children: tuple[str, ...]
    ) -> Branch:
        """The entry of a node or container."""
        cls = class_of(part)
        if hasattr(cls, "__node_spec__"):
            fields = {field.name: str(field.kind) for field in spec_of(part).fields}
            statics = self.codec.encode_statics(finished_pair(part)[1])
            return Branch(steps, path, "node", children, class_name(cls), fields=fields, statics=statics)
        if cls in {dict, OrderedDict, defaultdict}:
            keys = tuple(self.codec.encode(place_of(key)[1]) for key, _ in entries)
            return Branch(steps, path, "dict", children, keys=keys)
        if part is None or cls in {list, tuple}:
            return Branch(steps, path, "none" if part is None else cls.__name__, children)
        kind = "namedtuple" if is_namedtuple(cls) else "other"
        return Branch(steps, path, kind, children, class_name(cls))

    def refuse_collisions(self) -> None:
        """Add a problem for each name that two leaves would have."""
        paths: dict[str, str] = {}
        for leaf in self.leaves:
            first = paths.setdefault(leaf.name, leaf.path)
            if first is not leaf.path:
                self.problems.append(f"{leaf.path} would get the name {leaf.name!r}, which {first} has already")
            if not _is_text(leaf.name):
                self.problems.append(f"{leaf.path} would get the name {leaf.name!r}, which is no UTF-8 text")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
