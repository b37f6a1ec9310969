"""The text of a report, and where reports go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

import treewright
from tests.retrace.support import fresh
from treewright import RetraceReport

if TYPE_CHECKING:
    from collections.abc import Iterator


def double(x: Any) -> Any:
    return x * 2


def retrace() -> None:
    """One trace and one retrace, reported by default."""
    jitted: Any = jax.jit(fresh(double))
    with treewright.explain_retraces():
        jitted(jnp.ones(2))
        jitted(jnp.ones(3))


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger, away from pytest's own handlers, and put back afterwards."""
    logger = logging.getLogger("treewright.retrace")
    before = logger.propagate, logger.level, list(logger.handlers)
    logger.propagate = False
    yield logger
    logger.propagate, logger.level, logger.handlers = before


@pytest.mark.parametrize(
    ("report", "headline"),
    [
        (RetraceReport("f", "trace", 1), "f traced (1st trace)"),
        (RetraceReport("f", "trace", 2, compared_with=1), "f retraced (2nd trace)"),
        (RetraceReport("f", "trace", 11, compared_with=1), "f retraced (11th trace)"),
        (RetraceReport("f", "trace", 23, compared_with=1), "f retraced (23rd trace)"),
        (RetraceReport("f", "recompile", 2, compared_with=1), "f recompiled, without a trace (2nd compilation)"),
        (RetraceReport("f", "would trace", 2), "f would retrace"),
        (RetraceReport("f", "would recompile", 2), "f would recompile, without a trace"),
        (RetraceReport("f", "none", 2), "f would not retrace"),
        (RetraceReport("f", "none", 2, unseen="a part"), "f would not retrace, as far as can be seen"),
        (
            RetraceReport("f", "trace", 2, seconds=0.151, caller="train.py:9", compared_with=1),
            "f retraced (2nd trace, 0.15 s), called from train.py:9",
        ),
    ],
)
def test_the_headline_names_function_event_number_seconds_and_caller(report: RetraceReport, headline: str) -> None:
    assert str(report).splitlines()[0] == headline


def test_the_last_lines_name_the_trace_of_the_comparison_and_what_was_not_seen() -> None:
    report = RetraceReport("f", "trace", 3, compared_with=1, unseen="the mesh was not seen")
    without = RetraceReport("f", "trace", 3, compared_with=1)

    assert str(report).splitlines()[1:] == ["    the mesh was not seen"]
    assert str(without).splitlines()[-1] == "    compared with trace 1"


def test_a_report_prints_as_its_text() -> None:
    report = treewright.explain(lambda x: x, ("b",), ("i",))

    assert repr(report) == str(report)


def test_reports_go_to_standard_error_by_default(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logger.handlers.clear()
    retrace()

    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("double retraced (2nd trace, ")
    assert written.err.count("x: float32[2] -> float32[3]") == 1


def test_reports_reach_handlers_of_parent_loggers(caplog: pytest.LogCaptureFixture) -> None:
    retrace()

    [record] = [one for one in caplog.records if one.name == "treewright.retrace"]
    assert (record.levelno, record.getMessage().startswith("double retraced")) == (logging.WARNING, True)


@pytest.mark.parametrize(
    ("shape", "is_last_batch"),
    [((31, 8), True), ((1, 8), True), ((33, 8), False), ((31, 9), False), ((31, 7), False), ((32, 7), False)],
)
def test_only_a_smaller_first_axis_alone_may_be_the_last_batch(shape: tuple[int, ...], is_last_batch: bool) -> None:
    report = str(treewright.explain(jax.jit(lambda x: x), (jnp.ones((32, 8)),), (jnp.ones(shape),)))

    assert ("if this is the smaller last batch of an epoch, drop or pad it" in report) == is_last_batch
    assert ("pad to one size, or to a few" in report) != is_last_batch
