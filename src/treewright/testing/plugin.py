"""The pytest plugin: the marker `max_traces`, the fixture `retraces` and the option `--retraces`.

pytest loads it in every run in the environment, so it imports only pytest until a test needs more.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treewright.retrace.command import ProgramRecorder
    from treewright.retrace.explain import max_traces as limit_class
    from treewright.retrace.report import RetraceReport

_RECORDER: "pytest.StashKey[ProgramRecorder]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    text = "report at the end what JAX traced and compiled in this process, and why functions were retraced"
    parser.getgroup("treewright").addoption("--retraces", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and begin to record with `--retraces`."""
    if config.getoption("--retraces"):
        from treewright.retrace.command import ProgramRecorder

        config.stash[_RECORDER] = ProgramRecorder(["pytest", *config.invocation_params.args])
    config.addinivalue_line(
        "markers",
        "max_traces(limit, *, only=None, recompiles=None): fail if jit traces a function more than `limit` times "
        "during the test, or compiles it without a trace more than `recompiles` times; `only` is the only function "
        "that counts (Treewright)",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report."""
    recorder = config.stash.get(_RECORDER, None)
    if recorder is not None:
        terminalreporter.write_line(f"\n{recorder.text()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test under the limits of its markers.

    For each function, the closest marker applies; on the same test or class, a marker with `only` comes first.
    """
    marks = list(item.iter_markers_with_node("max_traces"))
    if not marks:
        return (yield)
    from treewright.errors import TooManyTracesError
    from treewright.retrace.explain import max_traces, nested

    nodes = [node for node, _ in marks]
    marks.sort(key=lambda pair: (nodes.index(pair[0]), pair[1].kwargs.get("only") is None))
    try:
        with nested([_as_limit(max_traces, mark) for _, mark in marks]) as blocks:
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
