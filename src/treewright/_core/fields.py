"""The field specifiers: `field`, `static` and `buffer`. `fields.pyi` has their types for checkers."""

import copyreg
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from treewright._base.functions import MISSING, public
from treewright._base.text import short_text


@public
class StaticValue(Protocol):
    """The protocol of static values: a hash, and an `==` that returns True or False.

    Lists and dicts have no hash, and arrays compare elementwise, so they can't be static. To use a custom protocol as a
    static field's type under mypy, extend this one.

    Examples:
        >>> class Schedule(StaticValue, Protocol):
        ...     def __call__(self, step: int) -> float: ...
        >>> @pytree_dataclass
        ... class Training:
        ...     rate: Schedule = static()
        >>> Training(rate=abs).rate(-2)
        2
    """

    def __hash__(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...


# Classes, functions and None can be static too, but mypy does not find the protocol's methods on them.
AnyStatic: TypeAlias = StaticValue | type[Any] | Callable[..., Any] | None
FieldKind = Literal["child", "static", "buffer"]
AxisNames: TypeAlias = tuple[str | None, ...]
Sharding: TypeAlias = AxisNames | Callable[[Any], AxisNames | None]
Stack: TypeAlias = str | Callable[[Any], str | None]

if sys.version_info < (3, 15):  # Otherwise pickling a class would copy MISSING, and `is` would fail.
    copyreg.pickle(type(MISSING), lambda _: "MISSING")
# How JAX and equinox, flax and simple_pytree, and jax_dataclasses mark a static. Our statics carry all marks, so that
# these libraries' decorators recognise our fields.
_STATIC_MARKS = types.MappingProxyType({"static": True, "pytree_node": False, "__jax_dataclasses_static_field__": True})
_OPTIONS_KEY = "treewright"  # Metadata key for the options that `dataclasses.field` does not have.
_STANDARD = frozenset(inspect.signature(dataclasses.field).parameters)


# The options of the specifiers


class Option(NamedTuple):
    """An option. A subclass that declares the field again must repeat it, or loses it without harm."""

    accepts: Callable[[Any], bool] = lambda _: True  # of a value that is not the default
    must_be: str = ""
    default: Any = None
    is_repeated: bool = False


def _is_sharding(value: Any) -> bool:
    is_names = isinstance(value, tuple) and all(name is None or (isinstance(name, str) and name) for name in value)
    return is_names or callable(value)


_BOOL = (lambda value: type(value) is bool, "True or False")
_COMPARE = (_BOOL[0], f"{_BOOL[1]}; to compare a static by identity, write identity=True")
_SHARDING = (_is_sharding, 'a tuple with a name or None for each axis of the array, such as ("embed", None)')
_STACK = (lambda value: isinstance(value, str) or callable(value), 'the name of one leading axis, such as "layers"')
# The signatures below and in `fields.pyi`, and `FieldInfo`, have these options (tests/nodes/test_declarations.py).
OPTIONS: Mapping[str, Option] = types.MappingProxyType(
    {
        "default": Option(default=MISSING),
        "default_factory": Option(default=MISSING),
        "init": Option(*_BOOL, default=True, is_repeated=True),
        "repr": Option(*_BOOL, default=True, is_repeated=True),
        "hash": Option(is_repeated=True),
        "compare": Option(*_COMPARE, default=True, is_repeated=True),
        "metadata": Option(),
        "kw_only": Option(default=MISSING),
        "doc": Option(),
        "sharding": Option(*_SHARDING, is_repeated=True),
        "stack": Option(*_STACK, is_repeated=True),
        "local": Option(*_BOOL, default=False, is_repeated=True),
        "identity": Option(*_BOOL, default=False, is_repeated=True),
        "converter": Option(callable, "a function of one value", is_repeated=True),
    }
)


def _specify(kind: FieldKind, arguments: dict[str, Any]) -> Any:
    """A `dataclasses.Field` from the arguments of a specifier; our own options go to its metadata."""
    for name, value in arguments.items():
        option = OPTIONS[name]
        if value is not option.default and not option.accepts(value):
            raise TypeError(f"{name}={short_text(value)} must be {option.must_be}.")
    metadata = arguments["metadata"]
    marks: Mapping[str, bool] = _STATIC_MARKS if kind == "static" else {}
    options: dict[str, Any] = {"kind": kind}
    options |= {name: arguments.pop(name) for name in arguments.keys() - _STANDARD}
    arguments["metadata"] = {**(metadata or {}), _OPTIONS_KEY: options, **marks}
    return dataclasses.field(**arguments)


def options_of(field: "dataclasses.Field[Any]") -> Mapping[str, Any]:
    """The options of a field's specifier; empty without one.

    Marks of other libraries count too: `metadata={"static": True}` of `jax.tree_util.register_dataclass`,
    `{"pytree_node": False}` of `flax.struct.field`, `{"converter": f}` of `equinox.field`.
    """
    metadata = field.metadata
    try:
        options: Mapping[str, Any] = metadata.get(_OPTIONS_KEY, {})
    except AttributeError:  # dataclasses accepts any mapping, even one without `get`.
        return {}
    if "converter" in metadata and options.get("converter") is None:
        options = {**options, "converter": metadata["converter"]}
    if metadata and options.get("kind", "child") == "child":
        for mark, value in _STATIC_MARKS.items():
            if bool(metadata.get(mark, not value)) is value:
                return {**options, "kind": "static"}
    return options


def _reject_marks(specifier: Any) -> Any:
    """Name `static()` where the option of another library that marks a static is passed to `field`."""

    @functools.wraps(specifier)
    def field(**options: Any) -> Any:
        for mark in options.keys() & {"static", "pytree_node"}:
            instead = "static()" if options[mark] is (mark == "static") else "field()"
            raise TypeError(f"field() has no option {mark}. Write {instead} in place of field({mark}=...).")
        return specifier(**options)

    return field


@_reject_marks
def field(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[Any, Any] | None = None,
    kw_only: Any = MISSING,
    doc: str | None = None,
    sharding: Sharding | None = None,
    stack: Stack | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a child, a field whose value is part of the tree. A plain annotation does the same.

    Args:
        default: The default value. Mutable defaults, including arrays, are rejected.
        default_factory: A function without arguments that creates the default for each instance.
        init: Whether the generated `__init__` has a parameter for it.
        repr: Whether `repr` shows it.
        hash: Whether `hash` uses it; None means the same as `compare`.
        compare: Whether `==` uses it.
        metadata: Any mapping, for other tools; `{"static": True}` makes the field static, as in JAX.
        kw_only: Whether its parameter is keyword-only.
        doc: A description of the field, which `help()` prints; on Python 3.14 and newer also `dataclasses.Field.doc`.
        converter: Applied to each new value of the field: by the constructor, an assignment in `__init__`, and
            `replace`. Unflatten never applies it.
        sharding: A name for each axis of the array, or None for an axis that is never split: `("embed", "mlp")`. Rules
            map the names to mesh axes; see `treewright.sharding`. Or a function that computes the names from the node's
            statics. The names apply to all arrays in the field, but not inside nested nodes, whose own fields declare
            theirs. They are not part of the tree, so changing them does not retrace.
        stack: The name of an additional leading axis of all arrays in the field and in nested nodes, for layers that
            `vmap` creates and `scan` runs. Or a function that computes the name from the node.

    Examples:
        >>> import jax.numpy as jnp
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: jax.Array = field(converter=jnp.asarray)
        >>> Layer([1.0, 2.0])
        Layer(kernel=f32[2])
    """
    return _specify("child", locals())


def static(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[Any, Any] | None = None,
    kw_only: Any = MISSING,
    doc: str | None = None,
    local: bool = False,
    identity: bool = False,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a static, a field stored in `aux_data`, which is part of `jit`'s cache key.

    An equal value never retraces; a different one always does. "Equal" is exact: `1`, `True` and `1.0` are three
    statics, `0.0` and `-0.0` are two, and NaN is one. Lists, dicts, sets, arrays and other unhashable values are
    rejected when an instance is created.

    Args:
        default: As for `field`.
        default_factory: As for `field`.
        init: As for `field`.
        repr: As for `field`.
        hash: As for `field`.
        compare: Whether `==` and `hash` of the node use it. `jit` always compares it.
        metadata: As for `field`.
        kw_only: As for `field`.
        doc: As for `field`.
        local: Whether the value may differ between the processes of one run, such as a name for logs:
            `treewright.sharding.assert_same_on_all_processes` ignores it.
        identity: Whether the value is compared by identity: `jit` retraces only for a different object. Any value is
            accepted, also lists and random generators; `jit` does not see changes inside it.
        converter: As for `field`; `treewright.freeze` makes lists, dicts, sets and numpy arrays hashable.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     activation: str = static(default="relu")
        >>> jax.tree.leaves(Layer(2.0))
        [2.0]
    """
    return _specify("static", locals())


def buffer(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[Any, Any] | None = None,
    kw_only: Any = MISSING,
    doc: str | None = None,
    sharding: Sharding | None = None,
    stack: Stack | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a child that is not trained, such as running statistics or a fixed table.

    It accepts the arguments of `field`. To JAX it is an ordinary child; `TrainState` and `trainable` exclude it from
    training.

    Examples:
        >>> @pytree_dataclass
        ... class Norm:
        ...     scale: float
        ...     mean: float = buffer(default=0.0)
        >>> jax.tree.leaves(Norm(1.0))
        [1.0, 0.0]
    """
    return _specify("buffer", locals())


def reject_field_on_class(value: Any) -> None:
    """Raise if a value is a field that was read on its class: `Dense(width=Other.width)`."""
    reject_use: Any = getattr(value, "reject_use", None) if isinstance(value, property) else None  # a FieldView's
    if reject_use is not None:
        reject_use()


SPECIFIERS: tuple[Any, ...] = (field, static, buffer, dataclasses.field)
