"""A leaf in a checkpoint: its record, the kinds that can be saved, the array that is written, and the way back."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core.freeze import ComputedArray, FrozenArray
from treewright._core.functions import class_of, public
from treewright._core.jax_private import is_key_dtype, typeof, untyped_jax
from treewright._core.jax_refs import content_of, is_ref, kind_of_ref, new_ref
from treewright._core.text import cut_text, text
from treewright.errors import CheckpointError

LeafKind = Literal["array", "numpy", "numpy scalar", "bool", "int", "float", "complex", "key"]

Steps = tuple[str, ...]  # the way from the root to a node or leaf


ARRAYS = frozenset({"array", "numpy", "numpy scalar"})
ON_DEVICE = frozenset({"array", "key"})
KINDS = ARRAYS | {"bool", "int", "float", "complex", "key"}
ON_HOST = KINDS - ON_DEVICE
SHARED = frozenset({"array", "numpy", "key"})  # of which one object may stand in several places
# What JAX makes of 64 bits where they are switched off.
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
# The dtype as which a number of Python's is stored.
_OF_NUMBERS: MappingProxyType[str, str] = MappingProxyType(
    {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
)
_ADVISED = 1 << 22  # bytes from which on numpy asks Linux for huge pages
_HUGE_PAGE = 1 << 21
_PLAIN_ARRAYS = (np.ndarray, np.memmap, FrozenArray, ComputedArray)


class Form(NamedTuple):
    """What a leaf is, without its values. Of a typed key: the shape and dtype of its data, and its implementation.

    A ref has the form of what it holds, with `ref=True`.
    """

    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    weak: bool = False
    key: str | None = None
    ref: bool = False

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        itemsize: int = DTYPES[self.dtype].itemsize
        return math.prod(self.shape) * itemsize

    def like(self, other: "Form") -> bool:
        """Whether both have the same values to hold: a ref those of an array."""
        return self == other._replace(ref=self.ref)

    def __str__(self) -> str:
        kind = self.kind if self.key is None else f"key {self.key}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}] ({kind}{', ref' if self.ref else ''})"


def can_be(kind: LeafKind, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether there are leaves of this kind with this shape and dtype."""
    if kind == "key":
        return bool(shape) and dtype == "uint32"
    return kind in {"array", "numpy"} or (not shape and dtype == _OF_NUMBERS.get(kind, dtype))


def name_of(steps: Steps) -> str:
    """The flat name of a leaf: `params.layers.0.kernel`."""
    return ".".join(steps) or "value"


_NONE_YET: Mapping[str, str] = MappingProxyType({})


@public("treewright.checkpoint")
@dataclasses.dataclass(slots=True)  # not frozen, which takes three times as long to make
class Leaf:
    """A leaf: its place, its flat name (`params.layers.0.kernel`), its form, and the digests of its blocks.

    Where one array stands in several places, it is kept for the first, and the others are `tied` to that place.

    A leaf that was read from a checkpoint has no `value`; that of a tree has one, and no digests yet.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> (leaf,) = read_manifest(path).leaves
        >>> leaf.name, leaf.path, str(leaf.form), list(leaf.digests)
        ('w', "['w']", 'float32[3] (array)', ['all'])
    """

    steps: Steps
    path: str
    form: Form
    digests: Mapping[str, str] = dataclasses.field(default_factory=lambda: _NONE_YET)
    value: Any = dataclasses.field(default=None, repr=False, compare=False)
    tied: Steps | None = None
    name: str = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.name = name_of(self.steps)

    @property
    def array(self) -> Steps:
        """The place for which its array is kept."""
        return self.steps if self.tied is None else self.tied


def untied(leaves: Iterable[Leaf]) -> list[Leaf]:
    """The leaves that have an array of their own."""
    return [leaf for leaf in leaves if leaf.tied is None]


def of_one_name(leaves: Iterable[Leaf]) -> Iterator[tuple[Leaf, Leaf]]:
    """Pairs of leaves that have one name: the first with each later one."""
    first: dict[str, Leaf] = {}
    for leaf in leaves:
        if first.setdefault(leaf.name, leaf) is not leaf:
            yield first[leaf.name], leaf


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
    if cls in _PLAIN_ARRAYS:
        return Form("numpy", leaf.shape, _dtype_name(leaf.dtype))
    if isinstance(leaf, Tracer):
        raise CanNotBeSavedError("is traced, and has no values outside of jit")
    if is_ref(leaf):
        held = untyped_jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(typeof(leaf).weak_type))
        return _jax_form(held)._replace(ref=True)
    if isinstance(leaf, jax.Array) or (abstract and isinstance(leaf, jax.ShapeDtypeStruct)):
        return _jax_form(leaf)
    if issubclass(cls, np.generic):
        return Form("numpy scalar", (), _dtype_name(leaf.dtype))
    raise CanNotBeSavedError(f"is {_shown(leaf)}, not an array or a number. Make it a static, or wrap it in Static")


def _shown(leaf: object) -> str:
    return f"{type(leaf).__name__} {cut_text(text(leaf), 60)}"


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
        implementations.append(str(jax.random.key_impl(key)))  # which takes no ShapeDtypeStruct, but a tracer
        return jax.random.key_data(key)

    data: Any = untyped_jax.eval_shape(data_of, leaf)
    return Form("key", data.shape, data.dtype.name, key=implementations[0])


def _stored_scalar(value: Any) -> Any:
    stored: Any = np.asarray(value)
    if stored.dtype.name in {"object", "uint64"}:
        raise CanNotBeSavedError(f"is the int {value}, which does not fit into 64 bits")
    return stored


def stored(leaf: Any) -> Any:
    """The array that is written for a leaf: a key's data, a number as an array of rank 0, else the leaf itself.

    What a ref holds is copied: a step that comes while it is written does not change it.
    """
    leaf = content_of(leaf)
    if isinstance(leaf, jax.Array):
        plain = leaf.dtype in NAMES or not is_key_dtype(leaf.dtype)
        return leaf if plain else jax.random.key_data(leaf)
    return _stored_scalar(leaf) if type(leaf) in _SCALARS else np.asarray(leaf)


def bytes_of(array: Any) -> Any:
    """The bytes of a contiguous numpy array of any dtype, as a view."""
    return array.reshape(-1).view(np.uint8)


def contiguous(array: Any) -> Any:
    """The values of an array as a numpy array in C order; a view wherever it can be."""
    return np.asarray(array, order="C")


def sharding_of(leaf: Leaf) -> Any:
    """The sharding of the array that is written for the leaf of a tree; None if nobody chose its place.

    That of a key's data has further dimensions.
    """
    value, form = leaf.value, leaf.form
    if isinstance(value, jax.Array) and not cast("Any", value).committed:
        return None
    sharding = getattr(value, "sharding", None)
    if form.kind != "key" or not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    split = (*sharding.spec, *(None,) * (len(value.shape) - len(sharding.spec)))
    whole = (None,) * (len(form.shape) - len(value.shape))
    return jax.sharding.NamedSharding(sharding.mesh, untyped_jax.sharding.PartitionSpec(*split, *whole))


def restored_leaves(arrays: Sequence[Any], targets: Sequence[Leaf]) -> list[Any]:
    """What a tree holds for the arrays that were stored, with strong dtypes.

    Args:
        arrays: numpy arrays that nobody else changes, or `jax.Array`s.
        targets: What each is to become: of this form, which may have another dtype, and placed where its value lies.

    Raises:
        CheckpointError: If a dtype needs 64 bits and JAX has them switched off.
    """
    results: list[Any] = list(arrays)
    to_place: list[tuple[int, Any, Any]] = []
    for index, (array, target) in enumerate(zip(arrays, targets, strict=True)):
        dtype = DTYPES[target.form.dtype]
        if target.form.kind not in ON_DEVICE:
            results[index] = _on_host(np.asarray(array, dtype), target.form.kind)
            continue
        sharding = sharding_of(target)
        converted = array if array.dtype == dtype else array.astype(dtype)
        if isinstance(converted, jax.Array) and sharding in {None, converted.sharding}:
            results[index] = _finished(converted, target)
        else:
            to_place.append((index, converted, sharding))
    # In one call, which costs half of what single ones do; a view, where numpy's memory lies as XLA wants it.
    shardings = [sharding for *_, sharding in to_place]
    placed = untyped_jax.device_put([array for _, array, _ in to_place], shardings if any(shardings) else None)
    for (index, *_), array in zip(to_place, placed, strict=True):
        results[index] = _finished(array, targets[index])
    return results


def _on_host(array: Any, kind: LeafKind) -> Any:
    if kind == "numpy":
        return array
    return array[()] if kind == "numpy scalar" else array.item()


def _finished(array: Any, target: Leaf) -> Any:
    """A leaf of the tree, of an array that lies where it should."""
    if target.form.ref:
        plain = dataclasses.replace(target, form=target.form._replace(ref=False))
        return new_ref(_finished(array, plain), *([kind_of_ref(target.value)] if is_ref(target.value) else []))
    form = target.form
    if array.dtype != DTYPES[form.dtype]:
        raise CheckpointError(
            f"{target.path} is a {form.dtype}, and JAX would make it a {array.dtype}. Load it with "
            f"jax.config.update('jax_enable_x64', True)."
        )
    if form.key is None:
        return array
    try:
        return untyped_jax.random.wrap_key_data(array, impl=form.key)
    except (ValueError, TypeError) as error:  # of no such implementation, or with data of another width
        raise CheckpointError(f"{target.path} is a key that this JAX does not have: {error}") from error


def empty(form: Form) -> Any:
    """Memory for the values of a large leaf, which `jax.device_put` takes over without a copy: XLA asks for 64 bytes.

    Very large arrays begin where a huge page may: fresh memory costs a read more than the bytes do, in huge pages half.
    """
    size = form.nbytes
    alignment = 64 if size < _ADVISED else _HUGE_PAGE
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(DTYPES[form.dtype]).reshape(form.shape)
