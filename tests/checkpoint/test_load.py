"""Loading: what fits comes back exactly, and every difference is told by path before an array is read."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same
from tests.checkpoint.engines import engine as engine  # noqa: PLC0414  pytest finds the fixture here
from tests.checkpoint.models import Net, Other, Settings, net, scaled, spec, train_state
from tests.conftest import count_traces
from treewright import Module, TrainState, replace
from treewright.errors import CheckpointError, CheckpointMismatchError, CheckpointWarning

pytestmark = pytest.mark.slow

# What fits


def test_a_training_state_comes_back_exactly(engine: Any) -> None:
    state = train_state()
    engine.save(state)

    assert_same(engine.load(like=state), state)


def test_an_abstract_tree_is_a_template(engine: Any) -> None:
    state = train_state()
    engine.save(state)

    assert_same(engine.load(like=jax.eval_shape(train_state)), state)


def test_a_restored_state_does_not_trace_again(engine: Any) -> None:
    def updated(state: TrainState[Net], x: jax.Array) -> TrainState[Net]:
        return state.apply_gradients(grads=jax.grad(lambda net: net(x).sum())(state.params))

    update = jax.jit(counted := count_traces(updated))
    state = update(train_state(), jnp.ones(4))
    engine.save(state)

    for like in (state, train_state(), jax.eval_shape(train_state)):
        assert_same(update(engine.load(like=like), jnp.ones(4)), update(state, jnp.ones(4)))
    assert counted.count == 1


def test_weak_types_come_back_strong(engine: Any) -> None:
    engine.save({"x": jnp.asarray(1.0)})
    found = engine.load(like={"x": jnp.asarray(1.0)})["x"]

    assert jnp.asarray(1.0).weak_type
    assert not found.weak_type


def test_arrays_come_back_where_those_of_the_template_lie(engine: Any) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    sharded, other = NamedSharding(mesh, spec("a", "b")), NamedSharding(mesh, spec("b"))
    x = jnp.arange(32.0).reshape(4, 8)
    engine.save({"x": jax.device_put(x, sharded), "key": jax.random.key(0), "host": np.ones(2), "here": x})
    keys = NamedSharding(mesh, spec())
    like = {
        "x": jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=other),  # type: ignore[no-untyped-call]
        "key": jax.device_put(jax.random.key(1), keys),
        "host": np.ones(2),
        "here": jax.device_put(x, jax.devices()[2]),
    }

    found = engine.load(like=like)
    assert found["x"].sharding == other
    assert found["key"].sharding.is_equivalent_to(keys, 0)
    assert isinstance(found["host"], np.ndarray)
    assert found["here"].devices() == {jax.devices()[2]}
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(jax.random.key(0)))


def test_keys_that_are_sharded_keep_their_sharding(engine: Any) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), sharding)
    engine.save(keys)

    found = engine.load(like=keys)
    assert found.sharding == sharding
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys))


def test_a_tree_may_be_a_leaf(engine: Any) -> None:
    engine.save(jnp.arange(3))

    assert_same(engine.load(like=jnp.zeros(3, jnp.int32)), jnp.arange(3))


def test_fields_in_another_order_are_found_by_name(engine: Any) -> None:
    class Before(Module):
        __checkpoint_name__ = "Both"
        a: Any
        b: Any

    class After(Module):
        __checkpoint_name__ = "Both"
        b: Any
        a: Any

    engine.save(Before(1, 2))
    assert engine.load(like=After(0, 0)) == After(a=1, b=2)


def test_a_class_of_a_script_and_the_same_in_a_module_are_one(engine: Any) -> None:
    class Pair(NamedTuple):
        x: Any

    class Here(Module):
        x: Any

    def moved(cls: Any, module: str) -> Any:
        cls.__module__ = module
        return cls

    engine.save([moved(Here, "__main__")(1), moved(Pair, "a.b")(2)])
    assert_same(engine.load(like=[moved(Here, "lab")(0), moved(Pair, "c")(0)]), [Here(1), Pair(2)])


def test_a_private_module_of_a_package_may_change(engine: Any) -> None:
    class Inside(Module):
        x: Any

    Inside.__module__ = "optax._src.base"
    engine.save(Inside(1))
    Inside.__module__ = "optax.transforms._base"
    with pytest.warns(CheckpointWarning, match=r"the tree: class optax\._src\.base:.* saved, optax\.transforms"):
        assert engine.load(like=Inside(0)) == Inside(1)
    Inside.__module__ = "other.transforms._base"
    with pytest.raises(CheckpointMismatchError, match=r"the tree: class optax\._src\.base:"):
        engine.load(like=Inside(0))


X = jnp.zeros((2, 3))


# What may differ


def test_a_static_that_differs_is_an_error_a_warning_or_nothing(engine: Any) -> None:
    engine.save(net())
    like = replace(net(), width=4)

    with pytest.raises(CheckpointMismatchError, match=r"\.width: static 3 saved, 4 in the tree"):
        engine.load(like=like)
    with pytest.warns(
        CheckpointWarning, match=r"the tree keeps its own:\n  \.width: static 3 saved, 4 in the tree"
    ) as seen:
        assert engine.load(like=like, on_static="warn").width == 4
    assert seen[0].filename.endswith("engines.py")
    assert engine.load(like=like, on_static="ignore").width == 4


def test_a_static_that_has_only_a_description_is_warned_of(engine: Any) -> None:
    engine.save(Settings(scaled(0.5)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.load(like=Settings(scaled(0.5)))
        engine.load(like=Settings(scaled(2.0)), on_static="ignore")
    with pytest.warns(CheckpointWarning, match=r"\(factor=0\.5\) #\w+ saved, .*\(factor=2\.0\) #\w+ in the tree"):
        engine.load(like=Settings(scaled(2.0)))
    with pytest.raises(CheckpointMismatchError, match=r"static tests\.checkpoint\.models\.scaled"):
        engine.load(like=Settings(3))


def test_another_learning_rate_is_warned_of(engine: Any) -> None:
    engine.save(train_state())
    state: TrainState[Net] = TrainState.create(params=net(), tx=optax.adam(1e-3))

    with pytest.warns(CheckpointWarning, match=r"step_size=-0\.01.*step_size=-0\.001"):
        assert engine.load(like=state).tx is state.tx


@pytest.mark.parametrize(
    ("saved", "like", "expected"),
    [
        (jnp.float32([1.5, 2]), jnp.bfloat16([0, 0]), jnp.bfloat16([1.5, 2])),
        (jnp.int32([3]), jnp.float32([0]), jnp.float32([3])),
        (1.5, jnp.float32(0), jnp.float32(1.5)),
        (jnp.float16(1.5), 0.0, 1.5),
        (jnp.float32(1.5), 0, 1),
        (jnp.int32(1), 0.0, 1.0),
        (jnp.float32(1.5), np.float16(0), np.float16(1.5)),
        (2, np.float16(0), np.float16(2)),
        (np.ones(2), jnp.zeros(2, jnp.float32), jnp.ones(2)),
    ],
)
def test_a_leaf_is_cast_only_if_that_is_allowed(saved: Any, like: Any, expected: Any, engine: Any) -> None:
    engine.save({"x": saved})

    with pytest.raises(CheckpointMismatchError, match="allow_cast=True"):
        engine.load(like={"x": like})
    assert_same(engine.load(like={"x": like}, allow_cast=True), {"x": expected})


def test_what_went_through_jit_loads_into_the_tree_that_went_in(engine: Any) -> None:
    fresh: Any = {"int": 3, "float": 0.5, "bool": True, "complex": 1j, "wide": np.arange(3.0), "scalar": np.int64(4)}
    engine.save(jax.jit(lambda tree: tree)(fresh))

    assert_same(engine.load(like={**jax.tree.map(lambda leaf: leaf * 0, fresh), "bool": False}), fresh)


def test_numpy_and_jax_arrays_stand_for_each_other(engine: Any) -> None:
    engine.save([np.ones(2, np.float32), jnp.zeros(2)])

    assert_same(engine.load(like=[jnp.zeros(2), np.ones(2, np.float32)]), [jnp.ones(2), np.zeros(2, np.float32)])


def test_leaves_of_one_side_may_be_let_through(engine: Any) -> None:
    engine.save({"a": 1, "old": 2})

    with pytest.warns(CheckpointWarning) as seen:
        assert engine.load(like={"a": 0, "new": 3}, strict=False) == {"a": 1, "new": 3}
    assert str(seen[0].message) == (
        "Not all of the checkpoint fitted the tree (strict=False); 1 leaf was loaded: ['a']\n"
        "Dropped, since the tree has no place for them:\n"
        "  ['old']: int64[] (int)\n"
        "Not saved, so they have the value that they had in the tree:\n"
        "  ['new']: int64[] (int)"
    )
    assert_same(engine.load(like={"a": 0, "old": 0}, strict=False), {"a": 1, "old": 2})  # without a word


def test_an_account_of_many_leaves_is_short(engine: Any) -> None:
    engine.save({"a": 1, "old": list(range(100))})

    with pytest.warns(CheckpointWarning, match=r"\['old'\]\[19\].*\n  and 80 more$"):
        engine.load(like={"a": 1}, strict=False)
    with pytest.warns(
        CheckpointWarning, match=r"; 100 leaves were loaded: \['old'\]\[0\], .*\['old'\]\[19\], \.\.\.\nDropped"
    ):
        engine.load(like={"old": list(range(100))}, strict=False)


def test_what_stands_in_place_of_a_name_or_of_named_values_is_refused_with_what_belongs_there(engine: Any) -> None:
    engine.save({"a": 1})
    like: Any = {"a": 0}

    with pytest.raises(TypeError, match=r"^migrate= returned None\. It is given .*, and returns a dict"):
        engine.load(like=like, migrate=lambda values: values.update(a=2))
    with pytest.raises(TypeError, match=r"^A value is named by text, such as 'layers\.0\.kernel', got 1\.$"):
        engine.load(like=like, migrate=lambda values: {1: 2})
    with pytest.raises(TypeError, match=r"^part= takes the flat name of one part, such as 'params', got \['a'\]\.$"):
        engine.load(like=like, part=["a"])
    assert engine.load(like=like, migrate=lambda values: {"a": 2}) == {"a": 2}


def test_a_run_resumes_into_a_fresh_state_whose_numbers_went_through_jit(engine: Any) -> None:
    fresh = {"step": 0, "rate": 0.5, "flag": True, "phase": 1j, "wide": np.ones(2), "count": np.int64(3)}
    engine.save(jax.jit(lambda tree: tree)(fresh))

    assert_same(engine.load(like=fresh), fresh)
    with pytest.raises(
        CheckpointMismatchError, match=r"\['step'\]: kind int32\[\] \(array\) saved, float64\[\] \(float\)"
    ):
        engine.load(like={**fresh, "step": 0.0})
    with pytest.raises(CheckpointMismatchError, match=r"\['wide'\]: dtype float32 saved, float16 in the tree"):
        engine.load(like={**fresh, "wide": np.ones(2, np.float16)})


def test_another_class_may_be_let_through(engine: Any) -> None:
    engine.save(net())

    like = Other(net().layers, jnp.float32(0))
    with pytest.warns(
        CheckpointWarning, match=r"Of other classes:\n  the tree: class .*:Net saved, .*:Other in the tree"
    ):
        assert_same(engine.load(like=like, strict=False), Other(net().layers, jnp.float32(7)))


def test_a_leaf_without_any_value_is_an_error(engine: Any) -> None:
    engine.save({"a": jnp.ones(1)})
    like = jax.eval_shape(lambda: {"a": jnp.ones(1), "b": X, "c": X})

    with pytest.raises(CheckpointError, match=r"\['b'\], \['c'\]: not saved, and abstract in the tree, so there is no"):
        engine.load(like=like, strict=False)


def test_wrong_options_and_templates_are_refused(engine: Any) -> None:
    engine.save({"a": 1})

    with pytest.raises(ValueError, match="on_static takes 'error', 'warn' or 'ignore', got 'no'"):
        engine.load(like={"a": 1}, on_static="no")
    with pytest.raises(
        CheckpointError, match=r"Nothing can be loaded into this tree:\n  \['a'\] is str 'x', not an array"
    ):
        engine.load(like={"a": "x"})


def test_64_bits_need_jax_to_have_them(engine: Any) -> None:
    with jax.enable_x64(True):
        tree = {"x": jnp.ones(2, jnp.float64)}
        engine.save(tree)
        assert_same(engine.load(like=tree), tree)

    with pytest.raises(CheckpointError, match=r"\['x'\] is a float64, and JAX would make it a float32\. Load it with"):
        engine.load(like=tree)
