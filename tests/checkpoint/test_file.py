"""One safetensors file: written atomically, verified, bounded, and never executed."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import treewright.checkpoint
from tests.checkpoint.engines import assert_same
from tests.checkpoint.forged_files import forge
from tests.checkpoint.models import net
from tests.checkpoint.test_load_without_template import changed_anywhere
from treewright.checkpoint import from_names, load, read_manifest, read_names, save
from treewright.errors import CheckpointDamagedError, CheckpointError

pytestmark = pytest.mark.slow

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds open files in /proc")
TREE = {"w": np.arange(1000.0), "b": [jnp.ones(3), 2]}


# On safetensors


def test_plain_safetensors_reads_a_file_by_readable_names(tmp_path: Path) -> None:
    save(tmp_path / "x", {"net": net(), "half": jnp.ones(2, "bfloat16"), "flag": True})

    with safetensors.safe_open(tmp_path / "x", framework="numpy") as opened:
        assert set(opened.keys()) == {
            *("net.layers.0.kernel", "net.layers.0.bias", "net.layers.1.kernel", "net.layers.1.bias"),
            *("net.count", "half", "flag"),
        }
        np.testing.assert_array_equal(opened.get_tensor("net.layers.0.kernel"), net().layers[0].kernel)
        assert opened.get_slice("half").get_dtype() == "BF16"
        assert '"version":8' in opened.metadata()["treewright"]


def test_unsupported_dtypes_are_written_as_bytes(tmp_path: Path) -> None:
    tree = {"a": np.ones((2, 3), np.complex128), "b": jnp.ones(4, "int4"), "c": jnp.ones(2, "float8_e4m3fn")}
    save(tmp_path / "x", tree)

    found = safetensors.numpy.load_file(tmp_path / "x")
    assert found["a"].view(np.complex128)[..., 0].tolist() == np.ones((2, 3)).tolist()
    assert found["b"].tolist() == [[1]] * 4
    assert read_names(tmp_path / "x")["c"].shape == (2, 1)
    assert_same(load(tmp_path / "x", like=tree), tree)


def test_load_explains_a_plain_safetensors_file_without_manifest(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / "x")

    with pytest.raises(CheckpointError, match="has no manifest: a different program wrote this safetensors file"):
        load(tmp_path / "x", like={"a": jnp.zeros(2)})
    assert_same(from_names(safetensors.numpy.load_file(tmp_path / "x"), like={"a": jnp.zeros(2)}), {"a": jnp.ones(2)})


def test_leaf_names_are_preserved(tmp_path: Path) -> None:
    for name in ("a b", "../../etc/passwd", "/", "\n", "\0", "\u2200", "treewright", "a" * 5000, "a.b", "other#0", "#"):
        save(tmp_path / "x", {name: 1, "other": {name: 2}, "__metadata__": [3]})
        assert load(tmp_path / "x") == {name: 1, "other": {name: 2}, "__metadata__": [3]}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    save(tmp_path / "x", {"__metadata__": 1})  # safetensors' own key
    assert load(tmp_path / "x") == {"__metadata__": 1}
    assert [*safetensors.numpy.load_file(tmp_path / "x")] == ["__metadata__#0"]


def test_completion_shows_only_public_names_of_checkpoint() -> None:
    assert dir(treewright.checkpoint) == sorted(treewright.checkpoint.__all__)
    assert not [
        name for name in dir(treewright.checkpoint) if isinstance(getattr(treewright.checkpoint, name), type(os))
    ]


def test_urls_and_trees_are_rejected_as_paths(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"The path must be a str or a Path, got Net\("):
        save(net(), tmp_path / "x")  # type: ignore[arg-type]
    for path in ("gs://b/x", Path("gs://b/x"), "memory://x", "file:///b/x"):
        text = r":/.*x is a URL, .* instead of file:///data/run\. .* CheckpointManager\('gs://bucket/run'\)"
        with pytest.raises(CheckpointError, match=text):
            save(path, 1)


# Whole or not there


@on_linux
def test_save_flushes_the_file_before_renaming_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    steps: list[tuple[str, bool, bool]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append((target.name[:13], stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    save(path, {"a": jnp.ones(5)})

    assert steps == [(".x.unfinished", False, False), (tmp_path.name[:13], True, True)]


@on_linux
def test_save_keeps_to_the_rules_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl: Any = importlib.import_module("fcntl")
    plain_open, plain_fsync, plain_unlink = os.open, os.fsync, os.unlink
    flushed: list[int] = []

    def open_files_only(path: Any, flags: int, *options: Any, **more: Any) -> int:
        if Path(path).is_dir() and "dir_fd" not in more and not flags & os.O_DIRECTORY:
            raise PermissionError(13, "folders can't be opened", str(path))
        return plain_open(path, flags, *options, **more)

    def fsync_writable(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "opened only for reading")
        flushed.append(descriptor)
        plain_fsync(descriptor)

    def unlink_closed(path: Any, *, dir_fd: int | None = None) -> None:
        opened = [link.stat() for link in Path("/proc/self/fd").iterdir() if link.exists()]
        if any(os.path.samestat(os.stat(path, dir_fd=dir_fd), each) for each in opened):
            raise PermissionError(13, "the file is open", str(path))
        plain_unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_files_only)
    monkeypatch.setattr(os, "fsync", fsync_writable)
    monkeypatch.setattr(os, "unlink", unlink_closed)
    monkeypatch.setattr("treewright.checkpoint.disk.fcntl", None)
    for number in (1.0, 2.0):
        save(tmp_path / "x", number)

    assert len(flushed) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert float(load(tmp_path / "x", like=0.0)) == 2.0


@on_linux
@pytest.mark.parametrize("is_supported", [True, False])
def test_save_flushes_the_cache_of_the_disk_on_macos(
    *, is_supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl: Any = importlib.import_module("fcntl")
    plain, plain_fsync = fcntl.fcntl, os.fsync
    calls: list[str] = []

    def control(descriptor: Any, command: int, *argument: Any) -> Any:
        if command != 51:
            return plain(descriptor, command, *argument)
        calls.append("F_FULLFSYNC")
        if not is_supported:
            raise OSError(45, "Operation not supported")
        return 0

    def flush(descriptor: int) -> None:
        calls.append("fsync")
        plain_fsync(descriptor)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", flush)
    save(tmp_path / "x", 1.0)

    assert calls == ["F_FULLFSYNC"] * 2 if is_supported else ["F_FULLFSYNC", "fsync"] * 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("calls", [["open"], ["fsync"], ["replace", "rename"]])  # pathlib uses one of the last two
def test_a_disk_error_raises_and_keeps_the_previous_file(
    calls: list[str], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x", {"a": 1})

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    for call in calls:
        monkeypatch.setattr(Path if call == "open" else os, call, fail)
    with pytest.raises(CheckpointError, match=f"x could not be written and is unchanged: .*{os.strerror(number)}"):
        save(tmp_path / "x", {"a": 2})
    monkeypatch.undo()
    assert load(tmp_path / "x") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failed_flush_of_the_folder_names_the_file_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    save(tmp_path / "x", 1)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match=r"x was replaced, but its folder could not be flushed"):
        save(tmp_path / "x", 2)
    assert load(tmp_path / "x") == 2


def test_save_accepts_the_longest_file_names(tmp_path: Path) -> None:
    for name in ("x" * 255, "\u65e5" * 85):
        save(tmp_path / name, 1)
        assert load(tmp_path / name) == 1
    assert len(list(tmp_path.iterdir())) == 2


WRITER = """
import os, sys, time
import treewright.checkpoint as checkpoint
write = checkpoint.file.write_safetensors
def slow(*args):
    write(*args)
    print("writes", flush=True)
    time.sleep(60)
checkpoint.file.write_safetensors = slow
checkpoint.save(sys.argv[1], 1)
"""


def test_save_deletes_only_leftovers_of_dead_writers(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "x", tmp_path / "x-y"]
    for path in paths:
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writes\n"
            save(path, 2)
            assert len(list(tmp_path.glob(f".{path.name}.unfinished-*"))) == 2  # the file and its lock
            writer.kill()
        save(path, 3)
        assert not list(tmp_path.glob(f".{path.name}.unfinished-*"))
    assert {path.name for path in tmp_path.iterdir()} == {"x", "x-y"}


def test_two_concurrent_writers_leave_one_complete_file(tmp_path: Path) -> None:
    trees = [{"a": np.full(100_000, number)} for number in range(2)]

    def write(tree: Any) -> None:
        for _ in range(20):
            save(tmp_path / "x", tree)

    threads = [threading.Thread(target=write, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = load(tmp_path / "x")["a"]
    assert len(np.unique(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_keeps_its_permissions_and_a_symbolic_link_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "x")
    save(tmp_path / "link", 1)
    (tmp_path / "other").touch()
    assert (tmp_path / "folder" / "x").stat().st_mode == (tmp_path / "other").stat().st_mode  # Mode of a new file
    for mode in (0o600, 0o644, 0o777):
        (tmp_path / "folder" / "x").chmod(mode)
        save(tmp_path / "link", mode)
        assert (tmp_path / "link").is_symlink()
        assert load(tmp_path / "folder" / "x") == load(tmp_path / "link") == mode
        assert stat.S_IMODE((tmp_path / "folder" / "x").stat().st_mode) == mode


def test_save_and_load_reject_paths_that_are_not_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "x")
    for place in (tmp_path, tmp_path / "pipe"):
        for read in (load, read_names):
            with pytest.raises(CheckpointError, match=r"is not a regular file\. load\(\) reads files that save\(\)"):
                read(place)
        with pytest.raises(CheckpointError, match=r"To restore a step of a run: CheckpointManager\(folder\)\.restore"):
            load(place)
        with pytest.raises(CheckpointError, match=r"is not a regular file, so it can't be replaced"):
            save(place, 1)
    for name, folder in (("none/x", "none"), ("link", "gone")):
        with pytest.raises(
            CheckpointError, match=rf"{name} could not be written: the folder .*/{folder} does not exist"
        ):
            save(tmp_path / name, 1)
    with pytest.raises(CheckpointError, match=r"could not be written and is unchanged: .*embedded null"):
        save(str(tmp_path / "a\0b"), 1)
    for read in (load, read_names):
        with pytest.raises(FileNotFoundError, match="nothing"):
            read(tmp_path / "nothing")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link"}


# Damage


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 400), marks=pytest.mark.exhaustive)])
def test_a_flipped_bit_anywhere_is_never_accepted(seed: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", TREE)
    content = (tmp_path / "x").read_bytes()
    for one in [seed] if isinstance(seed, int) else seed:
        chance = np.random.default_rng(one)
        for place in chance.integers(0, len(content), 20):
            damaged = bytearray(content)
            damaged[place] ^= 1 << int(chance.integers(8))
            (tmp_path / "x").write_bytes(damaged)
            try:
                found = load(tmp_path / "x", like=TREE)
            except CheckpointError:
                continue
            assert_same(found, TREE)  # a bit of the header's padding


NO_FILE = "x is not a safetensors file, or its header is damaged"
NO_MANIFEST = "x can't be loaded: The manifest is damaged: "
OTHER_JSON = ("", "[]", "{", "3", '"a"', "[" * 100_000, '{"version": 8}', "null")
# Changes to a valid file, or to its manifest if the value is text
DAMAGED: list[tuple[Any, str]] = [
    *((lambda content, share=share: content[: int(len(content) * share)], NO_FILE) for share in (0, 0.001, 0.5, 0.999)),
    *(
        (lambda _, other=other: other, NO_FILE)
        for other in (b"hello", b"PK\x03\x04" + b"x" * 100, b"\x80\x04" + b"." * 50)
    ),
    (lambda content: content.replace(b"float64", b"floot64", 1), f"{NO_MANIFEST}its digest is"),
    *((text, NO_MANIFEST) for text in OTHER_JSON),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_truncated_and_foreign_files_are_damage(change: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path / "x", TREE)
    if isinstance(change, str):
        forge(tmp_path / "x", change)
    else:
        (tmp_path / "x").write_bytes(change((tmp_path / "x").read_bytes()))

    for read in (load, read_manifest, *(() if message.startswith(NO_MANIFEST) else (read_names,))):
        with pytest.raises(CheckpointDamagedError, match=message):
            read(tmp_path / "x")


# Forged


@given(data=st.data())
def test_a_forged_header_loads_or_raises_a_checkpoint_error(data: Any, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("forged") / "x"
    save(path, {"a": np.arange(3), "b": 1.5})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(changed_anywhere(json.loads(content[8 : 8 + length]), data.draw)).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])

    with contextlib.suppress(CheckpointError):
        assert_same(load(path), {"a": np.arange(3), "b": 1.5})


FORGED: dict[str, Any] = {
    "a version in words": lambda d: d.update(version="seven"),
    "an earlier version": lambda d: d.update(version=5),
    "a later version": lambda d: d.update(version=9),
    "no version": lambda d: d.pop("version"),
    "a container without a name": lambda d: d["nodes"][0].update(kind=None),
    "a missing child": lambda d: d["nodes"][0]["children"].append("z"),
    "a loop": lambda d: d["nodes"][1].update(name="", children=["b"]),
    "no leaves": lambda d: d.update(leaves=[]),
    "an unknown dtype": lambda d: d["leaves"][0].update(form=["numpy", [1], "object", None, False]),
    "a negative size": lambda d: d["leaves"][0].update(form=["numpy", [-1], "int8", None, False]),
    "a huge shape": lambda d: d["leaves"][0].update(form=["numpy", [2**62, 2**62], "int8", None, False]),
    "a scalar with a shape": lambda d: d["leaves"][0].update(form=["int", [3], "float32", None, False]),
    "a key without bits": lambda d: d["leaves"][0].update(form=["key", [3], "float32", "fry", False]),
    "an unwritten field": lambda d: d["leaves"][0].update(saved_name=[]),
    "a name of another type": lambda d: d["leaves"][0].update(name=["a"]),
    "a digest of another type": lambda d: d["leaves"][0].update(digest=[3]),
    "a ref that is not a bool": lambda d: d["leaves"][0].update(form=["numpy", [1], "int8", None, "yes"]),
    "a layout before the first": lambda d: (d["leaves"][0].update(layout=-1), d.update(layouts=[[[1], [[0, 1]]]])),
    "no processes": lambda d: d.update(processes=0),
    "processes in words": lambda d: d.update(processes="two"),
    "a short digest": lambda d: d["leaves"][0].update(digest="ab"),
    "a layout that is not there": lambda d: d["leaves"][0].update(layout=7),
    "a layout that is text": lambda d: d["leaves"][0].update(layout="a"),
    "a layout of another rank": lambda d: (d["leaves"][0].update(layout=0), d.update(layouts=[[[1] * 9, [[0, 1]]]])),
    "a layout of many blocks": lambda d: (d["leaves"][0].update(layout=0), d.update(layouts=[[[2**40], [[0, 2**40]]]])),
    "a writer that is no process": lambda d: (d["leaves"][0].update(layout=0), d.update(layouts=[[[1], [[[0], 1]]]])),
    "bytes of another length": lambda d: d["leaves"][0].update(form=["array", [2], "float32", None, False]),
}


VERSIONS = {
    "an earlier version": "has format version 5.*Load it with the version that saved it, and save to_names",
    "a later version": "has format version 9.*with a newer version",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_manifest_is_an_error(name: str, tmp_path: Path) -> None:
    save(tmp_path / "x", TREE)
    forge(tmp_path / "x", FORGED[name])

    message = VERSIONS.get(name, r"can't be (loaded|read|made)|is damaged|this JAX lacks|is not a block")
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path / "x")
    assert name not in VERSIONS or not isinstance(caught.value, CheckpointDamagedError)


def test_a_manifest_above_the_size_limit_is_not_parsed(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": 1})
    with pytest.raises(Exception, match=r"HeaderTooLarge|header|manifest"):  # noqa: PT012
        forge(tmp_path / "x", " " * 100_000_001)
        load(tmp_path / "x")
