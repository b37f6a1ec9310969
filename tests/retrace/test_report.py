"""The text of a report, and where reports go."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

import treewright
from tests.retrace.support import fresh

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


def test_reports_follow_the_logging_configuration(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    logger.addHandler(logging.StreamHandler(file))

    retrace()

    assert file.getvalue().startswith("double retraced (2nd trace, ")
    assert capsys.readouterr().err == ""


def test_reports_reach_handlers_of_parent_loggers(caplog: pytest.LogCaptureFixture) -> None:
    retrace()

    [record] = [one for one in caplog.records if one.name == "treewright.retrace"]
    assert (record.levelno, record.getMessage().startswith("double retraced")) == (logging.WARNING, True)


def test_a_disabled_logger_prints_no_report(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logger.setLevel(logging.ERROR)

    retrace()

    assert capsys.readouterr().err == ""
