"""Leaves: which kinds can be saved, the array that is written for each, and the way back."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.dtypes import prng_key

from treewright._nodes.classes import class_of
from treewright._nodes.freeze import FrozenArray
from treewright._nodes.representation import text
from treewright.errors import CheckpointError

Kind = Literal["array", "numpy", "numpy scalar", "bool", "int", "float", "complex", "key"]

ARRAYS = frozenset({"array", "numpy", "numpy scalar"})
KINDS = ARRAYS | {"bool", "int", "float", "complex", "key"}
DTYPES = frozenset(
    {
        *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
        *("uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)
_SCALARS: tuple[tuple[type[Any], Kind], ...] = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))
_PLAIN_ARRAYS = (np.ndarray, np.memmap, FrozenArray)


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What a leaf is, without its values. Of a typed key: the shape and dtype of its data, and its implementation."""

    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    weak: bool = False
    key: str | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return int(np.prod(self.shape, dtype=object)) * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.key is None else f" (key {self.key})"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{kind}"


class CanNotBeSavedError(ValueError):
    """A leaf that no checkpoint can hold; the message completes the sentence that begins with its path."""


def form_of(leaf: Any, *, abstract: bool = False) -> Form:
    """The form of a leaf.

    Args:
        leaf: The leaf.
        abstract: Whether a `jax.ShapeDtypeStruct` is one.

    Raises:
        CanNotBeSavedError: If it is of no kind that can be saved.
    """
    cls = class_of(leaf)
    for scalar, kind in _SCALARS:
        if cls is scalar:
            return Form(kind, (), _stored_scalar(leaf).dtype.name)
    if isinstance(leaf, Tracer):
        raise CanNotBeSavedError("is traced, and has no values outside of jit")
    if isinstance(leaf, jax.Array) or (abstract and isinstance(leaf, jax.ShapeDtypeStruct)):
        return _jax_form(leaf)
    if isinstance(leaf, np.generic):
        return Form("numpy scalar", (), _dtype_name(leaf.dtype))
    if cls in _PLAIN_ARRAYS:
        return Form("numpy", leaf.shape, _dtype_name(leaf.dtype))
    raise CanNotBeSavedError(f"is {_shown(leaf)}, no array or number. Make it a static, or wrap it in Static")


def _shown(leaf: object) -> str:
    shown = text(leaf)
    return f"{type(leaf).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _dtype_name(dtype: Any) -> str:
    if dtype.name not in DTYPES:
        raise CanNotBeSavedError(f"has the dtype {dtype}, which no checkpoint holds")
    if dtype != jnp.dtype(dtype.name):
        raise CanNotBeSavedError(f"has the dtype {dtype.str}, in another byte order than this machine's")
    return str(dtype.name)


def _jax_form(leaf: Any) -> Form:
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise CanNotBeSavedError("was donated or deleted, and has no values any more")
    if jnp.issubdtype(leaf.dtype, prng_key):
        return _key_form(leaf)
    return Form("array", leaf.shape, _dtype_name(leaf.dtype), weak=bool(leaf.weak_type))


def _key_form(leaf: Any) -> Form:
    implementations: list[str] = []

    def data_of(key: Any) -> Any:
        implementations.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    data: Any = jax.eval_shape(data_of, leaf)
    return Form("key", data.shape, data.dtype.name, key=implementations[0])


def _stored_scalar(value: Any) -> Any:
    stored = np.asarray(value)
    if stored.dtype.name in {"object", "uint64"}:
        raise CanNotBeSavedError(f"is the int {value}, which does not fit into 64 bits")
    return stored


def stored(leaf: Any) -> Any:
    """The array that is written for a leaf: a key's data, a number as an array of rank 0, else the leaf itself."""
    if isinstance(leaf, jax.Array):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, prng_key) else leaf
    return _stored_scalar(leaf) if type(leaf) in {bool, int, float, complex} else np.asarray(leaf)


def sharding_of(leaf: Any) -> Any:
    """The sharding that a leaf was given; None where it lies where JAX put it, or is no `jax.Array`."""
    if isinstance(leaf, jax.Array):
        committed: Any = leaf.committed
        return leaf.sharding if committed else None
    return getattr(leaf, "sharding", None)


def data_sharding_of(leaf: Any, form: Form) -> Any:
    """The sharding for the array that is written for `leaf`: that of a key's data has further dimensions."""
    sharding = sharding_of(leaf)
    if sharding is None or form.kind != "key" or not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    whole = (None,) * (len(form.shape) - len(leaf.shape))
    rank = len(leaf.shape)
    parts = (*sharding.spec, *(None,) * (rank - len(sharding.spec)), *whole)
    return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*parts))


def leaf_of(value: Any, form: Form, like: Any, path: str) -> Any:
    """A leaf of this form from the array that was stored for it, placed where `like` is, with a strong dtype.

    Args:
        value: A numpy array that nobody else changes, or a `jax.Array`.
        form: The form of the result; its dtype may be another than that of `value`.
        like: The leaf, live or abstract, whose sharding the result has; None for the default device.
        path: For the message.

    Raises:
        CheckpointError: If the dtype needs 64 bits and JAX has them switched off.
    """
    if value.dtype != jnp.dtype(form.dtype):
        value = value.astype(jnp.dtype(form.dtype))
    if form.kind == "numpy":
        return np.asarray(value)
    if form.kind not in ARRAYS | {"key"}:
        return np.asarray(value).item()
    if form.kind == "numpy scalar":
        return np.asarray(value)[()]
    sharding = data_sharding_of(like, form)
    if not isinstance(value, jax.Array) or (sharding is not None and value.sharding != sharding):
        # A view, where numpy's memory lies as XLA wants it.
        value = jax.device_put(value, sharding)
    if value.dtype != jnp.dtype(form.dtype):
        raise CheckpointError(
            f"{path} is a {form.dtype}, and JAX would make it a {value.dtype}. Load it with "
            f"jax.config.update('jax_enable_x64', True)."
        )
    return value if form.key is None else jax.random.wrap_key_data(value, impl=form.key)


def empty(form: Form) -> Any:
    """Memory for the values of a leaf, which `jax.device_put` takes over without a copy: XLA asks for 64 bytes."""
    raw = np.empty(form.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + form.nbytes].view(jnp.dtype(form.dtype)).reshape(form.shape)
