"""Exact keys: what "the same static" means.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to another program. It
is also too fine: `nan != nan`, and a lambda made anew differs from the last one. An exact key is a hashable that is
equal for two values exactly when a program could not tell them apart.
"""

import contextlib
import dataclasses
import decimal
import enum
import functools
import itertools
import math
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer

from treewright._nodes.classes import class_attribute, class_of
from treewright._nodes.representation import text

_BY_VALUE = frozenset({str, int, bool, bytes, types.NoneType, types.EllipsisType})
_MUTABLE = (list, dict, set, bytearray)


class NoExactKeyError(TypeError):
    """A value that can't be compared exactly, with the words for an error message."""

    def __init__(self, found: str, consequence: str) -> None:
        super().__init__(found)
        self.found = found
        self.consequence = consequence


def exact_key(value: object, *, content: bool = False) -> Hashable:
    """A key that is equal for two values exactly when `jit` may share one trace between them.

    Args:
        value: The value of a static field.
        content: Compare functions that capture variables by their code and what they captured, not by identity.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return _ExactKeys(content=content).key(value)


def instance_key(instance: object, key: Callable[[object], Hashable] = exact_key) -> Hashable:
    """The key of the object that a method belongs to: exact where it has such a key, else by identity.

    Raises:
        NoExactKeyError: If it holds a tracer.
    """
    try:
        return key(instance)
    except NoExactKeyError:
        tracer = None
        with contextlib.suppress(ValueError):  # of a node that is not finished, which has no leaves yet
            tracer = tracer_in(instance)
        if tracer is not None:
            raise problem_of(tracer) from None
        return by_identity(instance)


def tracer_in(tree: object) -> Any:
    """The first leaf that is traced; None if none is."""
    leaves: list[Any] = jax.tree.leaves(tree)
    is_tracer = (isinstance(leaf, Tracer) for leaf in leaves)
    return next(itertools.compress(leaves, is_tracer), None)


class _ThisObject:
    """A key for this very object.

    It refers to the object weakly where it can: a closure may refer to its own node, and would keep it alive through
    the table of keys. The key of an object that is gone equals no other, also where a later one gets its address.
    """

    __slots__ = ("address", "reference")

    def __init__(self, value: object) -> None:
        self.address = id(value)
        try:
            self.reference: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self.reference = lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ThisObject) or self.address != other.address:
            return False
        found = self.reference()
        return found is not None and found is other.reference()

    def __hash__(self) -> int:
        return self.address


def by_identity(value: object) -> Hashable:
    """A key for this very object."""
    return ("identity", _ThisObject(value))


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` already are the exact comparison for this value."""
    return len(key) == 2 and key[0] is class_of(value) and key[1] is value


def problem_of(value: Any) -> NoExactKeyError:
    """Why `value` can't be a static, in words."""
    kind = class_of(value)
    if isinstance(value, Tracer):
        return NoExactKeyError(
            f"a tracer, {text(value)}",
            "A tracer stands for a value of one trace only, and a static outlives the trace.",
        )
    if isinstance(value, np.ndarray | jax.Array):
        return NoExactKeyError(
            f"an array, {text(value)}",
            "jit compares statics with ==, which gives an array and no answer, and changes of its values "
            "would give stale results.",
        )
    article = "an" if kind.__name__[0].lower() in "aeiou" else "a"
    shown = text(value)
    found = f"{article} {kind.__name__}, {shown if len(shown) <= 80 else shown[:77] + '...'}"
    if isinstance(value, _MUTABLE):
        return NoExactKeyError(
            found, "jit compares statics and never copies them, so a change in place would give stale results."
        )
    return NoExactKeyError(
        found, "It can't be hashed, so jit could not tell whether it is the value that it compiled for."
    )


class _ExactKeys:
    """One walk through a value. `functions` holds those being read, so that a recursive closure ends."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.functions: list[types.FunctionType] = []

    def key(self, value: Any) -> Hashable:
        kind = class_of(value)
        if kind in _BY_VALUE:
            return (kind, value)
        special = _KINDS.get(kind)
        if special is not None:
            return cast("Hashable", special(self, value))
        own = getattr(kind, "_exact_key_", None)  # nodes, methods of nodes, what freeze() makes
        if own is not None:
            return cast("Hashable", own(value, self.key))
        for base, inherited, method in _SUBCLASSES:
            if isinstance(value, base) and (inherited is None or getattr(kind, inherited) is getattr(base, inherited)):
                return cast("Hashable", method(self, value))
        if dataclasses.is_dataclass(kind) and not isinstance(value, enum.Enum):
            return self.dataclass(value)
        return self.hashable(value)

    def hashable(self, value: object) -> Hashable:
        """Anything else: by type, `hash` and `==`, or by identity where the type defines neither."""
        kind = class_of(value)
        if all(class_attribute(kind, name) is getattr(object, name) for name in ("__hash__", "__eq__")):
            return by_identity(value)
        try:
            hash(value)
        except Exception as error:
            raise problem_of(value) from error
        return (kind, value)

    def real(self, value: float) -> Hashable:
        kind = class_of(value)
        if value != value:  # noqa: PLR0124  all NaN of one type are one
            return (kind, "nan", None)
        return (kind, value) if value else (kind, 0.0, math.copysign(1.0, value))

    def complex(self, value: complex) -> Hashable:
        return (class_of(value), self.real(value.real), self.real(value.imag))

    def numpy_scalar(self, value: Any) -> Hashable:
        if issubclass(class_of(value), np.complexfloating):
            return (class_of(value), self.numpy_scalar(value.real), self.numpy_scalar(value.imag))
        self.hashable(value)
        if value != value:  # noqa: PLR0124  NaN, or NaT
            return (class_of(value), value.dtype, "nan")
        return (class_of(value), value.dtype, value or str(value))  # str tells -0.0 from 0.0

    def elements(self, value: tuple[Any, ...]) -> Hashable:
        return (class_of(value), *map(self.key, value))

    def members(self, value: frozenset[Any]) -> Hashable:
        return (class_of(value), frozenset(map(self.key, value)))

    def bounds(self, value: Any) -> Hashable:
        return (class_of(value), self.key(value.start), self.key(value.stop), self.key(value.step))

    def decimal(self, value: decimal.Decimal) -> Hashable:
        return (decimal.Decimal, str(value))

    def partial(self, value: functools.partial[Any]) -> Hashable:
        keywords = tuple((name, self.key(value.keywords[name])) for name in sorted(value.keywords))
        return (class_of(value), self.key(value.func), tuple(map(self.key, value.args)), keywords)

    def dataclass(self, value: Any) -> Hashable:
        kind = class_of(value)
        if not (kind.__dataclass_params__.frozen and kind.__dataclass_params__.eq):
            return self.hashable(value)
        try:
            return (kind, *(self.key(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare))
        except NoExactKeyError:
            try:
                hash(value)
            except TypeError:
                pass
            else:  # a class with a __hash__ of its own vouches for what its fields hold
                return (kind, value)
            raise

    def method(self, value: types.MethodType) -> Hashable:
        return (types.MethodType, value.__func__, instance_key(value.__self__, self.key))

    def function(self, value: types.FunctionType) -> Hashable:
        """By what it does where that is all in sight, else by identity.

        A captured variable may be bound anew later, so a closure is read only where the field asks for `content`.
        """
        if value in self.functions:
            return ("recursive", self.functions.index(value))
        if value.__dict__ or (value.__closure__ and not self.content):
            return by_identity(value)
        self.functions.append(value)
        try:
            defaults = self.elements(value.__defaults__ or ())
            keywords = value.__kwdefaults__ or {}
            named = tuple((name, self.key(keywords[name])) for name in sorted(keywords))
            captured = tuple(map(self.cell, value.__closure__ or ()))
        except NoExactKeyError:
            return by_identity(value)
        finally:
            self.functions.pop()
        return (types.FunctionType, value.__code__, id(value.__globals__), defaults, named, captured)

    def cell(self, value: types.CellType) -> Hashable:
        try:
            return self.key(value.cell_contents)
        except ValueError:  # not bound yet
            return ("unbound",)


_KINDS: types.MappingProxyType[type[Any], Any] = types.MappingProxyType(
    {
        float: _ExactKeys.real,
        complex: _ExactKeys.complex,
        tuple: _ExactKeys.elements,
        frozenset: _ExactKeys.members,
        range: _ExactKeys.bounds,
        slice: _ExactKeys.bounds,
        decimal.Decimal: _ExactKeys.decimal,
        functools.partial: _ExactKeys.partial,
        types.MethodType: _ExactKeys.method,
        types.FunctionType: _ExactKeys.function,
    }
)

# Base class, the method that a subclass must share with it to be read like it, and how it is read.
_SUBCLASSES: tuple[tuple[type[Any], str | None, Any], ...] = (
    (np.generic, None, _ExactKeys.numpy_scalar),
    (tuple, "__eq__", _ExactKeys.elements),
    (frozenset, "__eq__", _ExactKeys.members),
    (float, "__eq__", _ExactKeys.real),
    (complex, "__eq__", _ExactKeys.complex),
    (functools.partial, None, _ExactKeys.partial),
)
