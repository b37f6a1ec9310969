"""A tree taken apart for a checkpoint: its leaves, its statics, and the names of classes and functions in both ways."""

import dataclasses
import importlib
import types
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from treewright._core.as_json import StaticCodec, is_namedtuple
from treewright._core.freeze import freeze
from treewright._core.functions import class_of, import_path
from treewright._core.instance import finished_pair
from treewright._core.jax_refs import content_of
from treewright._core.json_kinds import write_pairs
from treewright._core.portable import portable_text
from treewright._core.spec import spec_of
from treewright._core.text import first_of
from treewright._trees.at import place_of
from treewright._trees.level import Level, level_of
from treewright.checkpoint.leaves import NAMES, SHARED, CanNotBeSavedError, Form, Leaf, Steps, form_of, of_one_name
from treewright.checkpoint.manifest import DEPTH, Branch, Manifest, check_static, placed
from treewright.errors import CheckpointError, StaticSerializationError

DECLARED = "__checkpoint_name__"

_DICTS = (dict, OrderedDict, defaultdict)
_SEQUENCES = frozenset({list, tuple, type(None)})  # told apart by how many children they have
_CONTAINERS = frozenset({*_SEQUENCES, *_DICTS})
_TEXTS = frozenset({str})
_BUILT_IN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)  # found without a module
_ARRAYS = (jax.Array, np.ndarray, np.generic)  # known to be leaves; JAX takes 5 us to say so


def class_name(cls: type[Any]) -> str:
    """The name that the class itself declares as `__checkpoint_name__`, else `module:qualname`."""
    declared = vars(cls).get(DECLARED)
    if declared is None:
        return _name(cls.__module__, cls.__qualname__)
    if not isinstance(declared, str) or not declared:
        raise CheckpointError(
            f"{cls.__qualname__}.{DECLARED} is {declared!r}, and must be a name such as 'mylib.{cls.__qualname__}'."
        )
    return declared


def _name(module: str, qualname: str) -> str:
    """`module:qualname`, without the private modules of Treewright: what they hold may move."""
    return f"{'treewright' if module.startswith('treewright._') else module}:{qualname}"


def same_name(name: str, other: str) -> bool:
    """Whether two names mean one class or function.

    A script calls its own classes `__main__:Net`, and a library may move what it keeps in private modules
    (`optax._src.transform`): then only what follows the colon, or the package and that, has to be the same.
    Treewright may move anything.
    """
    if name == other:
        return True
    (module, _, qualname), (other_module, _, other_qualname) = name.partition(":"), other.partition(":")
    if not qualname or qualname != other_qualname:
        return False
    if "__main__" in {module, other_module}:
        return True
    package = module.partition(".")[0]
    return package == other_module.partition(".")[0] and (package == "treewright" or "._" in module + other_module)


class WritingCodec(StaticCodec):
    """Writes any static. What has no exact form is described; a description that differs is no more than a warning."""

    def name_of(self, value: Any) -> str | None:
        """Classes go by the name that they declare."""
        if isinstance(value, type) and DECLARED in vars(value):
            return class_name(value)
        path = import_path(value)
        return None if path is None else _name(*path)

    def unnamed(self, value: Any) -> Any:
        """A description that is the same in the next process.

        Lists, dicts and arrays can't be static in a node of ours; other libraries keep them beside their leaves, and
        there they are compared by what they hold.
        """
        kind = class_of(value)
        if kind is list:
            return ["list", *map(self.encode, value)]
        if kind is dict:
            return ["dict", *write_pairs(value, self.encode)]
        if kind is np.ndarray and value.dtype in NAMES:
            return self.encode(freeze(value))
        return ["described", portable_text(value, exact=False)]


class ReadingCodec(StaticCodec):
    """Reads statics. Classes and functions are looked up among those of an explicit list of modules, and nowhere else.

    Names from a file are compared with names that exist; none is ever imported or followed.
    """

    def __init__(self, modules: Iterable[str | types.ModuleType] = ()) -> None:
        self.modules: tuple[types.ModuleType, ...] = tuple(
            importlib.import_module(module) if isinstance(module, str) else module for module in modules
        )
        with warnings.catch_warnings():  # of names that are deprecated, where it is only asked what they are
            warnings.simplefilter("ignore")
            self.known: tuple[tuple[str, Any], ...] = (
                *((f"builtins:{cls.__name__}", cls) for cls in _BUILT_IN),
                *_named_in(self.modules),
            )

    def find(self, name: str) -> Any:
        """What has this name in the modules.

        Raises:
            CheckpointError: If nothing has it, or two things do.
        """
        values = {id(value): value for known, value in self.known if same_name(known, str(name))}
        if len(values) == 1:
            return next(iter(values.values()))
        listed = ", ".join(module.__name__ for module in self.modules) or "none"
        if values:
            raise CheckpointError(f"{name!r} names several things in the modules that may be used ({listed}).")
        raise CheckpointError(
            f"{name!r} is in none of the modules that may be used ({listed}). If you trust the file, add the module "
            f"that holds it: load(path, modules=[...]). Or give a tree to load into: load(path, like=...)."
        )


def _named_in(modules: Iterable[types.ModuleType]) -> Iterator[tuple[str, Any]]:
    """The classes and functions of these modules by name, those of their own package alone.

    Names in `__all__` count even if nobody has used them yet: a module may load them on first use, as Treewright does.
    """
    for module in modules:
        package = module.__name__.partition(".")[0]
        for name in dict.fromkeys([*vars(module), *getattr(module, "__all__", ())]):
            yield from _named(getattr(module, name, None), package)


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


def refuse(title: str, problems: Sequence[str]) -> None:
    """Return if there are no problems.

    Raises:
        CheckpointError: If there are: the title, and a line for each of the first.
    """
    if problems:
        raise CheckpointError("\n  ".join([title, *first_of(problems)]))


def manifest_of(tree: Any, problems: Callable[[Sequence[Leaf]], Iterable[str]] = lambda _: ()) -> Manifest:
    """A tree, taken apart to be saved: its leaves have values, and no digests yet.

    Args:
        tree: Any pytree.
        problems: A function from the leaves to a sentence for each thing that an engine can't save.

    Raises:
        CheckpointError: If something can't be saved.
    """
    walk = _TakenApart(tree, abstract=False)
    return walk.manifest("The tree can't be saved, and nothing was written:", *problems(walk.leaves))


def target_of(tree: Any) -> Manifest:
    """A tree to load into, taken apart; its leaves may be `jax.ShapeDtypeStruct`s.

    Raises:
        CheckpointError: If there is a leaf that can't be loaded.
    """
    return _TakenApart(tree, abstract=True).manifest("Nothing can be loaded into this tree:")


def _is_utf8(name: str) -> bool:
    return name.encode(errors="ignore").decode() == name


class _TakenApart:
    """The entries of a tree that is saved or loaded into, and a sentence for each thing in it that can't be saved."""

    def __init__(self, tree: Any, *, abstract: bool) -> None:
        self.abstract = abstract
        self.known_leaves = (*_ARRAYS, jax.ShapeDtypeStruct) if abstract else _ARRAYS
        self.codec = WritingCodec()
        self.containers: dict[Any, Branch] = {}
        self.forms: dict[Form, Form] = {}  # one object for those that are the same, of which the others are forgotten
        self.branches: list[Branch] = []
        self.leaves: list[Leaf] = []
        self.met: dict[int, tuple[Steps, Any]] = {}  # where each array was met first; kept, so that no two have one id
        self.problems: list[str] = []
        self.visit(tree, "", ())
        for leaf, other in of_one_name(self.leaves):
            self.problems.append(f"{other.path} would get the name {leaf.name!r}, which {leaf.path} has already")
        for leaf in self.leaves:
            if not (leaf.name.isascii() or _is_utf8(leaf.name)):
                self.problems.append(f"{leaf.path} would get the name {leaf.name!r}, which is not UTF-8 text")

    def manifest(self, title: str, *problems: str) -> Manifest:
        """What a checkpoint keeps of the tree but for its arrays.

        Raises:
            CheckpointError: If there are problems, here or among those of an engine.
        """
        refuse(title, [*self.problems, *problems])
        return Manifest(tuple(self.branches), tuple(self.leaves))

    def visit(self, part: Any, path: str, steps: Steps) -> None:
        """Add the entries of a part of the tree, in the order in which JAX flattens it."""
        # By their classes, where these are enough: `isinstance` of a jax.Array asks JAX, and takes as long as the rest.
        cls = class_of(part)
        if cls is np.ndarray or (cls not in _CONTAINERS and isinstance(part, self.known_leaves)):
            self.add_leaf(part, path, steps)
            return
        same, children = _opened(part)
        branch = self.containers.get(same)
        if branch is None:
            level = level_of(part)
            if level is None:
                self.add_leaf(part, path, steps)
                return
            children = [child for _, child in level.children]
            branch = self.container(part, level, same, path)
        if len(steps) == DEPTH:
            self.problems.append(f"{path} lies {DEPTH} levels deep, and no checkpoint goes deeper")
            return
        self.branches.append(placed(branch, steps, path))
        for step, more, child in zip(branch.children, branch.paths, children, strict=True):
            self.visit(child, path + more, (*steps, step))

    def add_leaf(self, leaf: Any, path: str, steps: Steps) -> None:
        """Add a leaf, or why it can't be saved."""
        path = path or "the tree"
        try:
            form = form_of(leaf, abstract=self.abstract)
            form = self.forms.setdefault(form, form)
            if self.abstract:
                self.leaves.append(Leaf(steps, path, form, value=leaf))
                return
            first = self.met.setdefault(id(leaf), (steps, leaf))[0] if form.kind in SHARED else steps
            tied = None if first is steps else first
            self.leaves.append(Leaf(steps, path, form, value=content_of(leaf), tied=tied))
        except CanNotBeSavedError as problem:
            self.problems.append(f"{path} {problem}")

    def container(self, part: Any, level: Level, same: Hashable, path: str) -> Branch:
        """The entry of a node or container as it would be at the root: one object for those that are the same."""
        branch = _bare(level)
        if len(set(branch.children)) != len(branch.children):
            names = ", ".join(first_of(branch.children))
            self.problems.append(f"{path or 'the tree'} has children of one name, not to be told apart: {names}")
        try:
            branch = dataclasses.replace(branch, **self.described(part, level))
            for static in (*branch.statics.values(), *(branch.keys or ())):
                check_static(static)
        except (StaticSerializationError, RecursionError) as error:
            self.problems.append(f"{path or 'the tree'} has a static that no checkpoint holds: {error}")
            return branch
        return self.containers.setdefault(repr(branch) if same is None else same, branch)

    def described(self, part: Any, level: Level) -> dict[str, Any]:
        """What is to be said of a node or container besides its children."""
        cls = class_of(part)
        if hasattr(cls, "__node_spec__"):
            fields = {field.name: str(field.kind) for field in spec_of(part).fields}
            statics = self.codec.encode_statics(finished_pair(part)[1])
            return {"kind": "node", "cls": class_name(cls), "fields": fields, "statics": statics}
        if cls in _DICTS:
            keys = tuple(self.codec.encode(place_of(key)[1]) for key, _ in level.children)
            factory = {"default_factory": self.codec.encode(part.default_factory)} if cls is defaultdict else {}
            return {"kind": cls.__name__, "keys": keys, "statics": factory}
        if cls in _SEQUENCES:
            return {"kind": "none" if part is None else cls.__name__}
        if is_namedtuple(cls):
            return {"kind": "namedtuple", "cls": class_name(cls)}
        statics = {str(key).lstrip("."): self.codec.encode(value) for key, value in level.statics}
        return {"kind": "other", "cls": class_name(cls), "statics": statics}


def _opened(part: Any) -> tuple[Hashable, Sequence[Any]]:
    """What containers of one kind have in common, and what is in this one; None and nothing where that takes longer."""
    cls = class_of(part)
    if cls is dict and _TEXTS.issuperset(map(type, part)):
        names = sorted(part)
        return (cls, *names), [part[name] for name in names]
    if cls in _SEQUENCES:
        return (cls, len(part or ())), part or ()
    if hasattr(cls, "__node_spec__"):
        children, aux = finished_pair(part)
        return (cls, id(aux)), children  # one object for all nodes of these statics, which the tree keeps alive
    return None, ()


def _bare(level: Level) -> Branch:
    """A container of these children of which nothing else is known."""
    children = tuple(str(place_of(key)[1]) for key, _ in level.children)
    return Branch((), "", "other", children, paths=tuple(str(key) for key, _ in level.children))
