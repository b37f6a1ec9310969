"""Statics of Python's and JAX's own classes: exact where they have a form, described where it would lose a part."""

from __future__ import annotations

import datetime as dt
import fractions
import re
import uuid
import zoneinfo
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding

from tests.checkpoint import models
from tests.checkpoint.documents import changed, document_of
from tests.checkpoint.models import Settings
from treewright.checkpoint import load, read_manifest, save
from treewright.checkpoint.manifest import from_json
from treewright.checkpoint.restore import restored_alone
from treewright.checkpoint.tree import ReadingCodec
from treewright.errors import CheckpointError, CheckpointMismatchError


def test_lists_and_dicts_of_foreign_statics_are_read_as_they_were() -> None:
    assert ReadingCodec([]).decode(["list", ["tuple", "a"], 1]) == [("a",), 1]
    assert ReadingCodec([]).decode(["dict", ["a", ["list"]]]) == {"a": []}


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe),
        re.compile("a" * 10_001),
        fractions.Fraction(10**30, 7),
        models.spec("a", unreduced={"b"}),
        (1, re.compile("b" * 10_001)),
    ],
    ids=["uuid", "pattern", "fraction", "spec", "inside"],
)
def test_what_a_form_would_lose_is_described(value: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(value))

    form = read_manifest(tmp_path / "x").branches[0].statics["value"]
    assert "described" in {form[0], form[-1][0]}
    assert load(tmp_path / "x", like=Settings(value)) == Settings(value)
    with pytest.raises(CheckpointError, match="the static value was saved as a description only"):
        load(tmp_path / "x", modules=[models])


def test_a_mesh_is_saved_by_its_axes(tmp_path: Path) -> None:
    kinds = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    mesh: Any = jax.make_mesh((2, 1), ("a", "b"), axis_types=kinds)
    saved = Settings((mesh, NamedSharding(mesh, models.spec(None, "a"), memory_kind="unpinned_host")))
    save(tmp_path / "x", saved)

    form = ["Mesh", ["a", "b"], [2, 1], ["Auto", "Explicit"]]
    assert read_manifest(tmp_path / "x").branches[0].statics["value"][1] == form
    assert load(tmp_path / "x", like=saved) == saved
    assert load(tmp_path / "x", modules=[models]) == saved
    with pytest.raises(CheckpointMismatchError, match=r"Mesh\(\['a', 'b'\], \[2, 1\], \['Auto', 'Explicit'\]\)"):
        load(tmp_path / "x", like=Settings((jax.make_mesh((1, 2), ("a", "b"), axis_types=kinds), 1)))


def test_a_mesh_of_more_devices_than_there_are_is_an_error_of_ours(tmp_path: Path) -> None:
    document = document_of(Settings(1), tmp_path)
    forged = from_json(changed(document, ("containers", 0, "statics", "value"), ["Mesh", ["a"], [2**40], ["Auto"]]))

    with pytest.raises(CheckpointError, match=r"\['Mesh', \.\.\.\] can't be read: ValueError"):
        restored_alone(forged, lambda _: iter(()), ReadingCodec([models]))


def test_a_zone_of_the_database_is_saved_by_its_key(tmp_path: Path) -> None:
    try:
        zone = zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("this machine has no time zones")
    saved = Settings(dt.datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=1))
    save(tmp_path / "x", saved)

    zone_form = ["ZoneInfo", "Europe/Berlin"]
    assert read_manifest(tmp_path / "x").branches[0].statics["value"] == [
        "datetime",
        "2024-10-27T02:30:00",
        1,
        zone_form,
    ]
    assert load(tmp_path / "x", modules=[models]) == saved
    with (Path(zoneinfo.TZPATH[0]) / "Europe/Berlin").open("rb") as file:
        nameless = Settings(zoneinfo.ZoneInfo.from_file(file))
    save(tmp_path / "x", nameless)
    assert read_manifest(tmp_path / "x").branches[0].statics["value"][0] == "described"


class Key:
    def __lt__(self, other: object) -> bool:
        return False


def test_a_key_that_has_no_form_needs_a_template(tmp_path: Path) -> None:
    key = Key()
    save(tmp_path / "x", {key: 1})

    assert load(tmp_path / "x", like={key: 0}) == {key: 1}
    with pytest.raises(CheckpointError, match=r"it was saved as a description only, .*Key"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    "forged",
    [
        ["Pattern", "a" * 10_001, 0],
        ["Pattern", "(" * 5000, 0],
        ["Pattern", "a", int(re.DEBUG)],
        ["date", "2024-13-01"],
        ["Fraction", 1, 0],
        ["Fraction", 2**61 - 1, 1],
        ["UUID", "0"],
        ["ZoneInfo", "../../etc/passwd"],
        ["Decimal", "x"],
        ["int", "1_"],
        ["range", 1, 2, 0],
        ["FrozenArray", "int8", [2**60], ""],
        ["datetime", "2024-01-01", 7, None],
        ["timedelta", 10**30, 0, 0],
        ["NamedSharding", 1, 2, 3],
        ["bytes", "a"],
    ],
    ids=lambda form: f"{form[0]} {form[1]}"[:20],
)
def test_a_forged_part_is_an_error_of_ours(forged: Any, tmp_path: Path) -> None:
    document = document_of(Settings(1), tmp_path)
    manifest = from_json(changed(document, ("containers", 0, "statics", "value"), ["tuple", forged]))

    with pytest.raises(CheckpointError, match=r"The tree can't be made from its file alone:\n.* can't be read: "):
        restored_alone(manifest, lambda _: iter(()), ReadingCodec([models]))
