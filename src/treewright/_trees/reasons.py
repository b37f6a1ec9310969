"""Why two statics differ that may look alike, and what values look like at a readable length."""

import dataclasses
import functools
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

import jax

from treewright._nodes.classes import class_of
from treewright._nodes.exact import NoExactKeyError, exact_key
from treewright._nodes.representation import array_text, function_text
from treewright._trees.paths import Key, Path, field_key, path_text

_LENGTH = 80  # characters of a value that are shown
_DEPTH = 8  # levels that are searched for what has changed
_SHOWN = 3  # captured variables that are named
_SEPARATE = 4  # places in one container that are told apart; where more have changed, it has changed as a whole

_keys: Any = jax.tree_util  # whose annotations leave the types of keys open
_missing = object()


# Text


class _ShortText(reprlib.Repr):
    """`repr` that never writes more than a few parts of a value, however large it is."""

    def __init__(self, *, with_module: bool) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LENGTH
        self.with_module = with_module

    def repr1(self, x: Any, level: int) -> str:
        """One value, in one line."""
        found = array_text(x) or function_text(x, with_module=self.with_module)
        if found is not None:
            return found
        kind = class_of(x)
        if isinstance(x, functools.partial):
            keywords = (f"{name}={self.repr1(item, level - 1)}" for name, item in x.keywords.items())
            arguments = [x.func, *x.args]
            return f"{kind.__name__}({', '.join([*(self.repr1(item, level - 1) for item in arguments), *keywords])})"
        names = _names_in(kind)
        if names and level > 0:
            fields = (f"{name}={self.repr1(getattr(x, name), level - 1)}" for name in names)
            return f"{kind.__name__}({', '.join(fields)})"
        return " ".join(super().repr1(x, level).split())


def short_text(value: Any, *, with_module: bool = False) -> str:
    """One line of at most 80 characters for any value; functions and classes with their module if asked."""
    shown = _ShortText(with_module=with_module).repr(value)
    return shown if len(shown) <= _LENGTH else f"{shown[: _LENGTH - 3]}..."


def short_texts(left: Any, right: Any) -> tuple[str, str]:
    """The texts of two values that differ: as short as one alone, and different wherever that is possible."""
    texts = short_text(left), short_text(right)
    if texts[0] != texts[1]:
        return texts
    if isinstance(left, str) and isinstance(right, str):
        start = max(0, _first_difference(left, right) - _LENGTH // 4)
        return _window(left, start), _window(right, start)
    return short_text(left, with_module=True), short_text(right, with_module=True)


def _first_difference(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def _window(value: str, start: int) -> str:
    shown = repr(value[start : start + _LENGTH // 2])
    return f"{'...' if start else ''}{shown}{'...' if start + _LENGTH // 2 < len(value) else ''} at character {start}"


# What has changed inside a value

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
        names = _names_in(kind)
    if not names and isinstance(value, list | tuple):
        return {_keys.SequenceKey(index): item for index, item in enumerate(cast("Any", value))}
    if isinstance(value, Mapping):
        return {_keys.DictKey(name): item for name, item in cast("Any", value).items()}
    found = ((name, getattr(value, name, _missing)) for name in names)
    return {field_key(name): item for name, item in found if item is not _missing}


def _names_in(kind: type[Any]) -> tuple[str, ...]:
    """The names of a named tuple; none for other classes."""
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return names if tuple in kind.__mro__ else ()


# Why they differ


def why(left: Any, right: Any) -> str:
    """Why two values differ that may look alike; empty where their texts say it all."""
    return next(filter(None, (reason(left, right) for reason in _REASONS)), "")


def place_of_code(function: Any) -> str:
    """`train.py:12`, where a function is defined."""
    code = function.__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def _of_two_classes(left: Any, right: Any) -> str:
    both_classes = isinstance(left, type) and isinstance(right, type)
    a, b = (left, right) if both_classes else (class_of(left), class_of(right))
    if a is b:
        return ""
    if (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__):
        return (
            f"two classes are named {a.__qualname__}: its class statement ran twice, as a notebook cell that runs "
            f"again, a reloaded module or a class inside a function"
        )
    return "" if both_classes or short_text(left) != short_text(right) else f"same text, but {_change_of_class(a, b)}"


def _change_of_class(a: type[Any], b: type[Any]) -> str:
    if a.__qualname__ != b.__qualname__:
        return f"{a.__qualname__} -> {b.__qualname__}"
    return f"{a.__module__}.{a.__qualname__} -> {b.__module__}.{b.__qualname__}"


def _of_functions(left: Any, right: Any) -> str:
    if not isinstance(left, types.FunctionType) or not isinstance(right, types.FunctionType):
        return ""
    if left.__code__ != right.__code__:
        places = dict.fromkeys((place_of_code(left), place_of_code(right)))
        return f"two functions, defined at {' and '.join(places)}" if left.__qualname__ == right.__qualname__ else ""
    changes = list(islice(captured_changes(left, right), _SHOWN + 1))
    anew = f"made anew by the same code ({place_of_code(left)})"
    if changes:
        shown = [f"{name}: {' -> '.join(short_texts(old, new))}" for name, old, new in changes[:_SHOWN]]
        return f"{anew}, which captured {', '.join(shown)}{', ...' if len(changes) > _SHOWN else ''}"
    names = ", ".join(_captured(left))
    return f"{anew}, which captured the same {names}" if names else f"{anew}, which captures nothing"


def _captured(function: Any) -> dict[str, Any]:
    """The captured variables and the defaults of a function, by name."""
    code = function.__code__
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    defaults = function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    return (
        found
        | dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
        | (function.__kwdefaults__ or {})
    )


def captured_changes(left: Any, right: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any, Any]]:
    """What two functions of the same code captured differently, by name; functions among it are looked into."""
    theirs = _captured(right)
    for name, value in _captured(left).items():
        other = theirs.get(name, _missing)
        if other is _missing or same_content(value, other):
            continue
        for path, old, new in changed_parts(value, other, same_content):
            inner = _inside_functions(old, new, depth)
            place = f"{name}{path_text(path)}"
            if inner is None:
                yield place, old, new
            else:
                yield from ((f"{place}.{within}", a, b) for within, a, b in inner)


def _inside_functions(left: Any, right: Any, depth: int) -> list[tuple[str, Any, Any]] | None:
    functions = isinstance(left, types.FunctionType) and isinstance(right, types.FunctionType)
    if not depth or not functions or left.__code__ != right.__code__:
        return None
    return list(captured_changes(left, right, depth - 1)) or None


def same_content(left: Any, right: Any) -> bool:
    """Whether two captured values are the same, reading functions by what they captured in turn."""
    return same_exactly(left, right, content=True)


def _of_methods(left: Any, right: Any) -> str:
    function = getattr(left, "__func__", None)
    if function is None or getattr(right, "__func__", None) is not function:
        return ""
    owner = class_of(left.__self__).__qualname__
    return f"the same method of another {owner} (a method belongs to its object)"


def _of_partials(left: Any, right: Any) -> str:
    if not isinstance(left, functools.partial) or not isinstance(right, functools.partial):
        return ""
    parts = {"func": left.func, "args": left.args, "keywords": left.keywords}
    others = {"func": right.func, "args": right.args, "keywords": right.keywords}
    changed = [name for name in parts if not same_content(parts[name], others[name])]
    if not changed:
        return "a partial made anew from the same function and arguments; partials compare by identity"
    if changed == ["func"]:
        return why(left.func, right.func)
    return ""


def _of_wrappers(left: Any, right: Any) -> str:
    """Functions that `jit` or another wrapper made."""
    inner, other = getattr(left, "__wrapped__", None), getattr(right, "__wrapped__", None)
    if not (callable(inner) and callable(other)) or isinstance(left, type):
        return ""
    if inner is other:
        return f"the same function, wrapped anew by {class_of(left).__name__}"
    return why(inner, other)


def _of_nan(left: Any, right: Any) -> str:
    try:
        nan = bool(left != left) and bool(right != right)  # noqa: PLR0124  only NaN differs from itself
    except Exception:  # noqa: BLE001  an __ne__ of anybody's
        return ""
    return "NaN equals nothing, not even another NaN" if nan else ""


def _of_comparison(left: Any, right: Any) -> str:
    try:
        bool(left == right)
    except Exception as error:  # noqa: BLE001  an __eq__ of anybody's
        return f"== between them gives no answer: {type(error).__name__}: {short_text(str(error))[1:-1]}"
    return ""


def _of_identity(left: Any, right: Any) -> str:
    kind = class_of(left)
    if kind is not class_of(right) or isinstance(left, type) or kind.__eq__ is not _OBJECT.__eq__:
        return ""
    attributes, others = getattr(left, "__dict__", None), getattr(right, "__dict__", None)
    same = attributes is not None and same_to_jit(attributes, others)
    alike = ", and these two have the same attributes" if same else ""
    return f"{kind.__qualname__} defines no __eq__, so every new one is another value{alike}"


def _of_text(left: Any, right: Any) -> str:
    same = short_text(left, with_module=True) == short_text(right, with_module=True)
    return "same text, but == says that they differ" if same and not isinstance(left, str) else ""


_OBJECT: Any = object
_REASONS = (
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
