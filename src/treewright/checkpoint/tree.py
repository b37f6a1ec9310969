"""What a checkpoint keeps of a tree: its leaves, its statics, and names for classes and functions."""

import dataclasses
import importlib
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from treewright._nodes.as_json import StaticCodec, is_namedtuple
from treewright._nodes.node import finished_pair
from treewright._nodes.spec import spec_of
from treewright._trees.paths import entries_of, place_of
from treewright._values.reach import class_of
from treewright._values.text import portable_text
from treewright.checkpoint.leaves import CanNotBeSavedError, Form, form_of
from treewright.checkpoint.manifest import DEPTH, Branch, Steps, name_of
from treewright.errors import CheckpointError

DECLARED = "__checkpoint_name__"


def class_name(cls: type[Any]) -> str:
    """The name that the class itself declares as `__checkpoint_name__`, else `module:qualname`."""
    declared = vars(cls).get(DECLARED)
    if declared is None:
        return f"{cls.__module__}:{cls.__qualname__}"
    if not isinstance(declared, str) or not declared:
        raise CheckpointError(
            f"{cls.__qualname__}.{DECLARED} is {declared!r}, and must be a name such as 'mylib.{cls.__qualname__}'."
        )
    return declared


def same_name(one: str, other: str) -> bool:
    """Whether two names mean one class or function.

    A script calls its own classes `__main__:Net`, and a library may move what it keeps in private modules
    (`optax._src.transform`): then only what follows the colon, or the package and that, has to be the same.
    """
    if one == other:
        return True
    (module, _, name), (other_module, _, other_name) = one.partition(":"), other.partition(":")
    if not name or name != other_name:
        return False
    if "__main__" in {module, other_module}:
        return True
    packages = {module.partition(".")[0], other_module.partition(".")[0]}
    return len(packages) == 1 and ("._" in module or "._" in other_module)


class WritingCodec(StaticCodec):
    """Writes any static: what has no exact form is described, and compared softly."""

    def name_of(self, value: Any) -> str | None:
        """Classes go by the name that they declare."""
        if isinstance(value, type) and DECLARED in vars(value):
            return class_name(value)
        return super().name_of(value)

    def unnamed(self, value: Any) -> Any:
        """A description that is the same in the next process."""
        return ["described", portable_text(value, exact=False)]


class ReadingCodec(StaticCodec):
    """Reads statics. Classes and functions are looked up among those of an explicit list of modules, and nowhere else.

    Names from a file are compared with names that exist; none is ever imported or followed.
    """

    def __init__(self, modules: Iterable[str | types.ModuleType] = ()) -> None:
        self.modules: tuple[types.ModuleType, ...] = tuple(
            importlib.import_module(module) if isinstance(module, str) else module for module in modules
        )
        self.known: tuple[tuple[str, Any], ...] = tuple(_named_in(self.modules))

    def find(self, name: str) -> Any:
        """What has this name in the modules.

        Raises:
            CheckpointError: If nothing has it, or two things do.
        """
        found = {id(value): value for known, value in self.known if same_name(known, str(name))}
        if len(found) == 1:
            return next(iter(found.values()))
        listed = ", ".join(module.__name__ for module in self.modules) or "none"
        if found:
            raise CheckpointError(f"{name!r} names several things in the modules that may be used ({listed}).")
        raise CheckpointError(
            f"{name!r} is in none of the modules that may be used ({listed}). If you trust the file, add the module "
            f"that holds it: load(path, modules=[...]). Or give a tree to load into: load(path, like=...)."
        )


def _named_in(modules: Iterable[types.ModuleType]) -> Iterator[tuple[str, Any]]:
    """The classes and functions of these modules by name, those of their own package alone."""
    for module in modules:
        package = module.__name__.partition(".")[0]
        for value in vars(module).values():
            yield from _named(value, package)


def _named(value: Any, package: str) -> Iterator[tuple[str, Any]]:
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not callable(value) or not isinstance(home, str) or not isinstance(name, str):
        return
    if home.partition(".")[0] != package:  # `from os import system` in a module does not make it the module's own
        return
    if not isinstance(value, type):
        yield f"{home}:{name}", value
        return
    yield class_name(value), value
    for inner in vars(value).values():
        if isinstance(inner, type) and inner.__qualname__.startswith(f"{name}."):
            yield from _named(inner, package)


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
