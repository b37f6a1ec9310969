"""Why two statics differ that may look alike, and what values look like at a readable length."""

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, Never, Self, TypeAlias, cast

from treewright._jax import DictKey, SequenceKey
from treewright._trees.paths import Key, Path, field_key, path_text
from treewright._values import reach
from treewright._values.classes import class_of
from treewright._values.exact import exact_key
from treewright._values.text import LENGTH, NoExactKeyError, names_in, short_text, short_texts

_DEPTH = 8  # levels that are searched for what has changed
_SHOWN = 3  # captured variables that are named
_ATTRIBUTES = 20  # attributes of an object that are remembered
_SEPARATE = 4  # places in one container that are told apart; where more have changed, it has changed as a whole

_missing = object()


# What has changed inside a value


class Remembered:
    """What a history keeps of a value that compares by identity: enough to say what it was, and not the value itself.

    Two are equal when they are of one object that is still alive.
    """

    __slots__ = (
        "address",
        "attributes",
        "captured",
        "code",
        "function",
        "kind",
        "read",
        "reference",
        "text",
        "wrapped",
    )

    def __init__(
        self,
        value: Any,
        *,
        captured: dict[str, Any] | None = None,
        read: dict[str, Any] | None = None,
        wrapped: Any = None,
    ) -> None:
        owner: Any = value.__self__ if isinstance(value, types.MethodType) else value
        self.kind: type[Any] = class_of(value)
        self.text: str = short_text(value)
        self.code: Any = getattr(value, "__code__", None) if captured is not None else None
        self.captured: dict[str, Any] | None = captured
        self.read: dict[str, Any] = read or {}
        self.function: Any = getattr(value, "__func__", None)
        self.wrapped: Any = wrapped
        self.attributes: dict[str, str] = {
            name: short_text(item) for name, item in list(vars_of(value).items())[:_ATTRIBUTES]
        }
        self.address: int = id(owner)
        try:
            self.reference: Callable[[], Any] = weakref.ref(owner)
        except TypeError:
            self.reference = lambda: owner

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remembered) or self.function is not other.function:
            return False
        found = self.reference()
        return found is not None and found is other.reference()

    def __hash__(self) -> int:
        return self.address

    def __call__(self) -> Never:
        """Not to be called; it is there because `functools.partial` takes callables only."""
        raise TypeError(f"{self.text} is only remembered")

    def __repr__(self) -> str:
        return self.text


def vars_of(value: Any) -> dict[str, Any]:
    """The attributes in an instance's `__dict__`; of a `Remembered` their texts."""
    found: dict[str, Any] = value.attributes if isinstance(value, Remembered) else getattr(value, "__dict__", {})
    return dict(found)


def kind_of(value: Any) -> type[Any]:
    """The class of a value, also of one that is only remembered."""
    return value.kind if isinstance(value, Remembered) else class_of(value)


def code_of(value: Any) -> Any:
    """The code of a Python function, also of one that is only remembered; None for anything else."""
    return value.__code__ if isinstance(value, types.FunctionType) else getattr(value, "code", None)


def wrapped_by(value: Any) -> Any:
    """What `jit` or another wrapper made this function of; None for anything else."""
    return value.wrapped if isinstance(value, Remembered) else reach.wrapped_by(value)


def captured_by(function: Any) -> dict[str, Any]:
    """The captured variables and the defaults of a function, by name."""
    return (function.captured or {}) if isinstance(function, Remembered) else reach.held_by(function)


def read_by(function: Any) -> dict[str, Any]:
    """The globals that a function reads and that can change, by name."""
    return function.read if isinstance(function, Remembered) else reach.read_by(function)


Same = Callable[[Any, Any], bool]


def same_to_jit(left: Any, right: Any) -> bool:
    """As `jit` compares the statics of foreign classes: identity, then `==`."""
    if left is right:
        return True
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001  an __eq__ of anybody's, or an array without one answer
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
    """What a value consists of, by key; nothing for what is no container."""
    kind = class_of(value)
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        names = names_in(kind)
    if not names and isinstance(value, list | tuple):
        return {SequenceKey(index): item for index, item in enumerate(cast("Any", value))}
    if isinstance(value, Mapping):
        return {DictKey(name): item for name, item in cast("Any", value).items()}
    found = ((name, getattr(value, name, _missing)) for name in names)
    return {field_key(name): item for name, item in found if item is not _missing}


def same_content(left: Any, right: Any, depth: int = _DEPTH) -> bool:
    """Whether two captured values are the same, reading functions by their code and what they captured in turn."""
    if left is right:
        return True
    if depth and code_of(left) is not None and code_of(left) == code_of(right):
        ours, theirs = captured_by(left), captured_by(right)
    else:
        ours, theirs = parts_of(left), parts_of(right)
    if depth and ours and ours.keys() == theirs.keys() and kind_of(left) is kind_of(right):
        return all(same_content(ours[name], theirs[name], depth - 1) for name in ours)
    return same_exactly(left, right, content=True)


def read_changes(left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    """Which globals were others when two functions of the same code were seen, by name."""
    theirs = read_by(right)
    for name, value in read_by(left).items():
        other = theirs.get(name, _missing)
        if other is not _missing and not same_exactly(value, other):
            yield name, value, other


def captured_changes(left: Any, right: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any, Any]]:
    """What two functions of the same code captured differently, by name; functions among it are looked into."""
    theirs = captured_by(right)
    for name, value in captured_by(left).items():
        other = theirs.get(name, _missing)
        if other is _missing or same_content(value, other):
            continue
        for path, old, new in changed_parts(value, other, same_content):
            place = f"{name}{path_text(path)}"
            nested = depth > 0 and code_of(old) is not None and code_of(old) == code_of(new)
            inner = list(captured_changes(old, new, depth - 1)) if nested else []
            yield from ((f"{place}.{within}", a, b) for within, a, b in inner)
            if not inner:
                yield place, old, new


# Why they differ

CauseName: TypeAlias = Literal[
    "class made twice",
    "other class",
    "function made anew",
    "other function",
    "other method",
    "partial made anew",
    "wrapped anew",
    "nan",
    "no answer",
    "identity",
    "same text",
]


class Cause(str):
    """Why two values differ that may look alike, in a sentence. Its `name` is for who has a remedy."""

    __slots__ = ("name",)

    name: CauseName

    def __new__(cls, name: CauseName, text: str) -> Self:
        """A sentence with a name."""
        cause = super().__new__(cls, text)
        cause.name = name
        return cause

    def __reduce__(self) -> tuple[type["Cause"], tuple[str, str]]:
        return Cause, (self.name, str(self))


def why(left: Any, right: Any) -> str:
    """`cause_of`; empty where the texts of the values say it all."""
    return cause_of(left, right) or ""


def cause_of(left: Any, right: Any) -> Cause | None:
    """Why two values differ that may look alike; None where their texts say it all."""
    return next(filter(None, (find(left, right) for find in _CAUSES)), None)


def place_of_code(code: Any) -> str:
    """`train.py:12`, where a function is defined."""
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def _of_two_classes(left: Any, right: Any) -> Cause | None:
    both_classes = isinstance(left, type) and isinstance(right, type)
    a, b = (left, right) if both_classes else (kind_of(left), kind_of(right))
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
    code, other = code_of(left), code_of(right)
    if code is None or other is None:
        return None
    if code != other:
        places = dict.fromkeys((place_of_code(code), place_of_code(other)))
        same_name = code.co_qualname == other.co_qualname
        return Cause("other function", f"two functions, defined at {' and '.join(places)}") if same_name else None
    anew = f"made anew by the same code ({place_of_code(code)})"
    captured, read = _listed(captured_changes(left, right)), _listed(read_changes(left, right))
    if captured or read:
        parts = (f"captured {captured}" if captured else "", f"reads the global {read}" if read else "")
        return Cause("function made anew", f"{anew}, which {' and '.join(filter(None, parts))}")
    names, globals_read = ", ".join(captured_by(left)), ", ".join(read_by(left))
    if globals_read and not names:
        return Cause(
            "function made anew", f"{anew}, which reads the global {globals_read}: nobody can tell for how long"
        )
    return Cause(
        "function made anew", f"{anew}, {f'which captured the same {names}' if names else 'which captures nothing'}"
    )


def _listed(changes: Iterator[tuple[str, Any, Any]]) -> str:
    found = list(islice(changes, _SHOWN + 1))
    shown = [f"{name}: {' -> '.join(short_texts(old, new))}" for name, old, new in found[:_SHOWN]]
    return f"{', '.join(shown)}{', ...' if len(found) > _SHOWN else ''}"


def _of_methods(left: Any, right: Any) -> Cause | None:
    a, b = (
        value.function if isinstance(value, Remembered) else getattr(value, "__func__", None) for value in (left, right)
    )
    if a is None or a is not b:
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


def _of_wrappers(left: Any, right: Any) -> Cause | None:
    """Functions that `jit` or another wrapper made."""
    a, b = wrapped_by(left), wrapped_by(right)
    if a is None or b is None:
        return None
    if a == b:
        wrapper = kind_of(left).__name__
        return Cause("wrapped anew", f"the same function, wrapped anew by {_WRAPPERS.get(wrapper, wrapper)}")
    return cause_of(a, b)


def _of_nan(left: Any, right: Any) -> Cause | None:
    try:
        nan = bool(left != left) and bool(right != right)  # noqa: PLR0124  only NaN differs from itself
    except Exception:  # noqa: BLE001  an __ne__ of anybody's
        return None
    return Cause("nan", "NaN equals nothing, not even another NaN") if nan else None


def _of_comparison(left: Any, right: Any) -> Cause | None:
    try:
        bool(left == right)
    except Exception as error:  # noqa: BLE001  an __eq__ of anybody's
        text = " ".join(str(error).split())[:LENGTH]
        return Cause("no answer", f"== between them gives no answer: {type(error).__name__}: {text}")
    return None


def _of_identity(left: Any, right: Any) -> Cause | None:
    kind = kind_of(left)
    if kind is not kind_of(right) or isinstance(left, type) or kind.__eq__ is not _OBJECT.__eq__:
        return None
    if issubclass(kind, _CALLABLES) or wrapped_by(left) is not None:  # whose names tell them apart
        return None
    same = vars_of(left) and same_to_jit(vars_of(left), vars_of(right))
    alike = "; these two have the same attributes" if same else ""
    return Cause("identity", f"{kind.__qualname__} has no __eq__, so each instance is a value of its own{alike}")


def _of_text(left: Any, right: Any) -> Cause | None:
    if isinstance(left, str) or short_text(left, with_module=True) != short_text(right, with_module=True):
        return None
    return Cause("same text", f"another {kind_of(left).__qualname__} with the same text, and not equal to it")


_OBJECT: Any = object
_CALLABLES = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_WRAPPERS = types.MappingProxyType({"PjitFunction": "jit"})
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
