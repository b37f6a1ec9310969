"""Leaves by flat name: to other programs and back, and any safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import train_state
from treewright import Static
from treewright.checkpoint import from_names, read_names, save, to_names
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


# Any safetensors file


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_to_names_returns_exact_arrays_by_name(dtype: str, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).astype(jnp.dtype(dtype)).reshape(2, 3)
    arrays = {"w": values, "a.b": np.asarray(np.int32(3))}
    spec: Any = safetensors.TensorSpec
    specs = {
        name: spec(dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
        for name, array in arrays.items()
    }
    safetensors.serialize_file(specs, tmp_path / "x")

    assert_same(read_names(tmp_path / "x"), arrays)
    assert_same(from_names(read_names(tmp_path / "x"), like={"w": values, "a": {"b": arrays["a.b"]}})["w"], values)


def test_read_names_names_a_dtype_that_numpy_lacks(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}'
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"abc")

    with pytest.raises(
        CheckpointError, match=r"'a' in .*x has the dtype F6_E2M3, which NumPy does not have\.$"
    ) as caught:
        read_names(tmp_path / "x")
    assert not isinstance(caught.value, CheckpointDamagedError)


# To names and back


def test_leaves_round_trip_by_name_through_other_programs() -> None:
    state = train_state()
    names = to_names(state)

    assert {"step", "params.count", "params.layers.0.kernel", "opt_state.0.mu.layers.1.bias"} <= set(names)
    assert names["step"] is state.step
    assert_same(from_names({name: np.asarray(leaf) for name, leaf in names.items()}, like=train_state()), state)
    assert to_names(3.0) == {"value": 3.0}
    values = {"a": np.ones(2)}
    copy = from_names(values, like={"a": np.zeros(2)})
    values["a"][:] = 5
    assert copy["a"].tolist() == [1, 1]


def test_leaves_by_name_are_compared_with_the_tree() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"\['b'\]: not saved, the tree has"):
        from_names({"a": 1}, like={"a": 0, "b": 0})
    with pytest.warns(
        CheckpointWarning, match=r"its own values:\n  c: saved as .*\n  \['b'\]: not saved, the tree has"
    ) as seen:
        assert from_names({"a": 1, "c": 2}, like={"a": 0, "b": 7}, strict=False) == {"a": 1, "b": 7}
    assert seen[0].filename == __file__
    assert_same(from_names({"a": 1}, like={"a": jnp.float32(0)}, allow_cast=True), {"a": jnp.float32(1)})


def test_from_names_rejects_invalid_values() -> None:
    with pytest.raises(TypeError, match=r"from_names needs a dict of arrays by name\. To load a file: from_names"):
        from_names("path", like=1)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"The value named 'a' is str 'x', not an array or a number\.$"):
        from_names({"a": "x"}, like={"a": 1.0})
    with pytest.raises(
        CheckpointError, match=r"is list .*\. Flatten nested values: from_names\(to_names\(values\), like"
    ):
        from_names({"a": [1.0, 2.0]}, like={"a": [0.0, 0.0]})
    assert from_names(to_names({"a": [1.0, 2.0]}), like={"a": [0.0, 0.0]}) == {"a": [1.0, 2.0]}
    assert from_names({0: 1.0}, like=[0.0]) == [1.0]  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match="No leaf of the checkpoint matches the tree"):
        from_names({"x": 1.0}, like={"a": 1.0}, strict=False)


def test_all_colliding_names_are_listed_in_one_error(tmp_path: Path) -> None:
    tree = {"a": {"b": 1}, "a.b": 2, "text": "x", "c": Static("fine")}

    for use in (to_names, lambda tree: save(tmp_path / "x", tree)):
        with pytest.raises(CheckpointError) as caught:
            use(tree)
        assert str(caught.value) == (
            "The tree can't be saved, and nothing was written:\n"
            "  ['a.b'] and ['a']['b'] would both be named 'a.b'\n"
            "  ['text'] is str 'x', not an array or a number. Make it a static, or wrap it in Static"
        )
    assert not list(tmp_path.iterdir())
