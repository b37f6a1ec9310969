"""One file: written whole or not at all, opened by plain safetensors, refused before anything is written."""

from __future__ import annotations

import builtins
import gc
import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import net, spec
from treewright.checkpoint import file as file_module
from treewright.checkpoint import from_names, layout, load, save
from treewright.checkpoint.file import progress_bar
from treewright.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_plain_safetensors_opens_it_and_finds_readable_names(tmp_path: Path) -> None:
    save(tmp_path / "x", {"net": net(), "half": jnp.ones(2, "bfloat16"), "flag": True})

    with safetensors.safe_open(tmp_path / "x", framework="numpy") as opened:
        assert set(opened.keys()) == {
            *("net.layers.0.kernel", "net.layers.0.bias", "net.layers.1.kernel", "net.layers.1.bias"),
            *("net.count", "half", "flag"),
        }
        np.testing.assert_array_equal(opened.get_tensor("net.layers.0.kernel"), net().layers[0].kernel)
        assert opened.get_slice("half").get_dtype() == "BF16"
        assert '"treewright.checkpoint"' in opened.metadata()["treewright"]


def test_dtypes_that_safetensors_does_not_know_are_written_as_bytes(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": np.ones((2, 3), np.complex128), "b": jnp.ones(4, "int4")})

    found = safetensors.numpy.load_file(tmp_path / "x")
    assert found["a"].view(np.complex128)[..., 0].tolist() == np.ones((2, 3)).tolist()
    assert found["b"].tolist() == [[1]] * 4


# Small and large ones, with empty ones between them and at both ends, in each width.
SIZES = (0, 3, 20_000, 0, 5, 200_000, 20_000, 1, 0)
MIXED = {
    dtype: [np.full(size, index + 1, dtype) for index, size in enumerate(SIZES)]
    for dtype in ("uint8", "float32", "int16")
}


def test_arrays_of_all_sizes_come_back(tmp_path: Path) -> None:
    save(tmp_path / "x", MIXED)

    assert_same(load(tmp_path / "x", like=MIXED), MIXED)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_arrays_of_a_file_may_lie_in_another_order(sign: int, tmp_path: Path) -> None:
    save(tmp_path / "x", MIXED)
    content = (tmp_path / "x").read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    written, data, end = {"__metadata__": header.pop("__metadata__")}, b"", 0
    for name, tensor in sorted(header.items(), key=lambda item: item[0][::sign]):
        start, stop = tensor["data_offsets"]
        data += content[begin + start : begin + stop]
        written[name] = {**tensor, "data_offsets": [end, end := end + stop - start]}
    text = json.dumps(written).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + data)

    assert_same(load(tmp_path / "x", like=MIXED), MIXED)


def test_a_system_that_can_not_be_told_to_write_saves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    save(tmp_path / "x", MIXED)
    monkeypatch.undo()

    assert_same(load(tmp_path / "x", like=MIXED), MIXED)


def test_a_file_of_plain_safetensors_has_no_manifest_and_goes_by_names(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / "x")

    with pytest.raises(CheckpointError, match="is a safetensors file without a manifest: another program wrote it"):
        load(tmp_path / "x", like={"a": jnp.zeros(2)})
    assert_same(from_names(safetensors.numpy.load_file(tmp_path / "x"), like={"a": jnp.zeros(2)}), {"a": jnp.ones(2)})


def test_sharded_arrays_are_gathered(tmp_path: Path) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
    x = jnp.arange(8.0)
    save(tmp_path / "x", {"x": jax.device_put(x, sharding)})

    assert_same(load(tmp_path / "x")["x"], x)
    assert load(tmp_path / "x", like={"x": jax.device_put(x, sharding)})["x"].sharding == sharding


def test_a_second_file_replaces_the_first_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save(path, {"a": 1})
    save(path, {"a": 2})

    assert load(path) == {"a": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_saving_works_where_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"a": np.arange(1 << 18), "b": 1}
    save(tmp_path / "x", 0)

    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        save(tmp_path / "x", tree)
    assert_same(load(tmp_path / "x"), tree)


def test_a_program_can_save_when_it_ends(tmp_path: Path) -> None:
    program = f"""
        import atexit, numpy
        from treewright.checkpoint import save
        atexit.register(save, {str(tmp_path / "x")!r}, {{"a": numpy.arange(1 << 18)}})
    """
    save(tmp_path / "x", 0)
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)

    assert run.stderr == ""
    assert_same(load(tmp_path / "x"), {"a": np.arange(1 << 18)})


# Reading in runs


def test_an_array_of_several_chunks_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "_CHUNK", 100)
    tree = {"long": np.arange(251, dtype=np.uint8), "even": np.arange(25.0), "short": np.arange(3)}
    save(tmp_path / "x", tree)

    assert_same(load(tmp_path / "x"), tree)


def test_the_file_may_be_read_by_whom_new_files_may_be_read_by(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    save(tmp_path / "x", 1)

    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_the_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    steps: list[tuple[str, bool, bool]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append((target.name, stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    save(path, {"a": jnp.ones(5)})

    (name, *first), second = steps
    assert name.startswith(".treewright-saving-")
    assert [first, second] == [[False, False], (tmp_path.name, True, True)]


def test_a_folder_that_is_missing_is_an_error_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x could not be written: there is no folder"):
        save(tmp_path / "none" / "x", 1)
    assert not list(tmp_path.iterdir())


def test_the_name_that_safetensors_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"\['__metadata__'\] would get the name '__metadata__', which safetens"):
        save(tmp_path / "x", {"__metadata__": 1})
    save(tmp_path / "x", [{"__metadata__": 1}])
    assert load(tmp_path / "x") == [{"__metadata__": 1}]


@pytest.mark.parametrize(
    "name", ["", "a b", "../../etc/passwd", "/", "\n", "\0", "\u2200", "treewright", "a" * 5000, "a.b"]
)
def test_any_other_name_is_kept(name: str, tmp_path: Path) -> None:
    save(tmp_path / "x", {name: 1, "other": {name: 2}})

    assert load(tmp_path / "x") == {name: 1, "other": {name: 2}}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_manifest_that_is_too_long_for_the_header_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LONGEST", 200)

    with pytest.raises(
        CheckpointError, match=r"The header of this tree would have \d+ bytes, and that of a safetensor"
    ):
        save(tmp_path / "x", {"a": 1})
    assert not list(tmp_path.iterdir())


# An array of which other processes hold parts; a real one needs several processes.
FAR_ARRAY: Any = type("FarArray", (), {"is_fully_addressable": False, "__class__": jax.Array})


def test_arrays_of_several_processes_are_refused() -> None:
    from treewright.checkpoint.leaves import Form, Leaf

    leaf = Leaf(("x",), ".x", Form("array", (2,), "float32"), value=FAR_ARRAY())
    assert list(file_module._problems([leaf])) == [".x lies on several processes: CheckpointManager saves those"]


def test_on_an_accelerator_all_arrays_start_to_the_host_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    save(tmp_path / "x", {"a": jnp.ones(3), "b": np.ones(2)})

    assert_same(load(tmp_path / "x"), {"a": jnp.ones(3), "b": np.ones(2)})


def test_large_arrays_are_read_in_groups(tmp_path: Path) -> None:
    tree = {"a": np.arange(5 << 20, dtype=np.int32), "b": np.arange(3), "c": jnp.ones(1 << 20)}
    save(tmp_path / "x", tree)

    assert_same(load(tmp_path / "x", like=tree), tree)


# The bar


def test_a_bar_is_shown_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "x", {"a": np.ones(1 << 18)}, progress=True)
    load(tmp_path / "x", progress=True)

    shown = capsys.readouterr().err
    assert "saving x: 100%" in shown
    assert "loading x: 100%" in shown


@pytest.mark.parametrize(
    ("total", "terminal", "shown"), [(1 << 28, True, True), (1 << 27, True, False), (1 << 28, False, False)]
)
def test_a_bar_is_shown_for_large_trees_on_a_terminal(
    total: int, terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    with progress_bar(total, "working", show=None) as done:
        done(total)
    assert ("working" in capsys.readouterr().err) == shown


# Libraries that are missing


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make imports of these packages fail."""
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.partition(".")[0] in packages:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)


def manager() -> None:
    from treewright.checkpoint import CheckpointManager

    CheckpointManager("x")


@pytest.mark.parametrize(
    ("package", "use", "message"),
    [
        ("xxhash", lambda: save("x", 1), "The digest of a checkpoint needs xxhash"),
        ("orbax", manager, "CheckpointManager needs orbax-checkpoint"),
        ("tqdm", lambda: save("x", 1, progress=True), "A progress bar needs tqdm"),
    ],
)
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    package: str, use: Callable[[], None], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    without(monkeypatch, package)

    with pytest.raises(ImportError, match=rf"{message}.*Install it with: pip install 'treewright\[checkpoint\]'"):
        use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("enabled", [True, False])
def test_the_search_for_cycles_is_as_it_was_after_saving_and_loading(enabled: bool, tmp_path: Path) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        save(tmp_path / "x", 1)
        assert gc.isenabled() == enabled
        load(tmp_path / "x")
        with pytest.raises(CheckpointError):
            load(tmp_path / "none")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_small_arrays_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.write

    def watched(descriptor: int, data: Any) -> int:
        sizes.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    tree = {f"{i}": np.full(i % 5, i, np.int32) for i in range(3000)} | {"large": np.arange(1 << 17)}
    save(tmp_path / "x", tree)

    assert len(sizes) <= 4
    assert_same(load(tmp_path / "x"), tree)
