"""Trees that changed since they were saved: fields that moved, names that changed, leaves that are new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.checkpoint.engines import assert_same
from treewright import Module, StaticValue, TrainState, static
from treewright.checkpoint import load, save
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
