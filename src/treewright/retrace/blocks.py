"""`explain_retraces` and `max_traces`: for the time of a block, reports of all retraces, or none allowed."""

import collections
from collections.abc import Callable
from typing import Any

from treewright.errors import TooManyTracesError
from treewright.retrace.history import definition_of, name_of
from treewright.retrace.report import Report, to_log_and_stderr, too_many
from treewright.retrace.watch import Watch


class explain_retraces(Watch):  # noqa: N801  it is used like a function
    """In a `with` block, a report of every retrace and recompile of every jitted function in the process.

    No function needs a decorator, and `equinox.filter_jit` and `flax.nnx.jit` are seen too. Only outermost jitted
    functions are reported, and those with `traced` wherever they are. A function's first trace within the block is
    not reported. JAX's own functions are left out.

    What a report says of arguments is read from local variables of JAX. If a version of JAX has renamed them, traces
    are counted by the name of the function, and the report says so.

    Args:
        report: Takes each `Report`. By default it goes to the logger `treewright.retrace` and to standard error, once:
            not to standard error if the logging writes there.

    Example:
        >>> reports = []
        >>> step = jax.jit(lambda x, scale=1.0: x * scale)
        >>> with explain_retraces(report=reports.append):
        ...     step(jnp.ones(3)), step(jnp.ones(4))
        (Array([1., 1., 1.], dtype=float32), Array([1., 1., 1., 1.], dtype=float32))
        >>> print(*reports[0].differences)
        x (shape): float32[3] -> float32[4]; axis 0: 3 -> 4
    """

    def __init__(self, *, report: Callable[[Report], object] = to_log_and_stderr) -> None:
        super().__init__()
        self._report = report

    def trace_ended(self, report: Report) -> None:
        """Pass the report on, unless it is of a first trace."""
        if report.number > 1:
            self._report(report)

    def recompiled(self, report: Report) -> None:
        """Pass the report on."""
        self._report(report)


class max_traces(Watch):  # noqa: N801  it is used like a function
    """In a `with` block, no function may be traced more often than this: one trace more raises before it is compiled.

    Counted are all functions that one `def` or `lambda` makes together, so a function that is made anew in a loop is
    found too. What was compiled before the block needs no trace in it.

    Args:
        limit: How many traces of each function are allowed within the block.
        only: The one function that counts, or its name; all of them by default.

    Raises:
        TooManyTracesError: From the call that needed one trace more; the message is the report.

    Example:
        >>> step = jax.jit(lambda x: 2 * x)
        >>> with max_traces(1):
        ...     for batch in jnp.ones((5, 3)):
        ...         _ = step(batch)
    """

    def __init__(self, limit: int, *, only: "Callable[..., Any] | str | None" = None) -> None:
        super().__init__()
        self._limit = limit
        self._only = only
        self._counts: collections.Counter[Any] = collections.Counter()

    def trace_begins(self, definition: Any, report: Report) -> None:
        """Count the trace, and refuse it if it is one too many."""
        if not self._concerns(definition, report):
            return
        with self._lock:
            self._counts[definition] += 1
            count = self._counts[definition]
        if count > self._limit:
            raise TooManyTracesError(too_many(self._limit, report))

    def _concerns(self, definition: Any, report: Report) -> bool:
        if self._only is None or isinstance(self._only, str):
            return self._only is None or report.function == self._only
        return definition in {definition_of(self._only), name_of(self._only)}
