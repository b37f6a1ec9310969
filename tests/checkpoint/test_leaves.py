"""Leaves: each is restored with its type, dtype, shape and bits, or rejected by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import ByManager, assert_same
from tests.checkpoint.forged_files import forge
from tests.checkpoint.models import spec
from treewright import Static, adopt, freeze
from treewright.checkpoint import from_names, load, read_manifest, read_names, save, to_names
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

NARROW = [
    *("bool", "int2", "int4", "int8", "int16", "int32", "uint2", "uint4", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "float4_e2m1fn", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
COUNT = np.arange(12).reshape(3, 4)


def array_of(dtype: str) -> Any:
    """Values that this dtype can hold, 0 and 1 among them."""
    return np.asarray(COUNT % 2 if "int2" in dtype or "int4" in dtype else COUNT, jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", NARROW)
def test_arrays_of_every_dtype_are_restored(dtype: str, engine: Any) -> None:
    tree = {"jax": jnp.asarray(array_of(dtype)), "numpy": array_of(dtype), "beside": 1}
    if dtype in {"uint2", "uint4", "float8_e4m3"} and isinstance(engine, ByManager):
        with pytest.raises(CheckpointError, match=rf"\['jax'\] has the dtype {dtype}, which Orbax does not save"):
            engine.save(tree)
        return
    engine.save(tree)

    assert_same(engine.load(like=tree), tree)


@pytest.mark.parametrize(
    "leaf",
    [
        *(True, False, 0, -5, 2**62, 1.5, float("inf"), 2 + 3j),
        *(np.float32(2), np.int8(-3), np.bool_(1), jnp.bfloat16(1.5).dtype.type(2)),
        *(np.array(3.0), np.ones((1, 1, 1), np.uint8), COUNT[:, ::2], COUNT.T, np.broadcast_to(np.ones(2), (3, 2))),
        *(jnp.zeros(()), jnp.ones((2, 3)).T, freeze(np.arange(3))),
        *(array_of(dtype) for dtype in ("int64", "uint64", "float64", "complex128")),
        np.array([0x7FC0_0001, 0xFFC0_0000], np.uint32).view(np.float32),  # NaNs with bits of their own
    ],
    ids=repr,
)
def test_numbers_and_arrays_of_any_layout_are_restored(leaf: Any, engine: Any) -> None:
    engine.save({"x": leaf})

    found = engine.load(like={"x": leaf})["x"]
    assert type(found) is type(leaf)
    assert np.asarray(found).dtype == np.asarray(leaf).dtype
    assert np.asarray(found).tobytes() == np.asarray(leaf).tobytes()


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_are_restored(implementation: str, engine: Any) -> None:
    key = jax.random.key(7, impl=implementation)
    keys = {"one": key, "many": jax.random.split(key, (2, 3))}
    engine.save(keys)

    for like in (keys, jax.eval_shape(lambda: keys)):
        found = engine.load(like=like)
        for name, expected in keys.items():
            assert found[name].dtype == expected.dtype
            assert np.array_equal(jax.random.key_data(found[name]), jax.random.key_data(expected))


def test_empty_containers_none_and_empty_arrays_are_restored(engine: Any) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), spec(None, "x"))
    tree: Any = {"a": jax.device_put(jnp.zeros((0, 4)), sharding), "b": np.zeros(0), "c": jnp.ones(1)}
    tree |= {"none": None, "list": [], "tuple": (), "dict": {}}
    engine.save(tree)

    assert_same(engine.load(like=tree), tree)
    assert engine.load(like=tree)["a"].sharding == sharding
    engine.save_again({"a": np.zeros(0)})
    assert_same(engine.load(like={"a": np.zeros(0)}), {"a": np.zeros(0)})


def test_a_tree_without_leaves_is_restored(engine: Any) -> None:
    tree = {"a": (), "n": None, "s": Static("x")}
    engine.save(tree)

    assert engine.load(like=tree) == tree
    assert engine.load() == {"a": (), "n": None, "s": {}}


class Thing:
    def __repr__(self) -> str:
        return "Thing" * 30


def donated() -> Any:
    x = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


@pytest.mark.parametrize(
    ("leaf", "problem"),
    [
        ("text", "is str 'text', not an array or a number. Make it a static, or wrap it in Static"),
        (b"ab", "is bytes b'ab', not an array or a number"),
        (Thing(), f"is Thing {'Thing' * 11}Th..., not an array or a number"),
        (print, "is builtin_function_or_method print, not an array or a number"),
        (2**70, f"is the int {2**70}, which does not fit into 64 bits"),
        (2**63, f"is the int {2**63}, which does not fit into 64 bits"),
        (np.array(["a"]), "has the dtype <U1, which can't be saved"),
        (np.array([Thing()]), "has the dtype object, which can't be saved"),
        (np.zeros(2, [("a", "f4")]), "has the dtype [('a', '<f4')], which can't be saved"),
        (np.zeros(2, "M8[s]"), "has the dtype datetime64[s], which can't be saved"),
        (np.zeros(2, ">f4"), "has the dtype >f4, whose byte order differs from this machine's"),
        (np.ma.masked_array([1]), "not an array or a number"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "is ShapeDtypeStruct"),  # type: ignore[no-untyped-call]
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_unsupported_leaves_are_rejected_by_path(leaf: Any, problem: str, engine: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        engine.save({"a": [leaf], "b": 1})

    assert f"\n  ['a'][0] {problem}" in str(caught.value) or problem == "not an array or a number"
    assert problem in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_donated_and_traced_arrays_are_rejected(engine: Any) -> None:
    with pytest.raises(CheckpointError, match=r"\['x'\] was donated or deleted, so its values are gone"):
        engine.save({"x": donated()})
    with pytest.raises(CheckpointError, match=r"\['x'\] is a tracer, which has values only while"):
        jax.jit(lambda x: engine.save({"x": x}))(1.0)
    with pytest.raises(CheckpointError, match=r"\['x'\] is a tracer, which has values only while"):
        jax.jit(lambda x: engine.save({"x": x}))(jax.new_ref(jnp.ones(2)))


def test_a_deep_tree_is_restored_with_and_without_a_template(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(500):
        tree = [tree]
    save(tmp_path / "x", tree)

    for found in (load(tmp_path / "x", like=tree), load(tmp_path / "x")):
        assert jax.tree.structure(found) == jax.tree.structure(tree)


def test_saving_a_node_with_an_equinox_module_suggests_adopt(engine: Any) -> None:
    eqx = pytest.importorskip("equinox")

    with pytest.raises(CheckpointError, match=r"activation is .*\. The equinox module MLP .*: save treewright\.adopt"):
        engine.save({"mlp": eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))})
    adopted = adopt(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)))
    engine.save_again(adopted)
    assert_same(engine.load(like=adopted), adopted)


# Refs


def with_refs() -> dict[str, Any]:
    return {"mean": jax.new_ref(jnp.arange(3.0)), "key": jax.new_ref(jax.random.key(7)), "w": jnp.ones((2, 2))}


def refs_in(tree: dict[str, Any]) -> list[bool]:
    return [isinstance(tree[name], jax.Ref) for name in ("mean", "key", "w")]


def test_refs_are_saved_as_arrays_and_restored_as_new_refs(engine: Any) -> None:
    saved = with_refs()
    engine.save(saved)
    saved["mean"][...] += 1

    for loaded in (engine.load(like=saved), engine.load()):
        assert refs_in(loaded) == [True, True, False]
        assert loaded["mean"] is not saved["mean"]
        assert loaded["mean"][...].tolist() == [0, 1, 2]
        assert (jax.random.key_data(loaded["key"][...]) == jax.random.key_data(jax.random.key(7))).all()
    arrays = {"mean": jnp.zeros(3), "key": jax.random.key(0), "w": jnp.zeros((2, 2))}
    assert refs_in(engine.load(like=arrays)) == [False, False, False]
    assert refs_in(engine.load(like=jax.eval_shape(lambda: arrays))) == [True, True, False]
    with pytest.raises(CheckpointMismatchError, match=r"\['mean'\]: shape \(3,\) saved, \(4,\) in the tree"):
        engine.load(like=with_refs() | {"mean": jax.new_ref(jnp.ones(4))})


# Ties: one array in several places of a tree is stored once and restored as one

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


def test_tied_leaves_are_restored_with_and_without_a_template(engine: Any) -> None:
    tree = tied()
    engine.save(tree)

    expected = [[0, 1, 2], [3, 4], [5, 6]]
    assert same(engine.load())[:3] == expected
    assert same(engine.load(like=tree))[:3] == expected
    abstract = jax.eval_shape(lambda: {name: tree[name] for name in ("a", "b", "k")}) | {"h": tree["h"], "n": tree["n"]}
    assert same(engine.load(like=abstract))[:3] == expected


def test_a_template_without_ties_gets_separate_arrays(engine: Any) -> None:
    engine.save(tied())

    found = engine.load(like=copied(tied()))
    assert same({name: found[name] for name in ("a", "b", "h", "k")}) == []
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)({"a": found["a"], "b": found["b"]})
    engine.save_again({"a": jnp.zeros(2), "b": jnp.ones(2)})
    assert [x.tolist() for x in engine.load(like=dict.fromkeys("ab", jnp.zeros(2))).values()] == [[0, 0], [1, 1]]
    ref = jax.new_ref(jnp.zeros(2))
    engine.save_again({"a": ref, "b": ref, "c": jax.new_ref(jnp.zeros(2))})
    found = engine.load(like={"a": ref, "b": ref, "c": jax.new_ref(jnp.ones(2))})
    assert found["a"] is found["b"] is not found["c"]


def test_tied_leaves_with_different_targets_get_separate_arrays(engine: Any) -> None:
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


def test_a_subtree_keeps_its_ties(engine: Any) -> None:
    engine.save(tied())

    assert same(engine.load(part="b")) == [[0, 1]]
    assert (engine.load(part="b.d") == ARRAY).all()
    assert same(engine.load(part="b", like={"x": ARRAY, "d": ARRAY}, renamed={"c": "x"})) == [[0, 1]]
    with pytest.warns(match="The checkpoint and the tree differ"):
        assert (engine.load(like={"b": {"d": jnp.zeros(1000)}}, strict=False)["b"]["d"] == ARRAY).all()


def test_a_tied_array_is_written_once(tmp_path: Path) -> None:
    save(tmp_path / "one", {"a": ARRAY})
    save(tmp_path / "three", {"a": ARRAY, "b": ARRAY, "c": ARRAY})

    assert (tmp_path / "three").stat().st_size - (tmp_path / "one").stat().st_size < 2000
    leaves = read_manifest(tmp_path / "three").leaves
    assert [leaf.tied for leaf in leaves] == [None, "a", "a"]
    assert len({leaf.digest for leaf in leaves}) == 1
    assert list(read_names(tmp_path / "three")) == ["a"]  # Names that plain safetensors reads
    names = to_names({"a": ARRAY, "b": ARRAY})
    assert list(names) == ["a", "b"]
    assert (from_names(names, like={"a": ARRAY, "b": jnp.zeros(1000)})["b"] == ARRAY).all()
    save(tmp_path / "refs", with_refs())
    assert str(read_manifest(tmp_path / "refs").leaves[1].form) == "float32[3] (array, ref)"


@pytest.mark.parametrize("tie", ["b", "d", "z", "c", 3])
def test_a_forged_tie_is_rejected_as_damage(tie: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": np.zeros(2), "b": ARRAY, "c": ARRAY, "d": 1.5, "e": np.ones(2)})

    forge(tmp_path / "x", lambda document: document["leaves"][0].update(tied=tie))
    with pytest.raises(CheckpointDamagedError, match=r"The manifest is damaged: .*"):
        load(tmp_path / "x")


@given(places=st.lists(st.integers(0, 3), min_size=1, max_size=8), start=st.integers(0, 7))
def test_exactly_the_saved_ties_are_restored(places: Sequence[int], start: int, tmp_path_factory: Any) -> None:
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
