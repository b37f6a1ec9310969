"""Loading: what fits comes back exactly, and every difference is told by path before an array is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import Net, Other, net, spec, train_state
from tests.conftest import count_traces
from treewright import Module, StaticValue, TrainState, replace, static
from treewright.checkpoint import load, save
from treewright.errors import CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# What fits


@pytest.mark.parametrize("make", [train_state, lambda: jnp.arange(3)], ids=["state", "leaf"])
def test_a_tree_comes_back_exactly_into_a_live_and_an_abstract_one(make: Any, engine: Any) -> None:
    engine.save(make())

    for like in (make(), jax.eval_shape(make)):
        assert_same(engine.load(like=like), make())


def test_a_restored_state_does_not_trace_again(engine: Any) -> None:
    def updated(state: TrainState[Net], x: jax.Array) -> TrainState[Net]:
        return state.apply_gradients(grads=jax.grad(lambda net: net(x).sum())(state.params))

    update = jax.jit(counted := count_traces(updated))
    state = update(train_state(), jnp.ones(4))
    engine.save(state)

    for like in (state, train_state(), jax.eval_shape(train_state)):
        assert_same(update(engine.load(like=like), jnp.ones(4)), update(state, jnp.ones(4)))
    assert counted.count == 1


def test_arrays_and_keys_come_back_where_those_of_the_template_lie(engine: Any) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    saved, other, keys = (NamedSharding(mesh, spec(*axes)) for axes in (("a", "b"), ("b",), ("a",)))
    x, key = jnp.arange(32.0).reshape(4, 8), jax.random.split(jax.random.key(0), 8)
    tree = {"x": jax.device_put(x, saved), "key": jax.device_put(key, keys), "host": np.ones(2), "here": x}
    engine.save(tree)
    like = {
        "x": jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=other),  # type: ignore[no-untyped-call]
        "key": jax.device_put(jax.random.split(jax.random.key(1), 8), keys),
        "host": np.ones(2),
        "here": jax.device_put(x, jax.devices()[2]),
    }

    found = engine.load(like=like)
    assert found["x"].sharding == other
    assert found["key"].sharding == keys
    assert isinstance(found["host"], np.ndarray)
    assert found["here"].devices() == {jax.devices()[2]}
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(key))


def moved(cls: Any, module: str) -> Any:
    cls.__module__ = module
    return cls


def test_fields_are_found_by_name_and_a_class_of_a_script_is_the_same_in_a_module(engine: Any) -> None:
    class Pair(NamedTuple):
        x: Any

    class Here(Module):
        x: Any

    classes: list[Any] = [
        type("Both", (Module,), {"__annotations__": dict.fromkeys(order, Any), "__checkpoint_name__": "Both"})
        for order in ("ab", "ba")
    ]
    before, after = classes
    engine.save([moved(Here, "__main__")(1), moved(Pair, "a.b")(2), before(a=1, b=2)])
    found = engine.load(like=[moved(Here, "lab")(0), moved(Pair, "c")(0), after(a=0, b=0)])
    assert_same(found, [Here(1), Pair(2), after(a=1, b=2)])


def test_a_private_module_of_a_package_may_change_with_a_warning(engine: Any) -> None:
    class Inside(Module):
        x: Any

    engine.save(moved(Inside, "optax._src.base")(1))
    with pytest.warns(CheckpointWarning, match=r"the tree: class optax\._src\.base:.* saved, optax\.transforms"):
        assert engine.load(like=moved(Inside, "optax.transforms._base")(0)) == Inside(1)
    with pytest.raises(CheckpointMismatchError, match=r"the tree: class optax\._src\.base:"):
        engine.load(like=moved(Inside, "other.transforms._base")(0))


# What may differ


def test_a_static_that_differs_is_an_error_a_warning_or_nothing(engine: Any) -> None:
    engine.save(net())
    like = replace(net(), width=4)

    with pytest.raises(CheckpointMismatchError, match=r"\.width: static 3 saved, 4 in the tree"):
        engine.load(like=like)
    with pytest.warns(CheckpointWarning, match=r"keeps its own:\n  \.width: static 3 saved, 4 in the tree$") as seen:
        assert engine.load(like=like, on_static="warn").width == 4
    assert seen[0].filename.endswith("engines.py")
    assert engine.load(like=like, on_static="ignore").width == 4


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


def test_numpy_and_jax_arrays_stand_for_each_other_and_weak_types_come_back_strong(engine: Any) -> None:
    engine.save([np.ones(2, np.float32), jnp.zeros(2), jnp.asarray(1.0)])

    found = engine.load(like=[jnp.zeros(2), np.ones(2, np.float32), jnp.asarray(1.0)])
    assert_same(found, [jnp.ones(2), np.zeros(2, np.float32), jnp.float32(1)])
    assert not found[2].weak_type


def test_leaves_of_one_side_and_other_classes_may_be_let_through(engine: Any) -> None:
    engine.save({"a": 1, "old": 2, "net": net()})

    like = {"a": 0, "new": 3, "net": Other(net().layers, jnp.float32(0))}
    with pytest.warns(CheckpointWarning) as seen:
        found = engine.load(like=like, strict=False)
    assert_same(found, {"a": 1, "new": 3, "net": Other(net().layers, jnp.float32(7))})
    assert str(seen[0].message) == (
        "Not all of the checkpoint fits the tree, which keeps its own:\n"
        f"  ['net']: class {Net.__module__}:Net saved, {Net.__module__}:Other in the tree\n"
        "  ['old']: saved as int64[] (int), not in the tree\n"
        "  ['new']: not saved, the tree has int64[] (int)"
    )
    with pytest.raises(CheckpointError, match=r"\['b'\], \['c'\]: not saved, and abstract in the tree, so"):
        engine.load(like={"a": 1, **jax.eval_shape(lambda: dict.fromkeys("bc", jnp.ones(1)))}, strict=False)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"like": {"a": 1}, "on_static": "no"}, "on_static takes 'error', 'warn' or 'ignore', got 'no'"),
        ({"like": {"a": "x"}}, r"Nothing can be loaded into this tree:\n  \['a'\] is str 'x', not an array"),
        (
            {"like": Net},
            r"like= is the class Net\. Give an instance, .*: like=jax\.eval_shape\(lambda: Net",
        ),
        ({"like": 1, "stric": False}, r"unexpected option 'stric' \(did you mean strict\?\)\. The options: like, part"),
        ({"template": 1}, r"unexpected option 'template'\. Write like= instead\. The options: "),
        ({"strict": False}, "strict= says how a checkpoint may differ from a tree: give one to load into, like=tree"),
        ({"like": {"a": 1}, "modules": "optax"}, "modules= is for loading without like=, .*: leave it out"),
        ({"part": "b"}, "part='b': nothing that was saved has this name"),
    ],
)
def test_wrong_options_and_templates_are_refused(options: Any, message: str, engine: Any) -> None:
    engine.save({"a": 1})

    with pytest.raises((CheckpointError, TypeError, ValueError), match=message):
        engine.load(**options)


def test_64_bits_need_jax_to_have_them(engine: Any) -> None:
    with jax.enable_x64(True):
        tree = {"x": jnp.ones(2, jnp.float64)}
        engine.save(tree)
        assert_same(engine.load(like=tree), tree)

    with pytest.raises(CheckpointError, match=r"\['x'\] is a float64, and JAX would make it a float32\. Load it with"):
        engine.load(like=tree)


# Trees that changed since they were saved: fields that moved, names that changed, leaves that are new


class Moving(Module):
    """A field that is static in one version of the class and a child in the other."""

    __checkpoint_name__ = "tests.Moving"
    rate: StaticValue = static(default=0.5)
    w: Any = 0.0


class Moved(Module):
    __checkpoint_name__ = "tests.Moving"
    rate: Any = 0.5
    w: Any = 0.0


def test_a_static_may_become_a_child_whose_value_migrate_gives_and_the_other_way_round(engine: Any) -> None:
    engine.save([Moving(0.5, jnp.ones(2)), Moved(0.5, jnp.ones(2))])
    like = [Moved(0.25, jnp.zeros(2)), Moving(0.25, jnp.zeros(2))]

    with pytest.raises(CheckpointMismatchError) as caught:
        engine.load(like=like)
    assert [str(one) for one in caught.value.differences if one.kind == "static"] == [
        "[0].rate: static 0.5 saved, nothing in the tree",
        "[1].rate: static nothing saved, 0.25 in the tree",
    ]
    with pytest.warns(
        CheckpointWarning, match=r"its own:\n  1\.rate: saved as float64\[\] \(float\), not in the tree$"
    ):
        found = engine.load(
            like=like, on_static="ignore", strict=False, migrate=lambda leaves: {**leaves, "0.rate": 0.5}
        )
    assert_same(found, [Moved(0.5, jnp.ones(2)), Moving(0.25, jnp.ones(2))])


# Names


class Model(Module):
    __checkpoint_name__ = "tests.Model"
    hidden: Any
    out: Any
    name: str = static(default="first")


class NewModel(Module):
    __checkpoint_name__ = "tests.Model"
    hidden: Any
    head: Any
    title: str = static(default="first")


def before() -> TrainState[Any]:
    params = Model({"kernel": jnp.ones((2, 3))}, {"kernel": jnp.full((3, 1), 2.0)})
    state: TrainState[Any] = TrainState.create(params=params, tx=optax.adam(1e-2))
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, params))


def after(title: str = "first") -> TrainState[Any]:
    params = NewModel({"kernel": jnp.zeros((2, 3))}, {"kernel": jnp.zeros((3, 1)), "bias": jnp.zeros(1)}, title)
    return TrainState.create(params=params, tx=optax.adam(1e-2))


RENAMED = {"out": "head", "name": "title"}


def test_a_layer_is_renamed_and_gets_a_bias_in_parameters_and_both_moments(engine: Any) -> None:
    state = before()
    engine.save(state)

    def with_biases(leaves: dict[str, Any]) -> dict[str, Any]:
        biases = {name.replace("kernel", "bias"): np.zeros(1, np.float32) for name in leaves if "head.kernel" in name}
        return leaves | biases

    found = engine.load(like=after(), renamed=RENAMED, migrate=with_biases)
    assert jax.tree.structure(found) == jax.tree.structure(after())
    for old, new in (
        (state.params, found.params),
        (state.opt_state[0].mu, found.opt_state[0].mu),
        (state.opt_state[0].nu, found.opt_state[0].nu),
    ):
        assert_same(new.head, {"kernel": old.out["kernel"], "bias": jnp.zeros(1)})
        assert_same(new.hidden, old.hidden)
    with pytest.raises(CheckpointMismatchError, match=r"\.params\.title: static 'first' saved, 'other' in the tree"):
        engine.load(like=after("other"), renamed=RENAMED, migrate=with_biases)
    assert found.apply_gradients(grads=jax.tree.map(jnp.ones_like, found.params)).step == 2


@pytest.mark.parametrize(
    ("saved", "renamed", "like"),
    [
        ({"a": 1, "b": 2}, {"a": "b", "b": "a"}, {"a": 2, "b": 1}),
        ({"a": {"b": 1}, "b": 2}, {"a.b": "c", "b": "d"}, {"c": 1, "d": 2}),
        ({"a": 1}, {"a": "a.b"}, {"a": {"b": 1}}),
        ([{"x": 1}, {"x": 2}], {"x": "y"}, [{"y": 1}, {"y": 2}]),
    ],
)
def test_names_change_as_whole_steps_at_any_depth(saved: Any, renamed: Any, like: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", saved)

    assert load(tmp_path / "x", like=jax.tree.map(lambda _: 0, like), renamed=renamed) == like


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"kernle": "w"}, r"nothing that was saved is called 'kernle' \(did you mean kernel\?\)"),
        ({"xyz": "w"}, r"nothing that was saved is called 'xyz'\."),
        ({"kernel": "b"}, r"\['b'\] and \['kernel'\] would both be called 'b'"),
    ],
)
def test_a_name_that_was_not_saved_and_two_leaves_of_one_name_are_refused(
    renamed: Any, message: str, tmp_path: Path
) -> None:
    save(tmp_path / "x", {"b": 1, "kernel": 2})

    with pytest.raises(CheckpointError, match=f"renamed: {message}"):
        load(tmp_path / "x", like={"b": 1}, renamed=renamed)


# migrate


def test_migrate_sees_every_saved_leaf_on_the_host(engine: Any) -> None:
    engine.save({"a": jnp.ones(2), "gone": 3, "key": jax.random.key(0)})
    seen: dict[str, Any] = {}

    def migrate(leaves: dict[str, Any]) -> dict[str, Any]:
        seen.update(leaves)
        return {"a": leaves["a"] + 1, "key": leaves["key"]}

    found = engine.load(like={"a": jnp.zeros(2), "key": jax.random.key(1)}, migrate=migrate)
    assert type(seen["a"]) is np.ndarray
    assert seen["gone"] == 3
    assert_same(found["a"], jnp.full(2, 2.0))
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(0))).all()


def test_what_migrate_gives_is_compared_with_the_tree(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": jnp.ones(2)})

    def migrated(values: Any, like: Any = None, **options: Any) -> Any:
        return load(tmp_path / "x", like=like or {"a": jnp.ones(2)}, migrate=lambda _: values, **options)

    with pytest.raises(CheckpointMismatchError, match=r"b: saved as int64\[\] \(int\).*\n.*\['a'\]: shape \(3,\)"):
        migrated({"a": np.zeros(3, np.float32), "b": 1})
    with pytest.raises(CheckpointError, match=r"The value named 'a' is str 'x', not an array or a number\. Make it a"):
        migrated({"a": "x"})
    with pytest.raises(TypeError, match=r"^migrate= returned None\. It is given .*, and returns a dict"):
        migrated(None)
    with pytest.raises(CheckpointError, match=r"\['b'\]: not saved, and abstract in the tree"):
        migrated(
            {"a": np.ones(2, np.float32)}, jax.eval_shape(lambda: {"a": jnp.ones(2), "b": jnp.ones(1)}), strict=False
        )
