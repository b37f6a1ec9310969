"""Copies between devices and the host, with a CPU that JAX's memory kinds make a remote device."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding

from tests.checkpoint.models import spec
from treewright.checkpoint import CheckpointManager, host

if TYPE_CHECKING:
    from pathlib import Path

untyped: Any = jax


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How many arrays were copied, by way, as if the CPU were a GPU."""
    counts: collections.Counter[str] = collections.Counter()
    asarray: Any = np.asarray
    put: Any = jax.device_put
    array_class: Any = type(jnp.ones(1))
    start = array_class.copy_to_host_async

    def memory(array: Any) -> str:
        return str(array.sharding.memory_kind) if isinstance(array, jax.Array) else "numpy"

    def count_asarray(value: Any, *args: Any, **options: Any) -> Any:
        if isinstance(value, jax.Array) and memory(value) == "device":
            counts["device -> numpy"] += 1
        return asarray(value, *args, **options)

    def count_put(values: Any, *args: Any, **options: Any) -> Any:
        results = put(values, *args, **options)
        for value, result in zip(jax.tree.leaves(values), jax.tree.leaves(results), strict=True):
            if value is not result:
                counts[f"{memory(value)} -> {memory(result)}"] += 1
        return results

    def count_start(array: Any) -> None:
        counts["device -> numpy"] += memory(array) == "device"
        start(array)

    monkeypatch.setattr(host, "_PLATFORMS", frozenset({"cpu"}))
    monkeypatch.setattr(np, "asarray", count_asarray)
    monkeypatch.setattr(jax, "device_put", count_put)
    monkeypatch.setattr(array_class, "copy_to_host_async", count_start)
    return counts


def spread() -> dict[str, Any]:
    """Arrays on one device, on four, replicated in part and in whole; and leaves of other kinds."""
    mesh = untyped.make_mesh((2, 2), ("a", "b"))
    x = jnp.arange(4096, dtype=jnp.float32).reshape(64, 64)
    specs = {"split": ("a", "b"), "rows": ("a",), "columns": (None, "b"), "replicated": ()}
    tree = {name: untyped.device_put(x, NamedSharding(mesh, spec(*axes))) for name, axes in specs.items()}
    tree |= {"other": untyped.device_put(x, jax.devices()[1]), "scalar": jnp.float32(3), "empty": jnp.ones((0, 2))}
    return tree | {"int4": jnp.ones(8, "int4"), "key": jax.random.key(0), "host": np.ones(3), "number": 2.5}


def test_each_block_is_copied_to_the_host_once(tmp_path: Path, copies: collections.Counter[str]) -> None:
    tree = spread()
    copies.clear()
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree)
        assert copies == {"device -> pinned_host": 4 + 2 + 2 + 1 + 1 + 3}  # each block of each array
        copies.clear()
        manager.wait()
        assert not copies


def test_restored_arrays_are_equal_and_have_their_shardings(tmp_path: Path, copies: collections.Counter[str]) -> None:
    tree = spread()
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree)
        manager.wait()
        copies.clear()
        found = manager.restore(like=tree)
        assert not {way for way in copies if way.startswith("device")}
    for name, value in tree.items():
        if isinstance(value, jax.Array):
            data, expected = (jax.random.key_data(x) if name == "key" else x for x in (found[name], value))
            np.testing.assert_array_equal(data, expected)
            assert (found[name].sharding, jax.typeof(found[name])) == (value.sharding, jax.typeof(value))
            assert found[name].committed == value.committed


def test_a_state_may_be_donated_while_its_copies_are_written(tmp_path: Path, copies: collections.Counter[str]) -> None:
    del copies
    change = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = {f"{index}": jnp.full(1 << 16, index, jnp.float32) for index in range(20)}
    with CheckpointManager(tmp_path) as manager:
        for step in range(3):
            manager.save(step, state)
            state = change(state)
        for step in range(3):
            found = manager.restore(step, like=state)
            assert [int(found[f"{index}"][-1]) for index in range(20)] == [index + step for index in range(20)]


@pytest.mark.parametrize("memory", ["pinned_host", "unpinned_host"])
def test_an_array_in_host_memory_is_not_copied(memory: str, tmp_path: Path, copies: collections.Counter[str]) -> None:
    x = untyped.device_put(jnp.arange(8.0), SingleDeviceSharding(jax.devices()[0], memory_kind=memory))
    copies.clear()
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        assert not {way for way in copies if way.startswith("device")}
        found = manager.restore(like={"x": x})["x"]
    assert (found.sharding, jax.typeof(found)) == (x.sharding, jax.typeof(x))
    np.testing.assert_array_equal(np.asarray(found), np.arange(8.0))


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 64), (2, 4, 8), (2, 1, 32), (0, 8)])
@pytest.mark.parametrize("limit", [1, 40, 1000])
def test_pieces_of_an_array_are_consecutive_and_small(
    shape: tuple[int, ...], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_PIECE_BYTES", limit)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    half = shape[-1] // 2
    rest = tuple((0, size) for size in shape[:-1])
    blocks = [((*rest, (0, half)), values[..., :half]), ((*rest, (half, 2 * half)), values[..., half:])]
    pieces = list(host.pieces_of((values.dtype, shape), blocks))
    np.testing.assert_array_equal(np.concatenate([piece.ravel() for piece in pieces]), values.ravel())
    assert all(piece.nbytes <= max(limit, values.itemsize) for piece in pieces)
