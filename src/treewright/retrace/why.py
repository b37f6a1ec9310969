"""Why two statics differ that may look alike: what is kept of each, what differs inside, the cause and its remedy."""

import dataclasses
import enum
import functools
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import jax
import numpy as np

from treewright._core import FrozenArray, bound_variables, globals_read, state_of
from treewright._core.jax_private import Path, options_of, path_text
from treewright._core.text import first_names, short_text
from treewright._trees.diff import ABSENT, Difference, DifferenceKind, alike_reason, parts_of, same_exactly, same_to_jit
from treewright.retrace.jax_private import inside_of_boundary, is_of_a_library

_DEPTH = 8  # levels of a value that are kept
_MOST = 400  # parts of a value that are kept; of what is beyond only the text is
_SHOWN = 3  # changes that are named
_PLAIN = (types.NoneType, types.EllipsisType, types.NotImplementedType, bool, int, float, complex, str, bytes)
_KEPT = (*_PLAIN, type, enum.Enum, np.dtype, np.generic, types.ModuleType, types.BuiltinFunctionType, FrozenArray)
_CHANGEABLE = (list, dict, set, bytearray)
_ARRAYS = (jax.Array, np.ndarray)
_ABOUT_FUNCTIONS = ("__name__", "__qualname__", "__module__", "__doc__")
_IN_PLACE = " (changed in place)"
# How a function holds its parts, by their roles.
_VERBS = types.MappingProxyType(
    {"which captured": {"captured"}, "which reads the global": {"global"}, "with": {"attribute"}}
)


class Cause(str):
    """Why two values differ: a sentence, and the name under which a report has what to do."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, sentence: str) -> Self:
        """A cause of one of the names in `treewright.retrace.report.REMEDIES`."""
        made = super().__new__(cls, sentence)
        made.name = name
        return made


# What is kept of a value


class Part(NamedTuple):
    """The key of something that belongs to a callable or an object and is no item of a container."""

    role: Literal["captured", "global", "function", "object", "argument", "option", "attribute", "item"]
    name: str

    def __str__(self) -> str:
        return "" if self.role == "item" else f".{self.name}"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Snapshot:
    """What is kept of a value that is not plain: no array, and nothing that changes later.

    Attributes:
        kind: The class of the value.
        text: The value in one line.
        parts: What it consists of, kept in the same way: of a container by `jax` keys, of others by `Part`.
        compared: How `jit` compares such values: by their parts, as objects, or by an `==` of their own.
        value: The value itself, where it has an `==` of its own.
        code: Of a Python function, with its file, since `==` of code leaves that out.
    """

    kind: type[Any]
    text: str
    parts: Mapping[Any, Any]
    compared: Literal["parts", "object", "value"]
    value: Any
    code: tuple[types.CodeType, str] | None
    address: int
    reference: weakref.ref[Any] | None

    def __repr__(self) -> str:
        return self.text

    @property
    def is_alive(self) -> bool:
        """Whether the value is known to live, so that its parts do too."""
        return self.reference is not None and self.reference() is not None

    @property
    def inner(self) -> Any:
        """The function that a partial, or what a decorator made, calls; itself for anything else."""
        return next((part for key, part in self.parts.items() if getattr(key, "role", "") == "function"), self)

    def is_object_of(self, other: "Snapshot") -> bool:
        """Whether both are of one object. Lists, dicts and the like are told by a number that others may have later."""
        if self.reference is None or other.reference is None:
            return self.reference is other.reference and self.address == other.address
        return self.is_alive and self.reference() is other.reference()


def snapshot(value: Any) -> Any:
    """What to keep of a value; a plain one is kept as it is."""
    left = iter(range(_MOST))

    def kept(value: Any, depth: int) -> Any:
        if isinstance(value, _KEPT):
            return value
        parts: dict[Any, Any] = {}
        for key, part in contents(value).items() if depth else ():
            if next(left, None) is None:
                break
            # What a function among the globals reads in turn may be half a program.
            is_global = isinstance(key, Part) and key.role == "global" and isinstance(part, types.FunctionType)
            parts[key] = kept(part, 0 if is_global else depth - 1)
        return _snapshot_of(value, parts)

    return kept(value, _DEPTH)


def kind_of(value: Any) -> type[Any]:
    """The class of a value of which this is kept."""
    return value.kind if isinstance(value, Snapshot) else type(value)


def _snapshot_of(value: Any, parts: Mapping[Any, Any]) -> Snapshot:
    kind: Any = type(value)
    generated = dataclasses.is_dataclass(type(value)) and str(kind.__eq__.__qualname__).startswith("__create_fn__")
    is_tuple = isinstance(value, tuple) and kind.__eq__ is tuple.__eq__
    compared: Literal["parts", "object", "value"] = "value"
    if generated or is_tuple or kind in {*_CHANGEABLE, frozenset, types.MethodType}:
        compared = "parts"
    elif kind.__eq__ is object.__eq__ or isinstance(value, _ARRAYS):
        compared = "object"
    function = inside_of_boundary(value)
    code = (function.__code__, function.__code__.co_filename) if isinstance(function, types.FunctionType) else None
    try:
        reference = None if kind in _CHANGEABLE else weakref.ref(value)
    except TypeError:
        reference = None
    equal = value if compared == "value" else None
    return Snapshot(kind, short_text(value), parts, compared, equal, code, id(value), reference)


def contents(value: Any) -> Mapping[Any, Any]:
    """What a value consists of: items of containers by JAX's keys, what callables and objects hold by `Part`."""
    if isinstance(value, _ARRAYS):
        return {}
    wrapped = getattr(value, "__wrapped__", None)
    is_function = isinstance(value, types.FunctionType)
    if wrapped is not None and (not is_function or is_of_a_library(value)):
        options = bound_variables(inside_of_boundary(value)) if is_function else options_of(value) or state_of(value)
        for part in options.values():  # `grad` captures what `value_and_grad` made, which has the options
            if isinstance(part, types.FunctionType) and getattr(part, "__wrapped__", None) is wrapped:
                return contents(part)
        others = {name.strip("_"): part for name, part in options.items() if part is not wrapped}
        return {Part("function", "__wrapped__"): wrapped, **_of_role("option", others)}
    if isinstance(value, types.FunctionType):
        attributes = {name: getattr(value, name) for name in _ABOUT_FUNCTIONS} | vars(value)
        attributes.pop("__wrapped__", None)
        held = _of_role("captured", bound_variables(value))
        return held | _of_role("global", globals_read(value)) | _of_role("attribute", attributes)
    if isinstance(value, functools.partial):
        args = {f"argument {index}": part for index, part in enumerate(value.args)}
        return {Part("function", "func"): value.func} | _of_role("argument", args | value.keywords)
    if isinstance(value, types.MethodType):
        return {Part("object", "__func__"): value.__func__, Part("object", "self"): value.__self__}
    if isinstance(value, (set, frozenset)):
        return _of_role("item", {short_text(item): item for item in sorted(value, key=short_text)})
    if isinstance(value, bytearray):
        return {Part("attribute", "content"): bytes(value)}
    return parts_of(value) or _of_role("attribute", state_of(value))


def _of_role(role: Any, named: Mapping[str, Any]) -> dict[Part, Any]:
    return {Part(role, name): part for name, part in named.items()}


# What differs


def same(left: Any, right: Any) -> bool:
    """Whether `jit` takes two values for one, which foreign classes have as statics."""
    if left is right:
        return True
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot):
        return same_to_jit(left, right)
    if left.compared == "parts":
        return left.kind is right.kind and _have_same_parts(left, right, same)
    return same_to_jit(left.value, right.value) if left.compared == "value" else left.is_object_of(right)


def alike(left: Any, right: Any) -> bool:
    """Whether no difference between two values is seen, of those that exact statics tell apart."""
    if left is right:
        return True
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot):
        return type(left) is type(right) and same_exactly(left, right)
    if left.kind is not right.kind or left.code != right.code:
        return False
    if left.code is not None and left.is_object_of(right):
        return True
    if left.parts or right.parts:
        return _have_same_parts(left, right, alike)
    return left.code is not None or left.is_object_of(right) or (left.compared != "object" and same(left, right))


def _have_same_parts(left: Snapshot, right: Snapshot, compare: Any) -> bool:
    ours, theirs = left.parts, right.parts
    return ours.keys() == theirs.keys() and all(compare(ours[key], theirs[key]) for key in ours)


def changes(left: Any, right: Any, path: Path = (), *, alive: bool = False) -> list[Difference]:
    """The innermost places where two values differ, those that one object changed in place last.

    What a list, dict or set holds may have been changed by the trace itself. Where such a container seems to be one
    object, that is only said to have changed if its owner lives: else its number may be that of another one.
    """
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot) or left.kind is not right.kind:
        return []
    if left.code != right.code:  # two functions, which are told by their names
        return []
    found: list[Difference] = []
    for key in dict.fromkeys((*left.parts, *right.parts)):
        old, new = left.parts.get(key, ABSENT), right.parts.get(key, ABSENT)
        one = isinstance(old, Snapshot) and isinstance(new, Snapshot) and old.is_object_of(new)
        lives = alive or left.is_alive
        is_unknown = one and issubclass(old.kind, _CHANGEABLE) and not lives
        if is_unknown or alike(old, new):
            continue
        kind: DifferenceKind = "added" if old is ABSENT else "removed" if new is ABSENT else "static"
        inner = changes(old, new, (*path, key), alive=lives) or [Difference((*path, key), old, new, kind)]
        found += [dataclasses.replace(each, reason=_IN_PLACE) for each in inner] if one else inner
    return sorted(found, key=lambda change: change.reason)


def _listed(found: Iterable[Difference], below: int = 0) -> str:
    """`f.factor: 1.0 -> 2.0, config['rate'] (changed in place): 1 -> 2`, by the paths below a number of keys."""

    def text(change: Difference) -> str:
        where = path_text(change.path[below:]).lstrip(".") + change.reason
        if change.kind != "static":
            return f"{where}: {change.change} {change.kind}"
        old, new = short_text(change.left), short_text(change.right)
        return f"{where}: {f'another {new}' if old == new else f'{old} -> {new}'}"

    return first_names(map(text, found), _SHOWN)


# The cause


def cause_of(left: Any, right: Any) -> Cause | None:
    """Why two values differ that may look alike; None where their texts say it all, or nothing is seen."""
    old, new = (value if isinstance(value, Snapshot) else snapshot(value) for value in (left, right))
    if any(isinstance(value, Snapshot) and value.inner is not value for value in (old, new)):
        return _of_wrappers(old, new)
    classes = (old, new) if isinstance(old, type) and isinstance(new, type) else (kind_of(old), kind_of(new))
    if classes[0] is not classes[1]:
        return _of_classes(old, new, *classes)
    if isinstance(old, float | complex) and old != old and new != new:  # noqa: PLR0124  NaN
        return Cause("nan", "NaN equals nothing, not even another NaN")
    if not isinstance(old, Snapshot) or not isinstance(new, Snapshot):
        return None
    found = changes(old, new)
    if old.code is not None and new.code is not None:
        return _of_functions(old, new, found)
    if found and old.is_object_of(new) and new.is_alive:
        return Cause("changed in place", f"the same object, changed in place: {_listed(found)}")
    if issubclass(old.kind, types.MethodType):
        owned = [change for change in found if change.path[0].name == "self"]
        about = f", with {_listed(owned, 1)}" if any(len(change.path) > 1 for change in owned) else ""
        return Cause("other method", f"the same method of another object{about}") if owned == found else None
    return _of_objects(old, new, found)


def why_another(last: Any, this: Any) -> str:
    """How a function differs from an earlier one of its definition, for which `jit` keeps programs apart."""
    unseen = "another function object; no difference was seen in what it holds"
    return cause_of(last, this) or (unseen if short_text(last) == short_text(this) else "")


def _of_classes(old: Any, new: Any, a: type[Any], b: type[Any]) -> Cause | None:
    if (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__):
        return Cause("class made twice", alike_reason(a, b))
    if isinstance(old, type) or short_text(old) != short_text(new):
        return None
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in (a, b)]
    return Cause("other class", f"same text, but {' -> '.join(names)}")


def _of_wrappers(old: Any, new: Any) -> Cause | None:
    """Of partials, and of what `jit`, `grad`, `vmap` and the like make of a function."""
    (outer, function), (others, other) = _unwrapped(old), _unwrapped(new)
    are_objects = isinstance(function, Snapshot) and isinstance(other, Snapshot) and function.compared == "object"
    is_one = function.is_object_of(other) if are_objects else alike(function, other)
    if not is_one and not alike(function, other):
        return cause_of(function, other)
    which = short_text(function) if is_one else "another function of the same code"
    names, other_names = (list(map(_decorator, wrappers)) for wrappers in (outer, others))
    if names != other_names:
        both = " -> ".join(", ".join(each) or "none" for each in (names, other_names))
        return Cause("other decorators", f"{which} under other decorators: {both}")
    again = f"{' of '.join(f'a {name}' for name in names)} of {which} made again"
    pairs = list(zip(outer, others, strict=True))
    found = [change for pair in pairs for change in changes(*pair) if change.path[0].role != "function"]
    if found:
        is_argument = any(change.path[0].role == "argument" for change in found)
        return Cause("other arguments" if is_argument else "other options", f"{again}, with {_listed(found)}")
    if not is_one:
        return cause_of(function, other)
    orders = [[[key.name for key in wrapper.parts] for wrapper in pair] for pair in pairs]
    about = [
        f", with keywords in another order: {first_names(a[1:])} -> {first_names(b[1:])}" for a, b in orders if a != b
    ]
    return Cause("wrapped again", again + "".join(about))


def _unwrapped(value: Any) -> tuple[list[Snapshot], Any]:
    """The wrappers around a function, the outermost first, and the function."""
    wrappers: list[Snapshot] = []
    while isinstance(value, Snapshot) and value.inner is not value:
        wrappers.append(value)
        value = value.inner
    return wrappers, value


def _decorator(wrapper: Snapshot) -> str:
    """`vmap`, by the function that a decorator made, or by its class."""
    if wrapper.kind.__name__ == "PjitFunction":
        return "jit"
    name = wrapper.kind.__qualname__ if wrapper.code is None else wrapper.code[0].co_qualname
    return name.partition(".")[0].strip("_")


def _of_functions(old: Any, new: Any, found: Sequence[Difference]) -> Cause | None:
    code: types.CodeType = old.code[0]
    if old.code != new.code:
        places = " and ".join(dict.fromkeys(place_of(each.code[0]) for each in (old, new)))
        text = f"two functions, defined at {places}"
        return Cause("other function", text) if code.co_qualname == new.code[0].co_qualname else None
    texts: list[str] = []
    for verb, roles in _VERBS.items():
        of_verb = [change for change in found if change.path[0].role in roles]
        texts += [f"{verb} {_listed(of_verb)}"] if of_verb else []
    if not found:
        held, read = ([key for key in new.parts if key.role == role] for role in ("captured", "global"))
        same = "the same " if all(alike(old.parts.get(key), new.parts[key]) for key in held) else ""
        names = ", ".join(key.name for key in held or read)
        nothing = f"which reads the global {names}" if read else "which captures nothing"
        texts = [f"which captured {same}{names}" if held else nothing]
    is_optax = "optax" in code.co_filename.replace("\\", "/").split("/")
    name = "optimiser made again" if is_optax else "function made again"
    return Cause(name, f"made again by the same code ({place_of(code)}), {' and '.join(texts)}")


def place_of(code: types.CodeType) -> str:
    """`train.py:12`, where code is defined."""
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def _of_objects(old: Snapshot, new: Snapshot, found: Sequence[Difference]) -> Cause | None:
    kind: Any = old.kind
    about = f"; here {_listed(found)}" if found else ""
    if old.compared == "value":
        if same(old, new) and hash(old.value) != hash(new.value):
            return Cause("unequal hashes", f"{kind.__qualname__}.__eq__ says equal, and their hashes differ")
        if old.text != new.text:
            return None
        text = f"another {kind.__qualname__} with the same text"
        return Cause("other attributes", about[2:]) if about else Cause("same text", text)
    is_one_each = kind.__new__ is object.__new__ and type(kind).__call__ is type.__call__  # and not kept by its values
    if old.compared != "object" or not is_one_each or old.is_object_of(new) or kind.__module__.startswith("jax"):
        return None
    if not found and old.parts and alike(old, new):
        about = "; the attributes of these two are the same"
    return Cause("identity", f"{kind.__qualname__} has no __eq__, so each instance is a value of its own{about}")
