"""What users ask for: why a call would trace again, all retraces of a block, and a limit on them."""

import collections
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

import jax

from treewright._core.jax_private import is_jitted, options_of
from treewright._core.text import cured, did_you_mean, first_text, options_cure
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.call import call_differences, is_placement, signature_of
from treewright.retrace.history import definition_of, name_of
from treewright.retrace.jax_private import Call, jit_call, user_frame
from treewright.retrace.report import Event, RetraceReport, tell, to_log_and_stderr, too_many
from treewright.retrace.traced import PROCESS, traced
from treewright.retrace.watch import Watch

P = ParamSpec("P")
R = TypeVar("R")


def explain(
    function: Any,
    old_args: tuple[Any, ...],
    new_args: tuple[Any, ...],
    *,
    old_kwargs: Mapping[str, Any] | None = None,
    new_kwargs: Mapping[str, Any] | None = None,
) -> RetraceReport:
    """Why `function`, called with the old arguments, would trace again for the new ones. Nothing is run.

    Args:
        function: A function, jitted or not; of a jitted one the static arguments are known.
        old_args: The positional arguments of the earlier call.
        new_args: Those of the later one.
        old_kwargs: The keyword arguments of the earlier call.
        new_kwargs: Those of the later one.

    Returns:
        A report; `report.event` is `"none"` if the call would need no new program.

    Examples:
        >>> def step(x, scale=1.0):
        ...     return x * scale
        >>> print(explain(step, (jnp.ones(3),), (jnp.ones(3), 2.0)))
        step would retrace
            scale (added): Python float
                a default that is passed is an argument more: pass it each time or never
    """
    options = options_of(function)
    unseen = ""
    if options is None and is_jitted(function):
        unseen = f"which arguments are static can't be read in JAX {jax.__version__}: a change of one is not seen"

    both: list[object] = [old_args, new_args]  # whatever a user gives
    for given in both:
        if not isinstance(given, tuple | list):
            raise TypeError(
                f"explain(function, old_args, new_args) takes the arguments of two calls, each as a tuple, got "
                f"{first_text(given)}: explain(step, (x,), (y,))."
            )

    def call(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Call:
        return jit_call(function, args, kwargs or {}, options or {})

    old, new = signature_of(call(old_args, old_kwargs)), signature_of(call(new_args, new_kwargs))
    differences = tuple(call_differences(old, new))
    of_trace = tuple(difference for difference in differences if not is_placement(difference))
    event: Event = "would trace" if of_trace else "would recompile" if differences else "none"
    return RetraceReport(name_of(function), event, 0, of_trace or differences, unseen=unseen)


class _ToBeUsed:
    """What does nothing by itself: where it is dropped and was not used, a warning says so."""

    _made_at: tuple[str, int] | None = None  # the file and line, until it is used

    def __init__(self) -> None:
        frame = user_frame()
        self._made_at = None if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def __del__(self) -> None:
        if self._made_at is not None:
            name = type(self).__name__
            wrong = f"{name}(...) was made here and never used, so it sees nothing"
            text = f"{wrong}: write `with {name}(...):` around the calls."
            warnings.warn_explicit(text, RetraceWarning, *self._made_at)


class explain_retraces(_ToBeUsed):  # noqa: N801  it is used like a function
    """In a `with` block, a report of every retrace and recompile of every jitted function in the process.

    No function needs a decorator, and `equinox.filter_jit` and `flax.nnx.jit` are seen too. Only outermost jitted
    functions are reported, and those with `traced` wherever they are. A function's first trace within the block is
    not reported. JAX's own functions are left out.

    What a report says of arguments is read from local variables of JAX. If a version of JAX has renamed them, traces
    are counted by the name of the function; the report and a `RetraceWarning` say so.

    Args:
        on_report: Called with each `RetraceReport`. By default they go to the logger `treewright.retrace` and to
            standard error, but only once where the logging writes to standard error too.

    Examples:
        >>> reports = []
        >>> step = jax.jit(lambda x, scale=1.0: x * scale)
        >>> with explain_retraces(on_report=reports.append):
        ...     step(jnp.ones(3)), step(jnp.ones(4))
        (Array([1., 1., 1.], dtype=float32), Array([1., 1., 1., 1.], dtype=float32))
        >>> print(*reports[0].differences)
        x (shape): float32[3] -> float32[4]; axis 0: 3 -> 4
    """

    @cured(options_cure("on_report", positional="`with explain_retraces():` around the calls"))
    def __init__(self, *, on_report: Callable[[RetraceReport], object] | None = None) -> None:
        self._on_report = on_report or to_log_and_stderr
        self._watches: list[Watch] = []  # of the blocks that are open, the innermost last
        super().__init__()

    def __enter__(self) -> None:
        self._made_at = None
        watch = Watch(ended=self._trace_ended, recompiled=lambda _, report: tell(self._on_report, report))
        watch.__enter__()
        self._watches.append(watch)

    def __exit__(self, *_: object) -> None:
        self._watches.pop().__exit__()

    def _trace_ended(self, report: RetraceReport) -> None:
        if report.is_retrace:
            tell(self._on_report, report)


class max_traces(_ToBeUsed):  # noqa: N801  it is used like a function
    """No function may be traced more often than this: one trace more raises before it is compiled.

    In a `with` block, this counts the traces of each jitted function within the block, in all threads. Counted are all
    functions that one `def` or `lambda` makes together, so a function that is made anew in a loop is found too. What
    was compiled before the block needs no trace in it. An error that is caught within the block, or raised in another
    thread, is raised again where the block ends.

    As a decorator, directly under `jit`, it is `traced` with that limit: for one function, as long as it lives.

    Args:
        limit: How many traces of each function are allowed.
        only: The one function that counts, or its name; all of them by default. For a block.
        recompiles: How many compilations without a trace are allowed of each function, such as for an array on another
            device; any number by default. For a block. What is one too many raises after it was compiled.

    Raises:
        TooManyTracesError: From the call that needed one trace more; the message is the report.
        RuntimeError: If traces, or compilations where these count, can't be counted in this version of JAX.
        TypeError: If the function to decorate is jitted already, or a decorator is given what is for a block.

    Examples:
        >>> step = jax.jit(lambda x: 2 * x)
        >>> with max_traces(1, recompiles=0):
        ...     for batch in jnp.ones((5, 3)):
        ...         _ = step(batch)

        >>> @jax.jit
        ... @max_traces(1)
        ... def double(x):
        ...     return 2 * x
        >>> double(jnp.ones(2))
        Array([2., 2.], dtype=float32)
    """

    @cured(options_cure("limit", "only", "recompiles"))
    def __init__(
        self, limit: int, *, only: Callable[..., Any] | str | None = None, recompiles: int | None = None
    ) -> None:
        allowed = cast("object", limit)  # whatever a user gives
        if not isinstance(allowed, int):
            cure = "Write @max_traces(1) above the function" if callable(allowed) else "Write max_traces(1)"
            raise TypeError(f"max_traces takes a number of traces first, got {first_text(allowed)}. {cure}.")
        counted: object = only  # whatever a user gives
        if not (counted is None or isinstance(counted, str) or callable(counted)):
            raise TypeError(f"max_traces(only=...) takes a function or its name, got {first_text(only)}.")
        self._limit = limit
        self._only = only
        self._recompiles = recompiles
        self._blocks: list[_Block] = []  # that are open, the innermost last
        super().__init__()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, which may not be traced more often."""
        self._made_at = None
        if self._only is not None or self._recompiles is not None:
            name = "only" if self._only is not None else "recompiles"
            raise TypeError(
                f"max_traces({self._limit}, {name}=...) decorates {name_of(function)}, and a decorator counts the "
                f"traces of its function alone. Drop {name}=, or write `with max_traces(...):` around the calls."
            )
        return traced(max_traces=self._limit)(function)

    def __enter__(self) -> None:
        self._made_at = None
        sight = PROCESS.sight
        if not sight.events:
            raise RuntimeError(
                f"max_traces can't count: JAX {jax.__version__} does not tell of traces as Treewright knows it. Put "
                f"@max_traces below @jax.jit, which counts without being told, or update Treewright."
            )
        if self._recompiles is not None and not (sight.calls and PROCESS.hears_compilations):
            raise RuntimeError(
                f"max_traces can't count recompiles: JAX {jax.__version__} does not tell of compilations, or of what "
                f"they are for, as Treewright knows it. Drop recompiles=, or update Treewright."
            )
        block = _Block(self._limit, self._only, self._recompiles)
        block.watch.__enter__()
        self._blocks.append(block)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        block = self._blocks.pop()
        block.watch.__exit__()
        if error is not None:
            return
        if block.violations:
            raise TooManyTracesError(
                f"{block.violations[0]}\n(This was raised in the block before, and did not leave it.)"
            )
        problem = block.nothing_counted()
        if problem:
            warnings.warn(problem, RetraceWarning, stacklevel=2)


class _Block:
    """The counts of one `with` block."""

    def __init__(self, limit: int, only: Callable[..., Any] | str | None, recompiles: int | None) -> None:
        self.limit = limit
        self.only = only
        self.recompiles = recompiles
        self.watch = Watch(begins=self.trace_begins, recompiled=self.recompiled)
        self.violations: list[str] = []
        self._names: set[str] = set()  # of what was traced
        self._traces: collections.Counter[Any] = collections.Counter()
        self._recompiles: collections.Counter[Any] = collections.Counter()
        self._lock = threading.Lock()

    def trace_begins(self, definition: Any, report: RetraceReport) -> None:
        """Count a trace."""
        self._names.add(report.function)
        self._count(definition, report, self._traces, self.limit)

    def recompiled(self, definition: Any, report: RetraceReport) -> None:
        """Count a compilation without a trace."""
        if self.recompiles is not None:
            self._count(definition, report, self._recompiles, self.recompiles)

    def _count(self, definition: Any, report: RetraceReport, counts: "collections.Counter[Any]", limit: int) -> None:
        if not self._concerns(definition, report):
            return
        with self._lock:
            counts[definition] += 1
            count = counts[definition]
        if count > limit:
            message = too_many(limit, report)
            self.violations.append(message)
            raise TooManyTracesError(message)

    def _concerns(self, definition: Any, report: RetraceReport) -> bool:
        if self.only is None or isinstance(self.only, str):
            return self.only is None or report.function == self.only
        return definition in {definition_of(self.only), name_of(self.only)}

    def nothing_counted(self) -> str:
        """What to say where no function of the name that alone counts was traced; empty where that may be meant."""
        if not isinstance(self.only, str) or self.only in self._names:
            return ""
        hint = did_you_mean(self.only, self._names)
        if not (self.limit or hint):  # it was not to be traced
            return ""
        traced_ones = f"Traced were: {', '.join(sorted(self._names)) or 'none'}."
        return (
            f"max_traces({self.limit}, only={self.only!r}) has counted nothing: no function of this name{hint} was "
            f"traced in the block, be it that it was compiled before or that the name is another. {traced_ones}"
        )
