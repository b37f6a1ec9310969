"""Files of other programs: any safetensors file by name, and tables from its names to ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tests.checkpoint.engines import assert_same
from treewright import Module
from treewright.checkpoint import from_names, read_names, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_arrays_come_by_name_with_their_bits(tmp_path: Path) -> None:
    arrays = {"a.b": np.arange(6.0).reshape(2, 3), "half": np.ones(2, jnp.bfloat16), "n": np.asarray(np.int32(3))}
    safetensors.numpy.save_file(arrays, tmp_path / "x")

    found = read_names(tmp_path / "x")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_good_file_of_fp8_is_read(dtype: str, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).astype(jnp.dtype(dtype)).reshape(2, 3)
    spec: Any = safetensors.TensorSpec
    one = spec(dtype=dtype, shape=[2, 3], data_ptr=values.ctypes.data, data_len=values.nbytes)
    other = np.ones(3, np.float32)
    two = spec(dtype="float32", shape=[3], data_ptr=other.ctypes.data, data_len=other.nbytes)
    safetensors.serialize_file({"w": one, "b": two}, tmp_path / "x")

    found = read_names(tmp_path / "x")
    assert_same({"w": found["w"], "b": found["b"]}, {"w": values, "b": other})
    assert_same(from_names(found, like={"w": jnp.zeros((2, 3), dtype), "b": other})["w"], jnp.asarray(values))


def test_a_file_of_ours_is_read_too(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": jnp.ones(2), "b": jnp.ones(3, "float8_e5m2")})

    found = read_names(tmp_path / "x")
    assert found["a"].tolist() == [1, 1]
    assert found["b"].shape == (3, 1)  # as bytes


def test_files_that_can_not_be_read_are_damage_or_an_error_of_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointDamagedError, match="it is no safetensors file, or its header is damaged"):
        read_names(tmp_path / "text")
    with pytest.raises(FileNotFoundError, match="none"):
        read_names(tmp_path / "none")
    with pytest.raises(CheckpointError, match="is a folder"):
        read_names(tmp_path)


class Dense(Module):
    kernel: jax.Array
    bias: jax.Array


class Net(Module):
    embedding: jax.Array
    layers: list[Dense]


WEIGHTS = {
    "emb.weight": np.ones((5, 3), np.float32),
    **{f"h.{i}.fc.weight": np.full((3, 2), i, np.float32) for i in range(2)},
    **{f"h.{i}.fc.bias": np.zeros(3, np.float32) for i in range(2)},
    "rotary": np.ones(2, np.float32),
}
TABLE: Any = {
    "emb.weight": "embedding",
    "h.*.fc.weight": ("layers.*.kernel", np.transpose),
    "h.*.fc.bias": "layers.*.bias",
    "rotary": None,
}


def net() -> Net:
    return Net(jnp.zeros((5, 3)), [Dense(jnp.zeros((2, 3)), jnp.ones(3)) for _ in range(2)])


def test_a_table_renames_transposes_and_drops() -> None:
    found = from_names(WEIGHTS, like=net(), table=TABLE)

    assert found.layers[1].kernel.tolist() == np.full((2, 3), 1).tolist()
    assert found.layers[0].bias.tolist() == [0, 0, 0]
    assert float(found.embedding.sum()) == 15


def test_a_row_with_fewer_stars_on_our_side_stacks() -> None:
    table = {**dict.fromkeys(TABLE), "h.*.fc.weight": ("kernel", np.transpose)}
    found = from_names(WEIGHTS, like={"kernel": jnp.zeros((2, 2, 3))}, table=table)

    assert found["kernel"][:, 0, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"nothing.*": "x"}, r"the row 'nothing\.\*' matches no name"),
        ({"h.0.fc.bias": "x"}, r"h\.0\.fc\.bias is in several rows: 'h\.\*\.fc\.bias', 'h\.0\.fc\.bias'"),
        ({"rotary": "layers.*.x"}, r"the row 'rotary' has fewer stars than 'layers\.\*\.x'"),
        ({"h.*.fc.bias": "embedding", "emb.weight": "embedding"}, r"embedding: these would be stacked, and their"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_all_problems(rows: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"The table does not fit the names:\n.*{message}"):
        from_names(WEIGHTS, like=net(), table={**TABLE, **rows})
    with pytest.raises(CheckpointError, match=r"emb\.weight is in no row"):
        from_names(WEIGHTS, like=net(), table={name: row for name, row in TABLE.items() if name != "emb.weight"})


def test_names_that_lead_nowhere_and_paths_are_refused() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"\['b'\]: not saved, the tree has"):
        from_names({"a": np.ones(2, np.float32)}, like={"a": jnp.zeros(2), "b": jnp.zeros(2)})
    with pytest.raises(TypeError, match=r"from_names takes arrays by name\. Of a file: from_names\(read_names\(path\)"):
        from_names("path", like=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointError, match="No leaf of the checkpoint has a place in the tree"):
        from_names({"x": 1.0}, like={"a": 1.0}, strict=False)
