"""Leaves: each is restored with its type, dtype, shape and bits, or rejected by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same
from tests.checkpoint.forged_files import forge
from tests.checkpoint.models import spec
from treewright import Static, adopt, freeze
from treewright.checkpoint import load, read_manifest, read_names, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
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
        (np.ma.masked_array([1]), "is MaskedArray i64[1](numpy). Save its .data and .mask"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "is ShapeDtypeStruct"),  # type: ignore[no-untyped-call]
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_unsupported_leaves_are_rejected_by_path(leaf: Any, problem: str, engine: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        engine.save({"a": [leaf], "b": 1})

    assert f"\n  ['a'][0] {problem}" in str(caught.value)
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


def test_a_ref_in_two_places_is_rejected(engine: Any) -> None:
    ref = jax.new_ref(jnp.zeros(2))
    with pytest.raises(
        CheckpointError, match=r"\['b'\]\[0\] is the same ref as \['a'\], but would be restored as a second"
    ):
        engine.save({"a": ref, "b": [ref]})


def test_an_array_in_two_places_becomes_two_arrays(engine: Any) -> None:
    x, host, key = jnp.arange(3.0), np.arange(3), jax.random.key(0)
    tree = {"a": x, "b": [x], "h": [host, host], "k": (key, key)}
    engine.save(tree)

    found = engine.load(like=tree)
    assert_same({name: found[name] for name in "abh"}, {name: tree[name] for name in "abh"})
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)({"a": found["a"], "b": found["b"]})
    assert found["h"][0] is not found["h"][1]
    assert_same(engine.load(part="b", like=[x]), [x])


def test_saved_names_are_the_names_of_leaves(tmp_path: Path) -> None:
    save(tmp_path / "refs", with_refs())
    assert str(read_manifest(tmp_path / "refs").leaves[1].form) == "float32[3] (array, ref)"
    save(tmp_path / "x", {"a": np.ones(2), "b": np.ones(2)})
    assert list(read_names(tmp_path / "x")) == ["a", "b"]
    for name in ("b", "z", 3):
        changed: dict[str, Any] = {"form": ["numpy", [3], "int8"], "saved_name": name}

        def change(document: Any, changed: dict[str, Any] = changed) -> None:
            document["leaves"][0].update(changed)

        forge(tmp_path / "x", change)
        with pytest.raises(CheckpointDamagedError, match=r"manifest is damaged: .*'saved_name'"):
            load(tmp_path / "x")
