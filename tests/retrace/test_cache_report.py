"""What the report says of the persistent compilation cache, and of lowered texts that differ between two runs."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.retrace.support import fresh
from treewright.retrace import jax_cache as _jax_cache
from treewright.retrace.cache import cache_report, cause_of
from treewright.retrace.record import Record, RecordReader
from treewright.retrace.recorder import EventRecorder
from treewright.retrace.tally import Program, Run, summed_up
from treewright.retrace.words import cache_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from treewright.retrace.cache import CacheReport

config: Any = jax.config
untyped_jax: Any = jax

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_enable_compilation_cache",
)


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Callable[..., CacheReport]]:
    """Runs a function under a recorder and a persistent cache, as if in a process of its own, and reports on it."""
    earlier = {name: getattr(jax.config, name) for name in NAMES}
    numbers = iter(range(100))

    def run(work: Callable[[], object], *, least: float = 0.0, size: int = 0, on: bool = True) -> CacheReport:
        folder = tmp_path / f"run {next(numbers)}"
        folder.mkdir()
        (tmp_path / "cache").mkdir(exist_ok=True)
        compilation_cache.reset_cache()
        for name, value in zip(NAMES, (str(tmp_path / "cache"), least, size, on), strict=True):
            config.update(name, value)
        untyped_jax.clear_caches()
        recorder = EventRecorder(Record(folder / "record"))
        recorder.start()
        try:
            work()
        finally:
            recorder.stop()
        lines = list(RecordReader(folder / "record").new_lines())
        return cache_report(summed_up(lines, command=["x"], status=0, began=0.0, ended=1.0), folder)

    yield run
    for name, value in earlier.items():
        config.update(name, value)
    compilation_cache.reset_cache()


def names(programs: list[Program]) -> list[str]:
    return [program.function for program in programs]


def step(x: Any) -> Any:
    return jnp.tanh(x) * 2


def test_a_second_run_reads_what_the_first_one_kept(cached: Any) -> None:
    def work() -> object:
        return jax.jit(step)(np.ones(3))

    first, second = cached(work), cached(work)

    assert (names(first.read), names(first.kept), first.saved) == ([], ["step"], 0.0)
    assert first.next_start == first.at_most > 0
    assert (names(second.read), names(second.kept), second.left_out, second.missed) == (["step"], [], {}, [])
    # JAX remembers whole seconds, which are none here; the time of the first run is kept beside its text.
    ((reading,),) = ([span[2] for span in program.spans if span[0] == "compile"] for program in second.read)
    assert second.saved == pytest.approx(first.next_start - reading)
    assert "read: 1 program (step; " in "\n".join(cache_lines(second))


def test_what_is_not_kept_is_told_with_the_reason(cached: Any) -> None:
    def calls_python(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x)
        return x + 1

    report = cached(lambda: [jax.jit(step)(np.ones(3)), jax.jit(calls_python)(np.ones(3))], least=1e6)

    quick, *callbacks = sorted(report.left_out, reverse=True)
    assert quick == "compiled in less than 1e+06 s"
    if jax.__version_info__ < (0, 11):
        assert "calls Python" in callbacks[0]
        assert names(report.left_out[callbacks[0]]) == ["calls_python"]
    else:
        assert callbacks == []
        assert "calls_python" in names(report.left_out[quick])
    assert (report.next_start, report.kept) == (0.0, [])
    assert 0 < report.at_most <= sum(program.compiling for program in report.left_out[quick])
    assert "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 (it is 1e+06)" in "\n".join(cache_lines(report))


def test_what_jax_leaves_out_without_a_reason_that_can_be_seen_is_said_so(cached: Any) -> None:
    report = cached(lambda: jax.jit(step)(np.ones(3)), size=10**9)

    (reason,) = report.left_out
    assert "does not say why" in reason


def test_a_cache_that_is_off_is_told_with_what_it_would_save(cached: Any) -> None:
    off = cached(lambda: jax.jit(step)(np.ones(3)), on=False)
    assert off.why_off == "jax_enable_compilation_cache is off"
    assert cache_report(Run([], 0, 1.0, [], [], {}), None).why_off == "no folder is set"
    assert list(cache_lines(cache_report(Run([], 0, 1.0, [], [], {}), None))) == [
        "Persistent compilation cache: off (no folder is set)."
    ]


def numbered(name: str) -> Any:
    function = fresh(lambda x: jnp.sin(x) * 2)
    function.__name__ = name
    return lambda: jax.jit(lambda x: jax.jit(function)(x) + 1)(np.ones(3))


def test_a_name_with_a_counter_is_found_as_what_differs(cached: Any) -> None:
    cached(numbered("part_1"))
    report = cached(numbered("part_2"))
    (missed,) = report.missed

    assert "@part_1" in missed.old
    assert "@part_2" in missed.new
    assert missed.cause.startswith("a number in a name")
    said = "\n".join(cache_lines(report))
    assert "was kept by an earlier run, and missed: its lowered text differs from line 3 on\n    - " in said
    assert f"    + {missed.new}\n    a number in a name" in said


def test_where_the_requests_of_jax_can_not_be_read_programs_are_counted_all_the_same(
    cached: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jax_cache, "_LOCALS", ("renamed",))

    report = cached(lambda: jax.jit(step)(np.ones(3)))

    assert (names(report.kept), report.missed) == (["step"], [])


def test_programs_for_other_shapes_are_no_misses(cached: Any) -> None:
    cached(lambda: jax.jit(step)(np.ones(3)))

    assert cached(lambda: jax.jit(step)(np.ones(4))).missed == []


def test_texts_go_with_what_they_are_of(cached: Any, tmp_path: Path) -> None:
    cached(lambda: jax.jit(step)(np.ones(3)))
    for file in (tmp_path / "cache").glob("*-cache"):
        file.unlink()
    cached(lambda: jax.jit(step)(np.ones(4)))

    assert len(list((tmp_path / "cache" / "treewright").iterdir())) == 1


def test_a_cache_elsewhere_is_reported_without_texts(tmp_path: Path) -> None:
    program = Program("f", "", "", operation=False, compiled=True, cache={"outcome": "read", "key": "f-1", "saved": 2})
    kept = Program("g", "", "", operation=False, compiled=True, cache={"outcome": "kept", "key": "g-1"})
    for place in ("gs://bucket/cache", str(tmp_path)):  # in the second, nothing was left of what was compiled
        settings = {"jax_compilation_cache_dir": place}
        report = cache_report(Run([], 0, 1.0, [program, kept], [], settings), tmp_path)
        assert (report.saved, report.missed) == (2.0, [])


def compared(tmp_path: Path, old: str, new: str, **changed: str) -> Any:
    """What is told of two texts of one program, in two runs with one cache."""
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    found: Any = None
    runs: list[tuple[str, dict[str, str]]] = [(old, {}), (new, changed)]
    for number, (text, about) in enumerate(runs):
        key = f"jit_f-{number}"
        (tmp_path / f"{key}.mlir.z").write_bytes(zlib.compress(text.encode()))
        (cache / f"{key}-cache").write_text("")
        program = Program("f", "", "", operation=False, compiled=True, cache={"outcome": "kept", "key": key})
        settings = {"jax_compilation_cache_dir": str(cache)}
        run = Run([], 0, 1.0, [program], [], settings, jax=about.get("jax", "0.10"), flags=about.get("flags", ""))
        found = cache_report(run, tmp_path)
    return found


def test_texts_that_are_equal_leave_versions_flags_and_options(tmp_path: Path) -> None:
    for changed, cause in (
        ({"jax": "0.11"}, "JAX: it is a part of JAX's key"),
        ({"flags": "--xla_a"}, "XLA_FLAGS: it is a part of JAX's key"),
        ({}, "the text is the same: its compile options or devices differ"),
    ):
        report = compared(tmp_path, "a", "a", **changed)
        (missed,) = report.missed
        assert (missed.line, missed.cause) == (0, cause)
        said = "\n".join(cache_lines(report))
        assert f"f was kept by an earlier run, and missed: {cause}" in said
        assert ("\n    unset -> --xla_a" in said) is ("flags" in changed)


def test_a_text_with_more_lines_differs_where_it_goes_on(tmp_path: Path) -> None:
    report = compared(tmp_path, "a", "a\nb")
    (longer,) = report.missed
    assert "    + b" in list(cache_lines(report))
    assert (longer.line, longer.old, longer.new, longer.cause) == (2, "", "b", "")


def test_a_text_that_can_not_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "cache" / "treewright").mkdir(parents=True)
    (tmp_path / "cache" / "treewright" / "jit_f-9.json.z").write_bytes(b"x")

    assert len(compared(tmp_path, "a", "b").missed) == 1


CAUSES = [
    # What differs, and the word of its cause; none where the text does not show it.
    (["call @f_0x7f1234567890"], ["call @f_0x7f9876543210"], "an address"),
    (['backend_config = "140234567890123"'], ['backend_config = "140234567891111"'], "an address"),
    (["call @step_12(%0)"], ["call @step_13(%0)"], "a number in a name"),
    (['{jax.result_info = "part 1"}'], ['{jax.result_info = "part 2"}'], "a number in a name"),
    (["%0 = add %arg0", "%1 = sin %arg1"], ["%0 = sin %arg1", "%1 = add %arg0"], "an order"),
    (["%c = constant dense<[1, 2]> : x"], ["%c = constant dense<[2, 1]> : x"], "an order"),
    (["%c = constant dense<1.5> : x"], ["%c = constant dense<2.5> : x"], "a constant"),
    (["%0 = add %arg0, %arg1"], ["%0 = add %arg0, %arg2"], ""),
    (["%0 = subtract %arg0, %arg1"], ["%0 = subtract %arg1, %arg0"], ""),
    (["%0 = add %arg0"], ["%0 = sin %arg0"], ""),
    (["%0 = slice [0:3]"], ["%0 = slice [0:4]"], ""),
]


@pytest.mark.parametrize(("old", "new", "cause"), CAUSES)
def test_the_cause_of_a_difference_is_told_where_it_can_be_known(old: list[str], new: list[str], cause: str) -> None:
    found = cause_of(old, new, 0)

    assert found.startswith(cause)
    assert bool(found) == bool(cause)
