"""Placement: a restored leaf has exactly the sharding of `like`, however it was placed when it was saved."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding

from tests.checkpoint.models import spec
from treewright import loop
from treewright.checkpoint import CheckpointManager, from_names, load, save, to_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.devices(4)]

untyped: Any = jax
SPECS = (spec(), spec(None), spec("a"), spec("a", None), spec(None, "a"), spec("b"), spec(("a", "b")), spec("a", "b"))
SHAPES = ((), (4,), (4, 8), (0, 4))
DTYPES = ("bool", "int4", "int32", "uint8", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn")
KEYS = ("threefry2x32", "rbg", "unsafe_rbg")
HOST = ("pinned_host",) if jax.__version_info__ >= (0, 10) else ()  # before, it can't be made weakly typed on a CPU


def shardings(axis_types: tuple[AxisType, ...]) -> Iterator[Any]:
    """Meshes of 1, 2 and 4 devices, single devices, memory kinds, and None: not committed."""
    for shape, axis_type in itertools.product(((1, 1), (2, 1), (2, 2)), axis_types):
        devices = jax.devices()[: shape[0] * shape[1]]
        mesh = jax.make_mesh(shape, ("a", "b"), axis_types=(axis_type,) * 2, devices=devices)
        yield from (NamedSharding(mesh, axes) for axes in SPECS)
        yield from (NamedSharding(mesh, spec("a"), memory_kind=kind) for kind in HOST)
    yield from (SingleDeviceSharding(jax.devices()[number]) for number in (0, 2))
    yield from (SingleDeviceSharding(jax.devices()[0], memory_kind=kind) for kind in HOST)
    yield None


def values(shapes: Any, dtypes: tuple[str, ...], keys: tuple[str, ...]) -> Iterator[Any]:
    for shape in shapes:
        count = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        yield from (jnp.asarray(count % 2, dtype) for dtype in dtypes)
        yield jnp.full(shape, 0.5)  # weakly typed
        yield from (jax.random.split(jax.random.key(7, impl=impl), shape) for impl in keys)


def placed(value: Any, sharding: Any) -> Any:
    return value if sharding is None else jax.device_put(value, sharding)


def trees(values: Iterator[Any], shardings: tuple[Any, ...], distance: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two trees with each value at each sharding that fits it. Leaves of one name are at different ones."""
    saved: dict[str, Any] = {}
    like: dict[str, Any] = {}
    for index, value in enumerate(values):
        everywhere: list[Any] = []
        for sharding in shardings:
            with contextlib.suppress(ValueError, AssertionError):  # JAX's: it does not divide the shape
                everywhere.append(placed(value, sharding))
        saved |= {f"{index}/{at}": leaf for at, leaf in enumerate(everywhere)}
        like |= {f"{index}/{(at - distance) % len(everywhere)}": leaf for at, leaf in enumerate(everywhere)}
    return saved, like


def abstract(leaf: Any) -> Any:
    sharding = leaf.sharding if leaf.committed else None
    weak = {"weak_type": True} if getattr(leaf, "weak_type", False) else {}
    return untyped.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, **weak)


def assert_placed_like(found: dict[str, Any], like: dict[str, Any], saved: dict[str, Any]) -> None:
    """Equal shardings print the same: `P()` and `P(None)` place an array equally, but programs tell them apart."""

    def places(tree: dict[str, Any]) -> dict[str, Any]:
        return {name: (x.sharding, repr(x.sharding), x.committed, untyped.typeof(x)) for name, x in tree.items()}

    assert places(found) == places(like)
    for name, leaf in found.items():
        one, other = (jax.random.key_data(x) if x.dtype.name.startswith("key") else x for x in (leaf, saved[name]))
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), name


def memory_of(*arrays: Any) -> set[str]:
    return {array.sharding.memory_kind for array in arrays}


FEW = (((4, 8), (0, 4)), ("float32", "int4"), ("threefry2x32",), (AxisType.Explicit,), (11,))
ALL = (SHAPES, DTYPES, KEYS, (AxisType.Auto, AxisType.Explicit), (0, 1, 7, 20))


@pytest.mark.parametrize(
    "cases", [pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.exhaustive)]
)
def test_each_leaf_is_restored_with_the_sharding_of_the_template(cases: Any, engine: Any) -> None:
    shapes, dtypes, keys, axis_types, distances = cases
    for distance in distances:
        saved, like = trees(values(shapes, dtypes, keys), tuple(shardings(axis_types)), distance)
        engine.save_again(saved)

        for template in (like, {name: abstract(leaf) for name, leaf in like.items()}):
            assert_placed_like(engine.load(like=template), like, saved)
        cast = {name: x.astype("float16") if x.dtype == jnp.float32 and x.size else x for name, x in saved.items()}
        # JAX on CPUs can't move an array on several devices to another memory; without a place, arrays stay.
        names = [
            name for name in saved if like[name].committed and "pinned_host" not in memory_of(cast[name], like[name])
        ]
        cast, some = ({name: tree[name] for name in names} for tree in (cast, like))
        assert_placed_like(from_names(to_names(cast), like=some, allow_cast=True), some, saved)
        assert_placed_like(engine.load(like=like, migrate=dict), like, saved)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_run_with_a_key_resumes_on_any_number_of_devices(devices: int, tmp_path: Path) -> None:
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    state = jax.device_put({"key": jax.random.key(0), "w": jnp.ones(4)}, NamedSharding(mesh, spec()))
    save(tmp_path / "file", state)
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, state)
        restored = [load(tmp_path / "file", like=state), manager.restore(like=state)]

    for tree in restored:
        run = loop(lambda state, x: ({**state, "key": jax.random.fold_in(state["key"], x)}, x), tree)
        assert run(3) == 3
        assert run.state["key"] == jax.random.fold_in(jax.random.key(0), 3)
