"""Leaves as arrays: which leaves can be saved, the array that is written, and the digests of its blocks."""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import itertools
import math
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import is_key_dtype, is_ref, untyped_jax
from treewright._base.text import cut_text, text
from treewright._freeze import FrozenArray
from treewright._processes import process_index
from treewright.errors import CheckpointError, missing_extra

LeafKind = Literal["array", "numpy", "numpy scalar", "bool", "int", "float", "complex", "key"]

ARRAYS = frozenset({"array", "numpy", "numpy scalar"})
NUMBERS = frozenset({"bool", "int", "float", "complex"})
ON_HOST = NUMBERS | {"numpy", "numpy scalar"}
KINDS = ON_HOST | {"array", "key"}
# JAX's replacements for 64-bit dtypes while jax_enable_x64 is off.
NARROWED = MappingProxyType({"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"})
_DTYPE_NAMES = (
    *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
    *("uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
DTYPES: MappingProxyType[str, Any] = MappingProxyType({name: jnp.dtype(name) for name in _DTYPE_NAMES})
_NAMES: MappingProxyType[Any, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
_SCALARS: MappingProxyType[type[Any], LeafKind] = MappingProxyType(
    {bool: "bool", int: "int", float: "float", complex: "complex"}
)

NOT_A_LEAF = "not an array or a number"


class Form(NamedTuple):
    """The kind, shape and dtype of a leaf; for a typed key also its implementation.

    A key has the shape and dtype of its data, a ref the form of its array, with `ref=True`.
    """

    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    key: str | None = None
    ref: bool = False

    @property
    def nbytes(self) -> int:
        """The size of the values in bytes."""
        itemsize: int = DTYPES[self.dtype].itemsize
        return math.prod(self.shape) * itemsize

    def __str__(self) -> str:
        kind = self.kind if self.key is None else f"key {self.key}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}] ({kind}{', ref' if self.ref else ''})"


# From a leaf to the array that is written


class UnsupportedLeafError(ValueError):
    """A leaf can't be saved. The message completes a sentence that begins with its path."""


def form_of(leaf: Any, *, abstract: bool = False) -> Form:
    """The form of a leaf; if `abstract`, also of a `jax.ShapeDtypeStruct` or a deleted array.

    Raises:
        UnsupportedLeafError: If a leaf of this class can't be saved.
    """
    cls = type(leaf)
    if cls in _SCALARS:
        return Form(_SCALARS[cls], (), _scalar_array(leaf).dtype.name)
    if isinstance(leaf, Tracer):
        raise UnsupportedLeafError("is a tracer, which has values only while the compiled program runs")
    if isinstance(leaf, jax.Array) or is_ref(leaf) or (abstract and isinstance(leaf, jax.ShapeDtypeStruct)):
        return _jax_form(leaf, abstract=abstract)
    if cls is np.ndarray or cls is np.memmap or isinstance(leaf, FrozenArray):
        return Form("numpy", leaf.shape, _dtype_name(leaf.dtype))
    if isinstance(leaf, np.generic):
        return Form("numpy scalar", (), _dtype_name(leaf.dtype))
    shown = cut_text(text(leaf), 60)
    if isinstance(leaf, np.ma.MaskedArray):
        raise UnsupportedLeafError(f"is {cls.__name__} {shown}. Save its .data and .mask")
    raise UnsupportedLeafError(f"is {cls.__name__} {shown}, {NOT_A_LEAF}")


def _jax_form(leaf: Any, *, abstract: bool) -> Form:
    ref, dtype = is_ref(leaf), leaf.dtype
    if not abstract and is_deleted(leaf):
        raise UnsupportedLeafError("was donated or deleted, so its values are gone")
    if dtype in _NAMES or not is_key_dtype(dtype):
        return Form("array", leaf.shape, _dtype_name(dtype), None, ref)
    implementations: list[str] = []

    def data_of(key: Any) -> Any:
        implementations.append(str(jax.random.key_impl(key)))  # accepts a tracer, but not a ShapeDtypeStruct
        return jax.random.key_data(key)

    data: Any = untyped_jax.eval_shape(data_of, untyped_jax.ShapeDtypeStruct(leaf.shape, dtype))
    return Form("key", data.shape, data.dtype.name, implementations[0], ref)


def is_deleted(leaf: Any) -> bool:
    """Whether a leaf is a donated or deleted JAX array."""
    return isinstance(leaf, jax.Array) and not is_ref(leaf) and leaf.is_deleted()


def _dtype_name(dtype: Any) -> str:
    name = _NAMES.get(dtype)  # numpy's dtype.name takes 8 us
    if name is not None:
        return name
    if dtype.isnative:
        raise UnsupportedLeafError(f"has the dtype {dtype}, which can't be saved")
    raise UnsupportedLeafError(f"has the dtype {dtype.str}, whose byte order differs from this machine's")


def _scalar_array(value: Any) -> Any:
    array: Any = np.asarray(value)
    if array.dtype.name in {"object", "uint64"}:
        raise UnsupportedLeafError(f"is the int {cut_text(str(value), 40)}, which does not fit into 64 bits")
    return array


def array_to_save(leaf: Any) -> Any:
    """The array to write for a leaf: a key's data, a number as an array of rank 0, otherwise the leaf itself.

    A ref's content is copied, so that a training step can change the ref during the write.
    """
    leaf = leaf[...] if is_ref(leaf) else leaf
    if isinstance(leaf, jax.Array):
        return leaf if leaf.dtype in _NAMES else jax.random.key_data(leaf)
    return _scalar_array(leaf) if type(leaf) in _SCALARS else np.asarray(leaf)


# Casts


def keeps_kind(saved: str, wanted: str) -> bool:
    """Whether a cast keeps or raises the rank in the order bool, int, float, complex."""
    kinds = (np.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    ranks = [[jnp.issubdtype(DTYPES[name], kind) for kind in kinds].index(True) for name in (saved, wanted)]
    return ranks[0] <= ranks[1]


def cast(array: Any, dtype: str) -> Any:
    """A numpy array in another dtype. One of bytes goes by float32: not all dtypes of a byte convert to each other."""
    if array.dtype == DTYPES[dtype]:
        return array
    return (array if array.dtype.itemsize > 1 else array.astype(np.float32)).astype(DTYPES[dtype])


def check_fits(array: Any, dtype: str, path: str) -> None:
    """Check the values of an array before a cast. Floats may be rounded, ints may not.

    Raises:
        CheckpointError: If a value does not fit; only in the process that has the value.
    """
    wanted, is_int = DTYPES[dtype], not jnp.issubdtype(array.dtype, jnp.inexact)
    is_exact = is_int and jnp.issubdtype(wanted, jnp.inexact)
    if wanted.itemsize > 1 and np.can_cast(array.dtype, wanted) and not (is_exact and array.dtype.itemsize == 8):
        # NumPy knows no small floats, and lets int64 be rounded to float64.
        return
    blocks: list[Any] = [shard.data for shard in array.addressable_shards] if isinstance(array, jax.Array) else [array]
    for block in blocks:
        values: Any = np.asarray(block)
        for part in (values.real, values.imag) if np.iscomplexobj(values) else (values,):
            with np.errstate(all="ignore"):
                lost = _changed_ints(part, wanted) if is_int else _changed_floats(part, dtype)
            if lost.any():
                raise CheckpointError(
                    f"{path} was saved as {array.dtype} and contains {part[lost][0]}, which does not fit into "
                    f"{dtype}{' exactly' if is_exact else ''}. Convert it in migrate=."
                )


def _changed_ints(ints: Any, dtype: Any) -> Any:
    """Which ints a cast changes."""
    wide = ints.astype(np.uint64 if ints.dtype == np.uint64 else np.int64)
    cast = wide.astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return (cast.astype(wide.dtype) != wide) | ((cast < 0) != (wide < 0))
    floats = cast.real.astype(np.float64)
    info = np.iinfo(wide.dtype)
    fits = (floats >= float(info.min)) & (floats < float(info.max))  # as a float, the largest int is one too large
    return ~fits | (np.where(fits, floats, 0).astype(wide.dtype) != wide)


def _changed_floats(floats: Any, dtype: str) -> Any:
    """Which floats a cast does more to than to round them."""
    info = untyped_jax.numpy.finfo(DTYPES[dtype])
    new = cast(floats, dtype)
    beyond = np.isfinite(floats) & ((floats < float(info.min)) | (floats > float(info.max)))
    return beyond | (np.isinf(floats) != np.isinf(new)) | (np.isnan(floats) != np.isnan(new))


def jax_dtype(dtype: str) -> str:
    """The dtype of JAX's arrays of values of this dtype: 64 bits need jax_enable_x64."""
    name: str = untyped_jax.dtypes.canonicalize_dtype(DTYPES[dtype]).name
    return name


def check_width(dtype: str, path: str) -> None:
    """Raise if JAX would narrow arrays of this dtype.

    Raises:
        CheckpointError: If it needs jax_enable_x64.
    """
    if jax_dtype(dtype) != dtype:
        raise CheckpointError(
            f"{path} is {dtype}, but JAX would convert it to {jax_dtype(dtype)}. Load it with "
            f"jax.config.update('jax_enable_x64', True)."
        )


# Digests


def digest_of(data: Any) -> str:
    """The xxh3_128 digest of bytes, or of an array's values in C order, as 32 hexadecimal digits."""
    return digest_of_pieces([data])


def digest_of_pieces(pieces: Iterable[Any]) -> str:
    """The xxh3_128 digest of consecutive bytes or values.

    One core digests 10 to 30 GB/s; zlib's CRC-32 2.6 and SHA-256 1.4. The digest detects accidents (flipped bits, lost
    writes, blocks of a different file); it is not a signature.

    Raises:
        ImportError: If xxhash is not installed.
    """
    try:
        import xxhash
    except ImportError as error:
        raise missing_extra("The digest of a checkpoint", "xxhash", "checkpoint") from error
    digest = xxhash.xxh3_128()
    for piece in pieces:
        data: Any = piece if isinstance(piece, bytes) else np.asarray(piece, order="C")
        digest.update(data)
    return str(digest.hexdigest())


class Layout(NamedTuple):
    """The grid of equal blocks in which an array was saved, and the process that wrote each block.

    Blocks are numbered in C order. `writers` has pairs: a process, and how many consecutive blocks it wrote.
    """

    grid: tuple[int, ...]
    writers: tuple[tuple[int, int], ...]


def grid_of(array: jax.Array) -> tuple[int, ...]:
    """The number of blocks along each dimension of an array."""
    part = array.sharding.shard_shape(array.shape)
    return tuple([size // length for size, length in zip(array.shape, part, strict=True)])


def blocks_of(sharding: Any, grid: tuple[int, ...]) -> tuple[Layout, dict[Any, tuple[int, bool]]]:
    """The layout of arrays with this sharding and grid; by device, the number of its block and whether it writes it.

    Only devices whose block this process digests are listed. If several devices have the same block, the process of the
    first one writes it. Takes 10 us per device, so callers cache it.
    """
    first: dict[int, Any] = {}
    mine: dict[int, Any] = {}
    for device, index in sharding.devices_indices_map(grid).items():  # each block counts as one element
        number = int(np.ravel_multi_index([part.start or 0 for part in index], grid))
        first.setdefault(number, device)
        if device.process_index == process_index():
            mine.setdefault(number, device)
    writers = itertools.groupby(first[number].process_index for number in range(len(first)))
    layout = Layout(grid, tuple((process, len([*run])) for process, run in writers))
    return layout, {device: (number, device is first[number]) for number, device in mine.items()}
