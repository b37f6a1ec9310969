"""Public API: `explain`, `explain_retraces` and `max_traces`."""

import functools
import logging
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from treewright._base.jax_private import is_jitted, options_of
from treewright._base.text import did_you_mean, short_text
from treewright._contents import wrapper_chain
from treewright._loop import loop
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.comparison import call_differences, without_placement
from treewright.retrace.jax_private import (
    EQUINOX_PMAP,
    OBSERVER,
    Call,
    definition_of,
    frames_up_to_user,
    goes_through,
    is_bound,
    is_of_library,
    jit_call,
    use_in,
)
from treewright.retrace.report import ReportedEvent, RetraceReport
from treewright.retrace.signature import Signature, signature_of
from treewright.retrace.watch import RetraceTracker

F = TypeVar("F", bound=Callable[..., Any])
Only = Callable[..., Any] | str | None


def explain(
    function: Any,
    old_args: tuple[Any, ...],
    new_args: tuple[Any, ...],
    *,
    old_kwargs: Mapping[str, Any] | None = None,
    new_kwargs: Mapping[str, Any] | None = None,
) -> RetraceReport:
    """Why `function`, already called with the old arguments, would retrace for the new ones. Nothing is run.

    Args:
        function: A function, jitted or not; the static arguments are those of `jit`.
        old_args: The positional arguments of the earlier call.
        new_args: The positional arguments of the later call.
        old_kwargs: The keyword arguments of the earlier call.
        new_kwargs: The keyword arguments of the later call.

    Returns:
        A report; `report.event` is `"none"` if the call would need no new program.

    Raises:
        TypeError: If `function` is not callable, or the positional arguments of a call are not a tuple.

    Examples:
        >>> def step(x, scale=1.0):
        ...     return x * scale
        >>> print(explain(step, (jnp.ones(3),), (jnp.ones(3), 2.0)))
        step would retrace
            scale: 1.0 (default) -> Python float
                pass it in every call
    """
    if not callable(function):
        raise TypeError(f"explain(function, old_args, new_args) needs a function, got {short_text(function)}.")
    options, unseen = options_of(function), ""
    if options is None and is_jitted(function):
        unseen = f"the static arguments can't be read in JAX {jax.__version__}: changes of them are not reported"
    signatures: list[Signature] = []
    for args, kwargs in ((old_args, old_kwargs), (new_args, new_kwargs)):
        if not isinstance(args, tuple | list):
            raise TypeError(
                f"explain(function, old_args, new_args) needs the arguments of each call as a tuple, got "
                f"{short_text(args)}. Example: explain(step, (x,), (y,))."
            )
        signatures.append(signature_of(jit_call(function, args, kwargs or {}, options or {})))
    differences = call_differences(*signatures)
    of_trace = without_placement(differences)
    event: ReportedEvent = "would trace" if of_trace else "would recompile" if differences else "none"
    return RetraceReport(definition_of(function)[0], event, 0, tuple(of_trace or differences), unseen=unseen)


class _BlockOrDecorator:
    """Tracks functions in `with` blocks, or one function as its decorator."""

    _created_at: tuple[str, int] | None = None  # the file and line, until first use

    def __init__(self, only: Only, **options: Any) -> None:
        if not (only is None or isinstance(only, str) or _is_function(only)):
            fix = f" Write only={only.__name__!r}." if isinstance(only, type) else ""
            name = type(self).__name__
            raise TypeError(f"{name}(only=...) needs a function or its name, got {short_text(only)}.{fix}")
        self._reject_untracked(only)
        self._only, self._options = only, options
        self._open: list[RetraceTracker] = []  # one for each open block, innermost last
        frame = frames_up_to_user()[-1]
        self._created_at = frame.f_code.co_filename, frame.f_lineno

    def __call__(self, function: F) -> F:
        """The function itself, or for a method or a partial, a function that calls it: its calls are tracked.

        If it is not jitted, the jitted functions that it calls are tracked too.
        """
        self._created_at, decorator = None, type(self).__name__
        if not _is_function(function):
            raise TypeError(f"@{decorator} needs a function, got {short_text(function)}.")
        self._reject_untracked(function)
        if self._only is not None:
            name = definition_of(function)[0]
            raise TypeError(
                f"{decorator}(only=...) decorates {name}, but a decorator tracks only its own function. Remove only=, "
                f"or write `with {decorator}(...):` around the calls."
            )
        limited: F = _function_that_calls(function) if is_bound(function) else function
        use = use_in(limited)
        reference, key = weakref.ref(use), (type(self), id(use))
        tracker = RetraceTracker(concerns=lambda call: goes_through(call, reference()), **self._options)
        # In place of an earlier tracker of this object: the same line run again begins a new count.
        if tracker.start(stacklevel=2, key=key):
            weakref.finalize(use, OBSERVER.remove, key).atexit = False
        return limited

    def __enter__(self) -> None:
        self._created_at = None
        only = self._only
        concerns = None if only is None else lambda call: _matches(only, call)
        tracker = RetraceTracker(concerns=concerns, **self._options)
        tracker.start(stacklevel=2)
        self._open.append(tracker)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        tracker, only, limit = self._open.pop(), self._only, self._options.get("limit")
        tracker.stop(stacklevel=2)
        if error is not None:
            return
        if tracker.violations:
            note = "(The error was raised inside the block, but caught there or in a different thread.)"
            raise TooManyTracesError(f"{tracker.violations[0]}\n{note}")
        traced = tracker.traced
        if not isinstance(only, str) or only in traced:
            return
        hint = did_you_mean(only, traced)
        if not hint and all(map(is_of_library, traced.values())):  # these run beside functions compiled before
            return
        text = (
            f"only={only!r} matched nothing: no function with this name was traced in the block{hint}. Traced "
            f"functions: {', '.join(sorted(traced))}. If it was compiled before the block, pass the function instead "
            f"of its name."
        )
        if limit:
            raise ValueError(text)
        if hint:  # without one, a limit of 0 was respected, or there was no retrace
            warnings.warn(text, RetraceWarning, stacklevel=2)

    def _reject_untracked(self, function: Any) -> None:
        """Reject a callable whose calls can't be attributed to it."""
        name, fix = type(self).__name__, ""
        if isinstance(function, loop):
            fix = f"A loop jits its step: write loop({name}(...)(step), state), or only=step."
        elif type(function).__module__ == EQUINOX_PMAP:
            fix = f"Write `with {name}(...):` around the calls, without only=."
        elif callable(function) and not any(type(each).__weakrefoffset__ for each in wrapper_chain(function)):
            fix = "Its class allows no weak references, which jit needs too: use a function that calls it."
        if fix:
            raise TypeError(f"{name} can't track the calls of {short_text(function)}. {fix}")

    def __del__(self) -> None:
        if self._created_at is not None:
            name = type(self).__name__
            text = (
                f"{name}(...) was created here but never used, so it has no effect. Write `with {name}(...):` around "
                f"the calls, or `@{name}(...)` above a function."
            )
            warnings.warn_explicit(text, RetraceWarning, *self._created_at)


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)  # a class, passed for its instances, would match none


def _function_that_calls(method: Any) -> Any:
    """A function in place of a method or a partial, whose own calls the stack does not show."""

    @functools.wraps(method, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


def _matches(only: Callable[..., Any] | str, call: Call) -> bool:
    definition = definition_of(call.function)
    return definition == definition_of(only) if callable(only) else definition[0] == only


def _write_to_log(report: RetraceReport) -> None:
    logging.getLogger("treewright.retrace").warning("%s", report)


class explain_retraces(_BlockOrDecorator):  # noqa: N801  it is used like a function
    """Report every retrace and recompile of jitted functions, in a `with` block or as a decorator.

    In a block, all jitted functions of the process are tracked, without decorators, including `equinox.filter_jit` and
    `flax.nnx.jit`. As a decorator, above or below `jit`, it tracks that function as long as it exists; on a function
    that is not jitted, it tracks the jitted functions that it calls. Calls that hit the cache cost nothing extra. Only
    outermost jitted functions are reported, without JAX's own. A function's first trace in a block is reported only if
    the function had programs before. `jax.eval_shape` and the like compile nothing, so they are not reported.

    Reports read the arguments from local variables of JAX. If a version of JAX has renamed them, nothing is reported
    but a `RetraceWarning`.

    Args:
        on_report: Called with each `RetraceReport`. By default, reports go to the logger `treewright.retrace`, and so
            to standard error unless the program configures logging.
        only: The only function to track in a block, or its name; all functions by default.

    Examples:
        >>> reports = []
        >>> step = jax.jit(lambda x, scale=1.0: x * scale)
        >>> with explain_retraces(on_report=reports.append):
        ...     step(jnp.ones(3)), step(jnp.ones(4))
        (Array([1., 1., 1.], dtype=float32), Array([1., 1., 1., 1.], dtype=float32))
        >>> print(*reports[0].differences)
        x (shape): float32[3] -> float32[4]; axis 0: 3 -> 4
    """

    def __init__(
        self,
        _misplaced: None = None,
        /,
        *,
        on_report: Callable[[RetraceReport], object] | None = None,
        only: Only = None,
    ) -> None:
        if _misplaced is not None:
            raise TypeError(
                f"explain_retraces takes no positional argument, got {short_text(_misplaced)}. Write "
                f"@explain_retraces() above the function, or `with explain_retraces():` around the calls."
            )
        if not (on_report is None or callable(on_report)):
            raise TypeError(f"on_report= must be a function of a RetraceReport, got {short_text(on_report)}.")
        super().__init__(only, on_report=on_report or _write_to_log)


class max_traces(_BlockOrDecorator):  # noqa: N801  it is used like a function
    """Limit the number of traces of each function: one more raises before it is compiled.

    In a `with` block, this counts the traces of each jitted function within the block, in all threads. All functions
    from one `def` or `lambda` count together, so a function that is recreated in a loop is found too. A function that
    was compiled before the block needs no trace in it, so `max_traces(0)` allows no new one. If an error is caught
    within the block, or raised in a different thread, it is raised again at the end of the block.

    As a decorator, it counts the calls through the object that it decorates, as long as this exists. Above `jit`, this
    is the jitted function: jitting and limiting a function again, for each trial of a sweep, begins a new count. Below
    `jit`, or on a function that is not jitted, such as a test, it counts the traces of that function, by each `jit` or
    `loop` of it, and of each jitted function that it calls, but not in threads that it starts. On a callable object, it
    counts the traces of the object itself, not of what its methods call. A new limit on the same object, as from a
    notebook cell that runs again, replaces the old one and begins a new count. What is called while another function is
    traced is part of that trace, and does not count.

    Equinox takes a `filter_jit` inside another one apart, so the limit of the inner one belongs below it. Others belong
    above: below `filter_jit` an equinox module is not seen, nor is a function below `nnx.jit(nnx.grad(...))`.

    Args:
        limit: The maximum number of traces of each function.
        only: The only function that counts in a block, or its name; all functions by default.
        recompiles: The maximum number of compilations without a trace, such as for an array on a different device or a
            different batch size under `vmap`; any number by default. One more raises after it was compiled.

    Raises:
        TooManyTracesError: From the call that exceeds the limit; the message is the report.
        ValueError: If a limit is negative; and at the end of a block, if other functions of the user were traced in it,
            but none with the name `only`, and `limit` is not 0.
        TypeError: For a `loop`, a function of `equinox.filter_pmap`, or an object without weak references, whose calls
            can't be seen.
        RuntimeError: If traces can't be counted in this version of JAX; from the first compilation, if compilations
            can't be counted and `recompiles` is set.

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

    def __init__(self, limit: int, *, only: Only = None, recompiles: int | None = None) -> None:
        counts: tuple[Any, Any] = (limit, 0 if recompiles is None else recompiles)
        for name, count, example in zip(("The limit", "recompiles="), counts, ("1", "1, recompiles=0"), strict=True):
            if not isinstance(count, int):
                fix = "@max_traces(1) above the function" if callable(count) else f"max_traces({example})"
                raise TypeError(f"{name} of max_traces must be an integer, got {short_text(count)}. Write {fix}.")
            if count < 0:
                raise ValueError(f"{name} of max_traces can't be negative, got {count}. 0 allows none.")
        super().__init__(only, limit=limit, recompiles=recompiles)
