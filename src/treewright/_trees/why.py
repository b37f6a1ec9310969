"""Why two values differ that may look alike: the places inside them where they do, and the cause in words.

Each may be live, or a `Remembered` of a snapshot.
"""

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, cast

from treewright._core import functions as reach
from treewright._core.functions import class_of
from treewright._core.jax_private import GetAttrKey, Key, Path, jax_trees, path_text
from treewright._core.keys import exact_key
from treewright._core.plain import NoExactKeyError
from treewright._core.text import LENGTH, first_names, names_in, short_text, short_texts
from treewright._trees.snapshot import facts_of

_DEPTH = 8  # levels that are searched for what has changed
_SHOWN = 3  # captured variables that are named
_SEPARATE = 4  # places in one container that are told apart; where more have changed, it has changed as a whole


# What has changed inside a value

Same = Callable[[Any, Any], bool]


def same_to_jit(left: Any, right: Any) -> bool:
    """As `jit` compares the statics of foreign classes: identity, then `==`."""
    if left is right:
        return True
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001  a user's `__eq__`, or an array without one answer
        return False


def same_exactly(left: Any, right: Any, *, content: bool = False) -> bool:
    """As our own nodes compare statics: by exact keys, and as `jit` does where there are none."""
    if left is right:
        return True
    try:
        return bool(exact_key(left, content=content) == exact_key(right, content=content))
    except NoExactKeyError:
        return type(left) is type(right) and same_to_jit(left, right)


def changed_parts(left: Any, right: Any, same: Same, depth: int = _DEPTH) -> Iterator[tuple[Path, Any, Any]]:
    """The innermost places where two values differ, in tuples, dicts, dataclasses and the like; else the whole."""
    ours, theirs = parts_of(left), parts_of(right)
    if depth and type(left) is type(right) and ours and theirs and ours.keys() == theirs.keys():
        changed = [key for key in ours if not same(ours[key], theirs[key])]
        if 0 < len(changed) <= _SEPARATE:
            for key in changed:
                for path, old, new in changed_parts(ours[key], theirs[key], same, depth - 1):
                    yield (key, *path), old, new
            return
    yield (), left, right


def parts_of(value: Any) -> dict[Key, Any]:
    """What a value consists of, by key; nothing for what is not a container."""
    kind = class_of(value)
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        names = names_in(kind)
    if not names and isinstance(value, list | tuple):
        return {jax_trees.SequenceKey(index): item for index, item in enumerate(cast("Any", value))}
    if isinstance(value, Mapping):
        return {jax_trees.DictKey(name): item for name, item in cast("Any", value).items()}
    return {GetAttrKey(name): getattr(value, name) for name in names if hasattr(value, name)}


def same_content(left: Any, right: Any, depth: int = _DEPTH) -> bool:
    """Whether two captured values are the same, reading functions by their code and what they captured in turn."""
    if left is right:
        return True
    old, new = facts_of(left), facts_of(right)
    if depth and _same_code(left, right):
        ours, theirs = old.held, new.held
    else:
        ours, theirs = parts_of(left), parts_of(right)
    if depth and ours and ours.keys() == theirs.keys() and old.kind is new.kind:
        return all(same_content(ours[name], theirs[name], depth - 1) for name in ours)
    return same_exactly(left, right, content=True)


def _same_code(left: Any, right: Any) -> bool:
    code = facts_of(left).code
    return code is not None and code == facts_of(right).code


def _read_changes(left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    """Which globals had changed between two functions of the same code, by name."""
    ours, theirs = facts_of(left).read, facts_of(right).read
    for name in ours:
        if (
            name in theirs
            and not same_exactly(ours[name], theirs[name])
            and not _in_one_container((name,), left, right)
        ):
            yield name, ours[name], theirs[name]


def _held_changes(left: Any, right: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any, Any]]:
    """What two functions of the same code captured differently, by name; functions among it are looked into."""
    ours, theirs = facts_of(left).held, facts_of(right).held
    for name in ours:
        if name not in theirs or same_content(ours[name], theirs[name]):
            continue
        for path, old, new in changed_parts(ours[name], theirs[name], same_content):
            if _in_one_container((name, *path), left, right):
                continue
            place = f"{name}{path_text(path)}"
            inner = list(_held_changes(old, new, depth - 1)) if depth > 0 and _same_code(old, new) else []
            yield from ((f"{place}.{within}", a, b) for within, a, b in inner)
            if not inner:
                yield place, old, new


def _in_one_container(path: Path, left: Any, right: Any) -> bool:
    """Whether a place lies in a list, dict or set that seems to be one object for both functions.

    Then what it holds has changed, perhaps by the trace itself, and is not why there are two functions. If a list has
    died meanwhile, another may have its identity.
    """
    ours, theirs = facts_of(left).containers, facts_of(right).containers
    prefixes = (path[:length] for length in range(1, len(path) + 1))
    return any(prefix in ours and ours[prefix] == theirs.get(prefix) for prefix in prefixes)


# Why they differ

CauseName: TypeAlias = Literal[
    "class made twice",
    "other class",
    "function made anew",
    "other function",
    "other method",
    "other decorators",
    "partial made anew",
    "wrapped anew",
    "nan",
    "no answer",
    "identity",
    "same text",
    "unequal hashes",
]


class Cause(str):
    """Why two values differ that may look alike: a sentence, and a name for what knows the remedy."""

    __slots__ = ("name",)
    name: CauseName

    def __new__(cls, name: CauseName, sentence: str) -> Self:
        cause = super().__new__(cls, sentence)
        cause.name = name
        return cause

    def __reduce__(self) -> "tuple[type[Cause], tuple[CauseName, str]]":
        return Cause, (self.name, str(self))


def why(left: Any, right: Any) -> str:
    """The cause of a difference; empty where there is none to tell."""
    return cause_of(left, right) or ""


def cause_of(left: Any, right: Any) -> Cause | None:
    """Why two values differ that may look alike; None where their texts say it all."""
    return next(filter(None, (find(left, right) for find in _CAUSES)), None)


def _of_two_classes(left: Any, right: Any) -> Cause | None:
    both_classes = isinstance(left, type) and isinstance(right, type)
    a, b = (left, right) if both_classes else (facts_of(left).kind, facts_of(right).kind)
    if a is b:
        return None
    if (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__):
        text = "its class statement ran twice, as in a notebook cell that runs again, a reloaded module or a function"
        return Cause("class made twice", f"two classes are named {a.__qualname__}: {text}")
    if both_classes or short_text(left) != short_text(right):
        return None
    names = (a.__qualname__, b.__qualname__)
    if names[0] == names[1]:
        names = (f"{a.__module__}.{names[0]}", f"{b.__module__}.{names[1]}")
    return Cause("other class", f"same text, but {' -> '.join(names)}")


def _of_functions(left: Any, right: Any) -> Cause | None:
    a, b = facts_of(left), facts_of(right)
    if a.code is None or b.code is None:
        return None
    if a.code != b.code:
        if reach.name_of(a.code) != reach.name_of(b.code):
            return None
        places = dict.fromkeys(map(reach.place_of, (a.code, b.code)))
        return Cause("other function", f"two functions, defined at {' and '.join(places)}")
    captured, read = _listed(_held_changes(left, right)), _listed(_read_changes(left, right))
    if captured or read:
        parts = (f"captured {captured}" if captured else "", f"reads the global {read}" if read else "")
        what = " and ".join(filter(None, parts))
    elif a.held:
        same = all(same_content(value, b.held.get(name)) for name, value in a.held.items())
        what = f"captured {'the same ' if same else ''}{', '.join(a.held)}"
    elif a.read:
        what = f"reads the global {', '.join(a.read)}: nobody can tell for how long"
    else:
        what = "captures nothing"
    return Cause("function made anew", f"made anew by the same code ({reach.place_of(a.code)}), which {what}")


def _listed(changes: Iterator[tuple[str, Any, Any]]) -> str:
    return first_names((f"{name}: {_change(old, new)}" for name, old, new in changes), _SHOWN)


def _change(old: Any, new: Any) -> str:
    left, right = short_texts(old, new)
    return f"another {left}" if left == right else f"{left} -> {right}"


def why_decorated(left: Sequence[Any], right: Sequence[Any]) -> Cause | None:
    """How the wrappers of libraries around one function differ, such as `grad` and `vmap`; None where they do not."""
    names, others = (", ".join(map(_decorator, wrappers)) or "none" for wrappers in (left, right))
    if names != others:
        return Cause("other decorators", f"the same function under other decorators: {names} -> {others}")
    pairs = list(zip(left, right, strict=True))
    held = (change for pair in pairs for change in _held_changes(*pair))
    captured = _listed((name.rpartition(".")[2], old, new) for name, old, new in held)
    told = ((facts_of(a).attributes, facts_of(b).attributes) for a, b in pairs if facts_of(a).code is None)
    texts = [
        f"{name.strip('_')}: {ours[name]} -> {theirs.get(name)}"
        for ours, theirs in told
        for name in ours
        if ours[name] != theirs.get(name)
    ]
    changed = ", ".join(filter(None, [captured, *texts[:_SHOWN]]))
    return Cause("other decorators", f"the same function, decorated with {changed}") if changed else None


def _decorator(wrapper: Any) -> str:
    """`vmap`, by the function that a decorator made, or by its class."""
    facts = facts_of(wrapper)
    name = facts.kind.__qualname__ if facts.code is None else reach.name_of(facts.code)
    return name.partition(".")[0].strip("_")


def _of_methods(left: Any, right: Any) -> Cause | None:
    function = facts_of(left).method_of
    if function is None or function is not facts_of(right).method_of:
        return None
    return Cause("other method", "the same method of another object")


def _of_partials(left: Any, right: Any) -> Cause | None:
    if not isinstance(left, functools.partial) or not isinstance(right, functools.partial):
        return None
    if left.args or right.args or left.keywords or right.keywords or left.func is right.func:
        parts = ((left.func, right.func), (left.args, right.args), (left.keywords, right.keywords))
        if not all(same_content(a, b) for a, b in parts):
            return None
        return Cause("partial made anew", "a partial made anew of the same function and arguments; it has no ==")
    return cause_of(left.func, right.func)


def cause_of_partials(left: Any, right: Any) -> Cause | None:
    """With which arguments two partials of one function were made; None if they are of two functions."""
    if not same_content(left.func, right.func):
        return None
    function = f"a partial of {short_text(left.func)} made anew"
    if len(left.args) != len(right.args) or left.keywords.keys() != right.keywords.keys():
        return Cause(
            "partial made anew", f"{function}, with other arguments: {short_text(left)} -> {short_text(right)}"
        )
    ours, theirs = (
        {**{f"argument {index}": part for index, part in enumerate(partial.args)}, **partial.keywords}
        for partial in (left, right)
    )
    changed = _listed((name, ours[name], theirs[name]) for name in ours if not same_content(ours[name], theirs[name]))
    return Cause("partial made anew", f"{function}, with {changed or 'the same arguments'}")


def _of_wrappers(left: Any, right: Any) -> Cause | None:
    """Functions that `jit` or another wrapper made."""
    a, b = facts_of(left), facts_of(right)
    if a.wrapped is None or b.wrapped is None:
        return None
    if a.wrapped == b.wrapped:
        wrapper = "jit" if a.kind.__name__ == "PjitFunction" else a.kind.__name__
        return Cause("wrapped anew", f"the same function, wrapped anew by {wrapper}")
    return cause_of(a.wrapped, b.wrapped)


def _of_nan(left: Any, right: Any) -> Cause | None:
    try:
        nan = bool(left != left) and bool(right != right)  # noqa: PLR0124  only NaN differs from itself
    except Exception:  # noqa: BLE001  a user's `__ne__`
        return None
    return Cause("nan", "NaN equals nothing, not even another NaN") if nan else None


def _of_comparison(left: Any, right: Any) -> Cause | None:
    try:
        bool(left == right)
    except Exception as error:  # noqa: BLE001  a user's `__eq__`
        text = " ".join(str(error).split())[:LENGTH]
        return Cause("no answer", f"== between them gives no answer: {type(error).__name__}: {text}")
    return None


def _of_identity(left: Any, right: Any) -> Cause | None:
    a, b = facts_of(left), facts_of(right)
    if a.kind is not b.kind or isinstance(left, type) or a.kind.__eq__ is not _OBJECT.__eq__:
        return None
    if issubclass(a.kind, (*_CALLABLES, enum.Enum)) or a.wrapped is not None:  # whose names tell them apart
        return None
    text = f"{a.kind.__qualname__} has no __eq__, so each instance is a value of its own"
    changed = [name for name in a.attributes if a.attributes[name] != b.attributes.get(name, a.attributes[name])]
    if changed:
        pairs = (f"{name}: {a.attributes[name]} -> {b.attributes[name]}" for name in changed[:_SHOWN])
        return Cause("identity", f"{text}; here {', '.join(pairs)}")
    same = a.attributes and a.attributes.keys() == b.attributes.keys()
    return Cause("identity", f"{text}; the attributes of these two print the same" if same else text)


def _of_text(left: Any, right: Any) -> Cause | None:
    if isinstance(left, str) or short_text(left, with_module=True) != short_text(right, with_module=True):
        return None
    return Cause("same text", f"another {facts_of(left).kind.__qualname__} with the same text, and not equal to it")


_OBJECT: Any = object
_CALLABLES = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_CAUSES = (
    _of_two_classes,
    _of_functions,
    _of_methods,
    _of_partials,
    _of_wrappers,
    _of_nan,
    _of_comparison,
    _of_identity,
    _of_text,
)
