"""`check_statics`: what in the statics of a tree will make `jit` trace again, or answer wrongly, before it does."""

import dataclasses
import time
import types
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np

from treewright._nodes.classes import class_of, import_path
from treewright._nodes.exact import NoExactKeyError, exact_key
from treewright._trees.levels import Level, opened
from treewright._trees.paths import Path, path_text
from treewright._trees.reasons import captured_by, parts_of, place_of_code, same_to_jit, short_text

HazardKind = Literal[
    "array", "captured array", "collision", "comparison", "function", "identity", "mutable", "nan", "slow", "unhashable"
]

_SLOW = 1e-3  # seconds of one hash()
_CONTAINERS = (tuple, frozenset, list, dict, set)
_OBJECT: Any = object


@dataclasses.dataclass(frozen=True, slots=True)
class Hazard:
    """One static value that can hurt. `str` gives it in one line.

    Args:
        path: Where it is in the tree, as JAX's keys.
        value: The value.
        kind: What is wrong with it.
        text: What follows from it, and what to do.
    """

    path: Path
    value: Any
    kind: HazardKind
    text: str

    def __str__(self) -> str:
        return f"{path_text(self.path) or 'the whole tree'}: {short_text(self.value)}: {self.text}"


def check_statics(tree: Any) -> list[Hazard]:
    """The hazards in the static fields of a tree, in the order of the tree. Nothing is unflattened.

    Found in any class: functions made in place, objects that compare by identity, values that are hashable and can
    change, functions that capture arrays, an `__eq__` that raises, values whose hash takes over a millisecond. In
    classes of others (flax, equinox, `register_dataclass`) also what our own refuse or tell apart: values without a
    hash, arrays, NaN, and values of two types that are equal, such as `1` and `True`, in the same field of two nodes.

    Args:
        tree: Any tree.

    Example:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     scale: object = static()
        >>> factor = 2.0
        >>> [hazard] = check_statics([Layer(1.0, max), Layer(1.0, object())])
        >>> hazard.kind, str(hazard).partition(": ")[0]
        ('identity', '[1].scale')
    """
    return list(_Walk().tree(tree, ()))


class _Walk:
    """One walk through a tree. `seen` holds the first value of each type in each field of a foreign class."""

    def __init__(self) -> None:
        self.seen: dict[tuple[type[Any], str], list[Any]] = {}

    def tree(self, tree: Any, path: Path) -> Iterator[Hazard]:
        waiting: list[tuple[Path, Any]] = [(path, tree)]
        while waiting:
            place, one = waiting.pop()
            level = opened(one)
            if isinstance(level, Level):
                for key, value in level.statics:
                    yield from self.static(level, (*place, key), value)
                waiting.extend(((*place, key), child) for key, child in reversed(level.children))

    def static(self, level: Level, path: Path, value: Any) -> Iterator[Hazard]:
        foreign = level.content is None
        if foreign:
            yield from self.collisions(level.kind, path, value)
        yield from _slow(path, value)
        for place, part in _parts(path, value):
            yield from _foreign_hazards(place, part) if foreign else ()
            yield from _hazards(place, part, foreign=foreign)

    def collisions(self, kind: type[Any], path: Path, value: Any) -> Iterator[Hazard]:
        earlier = self.seen.setdefault((kind, str(path[-1])), [])
        for other in earlier:
            if same_to_jit(other, value) and not _exactly(other, value):
                yield Hazard(
                    path,
                    value,
                    "collision",
                    f"jit takes it for the same as {short_text(other)} in this field of another node, and gives one "
                    f"the program of the other; use one type",
                )
                return
        earlier.append(value)


def _exactly(left: Any, right: Any) -> bool:
    try:
        return bool(exact_key(left) == exact_key(right))
    except NoExactKeyError:
        return True


def _parts(path: Path, value: Any, depth: int = 6) -> Iterator[tuple[Path, Any]]:
    """A value and what it consists of."""
    yield path, value
    inner: dict[Any, Any] = parts_of(value) if depth else {}
    for key, part in inner.items():
        yield from _parts((*path, key), part, depth - 1)


def _slow(path: Path, value: Any) -> Iterator[Hazard]:
    try:
        seconds = min(_seconds_of_hash(value) for _ in range(3))
    except Exception:  # noqa: BLE001  a __hash__ of anybody's; that it raises is another hazard
        return
    if seconds > _SLOW:
        text = f"its hash takes {seconds * 1e3:.2g} ms each time it is looked up; make it smaller, or a child"
        yield Hazard(path, value, "slow", text)


def _seconds_of_hash(value: Any) -> float:
    began = time.perf_counter()
    hash(value)
    return time.perf_counter() - began


def _foreign_hazards(path: Path, value: Any) -> Iterator[Hazard]:
    """What our own classes refuse, or see the difference of."""
    if isinstance(value, jax.Array | np.ndarray):
        text = "jit compares statics with ==, which gives an array and no answer; make it a child"
        yield Hazard(path, value, "array", text)
    elif isinstance(value, (float, np.floating)) and value != value:  # noqa: PLR0124
        yield Hazard(path, value, "nan", "NaN equals no other NaN, so one made anew traces again; use None")
    elif not _is_hashable(value):
        text = "jit keeps it and does not copy it, so a change in place gives stale results; use a tuple, or freeze it"
        yield Hazard(path, value, "unhashable", text)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:  # noqa: BLE001  a __hash__ of anybody's
        return class_of(value) in {tuple, frozenset}  # whose parts tell
    return True


def _hazards(path: Path, value: Any, *, foreign: bool) -> Iterator[Hazard]:
    kind = class_of(value)
    if isinstance(value, types.FunctionType):
        yield from _function_hazards(path, value, foreign=foreign)
    elif isinstance(value, (type, *_CONTAINERS)) or import_path(value) is not None:
        return
    elif not _can_be_compared(value):
        text = f"{kind.__qualname__}.__eq__ raises for another type, and jit then fails for any function that sees both"
        yield Hazard(path, value, "comparison", text)
    elif kind.__eq__ is _OBJECT.__eq__ and not isinstance(value, types.MethodType):
        text = f"{kind.__qualname__} has no __eq__, so one made anew traces again; give it one, or make it once"
        yield Hazard(path, value, "identity", text)
    elif _can_change(value):
        text = (
            f"a {kind.__qualname__} can change after jit has compiled for it, and the result is stale then; freeze it"
        )
        yield Hazard(path, value, "mutable", text)


def _can_be_compared(value: Any) -> bool:
    try:
        bool(value == _OBJECT())
    except Exception:  # noqa: BLE001  an __eq__ of anybody's
        return isinstance(value, jax.Array | np.ndarray)  # which has its own line
    return True


def _can_change(value: Any) -> bool:
    """Whether a value that compares by its content lets its attributes be assigned."""
    kind = class_of(value)
    if dataclasses.is_dataclass(kind):
        return not getattr(kind, "__dataclass_params__").frozen and not hasattr(kind, "__node_spec__")  # noqa: B009
    return kind.__setattr__ is _OBJECT.__setattr__ and bool(getattr(value, "__dict__", None))


def _function_hazards(path: Path, function: Any, *, foreign: bool) -> Iterator[Hazard]:
    captured = captured_by(function)
    arrays = [name for name, part in captured.items() if _holds_array(part)]
    if arrays:
        text = (
            f"it captures the array {arrays[0]}, which becomes a constant of the program and gets no gradient; pass it "
            f"as an argument, or make it a child"
        )
        yield Hazard(path, function, "captured array", text)
    if import_path(function) is not None or not (captured or foreign):
        return
    where = place_of_code(function.__code__)
    remedy = "define it once" if foreign else 'define it once, or declare the field static(compare="content")'
    what = f"it captures {', '.join(captured)}" if captured else "it is made in place"
    yield Hazard(path, function, "function", f"{what} ({where}), so one made anew traces again; {remedy}")


def _holds_array(value: Any, depth: int = 4) -> bool:
    if isinstance(value, jax.Array | np.ndarray):
        return True
    if not depth:
        return False
    inside = captured_by(value) if isinstance(value, types.FunctionType) else parts_of(value)
    return any(_holds_array(part, depth - 1) for part in inside.values())
