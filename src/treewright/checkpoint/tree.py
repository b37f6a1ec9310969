"""From a tree to its manifest and leaves, and from a manifest and arrays to a tree, without a tree to load into."""

import functools
import importlib
import types
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._core import from_flat_form, is_node, spec_of
from treewright._core.jax_private import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from treewright._core.text import cut_text, first_names
from treewright._json import StaticSerializationError, decode, encode
from treewright._lines import first_of
from treewright._trees.level import Level, level_of
from treewright.checkpoint.arrays import MAKE_STATIC, UnsupportedLeafError, form_of
from treewright.checkpoint.manifest import ROOT_LEAF, Branch, Leaf, Manifest, join_name
from treewright.errors import CheckpointError

Modules = str | types.ModuleType | Sequence[str | types.ModuleType]

_DECLARED = "__checkpoint_name__"
_DICTS = frozenset({dict, OrderedDict, defaultdict})
_CONTAINERS = _DICTS | {list, tuple, type(None)}
_ARRAYS = (jax.Array, np.ndarray, np.generic)  # known to be leaves; JAX takes 5 us to say so
_STEPS = MappingProxyType({GetAttrKey: "name", DictKey: "key", SequenceKey: "idx", FlattenedIndexKey: "key"})
_BUILT_IN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)  # found without a module


# Names


def class_name(cls: type[Any]) -> str:
    """The name that the class itself declares as `__checkpoint_name__`, else `module:qualname`."""
    declared = vars(cls).get(_DECLARED)
    if declared is not None:
        return str(declared)
    module = "treewright" if cls.__module__.startswith("treewright._") else cls.__module__
    return f"{module}:{cls.__qualname__}"


def may_be_same_name(name: str, other: str) -> bool:
    """Whether two different names may mean one class or function that moved.

    A script calls its own classes `__main__:Net`, and a library moves the contents of its private modules
    (`optax._src.transform`).
    """
    (module, _, qualname), (other_module, _, other_qualname) = name.partition(":"), other.partition(":")
    if not qualname or qualname != other_qualname:
        return False
    package = module.partition(".")[0]
    private = package == "treewright" or "._" in module + other_module
    return "__main__" in {module, other_module} or (private and package == other_module.partition(".")[0])


# From a tree to its records


class Parts(NamedTuple):
    """A tree that was taken apart: its records, its leaves by name, and the statics that are local to a process."""

    manifest: Manifest
    values: dict[str, Any]
    local: frozenset[str] = frozenset()


def _no_problems(_leaf: Leaf, _value: Any) -> Iterable[str]:
    return ()


def parts_to_save(
    tree: Any, *, abstract: bool = False, problems_of: Callable[[Leaf, Any], Iterable[str]] = _no_problems
) -> Parts:
    """The records and leaves of a tree to save, or of one to load into, in the order in which JAX flattens it.

    Args:
        tree: Any pytree.
        abstract: Whether it is one to load into, whose leaves may be `jax.ShapeDtypeStruct`s.
        problems_of: What one kind of checkpoint can't hold of a leaf, as ends of sentences that begin with its path.

    Raises:
        CheckpointError: If something can't be saved; the message lists all of it by path.
    """
    branches, leaves, values = list[Branch](), list[Leaf](), dict[str, Any]()
    local, problems = set[str](), list[str]()
    paths: dict[str, str] = {}  # by name, of all places
    first: dict[int, str] = {}  # the name under which each array was met first
    known_leaves = (*_ARRAYS, jax.ShapeDtypeStruct) if abstract else _ARRAYS
    waiting: list[tuple[Any, str, str, type[Any]]] = [(tree, "", "", type(None))]
    while waiting:
        part, name, path, parent = waiting.pop()
        level = None if isinstance(part, known_leaves) else level_of(part)
        if level is None and not path:
            name, path = ROOT_LEAF, "the tree"
        if paths.setdefault(name, path) is not path:
            problems.append(f"{path} would get the name {name!r}, which {paths[name] or 'the tree'} has already")
        elif level is None:
            try:
                form = form_of(part, abstract=abstract)
            except UnsupportedLeafError as problem:
                problems.append(f"{path} {_with_cure(problem, parent)}")
                continue
            # One object of these kinds may be in several places.
            is_shared = not abstract and form.kind in {"array", "numpy", "key"}
            other = first.setdefault(id(part), name) if is_shared else name
            leaves.append(Leaf(name, path, form, tied=None if other is name else other))
            values[name] = part
            problems += [f"{path} {problem}" for problem in problems_of(leaves[-1], part)]
        else:
            steps = tuple([_step_of(key) for key, _ in level.children])
            above, cls = f"{name}." if name else "", type(part)
            below = zip(level.children, steps, strict=True)
            waiting += [(child, above + step, f"{path}{key}", cls) for (key, child), step in below][::-1]
            if is_node(part):
                local |= {join_name(name, field.name) for field in spec_of(part).statics if field.local}
            try:
                branches.append(_branch_of(part, level, name, path, steps))
            except (StaticSerializationError, RecursionError) as error:
                problems.append(f"{path or 'the tree'} has a static that no checkpoint holds: {error}")
    title = "Nothing can be loaded into this tree:" if abstract else "The tree can't be saved, and nothing was written:"
    refuse(title, problems)
    return Parts(Manifest(tuple(branches), tuple(leaves)), values, frozenset(local))


def refuse(title: str, problems: Sequence[str]) -> None:
    """Raise an error with a line for each of the first problems, if there are any."""
    if problems:
        raise CheckpointError("\n  ".join([title, *first_of(problems)]))


def _step_of(key: Any) -> str:
    """A step of a name; `keystr(simple=True)` takes 3 us for it."""
    attribute = _STEPS.get(type(key))
    return str(key if attribute is None else getattr(key, attribute))


def _with_cure(problem: UnsupportedLeafError, parent: type[Any]) -> str:
    """What is wrong with a leaf, whose class may be one that nobody can change."""
    if not any(base.__module__.startswith("equinox.") for base in parent.__mro__):
        return str(problem)
    adopt = f"The equinox module {parent.__qualname__} has it as a leaf: save treewright.adopt(...) of it"
    return str(problem).replace(MAKE_STATIC, adopt)


def _branch_of(part: Any, level: Level, name: str, path: str, steps: tuple[str, ...]) -> Branch:
    """The record of a node or container."""
    cls = type(part)
    kind = cls.__name__ if cls in _CONTAINERS else "namedtuple" if _is_namedtuple(cls) else "other"
    kind = "node" if is_node(part) else kind
    keys = tuple(_described(key.key) for key, _ in level.children) if cls in _DICTS else ()
    if cls in _CONTAINERS or kind == "namedtuple":
        statics = [("default_factory", part.default_factory)] if cls is defaultdict else []
    else:
        statics = [(str(key).lstrip("."), value) for key, value in level.statics]
    of_class = None if cls in _CONTAINERS else class_name(cls)
    return Branch(name, path, kind, steps, of_class, keys, {key: _described(value) for key, value in statics})


_described = functools.partial(encode, describe=True)


def _is_namedtuple(cls: Any) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


# From the records alone


class Decoder:
    """Makes a tree from its records alone. Classes and statics are found before an array is read; `build` adds leaves.

    They are found in a list of modules, by name: no name from a file is imported or followed.
    """

    def __init__(self, manifest: Manifest, modules: Modules) -> None:
        """Find all classes and statics.

        Args:
            manifest: The records.
            modules: Where classes and functions may come from.

        Raises:
            CheckpointError: If one can't be found or made; the message lists all of them.
        """
        every = ["treewright", *([modules] if isinstance(modules, str | types.ModuleType) else modules)]
        self.modules: list[Any] = [importlib.import_module(one) if isinstance(one, str) else one for one in every]
        with warnings.catch_warnings():  # of deprecated names, of which only the class is asked
            warnings.simplefilter("ignore")
            self.known: list[tuple[str, Any]] = [pair for module in self.modules for pair in _named_in(module)]
        self.known += [(f"builtins:{cls.__name__}", cls) for cls in _BUILT_IN]
        self.branches: tuple[Branch, ...] = manifest.branches
        self.makers: dict[str, Any] = {}
        problems: dict[str, list[str]] = {}
        for branch in manifest.branches:
            try:
                self.makers[branch.name] = self.maker(branch)
            except Exception as error:  # noqa: BLE001  a file may hold anything, and all its problems come at once
                problems.setdefault(str(error), []).append(branch.shown_path)
        lines = [f"{first_names(paths)}: {problem}" for problem, paths in problems.items()]
        refuse(
            "The tree can't be made from its file alone. Load it into a tree, load(path, like=...), or see to this:",
            lines,
        )

    def build(self, leaves: Mapping[str, Any]) -> Any:
        """The tree with these leaves by name."""
        values = dict(leaves)
        for branch in sorted(self.branches, key=lambda branch: -len(branch.name)):  # children come first
            below = [values.pop(join_name(branch.name, step)) for step in branch.children]
            values[branch.name] = self.makers[branch.name](below)
        (tree,) = values.values()
        return tree

    def find(self, name: Any) -> Any:
        """The class or function of this name.

        Raises:
            StaticSerializationError: If nothing has the name, or two things do.
        """
        name = str(name)
        exact = {id(value): value for known, value in self.known if known == name}
        values = exact or {id(value): value for known, value in self.known if may_be_same_name(known, name)}
        if len(values) == 1:
            return next(iter(values.values()))
        listed = ", ".join(module.__name__ for module in self.modules)
        if values:
            raise StaticSerializationError(f"{name!r} names several things in the modules that may be used ({listed}).")
        raise StaticSerializationError(
            f"{cut_text(name, 200)!r} is in none of the modules that may be used ({listed}). If you trust the file, "
            f"add the module that holds it: load(path, modules=[...])."
        )

    def maker(self, branch: Branch) -> Any:
        """A function from the children of a container to the container."""
        match branch.kind:
            case "NoneType":
                return lambda _: None
            case "list" | "tuple":
                return list if branch.kind == "list" else tuple
            case "dict" | "OrderedDict" | "defaultdict":
                keys = [self.static("a key", key) for key in branch.keys]
                make: Any = OrderedDict if branch.kind == "OrderedDict" else dict
                if branch.kind == "defaultdict":
                    factory = self.static("its factory", branch.statics["default_factory"])
                    make = functools.partial(defaultdict, factory)
                    make()  # a factory that is none is known here, before an array is read
                if len({*keys}) != len(branch.children):
                    raise CheckpointError("two of its keys are the same.")
                return lambda children: make(zip(keys, children, strict=True))
            case "namedtuple" | "node":
                return self.class_maker(branch, self.find(branch.cls))
            case _:
                raise CheckpointError(f"a {branch.cls} is neither a node nor a container of Python.")

    def class_maker(self, branch: Branch, cls: Any) -> Any:
        """A function from the children of a node or named tuple to it. No `__init__` and no converter runs."""
        statics, children = list[str](), list[str](getattr(cls, "_fields", ()))
        is_tuple = branch.kind == "namedtuple" and _is_namedtuple(cls)
        if branch.kind == "node" and hasattr(cls, "__node_spec__"):
            statics, children = (
                [field.name for field in part] for part in (spec_of(cls).statics, spec_of(cls).children)
            )
        elif not is_tuple:
            raise CheckpointError(f"{branch.cls} is no {branch.kind}, as the checkpoint has it.")
        if {*statics} != {*branch.statics} or {*children} != {*branch.children}:
            raise CheckpointError(
                f"{branch.cls} has other fields now: {', '.join([*statics, *children])}, saved were "
                f"{', '.join([*branch.statics, *branch.children])}."
            )
        order = [branch.children.index(name) for name in children]
        if is_tuple:
            return lambda values: tuple.__new__(cls, [values[i] for i in order])
        values_of_statics = [self.static(f"the static {name}", branch.statics[name]) for name in statics]
        interned = spec_of(cls).table.intern(tuple(values_of_statics))
        return lambda values: from_flat_form(cls, (tuple(values[i] for i in order), interned))

    def static(self, what: str, form: Any) -> Any:
        """The value of a static or a key that has an exact form."""
        try:
            return decode(form, find=self.find)
        except StaticSerializationError as error:
            raise CheckpointError(f"{what}: {error}") from error


def _named_in(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions of a module by name, those of its own package alone.

    Names in `__all__` count even if nobody has used them yet: a module may load them on first use, as Treewright does.
    `from os import system` in a module does not make it the module's own.
    """
    package = module.__name__.partition(".")[0]
    for attribute in dict.fromkeys([*vars(module), *getattr(module, "__all__", ())]):
        value = getattr(module, attribute, None)
        home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if callable(value) and isinstance(home, str) and home.partition(".")[0] == package:
            yield f"{home}:{name}", value
            if isinstance(value, type):
                yield class_name(value), value
