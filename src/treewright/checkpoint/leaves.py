"""Leaves: which kinds can be saved, the array that is written for each, and the way back."""

import dataclasses
import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._jax import is_key_dtype, untyped_jax
from treewright._values.classes import class_of
from treewright._values.freeze import FrozenArray
from treewright._values.text import text
from treewright.errors import CheckpointError

Kind = Literal["array", "numpy", "numpy scalar", "bool", "int", "float", "complex", "key"]


ARRAYS = frozenset({"array", "numpy", "numpy scalar"})
ON_DEVICE = frozenset({"array", "key"})
KINDS = ARRAYS | {"bool", "int", "float", "complex", "key"}
_DTYPE_NAMES = (
    *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
    *("uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
DTYPES: MappingProxyType[str, Any] = MappingProxyType({name: jnp.dtype(name) for name in _DTYPE_NAMES})
NAMES: MappingProxyType[Any, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
_SCALARS: MappingProxyType[type[Any], Kind] = MappingProxyType(
    {bool: "bool", int: "int", float: "float", complex: "complex"}
)
_SMALL = 1 << 16  # bytes that are copied sooner than aligned
_ADVISED = 1 << 22  # bytes from which on numpy asks Linux for huge pages
_HUGE_PAGE = 1 << 21
_PLAIN_ARRAYS = (np.ndarray, np.memmap, FrozenArray)


class Form(NamedTuple):
    """What a leaf is, without its values. Of a typed key: the shape and dtype of its data, and its implementation."""

    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    weak: bool = False
    key: str | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        itemsize: int = DTYPES[self.dtype].itemsize
        return math.prod(self.shape) * itemsize

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
    if cls in _SCALARS:
        return Form(_SCALARS[cls], (), _stored_scalar(leaf).dtype.name)
    if isinstance(leaf, Tracer):
        raise CanNotBeSavedError("is traced, and has no values outside of jit")
    if isinstance(leaf, jax.Array) or (abstract and isinstance(leaf, jax.ShapeDtypeStruct)):
        return _jax_form(leaf)
    if issubclass(cls, np.generic):
        return Form("numpy scalar", (), _dtype_name(leaf.dtype))
    if cls in _PLAIN_ARRAYS:
        return Form("numpy", leaf.shape, _dtype_name(leaf.dtype))
    raise CanNotBeSavedError(f"is {_shown(leaf)}, no array or number. Make it a static, or wrap it in Static")


def _shown(leaf: object) -> str:
    shown = text(leaf)
    return f"{type(leaf).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _dtype_name(dtype: Any) -> str:
    name = NAMES.get(dtype)  # dtype.name takes numpy 8 us
    if name is not None:
        return name
    if dtype.isnative:
        raise CanNotBeSavedError(f"has the dtype {dtype}, which no checkpoint holds")
    raise CanNotBeSavedError(f"has the dtype {dtype.str}, in another byte order than this machine's")


def _jax_form(leaf: Any) -> Form:
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise CanNotBeSavedError("was donated or deleted, and has no values any more")
    dtype = leaf.dtype
    if dtype not in NAMES and is_key_dtype(dtype):
        return _key_form(leaf)
    return Form("array", leaf.shape, _dtype_name(dtype), weak=bool(leaf.weak_type))


def _key_form(leaf: Any) -> Form:
    implementations: list[str] = []

    def data_of(key: Any) -> Any:
        implementations.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    data: Any = untyped_jax.eval_shape(data_of, leaf)
    return Form("key", data.shape, data.dtype.name, key=implementations[0])


def _stored_scalar(value: Any) -> Any:
    stored: Any = np.asarray(value)
    if stored.dtype.name in {"object", "uint64"}:
        raise CanNotBeSavedError(f"is the int {value}, which does not fit into 64 bits")
    return stored


def stored(leaf: Any) -> Any:
    """The array that is written for a leaf: a key's data, a number as an array of rank 0, else the leaf itself."""
    if isinstance(leaf, jax.Array):
        plain = leaf.dtype in NAMES or not is_key_dtype(leaf.dtype)
        return leaf if plain else jax.random.key_data(leaf)
    return _stored_scalar(leaf) if type(leaf) in _SCALARS else np.asarray(leaf)


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
    return jax.sharding.NamedSharding(sharding.mesh, untyped_jax.sharding.PartitionSpec(*parts))


def host_leaf_of(value: Any, form: Form) -> Any:
    """A leaf of this form, which is no `jax.Array`, from the array that was stored for it."""
    array: Any = np.asarray(value, DTYPES[form.dtype])
    if form.kind == "numpy":
        return array
    return array[()] if form.kind == "numpy scalar" else array.item()


@dataclasses.dataclass(frozen=True, slots=True)
class Placing:
    """What a leaf is to become: its form, a leaf whose sharding it has or None, and its path for messages."""

    form: Form
    like: Any
    path: str


def leaves_of(values: Sequence[Any], placings: Sequence[Placing]) -> list[Any]:
    """Leaves from the arrays that were stored for them, with strong dtypes, placed where others lie.

    Args:
        values: numpy arrays that nobody else changes, or `jax.Array`s.
        placings: For each of them, what it is to become. Its dtype may be another than the value's.

    Raises:
        CheckpointError: If a dtype needs 64 bits and JAX has them switched off.
    """
    results: list[Any] = list(values)
    to_place: list[tuple[int, Any, Any]] = []
    for index, (value, placing) in enumerate(zip(values, placings, strict=True)):
        form = placing.form
        if form.kind not in ON_DEVICE:
            results[index] = host_leaf_of(value, form)
            continue
        sharding = data_sharding_of(placing.like, form)
        cast = value if value.dtype == DTYPES[form.dtype] else value.astype(DTYPES[form.dtype])
        if isinstance(cast, jax.Array) and sharding in {None, cast.sharding}:
            results[index] = _finished(cast, placing)
        else:
            to_place.append((index, cast, sharding))
    # In one call, which costs half of what single ones do; a view, where numpy's memory lies as XLA wants it.
    shardings = [sharding for *_, sharding in to_place]
    placed = untyped_jax.device_put([value for _, value, _ in to_place], shardings if any(shardings) else None)
    for (index, *_), value in zip(to_place, placed, strict=True):
        results[index] = _finished(value, placings[index])
    return results


def _finished(leaf: Any, placing: Placing) -> Any:
    form = placing.form
    if leaf.dtype != DTYPES[form.dtype]:
        raise CheckpointError(
            f"{placing.path} is a {form.dtype}, and JAX would make it a {leaf.dtype}. Load it with "
            f"jax.config.update('jax_enable_x64', True)."
        )
    return leaf if form.key is None else untyped_jax.random.wrap_key_data(leaf, impl=form.key)


def empty(form: Form) -> Any:
    """Memory for the values of a leaf, which `jax.device_put` takes over without a copy: XLA asks for 64 bytes.

    Large arrays begin where a huge page may: fresh memory costs a read more than the bytes do, in huge pages half.
    """
    size = form.nbytes
    if size < _SMALL:
        return np.empty(form.shape, DTYPES[form.dtype])
    alignment = 64 if size < _ADVISED else _HUGE_PAGE
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(DTYPES[form.dtype]).reshape(form.shape)
