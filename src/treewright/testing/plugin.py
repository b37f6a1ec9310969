"""The pytest plugin: the marker `max_traces` and the fixture `retraces`.

pytest loads it in every run in the environment, so it imports only pytest until a test needs more.
"""

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treewright.retrace.explain import max_traces as limit_class
    from treewright.retrace.report import RetraceReport


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "max_traces(limit, *, only=None, recompiles=None): fail if jit traces a function more than `limit` times "
        "during the test, or compiles it without a trace more than `recompiles` times; `only` is the only function "
        "that counts (Treewright)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test under the limits of its own markers, or else of those of its class or module."""
    marks = list(item.iter_markers_with_node("max_traces"))
    if not marks:
        return (yield)
    from treewright.errors import TooManyTracesError
    from treewright.retrace.explain import max_traces

    try:
        with contextlib.ExitStack() as blocks:
            for node, mark in marks:
                if node is marks[0][0]:
                    blocks.enter_context(_as_limit(max_traces, mark))
            result = yield
            passed = blocks.pop_all()
    except TooManyTracesError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    try:
        passed.close()
    except (TooManyTracesError, ValueError) as error:  # ValueError: `only` is the name of no function
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    return result


def _as_limit(max_traces: "type[limit_class]", mark: pytest.Mark) -> "limit_class":
    try:
        return max_traces(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        arguments = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
        problem = str(error).replace("max_traces.__init__()", "max_traces()")
        example = "" if "Write " in problem else " Write, for example, @pytest.mark.max_traces(1)."
        message = f"@pytest.mark.max_traces({arguments}) is invalid: {problem.rstrip('.')}.{example}"
        raise pytest.fail.Exception(message, pytrace=False) from None


@pytest.fixture
def retraces() -> "Iterator[list[RetraceReport]]":
    """The reports of all retraces and recompiles during the test, as from `explain_retraces`."""
    from treewright.retrace.explain import explain_retraces

    reports: list[RetraceReport] = []
    # Without those of functions that an earlier test compiled: a test must not depend on the tests before it.
    with explain_retraces(on_report=lambda report: None if report.before else reports.append(report)):
        yield reports
