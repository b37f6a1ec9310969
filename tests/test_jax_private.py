"""Behaviour if JAX lacks something private or recent: `jax_private.py` documents each loss, and none is silent."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import treewright
from treewright import _loop
from treewright import _processes as _jax_processes
from treewright._trees import level
from treewright.checkpoint import fit

# Untyped and recent


@pytest.mark.slow
def test_import_fails_without_a_public_jax_name() -> None:
    program = """
import jax, sys
def lacks(module, name):
    value = getattr(module, name)
    delattr(module, name)
    try:
        import treewright._base.jax_private
    except AttributeError as error:
        print(error)
    setattr(module, name, value)
    sys.modules.pop("treewright._base.jax_private", None)
for name in ("GetAttrKey", "SequenceKey", "DictKey", "FlattenedIndexKey"):
    lacks(jax.tree_util, name)
lacks(jax, "typeof")
lacks(jax.dtypes, "prng_key")
"""

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert [line.rpartition(" ")[2] for line in run.stdout.splitlines()] == [
        *("'GetAttrKey'", "'SequenceKey'", "'DictKey'", "'FlattenedIndexKey'"),
        *("'typeof'", "'prng_key'"),
    ]


# Treedefs and options


def test_foreign_nodes_are_rejected_without_treedef_data() -> None:
    with pytest.raises(AttributeError, match="node_data"):
        level.node_data(SimpleNamespace())


def test_a_loop_under_tracing_is_accepted_without_trace_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loop, "_traces", None)
    run = treewright.loop(lambda state, x: (state + x, x), 0.0)

    assert jax.jit(lambda x: run(x))(1.0) == 1.0
    with pytest.raises(jax.errors.UnexpectedTracerError):
        run(1.0)


def test_the_coordination_service_exists_only_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import distributed

    assert _jax_processes.coordination_client() is None
    monkeypatch.setattr(distributed.global_state, "client", "client")
    assert _jax_processes.coordination_client() == "client"
    monkeypatch.delattr(distributed, "global_state")
    assert _jax_processes.coordination_client() is None


@pytest.mark.devices(2)
def test_the_mesh_of_an_old_context_manager_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import mesh as meshes

    old: Any = jax.make_mesh((2,), ("data",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with old:
            assert _jax_processes.mesh_of_old_context() == old
            with monkeypatch.context() as without:
                without.delattr(meshes, "thread_resources")
                assert _jax_processes.mesh_of_old_context() is None


# Placement


def test_weak_types_are_restored_if_jax_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit.weakly_typed(jax.numpy.ones(2)).weak_type
    monkeypatch.setattr(fit, "untyped_jax", SimpleNamespace(_src=SimpleNamespace(lax=SimpleNamespace(lax=None))))
    assert not fit.weakly_typed(jax.numpy.ones(2)).weak_type


class _WithoutInternals:
    """JAX for our module, while JAX itself still has its own."""

    _src = SimpleNamespace(interpreters=SimpleNamespace(pxla=None))
    device_put = staticmethod(jax.device_put)


@pytest.mark.devices(2)
@pytest.mark.parametrize("exists", [True, False])
def test_arrays_are_placed_as_device_put_places_them(*, exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exists:
        monkeypatch.setattr(fit, "untyped_jax", _WithoutInternals())
    untyped: Any = jax
    device, mesh = jax.devices()[-1], jax.make_mesh((2,), ("x",))
    shardings: list[Any] = [
        *(None, jax.sharding.SingleDeviceSharding(device)),
        *(jax.sharding.NamedSharding(mesh, untyped.P("x")), jax.sharding.NamedSharding(mesh, untyped.P())),
    ]
    for dtype in ("float32", "bfloat16", "int4", "bool"):
        arrays = [np.full((2, 3), number, jax.numpy.dtype(dtype)) for number in range(3)]
        for sharding in shardings:
            placed = fit.device_put([*arrays, arrays[0]], [sharding] * 4)
            expected: list[Any] = [
                jax.numpy.asarray(array) if sharding is None else array for array in [*arrays, arrays[0]]
            ]
            for result, array in zip(placed, expected, strict=True):
                assert result.sharding == (array.sharding if sharding is None else sharding)
                assert result.committed == (sharding is not None)
                assert not result.weak_type
                assert result.dtype == array.dtype
                assert np.asarray(result).tobytes() == np.asarray(array).tobytes()
    with jax.default_device(device):
        assert {array.device for array in fit.device_put([np.ones(2)] * 2, [None] * 2)} == {device}
