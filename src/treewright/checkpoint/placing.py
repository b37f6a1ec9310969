"""Place the arrays that were read: the sharding of each, and the leaves that they become."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._base.jax_private import is_ref, private, typeof, untyped_jax
from treewright._freeze import FrozenArray, freeze
from treewright.checkpoint.arrays import DTYPES, ON_HOST, Form, cast, check_fits, check_width
from treewright.checkpoint.manifest import LeafRecord
from treewright.errors import CheckpointError

_PLACE_BATCH_BYTES = 1 << 24  # placed in one call; host copies are freed after it


class LeafRequest(NamedTuple):
    """A leaf to read, and its form in the new tree.

    Attributes:
        leaf: The record of the saved leaf.
        path: The path in the tree, for messages.
        form: The form in the tree, which may have a different dtype.
        value: The leaf of `like` that it replaces; None without `like`.
        sharding: The sharding of the array to read; None on the host and for uncommitted arrays.
    """

    leaf: LeafRecord
    path: str
    form: Form
    value: Any = None
    sharding: Any = None


# Reads arrays, verifies them and yields them in the order of the requests.
Read = Callable[[Sequence[LeafRequest]], Iterator[Any]]


def as_saved(leaf: LeafRecord, *, on_host: bool = False) -> LeafRequest:
    """A request for a leaf as it was saved, or as a numpy array."""
    form = leaf.form
    if on_host:
        form = form._replace(kind="numpy" if form.kind == "array" else form.kind, ref=False)
    return LeafRequest(leaf, leaf.path, form)


def sharding_of(value: Any, form: Form, path: str) -> Any:
    """The sharding of a leaf in the new tree, and of the array to read; None on the host and for uncommitted arrays.

    A key's data has it too: its further dimensions are not split.

    Raises:
        CheckpointError: If it has an abstract mesh, and no current mesh has its axes.
    """
    if form.kind in ON_HOST or (isinstance(value, jax.Array) and not value.committed):
        return None
    sharding: Any = getattr(value, "sharding", None)
    if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):  # from jax.eval_shape
        mesh = untyped_jax.sharding.get_mesh()
        if mesh.shape != sharding.mesh.shape:
            raise CheckpointError(
                f"{path} has an abstract mesh without devices, {dict(sharding.mesh.shape)}. Load inside "
                f"`with jax.set_mesh(mesh):`, with a mesh of these axes."
            )
        sharding = jax.sharding.NamedSharding(mesh, sharding.spec)
    return sharding


def values_of(requests: Sequence[LeafRequest], arrays: Iterable[Any]) -> dict[str, Any]:
    """The leaves of a tree by name. In `jit` they are constants, not results of the program."""
    values: dict[str, Any] = {}
    batch: dict[str, tuple[Any, LeafRequest]] = {}  # placed in one call
    size = 0
    with jax.ensure_compile_time_eval():
        for array, each in zip(arrays, requests, strict=True):
            if each.leaf.form.dtype != each.form.dtype:
                check_fits(array, each.form.dtype, each.path)
            if each.form.kind in ON_HOST:
                values[each.leaf.name] = _on_host(cast(np.asarray(array), each.form.dtype), each)
                continue
            batch[each.leaf.name] = array, each
            size += array.nbytes
            if size >= _PLACE_BATCH_BYTES:
                values.update(_device_arrays(batch))
                batch, size = {}, 0
        values.update(_device_arrays(batch))
    return values


def _on_host(array: Any, request: LeafRequest) -> Any:
    if request.form.kind == "numpy":
        return freeze(array) if isinstance(request.value, FrozenArray) else array
    return array[()] if request.form.kind == "numpy scalar" else array.item()


def _device_arrays(batch: Mapping[str, tuple[Any, LeafRequest]]) -> dict[str, Any]:
    """Place arrays on devices and convert them to leaves. numpy arrays may be aliased: no other code has them.

    They are placed in one call: one by one, 2,000 small arrays take a third longer. Raises as `_converted`.
    """
    requests = [each for _, each in batch.values()]
    arrays = [
        cast(array, each.form.dtype) if isinstance(array, np.ndarray) else array for array, each in batch.values()
    ]
    placed = device_put(arrays, [each.sharding for each in requests])
    return dict(zip(batch, map(_leaf_from, placed, requests), strict=True))


def device_put(arrays: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """`jax.device_put`, five times as fast for numpy arrays that go to one device.

    Only the first array of each shape, dtype and sharding goes through `jax.device_put`; the others reuse its type and
    sharding: 5 us each instead of 25.
    """
    groups: dict[Any, list[int]] = {}
    for index, (array, sharding) in enumerate(zip(arrays, shardings, strict=True)):
        is_simple = type(array) is np.ndarray and (sharding is None or sharding.num_devices == 1)
        groups.setdefault((array.shape, array.dtype, sharding) if is_simple else index, []).append(index)
    firsts = [indices[0] for indices in groups.values()]
    placed = untyped_jax.device_put([arrays[index] for index in firsts], [shardings[index] for index in firsts])
    put: Any = private("interpreters.pxla.batched_device_put")
    result: dict[int, Any] = {}
    for first, indices in zip(placed, groups.values(), strict=True):
        result[indices[0]] = first
        for index in indices[1:]:
            result[index] = _placed_like(first, arrays[index], shardings[index], put)
    return [result[index] for index in range(len(arrays))]


def _placed_like(first: Any, array: Any, sharding: Any, put: Any) -> Any:
    """An array on one device, with the type and sharding of one of the same shape and dtype."""
    values, devices = [array.astype(first.dtype, copy=False)], list(first.sharding.device_set)
    with contextlib.suppress(TypeError):  # no such function, or different arguments in this JAX
        return put(first.aval, first.sharding, values, devices, first.committed)
    return untyped_jax.device_put(array, sharding)


def weakly_typed(array: Any) -> Any:
    """A weakly typed copy of an array, like `jnp.asarray(1.0)`."""
    convert: Any = private("lax.lax._convert_element_type")
    return array if convert is None else convert(array, weak_type=True)


def _leaf_from(array: Any, request: LeafRequest) -> Any:
    """The leaf that a placed array becomes, with exactly the sharding of `like`.

    JAX's conversions may return an equivalent one: a longer spec, which a program does not accept as the sharding of
    its result, or one on a device instead of in host memory.
    """
    # Converting an empty array on several devices gives each of them blocks of its whole shape.
    leaf = _converted(array if array.size else untyped_jax.numpy.zeros(array.shape, array.dtype), request)
    if request.form.key and not (array.size or request.sharding is None or request.sharding.is_fully_addressable):
        # `device_put` accepts no key for devices of other processes.
        leaf = untyped_jax.make_array_from_callback(leaf.shape, request.sharding, leaf.__getitem__)
    elif request.sharding is not None and (leaf.sharding != request.sharding or not array.size):
        leaf = untyped_jax.device_put(leaf, request.sharding)
    value = request.value
    if not request.form.ref:
        return leaf
    kind = getattr(typeof(value), "kind", None) if is_ref(value) else None
    return untyped_jax.new_ref(leaf, **({} if kind is None else {"kind": kind}))


def _converted(array: Any, request: LeafRequest) -> Any:
    """An array as a leaf: cast, a key of its data, or weakly typed.

    Raises:
        CheckpointError: If a dtype needs jax_enable_x64, or a key a different version of JAX.
    """
    path, form = request.path, request.form
    if array.dtype != DTYPES[form.dtype]:
        check_width(form.dtype, path)
        array = array.astype(DTYPES[form.dtype])
    if form.key is not None:
        try:
            return untyped_jax.random.wrap_key_data(array, impl=form.key)
        except (ValueError, TypeError) as error:  # an unknown implementation, or data of a different width
            raise CheckpointError(f"{path} is a key of an implementation that this JAX lacks: {error}") from error
    return weakly_typed(array) if getattr(request.value, "weak_type", False) and not form.ref else array
