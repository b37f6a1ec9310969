"""Manifests of impossible size: refused in linear time and little memory, and never written."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint import models
from tests.checkpoint.documents import changed, document_of, manifest_of, signed
from tests.checkpoint.models import Settings
from treewright import freeze
from treewright.checkpoint import load, save
from treewright.checkpoint.manifest import from_json, from_metadata
from treewright.checkpoint.restore import restored_alone
from treewright.checkpoint.tree import ReadingCodec
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


FORGED_INTS = [k * (2**61 - 1) for k in range(20_000)]


@pytest.mark.parametrize(
    "forged",
    [
        ["frozenset", *FORGED_INTS],
        ["FrozenMapping", *([number, 1] for number in FORGED_INTS)],
        ["tuple", ["frozenset", *(["Decimal", str(number)] for number in FORGED_INTS)]],
    ],
    ids=["set", "mapping", "decimals"],
)
def test_numbers_of_one_hash_do_not_take_quadratic_time(forged: Any, tmp_path: Path) -> None:
    document = document_of(Settings(1), tmp_path)
    manifest = from_json(changed(document, ("containers", 0, "statics", "value"), forged))
    began = time.process_time()

    with pytest.raises(CheckpointError, match="of 20000 elements more than 64 have one hash: they were forged"):
        restored_alone(manifest, lambda _: iter(()), ReadingCodec([models]))
    assert time.process_time() - began < 5


def test_large_sets_and_mappings_come_back(tmp_path: Path) -> None:
    value = (frozenset(range(5000)), freeze({f"{i}": i for i in range(5000)}))
    save(tmp_path / "x", Settings(value))

    assert load(tmp_path / "x", modules=[models]) == Settings(value)


def test_a_document_of_small_lists_is_refused_before_it_takes_memory() -> None:
    text = '{"tree":[' + "[]," * 1_000_000 + "[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointDamagedError, match="is made of more lists than it could have"):
            from_metadata(signed(text))
        assert tracemalloc.get_traced_memory()[1] < 2 * len(text)
    finally:
        tracemalloc.stop()


def test_a_manifest_of_the_shortest_entries_has_few_enough_lists(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    trees: list[Any] = [deep, [[] for _ in range(1000)], {f"{i}": {} for i in range(1000)}, [[[1]]] * 300]
    for tree in (*trees, Settings(freeze({i: i for i in range(10, 3000)}))):
        assert manifest_of(tree, tmp_path).branches


def test_children_that_are_nowhere_take_no_memory(tmp_path: Path) -> None:
    document = document_of([1], tmp_path)
    many = {key: [f"{i}" for i in range(100_000)] for key in ("children", "paths")}

    with pytest.raises(CheckpointDamagedError, match="its entries do not make one tree"):
        from_json({**document, "containers": [{**document["containers"][0], **many}]})


def test_a_short_document_of_very_many_entries_takes_no_memory(tmp_path: Path) -> None:
    wide = {"kind": "list", "children": [f"{i}" for i in range(1000)], "paths": ["x" * 100] * 1000}
    document = {**document_of([], tmp_path), "containers": [wide], "forms": [], "digests": []}
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointDamagedError, match="do not make one tree"):
            from_json({**document, "tree": [0] * 10_000})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_tree_that_could_not_be_loaded_for_its_size_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {f"{i}": 1 for i in range(10)}
    document = document_of(tree, tmp_path)
    kept = (tmp_path / "tree.safetensors").read_bytes()
    monkeypatch.setattr("treewright.checkpoint.manifest.ROOM", 2000)

    with pytest.raises(CheckpointDamagedError, match="its entries would take more than 2,000 bytes"):
        from_json(document)
    with pytest.raises(CheckpointError, match=r"The tree can't be saved: its 11 parts take more than 2,000 bytes\."):
        save(tmp_path / "tree.safetensors", tree)
    monkeypatch.undo()
    monkeypatch.setattr("treewright.checkpoint.manifest.LONGEST", 100)
    with pytest.raises(CheckpointError, match=r"its manifest would have \d+ characters, and 100 is the most"):
        save(tmp_path / "tree.safetensors", tree)
    assert (tmp_path / "tree.safetensors").read_bytes() == kept
