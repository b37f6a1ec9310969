"""What the command `retraces` writes down while a program runs, and what it makes of that."""

from __future__ import annotations

import atexit
import threading
import time
import types
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import monitoring

import treewright
from tests.retrace.support import fresh
from treewright.retrace import jax_private as _jax
from treewright.retrace import recorder
from treewright.retrace.record import Record, RecordReader
from treewright.retrace.recorder import EventRecorder
from treewright.retrace.tally import OPERATIONS, summed_up
from treewright.retrace.traced import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treewright.retrace.tally import Group, Program, Run

    Recorded = Callable[[Callable[[], object]], Run]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Runs a function under a recorder, and sums up."""

    def run(work: Callable[[], object]) -> Run:
        path = tmp_path / "record.jsonl"
        began = time.monotonic()
        watching = EventRecorder(Record(path))
        watching.start()
        try:
            work()
        finally:
            watching.stop()
        lines = list(RecordReader(path).new_lines())
        return summed_up(lines, command=["train.py"], status=0, began=began, ended=time.monotonic())

    return run


def of(run: Run, name: str) -> list[Program]:
    return [program for program in run.programs if program.function == name]


def changes(group: Group) -> list[str]:
    return [f"{reason['path']}: {reason['change']}" for reason in group.reasons]


def test_each_trace_and_compilation_has_its_seconds_and_its_line(recorded: Recorded) -> None:
    def step(x: Any) -> Any:
        return x * 2

    jitted = jax.jit(fresh(step))
    run = recorded(lambda: [jitted(np.ones(size, np.float32)) for size in (2, 2, 3)])

    first, second = of(run, "step")
    assert first.where == second.where == f"test_recorder.py:{step.__code__.co_firstlineno}"
    assert first.place.startswith("test_recorder.py:")
    assert first.traced
    assert first.compiled
    assert [kind for kind, _, _ in first.spans] == ["trace", "lower", "compile"]
    for program in (first, second):
        assert program.seconds == pytest.approx(sum(seconds for _, _, seconds in program.spans))
        assert 0 < program.seconds < run.seconds
    assert first.spans[2][1] + first.spans[2][2] <= second.spans[0][1] + 0.001
    (row,) = [row for row in run.rows() if row.function == "step"]
    assert (row.traces, row.compilations) == (2, 2)
    assert row.seconds == pytest.approx(first.seconds + second.seconds)
    assert 0 < run.ours < run.seconds


def test_what_was_traced_again_is_grouped_by_its_reason(recorded: Recorded) -> None:
    def step(x: Any, kind: str = "a") -> Any:
        return x * 2

    jitted = jax.jit(fresh(step), static_argnames="kind")

    def work() -> None:
        for size in (2, 3, 4):
            jitted(np.ones(size, np.float32))
        jitted(np.ones(2, np.float32), kind="b")

    groups = recorded(work).groups()

    shapes, other = sorted(groups, key=lambda group: len(group.programs), reverse=True)  # they come by seconds
    assert shapes.avoidable
    assert len(shapes.programs) == 2
    assert changes(shapes) == ["x: float32[2] -> float32[3]"]
    assert [reason["change"] for reason in shapes.last_reasons] == ["float32[3] -> float32[4]"]
    assert shapes.reasons[0]["cure"] == "pad to one size, or to a few"
    assert changes(other)[0].startswith("kind (added)")
    assert other.last_reasons == ()


def test_a_change_without_a_cure_is_not_called_avoidable(recorded: Recorded) -> None:
    jitted = jax.jit(fresh(lambda x, kind: x * 2), static_argnames="kind")

    run = recorded(lambda: [jitted(np.ones(2), kind=kind) for kind in "ab"])

    (group,) = run.groups()
    assert not group.avoidable
    assert changes(group) == ["kind (static): 'a' -> 'b'"]
    assert (run.retraces, run.saveable) == (1, 0)


def test_recompiles_and_cleared_caches_are_told(recorded: Recorded) -> None:
    jitted: Any = jax.jit(fresh(lambda x: x * 2))
    x = np.ones(2, np.float32)

    def work() -> None:
        jitted(x)
        jitted(jax.device_put(x, jax.devices()[0]))
        jitted.clear_cache()
        jitted(x)

    moved, cleared = sorted(recorded(work).groups(), key=lambda group: group.first.spans[0][1])

    assert [(g.first.retrace or {})["event"] for g in (moved, cleared)] == ["recompile", "trace"]
    assert moved.first.traced is False
    assert changes(moved)[0].startswith("x (placement): uncommitted -> committed")
    assert "caches were cleared" in changes(cleared)[0]
    assert moved.avoidable
    assert cleared.avoidable


def test_operations_outside_of_jit_are_one_row_and_grouped_by_line(recorded: Recorded) -> None:
    def work() -> None:
        for size in (11, 12, 13):
            jnp.tanh(np.ones(size, np.float32))

    run = recorded(work)

    (row,) = run.rows()
    assert (row.function, row.traces, row.compilations) == (OPERATIONS, 3, 3)
    assert run.groups() == []
    (group,) = run.operations()
    assert [program.operands for program in group.programs] == [f"f32[{size}](numpy)" for size in (11, 12, 13)]
    assert group.first.place.startswith("test_recorder.py:")
    assert run.saveable == pytest.approx(group.seconds - max(program.seconds for program in group.programs))


def test_the_seconds_of_what_is_compiled_inside_of_a_trace_count_once(recorded: Recorded) -> None:
    @jax.jit
    def outer(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            inside = jnp.cos(np.ones(17, np.float32)).sum()
        return x + inside

    run = recorded(lambda: outer(np.ones(3, np.float32)))

    (program,) = of(run, "outer")
    whole = next(seconds for kind, _, seconds in program.spans if kind == "trace")
    inside = sum(each.seconds for each in run.programs if each.operation)
    assert inside > 0
    assert program.tracing == pytest.approx(whole - inside, abs=0.02)


def test_traced_functions_print_what_they_print_without_a_recorder(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    step = jax.jit(treewright.traced(fresh(lambda x: x * 2)))

    run = recorded(lambda: [step(np.ones(size)) for size in (2, 3)])

    assert "<lambda> retraced (2nd trace" in capsys.readouterr().err
    assert run.retraces == 1


def test_a_block_of_the_program_hears_what_it_hears_without_a_recorder(recorded: Recorded) -> None:
    reports: list[Any] = []
    step = jax.jit(fresh(lambda x: x * 2))

    def work() -> None:
        with treewright.explain_retraces(on_report=reports.append):
            step(np.ones(2))
            step(np.ones(3))

    run = recorded(work)

    assert [report.number for report in reports] == [2]
    assert run.retraces == 1


def test_programs_compiled_ahead_of_time_are_known_by_their_name(recorded: Recorded) -> None:
    def ahead(x: Any) -> Any:
        return x * 2

    run = recorded(lambda: jax.jit(ahead).lower(np.ones(2)).compile())

    programs = of(run, "ahead")
    assert sum(program.traced for program in programs) == 1
    assert sum(program.compiled for program in programs) == 1


def test_our_own_functions_are_no_programs_of_the_user(recorded: Recorded) -> None:
    run = recorded(_jax.tells_of_compilations)

    assert run.programs == []


def test_functions_that_are_traced_inside_of_others_are_a_part_of_them(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = jax.jit(treewright.traced(fresh(lambda x: x + 1)))
    outer = jax.jit(fresh(lambda x, y: inner(x) + inner(y).sum()))

    run = recorded(lambda: outer(np.ones(2), np.ones(3)))
    assert [program.traced for program in run.programs] == [True]
    assert run.retraces == 0
    monkeypatch.setattr(recorder, "is_inside_another_trace", lambda: True)  # as JAX 0.9.0 tells of them
    run = recorded(lambda: jax.jit(fresh(lambda x: x * 2))(np.ones(2)))
    assert run.programs[-1].traced is False


def test_the_line_is_one_of_an_installed_package_only_where_there_is_no_other(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_INSTALLED", ("",))

    run = recorded(lambda: jax.jit(fresh(lambda x: x * 2))(np.ones(2)))

    assert run.programs[0].place.startswith("test_recorder.py:")


def test_what_a_library_makes_anew_is_not_the_users_to_mend(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        for _ in range(2):
            jax.jit(lambda x: x * 2)(np.ones(2))

    monkeypatch.setattr(recorder, "_INSTALLED", ("test_recorder",))
    run = recorded(work)

    (group,) = run.groups()
    assert not group.avoidable
    assert run.retraces == 0


def test_threads_are_kept_apart(recorded: Recorded) -> None:
    jitted = [jax.jit(fresh(lambda x: x * 2)) for _ in range(4)]

    def work() -> None:
        threads = [threading.Thread(target=function, args=(np.ones(2),)) for function in jitted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = recorded(work)

    assert [(program.traced, program.compiled) for program in of(run, "<lambda>")] == [(True, True)] * 4


def test_where_arguments_can_not_be_read_that_is_noted(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jax, "CALL_LOCALS", ("renamed",))
    vars(PROCESS).pop("sight", None)
    try:
        run = recorded(lambda: [jax.jit(fresh(lambda x: x * 2))(np.ones(size)) for size in (2, 3)])
    finally:
        vars(PROCESS).pop("sight", None)

    assert "can't be read" in run.notes[0]
    assert run.retraces == 1
    assert not run.groups()[0].avoidable


def test_a_recorder_that_fails_never_reaches_the_program(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(recorder, "place_in", broken)

    run = recorded(lambda: jax.jit(fresh(lambda x: x * 2))(np.ones(2)))

    assert run.notes == ["An event of JAX could not be written down: ZeroDivisionError: no"]


def test_a_record_is_read_line_by_line_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record, reader = Record(path), RecordReader(path)

    assert list(reader.new_lines()) == []
    record.write({"a": 1})
    with path.open("a") as file:
        file.write('{"half":')
    assert list(reader.new_lines()) == [{"a": 1}]
    with path.open("a") as file:
        file.write(" 2}\n")
    assert list(reader.new_lines()) == [{"half": 2}]
    record.close()
    record.write({"a": 3})
    assert list(reader.new_lines()) == []


def test_a_program_that_makes_jax_forget_its_listeners_is_told_that_not_all_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    recorder = EventRecorder(Record(tmp_path / "record.jsonl"))
    recorder.start()
    [end] = at_exit
    end()
    assert not [line for line in RecordReader(tmp_path / "record.jsonl").new_lines() if line["kind"] == "note"]

    with monkeypatch.context() as context:
        context.setattr(monitoring, "get_event_duration_listeners", list)
        end()
    recorder.stop()

    notes = [line["text"] for line in RecordReader(tmp_path / "record.jsonl").new_lines() if line["kind"] == "note"]
    assert [note.partition("(")[0] for note in notes] == ["jax.monitoring.clear_event_listeners"]


def test_what_a_record_can_not_be_written_to_is_left(tmp_path: Path) -> None:
    Record(tmp_path / "gone" / "record").write({"a": types.SimpleNamespace()})
