"""Steps of sharded states: on any number of devices, verified block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.models import spec
from treewright.checkpoint import CheckpointManager
from treewright.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")


def split_over(devices: Any, *axes: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), ("a",)), spec(*(axes or ("a",))))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_sharded_step_comes_back_on_any_number_of_devices(count: int, tmp_path: Path) -> None:
    x = jnp.arange(64.0).reshape(8, 8)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jax.device_put(x, split_over(jax.devices()))})
        assert set(manager.manifest().leaves[0].digests) == {f"{i}:{i + 2},0:8" for i in range(0, 8, 2)}
        sharding = split_over(jax.devices()[:count])
        found = manager.restore(like={"x": jax.device_put(x * 0, sharding)})["x"]
    assert found.sharding == sharding
    np.testing.assert_array_equal(found, x)


def test_a_flipped_bit_is_found_in_every_saved_block_that_lies_whole_in_a_block_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = jax.device_put(jnp.zeros((8, 4)), split_over(jax.devices()))
    whole, half = np.zeros((8, 4), np.float32), jax.device_put(x, split_over(jax.devices()[:2]))
    cut = jax.device_put(x, split_over(jax.devices(), None, "a"))
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        manager.wait()
        plain = ocp.PyTreeCheckpointHandler.restore

        def flipped(self: Any, *args: Any, **options: Any) -> Any:
            found = plain(self, *args, **options)
            place = np.arange(32).reshape(8, 4) == 21
            return {"x": found["x"] + jax.device_put(place.astype(np.float32), found["x"].sharding)}

        def flipped_on_host(self: Any, *args: Any, **options: Any) -> Any:
            return {"x": plain(self, *args, **options)["x"] + (np.arange(32).reshape(8, 4) == 21)}

        for like, patched in ((x, flipped), (half, flipped), (whole, flipped_on_host)):
            monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", patched)
            with pytest.raises(CheckpointDamagedError, match=r"\['x'\]\[4:6,0:4\] is damaged: its bytes have"):
                manager.restore(like={"x": like})
        monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", flipped)
        assert float(manager.restore(like={"x": cut})["x"].sum()) == 1  # cut in all its blocks: the docs say so
