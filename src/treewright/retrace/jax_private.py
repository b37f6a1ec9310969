"""What of JAX is private or untyped and only retraces need: its events, frames, caches and settings of a trace.

Each says what is lost in a version of JAX without it. What would be lost in silence is tried once in each process, by
`capabilities`, and a `RetraceWarning` says what can't be seen. `tests/retrace/test_jax_private.py` takes each away.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.monitoring

from treewright._core.jax_private import options_of, options_record, untyped_jax

# Events of tracing and compiling. JAX tells of an outermost trace when it has ended and before anything is compiled, in
# the thread and on the stack of the call. Without the first, `explain_retraces` warns that it sees nothing, and
# `max_traces` raises. Without the last they say that they see neither recompiles nor traces under `grad` or `vmap`.

TRACED_EVENT = "/jax/core/compile/jaxpr_trace_duration"
LOWERED_EVENT = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILED_EVENT = "/jax/core/compile/backend_compile_duration"
# Of the persistent cache: a program was looked for, read, written; the seconds that reading saved. JAX tells nothing of
# a program that was neither read nor written. Without them, the command says nothing of that cache.
CACHE_ASKED = "/jax/compilation_cache/compile_requests_use_cache"
CACHE_READ = "/jax/compilation_cache/cache_hits"
CACHE_WRITTEN = "/jax/compilation_cache/cache_misses"
CACHE_SAVED = "/jax/compilation_cache/compile_time_saved_sec"

EventKind: TypeAlias = Literal["trace", "lower", "compile", "cache"]
_KINDS: Mapping[str, EventKind] = types.MappingProxyType(
    {
        TRACED_EVENT: "trace",
        LOWERED_EVENT: "lower",
        COMPILED_EVENT: "compile",
        **dict.fromkeys((CACHE_ASKED, CACHE_READ, CACHE_WRITTEN, CACHE_SAVED), "cache"),
    }
)


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """What JAX tells of: a trace, a lowering, a compilation, or what the persistent cache did inside of one."""

    kind: EventKind
    seconds: float
    name: str  # of the function that was traced, of the program (`jit(step)`), or of the event of the cache
    signature: Any = None  # of the call, for all that listen
    _call: "Call | None" = None
    _is_read: bool = False

    def read_call(self) -> "Call | None":
        """The call that it is a part of, from the stack, as long as the event is told."""
        if not self._is_read:
            self._call, self._is_read = call_on_stack(), True
        return self._call


class Observer:
    """The one listener that JAX knows of, while somebody listens here.

    JAX walks through a plain list of its listeners. One that leaves it meanwhile, in any thread, makes JAX pass over
    the next one, so ours leave a tuple of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[Event], object], ...] = ()

    def __call__(self, event: str, duration_secs: float = 0.0, **details: str | int) -> None:
        """What JAX calls at each event."""
        kind = _KINDS.get(event)
        if kind is None:
            return
        told = Event(kind, duration_secs, event if kind == "cache" else str(details.get("fun_name", "")))
        for listener in self._listeners:
            listener(told)

    def add(self, listener: Callable[[Event], object]) -> None:
        """Let a function hear of every event in the process."""
        with self._lock:
            if not self.is_heard(unknown=bool(self._listeners)):
                jax.monitoring.register_event_duration_secs_listener(self)
                untyped_jax.monitoring.register_event_listener(self)  # of those without seconds
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: Callable[[Event], object]) -> None:
        """Undo `add`. Without JAX's functions to stop a listener, it goes on telling one that has nobody to tell."""
        names = ("unregister_event_duration_listener", "unregister_event_listener")
        both: list[Any] = [getattr(jax.monitoring, name, None) for name in names]
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other != listener)
            if not self._listeners and None not in both and self.is_heard(unknown=True):
                for unregister in both:
                    unregister(self)

    def is_heard(self, *, unknown: bool) -> bool:
        """Whether JAX tells it of events; not after `jax.monitoring.clear_event_listeners()`, which is public.

        Without the function that is asked here, that goes unseen, and the answer is `unknown`.
        """
        from jax._src import monitoring

        listeners: Any = getattr(monitoring, "get_event_duration_listeners", None)
        return unknown if listeners is None else any(known is self for known in listeners())


OBSERVER = Observer()


def nothing(*_: Any) -> None:
    """What is done about what nobody asked for."""


# Frames of JAX, and their local variables

# The frames in which a call of a jitted function can be read while it is traced, and while it is compiled. In 0.9.0
# only `_trace_for_jit` shows a trace; since then it stands below `_infer_params`, with the same call. Without them, or
# without the names of what is read there, traces are counted by the function's name, and the report says so.
TRACING_FRAMES = frozenset({"_infer_params", "_trace_for_jit"})
CALL_FRAMES = TRACING_FRAMES | {"_run_python_pjit"}
CALL_LOCALS = ("fun", "args", "kwargs")
OPTIONS_LOCALS = ("ji", "jit_info")

# Where it can be read whether a call was traced or got the trace of another. Without it, that is told by comparing the
# call with those before it, and a warning says so.
TRACE_FRAME = "_trace_for_jit"
TRACE_LOCALS = ("fun", "dbg", "jaxpr")

# The module of `pmap`, and which of its options a trace depends on. Without it, calls of what `pmap` made are not seen.
PMAP = "jax._src.pmap"
PMAP_SETTINGS = ("axis_name", "in_axes", "out_axes", "devices", "axis_size")

# The modules in which equinox and flax call `jit` for the user. Without them, or their local variables, reports show
# the arguments that these libraries pass to `jit` in place of the user's own.
EQUINOX_JIT = "equinox._jit"
FLAX_NNX = "flax.nnx"
FLAX_NODES = "._pytree__nodes"  # the static in which nnx lists its attributes; without it, a line more

# Where JAX keeps the functions that are operations to users.
OPERATIONS = ("jax._src.numpy", "jax._src.lax", "jax._src.random")

_LIBRARIES = frozenset({"chex", "contextlib", "equinox", "flax", "functools", "jax", "jaxlib", "treewright"})

# The options of `jax.jit` for which a program is compiled again, as users write them and as JAX keeps them.
_COMPARED_OPTIONS: Mapping[str, str] = types.MappingProxyType(
    {name: name for name in ("donate_argnums", "donate_argnames", "device", "backend", "keep_unused", "inline")}
    | {name: f"{name}_leaves" for name in ("in_shardings", "out_shardings")}
    | {"compiler_options": "compiler_options_kvs"}
)

Outcome: TypeAlias = Literal["traced", "shared", "failed", "unknown"]


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One call of a jitted function."""

    function: Any  # the user's
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # of `jax.jit`, but for statics
    # Whether an argument of this name and place is compared, not traced.
    is_static: Callable[[str, int], bool] = lambda _name, _place: False
    fixed_numbers: bool = False  # whether Python numbers are compared too, as equinox does
    live: bool = True  # whether the arrays are real ones, that lie somewhere
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # such as the axes of `pmap`
    jit_function: Any = None  # what JAX knows it by, which may be a wrapper of equinox or flax
    # Whether JAX ran the function for this call, took an earlier trace, or neither since the function raised.
    outcome: Outcome = "unknown"
    in_transformation: bool = False  # whether it is a part of `grad` or `vmap`, for which JAX traces without telling


def jit_call(function: Any, args: Any, kwargs: Any, options: Mapping[str, Any], *, jitted: str = "once") -> Call:
    """A call under the options of `jax.jit`, as `options_of` gives them."""
    numbers, names = options.get("static_argnums", ()), options.get("static_argnames", ())
    # Negative numbers count from the last positional argument of the call.
    places = {number % len(args) for number in numbers if -len(args) <= number < len(args)}

    def is_static(name: str, place: int) -> bool:
        return place in places or name in names

    compared = {name: options[kept] for name, kept in _COMPARED_OPTIONS.items() if kept in options}
    return Call(function, tuple(args), kwargs, compared | {"jitted": jitted}, is_static, jit_function=function)


def call_on_stack() -> Call | None:
    """The nearest call of a jitted function on the stack; None where the frames of JAX do not show one."""
    frames = stack()
    for index, frame in enumerate(frames):
        is_call = frame.f_code.co_name in CALL_FRAMES and _package(frame) == "jax"
        if not is_call or not _has(frame, CALL_LOCALS):
            continue
        function, args, kwargs = (frame.f_locals[name] for name in CALL_LOCALS)
        options = _options_near(frames[index : index + 3])
        if options is None:
            return None
        inner = options_of(function)  # of a jitted function that is jitted again, as make_jaxpr does
        wrapped, jitted = (function, "once") if inner is None else (function.__wrapped__, "twice")
        call = _as_the_user_wrote_it(jit_call(wrapped, args, kwargs, inner or options, jitted=jitted), frames[index:])
        call.jit_function = function
        call.outcome = _outcome(frames[: index + 1]) if inner is None else "unknown"
        # JAX hands a call on to what transforms it, if this is not the frame below that of the call.
        call.in_transformation = (
            frame.f_code.co_name == "_run_python_pjit"
            and index > 0
            and frames[index - 1].f_code.co_name != "_pjit_call_impl_python"
        )
        return call
    return None


def _options_near(frames: list[types.FrameType]) -> Mapping[str, Any] | None:
    for frame in frames:
        for name in OPTIONS_LOCALS:
            options = options_record(frame.f_locals.get(name))
            if options is not None:
                return options
    return None


def _outcome(frames: list[types.FrameType]) -> Outcome:
    """Whether the program that a call got from JAX's cache of traces was made by this very call.

    A program keeps the names of the arguments as one tuple, which each call makes itself.
    """
    function_local, info_local, program_local = TRACE_LOCALS
    for frame in frames:
        if frame.f_code.co_name == TRACE_FRAME:
            break
    else:
        return "unknown"
    names = frame.f_locals
    if function_local not in names or info_local not in names:
        return "unknown"
    if program_local not in names:
        return "failed"
    function, arguments, program = names[function_local], names[info_local], names[program_local]
    given = getattr(arguments, "arg_names", None)
    known = getattr(getattr(getattr(program, "jaxpr", program), "debug_info", None), "arg_names", None)
    if not given or given != known or hasattr(function, "__fun_debug_info__"):  # () is one, these have one for all
        return "unknown"
    if given is known:
        return "traced"
    return "unknown" if getattr(program, "consts", ()) else "shared"  # since JAX 0.12, those with arrays hold a copy


def _as_the_user_wrote_it(call: Call, frames: list[types.FrameType]) -> Call:
    """The user's own function and arguments, where `pmap`, equinox or flax stands between."""
    if str(getattr(call.function, "__module__", "")).startswith(OPERATIONS):  # which one of these calls for itself
        return call
    # No further than the libraries: before Python 3.13, reading the user's f_locals would keep what is in them alive.
    for frame in itertools.takewhile(_is_of_a_library, frames):
        module = frame.f_globals["__name__"]
        if not module.startswith((PMAP, EQUINOX_JIT, FLAX_NNX)) or not _has(frame, ("args", "kwargs")):
            continue
        names = frame.f_locals
        args, kwargs = tuple(names["args"]), names["kwargs"]
        if module == PMAP and "infer_params" in names:
            return _pmapped(names["infer_params"], args, kwargs) or call
        if module == EQUINOX_JIT and "jit_wrapper" in names:
            wrapper = names["jit_wrapper"]
            is_tree = wrapper.__wrapped__ is not wrapper.__wrapped__  # which equinox puts together at each look
            return Call(wrapper if is_tree else wrapper.__wrapped__, args, kwargs, fixed_numbers=True)
        if module.startswith(FLAX_NNX) and hasattr(names.get("self"), "fun"):
            return dataclasses.replace(call, function=names["self"].fun, args=args, kwargs=kwargs)
    return call


def _pmapped(infer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """A call of what `pmap` made, by the variables that its inner function captured."""
    cells = inspect.getclosurevars(infer).nonlocals
    function = cells.get("fun", cells.get("f", getattr(cells.get("wrapped_fun"), "f", None)))
    if function is None:
        return None
    settings = {f"{name} of pmap": cells[name] for name in PMAP_SETTINGS if name in cells}
    statics = {"static_argnums": cells.get("static_broadcasted_tuple", ())}
    # Where the arrays lie does not count: pmap spreads them itself.
    return dataclasses.replace(jit_call(function, args, kwargs, statics), live=False, settings=settings)


# JAX's filter of tracebacks, and its variable that holds what it calls.
BOUNDARY = ("reraise_with_filtered_traceback", "fun")


def inside_of_boundary(function: Any) -> Any:
    """What the filter calls. Without its names, reports call `grad` and `vmap` by the functions in these."""
    boundary, called = BOUNDARY
    is_filter = getattr(getattr(function, "__code__", None), "co_name", "") == boundary
    return inspect.getclosurevars(function).nonlocals.get(called, function) if is_filter else function


def jit_name(function: Any) -> str:
    """The name by which JAX calls a program of this function."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "<unnamed function>")


def is_inside_another_trace() -> bool:
    """Whether what is traced is part of another trace. JAX 0.9.0 tells of such traces too, later releases do not."""
    if jax.__version_info__ >= (0, 10):
        return False
    tracing = (frame for frame in stack() if frame.f_code.co_name in TRACING_FRAMES and _package(frame) == "jax")
    functions = [frame.f_locals["fun"] for frame in tracing if _has(frame, ("fun",))]
    return any(function is not functions[0] for function in functions)


def called_by_the_user() -> bool:
    """Whether the user's code called a jitted function, and not an operation of JAX that is made of one."""
    for frame in itertools.takewhile(_is_of_a_library, stack()):
        if frame.f_globals["__name__"].startswith(OPERATIONS) or frame.f_code.co_name == "apply_primitive":
            return False
    return True


def is_of_a_library(function: types.FunctionType) -> bool:
    """Whether one of the libraries that wrap users' functions made this one."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0] in _LIBRARIES


def user_frame() -> types.FrameType | None:
    """The nearest frame of the user's own code."""
    for frame in stack():
        if not _is_of_a_library(frame):
            return frame
    return None


def stack() -> list[types.FrameType]:
    """The frames of the stack, the innermost first, without Treewright's own."""
    found: list[types.FrameType] = []
    frame = inspect.currentframe()
    while frame is not None:
        if _package(frame) != "treewright":
            found.append(frame)
        frame = frame.f_back
    return found


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_of_a_library(frame: types.FrameType) -> bool:
    return _package(frame) in _LIBRARIES


def _has(frame: types.FrameType, names: tuple[str, ...]) -> bool:
    return all(name in frame.f_locals for name in names)


# What JAX's cache of traces holds

CALLS_CACHE = "_infer_params_cached"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HeldCall:
    """An earlier call that JAX still has a trace for, as the key of its cache has it."""

    settings: Any
    options: Mapping[str, Any]
    static_args: list[Any]  # those by position, and then those by name
    static_names: list[str]
    treedefs: list[Any]  # of the traced arguments, in the same order
    names: list[str]
    avals: tuple[Any, ...]


def held_calls(function: Any) -> list[HeldCall]:
    """The earlier calls of a function that JAX has traces for; one that is traced now has none yet.

    Without the cache, or its keys as they are now, there are none: then a block can't say of a function's first trace
    in it that the function was compiled before. Of calls under other settings, those that raised are among them.
    """
    from jax._src import pjit

    found: list[HeldCall] = []
    with contextlib.suppress(Exception):  # a key of another form
        cache, context = getattr(pjit, CALLS_CACHE), trace_context()
        for known, settings, arguments, _ in cache.cache_keys():
            is_traced = settings != context or known() is not function
            if known() is function and (is_traced or cache(function, *arguments).pjit_params is not None):
                found.append(_held_call(settings, arguments))
    return found


def _held_call(context: Any, arguments: Any) -> HeldCall:
    info, signature, avals, _mesh = arguments
    options = options_record(info) or {}
    statics, static_names = list(signature.static_args), list(signature.static_arg_names)
    treedefs, names = list(signature.dynamic_arg_treedefs), list(signature.dynamic_arg_names)
    return HeldCall(context, options, statics, static_names, treedefs, names, tuple(avals))


# What a trace depends on besides its arguments

# Names of JAX's own for what users know by another.
_SETTINGS_IN_WORDS: Mapping[str, str] = types.MappingProxyType(
    {
        "abstract_mesh_context_manager": "the mesh in use",
        "mesh_context_manager": "the mesh of `with mesh:`",
        "axis_env_state": "the named axes in scope",
        "trace_state": "the trace around the call",
        "eager_constant_folding": "jax.ensure_compile_time_eval",
        "compute_on_context_manager": "compute_on",
        "xla_metadata_context_manager": "set_xla_metadata",
        "user_context": "the user context",
        "pallas_tpu_interpret_mode_context_manager": "the interpret mode of Pallas for TPU",
    }
)
# Those that JAX has had for long, by their public names.
_KNOWN_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_device", "jax_numpy_dtype_promotion"),
    *("jax_numpy_rank_promotion", "jax_threefry_partitionable", "jax_random_seed_offset", "jax_debug_key_reuse"),
)
UNNAMED_SETTINGS = f"a setting that JAX {jax.__version__} gives no name"


def trace_settings() -> dict[str, Any]:
    """The settings of this thread with which JAX keeps its traces, by the names that users know.

    Without `trace_context`, only those in `_KNOWN_SETTINGS` and the mesh are named; without the names of what is in
    it, as in JAX 0.9, the others are told without a name.
    """
    found = {f"jax.config.{name}": getattr(jax.config, name, None) for name in _KNOWN_SETTINGS}
    found["the mesh in use"] = untyped_jax.sharding.get_abstract_mesh()
    for name, value in named_settings(trace_context()).items():
        found.setdefault(name, value)
    return found


def trace_context() -> tuple[Any, ...]:
    """The settings of this thread that are part of the key of each trace."""
    from jax._src import config as private

    context: Any = getattr(private, "trace_context", tuple[Any, ...])
    values: tuple[Any, ...] = context()
    return values


def named_settings(values: tuple[Any, ...]) -> dict[str, Any]:
    """The values of `trace_context` by the names that users know."""
    names = _names_of_settings()
    if len(names) != len(values):
        return {UNNAMED_SETTINGS: values} if values else {}
    return dict(zip(names, values, strict=True))


@functools.cache
def _names_of_settings() -> tuple[str, ...]:
    from jax._src import config as private

    try:
        names = tuple(getattr(private, "trace_context_names")())  # noqa: B009  untyped
    except (AttributeError, NotImplementedError):
        return ()
    configured = (f"jax.config.{name}" if hasattr(jax.config, name) else name for name in names)
    return tuple(_SETTINGS_IN_WORDS.get(name, text) for name, text in zip(names, configured, strict=True))


# What can be seen in this version of JAX


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What this version of JAX shows of a trace."""

    events: bool  # whether JAX tells of traces
    calls: bool  # whether the call of a jitted function can be read while it is traced
    outcomes: bool  # whether it can be read if a call was traced, or got the trace of an earlier one


# `functools.cache` holds no lock meanwhile: the trace below is an event itself, which others may hear of.
@functools.cache
def capabilities() -> Capabilities:
    """Trace a function, and see what shows."""

    def probe(x: Any) -> Any:
        return x

    traces = [event for event in _events_of(lambda: untyped_jax.jit(probe).trace(0.0)) if event.kind == "trace"]
    read = [call for event in traces if (call := event.read_call()) is not None and call.function is probe]
    return Capabilities(bool(traces), bool(read), any(call.outcome == "traced" for call in read))


@functools.cache
def tells_of_compilations() -> bool:
    """Compile a program, and see whether JAX tells of it."""
    events = _events_of(lambda: untyped_jax.jit(lambda: 0).lower().compile())
    return any(event.kind == "compile" for event in events)


_PROBE = "treewright looks at JAX"  # the name of the thread in which it does


def is_probe() -> bool:
    """Whether what JAX tells of in this thread was only made to see what it tells."""
    return threading.current_thread().name == _PROBE


def _events_of(work: Callable[[], object]) -> list[Event]:
    """What JAX tells of some work, done in a thread of its own: outside of the caller's traces and settings."""
    heard: list[Event] = []

    def hear(event: Event) -> None:
        if is_probe():
            event.read_call()
            heard.append(event)

    def run() -> None:
        with contextlib.suppress(Exception):  # whatever is missing, nothing was seen
            work()

    OBSERVER.add(hear)
    thread = threading.Thread(target=run, name=_PROBE)
    thread.start()
    thread.join()
    OBSERVER.remove(hear)
    return heard
