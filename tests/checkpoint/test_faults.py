"""Bytes that changed, disks that are full or read-only, files made by an attacker: never accepted, never a crash."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from tests.checkpoint.documents import signed
from tests.checkpoint.engines import ByFile, ByManager, assert_same
from tests.checkpoint.engines import engine as engine  # noqa: PLC0414  pytest finds the fixture here
from tests.checkpoint.models import net
from treewright.checkpoint import CheckpointManager, load, read_manifest, save
from treewright.errors import CheckpointDamagedError, CheckpointError

ROOT = Path(__file__).parents[2]
FLIPS = {ByFile: 200, ByManager: 100}  # Orbax takes ten times as long


def tree() -> Any:
    return {"net": net(), "key": jax.random.key(1), "numbers": [1, 2.5], "half": jnp.ones((3, 5), "bfloat16")}


def files_of(engine: Any) -> list[Path]:
    if isinstance(engine, ByFile):
        return [engine.path]
    return sorted(path for path in engine.folder.rglob("*") if path.is_file())


def hold(engine: Any, original: Any, what: str) -> bool:
    """Whether loading raises; what it gives otherwise has to be what was saved."""
    try:
        found = engine.load(like=original)
    except (CheckpointError, OSError):
        return True
    found, original = ({**each, "key": jax.random.key_data(each["key"])} for each in (found, original))
    try:
        assert_same(found, original)
    except AssertionError as error:
        raise AssertionError(f"{what} was accepted silently") from error
    return False


# What Orbax's threads leave behind when a read fails.
LEFT_BEHIND = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


@LEFT_BEHIND
def test_no_flipped_bit_is_accepted_silently(engine: Any) -> None:
    original, chance, flips = tree(), random.Random(0), FLIPS[type(engine)]
    engine.save(original)
    contents = {path: path.read_bytes() for path in files_of(engine)}
    bits = [(path, bit) for path, content in contents.items() for bit in range(len(content) * 8)]

    refused = 0
    for path, bit in chance.sample(bits, flips):
        data = bytearray(contents[path])
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        refused += hold(engine, original, f"bit {bit} of {path.name}")
        path.write_bytes(contents[path])
    assert not hold(engine, original, "the original")
    assert refused > flips * (0.99 if isinstance(engine, ByFile) else 0.3)  # Orbax writes much that it never reads


def test_every_bit_of_every_array_counts(tmp_path: Path) -> None:
    engine = ByFile(tmp_path)
    engine.save({"a": np.zeros(8, np.uint8)})
    content = engine.path.read_bytes()

    for bit in range(64):
        data = bytearray(content)
        data[-8 + bit // 8] ^= 1 << bit % 8
        engine.path.write_bytes(data)
        with pytest.raises(
            CheckpointDamagedError, match=r"\['a'\] is damaged in .*tree.safetensors: its bytes have the"
        ):
            engine.load(like={"a": np.zeros(8, np.uint8)})


@LEFT_BEHIND
@pytest.mark.parametrize("share", [0, 0.3, 0.9, 1])
def test_no_truncated_file_is_accepted_silently(share: float, engine: Any) -> None:
    original = tree()
    engine.save(original)

    for path in files_of(engine):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)] if share < 1 else content[:-1])
        assert hold(engine, original, f"{path.name}, cut") or isinstance(engine, ByManager)
        path.write_bytes(content)


@LEFT_BEHIND
def test_no_deleted_file_is_accepted_silently(engine: Any) -> None:
    original = tree()
    engine.save(original)

    for path in files_of(engine):
        content = path.read_bytes()
        path.unlink()
        assert hold(engine, original, f"without {path.name}") or isinstance(engine, ByManager)
        path.write_bytes(content)


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    engine = ByFile(tmp_path)
    engine.save(tree())
    with engine.path.open("ab") as file:
        file.write(b"\0" * 8)

    with pytest.raises(CheckpointDamagedError, match="too many or too few bytes"):
        engine.load(like=tree())


def test_arrays_of_equal_form_that_were_swapped_are_refused(tmp_path: Path) -> None:
    engine = ByFile(tmp_path)
    engine.save({"a": np.full(4, 1, np.uint8), "b": np.full(4, 2, np.uint8)})
    content = engine.path.read_bytes()
    engine.path.write_bytes(content[:-8] + content[-4:] + content[-8:-4])

    with pytest.raises(CheckpointDamagedError, match=r"\['a'\] is damaged"):
        engine.load(like={"a": np.zeros(4, np.uint8), "b": np.zeros(4, np.uint8)})


@pytest.mark.parametrize("size", [1000, 100_000])  # read together, and each by itself
def test_a_file_that_shrinks_while_it_is_read_is_damaged(size: int, tmp_path: Path) -> None:
    from treewright.checkpoint.file import SafetensorsFile

    save(tmp_path / "x", {"a": np.ones(size), "b": np.ones(size)})
    with SafetensorsFile(tmp_path / "x") as file:
        os.truncate(tmp_path / "x", (tmp_path / "x").stat().st_size - 10)
        with pytest.raises(CheckpointDamagedError, match=r"x ends inside \['b'\]"):
            list(file.reader(progress=False)((leaf, None) for leaf in file.manifest.leaves))


# Attackers


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS: dict[str, bytes] = {
    "nothing": b"",
    "huge length": file_of({}, length=2**63),
    "longer than the file": file_of({}, length=10**6),
    "no JSON": file_of(b"{" * 100),
    "deep": file_of(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "huge shape": file_of({"a": {**TENSOR, "shape": [2**40, 2**40]}}, b"\0" * 8),
    "offsets outside": file_of({"a": {**TENSOR, "data_offsets": [0, 2**40]}}, b"\0" * 8),
    "offsets backwards": file_of({"a": {**TENSOR, "data_offsets": [8, 0]}}, b"\0" * 8),
    "hole": file_of({"a": {**TENSOR, "data_offsets": [8, 16]}}, b"\0" * 16),
    "overlap": file_of({"a": TENSOR, "b": TENSOR}, b"\0" * 8),
    "dtype": file_of({"a": {**TENSOR, "dtype": "PICKLE"}}, b"\0" * 8),
    "no manifest": file_of({"a": TENSOR}, b"\0" * 8),
    "manifest of another type": file_of({"__metadata__": {"treewright": 3}}),
    "manifest that is no JSON": file_of({"__metadata__": {"treewright": "{"}}),
    "manifest that is deep": file_of({"__metadata__": {"treewright": "[" * 10**5}}),
    "manifest of nothing": file_of({"__metadata__": {"treewright": "{}"}}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_by_an_attacker_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(HEADERS[name])

    for use in (load, read_manifest, lambda path: load(path, like={"a": jnp.zeros(2)})):
        with pytest.raises(CheckpointError):
            use(tmp_path / "x")


def forged(tmp_path: Path, **changes: Any) -> Any:
    """The manifest of `{"a": f32[2]}` with changes of its leaf, and a digest that fits."""
    save(tmp_path / "x", {"a": np.zeros(2, np.float32)})
    content = read_manifest(tmp_path / "x").to_json()
    content["forms"][0].update(changes)
    return signed(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [{"shape": [2**40]}, {"shape": [2**62, 2**62]}, {"dtype": "int32"}, {"dtype": "complex64", "shape": [1]}],
)
def test_a_manifest_that_fits_itself_and_not_the_header_is_refused_before_memory_is_taken(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    document = forged(tmp_path, **changes)
    safetensors.numpy.save_file({"a": np.zeros(2, np.float32)}, tmp_path / "x", metadata=document)

    with pytest.raises(CheckpointDamagedError, match=r"list different tensors|has an impossible shape"):
        load(tmp_path / "x")


@LEFT_BEHIND
@pytest.mark.parametrize("shape", [[2**40], [2**62, 2**62], [3]])
def test_a_manifest_that_fits_itself_and_not_the_step_is_refused(shape: list[int], tmp_path: Path) -> None:
    engine = ByManager(tmp_path)
    engine.save({"a": np.zeros(2, np.float32)})
    (tmp_path / "steps" / "1" / "manifest" / "metadata").write_text(json.dumps(forged(tmp_path, shape=shape)))

    for like in (
        np.broadcast_to(np.float32(0), shape) if len(shape) == 1 and shape[0] < 10 else None,
        jax.ShapeDtypeStruct(tuple(shape), jnp.float32),  # type: ignore[no-untyped-call]
    ):
        if like is not None:
            with pytest.raises(CheckpointError):
                engine.load(like={"a": like})


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped", "a/b", "..", "a\0b", "x" * 300])
def test_names_are_never_paths(name: str, engine: Any, tmp_path: Path) -> None:
    before = set(tmp_path.parent.rglob("*escaped*"))
    try:
        engine.save({name: jnp.ones(2)})
    except CheckpointError:
        pass  # an engine that can't write the name says so
    else:
        assert_same(engine.load(like={name: jnp.zeros(2)}), {name: jnp.ones(2)})
    assert set(tmp_path.parent.rglob("*escaped*")) == before
    assert not Path("/tmp/escaped").exists()


# Disks


PROGRAM = """
import os, resource, sys
import jax.numpy as jnp
from treewright.checkpoint import CheckpointManager, save
from treewright.checkpoint.steps import engine
folder, how = sys.argv[1:]
small, large = {"x": jnp.ones(10)}, {"x": jnp.ones(10**6)}
engine()
if how == "read-only":
    save  # imported
    import safetensors, xxhash
    if os.getuid() == 0:
        os.setuid(65534)
else:
    save(folder + "/file", small)
    manager = CheckpointManager(folder + "/steps")
    manager.save(1, small)
    manager.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for use in ("file", "steps"):
    try:
        if use == "file":
            save(folder + "/file", large)
        else:
            with CheckpointManager(folder + "/steps") if how == "read-only" else manager as saving:
                saving.save(2, large)
                saving.wait()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0][:300])
"""


def run(folder: Path, how: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), how],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=120,
    )
    return done.stdout.splitlines()


def test_a_full_disk_is_an_error_and_the_earlier_file_and_step_stay(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    lines = run(tmp_path, "full")

    assert lines[0].startswith(f"CheckpointError {tmp_path}/file could not be written, and is as it was: ")
    assert lines[1].startswith(f"CheckpointError Step 2 could not be saved in {tmp_path}/steps; earlier steps are as")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "steps"}
    assert_same(load(tmp_path / "file"), {"x": jnp.ones(10)})
    with CheckpointManager(tmp_path / "steps") as manager:
        assert manager.latest_step() == 1
        assert_same(manager.restore(like={"x": jnp.zeros(10)}), {"x": jnp.ones(10)})
        manager.save(2, {"x": jnp.ones(3)})
        manager.wait()
        assert manager.all_steps() == (1, 2)


def test_a_read_only_folder_is_an_error() -> None:
    pytest.importorskip("orbax.checkpoint")
    with tempfile.TemporaryDirectory() as made:  # not tmp_path: other users, as which root runs this, may not enter it
        folder = Path(made)
        folder.chmod(0o555)
        lines = run(folder, "read-only")

        assert lines[0].startswith(f"CheckpointError {made}/file could not be written, and is as it was: ")
        assert "Permission denied" in lines[0]
        assert lines[1].startswith(f"CheckpointError Step 2 could not be saved in {made}/steps; earlier steps")
        assert "Permission denied" in lines[1]
        assert not list(folder.iterdir())


def test_two_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    program = (
        "import sys, jax.numpy as jnp\nfrom treewright.checkpoint import save\n"
        "for _ in range(40): save(sys.argv[1], {'a': jnp.full(30_000, 1), 'b': 1})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    path = tmp_path / "x"

    def check_whole() -> None:
        found = load(path)
        assert set(np.unique(found["a"])) == {found["b"]}

    with subprocess.Popen([sys.executable, "-c", program, str(path)], env=environment) as other:
        while other.poll() is None:
            if path.exists():
                check_whole()
                save(path, {"a": jnp.full(30_000, 2), "b": 2})
            time.sleep(0.001)
    assert other.returncode == 0
    check_whole()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
