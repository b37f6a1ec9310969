"""Everything of JAX that is private, untyped or young, each with what is lost in a version of JAX without it.

Supported is every JAX from 0.9.0 to the newest. What only retraces need is in `treewright.retrace.jax_private`.
`tests/test_jax_private.py` takes each away.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

# Untyped. All public: JAX's annotations leave types open here that a strict checker asks for.

untyped_jax: Any = jax
jax_trees: Any = jax.tree_util
GetAttrKey: Any = jax.tree_util.GetAttrKey
SequenceKey: Any = jax.tree_util.SequenceKey
DictKey: Any = jax.tree_util.DictKey
FlattenedIndexKey: Any = jax.tree_util.FlattenedIndexKey
Key: TypeAlias = Any  # one of these, or what a foreign class registered
Path: TypeAlias = tuple[Key, ...]


def path_text(path: Path, root: str = "") -> str:
    """A path as users would write it: `state.params.layers[2].kernel` for the root `state`."""
    return root + "".join(map(str, path))


# Young. `import treewright` fails in a JAX without these.

typeof: Any = jax.typeof
_REF_TYPE: Any = jax.ref.AbstractRef  # pyright: ignore[reportAttributeAccessIssue]  # `import jax` imports jax.ref too


def is_ref_type(aval: Any) -> bool:
    """Whether JAX's type of a value is that of a ref."""
    return isinstance(aval, _REF_TYPE)


def is_ref(value: Any) -> bool:
    """Whether a value is a ref, an array that changes in place, or the tracer of one."""
    return type(value) is jax.Ref or (isinstance(value, Tracer) and is_ref_type(typeof(value)))


_prng_key: Any = jax.dtypes.prng_key


def is_key_dtype(dtype: Any) -> bool:
    """Whether a dtype is that of typed random keys, such as `key<fry>`."""
    return bool(jax.numpy.issubdtype(dtype, _prng_key))


def numbers_of(array: Any) -> np.ndarray[Any, Any]:
    """The values of an array, of random keys their bits, as numpy has them."""
    return np.asarray(jax.random.key_data(array) if is_key_dtype(array.dtype) else array)


# Private.


def node_data(treedef: Any) -> tuple[type[Any], Any] | None:
    """The class and the `aux_data` at the top of a treedef; None for that of a leaf.

    Without it, what opens a dict or a node of a foreign class (`diff`, `at`, `explain` and others) raises
    AttributeError, and retraces with such arguments are counted and not explained.
    """
    data: tuple[type[Any], Any] | None = treedef.node_data()
    return data


def device_put(arrays: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """`jax.device_put`, in a fifth of its time for arrays of numpy that go to one device.

    It places the first of each shape, dtype and sharding, and the others are put where that lies, of the same type:
    5 us each, not 25. Without this piece of JAX, it places all.
    """
    put: Any = getattr(untyped_jax._src.interpreters.pxla, "batched_device_put", None)
    if put is None:
        return list(untyped_jax.device_put(arrays, shardings))
    firsts: dict[Any, int] = {}
    like = [
        firsts.setdefault((array.shape, array.dtype, sharding), index)
        if type(array) is np.ndarray and (sharding is None or sharding.num_devices == 1)
        else index
        for index, (array, sharding) in enumerate(zip(arrays, shardings, strict=True))
    ]
    asked = [index for index, other in enumerate(like) if index == other]
    placed = untyped_jax.device_put([arrays[index] for index in asked], [shardings[index] for index in asked])
    result = dict(zip(asked, placed, strict=True))
    for index, other in enumerate(like):
        if index != other:
            first = result[other]
            values, devices = [arrays[index].astype(first.dtype, copy=False)], list(first.sharding.device_set)
            result[index] = put(first.aval, first.sharding, values, devices, first.committed)
    return [result[index] for index in range(len(arrays))]


# What stands in the `__dict__` of a jitted function besides what the wrapped one has there. With an attribute more, it
# equals only itself in a static field.
JIT_ATTRIBUTES = frozenset(
    {"__wrapped__", "_fun", "_jit_info", "__annotations__", "__name__", "__module__", "__doc__", "__qualname__"}
    | {"__type_params__", "__annotate__"}
)


def is_jitted(function: Any) -> bool:
    """Whether `jax.jit` itself has made a function, and not a wrapper that took over its attributes."""
    kind = type(function)
    return kind.__name__ == "PjitFunction" and kind.__module__.partition(".")[0] in {"jax", "jaxlib"}


def options_of(function: Any) -> Mapping[str, Any] | None:
    """What `jax.jit` was told about a function, by the names of its parameters; None where that can't be read.

    Without it, `explain` says that it does not know which arguments are static, and a jitted function in a static
    field equals only itself.
    """
    return options_record(getattr(function, "_jit_info", None)) if is_jitted(function) else None


def options_record(info: Any) -> Mapping[str, Any] | None:
    """JAX's record of the options of a jitted function as a mapping; None for anything else."""
    options: dict[str, Any] = getattr(info, "_asdict", dict[str, Any])()
    for about_function in ("fun_sourceinfo", "fun_signature"):
        options.pop(about_function, None)
    return options if {"static_argnums", "static_argnames"} <= options.keys() else None


_traces: Any = getattr(untyped_jax._src.core, "trace_ctx", None)


def current_trace() -> object:
    """The trace that runs here, or the object that stands for none.

    Without it, a loop that is called inside of a trace loses its state, and JAX reports a leaked tracer.
    """
    return getattr(_traces, "trace", None)


def hide_frames(folder: str) -> None:
    """Leave frames of a folder's files out of tracebacks where JAX leaves out its own: of errors in jitted functions.

    `JAX_TRACEBACK_FILTERING=off` shows them. Without this piece of JAX they are always shown.
    """
    try:
        from jax._src.traceback_util import register_exclusion
    except ImportError:
        return
    hide: Callable[[str], None] = register_exclusion
    hide(folder)


hide_frames(str(FilePath(__file__).parents[1]))
