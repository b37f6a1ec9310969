"""Private, untyped and recent JAX APIs, each with what breaks if a JAX version lacks it.

Every JAX version from 0.9.0 to the newest is supported. APIs used only for retraces are in
`treewright.retrace.jax_private`; an API used by one other module is in that module.
`tests/test_jax_private.py` removes each of them in turn.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
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


# Private.


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
# Without this JAX API they are always shown.
with contextlib.suppress(ImportError):
    from jax._src.traceback_util import register_exclusion

    _hide: Callable[[str], None] = register_exclusion
    _hide(str(FilePath(__file__).parents[1]))
