"""Why two values differ that may look alike: the cause, in words that rest on what was compared, and its remedy."""

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from treewright._core.text import LENGTH, first_names, short_text
from treewright._trees.diff import alike_reason
from treewright.retrace.snapshot import Change, Part, Snapshot, alike, changes, snapshot

_SHOWN = 3  # changes that are named
_OPTAX = "optax"

# What to do about each cause, and about some kinds of differences; empty where nothing general can be said.
REMEDIES: Mapping[str, str] = types.MappingProxyType(
    {
        "class made twice": "define the class once, in a module of its own, and make the objects again",
        "other class": "use one type",
        "changed in place": "make another object instead of changing this one, and best freeze it",
        "function made again": "define it once, outside of what calls it, and reuse it",
        "optimiser made again": "build the optimiser once and reuse it, or keep it in a TrainState",
        "other function": "use one and the same function in all calls",
        "other method": "keep one object, or pass the object as an argument of a plain function",
        "other decorators": "",
        "partial made again": "make it once and reuse it",
        "wrapped again": "wrap it once and reuse it",
        "nan": "use None for what is not there, or reuse one NaN object such as math.nan",
        "no answer": "make it a child, or give its class an __eq__ that answers with a bool",
        "identity": "give it __eq__ and __hash__, as a frozen dataclass has them, or make it once and reuse it",
        "other attributes": "",
        "same text": "make it once and reuse it",
        "unequal hashes": "give equal values one hash",
        "default passed": "a default that is passed is an argument more: pass it each time or never",
        "other statics": "jit the function once, with one set of static arguments",
        "dtype": "convert it where it is made",
        "weak_type": "give the dtype where the array is made: jnp.asarray(x, dtype)",
        "passing": "pass it the same way each time: jit tells by position from by keyword",
        "setting": "set it once, before the first call",
        "option": "jit the function once, with one set of options",
        "sharding": "give it one sharding before the loop: jax.device_put",
        "placement": "put it there once, before the loop: jax.device_put",
        "added": "keep the structure the same from call to call",
        "removed": "keep the structure the same from call to call",
    }
)


class Cause(str):
    """Why two values differ: a sentence, and the name under which `REMEDIES` has what to do."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, sentence: str) -> Self:  # noqa: D102
        cause = super().__new__(cls, sentence)
        cause.name = name
        return cause

    def __reduce__(self) -> "tuple[type[Cause], tuple[str, str]]":
        return Cause, (self.name, str(self))


def cause_of(left: Any, right: Any) -> Cause | None:
    """Why two values differ that may look alike; None where their texts say it all, or nothing is seen."""
    old, new = (value if isinstance(value, Snapshot) else snapshot(value) for value in (left, right))
    cause = _of_classes(old, new) or _of_plain(old, new)
    if cause is not None or not isinstance(old, Snapshot) or not isinstance(new, Snapshot) or old.kind is not new.kind:
        return cause
    for find in (_of_one_object, _of_wrappers, _of_functions, _of_methods, _of_partials, _of_objects):
        cause = find(old, new)
        if cause is not None:
            return cause
    text = alike_reason(*(value.value for value in (old, new))) if old.compared == "value" else ""
    return Cause("same text", text) if text else None


def _of_classes(old: Any, new: Any) -> Cause | None:
    both_classes = isinstance(old, type) and isinstance(new, type)
    a, b = (old, new) if both_classes else (_kind(old), _kind(new))
    if a is b:
        return None
    if (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__):
        text = "its class statement ran twice, as in a notebook cell that runs again, a reloaded module or a function"
        return Cause("class made twice", f"two classes are named {a.__qualname__}: {text}")
    if both_classes or short_text(old) != short_text(new):
        return None
    names = (a.__qualname__, b.__qualname__)
    if names[0] == names[1]:
        names = (f"{a.__module__}.{names[0]}", f"{b.__module__}.{names[1]}")
    return Cause("other class", f"same text, but {' -> '.join(names)}")


def _kind(value: Any) -> type[Any]:
    return value.kind if isinstance(value, Snapshot) else type(value)


def _of_plain(old: Any, new: Any) -> Cause | None:
    numbers = (float, complex)
    if isinstance(old, numbers) and isinstance(new, numbers) and old != old and new != new:  # noqa: PLR0124  NaN
        return Cause("nan", "NaN equals nothing, not even another NaN")
    return None


def _of_one_object(old: Snapshot, new: Snapshot) -> Cause | None:
    if old.code is not None or not old.is_object_of(new) or not new.is_alive:
        return None
    found = changes(old, new)
    return Cause("changed in place", f"the same object, changed in place: {_listed(found)}") if found else None


# Functions, and what is made of them


def _of_functions(old: Snapshot, new: Snapshot) -> Cause | None:
    if old.code is None or new.code is None:
        return None
    if old.code != new.code or old.place != new.place:
        if old.code.co_qualname != new.code.co_qualname:
            return None
        places = dict.fromkeys((old.place, new.place))
        return Cause("other function", f"two functions, defined at {' and '.join(places)}")
    is_optax = _OPTAX in old.code.co_filename.replace("\\", "/").split("/")
    name: str = "optimiser made again" if is_optax else "function made again"
    return Cause(name, f"made again by the same code ({old.place}){_about_function(old, new)}")


def _about_function(old: Snapshot, new: Snapshot) -> str:
    by_role: dict[str, list[Change]] = {}
    for change in changes(old, new):
        by_role.setdefault(change.key.role, []).append(change)
    verbs = {"captured": ", which captured", "global": ", which reads the global", "attribute": ", with"}
    said = [f"{verb} {_listed(by_role[role])}" for role, verb in verbs.items() if role in by_role]
    if said:
        return " and".join([said[0], *(text.removeprefix(", which").removeprefix(",") for text in said[1:])])
    held = [key for key in new.parts if key.role in {"captured", "option", "function"}]
    if held:
        same = all(alike(old.parts.get(key), new.parts[key]) for key in held)
        return f", which captured {'the same ' if same else ''}{', '.join(key.name for key in held)}"
    read = [key.name for key in new.parts if key.role == "global"]
    return f", which reads the global {', '.join(read)}" if read else ", which captures nothing"


def _of_methods(old: Snapshot, new: Snapshot) -> Cause | None:
    if not issubclass(old.kind, types.MethodType):
        return None
    function, owner = Part("function", "__func__"), Part("object", "self")
    if not alike(old.parts.get(function), new.parts.get(function)):
        return None
    return Cause(
        "other method", f"the same method of another object{_with(changes(old.parts[owner], new.parts[owner]))}"
    )


def _of_partials(old: Snapshot, new: Snapshot) -> Cause | None:
    function = Part("function", "func")
    if function not in old.parts or function not in new.parts:
        return None
    ours, theirs = old.parts[function], new.parts[function]
    names, others = ([key.name for key in side.parts if key != function] for side in (old, new))
    made = f"a partial of {short_text(ours)} made again"
    found = [change for change in changes(old, new) if change.key != function]
    if sorted(names) != sorted(others):
        found_text = f"with other arguments: {old.text} -> {new.text}"
    elif found:
        found_text = f"with {_listed(found)}"
    elif not alike(ours, theirs):
        return cause_of(ours, theirs)
    elif names != others:
        found_text = f"with keywords in another order: {', '.join(names)} -> {', '.join(others)}"
    else:
        same = all(alike(part, new.parts[key]) for key, part in old.parts.items())
        found_text = "with the same arguments" if same else f"with {', '.join(names)}"
    return Cause("partial made again", f"{made}, {found_text}")


def _of_wrappers(old: Snapshot, new: Snapshot) -> Cause | None:
    """Of what `jit`, `grad`, `vmap` and the like make of a function."""
    (outer, function), (others, other) = _unwrapped(old), _unwrapped(new)
    if not outer and not others:
        return None
    is_one = _is_one(function, other)
    if not is_one and not alike(function, other):
        return cause_of(function, other)
    decorated = why_decorated(
        outer, others, "the same function" if is_one else "a function made again by the same code"
    )
    if decorated is not None or not is_one:
        return decorated or cause_of(function, other)
    names = ", ".join(map(_decorator, outer))
    return Cause("wrapped again", f"the same function, wrapped again by {names}")


def _is_one(left: Any, right: Any) -> bool:
    """Whether two values are one, so that they are not why there are two of what was made of them."""
    if isinstance(left, Snapshot) and isinstance(right, Snapshot) and left.compared == "object":
        return left.is_object_of(right)
    return alike(left, right)


def _unwrapped(value: Any) -> tuple[list[Snapshot], Any]:
    """The wrappers around a function, the outermost first, and the function."""
    wrappers: list[Snapshot] = []
    key = Part("function", "__wrapped__")
    while isinstance(value, Snapshot) and key in value.parts:
        wrappers.append(value)
        value = value.parts[key]
    return wrappers, value


def why_decorated(
    left: Sequence[Snapshot], right: Sequence[Snapshot], function: str = "the same function"
) -> Cause | None:
    """How the wrappers around one function, or two that are alike, differ; None where they do not."""
    names, others = (", ".join(map(_decorator, wrappers)) or "none" for wrappers in (left, right))
    if names != others:
        return Cause("other decorators", f"{function} under other decorators: {names} -> {others}")
    pairs = zip(left, right, strict=True)
    options = [change for pair in pairs for change in changes(*pair) if change.key.role == "option"]
    found = [change._replace(name=change.name.rpartition(".")[2]) for change in options]
    return Cause("other decorators", f"{function}, decorated with {_listed(found)}") if found else None


def _decorator(wrapper: Snapshot) -> str:
    """`vmap`, by the function that a decorator made, or by its class."""
    if wrapper.kind.__name__ == "PjitFunction":
        return "jit"
    name = wrapper.kind.__qualname__ if wrapper.code is None else wrapper.code.co_qualname
    return name.partition(".")[0].strip("_")


def why_another(last: Any, this: Any) -> str:
    """How a function differs from an earlier one of its definition, for which `jit` keeps programs apart."""
    (outer, function), (others, other) = _unwrapped(last), _unwrapped(this)
    if not _is_one(function, other):
        unseen = "another function object; no difference was seen in what it holds"
        return cause_of(function, other) or (unseen if short_text(function) == short_text(other) else "")
    again = Cause("wrapped again", "the same function, decorated and jitted again")
    return why_decorated(outer, others) or again


# Objects


def _of_objects(old: Snapshot, new: Snapshot) -> Cause | None:
    kind: Any = old.kind
    found = changes(old, new)
    if old.compared == "value":
        by_attributes = Cause("other attributes", f"here {_listed(found)}") if found and old.text == new.text else None
        return _of_answer(old, new) or by_attributes
    is_one_each = kind.__new__ is object.__new__ and type(kind).__call__ is type.__call__  # and not kept by its values
    if old.compared != "object" or not is_one_each or old.is_object_of(new) or kind.__module__.startswith("jax"):
        return None
    text = f"{kind.__qualname__} has no __eq__, so each instance is a value of its own"
    if found:
        return Cause("identity", f"{text}; here {_listed(found)}")
    same = bool(old.parts) and alike(old, new)
    return Cause("identity", f"{text}; the attributes of these two are the same" if same else text)


def _of_answer(old: Snapshot, new: Snapshot) -> Cause | None:
    """What `==` and `hash` say, of values whose class has its own."""
    try:
        equal = bool(old.value == new.value)
    except Exception as error:  # noqa: BLE001  a user's `__eq__`
        text = " ".join(str(error).split())[:LENGTH]
        return Cause("no answer", f"== between them gives no answer: {type(error).__name__}: {text}")
    if equal and _hash(old.value) != _hash(new.value):
        return Cause("unequal hashes", f"{old.kind.__qualname__}.__eq__ says equal, and their hashes differ")
    return None


def _hash(value: Any) -> int | None:
    try:
        return hash(value)
    except Exception:  # noqa: BLE001  a user's `__hash__`
        return None


def _with(found: Sequence[Change]) -> str:
    return f", with {_listed(found)}" if found else ""


def _listed(found: Iterable[Change]) -> str:
    """The first changes; those in place last, since the trace itself may have made them."""
    return first_names(map(str, sorted(found, key=lambda change: change.in_place)), _SHOWN)
