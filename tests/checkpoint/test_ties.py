"""Ties: one array in several places of a tree is kept once, and comes back as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.forge import forge
from tests.checkpoint.models import spec
from treewright.checkpoint import from_names, load, read_manifest, read_names, save, to_names
from treewright.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

ARRAY = jnp.arange(1000.0)


def tied() -> dict[str, Any]:
    host, key = np.arange(3), jax.random.key(0)
    return {"a": ARRAY, "b": {"c": ARRAY, "d": ARRAY}, "h": [host, host], "k": (key, key), "n": [1.5, 1.5]}


def same(tree: Any) -> list[list[int]]:
    """Which leaves are one object, by their positions; of each kind of object the first that has several."""
    places: dict[int, list[int]] = {}
    for position, leaf in enumerate(jax.tree.leaves(tree)):
        places.setdefault(id(leaf), []).append(position)
    return [positions for positions in places.values() if len(positions) > 1]


def copied(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.copy() if hasattr(leaf, "copy") else leaf, tree)


def test_ties_come_back_without_a_template_into_one_that_has_them_and_into_an_abstract_one(engine: Any) -> None:
    tree = tied()
    engine.save(tree)

    expected = [[0, 1, 2], [3, 4], [5, 6]]
    assert same(engine.load())[:3] == expected
    assert same(engine.load(like=tree))[:3] == expected
    abstract = jax.eval_shape(lambda: {name: tree[name] for name in ("a", "b", "k")}) | {"h": tree["h"], "n": tree["n"]}
    assert same(engine.load(like=abstract))[:3] == expected


def test_a_ref_in_two_places_comes_back_as_one(engine: Any) -> None:
    ref = jax.new_ref(jnp.zeros(2))
    engine.save({"a": ref, "b": ref, "c": jax.new_ref(jnp.zeros(2))})

    found = engine.load(like={"a": ref, "b": ref, "c": jax.new_ref(jnp.ones(2))})
    assert found["a"] is found["b"] is not found["c"]


def test_a_live_template_with_two_arrays_gets_two_which_can_be_donated(engine: Any) -> None:
    engine.save(tied())

    found = engine.load(like=copied(tied()))
    assert same({name: found[name] for name in ("a", "b", "h", "k")}) == []
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)({"a": found["a"], "b": found["b"]})


def test_a_template_with_ties_gets_what_was_saved(engine: Any) -> None:
    engine.save({"a": jnp.zeros(2), "b": jnp.ones(2)})

    assert [x.tolist() for x in engine.load(like=dict.fromkeys("ab", jnp.zeros(2))).values()] == [[0, 0], [1, 1]]


def test_places_that_differ_in_the_template_get_arrays_of_their_own(engine: Any) -> None:
    engine.save({"a": ARRAY, "b": ARRAY, "c": ARRAY})
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), spec("x"))

    struct: Any = jax.ShapeDtypeStruct
    split = struct((1000,), "float32", sharding=sharding)
    plain = struct((1000,), "float32")
    found = engine.load(like={"a": split, "b": plain, "c": plain})
    assert found["a"].sharding == sharding
    assert same(found) == [[1, 2]]
    found = engine.load(
        like={"a": plain, "b": np.zeros(1000, "float32"), "c": np.zeros(1000, "float16")}, allow_cast=True
    )
    assert [type(x).__name__ + str(x.dtype) for x in found.values()] == [
        "ArrayImplfloat32",
        "ndarrayfloat32",
        "ndarrayfloat16",
    ]
    assert all((np.asarray(x) == np.asarray(ARRAY)).all() for x in found.values())


def test_a_part_keeps_its_ties_and_needs_nothing_outside_of_it(engine: Any) -> None:
    engine.save(tied())

    assert same(engine.load(part="b")) == [[0, 1]]
    assert (engine.load(part="b.d") == ARRAY).all()
    assert same(engine.load(part="b", like={"x": ARRAY, "d": ARRAY}, renamed={"c": "x"})) == [[0, 1]]
    with pytest.warns(match="Not all of the checkpoint fits"):
        assert (engine.load(like={"b": {"d": jnp.zeros(1000)}}, strict=False)["b"]["d"] == ARRAY).all()


def test_a_tied_array_is_written_once_and_the_manifest_says_what_it_is(tmp_path: Path) -> None:
    save(tmp_path / "one", {"a": ARRAY})
    save(tmp_path / "three", {"a": ARRAY, "b": ARRAY, "c": ARRAY})

    assert (tmp_path / "three").stat().st_size - (tmp_path / "one").stat().st_size < 2000
    assert [leaf.tied for leaf in read_manifest(tmp_path / "three").leaves] == [None, "a", "a"]
    assert len({str(leaf.digests) for leaf in read_manifest(tmp_path / "three").leaves}) == 1
    assert list(read_names(tmp_path / "three")) == ["a"]  # as plain safetensors reads it


@pytest.mark.parametrize("tie", ["b", "d", "z", "c", 3])
def test_a_forged_tie_is_damage(tie: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": np.zeros(2), "b": ARRAY, "c": ARRAY, "d": 1.5, "e": np.ones(2)})

    forge(tmp_path / "x", lambda document: document["leaves"][0].update(tied=tie))
    with pytest.raises(CheckpointDamagedError, match=r"The manifest is damaged: .*"):
        load(tmp_path / "x")


def test_names_hold_tied_leaves_like_any_other() -> None:
    names = to_names({"a": ARRAY, "b": ARRAY})

    assert list(names) == ["a", "b"]
    assert (from_names(names, like={"a": ARRAY, "b": jnp.zeros(1000)})["b"] == ARRAY).all()


@given(places=st.lists(st.integers(0, 3), min_size=1, max_size=8), start=st.integers(0, 7))
def test_exactly_the_ties_that_were_saved_come_back(places: Sequence[int], start: int, tmp_path_factory: Any) -> None:
    arrays = [np.full(2, number % 2) for number in range(4)]  # some are equal and not one
    tree = {"all": [arrays[place] for place in places], "part": [arrays[place] for place in places[start:]]}
    path = tmp_path_factory.mktemp("ties") / "x"
    save(path, tree)

    for part, expected in ((None, tree), ("part", tree["part"])):
        found = load(path, part=part)
        assert same(found) == same(expected)
        assert [leaf.tolist() for leaf in jax.tree.leaves(found)] == [
            leaf.tolist() for leaf in jax.tree.leaves(expected)
        ]
