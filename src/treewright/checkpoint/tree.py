"""From a tree to its manifest and leaves, and from a manifest and arrays to a tree, without a tree to load into."""

import functools
import importlib
import importlib.util
import types
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._core import Statics, flat_form, from_flat_form, is_node, spec_of
from treewright._core.text import cut_text, first_names, first_of
from treewright._json import StaticSerializationError, decode, encode, shown
from treewright._trees.level import Level, level_of
from treewright.checkpoint.arrays import SHARED, UnsupportedLeafError, form_of
from treewright.checkpoint.manifest import DEPTH, DICTS, ROOT_LEAF, Branch, Leaf, Manifest, join_name
from treewright.errors import CheckpointError, CheckpointWarning, warn_user

DECLARED = "__checkpoint_name__"
Modules = str | types.ModuleType | Sequence[str | types.ModuleType]

_DICTS = (dict, OrderedDict, defaultdict)
_SEQUENCES = frozenset({list, tuple, type(None)})
_ARRAYS = (jax.Array, np.ndarray, np.generic)  # known to be leaves; JAX takes 5 us to say so
_NAMED = frozenset({"name", "enum", "flag", "namedtuple", "node", "dataclass"})  # static forms that begin with a name
_BUILT_IN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)  # found without a module


# Names


def class_name(cls: type[Any]) -> str:
    """The name that the class itself declares as `__checkpoint_name__`, else `module:qualname`."""
    declared = vars(cls).get(DECLARED)
    if declared is None:
        module = "treewright" if cls.__module__.startswith("treewright._") else cls.__module__
        return f"{module}:{cls.__qualname__}"
    if not isinstance(declared, str) or not declared:
        raise CheckpointError(
            f"{cls.__qualname__}.{DECLARED} is {declared!r}, and must be a name such as 'mylib.{cls.__qualname__}'."
        )
    return declared


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


def is_same_name(name: str, other: str) -> bool:
    """Whether two names mean one class or function for sure. Treewright may move anything of its own."""
    both_ours = name.startswith("treewright") and other.startswith("treewright")
    return name == other or (both_ours and may_be_same_name(name, other))


def is_namedtuple(cls: Any) -> bool:
    """Whether a class was made by `NamedTuple` or `namedtuple`."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


# From a tree to its records


class Parts(NamedTuple):
    """A tree that was taken apart: its records, its leaves by name, and the statics that are local to a process."""

    manifest: Manifest
    values: dict[str, Any]
    local: frozenset[str] = frozenset()


def parts_to_save(tree: Any, problems: Iterable[str] = ()) -> Parts:
    """The records and leaves of a tree.

    Args:
        tree: Any pytree.
        problems: Sentences about the tree that an engine found already.

    Raises:
        CheckpointError: If something can't be saved; the message lists all of it by path.
    """
    walk = _Walk(tree, abstract=False)
    refuse("The tree can't be saved, and nothing was written:", [*walk.problems, *problems])
    return walk.parts()


def parts_of_target(tree: Any) -> Parts:
    """The records and leaves of a tree to load into; its leaves may be `jax.ShapeDtypeStruct`s.

    Raises:
        CheckpointError: If there is a leaf that can't be loaded.
    """
    walk = _Walk(tree, abstract=True)
    refuse("Nothing can be loaded into this tree:", walk.problems)
    return walk.parts()


def refuse(title: str, problems: Sequence[str]) -> None:
    """Return if there are no problems.

    Raises:
        CheckpointError: If there are: the title, and a line for each of the first.
    """
    if problems:
        raise CheckpointError("\n  ".join([title, *first_of(problems)]))


class _Walk:
    """The records of a tree, and a sentence for each thing in it that can't be saved."""

    def __init__(self, tree: Any, *, abstract: bool) -> None:
        self.abstract = abstract
        self.known_leaves = (*_ARRAYS, jax.ShapeDtypeStruct) if abstract else _ARRAYS
        self.branches: list[Branch] = []
        self.leaves: list[Leaf] = []
        self.values: dict[str, Any] = {}
        self.paths: dict[str, str] = {}  # by name, of all places
        self.first: dict[int, str] = {}  # the name under which each array was met first
        self.statics: dict[int, tuple[Statics, dict[str, Any]]] = {}  # kept, so that no two have one id
        self.local: set[str] = set()
        self.problems: list[str] = []
        self.visit(tree, "", "", 0)

    def parts(self) -> Parts:
        """The records and the leaves."""
        return Parts(Manifest(tuple(self.branches), tuple(self.leaves)), self.values, frozenset(self.local))

    def visit(self, part: Any, name: str, path: str, depth: int, equinox: str = "") -> None:
        """Add the records of a part of the tree, in the order in which JAX flattens it."""
        level = None if isinstance(part, self.known_leaves) else level_of(part)
        if not depth and level is None:
            name = ROOT_LEAF
        if name in self.paths:
            self.problems.append(
                f"{path} would get the name {name!r}, which {self.paths[name] or 'the tree'} has already"
            )
            return
        self.paths[name] = path
        if not name.isascii() and name.encode(errors="ignore").decode() != name:
            self.problems.append(f"{path} would get the name {name!r}, which is not UTF-8 text")
        if level is None:
            self.add_leaf(part, name, path or "the tree", equinox)
            return
        if depth == DEPTH:
            self.problems.append(f"{path} lies {DEPTH} levels deep, and no checkpoint goes deeper")
            return
        steps = [_step(key) for key, _ in level.children]
        self.add_branch(part, level, name, path, tuple(steps))
        equinox = _equinox_class(type(part)) or equinox
        for step, (key, child) in zip(steps, level.children, strict=True):
            self.visit(child, join_name(name, step), f"{path}{key}", depth + 1, equinox)

    def add_leaf(self, leaf: Any, name: str, path: str, equinox: str) -> None:
        """Add a leaf, or why it can't be saved."""
        try:
            form = form_of(leaf, abstract=self.abstract)
        except UnsupportedLeafError as problem:
            cure = f". {equinox} keeps it among its leaves: save treewright.adopt(...) of it" if equinox else ""
            sentence = str(problem).partition(". Make it")[0] if equinox else problem
            self.problems.append(f"{path} {sentence}{cure}")
            return
        shared = not self.abstract and form.kind in SHARED
        first = self.first.setdefault(id(leaf), name) if shared else name
        self.leaves.append(Leaf(name, path, form, tied=None if first == name else first))
        self.values[name] = leaf

    def add_branch(self, part: Any, level: Level, name: str, path: str, steps: tuple[str, ...]) -> None:
        """Add a node or container."""
        if is_node(part):
            self.local.update(join_name(name, field.name) for field in spec_of(part).statics if field.local)
        try:
            self.branches.append(Branch(name, path, children=steps, **self.description(part, level)))
        except (StaticSerializationError, RecursionError) as error:
            self.problems.append(f"{path or 'the tree'} has a static that no checkpoint holds: {error}")

    def description(self, part: Any, level: Level) -> dict[str, Any]:
        """The kind, class, keys, fields and statics of a node or container."""
        cls = type(part)
        if is_node(part):
            spec, (_, statics) = spec_of(part), flat_form(part)
            known = self.statics.get(id(statics))
            if known is None:
                fields = {field.name: str(field.kind) for field in spec.fields}
                values = zip([field.name for field in spec.statics], statics.values, strict=True)
                encoded = {name: encode(value, describe=True) for name, value in values}
                known = statics, {"kind": "node", "cls": class_name(cls), "fields": fields, "statics": encoded}
                self.statics[id(statics)] = known
            return known[1]
        if cls in _DICTS:
            keys = tuple(encode(key.key, describe=True) for key, _ in level.children)
            factory = {"default_factory": encode(part.default_factory, describe=True)} if cls is defaultdict else {}
            return {"kind": cls.__name__, "keys": keys, "statics": factory}
        if cls in _SEQUENCES:
            return {"kind": "none" if part is None else cls.__name__}
        if is_namedtuple(cls):
            return {"kind": "namedtuple", "cls": class_name(cls)}
        statics_of_other = {str(key).lstrip("."): encode(value, describe=True) for key, value in level.statics}
        return {"kind": "other", "cls": class_name(cls), "statics": statics_of_other}


def _step(key: Any) -> str:
    """The part of a name that a key of JAX stands for."""
    for attribute in ("name", "key", "idx"):
        value = getattr(key, attribute, None)
        if value is not None or hasattr(key, attribute):
            return str(value)
    return str(key)


def _equinox_class(cls: type[Any]) -> str:
    """The name of a class of equinox modules; empty for any other."""
    bases = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return f"the equinox module {cls.__qualname__}" if "equinox" in bases else ""


# Statics as JSON


def likeness(saved: Any, wanted: Any) -> str:
    """How alike two statics are as JSON: "same", "soft" if only descriptions or moved names differ, or "different"."""
    if type(saved) is not type(wanted):
        return "different"
    if isinstance(saved, dict):
        if saved.keys() != wanted.keys():
            return "different"
        return _least(likeness(saved[key], wanted[key]) for key in saved)
    if not isinstance(saved, list):
        return "same" if repr(saved) == repr(wanted) else "different"
    if saved[:1] != wanted[:1] or len(saved) != len(wanted):
        return "different"
    kind = saved[0] if saved and isinstance(saved[0], str) else None
    if kind == "described":
        return "same" if saved[2:] == wanted[2:] else "soft"
    pairs = list(zip(saved[1:], wanted[1:], strict=True))
    if kind in _NAMED and all(isinstance(part, str) for part in pairs[0]):
        name, other = pairs.pop(0)
        if not is_same_name(name, other):
            named = "soft" if may_be_same_name(name, other) else "different"
            return _least([named, *(likeness(*pair) for pair in pairs)])
    return _least(likeness(*pair) for pair in pairs)


def _least(each: Iterable[str]) -> str:
    return max(each, key=("same", "soft", "different").index, default="same")


def shown_static(form: Any) -> str:
    """A static as a person would write it."""
    return "nothing" if form is ABSENT else shown(form)


ABSENT: Any = object()  # in place of a static that only the other side has


def is_described(form: Any) -> bool:
    """Whether a part of a static was saved as a description only."""
    if isinstance(form, dict):
        return any(map(is_described, form.values()))
    return isinstance(form, list) and (form[:1] == ["described"] or any(map(is_described, form)))


# From the records alone


class Decoder:
    """Makes a tree from its records alone. Classes and statics are found before an array is read; `build` adds leaves.

    They are found in a list of modules, by name: no name from a file is imported or followed.
    """

    def __init__(self, manifest: Manifest, modules: Modules, statics: Mapping[str, Any]) -> None:
        """Find all classes and statics.

        Args:
            manifest: The records.
            modules: Where classes and functions may come from; optax is added for its states.
            statics: Values of statics that were saved as descriptions, by flat name.

        Raises:
            CheckpointError: If one can't be found or made; the message lists all of them.
        """
        of_optax = any((branch.cls or "").startswith("optax.") for branch in manifest.branches)
        listed = [modules] if isinstance(modules, str | types.ModuleType) else [*modules]
        every: list[Any] = [
            "treewright",
            *(["optax"] if of_optax and importlib.util.find_spec("optax") else []),
            *listed,
        ]
        self.modules: list[Any] = [importlib.import_module(one) if isinstance(one, str) else one for one in every]
        with warnings.catch_warnings():  # of deprecated names, of which only the class is asked
            warnings.simplefilter("ignore")
            self.known: list[tuple[str, Any]] = [pair for module in self.modules for pair in _named_in(module)]
        self.known += [(f"builtins:{cls.__name__}", cls) for cls in _BUILT_IN]
        self.branches: dict[str, Branch] = {branch.name: branch for branch in manifest.branches}
        self.given: dict[str, Any] = dict(statics)
        self.makers: dict[str, Any] = {}
        problems: dict[str, list[str]] = {}
        for branch in manifest.branches:
            try:
                self.makers[branch.name] = self.maker(branch)
            except Exception as error:  # noqa: BLE001  a file may hold anything, and all its problems come at once
                problems.setdefault(str(error), []).append(branch.shown_path)
        lines = [f"{first_names(paths)}: {problem}" for problem, paths in problems.items()]
        lines += [f"statics={{{name!r}: ...}}: no static of this name was described" for name in self.given]
        refuse("The tree can't be made from its file alone:", lines)

    def build(self, values: Mapping[str, Any], name: str | None = None) -> Any:
        """The tree, or the part of this name, with these leaves by name."""
        name = name if name is not None else "" if self.branches else ROOT_LEAF
        if name not in self.branches:
            return values[name]
        return self.makers[name]([self.build(values, join_name(name, step)) for step in self.branches[name].children])

    def find(self, name: Any) -> Any:
        """The class or function of this name.

        Raises:
            StaticSerializationError: If nothing has the name, or two things do.
        """
        name = str(name)
        exact = {id(value): value for known, value in self.known if is_same_name(known, name)}
        values = exact or {id(value): value for known, value in self.known if may_be_same_name(known, name)}
        if len(values) == 1:
            return next(iter(values.values()))
        listed = ", ".join(module.__name__ for module in self.modules)
        if values:
            raise StaticSerializationError(f"{name!r} names several things in the modules that may be used ({listed}).")
        raise StaticSerializationError(
            f"{cut_text(name, 200)!r} is in none of the modules that may be used ({listed}). If you trust the file, "
            f"add the module that holds it: load(path, modules=[...]). Or give a tree to load into: "
            f"load(path, like=...)."
        )

    def maker(self, branch: Branch) -> Any:
        """A function from the children of a container to the container."""
        match branch.kind:  # pyright: ignore[reportMatchNotExhaustive]
            case "none":
                return lambda _: None
            case "list":
                return list
            case "tuple":
                return tuple
            case "namedtuple":
                cls = self.find(branch.cls)
                if not is_namedtuple(cls) or cls._fields != branch.children:
                    fields = ", ".join(getattr(cls, "_fields", ["no list of them"]))
                    raise CheckpointError(f"{branch.cls} has the fields {fields} now.")
                return functools.partial(tuple.__new__, cls)
            case "node":
                return self.node_maker(branch)
            case kind if kind in DICTS:
                return self.dict_maker(branch)
        raise CheckpointError(f"a {branch.cls} is neither a node nor a container of Python: load(path, like=...).")

    def dict_maker(self, branch: Branch) -> Any:
        """A function from the values of a dict to it."""
        keys = [self.static(key) for key in branch.keys or ()]
        if len({*keys}) != len(branch.children):
            raise CheckpointError("two of its keys are the same.")
        make: Any = OrderedDict if branch.kind == "OrderedDict" else dict
        if branch.kind == "defaultdict":
            make = functools.partial(defaultdict, self.static(branch.statics["default_factory"]))
            make()  # a factory that is none is known here, before an array is read
        return lambda children: make(zip(keys, children, strict=True))

    def node_maker(self, branch: Branch) -> Any:
        """A function from the children of a node to the node. No `__init__` and no converter runs."""
        cls = self.find(branch.cls)
        if not hasattr(cls, "__node_spec__"):
            raise CheckpointError(f"{branch.cls} is not a node, as the checkpoint has it.")
        spec = spec_of(cls)
        now = {field.name: field.is_static for field in spec.fields}
        then = {name: kind == "static" for name, kind in branch.fields.items()}
        names = [field.name for field in spec.children]
        if now != then or {*names} != {*branch.children}:
            raise CheckpointError(
                f"{class_name(cls)} has other fields now: {', '.join(now)}, saved were {', '.join(then)}. "
                f"Load into a tree of the new class: load(path, like=...)."
            )
        statics = spec.table.intern(tuple(self.static_of(branch, field.name) for field in spec.statics))
        order = [branch.children.index(name) for name in names]
        return lambda children: from_flat_form(cls, (tuple(children[i] for i in order), statics))

    def static(self, form: Any) -> Any:
        """The value of a static that has an exact form."""
        if is_described(form):
            shown_form = cut_text(shown_static(form), 200)
            raise CheckpointError(f"it was saved as a description only, {shown_form}: load(path, like=...).")
        return decode(form, find=self.find)

    def static_of(self, branch: Branch, name: str) -> Any:
        """The value of a node's static: the given one, if it was saved as a description."""
        form, place = branch.statics[name], join_name(branch.name, name)
        if not is_described(form):
            try:
                return self.static(form)
            except StaticSerializationError as error:
                raise CheckpointError(f"the static {name}: {error}") from error
        if place not in self.given:
            raise CheckpointError(
                f"the static {name} was saved as a description only: {cut_text(shown_static(form), 200)}. Give its "
                f"value: statics={{{place!r}: ...}}, or a tree that has it: load(path, like=...)."
            )
        value = self.given.pop(place)
        given = encode(value, describe=True)
        if likeness(form, given) != "same":
            saved, now = (cut_text(shown_static(one), 200) for one in (form, given))
            warn_user(f"{branch.path}.{name}: saved was {saved}, given is {now}", CheckpointWarning)
        return value


def _named_in(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions of a module by name, those of its own package alone.

    Names in `__all__` count even if nobody has used them yet: a module may load them on first use, as Treewright does.
    """
    package = module.__name__.partition(".")[0]
    for name in dict.fromkeys([*vars(module), *getattr(module, "__all__", ())]):
        yield from _named(getattr(module, name, None), package)


def _named(value: Any, package: str) -> Iterator[tuple[str, Any]]:
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not callable(value) or not isinstance(home, str) or not isinstance(name, str):
        return
    if home.partition(".")[0] != package:  # `from os import system` in a module does not make it the module's own
        return
    yield f"{home}:{name}", value
    if isinstance(value, type):
        yield class_name(value), value
        for inner in vars(value).values():
            if isinstance(inner, type) and inner.__qualname__.startswith(f"{name}."):
                yield from _named(inner, package)
