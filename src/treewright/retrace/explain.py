"""What users ask for: why a call would trace again, all retraces of a block or a function, and a limit on them."""

import logging
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from treewright._arguments import cured, options_cure
from treewright._core import innermost
from treewright._core.jax_private import is_jitted, options_of
from treewright._core.text import did_you_mean, short_text
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.jax_private import (
    definition_of,
    frames_to_the_user,
    jit_call,
    reads_calls,
    tells_of_compilations,
)
from treewright.retrace.report import Event, RetraceReport
from treewright.retrace.signature import Signature, call_differences, signature_of, without_placement
from treewright.retrace.watch import Watch

F = TypeVar("F", bound=Callable[..., Any])
Only = Callable[..., Any] | str | None
_WAYS = "`with explain_retraces():` around the calls, or `@explain_retraces()` above a function"


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
    options, unseen = options_of(function), ""
    if options is None and is_jitted(function):
        unseen = f"which arguments are static can't be read in JAX {jax.__version__}: a change of one is not seen"
    signatures: list[Signature] = []
    for args, kwargs in ((old_args, old_kwargs), (new_args, new_kwargs)):
        if not isinstance(args, tuple | list):
            raise TypeError(
                f"explain(function, old_args, new_args) takes the arguments of two calls, each as a tuple, got "
                f"{short_text(args)}: explain(step, (x,), (y,))."
            )
        signatures.append(signature_of(jit_call(function, args, kwargs or {}, options or {})))
    differences = call_differences(*signatures)
    of_trace = without_placement(differences)
    event: Event = "would trace" if of_trace else "would recompile" if differences else "none"
    return RetraceReport(definition_of(function)[0], event, 0, tuple(of_trace or differences), unseen=unseen)


class _Watcher:
    """Watches functions in `with` blocks, or one function as its decorator."""

    _made_at: tuple[str, int] | None = None  # the file and line, until it is used

    def __init__(self, only: Only, **options: Any) -> None:
        if not (only is None or isinstance(only, str) or callable(only)):
            raise TypeError(f"{type(self).__name__}(only=...) takes a function or its name, got {short_text(only)}.")
        self._only, self._options = only, options
        self._open: list[Watch] = []  # of blocks, the innermost last
        frame = frames_to_the_user()[-1]
        self._made_at = frame.f_code.co_filename, frame.f_lineno

    def __call__(self, function: F) -> F:
        """The function itself, which is watched for as long as it lives. Decorate it above or below `jit`."""
        self._made_at, watcher = None, type(self).__name__
        if not callable(function):
            raise TypeError(f"@{watcher} decorates a function, got {short_text(function)}.")
        name = definition_of(function)[0]
        if self._only is not None:
            raise TypeError(
                f"{watcher}(only=...) decorates {name}, and a decorator watches its function alone. Drop only=, or "
                f"write `with {watcher}(...):` around the calls."
            )
        inner = weakref.ref(innermost(function))
        watch = self._start(name, lambda other: innermost(other) is inner())
        weakref.finalize(innermost(function), watch.stop, stacklevel=1).atexit = False
        return function

    def __enter__(self) -> None:
        self._made_at, only = None, self._only
        if only is None:
            watch = self._start(None, None)
        elif isinstance(only, str):
            watch = self._start(only, lambda function: definition_of(function)[0] == only)
        else:
            watch = self._start(definition_of(only)[0], lambda function: definition_of(function) == definition_of(only))
        self._open.append(watch)

    def _start(self, name: str | None, concerns: Callable[[Any], bool] | None) -> Watch:
        watch = Watch(name=name, concerns=concerns, **self._options)
        watch.start(stacklevel=3)
        return watch

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        watch, only, limit = self._open.pop(), self._only, self._options.get("limit")
        watch.stop(stacklevel=2)
        if error is not None:
            return
        if watch.violations:
            said = "(This was raised in the block before, and did not leave it.)"
            raise TooManyTracesError(f"{watch.violations[0]}\n{said}")
        hint = did_you_mean(only, watch.traced) if isinstance(only, str) else ""
        if isinstance(only, str) and only not in watch.traced and (limit or hint):  # a limit of 0 may be kept so
            text = (
                f"only={only!r} has met nothing: no function of this name{hint} was traced in the block. Either it "
                f"was compiled before, or the name is wrong. Traced were: {', '.join(sorted(watch.traced)) or 'none'}."
            )
            warnings.warn(text, RetraceWarning, stacklevel=2)

    def __del__(self) -> None:
        if self._made_at is not None:
            name = type(self).__name__
            text = (
                f"{name}(...) was made here and never used, so it sees nothing: write `with {name}(...):` around the "
                f"calls, or `@{name}(...)` above a function."
            )
            warnings.warn_explicit(text, RetraceWarning, *self._made_at)


def _write_to_log(report: RetraceReport) -> None:
    logging.getLogger("treewright.retrace").warning("%s", report)


class explain_retraces(_Watcher):  # noqa: N801  it is used like a function
    """Reports of every retrace and recompile of jitted functions, in a `with` block or as a decorator.

    In a block, all jitted functions of the process are watched; none needs a decorator, and `equinox.filter_jit` and
    `flax.nnx.jit` are seen too. As a decorator, above or below `jit`, it watches that function for as long as it lives.
    A call that has its program costs nothing more. Only outermost jitted functions are reported, and JAX's own are left
    out. A function's first trace is not reported, unless JAX still has a trace of it from before the block.

    What a report says of arguments is read from local variables of JAX. If a version of JAX has renamed them, traces
    are counted by the name of the function; the report and a `RetraceWarning` say so.

    Args:
        on_report: Called with each `RetraceReport`. By default they go to the logger `treewright.retrace`, and so
            to standard error where the program has set up no logging.
        only: The one function to watch in a block, or its name; all of them by default.

    Examples:
        >>> reports = []
        >>> step = jax.jit(lambda x, scale=1.0: x * scale)
        >>> with explain_retraces(on_report=reports.append):
        ...     step(jnp.ones(3)), step(jnp.ones(4))
        (Array([1., 1., 1.], dtype=float32), Array([1., 1., 1., 1.], dtype=float32))
        >>> print(*reports[0].differences)
        x (shape): float32[3] -> float32[4]; axis 0: 3 -> 4
    """

    @cured(options_cure("on_report", "only", positional=_WAYS))
    def __init__(self, *, on_report: Callable[[RetraceReport], object] | None = None, only: Only = None) -> None:
        super().__init__(only, on_report=on_report or _write_to_log)


class max_traces(_Watcher):  # noqa: N801  it is used like a function
    """No function may be traced more often than this: one trace more raises before it is compiled.

    In a `with` block, this counts the traces of each jitted function within the block, in all threads. Counted are all
    functions that one `def` or `lambda` makes together, so a function that is made again in a loop is found too. What
    was compiled before the block needs no trace in it. An error that is caught within the block, or raised in another
    thread, is raised again where the block ends.

    As a decorator, above or below `jit`, it counts the traces of that function for as long as it lives.

    Args:
        limit: How many traces of each function are allowed.
        only: The one function that counts in a block, or its name; all of them by default.
        recompiles: How many compilations without a trace are allowed of each function, such as for an array on another
            device; any number by default. What is one too many raises after it was compiled.

    Raises:
        TooManyTracesError: From the call that needed one trace more; the message is the report.
        RuntimeError: If traces, or compilations where these count, can't be counted in this version of JAX.

    Examples:
        >>> step = jax.jit(lambda x: 2 * x)
        >>> with max_traces(1, recompiles=0):
        ...     for batch in jnp.ones((5, 3)):
        ...         _ = step(batch)

        >>> @max_traces(1)
        ... @jax.jit
        ... def double(x):
        ...     return 2 * x
        >>> double(jnp.ones(2))
        Array([2., 2.], dtype=float32)
    """

    @cured(options_cure("limit", "only", "recompiles"))
    def __init__(self, limit: int, *, only: Only = None, recompiles: int | None = None) -> None:
        given: Any = limit
        if not isinstance(given, int):
            cure = "Write @max_traces(1) above the function" if callable(given) else "Write max_traces(1)"
            raise TypeError(f"max_traces takes a number of traces first, got {short_text(given)}. {cure}.")
        super().__init__(only, limit=limit, recompiles=recompiles)

    def _start(self, name: str | None, concerns: Callable[[Any], bool] | None) -> Watch:
        if not reads_calls() or (self._options["recompiles"] is not None and not tells_of_compilations()):
            raise RuntimeError(
                f"max_traces can't count: JAX {jax.__version__} does not tell of traces, or of compilations for "
                f"recompiles=, as Treewright knows it. Update Treewright."
            )
        return super()._start(name, concerns)
