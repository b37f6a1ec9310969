"""The pytest plugin: the marker `max_traces`, the fixture `retraces` and the option `--retraces`.

pytest loads it in every run of an environment, so it imports nothing but pytest until a test asks for it.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treewright.retrace.command import Recording
    from treewright.retrace.explain import max_traces as limit_class
    from treewright.retrace.report import RetraceReport

_RECORDING: "pytest.StashKey[Recording]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    text = "report at the end what JAX traced and compiled in this process, and what again for which reason"
    parser.getgroup("treewright").addoption("--retraces", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and begin to record if asked."""
    if config.getoption("--retraces"):
        from treewright.retrace.command import Recording

        config.stash[_RECORDING] = Recording(["pytest", *config.invocation_params.args])
    config.addinivalue_line(
        "markers",
        "max_traces(limit, *, only=None, recompiles=None): fail if jit traces a function more than `limit` times "
        "during the test, or compiles it without a trace more than `recompiles` times; `only` names the one function "
        "that counts (Treewright)",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report."""
    recording = config.stash.get(_RECORDING, None)
    if recording is not None:
        terminalreporter.write_line(f"\n{recording.text()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test under the limits of its markers. Of several for one function, or for all, the closest holds."""
    marks = {mark.kwargs.get("only"): mark for mark in reversed(list(item.iter_markers("max_traces")))}
    if not marks:
        return (yield)
    from contextlib import ExitStack

    from treewright.errors import TooManyTracesError
    from treewright.retrace.explain import max_traces

    try:
        with ExitStack() as limits:
            for mark in marks.values():
                limits.enter_context(_as_limit(max_traces, mark))
            return (yield)
    except TooManyTracesError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _as_limit(max_traces: "type[limit_class]", mark: pytest.Mark) -> "limit_class":
    try:
        return max_traces(*mark.args, **mark.kwargs)
    except TypeError as error:
        given = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
        message = f"@pytest.mark.max_traces({given}) has no meaning: {error}. Write @pytest.mark.max_traces(1), say."
        raise pytest.fail.Exception(message, pytrace=False) from None


@pytest.fixture
def retraces() -> "Iterator[list[RetraceReport]]":
    """The reports of all retraces and recompiles during the test, as `explain_retraces` gives them."""
    from treewright.retrace.explain import explain_retraces

    found: list[RetraceReport] = []
    with explain_retraces(on_report=found.append):
        yield found
