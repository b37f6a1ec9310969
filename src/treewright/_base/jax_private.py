"""JAX's untyped, recent and private APIs. Private ones come from `private`, and each has a row in `PRIVATE_PARTS`.

Every JAX version from 0.9.0 to the newest is supported. `tests/test_jax_private.py` takes each private part away, and
its module.
"""

import functools
import importlib
import types
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

# Untyped, but public: strict checkers reject JAX's incomplete annotations.

untyped_jax: Any = jax
jax_trees: Any = jax.tree_util
GetAttrKey: Any = jax.tree_util.GetAttrKey
SequenceKey: Any = jax.tree_util.SequenceKey
DictKey: Any = jax.tree_util.DictKey
FlattenedIndexKey: Any = jax.tree_util.FlattenedIndexKey
Key: TypeAlias = Any  # one of these, or what a foreign class registered
Path: TypeAlias = tuple[Key, ...]


def path_text(path: Path, root: str = "") -> str:
    """A path in Python syntax: `state.params.layers[2].kernel` for the root `state`."""
    return root + "".join(map(str, path))


# Recent. `import treewright` fails in a JAX version without these.

typeof: Any = jax.typeof
_REF_TYPE: Any = jax.ref.AbstractRef  # pyright: ignore[reportAttributeAccessIssue]  # `import jax` imports jax.ref too


def is_ref_type(aval: Any) -> bool:
    """Whether a JAX type is the type of a ref."""
    return isinstance(aval, _REF_TYPE)


def is_ref(value: Any) -> bool:
    """Whether a value is a ref, an array that changes in place, or the tracer of one."""
    return type(value) is jax.Ref or (isinstance(value, Tracer) and is_ref_type(typeof(value)))


_prng_key: Any = jax.dtypes.prng_key


def is_key_dtype(dtype: Any) -> bool:
    """Whether a dtype belongs to typed random keys, such as `key<fry>`."""
    return bool(jax.numpy.issubdtype(dtype, _prng_key))


def numbers_of(array: Any) -> np.ndarray[Any, Any]:
    """The values of an array as a numpy array; for random keys, their bits."""
    return np.asarray(jax.random.key_data(array) if is_key_dtype(array.dtype) else array)


# Recent. `import treewright` fails in a JAX version without it.

# A context setting in `jit`'s cache key: functions that read it retrace if it differs.
part_of_jit_key: Any = untyped_jax.make_user_context


# Private.


# What a version of JAX without the part loses: because it renamed the part, or moved the module.
# Frames and variables are not imported but found by name on the stack of a call, in any module.
PRIVATE_PARTS: Mapping[str, str] = types.MappingProxyType(
    {
        "config.trace_context": "Of the settings of a trace, reports know only the long-standing ones and the mesh.",
        "config.trace_context_names": "So they do without this.",
        "core.trace_ctx": "A `loop` that is called in a different trace does not say so: JAX reports a leaked tracer.",
        "core.trace_state_clean": "With JAX 0.9, traces of jitted functions inside other traces are reported too.",
        "distributed.global_state": "Trees and checkpoints of several processes can't be compared: an error says so.",
        "interpreters.pxla.batched_device_put": "`load` and `restore` take longer for thousands of small arrays.",
        "lax.lax._convert_element_type": "Weakly typed arrays are restored strongly typed, so functions retrace once.",
        "mesh.get_concrete_mesh": "A report of a `set_mesh` over other devices sees no difference.",
        "mesh.thread_resources": "No warning says that a `with mesh:` block has no effect on `constrain`.",
        "monitoring.get_event_duration_listeners": (
            "Where a block begins while another thread compiles, other listeners of JAX may miss that event."
        ),
        "traceback_util.register_exclusion": "Tracebacks of jitted functions contain frames of Treewright.",
    }
)


@functools.cache
def private(place: str, default: Any = None) -> Any:
    """A private part of JAX by its place in `jax._src`; the default if this JAX version has none there."""
    if place not in PRIVATE_PARTS:
        raise KeyError(place)
    module, _, name = place.rpartition(".")
    try:
        return getattr(importlib.import_module(f"jax._src.{module}"), name, default)
    except ImportError:
        return default


def current_trace() -> object:
    """The current trace, or JAX's object for no trace."""
    return getattr(private("core.trace_ctx"), "trace", None)


def mesh_of_old_context() -> Any:
    """The mesh of an enclosing `with mesh:` block, or None."""
    physical = getattr(getattr(private("mesh.thread_resources"), "env", None), "physical_mesh", None)
    return None if physical is None or physical.empty else physical


def coordination_client() -> Any:
    """The client of JAX's coordination service; None if the job has none."""
    return getattr(private("distributed.global_state"), "client", None)


# The attributes in the `__dict__` of a jitted function, in addition to those of the wrapped function. With any further
# attribute, a jitted function in a static field is compared by identity.
JIT_ATTRIBUTES = frozenset({"__wrapped__", "_fun", "_jit_info", "__annotations__", *functools.WRAPPER_ASSIGNMENTS})


def is_jitted(function: Any) -> bool:
    """Whether `jax.jit` returned this function, rather than a wrapper that copied its attributes."""
    kind = type(function)
    return kind.__name__ == "PjitFunction" and kind.__module__.partition(".")[0] in {"jax", "jaxlib"}


def options_of(function: Any) -> Mapping[str, Any] | None:
    """The options of a jitted function by the names of `jax.jit`'s parameters; None if they can't be read.

    Without it, `explain` reports that it does not know which arguments are static, and a jitted function in a static
    field is compared by identity.
    """
    return options_record(getattr(function, "_jit_info", None)) if is_jitted(function) else None


def options_record(info: Any) -> Mapping[str, Any] | None:
    """JAX's record of the options of a jitted function as a mapping; None for anything else."""
    options: dict[str, Any] = getattr(info, "_asdict", dict[str, Any])()
    for about_function in ("fun_sourceinfo", "fun_signature"):
        options.pop(about_function, None)
    return options if {"static_argnums", "static_argnames"} <= options.keys() else None


# Hide our frames in tracebacks of jitted functions, as JAX hides its own. `JAX_TRACEBACK_FILTERING=off` shows them.
private("traceback_util.register_exclusion", str)(str(FilePath(__file__).parents[1]))
