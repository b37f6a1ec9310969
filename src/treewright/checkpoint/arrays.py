"""Leaves as arrays: which leaves can be saved, the array that is written, its digests, and the way back."""

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
from treewright._core.jax_private import is_key_dtype, typeof, untyped_jax
from treewright._core.text import cut_text, text
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

LeafKind = Literal["array", "numpy", "numpy scalar", "bool", "int", "float", "complex", "key"]

ARRAYS = frozenset({"array", "numpy", "numpy scalar"})
ON_DEVICE = frozenset({"array", "key"})
KINDS = ARRAYS | {"bool", "int", "float", "complex", "key"}
ON_HOST = KINDS - ON_DEVICE
SHARED = frozenset({"array", "numpy", "key"})  # one object of these kinds may occur in several places
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
NAMES: MappingProxyType[Any, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
_SCALARS: MappingProxyType[type[Any], LeafKind] = MappingProxyType(
    {bool: "bool", int: "int", float: "float", complex: "complex"}
)

WHOLE = "all"  # the place of a block that is the whole array


class Form(NamedTuple):
    """The kind, shape and dtype of a leaf. Of a typed key: those of its data, and its implementation.

    A ref has the form of the array that it holds, with `ref=True`.
    """

    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    weak: bool = False
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


def check_form(form: Form) -> None:
    """Return if a form that was read from a file is one that a leaf can have.

    Raises:
        ValueError: If it is not.
    """
    if form.kind not in KINDS or form.dtype not in DTYPES:
        raise ValueError(f"there is no {cut_text(form.kind, 40)} of {cut_text(form.dtype, 40)}")
    is_scalar = form.kind not in {"array", "numpy", "key"}
    if (form.shape and is_scalar) or not all(type(size) is int and size >= 0 for size in form.shape):
        raise ValueError(f"there is no {form.kind} of the shape {cut_text(repr(form.shape), 60)}")


# From a leaf to the array that is written


class UnsupportedLeafError(ValueError):
    """A leaf that no checkpoint can hold; the message completes the sentence that begins with its path."""


def is_ref(leaf: Any) -> bool:
    """Whether a leaf is a ref, an array that changes in place."""
    return type(leaf) is untyped_jax.Ref


def form_of(leaf: Any, *, abstract: bool = False) -> Form:
    """The form of a leaf.

    Args:
        leaf: The leaf.
        abstract: Whether a `jax.ShapeDtypeStruct` is one.

    Raises:
        UnsupportedLeafError: If it is of no kind that can be saved.
    """
    cls = type(leaf)
    if cls in _SCALARS:
        return Form(_SCALARS[cls], (), _scalar_array(leaf).dtype.name)
    if cls is np.ndarray or cls is np.memmap or isinstance(leaf, FrozenArray):
        return Form("numpy", leaf.shape, _dtype_name(leaf.dtype))
    if isinstance(leaf, Tracer):
        raise UnsupportedLeafError("is traced, and has no values outside of jit")
    if is_ref(leaf):
        content = untyped_jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(typeof(leaf).weak_type))
        return _jax_form(content)._replace(ref=True)
    if isinstance(leaf, jax.Array) or (abstract and isinstance(leaf, jax.ShapeDtypeStruct)):
        return _jax_form(leaf)
    if issubclass(cls, np.generic):
        return Form("numpy scalar", (), _dtype_name(leaf.dtype))
    raise UnsupportedLeafError(
        f"is {cls.__name__} {cut_text(text(leaf), 60)}, not an array or a number. Make it a static, or wrap it in "
        f"Static"
    )


def _dtype_name(dtype: Any) -> str:
    name = NAMES.get(dtype)  # dtype.name takes numpy 8 us
    if name is not None:
        return name
    if dtype.isnative:
        raise UnsupportedLeafError(f"has the dtype {dtype}, which no checkpoint holds")
    raise UnsupportedLeafError(f"has the dtype {dtype.str}, in another byte order than this machine's")


def _jax_form(leaf: Any) -> Form:
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise UnsupportedLeafError("was donated or deleted, and has no values any more")
    dtype = leaf.dtype
    if dtype not in NAMES and is_key_dtype(dtype):
        return _key_form(leaf)
    return Form("array", leaf.shape, _dtype_name(dtype), weak=bool(leaf.weak_type))


def _key_form(leaf: Any) -> Form:
    implementations: list[str] = []

    def data_of(key: Any) -> Any:
        implementations.append(str(jax.random.key_impl(key)))  # which takes no ShapeDtypeStruct, but a tracer
        return jax.random.key_data(key)

    data: Any = untyped_jax.eval_shape(data_of, leaf)
    return Form("key", data.shape, data.dtype.name, key=implementations[0])


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
        return leaf if leaf.dtype in NAMES else jax.random.key_data(leaf)
    return _scalar_array(leaf) if type(leaf) in _SCALARS else np.asarray(leaf)


def contiguous(array: Any) -> Any:
    """The values of an array as a numpy array in C order; a view where that is possible."""
    return np.asarray(array, order="C")


# Digests


def digest_of(data: Any) -> str:
    """The xxh3_128 digest of bytes or of a contiguous array, as 32 hexadecimal digits.

    It takes 10 to 30 GB/s on one core where zlib's CRC-32 takes 2.6 and SHA-256 1.4. It finds accidents: flipped bits,
    lost writes, blocks of another file. It is not a signature.

    Raises:
        ImportError: If xxhash is not installed.
    """
    try:
        import xxhash
    except ImportError as error:
        raise missing_extra("The digest of a checkpoint", "xxhash", "checkpoint") from error
    if isinstance(data, np.ndarray):
        # The buffer of a small array costs more than a copy of it.
        data = data.reshape(-1).view(np.uint8) if data.nbytes > 1 << 12 else data.tobytes()
    digest: str = xxhash.xxh3_128_hexdigest(data)
    return digest


def local_blocks(array: Any) -> dict[str, Any]:
    """The distinct blocks of an array that this process holds, by place: `{"0:4,0:8": ...}`."""
    if not isinstance(array, jax.Array):
        return {WHOLE: array}
    return {place_of(shard.index, array.shape): shard.data for shard in array.addressable_shards}


def place_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """The place of a block as text."""
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    if all(bound == (0, size) for bound, size in zip(bounds, shape, strict=True)):
        return WHOLE
    return ",".join(f"{start}:{stop}" for start, stop in bounds)


def bounds_of(place: str, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Where a block begins and ends in each dimension of an array of this shape.

    Raises:
        ValueError: If there is no such block.
    """
    if place == WHOLE:
        return tuple((0, size) for size in shape)
    bounds = [tuple(map(int, part.split(":"))) for part in place.split(",")]
    if len(bounds) != len(shape) or any(len(bound) != 2 for bound in bounds):
        raise ValueError(f"{cut_text(place, 60)!r} is not a block of an array of rank {len(shape)}")
    if any(not 0 <= start < stop <= size for (start, stop), size in zip(bounds, shape, strict=True)):
        raise ValueError(f"{cut_text(place, 60)!r} is not a block of an array of shape {shape}")
    return tuple((start, stop) for start, stop in bounds)


def verify(array: Any, digests: Mapping[str, str], path: str) -> None:
    """Compare the saved blocks that lie whole inside a block which this process holds.

    A block that was saved and is now cut is not compared: nobody gathers it for that.

    Raises:
        CheckpointDamagedError: If a block is not what was saved.
    """
    for place, block in _comparable(array, digests) if array.size else ():
        now = digest_of(contiguous(block))
        if now != digests[place]:
            where = path if place == WHOLE else f"{path}[{place}]"
            raise CheckpointDamagedError(
                f"{where} is damaged: its bytes have the digest {now}, and {digests[place]} was saved. "
                f"Load an earlier checkpoint."
            )


def _comparable(array: Any, digests: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The saved blocks that can be compared here, each with its values."""
    blocks = local_blocks(array)
    for place, block in blocks.items():
        if place in digests:
            yield place, block
    saved = {place: bounds_of(place, array.shape) for place in digests if place not in blocks}
    for place, block in blocks.items():
        if place not in digests:
            outer = bounds_of(place, array.shape)
            for inner_place, inner in saved.items():
                pairs = list(zip(outer, inner, strict=True))
                if all(begin <= start and stop <= end for (begin, end), (start, stop) in pairs):
                    part = tuple(slice(start - begin, stop - begin) for (begin, _), (start, stop) in pairs)
                    yield inner_place, np.asarray(block)[part]


# From the array that was read to the leaf of a tree


def sharding_of(value: Any, form: Form) -> Any:
    """The sharding of the array that is written for a leaf; None if nobody chose its place.

    That of a key's data has further dimensions.
    """
    if isinstance(value, jax.Array) and not value.committed:
        return None
    sharding = getattr(value, "sharding", None)
    if form.kind != "key" or not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    split = (*sharding.spec, *(None,) * (len(value.shape) - len(sharding.spec)))
    whole = (None,) * (len(form.shape) - len(value.shape))
    return jax.sharding.NamedSharding(sharding.mesh, untyped_jax.P(*split, *whole))


def leaf_from(array: Any, form: Form, value: Any, path: str) -> Any:
    """The leaf of a tree for an array that was read.

    Args:
        array: A numpy array that nobody else changes, or a `jax.Array`.
        form: The form of the leaf, which may have another dtype than the array.
        value: The leaf of the tree that is loaded into, for its place; None without one.
        path: Where it is, for messages.

    Raises:
        CheckpointError: If a dtype needs 64 bits and JAX has them switched off, or a key another JAX.
    """
    dtype = DTYPES[form.dtype]
    if form.kind not in ON_DEVICE:
        on_host: Any = np.asarray(array, dtype)
        if form.kind == "numpy":
            return on_host
        return on_host[()] if form.kind == "numpy scalar" else on_host.item()
    converted = array if array.dtype == dtype else array.astype(dtype)
    sharding = sharding_of(value, form)
    if not isinstance(converted, jax.Array) or sharding not in {None, converted.sharding}:
        converted = untyped_jax.device_put(converted, sharding)
    if converted.dtype != dtype:
        raise CheckpointError(
            f"{path} is a {form.dtype}, and JAX would make it a {converted.dtype}. Load it with "
            f"jax.config.update('jax_enable_x64', True)."
        )
    if form.key is not None:
        try:
            converted = untyped_jax.random.wrap_key_data(converted, impl=form.key)
        except (ValueError, TypeError) as error:  # of no such implementation, or with data of another width
            raise CheckpointError(f"{path} is a key that this JAX does not have: {error}") from error
    return _new_ref(converted, value) if form.ref else converted


def _new_ref(array: Any, like: Any) -> Any:
    kind = getattr(typeof(like), "kind", None) if is_ref(like) else None
    return untyped_jax.new_ref(array, **({} if kind is None else {"kind": kind}))
