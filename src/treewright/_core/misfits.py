"""Values that do not fit their field: what can't be static, and settings among the children; with what to write."""

import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import MutableMapping, MutableSequence, MutableSet
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.text import function_text, short_text, text, text_with_class
from treewright.errors import ChildWarning, NodeInitError, warn_user

# Statics

MUTABLE: tuple[type[Any], ...] = (
    *(list, dict, set, bytearray, MutableMapping, MutableSequence, MutableSet),
    *(np.ndarray, jax.Array, jax.Ref),
)
_OWN_HASH = "a hashable form, such as a tuple, or its class __hash__ and __eq__, as dataclass(frozen=True) does"
# What to give instead of a value, by the class that it is an instance of; and whether `freeze` makes that of it.
_CURES = types.MappingProxyType(
    {
        ("builtins", "list"): ("a tuple", True),
        ("builtins", "set"): ("a frozenset", True),
        ("builtins", "dict"): ("treewright.freeze(...) of the dict", True),
        ("argparse", "Namespace"): ("treewright.freeze(args)", True),
        ("types", "SimpleNamespace"): ("treewright.freeze(config)", True),
        ("omegaconf", "DictConfig"): ("treewright.freeze(config)", True),
        ("omegaconf", "ListConfig"): ("treewright.freeze(OmegaConf.to_container(config, resolve=True))", False),
        ("pydantic", "BaseModel"): (
            "treewright.freeze(config.model_dump()), or its class model_config = ConfigDict(frozen=True)",
            False,
        ),
        ("numpy", "ndarray"): ("treewright.freeze(...) of a table that never changes", True),
        ("collections", "MutableMapping"): ("treewright.freeze(...) of the mapping", True),
    }
)


@dataclasses.dataclass(eq=False)
class NoExactKeyError(TypeError):
    """A value that can't be compared exactly: what it is, what would follow, and what to give instead, if anything."""

    value: Any
    found: str
    consequence: str
    instead: str | None = f"Give it {_OWN_HASH}"
    freezes: bool = False  # whether `freeze` makes that of it


def problem_of(value: Any) -> NoExactKeyError:
    """Why a value can't be static."""
    if isinstance(value, Tracer):
        stands = "A tracer stands for a value of one trace only, and a static outlives the trace."
        return NoExactKeyError(value, f"a tracer, {text(value)}", stands, None)
    if type(value) is jax.Ref:
        return NoExactKeyError(
            value,
            f"a ref, {text(value)}",
            "What a ref holds changes in place, and jit would take it for a part of the program, not of the tree: no "
            "checkpoint would save it, and a program compiled for one ref would not run with another.",
        )
    cure, freezes = _cure(value)
    if isinstance(value, np.ndarray | jax.Array):
        return NoExactKeyError(
            value,
            f"an array, {text(value)}",
            "jit compares statics with ==, which gives an array and no answer, and changes of its values "
            "would give stale results.",
            f"Give it {cure}" if freezes else None,
            freezes,
        )
    consequence = "It can't be hashed, so jit could not tell whether it is the value that it compiled for."
    if isinstance(value, MUTABLE):
        consequence = "jit compares statics and never copies them, so a change in place would give stale results."
    return NoExactKeyError(value, text_with_class(value), consequence, f"Give it {cure}", freezes)


def _cure(value: Any) -> tuple[str, bool]:
    cls: Any = type(value)
    for base in cls.__mro__:
        name = (str(base.__module__).partition(".")[0], base.__name__)
        if name in _CURES:
            return _CURES[name]
    if hasattr(cls, "__attrs_attrs__"):
        return "treewright.freeze(attrs.asdict(config)), or make its class @attrs.frozen", False
    if cls.__hash__ is None and dataclasses.is_dataclass(cls):
        return "treewright.freeze(dataclasses.asdict(config)), or make its class @dataclass(frozen=True)", False
    return _OWN_HASH, False


def unanswered(value: Any, why: object) -> NoExactKeyError:
    """Why a value can't be a static whose `==` raised this error, or gave this answer."""
    answer = f"gives {short_text(why)}, not a bool"
    if isinstance(why, Exception):
        answer = f"raises {type(why).__name__}: {why}"
    return NoExactKeyError(
        value,
        text_with_class(value),
        f"{type(value).__qualname__}.__eq__ {answer}, so jit could not tell whether it is the value that it compiled "
        f"for.",
    )


def refuse_equality(value: Any) -> None:
    """Ask a user's `==` once, where the class and the field can still be named: it has to answer with a bool."""
    try:
        answer = value == value  # noqa: PLR0124
    except Exception as error:
        raise unanswered(value, error) from error
    if not isinstance(answer, bool | np.bool_):
        raise unanswered(value, answer)


# Children

NODES_TO_SEE = 64  # of each class: to look at all would make one with eight children by a fifth slower (against.py)
_COMMON = frozenset({tuple, dict, types.NoneType, np.ndarray, bool, int, float, complex})
_NUMBERS = (int, float, complex)
_SETTINGS = (str, bytes, enum.Enum, type, np.dtype)
# What gives items and is not a tree, such as `map` and `dict.values()`: to JAX each is one leaf, and not an array.
_ITERABLES = (collections.abc.Iterator, collections.abc.Set, collections.abc.MappingView, range)
_LAYERS = frozenset({("equinox", "Module"), ("flax", "Module")})  # flax.linen's and flax.nnx's


def check_children(node: Any) -> None:
    """Warn of the children of a new node that JAX takes for no leaf; those declared with `field()` are meant.

    Raises:
        NodeInitError: If a child is a method of the node itself.
    """
    spec, children = node.__node_spec__, object.__getattribute__(node, "_node")[0]
    if spec.unseen:
        spec.unseen.pop()
    for field in spec.children:
        value = children[field.index]
        if type(value) in _COMMON or isinstance(value, jax.Array):
            continue
        if getattr(value, "__self__", None) is node:
            raise contains_itself(node, field.name)
        if field.is_plain and (said := _misfit(type(node), field, value)):
            warn_user(said, ChildWarning)


def contains_itself(node: Any, name: str) -> NodeInitError:
    """The error for a node in one of its own fields."""
    return NodeInitError(
        f"{type(node).__qualname__}.{name} was given the node itself, or one of its methods, so the node would contain "
        f"itself without end. Look it up where it is used instead."
    )


def _misfit(cls: type[Any], field: Any, value: Any) -> str | None:
    """What to say of a child; None for one that is fine."""
    place, kind = f"{cls.__qualname__}.{field.name}", type(value)
    as_tuple = f"Make a tuple of it where it is given: {field.name} = tuple(...)."
    if kind is list:
        annotation = annotation_text(field.type, cls)
        if not annotation.startswith("tuple["):
            return None
        return (
            f"{place} is annotated with {annotation} and was given a list: to JAX another tree, so jit traces again, "
            f"and the nodes are not equal.\n{as_tuple}"
        )
    if any((base.__module__.partition(".")[0], base.__name__) in _LAYERS for base in kind.__mro__):
        leaves = jax.tree.leaves(value)  # it is one itself where its library has not registered it
        if all(leaf is not value and (hasattr(leaf, "dtype") or isinstance(leaf, _NUMBERS)) for leaf in leaves):
            return None
        cure = (
            f"Adopt the layer where it is given, with its arrays as children and its settings as statics:\n"
            f"  {field.name} = treewright.adopt(...)"
        )
    elif not jax.tree_util.all_leaves([value]) or hasattr(kind, "dtype") or hasattr(kind, "__jax_array__"):
        return None
    elif isinstance(value, _ITERABLES):
        cure = as_tuple
    elif isinstance(value, _SETTINGS) or callable(value) or dataclasses.is_dataclass(kind):
        default = function_text(field.default) or short_text(field.default)
        option = "" if field.default is dataclasses.MISSING else f"default={default}"
        line = f"{field.name}: {annotation_text(field.type, cls)} = static({option})"
        cure = f"If it is a setting, make it static:\n  {line}\n"
        if dataclasses.is_dataclass(kind):
            cure += f"If it holds arrays, decorate {kind.__qualname__} with @pytree_dataclass.\n"
        cure += "If it is to be a leaf all the same, declare it with field()."
    else:
        return None
    function = function_text(value)
    shown = text_with_class(value) if function is None else f"the function {function}"
    return (
        f"{place} is a child and holds {shown}. jit, grad and vmap take arrays and numbers as leaves, and would "
        f"refuse it.\n{cure}"
    )


def note_settings(error: TypeError, node: Any) -> None:
    """Add to JAX's error, where a method of the node needs the value of a tracer: which child may be meant as static.

    JAX proposes `static_argnums`, which would take the whole node for static.
    """
    said, cls = str(error), type(node)
    needs_value = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)
    if not (isinstance(error, needs_value) or "concrete value" in said):
        return
    for field in cls.__node_spec__.children:
        is_number = field.type in (bool, int, "bool", "int")
        is_blamed = "depends on the value of the argument" not in said or f".{field.name}" in said
        if is_number and is_blamed and isinstance(node._node[0][field.index], Tracer):
            note = (
                f"{cls.__qualname__}.{field.name} is a child, so it is traced and has no value here. If it is a "
                f"setting, make it static:\n  {field.name}: {annotation_text(field.type, cls)} = static()"
            )
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


def annotation_text(annotation: Any, cls: type[Any]) -> str:
    """An annotation as a user writes it in the body of `cls`, or three dots where that is unknown."""
    written = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if isinstance(written, str):
        return written
    shown = inspect.formatannotation(written, cls.__module__)
    # jax.Array has the __module__ of where it is made.
    shown = shown.replace("jax.jaxlib._jax.", "jax.").replace("collections.abc.", "")
    return "..." if "._" in shown or "<" in shown else shown
