"""Fixes for the differences in retrace reports: rules for mistakes that both sides show, else a text for each cause.

A rule returns the fix for one mistake, or None; its docstring is the reason. The first text is printed.
"""

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from treewright._base.jax_private import is_key_dtype, is_ref_type
from treewright._core import first_text
from treewright._loop import loop
from treewright._trees.causes import class_of
from treewright._trees.difference import Difference
from treewright._trees.level import LeafType
from treewright.retrace.jax_private import is_installed


def fix_for(difference: Difference) -> str:
    """The fix for a difference; empty if no general one is known."""
    cause = getattr(difference.reason, "name", difference.kind)
    if difference.kind == "function":
        text = _FIXES_OF_FUNCTIONS.get(cause, _FIXES_OF_FUNCTIONS["function"])
        return recreated_loop(difference.left, difference.right) or text
    return first_text(RULES.get(cause, ()), difference.left, difference.right) or FIXES.get(cause, "")


# Shapes


def other_kind_of_key(old: LeafType, new: LeafType) -> str | None:
    """A typed key has a shape without the axis of a raw one."""
    is_other = is_key_dtype(old.aval.dtype) != is_key_dtype(new.aval.dtype)
    return "create all random keys in the same way: jax.random.key(seed)" if is_other else None


def smaller_last_batch(old: LeafType, new: LeafType) -> str | None:
    """An epoch ends with the examples that are left."""
    a, b = old.aval.shape, new.aval.shape
    is_smaller = len(a) == len(b) and b[0] < a[0] and a[1:] == b[1:]
    return "if this is the smaller last batch of an epoch, drop or pad it" if is_smaller else None


def other_size(old: LeafType, new: LeafType) -> str | None:
    """JAX compiles for each shape. The same axes in a different order can't be padded."""
    a, b = old.aval.shape, new.aval.shape
    return "pad to one size, or to a few" if len(a) == len(b) and sorted(a) != sorted(b) else None


# Dtypes


def python_number(old: LeafType, new: LeafType) -> str | None:
    """A Python number is weakly typed, and int or float by its value."""
    is_number = old.python is not None or new.python is not None
    return "pass the number as an array of a fixed dtype: jnp.asarray(x, dtype)" if is_number else None


# Devices

_ONTO_THE_MESH = (
    "create it under the mesh (with jax.set_mesh(mesh):), or move the whole tree once, before the loop: "
    "jax.device_put(state, shardings(state, mesh, rules))"
)


def batch_in_numpy(old: LeafType, new: LeafType) -> str | None:
    """`jit` puts a numpy array on the default device."""
    is_numpy = any(side.placement is not None and side.placement.is_numpy for side in (old, new))
    return "put every batch, or none, on its devices: jax.device_put(batch, sharding)" if is_numpy else None


def created_outside_the_mesh(old: LeafType, new: LeafType) -> str | None:
    """The mesh is part of an array's type, but not of its text."""
    return _ONTO_THE_MESH if str(old) == str(new) else None


def spread_by_the_first_step(old: LeafType, new: LeafType) -> str | None:
    """A state that is created on one device comes back from the first step on all of them."""
    shardings = [None if side.placement is None else side.placement.sharding for side in (old, new)]
    is_spread = any(sharding is not None and len(sharding.device_set) > 1 for sharding in shardings)
    return _ONTO_THE_MESH if None in shardings and is_spread else None


# Trees and statics


def ref_created_again(old: Any, new: Any) -> str | None:
    """A ref is an argument by identity."""
    is_ref = any(is_ref_type(getattr(side, "aval", None)) for side in (old, new))
    return "create the ref once, before the first call: jax.new_ref" if is_ref else None


def none_for_a_value(old: Any, new: Any) -> str | None:
    """None has no leaves, so it is another structure."""
    is_none = type(None) in {getattr(tree, "cls", None) for tree in (old, new)}
    return "pass the same type in each call, such as an array of zeros instead of None" if is_none else None


def class_of_a_library(_old: Any, new: Any) -> str | None:
    """The user can't add methods to it."""
    module = sys.modules.get(class_of(new).__module__)
    is_fixed = is_installed(getattr(module, "__file__", None) or "<frozen built-in>")
    return "create it once and reuse it" if is_fixed else None


def static_number(old: Any, new: Any) -> str | None:
    """A number that only arithmetic reads need not be static."""
    classes = {type(value.value if isinstance(value, LeafType) else value) for value in (old, new)}
    text = "if it is only used in arithmetic, pass it as a traced argument; a shape or a length must be static"
    return text if classes <= {int, float, complex} else None


def mesh_in_use(old: Any, _new: Any) -> str | None:
    """The mesh of `set_mesh` is an option of a program, but not of `jit`."""
    return "set it once, before the first call" if class_of(old) is jax.sharding.Mesh else None


def recreated_loop(_old: Any, new: Any) -> str | None:
    """Each loop jits a function of its own."""
    if new.code is None or new.code.file != loop.__init__.__code__.co_filename:
        return None
    return (
        "each loop compiles its own program: create it once, pass the changing values as inputs, and assign run.state "
        "to begin again"
    )


# By cause, or by kind if a difference has no cause; asked in this order.
RULES: Mapping[str, tuple[Callable[..., str | None], ...]] = types.MappingProxyType(
    {
        "shape": (other_kind_of_key, smaller_last_batch, other_size),
        "dtype": (python_number,),
        "weak_type": (python_number,),
        "sharding": (batch_in_numpy, created_outside_the_mesh),
        "placement": (batch_in_numpy, spread_by_the_first_step),
        "class": (ref_created_again, none_for_a_value),
        "identity": (class_of_a_library,),
        "static": (static_number,),
        "value": (static_number,),
        "option": (mesh_in_use,),
    }
)
# If no rule applies.
FIXES: Mapping[str, str] = types.MappingProxyType(
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
        "identity": "define __eq__ and __hash__, for example with a frozen dataclass, or create it once and reuse it",
        "same text": "create it once and reuse it",
        "unequal hashes": "equal values must have equal hashes",
        "default replaced": "pass it in every call",
        "None replaced": "pass the same type in each call, such as an array of zeros instead of None",
        "other statics": "jit the function once, with one set of static arguments",
        "dtype": "convert it where it is created",
        "weak_type": "pass the dtype where the array is created: jnp.asarray(x, dtype)",
        "sharding": "set its sharding once, before the loop: jax.device_put",
        "placement": "move it once, before the loop: jax.device_put",
        "batch": "use one batch size, or a few: pad the batch",
        "added": "use the same structure in every call",
        "removed": "use the same structure in every call",
        "passing": "pass it the same way each time: jit distinguishes positional from keyword arguments",
        "setting": "set it once, before the first call",
        "option": "jit the function once, with one set of options",
    }
)
# The fixes if the function itself is a different one.
_FIXES_OF_FUNCTIONS: Mapping[str, str] = types.MappingProxyType(
    {
        "function": "jit compiles each function object separately: create and jit it once, before the loop, and pass "
        "the changing values as arguments",
        "other method": "jit one function that takes the object as an argument: traced if it is a node, else static, "
        "with __eq__ and __hash__",
        "other transformations": "",
        "other options": "",
    }
)
