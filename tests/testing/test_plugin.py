"""The pytest plugin: the marker, the fixture, and its import cost."""

from __future__ import annotations

import tomllib

import pytest

import treewright
from tests.test_import_cost import modules_added_by, packages
from tests.test_repository_rules import ROOT

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

# Imports of the runs below. Otherwise pytester would unload them after each run, and JAX register our classes twice.
LOADED = [getattr(treewright, name) for name in treewright.__all__]

PLUGIN = ("--disable-plugin-autoload", "-p", "treewright.testing.plugin", "-p", "no:cacheprovider", "--strict-markers")
HEAD = """
    import jax, jax.numpy as jnp, pytest, treewright

    @jax.jit
    def step(state, batch):
        return state + batch.sum()

    @jax.jit
    def other(x):
        return x
"""


def run(pytester: pytest.Pytester, body: str, *, head: str = HEAD) -> pytest.RunResult:
    pytester.makepyfile(f"{head}\n{body}")
    return pytester.runpytest_inprocess(*PLUGIN)


def test_a_test_above_its_limit_fails_with_the_report(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.max_traces(1, only="step")
    def test_epoch():
        for size in (32, 32, 31):
            step(0.0, jnp.ones((size, 4)))
        """,
    )

    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"step was traced twice; the limit is 1:",
            r"step retraced \(2nd trace, \S+ s\), called from test_a_test_above.*\.py:\d+ in test_epoch",
            r"    batch: float32\[32,4\] -> float32\[31,4\]",
            r"        axis 0: 32 -> 31; if this is the smaller last batch of an epoch, drop or pad it",
            r"    compared with trace 1",
        ],
        consecutive=True,
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*_hear*")


def test_tests_within_their_limits_pass(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.max_traces(1)
    def test_once():
        for _ in range(3):
            step(0.0, jnp.ones(3))

    @pytest.mark.max_traces(1, only="step")
    def test_others_do_not_count():
        step(0.0, jnp.ones(5))
        for length in (1, 2, 3):
            other(jnp.ones(length))

    @pytest.mark.max_traces(1, only=step)
    def test_max_traces_accepts_a_function_for_its_name():
        step(0.0, jnp.ones(6))
        other(jnp.ones(4))

    @pytest.mark.max_traces(2)
    @pytest.mark.max_traces(0, only="other")
    def test_two_limits():
        for length in (7, 8):
            step(0.0, jnp.ones(length))

    def test_without_a_limit():
        for length in (9, 10):
            step(0.0, jnp.ones(length))
        """,
    )

    result.assert_outcomes(passed=5)


@pytest.mark.devices(2)
def test_limits_apply_in_threads_tasks_and_caught_errors(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    import asyncio, threading

    @pytest.mark.max_traces(0)
    def test_caught():
        try:
            step(0.0, jnp.ones(20))
        except Exception:
            pass

    @pytest.mark.max_traces(0)
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_in_a_thread():
        thread = threading.Thread(target=step, args=(0.0, jnp.ones(21)))
        thread.start()
        thread.join()

    @pytest.mark.max_traces(0)
    def test_in_a_task():
        async def main():
            await asyncio.gather(asyncio.to_thread(step, 0.0, jnp.ones(22)), return_exceptions=True)
        asyncio.run(main())

    @pytest.mark.max_traces(1, recompiles=0)
    def test_recompiles():
        for device in jax.devices()[:2]:
            other(jax.device_put(jnp.ones(23), device))
        """,
    )

    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["step was traced; the limit is 0:", "other was recompiled; the limit is 0:"])


def test_markers_on_a_test_replace_those_of_its_class_and_each_applies(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.max_traces(0)
    class TestSteps:
        @pytest.mark.max_traces(2)
        def test_more(self):
            for length in (31, 32):
                step(0.0, jnp.ones(length))

        @pytest.mark.max_traces(2)
        @pytest.mark.max_traces(1, only="step")
        def test_each(self):
            for length in (33, 34):
                other(jnp.ones(length))
                step(0.0, jnp.ones(length))

        def test_as_the_class_says(self):
            step(0.0, jnp.ones(35))
        """,
    )

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["step was traced twice; the limit is 1:", "step was traced; the limit is 0:"])


def test_invalid_markers_are_rejected(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.max_traces
    def test_bare(): ...

    @pytest.mark.max_traces(1, name="step")
    def test_misspelt(): ...

    @pytest.mark.max_traces(-1)
    def test_negative(): ...
        """,
    )

    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.max_traces() is invalid: max_traces() *limit*. Write, for example, @pytest.mark.max_t*(1).",
            "@pytest.mark.max_traces(1, name='step') is invalid: *name*",
            "@pytest.mark.max_traces(-1) is invalid: *can't be negative, got -1. 0 allows none. Write, for example, *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_marker_with_a_misspelt_name_fails(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.max_traces(1, only="spte")
    def test_it():
        step(0.0, jnp.ones(41))
        """,
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*only='spte' matched nothing: *did you mean step?*"])
    result.stdout.no_fnmatch_line("*plugin.py*")


def test_limits_hold_in_a_worker_of_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"{HEAD}\n"
        """
    @pytest.mark.max_traces(1)
    def test_epoch():
        for size in (32, 31):
            step(0.0, jnp.ones((size, 4)))

    def test_reports(retraces):
        for size in (2, 3):
            other(jnp.ones(size))
        assert len(retraces) == 1
        """
    )

    result = pytester.runpytest_subprocess("-p", "xdist", "-n", "1", "-p", "no:cacheprovider", "--strict-markers")

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["step was traced twice; the limit is 1:"])


def test_the_fixture_returns_all_reports(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    def test_reports(retraces):
        for length in (2, 2, 3):
            step(0.0, jnp.ones(length))
        [report] = retraces
        assert (report.function, report.event, report.number) == ("step", "trace", 2)
        assert str(report.differences[0]).startswith("batch (shape): float32[2] -> float32[3]")
        """,
    )

    result.assert_outcomes(passed=1)


# Loading it


def test_the_plugin_imports_few_modules() -> None:
    added = modules_added_by("import treewright.testing.plugin", after="import pytest")

    assert packages(added) == {"treewright"}
    assert "jax" in packages(modules_added_by("import treewright.retrace.explain", after="import pytest"))


def test_pytest_finds_the_plugin_by_itself() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert settings["project"]["entry-points"]["pytest11"] == {"treewright": "treewright.testing.plugin"}
