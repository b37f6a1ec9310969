"""Loading: matching trees are restored exactly, and every difference is reported by path before an array is read."""

from __future__ import annotations

import time
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
from treewright import FrozenArray, Module, StaticValue, TrainState, freeze, replace, static
from treewright.checkpoint import from_names, load, save
from treewright.errors import CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# What fits


@pytest.mark.parametrize("make", [train_state, lambda: jnp.arange(3)], ids=["state", "leaf"])
def test_load_restores_a_tree_exactly_into_live_and_abstract_templates(make: Any, engine: Any) -> None:
    engine.save(make())

    for like in (make(), jax.eval_shape(make)):
        assert_same(engine.load(like=like), make())


def test_a_restored_state_does_not_retrace(engine: Any) -> None:
    def updated(state: TrainState[Net], x: jax.Array) -> TrainState[Net]:
        return state.apply_gradients(grads=jax.grad(lambda net: net(x).sum())(state.params))

    update = jax.jit(counted := count_traces(updated))
    state = update(train_state(), jnp.ones(4))
    engine.save(state)

    for like in (state, train_state(), jax.eval_shape(train_state)):
        assert_same(update(engine.load(like=like), jnp.ones(4)), update(state, jnp.ones(4)))
    assert counted.count == 1


@pytest.mark.devices(4)
def test_arrays_and_keys_get_the_shardings_of_the_template(engine: Any) -> None:
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


def test_fields_are_matched_by_name_and_script_classes_match_modules(engine: Any) -> None:
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


def test_a_moved_private_module_only_warns(engine: Any) -> None:
    class Inside(Module):
        x: Any

    engine.save(moved(Inside, "optax._src.base")(1))
    with pytest.warns(CheckpointWarning, match=r"the tree: class optax\._src\.base:.* saved, optax\.transforms"):
        assert engine.load(like=moved(Inside, "optax.transforms._base")(0)) == Inside(1)
    with pytest.raises(CheckpointMismatchError, match=r"the tree: class optax\._src\.base:"):
        engine.load(like=moved(Inside, "other.transforms._base")(0))


# What may differ


def test_on_static_mismatch_selects_error_warning_or_nothing(engine: Any) -> None:
    engine.save(net())
    like = replace(net(), width=4)

    with pytest.raises(CheckpointMismatchError, match=r"\.width: static 3 saved, 4 in the tree"):
        engine.load(like=like)
    with pytest.warns(
        CheckpointWarning, match=r"keeps its own values:\n  \.width: static 3 saved, 4 in the tree$"
    ) as seen:
        assert engine.load(like=like, on_static="warn").width == 4
    assert seen[0].filename.endswith("engines.py")
    assert engine.load(like=like, on_static="ignore").width == 4


@pytest.mark.parametrize(
    ("saved", "like", "expected"),
    [
        (jnp.array([1.5, 2], np.float32), jnp.bfloat16([0, 0]), jnp.bfloat16([1.5, 2])),
        (jnp.array([np.inf, np.nan], np.float32), jnp.bfloat16([0, 0]), jnp.bfloat16([np.inf, np.nan])),
        (jnp.array([448], np.float32), jnp.float8_e4m3fn([0]), jnp.float8_e4m3fn([448])),
        (jnp.int32([3]), jnp.array([0], np.float32), jnp.array([3], np.float32)),
        (jnp.int32([-3, 127]), jnp.int8([0, 0]), jnp.int8([-3, 127])),
        (np.array([True]), np.array([0]), np.array([1])),
        (1.5, jnp.float16(0), jnp.float16(1.5)),
        (jnp.float16(1.5), 0.0, 1.5),
        (jnp.int32(1), 0.0, 1.0),
        (jnp.float32(1.5), np.float16(0), np.float16(1.5)),
        (np.array([1.5], np.float32), np.array([0], np.float64), np.array([1.5], np.float64)),
        (jnp.array([1.5], np.float32), np.array([0], np.float64), np.array([1.5], np.float64)),
        (2, np.float16(0), np.float16(2)),
        (np.ones(2), jnp.zeros(2, jnp.float32), jnp.ones(2)),
        (np.array([1 + 2j], np.complex128), np.array([0], np.complex64), np.array([1 + 2j], np.complex64)),
    ],
)
def test_leaves_are_cast_only_with_allow_cast(saved: Any, like: Any, expected: Any, engine: Any) -> None:
    engine.save({"x": saved})

    with pytest.raises(CheckpointMismatchError, match="allow_cast=True"):
        engine.load(like={"x": like})
    assert_same(engine.load(like={"x": like}, allow_cast=True), {"x": expected})


@pytest.mark.parametrize(
    ("saved", "like"),
    [
        (jnp.array([3.7], np.float32), jnp.int32([0])),
        (3.7, 0),
        (jnp.float32(1.0), 0),
        (np.array([1j], np.complex64), np.array([0], np.float32)),
        (1j, 0.0),
        (np.array([2]), np.array([True])),
    ],
)
def test_a_lossy_cast_is_rejected_before_reading(saved: Any, like: Any, engine: Any) -> None:
    engine.save({"x": saved})

    with pytest.raises(CheckpointMismatchError, match=r"(?s)\['x'\]: dtype .*Floats are not cast to ints"):
        engine.load(like={"x": like}, allow_cast=True)


@pytest.mark.parametrize(
    ("saved", "like", "value"),
    [
        (np.array([1, 2**40]), jnp.int32([0, 0]), "1099511627776"),
        (jnp.int32([-1]), jnp.uint8([0]), "-1"),
        (2**40, np.int32(0), "1099511627776"),
        (jnp.int32([2**24 + 1]), jnp.array([0], np.float32), "16777217"),
        (jnp.uint32([2**32 - 1]), jnp.array([0], np.float32), "4294967295"),
        (np.array([2**64 - 1], np.uint64), np.array([0.0]), "18446744073709551615"),
        (np.array([2**63], np.uint64), np.array([0]), "9223372036854775808"),
        (jnp.array([np.inf], "float8_e3m4"), jnp.float8_e4m3fn([0]), "inf"),
        (jnp.array([7], np.float32), jnp.array([0], "float4_e2m1fn"), "7.0"),
        (jnp.array([0, np.nan], np.float32), jnp.array([0, 0], "float4_e2m1fn"), "nan"),
        (jnp.array([1, 1e10], np.float32), jnp.float16([0, 0]), "1e\\+10|10000000000.0"),
        (jnp.array([500], np.float32), jnp.float8_e4m3fn([0]), "500.0"),
        (jnp.array([np.inf], np.float32), jnp.float8_e4m3fn([0]), "inf"),
        (1e300, jnp.float32(0), "1e\\+300"),
        (np.array([1e300j], np.complex128), np.array([0], np.complex64), "1e\\+300"),
    ],
)
def test_an_out_of_range_cast_names_leaf_and_value(saved: Any, like: Any, value: str, engine: Any) -> None:
    engine.save({"x": saved})

    with pytest.raises(CheckpointError, match=rf"^\['x'\] was saved as \w+ and contains ({value}), which does not fit"):
        engine.load(like={"x": like}, allow_cast=True)


def test_numpy_and_jax_arrays_are_interchangeable(engine: Any) -> None:
    engine.save([np.ones(2, np.float32), jnp.zeros(2)])

    assert_same(engine.load(like=[jnp.zeros(2), np.ones(2, np.float32)]), [jnp.ones(2), np.zeros(2, np.float32)])


@pytest.mark.parametrize("saved", [jnp.asarray(1.0), jnp.full(3, 2.0), jnp.float32(1)])
def test_weak_types_of_the_template_are_restored(saved: Any, engine: Any) -> None:
    step = jax.jit(counted := count_traces(lambda tree: tree["x"] * 2))
    like = {"x": jnp.full(saved.shape, 0.0)}
    engine.save({"x": saved})
    step(like)

    for template in (like, jax.eval_shape(lambda: like)):
        found = engine.load(like=template)
        assert found["x"].weak_type
        assert_same(step(found), saved * 2)
    assert counted.count == 1


def test_a_template_needs_no_values(engine: Any) -> None:
    donated = train_state()
    engine.save(donated)
    for leaf in jax.tree.leaves(donated):
        leaf.delete()

    assert_same(engine.load(like=donated), train_state())
    with pytest.raises(CheckpointError, match=r"^\['new'\]: not saved, and abstract or donated in the tree, so there"):
        from_names({"x": 1.0}, like={"x": 0.0, "new": donated.step}, strict=False)


@pytest.mark.devices(4)
def test_an_abstract_mesh_resolves_to_the_current_mesh(engine: Any) -> None:
    mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    saved = {"x": jax.device_put(jnp.arange(8.0), NamedSharding(mesh, spec("a")))}
    like = {"x": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh.abstract_mesh, spec("a")))}  # type: ignore[no-untyped-call]
    engine.save(saved)

    with jax.set_mesh(mesh):
        found = engine.load(like=like)
    assert found["x"].sharding == saved["x"].sharding
    with pytest.raises(CheckpointError, match=r"\['x'\] has an abstract mesh without devices, {'a': 4}"):
        engine.load(like=like)


def test_frozen_arrays_are_restored_frozen(engine: Any) -> None:
    like = {"x": freeze(np.arange(3))}
    engine.save(like)

    found = engine.load(like=like)
    assert isinstance(found["x"], FrozenArray)
    assert_same(found, like)


def test_missing_and_extra_leaves_and_classes_can_be_allowed(engine: Any) -> None:
    engine.save({"a": 1, "old": 2, "net": net()})

    like = {"a": 0, "new": 3, "net": Other(net().layers, jnp.float32(0))}
    with pytest.warns(CheckpointWarning) as seen:
        found = engine.load(like=like, strict=False)
    assert_same(found, {"a": 1, "new": 3, "net": Other(net().layers, jnp.float32(7))})
    assert str(seen[0].message) == (
        "The checkpoint and the tree differ. The tree keeps its own values:\n"
        f"  ['net']: class {Net.__module__}:Net saved, {Net.__module__}:Other in the tree\n"
        "  ['old']: saved as int64[] (int), not in the tree\n"
        "  ['new']: not saved, the tree has int64[] (int)"
    )
    with pytest.raises(CheckpointError, match=r"\['b'\], \['c'\]: not saved, and abstract or donated in the tree, so"):
        engine.load(like={"a": 1, **jax.eval_shape(lambda: dict.fromkeys("bc", jnp.ones(1)))}, strict=False)


def test_a_run_resumes_into_a_fresh_state_with_python_numbers(engine: Any) -> None:
    fresh = {"step": 0, "rate": 0.5, "flag": True, "phase": 1j, "wide": np.ones(2), "count": np.int64(3)}
    engine.save(jax.jit(lambda tree: tree)(fresh))

    assert_same(engine.load(like=fresh, allow_cast=True), fresh)
    with pytest.raises(CheckpointMismatchError, match=r"differences:\n  \['count'\]: dtype .*\n  \['wide'\]: dtype"):
        engine.load(like=fresh)
    with pytest.raises(
        CheckpointMismatchError, match=r"\['step'\]: kind int32\[\] \(array\) saved, float64\[\] \(float\)"
    ):
        engine.load(like={**fresh, "step": 0.0})
    with pytest.raises(CheckpointMismatchError, match=r"\['wide'\]: dtype float32 saved, float16 in the tree"):
        engine.load(like={**fresh, "wide": np.ones(2, np.float16)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"like": {"a": 1}, "on_static": "no"}, "on_static= must be 'error', 'warn' or 'ignore', got 'no'"),
        ({"part": ""}, r"part= must be the name of a subtree, such as part='params', got ''\."),
        ({"part": ["a"]}, r"part= must be the name of a subtree, such as part='params', got \['a'\]\."),
        ({"like": {"a": 1}, "renamed": ["a"]}, r"such as \{'out': 'head'\}, got \['a'\]\."),
        ({"like": {"a": 1}, "renamed": {"a": 1}}, r"such as \{'out': 'head'\}, got \{'a': 1\}\."),
        ({"like": {"a": "x"}}, r"Nothing can be loaded into this tree:\n  \['a'\] is str 'x', not an array"),
        (
            {"like": Net},
            r"like= is the class Net\. Pass an instance, .*: like=jax\.eval_shape\(lambda: Net",
        ),
        ({"like": 1, "stric": False}, r"unexpected option 'stric' \(did you mean strict\?\)\. The options: like, part"),
        ({"template": 1}, r"unexpected option 'template'\. The options: like, part"),
        ({"strict": False}, r"strict= compares the checkpoint with a tree\. Pass the tree to load into: like=tree"),
        ({"part": "b"}, "part='b' was not saved"),
        ({"like": {"a": 1}, "renamed": {"": "b"}}, r"such as \{'out': 'head'\}, got \{'': 'b'\}\."),
        ({"like": {"a": 1}, "renamed": {"a": ""}}, r"such as \{'out': 'head'\}, got \{'a': ''\}\."),
        ({"like": {"a": 1}, "on_static": ["warn"]}, r"on_static= must be 'error', 'warn' or 'ignore', got \['warn'\]"),
    ],
)
def test_wrong_options_and_templates_are_rejected(options: Any, message: str, engine: Any) -> None:
    engine.save({"a": 1})

    with pytest.raises((CheckpointError, TypeError, ValueError), match=message):
        engine.load(**options)


def test_a_part_contains_no_keys_that_only_begin_with_its_name(engine: Any) -> None:
    tree = {"a": 1, "a.b": 2, "c": {"x": 3}, "c.d": {"x": 4}}
    engine.save(tree)

    assert (engine.load(part="a"), engine.load(part="c"), engine.load(part="c.d")) == (1, {"x": 3}, {"x": 4})
    assert engine.load(part="c", like={"x": 0}) == {"x": 3}


def test_loading_in_jit_returns_constants(engine: Any) -> None:
    tree = {"a": [jnp.ones(3), jnp.zeros(3)], "k": jax.random.key(1), "half": jnp.float16(2)}
    like = {**tree, "half": jnp.float32(0)}
    engine.save(tree)

    def sums(x: jax.Array) -> jax.Array:
        for found in (engine.load(), engine.load(like=like, allow_cast=True)):
            assert_same(found["a"], tree["a"])
            assert jax.random.key_data(found["k"]).shape == (2,)
            x += found["a"][0].sum() + found["half"]
        return x

    assert jax.jit(sums)(jnp.float32(1)) == 11


def test_64_bit_leaves_need_x64(engine: Any) -> None:
    with jax.enable_x64(True):
        tree = {"x": jnp.ones(2, jnp.float64)}
        engine.save(tree)
        assert_same(engine.load(like=tree), tree)

    with pytest.raises(
        CheckpointError, match=r"\['x'\] is float64, but JAX would convert it to float32\. Load it with"
    ):
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


def test_migrate_turns_statics_into_children_and_back(engine: Any) -> None:
    engine.save([Moving(0.5, jnp.ones(2)), Moved(0.5, jnp.ones(2))])
    like = [Moved(0.25, jnp.zeros(2)), Moving(0.25, jnp.zeros(2))]

    with pytest.raises(CheckpointMismatchError) as caught:
        engine.load(like=like)
    assert [str(one) for one in caught.value.differences if one.kind == "static"] == [
        "[0].rate: static 0.5 saved, nothing in the tree",
        "[1].rate: static nothing saved, 0.25 in the tree",
    ]

    def migrate(leaves: dict[str, Any]) -> dict[str, Any]:
        del leaves["1.rate"]
        return leaves | {"0.rate": 0.5}

    found = engine.load(like=like, on_static="ignore", migrate=migrate)
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


def test_renamed_and_migrate_apply_to_optimiser_moments(engine: Any) -> None:
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
def test_renamed_replaces_whole_names_at_any_depth(saved: Any, renamed: Any, like: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", saved)

    assert load(tmp_path / "x", like=jax.tree.map(lambda _: 0, like), renamed=renamed) == like


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"kernle": "w"}, r"no saved name contains 'kernle' \(did you mean kernel\?\)"),
        ({"xyz": "w"}, r"no saved name contains 'xyz'\."),
        ({"kernel": "b"}, r"\['b'\] and \['kernel'\] would both be named 'b'"),
    ],
)
def test_renamed_rejects_unknown_and_colliding_names(renamed: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path / "x", {"b": 1, "kernel": 2})

    with pytest.raises(CheckpointError, match=f"renamed=: {message}"):
        load(tmp_path / "x", like={"b": 1}, renamed=renamed)


def test_renamed_is_fast_for_deep_trees(tmp_path: Path) -> None:
    tree: Any = {"leaf": 1}
    for _ in range(900):
        tree = {"a": tree, "b": 2}
    save(tmp_path / "x", tree)
    start = time.monotonic()

    with pytest.raises(CheckpointMismatchError):
        load(tmp_path / "x", like=tree, renamed={"leaf": "c", "a.b": "d"})
    assert time.monotonic() - start < 10


# migrate


def test_migrate_receives_every_saved_leaf_on_the_host(engine: Any) -> None:
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


def test_results_of_migrate_are_compared_with_the_tree(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": jnp.ones(2)})

    def migrated(values: Any, like: Any = None, **options: Any) -> Any:
        return load(tmp_path / "x", like=like or {"a": jnp.ones(2)}, migrate=lambda _: values, **options)

    with pytest.raises(CheckpointMismatchError, match=r"b: saved as int64\[\] \(int\).*\n.*\['a'\]: shape \(3,\)"):
        migrated({"a": np.zeros(3, np.float32), "b": 1})
    with pytest.raises(CheckpointError, match=r"The value named 'a' is str 'x', not an array or a number\.$"):
        migrated({"a": "x"})
    with pytest.raises(TypeError, match=r"^migrate= returned None, but must return a dict"):
        migrated(None)
    for like in (jax.eval_shape(lambda: {"a": jnp.ones(2), "b": jnp.ones(1)}), {"a": jnp.ones(2), "b": jnp.ones(1)}):
        with pytest.raises(
            CheckpointMismatchError, match=r"\['b'\]: not saved, .*\n.*\n  With migrate=, each leaf needs"
        ):
            migrated({"a": np.ones(2, np.float32)}, like, strict=False)


def test_the_tree_may_be_the_second_argument_as_in_equinox(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(3.0)}
    save(tmp_path / "file", tree)

    assert load(tmp_path / "file", tree)["w"].tolist() == [0.0, 1.0, 2.0]
