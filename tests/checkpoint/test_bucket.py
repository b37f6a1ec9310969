"""Runs in a bucket (`gs://`): what Orbax does there for us, what still holds, and what is refused at once.

The bucket is a server in this process; gcsfs and tensorstore talk to it as they do to Google's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.bucket import NAME, Bucket, serving
from tests.checkpoint.engines import assert_same
from treewright.checkpoint import CheckpointManager, load, save
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Generator

pytest.importorskip("orbax.checkpoint")
epath: Any = pytest.importorskip("etils.epath")
RUN = f"gs://{NAME}/run"
TREE: dict[str, Any] = {"w": jnp.arange(2000.0), "host": np.ones(3), "number": 4}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Generator[Bucket]:
    pytest.importorskip("gcsfs")
    with serving() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.address)
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", bucket.address)
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks Google what kind of bucket it is
        yield bucket


def test_a_run_in_a_bucket_is_saved_and_restored_and_an_unfinished_or_damaged_step_is_not(bucket: Bucket) -> None:
    with CheckpointManager(RUN, keep=2, metric="loss", mode="max") as manager:
        for step in (1, 2, 3):
            manager.save(step, TREE, metadata={"loss": step}, items={"data": b"\x00"})
    del bucket.objects["run/3/commit_success.txt"]  # as if the process had been killed while it wrote
    largest = max(bucket.names("run/2/state/"), key=lambda name: len(bucket.objects[name][0]))
    data, write = bucket.objects[largest]

    with CheckpointManager(Path(RUN), metric="loss", mode="max") as manager:  # which writes gs:/
        assert (manager.all_steps(), manager.best_step(), manager.items()) == ((2,), 2, {"data": b"\x00"})
        assert_same(manager.restore(like=TREE), TREE)
        bucket.objects[largest] = (data[:999] + bytes([data[999] ^ 1]) + data[1000:], write)
        with pytest.raises(CheckpointDamagedError, match=r"All steps in gs://bucket/run are damaged:\n  2: \['w'\] is"):
            manager.restore_latest_valid(like=TREE)
        manager.save(3, TREE, metadata={"loss": 0})
        manager.delete(2)
        assert manager.all_steps() == (3,)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ImportError("Please install gcsfs"), ImportError, r"\('gs://\.\.\.'\) needs gcsfs\. .*treewright\[gcs\]"),
        (OSError("no such host"), CheckpointError, "gs://bucket/run can't be reached: no such host"),
    ],
)
def test_a_bucket_that_can_not_be_reached_is_told_when_the_manager_is_made(
    error: Exception, expected: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(_: object) -> bool:
        raise error

    monkeypatch.setattr(type(epath.Path(RUN)), "exists", exists)
    with pytest.raises(expected, match=message):
        CheckpointManager(RUN)


def test_a_manager_asks_a_bucket_once_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(type(epath.Path(RUN)), "exists", lambda path: asked.append(str(path)))

    assert str(CheckpointManager(Path(RUN)).directory) == RUN
    assert asked == [RUN]


@pytest.mark.parametrize("address", ["s3://bucket/run", "hf://bucket/run", Path("s3://bucket/run")])
def test_other_addresses_are_refused_when_the_manager_is_made(address: Any) -> None:
    with pytest.raises(CheckpointError, match=r"s3:/|hf:/.* is not on a local or mounted disk"):
        CheckpointManager(address)


def test_a_file_can_not_be_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (load, lambda path: save(path, TREE)):
        with pytest.raises(
            CheckpointError, match=r"gs://b/x is not on a .* A CheckpointManager can save into a bucket"
        ):
            use("gs://b/x")
    assert not list(tmp_path.iterdir())
