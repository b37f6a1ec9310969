"""What a training run does besides saving and resuming: which steps stay, what lies beside the state, parts of it."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint import models
from tests.checkpoint.engines import assert_same
from tests.checkpoint.engines import engine as engine  # noqa: PLC0414  pytest finds the fixture here
from tests.checkpoint.models import net, train_state
from treewright import replace
from treewright.checkpoint import CheckpointManager, load, save
from treewright.checkpoint import steps as steps_module
from treewright.checkpoint.digests import digest_of
from treewright.checkpoint.retention import Retention
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytest.importorskip("orbax.checkpoint")
MODULES = (models, "jax.nn")
TREE = {"x": np.ones(2)}


def run(
    folder: Path, steps: Sequence[SupportsIndex], losses: Sequence[float | None] = (), **options: Any
) -> CheckpointManager:
    manager = CheckpointManager(folder / "run", **options)
    for step, loss in itertools.zip_longest(steps, losses):
        manager.save(step, TREE, metadata=None if loss is None else {"loss": loss})
    manager.wait()
    return manager


# Which steps stay


@pytest.mark.parametrize(
    ("steps", "kept"), [((1, 2, 5, 7), (5, 7)), ((10, 20, 5), (5, 10, 20)), ((10, 20, 5, 30), (20, 30))]
)
def test_the_highest_steps_stay_and_that_which_was_saved_last(
    steps: Sequence[int], kept: tuple[int, ...], tmp_path: Path
) -> None:
    with run(tmp_path, steps, keep=2) as manager:
        assert manager.all_steps() == kept


def test_every_so_many_and_the_best_stay_besides_the_newest_also_after_a_restart(tmp_path: Path) -> None:
    options: Any = {"keep": 1, "keep_every": 4, "keep_best": 2, "metric": "loss", "mode": "min"}
    with run(tmp_path, range(1, 7), [5, 1, 4, 3, 2, 9], **options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 5, 6), 2)
    with run(tmp_path, [7, 8], [0, float("nan")], **options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 7, 8), 7)
        manager.delete(7)
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 8), 2)


def test_of_equals_the_newest_is_the_best_and_the_largest_may_be(tmp_path: Path) -> None:
    with run(tmp_path, [1, 2, 3], [7.0, 7.0, 3.0], metric="loss", mode="max") as manager:
        assert manager.best_step() == 2


@given(
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True),
    newest=st.integers(1, 5),
    every=st.none() | st.integers(1, 7),
    best=st.none() | st.integers(1, 4),
    losses=st.lists(st.none() | st.integers(0, 3), min_size=41, max_size=41),
)
def test_a_step_stays_exactly_if_one_of_the_rules_keeps_it(
    steps: list[int], newest: int, every: int | None, best: int | None, losses: list[int | None]
) -> None:
    retention = Retention(newest, every, best, "loss", "min")
    metadata: Mapping[int, Any] = {s: {} if losses[s] is None else {"loss": losses[s]} for s in steps}

    kept = retention.kept(steps, steps[-1], metadata.__getitem__)

    for step in steps:
        better = [s for s in steps if losses[s] is not None and (losses[s], -s) < (losses[step] or 0, -step)]
        reasons = [
            step == steps[-1],
            sum(s > step for s in steps) < newest,
            every is not None and step % every == 0,
            best is not None and losses[step] is not None and len(better) < best,
        ]
        assert (step in kept) == any(reasons)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_every": 0}, r"keep_every=\.\.\.\) takes a whole number from 1, or None, got 0"),
        (
            {"keep_best": 0, "metric": "a", "mode": "min"},
            r"keep_best=\.\.\.\) takes a whole number from 1, or None, got 0",
        ),
        ({"keep": 2.5}, r"keep=\.\.\.\) takes a whole number from 1, or None, got 2\.5"),
        ({"keep": "2"}, r"keep=\.\.\.\) takes a whole number from 1, or None, got '2'"),
        ({"keep_best": 1}, r"keep_best=1, metric=None, mode=None\): the best steps are known by an entry"),
        ({"metric": "loss"}, r"metric='loss', mode=None\): the best"),
        ({"metric": "loss", "mode": "less"}, r"mode=\.\.\.\) takes 'min' or 'max', got 'less'"),
    ],
)
def test_rules_that_say_too_little_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointManager(tmp_path, **options)


def test_a_step_without_the_metric_is_refused_and_a_manager_without_one_knows_no_best(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, metric="loss", mode="min")
    with pytest.raises(
        CheckpointError, match=r"ranks steps by 'loss', and that is missing in metadata: save\(step, tree"
    ):
        manager.save(1, TREE)
    with pytest.raises(CheckpointError, match="ranks steps by 'loss', and that is 'low' in metadata"):
        manager.save(1, TREE, metadata={"loss": "low"})
    assert manager.best_step() is None
    with pytest.raises(CheckpointError, match="The best step is asked for, and no metric says which"):
        CheckpointManager(tmp_path).best_step()


def test_a_step_whose_metadata_is_damaged_has_no_rank_and_others_may_delete_steps(tmp_path: Path) -> None:
    with run(tmp_path, [1, 2, 3], [1, 2, 3], keep=None, metric="loss", mode="min") as manager:
        (tmp_path / "run" / "1" / "extras" / "metadata").write_text("{")
    with CheckpointManager(tmp_path / "run", keep=1, keep_best=1, metric="loss", mode="min") as manager:
        manager.save(4, TREE, metadata={"loss": 4})
        manager.wait()
        assert (manager.all_steps(), manager.best_step()) == ((2, 4), 2)
        (tmp_path / "run" / "2").rename(tmp_path / "elsewhere")
        manager.save(5, TREE, metadata={"loss": 5})
        manager.wait()
        assert manager.all_steps() == (4, 5)


def test_a_step_can_be_deleted_and_saved_again(tmp_path: Path) -> None:
    with run(tmp_path, [1, 2]) as manager:
        with pytest.raises(CheckpointError, match=r"has a step 2 already\. .* delete it: delete\(2\)\."):
            manager.save(2, TREE)
        manager.delete(2)
        assert manager.all_steps() == (1,)
        manager.save(2, {"x": np.zeros(2)})
        assert manager.restore(like=TREE)["x"].tolist() == [0, 0]
        with pytest.raises(CheckpointError, match="has the steps 1, 2, and no step 3"):
            manager.delete(3)


def test_a_step_that_was_not_named_is_not_deleted(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        manager.wait()
        with pytest.raises(TypeError, match="The number of a step comes first, got None"):
            manager.delete(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert manager.latest_step() == 1


def test_folders_of_other_names_are_not_steps(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, keep=1) as manager:
        for name in ("007", "step_8", "\uff19", "2x"):
            (tmp_path / name).mkdir()
        manager.save(1, TREE)
        manager.save(2, TREE)
        manager.wait()
        assert manager.all_steps() == (2,)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_step_may_be_any_whole_number(tmp_path: Path) -> None:
    with run(tmp_path, [np.int64(1), jnp.int32(2), np.uint8(3)]) as manager:  # what loops count with
        assert manager.all_steps() == (1, 2, 3)


# Beside the state


def test_metadata_and_items_come_back_as_they_were(tmp_path: Path) -> None:
    metadata = {"loss": np.float32(0.5), "note": "a", "nested": {"steps": [1, None, True]}, "jax": jnp.int32(3)}
    items = {"data": b"\x00\xff", "sampler": {"epoch": 2, "seed": 2**70}}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE, metadata=metadata, items=items)
        manager.save(2, TREE)
        assert manager.metadata(1) == {"loss": 0.5, "note": "a", "nested": {"steps": [1, None, True]}, "jax": 3}
        assert manager.items(1) == items
        assert (manager.metadata(), manager.items()) == ({}, {})


def test_each_process_gets_the_items_that_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_two = [json.dumps({"data": index}).encode() for index in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(steps_module, "process_count", lambda: 2)
        patch.setattr(steps_module, "of_all_processes", lambda _: of_two)
        patch.setattr(steps_module, "gathered", lambda digests: digests)
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, TREE, items={"data": 0})
    for index in range(2):
        monkeypatch.setattr("treewright.checkpoint.manager.process_index", lambda index=index: index)
        assert CheckpointManager(tmp_path).items() == {"data": index}
    monkeypatch.setattr("treewright.checkpoint.manager.process_index", lambda: 2)
    with pytest.raises(CheckpointError, match="Step 1 holds the items of 2 processes, and this is one more: 2"):
        CheckpointManager(tmp_path).items()


@pytest.mark.parametrize("value", [object(), {1, 2}, np.ones(2), {(1, 2): 3}])
def test_what_has_no_form_beside_the_state_is_refused_before_anything_is_written(value: Any, tmp_path: Path) -> None:
    for name in ("metadata", "items"):
        with pytest.raises(CheckpointError, match=f"{name} can't be saved: .* of a data iterator, give its state"):
            CheckpointManager(tmp_path / "run").save(1, TREE, **{name: {"a": value}})
    assert not list(tmp_path.iterdir())


def test_a_step_with_damage_beside_its_state_is_damaged(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, TREE, metadata={"loss": step})
    file = tmp_path / "3" / "extras" / "metadata"
    file.write_text(file.read_text().replace("3}", "2}"))
    (tmp_path / "2" / "extras" / "metadata").unlink()

    with pytest.raises(CheckpointDamagedError, match="beside the tree of step 3 can't be read: its digest is not the"):
        manager.metadata()
    with pytest.warns(CheckpointWarning, match="Restored step 1 and skipped"):
        assert manager.restore_latest_valid(like=TREE) is not None


@pytest.mark.parametrize(
    "content", [[], {"metadata": 5, "items": [{}]}, {"metadata": {}, "items": {"a": 1}}, {"metadata": {}, "items": [5]}]
)
def test_forged_metadata_and_items_are_damage(content: Any, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, metric="loss", mode="min") as manager:
        for step in (1, 2):
            manager.save(step, TREE, metadata={"loss": step})
        manager.wait()
        text = json.dumps(content)
        document = {"content": text, "digest": digest_of(text.encode())}
        (tmp_path / "2" / "extras" / "metadata").write_text(json.dumps(document))

    manager = CheckpointManager(tmp_path, metric="loss", mode="min")
    for ask in (manager.metadata, manager.items):
        with pytest.raises(CheckpointDamagedError, match="What is beside the tree of step 2 can't be read"):
            ask()
    with pytest.warns(CheckpointWarning, match="Restored step 1 and skipped"):
        manager.restore_latest_valid(like=TREE)
    assert manager.best_step() == 1


def test_a_metric_that_no_float_holds_has_its_rank(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, metric="loss", mode="max") as manager:
        for step, loss in enumerate((1.0, 10**400, -(10**400))):
            manager.save(step, TREE, metadata={"loss": loss})
        manager.wait()
        assert manager.best_step() == 1


def test_a_pipe_in_a_step_is_damage_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    for number, place in enumerate(("manifest/metadata", "state/manifest.ocdbt", "_CHECKPOINT_METADATA")):
        with CheckpointManager(tmp_path / str(number)) as manager:
            manager.save(1, TREE)
        (tmp_path / str(number) / "1" / place).unlink()
        os.mkfifo(tmp_path / str(number) / "1" / place)
        with pytest.raises(
            CheckpointDamagedError, match=r"All steps in .* are damaged:\n  1: .*is (not a file|neither)"
        ):
            manager.restore_latest_valid(like=TREE)


def test_a_step_that_is_read_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {str(i): np.full(10 + i, i) for i in range(20)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree)
        monkeypatch.setattr(steps_module, "_PART", 200)
        assert_same(manager.restore(like=tree), tree)


# Where


def test_a_missing_package_is_told_when_the_manager_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xxhash", "orbax.checkpoint"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=r"treewright\[checkpoint\]"):
                CheckpointManager(tmp_path)


# A part, or without a template


def test_the_parameters_of_a_state_are_loaded_with_all_checks(engine: Any) -> None:
    state = train_state()
    engine.save(state)

    assert_same(engine.load(part="params", like=net()), state.params)
    assert_same(
        engine.load(part="opt_state.0.mu.layers.0", like=state.params.layers[0]), state.opt_state[0].mu.layers[0]
    )
    assert_same(engine.load(part="params.count", like=jnp.float32(0)), state.params.count)
    with pytest.raises(CheckpointMismatchError, match=r"\.width: static 3 saved, 4 in the tree"):
        engine.load(part="params", like=replace(net(), width=4))
    with pytest.raises(CheckpointMismatchError, match=r"\.count: shape \(\) saved, \(1,\) in the tree"):
        engine.load(part="params", like=replace(net(), count=jnp.zeros(1)))
    with pytest.raises(CheckpointMismatchError, match=r"\.params\.layers\[1\]\.kernel: saved as .*, not in the tree"):
        engine.load(part="params", like=replace(net(), layers=net().layers[:1]))
    with pytest.raises(CheckpointError, match=r"part='param': nothing .* has this name \(did you mean params\?\)"):
        engine.load(part="param", like=net())


def test_a_part_and_names_that_changed_go_together(engine: Any) -> None:
    engine.save({"a": {"old": jnp.ones(2)}, "b": jnp.zeros(1)})

    assert_same(engine.load(part="a", like={"new": jnp.zeros(2)}, renamed={"old": "new"}), {"new": jnp.ones(2)})
    assert_same(engine.load(part="a"), {"old": jnp.ones(2)})


def test_a_key_with_a_dot_is_a_part_by_its_name(engine: Any) -> None:
    engine.save({"a.b": {"c": 1}, "a": {"c": 2}})

    assert engine.load(part="a.b") == {"c": 1}


def test_a_state_with_an_optimiser_is_loaded_without_a_template(engine: Any) -> None:
    state = train_state()
    engine.save(state)

    found = engine.load(modules=MODULES, statics={"tx": state.tx})
    assert_same(found, state)
    assert_same(jax.jit(lambda state: state.apply_gradients(grads=state.params))(found).params.count.shape, ())
    assert_same(engine.load(part="params", modules=MODULES), state.params)
    with pytest.warns(CheckpointWarning, match=r"\.tx: saved was .*GradientTransform.*, given is"):
        assert engine.load(modules=MODULES, statics={"tx": optax.adam(0.5)}).tx is not state.tx
    with pytest.raises(CheckpointError, match=r"statics=\{'opt': \.\.\.\}: no static of this name was described"):
        engine.load(modules=MODULES, statics={"tx": state.tx, "opt": 1})


def test_optax_is_looked_into_only_where_the_checkpoint_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x", train_state().opt_state)
    assert_same(load(tmp_path / "x", modules=MODULES), train_state().opt_state)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=r"ScaleByAdamState' is in none of the modules"):
        load(tmp_path / "x", modules=MODULES)


@pytest.mark.parametrize("modules", [models.__name__, models, [models.__name__], (models,)])
def test_modules_are_one_or_several_and_names_or_modules(modules: str | types.ModuleType, tmp_path: Path) -> None:
    save(tmp_path / "x", models.Settings(3))

    assert_same(load(tmp_path / "x", modules=modules), models.Settings(3))


def test_options_that_would_be_ignored_are_refused(engine: Any) -> None:
    engine.save(net())

    options: list[dict[str, Any]] = [{"modules": models}, {"statics": {"a": 1}}]
    for option in options:
        with pytest.raises(TypeError, match=r"if there is no like=\. With like=, .* are its own: leave them out"):
            engine.load(like=net(), **option)
    options = [{"strict": False}, {"renamed": {"a": "b"}}, {"allow_cast": True}]
    for option in options:
        with pytest.raises(TypeError, match="say how a checkpoint may differ from like=: give a tree to load into"):
            engine.load(modules=models, **option)


def test_a_step_is_found_whole_without_a_template_too(tmp_path: Path) -> None:
    with run(tmp_path, [1, 2]) as manager:
        found = manager.restore_latest_valid()
    assert found is not None
    assert (found.step, found.tree["x"].tolist()) == (2, [1, 1])
