"""Changed models: each loads with all checks on, and an error names the line that moves a subtree."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding

import treewright.checkpoint
from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import Dense, spec
from treewright import Module, TrainState, stack, static, unstack
from treewright.checkpoint import CheckpointManager, load, save
from treewright.errors import CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

pytest.importorskip("orbax.checkpoint")


class Keyed(TrainState[Any]):
    """A training state with a field more."""

    key: jax.Array


class Plain(Module):
    first: Dense
    second: Dense
    width: int = static(default=3)


class Grouped(Module):
    layers: dict[str, Dense]


class Tower(Module):
    layers: Any


def dense(number: float) -> Dense:
    return Dense(jnp.full((2, 2), number), jnp.full(2, number + 0.5))


LAYERS = tuple(map(dense, (1.0, 2.0, 3.0)))


def state(tx: Any, cls: Any = TrainState, params: Any = None, **fields: Any) -> Any:
    """A state after a step, so that its moments are not zero."""
    made = cls.create(params=dense(1.0) if params is None else params, tx=tx, **fields)
    return made.apply_gradients(grads=jax.tree.map(jnp.ones_like, made.params))


def moved(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda leaves: {re.sub(f"^{old}", new, name): leaves[name] for name in leaves}


def unstacked(leaves: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("layers", f"layers.{index}"): leaves[name][index] for name in leaves for index in range(3)}


def stacked(leaves: dict[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys(re.sub(r"layers\.\d\.", "layers.", name) for name in leaves)
    return {name: np.stack([leaves[name.replace("layers", f"layers.{index}")] for index in range(3)]) for name in names}


KEY, ADAM = jax.random.key(9), optax.adam(1e-2)
CLIPPED, SCHEDULED = optax.chain(optax.clip_by_global_norm(1.0), ADAM), optax.adam(optax.constant_schedule(1e-2))
COUNT = jnp.int32(1)
# What is saved, the tree to load into, the migration, and a difference that the warning names
MIGRATIONS: dict[str, tuple[Any, Any, Any, str]] = {
    "a field added by a subclass": (
        state(ADAM),
        state(ADAM, Keyed, key=KEY),
        lambda leaves: leaves | {"key": KEY},
        "the tree: class treewright.train:TrainState saved, tests",
    ),
    "clipping before the optimiser": (
        state(ADAM),
        jax.tree.unflatten(jax.tree.structure(state(CLIPPED)), jax.tree.leaves(state(ADAM))),
        moved("opt_state.0", "opt_state.1.0"),
        r"\.opt_state\[0\]: class optax\..*:ScaleByAdamState saved, optax\..*EmptyState in the tree",
    ),
    "a schedule instead of a number": (
        state(ADAM),
        state(SCHEDULED),
        lambda leaves: leaves | {"opt_state.1.count": COUNT},
        r"\.opt_state\[1\]: class optax\..*:EmptyState saved, optax\..*ScaleByScheduleState in the tree",
    ),
    "fields in a dict": (
        Plain(LAYERS[0], LAYERS[1]),
        Grouped({"first": LAYERS[0], "second": LAYERS[1]}),
        lambda leaves: {f"layers.{name}": value for name, value in leaves.items()},
        "the tree: class .*:Plain saved, .*:Grouped in the tree",
    ),
    "stacked layers in a tuple": (
        Tower(stack(LAYERS)),
        Tower(LAYERS),
        unstacked,
        r"\.layers: class .*:Dense saved, tuple in the tree",
    ),
    "a tuple of layers stacked": (
        Tower(LAYERS),
        Tower(stack(LAYERS)),
        stacked,
        r"\.layers: class tuple saved, .*:Dense in the tree",
    ),
}


@pytest.mark.parametrize("is_abstract", [False, True])
@pytest.mark.parametrize("name", MIGRATIONS)
def test_a_migration_that_provides_all_leaves_loads_with_all_checks(name: str, is_abstract: bool, engine: Any) -> None:
    saved, expected, migrate, difference = MIGRATIONS[name]
    engine.save(saved)
    like = jax.eval_shape(lambda: expected) if is_abstract else jax.tree.map(jnp.zeros_like, expected)
    if name == "a field added by a subclass" and not is_abstract:
        like = expected.replace(key=jax.random.key(0))

    with pytest.raises(CheckpointMismatchError):
        engine.load(like=like)
    with pytest.warns(CheckpointWarning, match=rf"The checkpoint and the tree differ\.(.|\n)*{difference}"):
        found = engine.load(like=like, migrate=migrate)
    assert_same(jax.tree.map(_data, found), jax.tree.map(_data, expected))


def _data(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


@pytest.mark.parametrize("options", [{}, {"strict": False}])
def test_a_leaf_that_the_migration_forgets_is_an_error(options: Any, tmp_path: Path) -> None:
    saved, expected, migrate, _ = MIGRATIONS["clipping before the optimiser"]
    save(tmp_path / "x", saved)

    def forgetful(leaves: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in migrate(leaves).items() if "nu.bias" not in name}

    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path / "x", like=expected, migrate=forgetful, **options)
    assert str(caught.value) == (
        "The checkpoint does not fit the tree, a difference:\n"
        "  .opt_state[1][0].nu.bias: not saved, the tree has float32[2] (array)\n"
        "What to do:\n"
        "  With migrate=, each leaf needs a value: let the function add the leaves that were not saved."
    )


@pytest.mark.parametrize(
    "error", [KeyError, TypeError, ValueError, OSError, FileNotFoundError, EOFError, RecursionError]
)
def test_an_error_in_a_migration_is_no_damage(error: type[Exception], tmp_path: Path) -> None:
    def migrate(leaves: dict[str, Any]) -> Any:
        raise error(f"of the user, after {leaves['x']}")

    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, {"x": step})
        for restore in (manager.restore, manager.restore_latest_valid):
            with pytest.raises(error, match=r"^'?of the user, after 2'?$") as caught:
                restore(like={"x": 0}, migrate=migrate)
            assert type(caught.value) is error
        assert manager.all_steps() == (1, 2)


def test_a_class_whose_leaves_did_not_change_stays_an_error(tmp_path: Path) -> None:
    save(tmp_path / "x", {"net": Plain(LAYERS[0], LAYERS[1]), "old": 1})
    like = {"net": Keyed.create(params={}, tx=ADAM, key=KEY), "new": 1}
    with pytest.raises(CheckpointMismatchError, match=r"\['net'\]: class"):
        load(tmp_path / "x", like=like, migrate=moved("old", "new"))


# Moved subtrees

X, Y, Z = (np.zeros(size, np.float32) for size in (2, 3, 4))
MOVES: dict[str, tuple[Any, Any, str | None]] = {
    "an optimiser in a chain": (state(ADAM), state(CLIPPED), "{'opt_state': 'opt_state.1'}"),
    "a field, and the moments": (
        state(ADAM, params={"out": dense(1.0)}),
        state(ADAM, params={"head": dense(1.0)}),
        "{'out': 'head'}",
    ),
    "into a deeper node": ({"a": X, "b": Y}, {"net": {"a": X}, "b": Y}, "{'a': 'net.a'}"),
    "two subtrees": ({"a": {"x": X}, "b": {"x": Y}}, {"c": {"x": X}, "d": {"x": Y}}, "{'a': 'c', 'b': 'd'}"),
    "one leaf, perhaps by coincidence": ({"a": X, "old": Y}, {"a": X, "new": Y}, "{'old': 'new'}"),
    "equal forms": ({"a": X, "b": X}, {"c": X, "d": X}, None),
    "different forms": ({"a": {"x": X, "y": Y}}, {"b": {"x": X, "y": Z}}, "{'a.x': 'b.x'}"),
    "something else moved too": ({"a": {"x": X}, "b": Y}, {"c": {"x": X}, "d": Z}, "{'a': 'c'}"),
}


@pytest.mark.parametrize("name", MOVES)
def test_an_error_names_the_line_that_moves_a_subtree(name: str, tmp_path: Path) -> None:
    saved, like, renamed = MOVES[name]
    save(tmp_path / "x", saved)
    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path / "x", like=like)
    first = str(caught.value).partition("What to do:\n")[2].splitlines()
    if renamed is None:
        assert not any("leaves moved" in line for line in first)
        return
    assert first[0] == f"  If leaves moved: renamed={renamed}."
    assert (len(first) == 1) is (name in {"an optimiser in a chain", "a field, and the moments", "two subtrees"})
    if name in {"an optimiser in a chain", "a field, and the moments"}:  # with it, everything fits
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            assert_same(load(tmp_path / "x", like=like, renamed=eval(renamed)), replaced(saved, like))


def replaced(saved: Any, like: Any) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(saved))


# Templates


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: 0.5, lambda: 3, lambda: True, lambda: 1j, lambda: np.arange(3), lambda: np.ones(2)),
        *(lambda: np.int64(3), lambda: np.float64(0.1), lambda: np.float32(1), lambda: np.complex128(1j)),
    ],
)
def test_an_abstract_template_of_the_same_function_fits(make: Any, engine: Any) -> None:
    engine.save({"x": make()})
    found = engine.load(like=jax.eval_shape(lambda: {"x": make()}))["x"]
    expected = jax.jit(make)()
    assert_same(found, expected)
    assert found.weak_type == expected.weak_type


def test_a_number_that_does_not_fit_into_the_array_is_an_error(engine: Any) -> None:
    engine.save({"x": 2**40})
    with pytest.raises(CheckpointError, match=r"\['x'\] was saved as int64 and contains 1099511627776, which does not"):
        engine.load(like={"x": jnp.int32(0)})
    for like in (jnp.int8(0), jnp.zeros(1, int), jnp.float32(0)):
        with pytest.raises(CheckpointMismatchError, match=r"kind|dtype"):
            engine.load(like={"x": like})


def test_live_numpy_arrays_of_64_bits_are_not_narrowed(engine: Any) -> None:
    engine.save({"x": np.ones(2)})
    with pytest.raises(CheckpointMismatchError, match="dtype float64 saved, float32"):
        engine.load(like={"x": jnp.zeros(2)})


# Reading


def test_a_leaf_is_not_read_after_the_load(engine: Any) -> None:
    tree = {"a": 1.0, "b": 2.0}
    kept: list[dict[str, Any]] = []

    def migrate(leaves: dict[str, Any]) -> dict[str, Any]:
        kept.extend([leaves, leaves.copy()])
        return leaves

    engine.save(tree)
    engine.load(like=tree, migrate=migrate)

    for leaves in kept:
        with pytest.raises(
            CheckpointError, match=r"\['a'\] was used after the checkpoint was loaded\. Read leaves inside"
        ):
            _ = leaves["a"]


def test_migrate_reads_only_the_leaves_that_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.zeros(1 << 21, np.float32)
    read: list[list[str]] = []
    package: Any = treewright.checkpoint
    reader_class: Any = package.blocks.BlockReader
    plain = reader_class.__call__

    def watched(reader: Any, requests: Any) -> Any:
        read.append([each.leaf.name for each in requests])
        return plain(reader, requests)

    monkeypatch.setattr(reader_class, "__call__", watched)

    def migrate(leaves: dict[str, Any]) -> Any:
        assert "a" in leaves
        assert len(leaves) == 53
        assert [*leaves][:2] == ["a", "b"]
        assert "float32[1024,2048] (array)" in repr(leaves)
        assert not read
        more = {"d": 1.5} | leaves | {"e": leaves["n3"], "b2": leaves["b"] * 2}
        del more["b"]
        return more

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    sharded = jax.device_put(large.reshape(1024, -1), NamedSharding(mesh, spec("a", "b")))
    like: dict[str, Any] = {
        "a": sharded,
        "b2": large,
        "c": large,
        "d": 0.0,
        "e": 0,
        **{f"n{index}": 0 for index in range(50)},
    }
    with CheckpointManager(tmp_path) as manager:
        manager.save(
            1, {"a": sharded + 1, "b": large + 1, "c": large + 2, **{f"n{index}": index for index in range(50)}}
        )
        found: Any = manager.restore(like=like, migrate=migrate)
    assert (found["e"], found["d"], found["n49"], found["b2"][0], found["c"][0]) == (3, 1.5, 49, 2, 2)
    assert_same(found["a"], sharded + 1)
    assert found["a"].sharding == sharded.sharding
    used, other, rest = read
    assert (used, other) == (["n3"], ["b"])
    assert {"a", "c"} <= {*rest}


def test_the_leaves_that_migrate_gets_are_a_dict(tmp_path: Path) -> None:
    values = {"a": np.arange(3), "b": 2, "c": 0.5, "d": True, "e": 4}
    save(tmp_path / "x", values)
    seen: list[Any] = []

    def migrate(leaves: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(leaves, dict)
        for make in (dict, lambda x: {**x}, lambda x: dict(x.items()), lambda x: x.copy(), lambda x: x | {}):
            copy: Any = make(leaves.copy())
            assert [*copy] == [*values]
            assert [int(np.sum(copy[name])) for name in copy] == [3, 2, 0, 1, 4]
        seen.extend([leaves.copy().get("b"), leaves.get("z", 7), leaves.copy().setdefault("c", 1)])
        seen.extend([leaves.copy().pop("z", 8), len(leaves.copy().values())])
        copy = leaves.copy()
        assert [int(np.sum(copy.popitem()[1])) for _ in values] == [3, 2, 0, 1, 4]
        assert not copy
        doubled = jax.tree.map(lambda x: x * 2, leaves.copy())
        assert type(doubled) is dict
        merged = {"z": 1}
        merged.update(leaves.copy())
        assert merged["e"] == 4
        assert doubled.pop("d") == 2
        return {name: np.asarray(value) if name == "a" else value for name, value in doubled.items()}

    like = {"a": np.arange(3), "b": 0, "c": 0.0, "e": 0}
    found = load(tmp_path / "x", like=like, migrate=migrate)
    assert seen == [2, 7, 0.5, 8, 5]
    assert_same(found, {"a": np.array([0, 2, 4]), "b": 4, "c": 1.0, "e": 8})


def test_layers_are_unstacked_by_the_functions_of_trees(tmp_path: Path) -> None:
    save(tmp_path / "x", Tower(stack(LAYERS)))
    found = load(tmp_path / "x", like=Tower(stack(LAYERS)))
    assert_same(Tower(tuple(unstack(found.layers))), Tower(LAYERS))
