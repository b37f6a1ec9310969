"""Leaves as arrays: which leaves can be saved, the array that is written, and the digests of its blocks."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core import FrozenArray
from treewright._core.jax_private import is_key_dtype, is_ref, untyped_jax
from treewright._core.text import cut_text, text
from treewright.errors import CheckpointDamagedError, missing_extra

LeafKind = Literal["array", "numpy", "numpy scalar", "bool", "int", "float", "complex", "key"]

ARRAYS = frozenset({"array", "numpy", "numpy scalar"})
ON_HOST = frozenset({"numpy", "numpy scalar", "bool", "int", "float", "complex"})
KINDS = ON_HOST | {"array", "key"}
# The dtypes that JAX gives to 64 bits while they are switched off.
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

MAKE_STATIC = "Make it a static, or wrap it in Static"
WHOLE = "all"  # the place of a block that is the whole array


class Form(NamedTuple):
    """The kind, shape and dtype of a leaf. Of a typed key: those of its data, and its implementation.

    A ref has the form of the array that it holds, with `ref=True`.
    """

    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    key: str | None = None
    ref: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that the values take."""
        itemsize: int = DTYPES[self.dtype].itemsize
        return math.prod(self.shape) * itemsize

    def __str__(self) -> str:
        kind = self.kind if self.key is None else f"key {self.key}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}] ({kind}{', ref' if self.ref else ''})"


# From a leaf to the array that is written


class UnsupportedLeafError(ValueError):
    """A leaf that no checkpoint can hold: the end of a sentence that begins with its path."""


def form_of(leaf: Any, *, abstract: bool = False) -> Form:
    """The form of a leaf, or of a `jax.ShapeDtypeStruct` if `abstract`.

    Raises:
        UnsupportedLeafError: If it is of no kind that can be saved.
    """
    cls = type(leaf)
    if cls in _SCALARS:
        return Form(_SCALARS[cls], (), _scalar_array(leaf).dtype.name)
    if isinstance(leaf, Tracer):
        raise UnsupportedLeafError("is traced, and has no values outside of jit")
    if isinstance(leaf, jax.Array) or is_ref(leaf) or (abstract and isinstance(leaf, jax.ShapeDtypeStruct)):
        return _jax_form(leaf)
    if cls is np.ndarray or cls is np.memmap or isinstance(leaf, FrozenArray):
        return Form("numpy", leaf.shape, _dtype_name(leaf.dtype))
    if isinstance(leaf, np.generic):
        return Form("numpy scalar", (), _dtype_name(leaf.dtype))
    shown = cut_text(text(leaf), 60)
    raise UnsupportedLeafError(f"is {cls.__name__} {shown}, not an array or a number. {MAKE_STATIC}")


def _jax_form(leaf: Any) -> Form:
    ref, dtype = is_ref(leaf), leaf.dtype
    if not ref and isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise UnsupportedLeafError("was donated or deleted, and has no values any more")
    if dtype in _NAMES or not is_key_dtype(dtype):
        return Form("array", leaf.shape, _dtype_name(dtype), None, ref)
    implementations: list[str] = []

    def data_of(key: Any) -> Any:
        implementations.append(str(jax.random.key_impl(key)))  # which takes no ShapeDtypeStruct, but a tracer
        return jax.random.key_data(key)

    data: Any = untyped_jax.eval_shape(data_of, untyped_jax.ShapeDtypeStruct(leaf.shape, dtype))
    return Form("key", data.shape, data.dtype.name, implementations[0], ref)


def _dtype_name(dtype: Any) -> str:
    name = _NAMES.get(dtype)  # dtype.name takes numpy 8 us
    if name is not None:
        return name
    if dtype.isnative:
        raise UnsupportedLeafError(f"has the dtype {dtype}, which no checkpoint holds")
    raise UnsupportedLeafError(f"has the dtype {dtype.str}, in another byte order than this machine's")


def _scalar_array(value: Any) -> Any:
    array: Any = np.asarray(value)
    if array.dtype.name in {"object", "uint64"}:
        raise UnsupportedLeafError(f"is the int {cut_text(str(value), 40)}, which does not fit into 64 bits")
    return array


def stored(leaf: Any) -> Any:
    """The array that is written for a leaf: a key's data, a number as an array of rank 0, else the leaf itself.

    The content of a ref is copied, so that a step that runs while it is written does not change it.
    """
    leaf = leaf[...] if is_ref(leaf) else leaf
    if isinstance(leaf, jax.Array):
        return leaf if leaf.dtype in _NAMES else jax.random.key_data(leaf)
    return _scalar_array(leaf) if type(leaf) in _SCALARS else np.asarray(leaf)


# Digests


def digest_of(data: Any) -> str:
    """The xxh3_128 digest of bytes, or of the values of an array in C order, as 32 hexadecimal digits.

    It takes 10 to 30 GB/s on one core where zlib's CRC-32 takes 2.6 and SHA-256 1.4. It finds accidents: flipped bits,
    lost writes, blocks of another file. It is not a signature.

    Raises:
        ImportError: If xxhash is not installed.
    """
    try:
        import xxhash
    except ImportError as error:
        raise missing_extra("The digest of a checkpoint", "xxhash", "checkpoint") from error
    array: Any = data if isinstance(data, bytes) else np.asarray(data, order="C")
    digest: str = xxhash.xxh3_128_hexdigest(array)
    return digest


def local_blocks(array: Any) -> dict[str, Any]:
    """The distinct blocks of an array that this process holds, by place: `{"0:4,0:8": ...}`."""
    if not isinstance(array, jax.Array):
        return {WHOLE: array}
    blocks: dict[str, Any] = {}
    for shard in array.addressable_shards:
        bounds = [part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)]
        place = ",".join(f"{start}:{stop}" for start, stop in bounds)
        blocks[WHOLE if shard.data.shape == array.shape else place] = shard.data
    return blocks


def _bounds_of(place: str, shape: tuple[int, ...]) -> list[list[int]]:
    """Where a block begins and ends in each dimension of an array of this shape."""
    if place == WHOLE:
        return [[0, size] for size in shape]
    try:
        bounds = [list(map(int, part.split(":"))) for part in place.split(",")]
        if all(0 <= start < stop <= size for (start, stop), size in zip(bounds, shape, strict=True)):
            return bounds
    except ValueError:
        pass
    raise CheckpointDamagedError(f"{cut_text(place, 60)!r} is not a block of an array of shape {shape}.")


def verify(array: Any, digests: Mapping[str, str], path: str) -> None:
    """Compare the saved blocks that lie whole inside a block which this process holds.

    A block that was saved and is now cut is not compared: nobody gathers it for that.

    Raises:
        CheckpointDamagedError: If a block is not what was saved.
    """
    for place, block in local_blocks(array).items() if array.size else ():
        blocks = [(place, block)] if place in digests else _blocks_inside(block, place, array.shape, digests)
        for saved, values in blocks:
            now = digest_of(values)
            if now != digests[saved]:
                where = path if saved == WHOLE else f"{path}[{saved}]"
                raise CheckpointDamagedError(
                    f"{where} is damaged: its bytes have the digest {now}, and {digests[saved]} was saved. "
                    f"Load an earlier checkpoint."
                )


def _blocks_inside(
    block: Any, place: str, shape: tuple[int, ...], places: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Those of some blocks that lie whole inside one, each with its values."""
    outer = _bounds_of(place, shape)
    for inside in places:
        pairs = list(zip(outer, _bounds_of(inside, shape), strict=True))
        if all(begin <= start and stop <= end for (begin, end), (start, stop) in pairs):
            part = tuple(slice(start - begin, stop - begin) for (begin, _), (start, stop) in pairs)
            yield inside, np.asarray(block)[part]
