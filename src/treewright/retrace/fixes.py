"""The fix for each difference of a retrace report, by its cause or kind: a text, or a function of both sides."""

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from treewright._base.jax_private import is_key_dtype, is_ref_type
from treewright._loop import loop
from treewright._trees.causes import class_of
from treewright._trees.difference import Difference
from treewright._trees.level import LeafType
from treewright.retrace.jax_private import is_installed


def fix_for(difference: Difference) -> str:
    """The fix for a difference; empty if no general one is known."""
    cause = getattr(difference.reason, "name", difference.kind)
    if difference.kind == "function":
        if difference.right.code is not None and difference.right.code.code.co_qualname.startswith(f"{loop.__name__}."):
            cause = "other loop"
        return _FIXES_OF_FUNCTIONS.get(cause, _FIXES_OF_FUNCTIONS["function"])
    fix = FIXES.get(cause, "")
    return fix if isinstance(fix, str) else fix(difference.left, difference.right)


def _of_shapes(old: LeafType, new: LeafType) -> str:
    a, b = old.aval.shape, new.aval.shape
    if is_key_dtype(old.aval.dtype) != is_key_dtype(new.aval.dtype):
        return "create all random keys in the same way: jax.random.key(seed)"
    if len(a) != len(b):
        return ""
    if sorted(a) == sorted(b):
        return "the same axes in a different order"
    smaller = b[0] < a[0] and a[1:] == b[1:]
    return (
        "if this is the smaller last batch of an epoch, drop or pad it" if smaller else "pad to one size, or to a few"
    )


def _of_dtypes(old: LeafType, new: LeafType) -> str:
    if old.python is not None or new.python is not None:
        return "pass the number as an array of a fixed dtype: jnp.asarray(x, dtype)"
    if old.aval.dtype != new.aval.dtype:
        return "convert it where it is created"
    return "pass the dtype where the array is created: jnp.asarray(x, dtype)"


def _of_shardings(old: LeafType, new: LeafType) -> str:
    if str(old) == str(new):
        return _onto_devices(old, new)
    return "set its sharding once, before the loop: jax.device_put"


def _of_placements(old: LeafType, new: LeafType) -> str:
    is_anywhere = [side.placement is None or side.placement.sharding is None for side in (old, new)]
    is_numpy = any(side.placement is not None and side.placement.is_numpy for side in (old, new))
    placed = [side.placement.sharding for side in (old, new) if side.placement is not None and side.placement.sharding]
    if any(is_anywhere) and (is_numpy or any(len(sharding.device_set) > 1 for sharding in placed)):
        return _onto_devices(old, new)
    return "move it once, before the loop: jax.device_put"


def _onto_devices(old: LeafType, new: LeafType) -> str:
    """The fix for an array that is on its devices in one of two calls."""
    if any(side.placement is not None and side.placement.is_numpy for side in (old, new)):
        return "put every batch, or none, on its devices: jax.device_put(batch, sharding)"
    return (
        "create it under the mesh (with jax.set_mesh(mesh):), or move the whole tree once, before the loop: "
        "jax.device_put(state, shardings(state, mesh, rules))"
    )


def _of_classes(old: Any, new: Any) -> str:
    if any(is_ref_type(getattr(side, "aval", None)) for side in (old, new)):
        return "create the ref once, before the first call: jax.new_ref"
    classes = {getattr(tree, "cls", None) for tree in (old, new)}
    if type(None) in classes:
        return "pass the same type in each call, such as an array of zeros instead of None"
    return "use one of the two" if classes == {list, tuple} else ""


def _of_identities(_old: Any, new: Any) -> str:
    module = sys.modules.get(class_of(new).__module__)
    once = "create it once and reuse it"
    if is_installed(getattr(module, "__file__", None) or "<frozen built-in>"):
        return once  # a class that the user can't change
    return f"define __eq__ and __hash__, for example with a frozen dataclass, or {once}"


def _of_values(old: Any, new: Any) -> str:
    classes = {type(value.value if isinstance(value, LeafType) else value) for value in (old, new)}
    if not classes <= {int, float, complex}:
        return ""
    return "if it is only used in arithmetic, pass it as a traced argument; a shape or a length must be static"


def _of_options(old: Any, _new: Any) -> str:
    is_mesh = class_of(old) is jax.sharding.Mesh
    return "set it once, before the first call" if is_mesh else "jit the function once, with one set of options"


# The fix for each cause, and for each kind of difference without a cause.
FIXES: Mapping[str, str | Callable[[Any, Any], str]] = types.MappingProxyType(
    {
        "redefined class": "define the class once, in a separate module, and recreate the objects",
        "other class": "use one type",
        "changed in place": "create a new object instead of changing this one; a frozen dataclass can't change",
        "recreated function": "define it once, before the loop, and reuse it",
        "recreated optimiser": "build the optimiser once and reuse it",
        "other rate": "a rate that changes belongs in the optimiser's state: build it once, by "
        "optax.inject_hyperparams(optax.adam)(learning_rate=rate), and set "
        "opt_state.hyperparams['learning_rate'] = jnp.asarray(rate, jnp.float32), or the parameters' dtype",
        "other numbers": "build the optimiser once; if the number must change, optax.inject_hyperparams keeps the "
        "numeric arguments of an optimiser in its state, in opt_state.hyperparams",
        "other function": "use the same function in all calls",
        "other method": "reuse one object, or pass the object to a plain function as an argument",
        "other arguments": "create it once, and pass the changing values as arguments",
        "wrapped again": "create it once and reuse it",
        "nan": "use None for a missing value, or reuse one NaN object such as math.nan",
        "identity": _of_identities,
        "same text": "create it once and reuse it",
        "unequal hashes": "equal values must have equal hashes",
        "default passed": "passing a default explicitly adds an argument: always pass it, or never",
        "default replaced": "pass it in every call",
        "None replaced": "pass the same type in each call, such as an array of zeros instead of None",
        "other statics": "jit the function once, with one set of static arguments",
        "shape": _of_shapes,
        "dtype": _of_dtypes,
        "weak_type": _of_dtypes,
        "sharding": _of_shardings,
        "placement": _of_placements,
        "batch": "use one batch size, or a few: pad the batch",
        "class": _of_classes,
        "static": _of_values,
        "value": _of_values,
        "added": "use the same structure in every call",
        "removed": "use the same structure in every call",
        "passing": "pass it the same way each time: jit distinguishes positional from keyword arguments",
        "setting": "set it once, before the first call",
        "option": _of_options,
    }
)
# The fixes if the function itself is a different one.
_FIXES_OF_FUNCTIONS: Mapping[str, str] = types.MappingProxyType(
    {
        "other loop": "each loop compiles its own program: create it once, pass the changing values as inputs, and "
        "assign run.state to begin again",
        "function": "jit compiles each function object separately: create and jit it once, before the loop, and pass "
        "the changing values as arguments",
        "other method": "jit one function that takes the object as an argument: traced if it is a node, else static, "
        "with __eq__ and __hash__",
        "other transformations": "",
        "other options": "",
    }
)
