"""What to do about a difference that made `jit` trace again: one line, where there is one."""

import types
from typing import Any

from treewright._core import functions as reach
from treewright._core.jax_private import is_key_dtype
from treewright._core.jax_refs import is_ref_type
from treewright._trees.diff import Difference, DifferenceKind
from treewright._trees.level import LeafType
from treewright._trees.snapshot import facts_of
from treewright._trees.why import Cause, CauseName

_OF_CAUSES: types.MappingProxyType[CauseName, str] = types.MappingProxyType(
    {
        "class made twice": "define the class once, in a module of its own, and make the objects anew",
        "other class": "use one type",
        "function made anew": "define it once, outside of what calls it, and reuse it",
        "other function": "use one and the same function in all calls",
        "other method": "keep one object, or pass the object as an argument of a plain function",
        "partial made anew": "make it once and reuse it",
        "wrapped anew": "wrap it once and reuse it",
        "nan": "use None for what is not there, or reuse one NaN object such as math.nan",
        "no answer": "make it a child, or give its class an __eq__ that answers with a bool",
        "identity": "give it __eq__ and __hash__, as a frozen dataclass has them, or make it once and reuse it",
        "same text": "make it once and reuse it",
        "unequal hashes": "give equal values one hash",
    }
)
_OF_KINDS: types.MappingProxyType[DifferenceKind, str] = types.MappingProxyType(
    {
        "passing": "pass it the same way each time: jit tells by position from by keyword",
        "setting": "set it once, before the first call",
        "option": "jit the function once, with one set of options",
        "sharding": "give it one sharding before the loop: jax.device_put",
        "placement": "put it there once, before the loop: jax.device_put",
    }
)
_KEYS = "make all random keys in one way: jax.random.key(seed)"
_FIXED = "make the number an array of a fixed dtype: jnp.asarray(x, dtype)"


def remedy_of(difference: Difference) -> str:
    """What to do about a difference; empty where nothing general can be said."""
    match difference.kind:
        case "static" | "value":
            return _of_static(difference)
        case "function":
            return _of_function(difference)
        case "shape":
            return _of_shape(difference.left, difference.right)
        case "dtype" | "weak_type":
            return _of_dtype(difference)
        case "class":
            return _of_class(difference)
        case "added" | "removed":
            is_argument = len(difference.path) == 1 and str(difference.path[0]).isidentifier()
            default = "a default that is passed is an argument more: pass it each time or never"
            return default if is_argument else "keep the structure the same from call to call"
        case "sharding" if str(difference.left) == str(difference.right):
            return "make it under the mesh that it is used with"
        case kind:
            return _OF_KINDS.get(kind, "")


def _of_static(difference: Difference) -> str:
    if isinstance(difference.reason, Cause):
        if difference.reason.name == "function made anew" and _is_of_optimizer(difference.left):
            return "build the optimiser once and reuse it, or keep it in a TrainState"
        return _OF_CAUSES[difference.reason.name]
    numbers = (int, float, complex)
    both = (difference.left, difference.right)
    left, right = (value.value if isinstance(value, LeafType) else value for value in both)
    if type(left) in numbers and type(right) in numbers:
        return "if it changes often, pass it as an array that is traced, not as a static"
    return ""


def _is_of_optimizer(function: Any) -> bool:
    code = facts_of(function).code
    return code is not None and "optax" in reach.file_of(code).replace("\\", "/").split("/")


def _of_function(difference: Difference) -> str:
    reason = difference.reason
    cause = reason.name if isinstance(reason, Cause) else reason
    if cause == "other method":
        return "jit a function that takes the object as an argument, and jit it once"
    if cause in {"", "other decorators"}:  # two functions, and each needs its program
        return ""
    return "jit keeps programs for each function object: make and jit it once, outside of the loop"


def _of_shape(old: LeafType, new: LeafType) -> str:
    a, b = old.aval.shape, new.aval.shape
    if is_key_dtype(old.aval.dtype) != is_key_dtype(new.aval.dtype):
        return _KEYS
    if len(a) != len(b):
        return ""
    if sorted(a) == sorted(b):
        return "the same axes in another order"
    smaller = b[0] < a[0] and a[1:] == b[1:]
    return "if this is a last, smaller batch, drop or pad it" if smaller else "pad to one size, or to a few"


def _of_dtype(difference: Difference) -> str:
    if any(leaf.python is not None for leaf in (difference.left, difference.right)):
        return _FIXED
    if difference.kind == "weak_type":
        return "give the dtype where the array is made: jnp.asarray(x, dtype)"
    return "convert it where it is made"


def _of_class(difference: Difference) -> str:
    if any(is_ref_type(getattr(side, "aval", None)) for side in (difference.left, difference.right)):
        return "make the ref once, before the first call: treewright.to_refs"
    kinds = {getattr(tree, "kind", None) for tree in (difference.left, difference.right)}
    if type(None) in kinds:
        return "pass the same in each call: an array of zeros in place of None, say"
    if kinds == {list, tuple}:
        return "use one of the two"
    return _OF_CAUSES[difference.reason.name] if isinstance(difference.reason, Cause) else ""
