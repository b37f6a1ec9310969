"""What other programs wrote: read by name, put under names of ours by a table, refused where it runs code."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.checkpoint.engines import assert_same
from treewright.checkpoint import from_names, read_names, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES: dict[str, Any] = {
    "a.kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.bias": np.ones(2, jnp.bfloat16),
    "count": np.asarray(7, np.int32),
}
NESTED = {"a": {"kernel": VALUES["a.kernel"], "bias": VALUES["a.bias"]}, "count": VALUES["count"]}


def by_safetensors(path: Path) -> Path:
    save_file(VALUES, path)
    return path


def in_several_files(path: Path) -> Path:
    path.mkdir()
    first, second = {"a.kernel": VALUES["a.kernel"]}, {name: VALUES[name] for name in ("a.bias", "count")}
    save_file(first, path / "model-1.safetensors")
    save_file(second, path / "model-2.safetensors")
    weights = {**dict.fromkeys(first, "model-1.safetensors"), **dict.fromkeys(second, "model-2.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return path


def by_its_index(path: Path) -> Path:
    return in_several_files(path) / "model.safetensors.index.json"


def by_flax(path: Path) -> Path:
    flax: Any = pytest.importorskip("flax.serialization")
    path.write_bytes(flax.to_bytes(jax.tree.map(jnp.asarray, NESTED)))
    return path


def by_orbax(path: Path) -> Path:
    orbax: Any = pytest.importorskip("orbax.checkpoint")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, jax.tree.map(jnp.asarray, NESTED))
    return path


def by_a_manager_of_orbax(path: Path) -> Path:
    orbax: Any = pytest.importorskip("orbax.checkpoint")
    with orbax.CheckpointManager(path) as manager:
        manager.save(3, args=orbax.args.StandardSave(jax.tree.map(jnp.asarray, NESTED)))
    return path / "3"


def by_numpy(path: Path) -> Path:
    with path.open("wb") as file:
        savez: Any = np.savez
        savez(file, **{**VALUES, "a.bias": np.ones(2, np.float16)})
    return path


WRITERS = (by_safetensors, in_several_files, by_its_index, by_flax, by_orbax, by_a_manager_of_orbax, by_numpy)


@pytest.mark.parametrize("write", WRITERS)
def test_arrays_come_by_name_with_their_bits(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "written")

    found = read_names(path)

    expected = VALUES if write is not by_numpy else {**VALUES, "a.bias": np.ones(2, np.float16)}
    assert {name: type(value) for name, value in found.items()} == dict.fromkeys(VALUES, np.ndarray)
    assert_same(found, expected)
    assert_same(
        from_names(found, like=jax.tree.map(jnp.zeros_like, NESTED), allow_cast=write is by_numpy),
        jax.tree.map(jnp.asarray, NESTED),
    )


def test_leaves_of_equinox_come_by_the_names_of_a_template_or_by_place(tmp_path: Path) -> None:
    eqx: Any = pytest.importorskip("equinox")
    linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    eqx.tree_serialise_leaves(tmp_path / "x.eqx", linear)

    named = read_names(tmp_path / "x.eqx", template=eqx.nn.Linear(3, 2, key=jax.random.key(1)))
    assert_same(named, {"weight": np.asarray(linear.weight), "bias": np.asarray(linear.bias)})
    assert_same(read_names(tmp_path / "x.eqx"), {"0": np.asarray(linear.weight), "1": np.asarray(linear.bias)})


class Runs:
    def __reduce__(self) -> Any:
        return Path("/tmp/escaped-by-a-foreign-file").touch, ()


def torch_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Runs()))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda _: None, "is neither a file nor a folder"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(Runs())), "is a pickle, which runs code of whoever wrote"),
    "a file of torch": (torch_file, r"is a pickle, .*load\(path, weights_only=True"),
    "text": (lambda path: path.write_text("weights = 3"), r"is not of a format .* first bytes are b'weights = 3'"),
    "an empty file": (lambda path: path.touch(), "is not of a format that Treewright reads"),
    "an empty folder": (lambda path: path.mkdir(), "is a folder, and neither a checkpoint of Orbax nor"),
    "a folder of steps": (lambda path: by_a_manager_of_orbax(path), r"is a folder of steps\. Give one of them: .*/3\."),
    "several trees": (
        lambda path: (by_orbax(path / "a"), by_orbax(path / "b")),
        r"holds several trees of Orbax\. Give one of them: .*/a, .*/b\.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_read_is_refused_with_what_it_is(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    make(tmp_path / "x")

    with pytest.raises(CheckpointError, match=message):
        read_names(tmp_path / "x")
    assert not Path("/tmp/escaped-by-a-foreign-file").exists()


def listing(**weights: str) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        in_several_files(path)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))

    return write


def cut(write: Callable[[Path], Path]) -> Callable[[Path], Any]:
    return lambda path: write(path).write_bytes(path.read_bytes()[:-3])


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "cut safetensors": cut(by_safetensors),
    "cut msgpack": cut(by_flax),
    "cut npz": cut(by_numpy),
    "numpy's head alone": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"),
    "objects in npz": lambda path: np.savez(path.open("wb"), x=np.array([Runs()], object)),
    "a list that leaves its folder": listing(a="../x/model-1.safetensors"),
    "a list of what is not there": listing(a="model-1.safetensors"),
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_damage_is_told_as_damage(name: str, tmp_path: Path) -> None:
    DAMAGED[name](tmp_path / "x")

    with pytest.raises(CheckpointDamagedError, match=r"x.* can't be read: "):
        read_names(tmp_path / "x")


@pytest.mark.parametrize(("package", "write"), [("flax.serialization", by_flax), ("equinox", None)])
def test_a_missing_package_is_told(package: str, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    if write is None:
        with path.open("wb") as file:
            np.save(file, np.ones(2))
    else:
        write(path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"Reading a file that .* wrote needs .*treewright\[interop\]"):
        read_names(path, template=1)


def test_safetensors_itself_is_told_if_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x", {"w": np.ones(2)})
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)

    with pytest.raises(ImportError, match=r"Reading a file that safetensors wrote needs safetensors\. .*\[check"):
        read_names(tmp_path / "x")


# Tables

TORCH = {
    f"model.layers.{i}.{name}": np.full(shape, i, np.float32)
    for i in range(12)
    for name, shape in {"up.weight": (3, 2), "up.bias": (3,), "rotary.inv_freq": (4,)}.items()
} | {"model.embed.weight": np.ones((5, 2), np.float32)}


def test_a_table_renames_transposes_and_drops() -> None:
    like: Any = {"blocks": [{"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}] * 12, "embedding": jnp.zeros((5, 2))}
    table = {
        "model.layers.*.up.weight": ("blocks.*.kernel", np.transpose),
        "model.layers.*.up.bias": "blocks.*.bias",
        "model.layers.*.rotary.inv_freq": None,
        "model.embed.weight": "embedding",
    }

    found = from_names(TORCH, like=like, table=table)
    assert_same(found["blocks"][11], {"kernel": jnp.full((2, 3), 11.0), "bias": jnp.full(3, 11.0)})


def test_numbered_layers_are_stacked_in_the_order_of_their_numbers() -> None:
    values = {f"l.{i}.e.{j}.w": np.full(2, 10 * i + j, np.float32) for i in range(11) for j in range(2)}

    found = from_names(
        values, like={"e": {"0": jnp.zeros((11, 2)), "1": jnp.zeros((11, 2))}}, table={"l.*.e.*.w": "e.*"}
    )
    assert found["e"]["1"][:, 0].tolist() == [10 * i + 1 for i in range(11)]


TABLES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a name in no row": ({"a.w": 1, "b.w": 1}, {"a.w": "a"}, r"b\.w is in no row \(did you mean a\.w\?\)"),
    "a name in two rows": ({"a.w": 1}, {"a.*": "a", "*.w": "b"}, r"a\.w is in several rows: 'a\.\*', '\*\.w'"),
    "a row without names": ({"a": 1}, {"a": "a", "b.*": "b"}, r"the row 'b\.\*' meets no name"),
    "more stars than were met": ({"a.b": 1}, {"a.*": "*.*"}, r"the row 'a\.\*' has fewer stars than '\*\.\*'"),
    "a gap in the numbers": ({"0.w": 1, "2.w": 1}, {"*.w": "w"}, r"w: these would be stacked, .*: 0\.w, 2\.w"),
    "two of one name": ({"a": 1, "b": 1}, {"a": "c", "b": "c"}, r"c: these would be stacked, .*: a, b"),
    "shapes that differ": (
        {"0": np.ones(1), "1": np.ones(2)},
        {"*": "c"},
        "c: all input arrays must have the same shape",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_does_not_fit_is_refused(name: str) -> None:
    values, table, message = TABLES[name]

    with pytest.raises(CheckpointError, match=f"The table does not fit the names:\n  {message}"):
        from_names(values, like={}, table=table)


def test_the_message_of_very_many_names_can_be_read(tmp_path: Path) -> None:
    values = {f"x{i}": np.ones(1) for i in range(5000)}
    for table in ({"a": "b"}, {"*": "b"}, {f"a{i}": "b" for i in range(5000)}):
        with pytest.raises(CheckpointError, match="The table does not fit the names:") as caught:
            from_names(values, like={}, table=table)
        assert "more" in str(caught.value)
        assert len(str(caught.value)) < 1500
    for i in range(50):
        (tmp_path / str(i) / "state").mkdir(parents=True)
        (tmp_path / str(i) / "state" / "_METADATA").touch()
    with pytest.raises(CheckpointError, match=r"is a folder of steps.* and 30 more"):
        read_names(tmp_path)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_may_not_be_read_is_an_error_of_ours(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").touch()
    monkeypatch.setattr(Path, "open" if kind == "file" else "iterdir", refused)
    with pytest.raises(CheckpointDamagedError, match=r"can't be read: .*Permission denied"):
        read_names(tmp_path / "x" if kind == "file" else tmp_path)


def test_a_path_in_place_of_names_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Of a file: from_names\(read_names\(path\), like=tree\)"):
        from_names("weights.npz", like={})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_what_a_table_gives_is_compared_with_the_tree() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"\['kernel'\]: shape \(3, 2\) saved, \(2, 3\) in the tree"):
        from_names({"w": np.ones((3, 2), np.float32)}, like={"kernel": jnp.zeros((2, 3))}, table={"w": "kernel"})
