"""Trees that changed since they were saved: fields that moved, names that changed, leaves that are new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.checkpoint.engines import ByFile, assert_same
from tests.checkpoint.engines import engine as engine  # noqa: PLC0414  pytest finds the fixture here
from treewright import Module, Static, StaticValue, TrainState, static
from treewright.checkpoint import from_names, load, read_manifest, save, to_names
from treewright.errors import CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


class Moving(Module):
    """A field that is static in one version of the class and a child in the other."""

    __checkpoint_name__ = "tests.Moving"
    rate: StaticValue = static(default=0.5)
    w: Any = 0.0


class Moved(Module):
    __checkpoint_name__ = "tests.Moving"
    rate: Any = 0.5
    w: Any = 0.0


def test_a_static_that_became_a_child_gets_its_value_in_migrate(engine: Any) -> None:
    engine.save(Moving(0.5, jnp.ones(2)))
    like = Moved(0.25, jnp.zeros(2))

    with pytest.raises(CheckpointMismatchError, match=r"\.rate: static 0\.5 saved, a child in the tree") as caught:
        engine.load(like=like)
    assert "on_static='warn', and its value in migrate=" in str(caught.value)
    found = engine.load(like=like, on_static="ignore", migrate=lambda leaves: {**leaves, "rate": 0.5})
    assert_same(found, Moved(0.5, jnp.ones(2)))


def test_a_child_that_became_a_static_is_a_difference(engine: Any) -> None:
    engine.save(Moved(0.5, jnp.ones(2)))
    like = Moving(0.25, jnp.zeros(2))

    with pytest.raises(CheckpointMismatchError, match=r"\.rate: static a child saved, 0\.25 in the tree"):
        engine.load(like=like)
    with pytest.warns(CheckpointWarning, match=r"Dropped, .*:\n  \.rate: "):
        assert_same(engine.load(like=like, on_static="ignore", strict=False), Moving(0.25, jnp.ones(2)))


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


def after() -> TrainState[Any]:
    params = NewModel({"kernel": jnp.zeros((2, 3))}, {"kernel": jnp.zeros((3, 1)), "bias": jnp.zeros(1)})
    return TrainState.create(params=params, tx=optax.adam(1e-2))


def test_a_layer_is_renamed_and_gets_a_bias_in_parameters_and_both_moments(engine: Any) -> None:
    state = before()
    engine.save(state)

    def with_biases(leaves: dict[str, Any]) -> dict[str, Any]:
        biases = {name.replace("kernel", "bias"): np.zeros(1, np.float32) for name in leaves if "head.kernel" in name}
        return leaves | biases

    found = engine.load(like=after(), renamed={"out": "head", "name": "title"}, migrate=with_biases)

    assert jax.tree.structure(found) == jax.tree.structure(after())
    for old, new in (
        (state.params, found.params),
        (state.opt_state[0].mu, found.opt_state[0].mu),
        (state.opt_state[0].nu, found.opt_state[0].nu),
    ):
        assert_same(new.head["kernel"], old.out["kernel"])
        assert_same(new.hidden["kernel"], old.hidden["kernel"])
        assert_same(new.head["bias"], jnp.zeros(1))
    assert found.apply_gradients(grads=jax.tree.map(jnp.ones_like, found.params)).step == 2


def test_new_leaves_may_keep_what_the_tree_has(engine: Any) -> None:
    engine.save(before())

    with pytest.warns(
        CheckpointWarning, match=r"; 8 leaves were loaded: .*\nNot saved, .* value that they had in the tree:"
    ):
        found = engine.load(like=after(), renamed={"out": "head", "name": "title"}, strict=False)
    assert_same(found.params.head, {"kernel": before().params.out["kernel"], "bias": jnp.zeros(1)})


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


def test_a_static_in_a_renamed_node_is_compared(engine: Any) -> None:
    engine.save({"old": Model(1.0, 2.0)})

    with pytest.raises(CheckpointMismatchError, match=r"\['new'\]\.name: static 'first' saved, 'other' in the tree"):
        engine.load(like={"new": Model(0.0, 0.0, "other")}, renamed={"old": "new"})


def test_a_name_that_was_not_saved_is_refused_with_the_close_one(engine: Any) -> None:
    engine.save({"kernel": 1})

    with pytest.raises(CheckpointError, match=r"nothing that was saved is called 'kernle' \(did you mean kernel\?\)"):
        engine.load(like={"kernel": 1}, renamed={"kernle": "w"})
    with pytest.raises(CheckpointError, match=r"nothing that was saved is called 'xyz'\."):
        engine.load(like={"kernel": 1}, renamed={"xyz": "w"})


def test_two_leaves_can_not_get_one_name(engine: Any) -> None:
    engine.save({"a": 1, "b": 2})

    with pytest.raises(CheckpointError, match=r"renamed: \['a'\] and \['b'\] would both be called 'b'"):
        engine.load(like={"b": 1}, renamed={"a": "b"})


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


def test_what_migrate_gives_is_compared_with_the_tree(engine: Any) -> None:
    engine.save({"a": jnp.ones(2)})

    with pytest.raises(CheckpointMismatchError, match=r"b: saved as int64\[\] \(int\).*\n.*\['a'\]: shape \(3,\)"):
        engine.load(like={"a": jnp.ones(2)}, migrate=lambda _: {"a": np.zeros(3, np.float32), "b": 1})
    with pytest.raises(
        CheckpointError, match=r"The value named 'a' is str 'x', not an array or a number\. Make it a static,"
    ):
        engine.load(like={"a": jnp.ones(2)}, migrate=lambda _: {"a": "x"})
    with pytest.raises(CheckpointError, match=r"\['b'\]: not saved, and abstract in the tree"):
        engine.load(like=jax.eval_shape(lambda: {"a": jnp.ones(2), "b": X}), migrate=lambda found: found, strict=False)


X = jnp.zeros(1)


# Names for other programs


def test_leaves_go_by_name_to_other_programs_and_back() -> None:
    state = before()
    names = to_names(state)

    assert set(names) == {
        *("step", "params.hidden.kernel", "params.out.kernel", "opt_state.0.count", "opt_state.0.mu.hidden.kernel"),
        *("opt_state.0.mu.out.kernel", "opt_state.0.nu.hidden.kernel", "opt_state.0.nu.out.kernel"),
    }
    assert names["step"] is state.step
    assert_same(from_names({name: np.asarray(leaf) for name, leaf in names.items()}, like=before()), state)
    assert to_names(3.0) == {"value": 3.0}


def test_leaves_by_name_are_copies() -> None:
    values = {"a": np.ones(2)}
    found = from_names(values, like={"a": np.zeros(2)})
    values["a"][:] = 5

    assert found["a"].tolist() == [1, 1]


def test_leaves_by_name_are_compared_with_the_tree() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"\['b'\]: not saved, the tree has"):
        from_names({"a": 1}, like={"a": 0, "b": 0})
    with pytest.warns(
        CheckpointWarning, match=r"; 1 leaf was loaded: \['a'\]\nDropped, .*:\n  c: .*\nNot saved, .*:\n  \['b'\]:"
    ) as seen:
        assert from_names({"a": 1, "c": 2}, like={"a": 0, "b": 7}, strict=False) == {"a": 1, "b": 7}
    assert seen[0].filename == __file__
    assert_same(from_names({"a": 1}, like={"a": X[0]}, allow_cast=True), {"a": jnp.float32(1)})


def test_names_that_collide_are_refused_all_at_once(tmp_path: Path) -> None:
    tree = {"a": {"b": 1}, "a.b": 2, "text": "x", "c": Static("fine"), "\ud800": 1}

    for use in (to_names, lambda tree: save(tmp_path / "x", tree)):
        with pytest.raises(CheckpointError) as caught:
            use(tree)
        assert str(caught.value) == (
            "The tree can't be saved, and nothing was written:\n"
            "  ['a.b'] would get the name 'a.b', which ['a']['b'] has already\n"
            "  ['text'] is str 'x', not an array or a number. Make it a static, or wrap it in Static\n"
            "  ['\\ud800'] would get the name '\\ud800', which is not UTF-8 text"
        )
    assert not list(tmp_path.iterdir())


def test_files_have_readable_names(tmp_path: Path) -> None:
    engine = ByFile(tmp_path)
    engine.save(before())

    assert "opt_state.0.mu.out.kernel" in {leaf.name for leaf in read_manifest(engine.path).leaves}
