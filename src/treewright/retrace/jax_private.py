"""What of JAX is private or untyped and only retraces need: its events, frames, caches and settings of a trace.

Each says what is lost in a version of JAX without it. What would be lost in silence is tried once in each process, by
`reads_calls`, and a `RetraceWarning` says so. `tests/retrace/test_jax_private.py` takes each away.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.monitoring
from jax._src import config, monitoring

from treewright._core import innermost
from treewright._core.jax_private import options_of, options_record, untyped_jax

# Frames of JAX, and their local variables

# The frames that show a call of a jitted function, while it is traced and while it is compiled. Without them, or their
# variables, traces are counted by the function's name, if at all, and the report says so; `max_traces` raises.
TRACE_FRAME = "_trace_for_jit"
CALL_FRAMES = frozenset({TRACE_FRAME, "cache_miss"})

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
    {name: name for name in ("donate_argnums", "device", "backend", "keep_unused", "inline")}
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
    statics: frozenset[str | int] = frozenset()  # names and places of arguments that are compared, not traced
    fixed_numbers: bool = False  # whether Python numbers are compared too, as equinox does
    live: bool = True  # whether the arrays are real ones, that lie somewhere
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # such as the axes of `pmap`
    jit_function: Any = None  # what JAX knows it by, which may be a wrapper of equinox or flax
    # Whether JAX ran the function for this call, took an earlier trace, or neither since the function raised.
    outcome: Outcome = "unknown"
    in_transformation: bool = False  # whether it is a part of `grad` or `vmap`, for which JAX traces without telling


def jit_call(function: Any, args: Any, kwargs: Any, options: Mapping[str, Any], *, jitted: str = "once") -> Call:
    """A call under the options of `jax.jit`, as `options_of` gives them."""
    statics: set[str | int] = {*options.get("static_argnames", ())}
    for number in options.get("static_argnums", ()):  # negative ones count from the last positional argument
        if -len(args) <= number < len(args):
            statics.add(number % len(args))
    compared = {name: options[kept] for name, kept in _COMPARED_OPTIONS.items() if kept in options}
    compared["jitted"] = jitted
    return Call(function, tuple(args), kwargs, compared, frozenset(statics), jit_function=function)


def definition_of(function: Any) -> tuple[str, Any]:
    """The name of a function, and what all functions of one `def` or `lambda` share: their code, and its file.

    The file, because code of the same text and line is equal in all files. Of a callable object, it is the class.
    """
    inner = innermost(function)
    code = getattr(inner, "__code__", None)
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return name, type(inner) if code is None else (code, code.co_filename)


def frames_to_the_user() -> list[types.FrameType]:
    """The frames of libraries that are on the stack, the innermost first, and the user's nearest one, which ends it.

    Treewright's own are left out: a list of them would be in a cycle, and keep alive what they hold.
    """
    frames: list[types.FrameType] = []
    frame = inspect.currentframe()
    while frame is not None:
        package = _package(frame)
        if package != "treewright":
            frames.append(frame)
        frame = frame.f_back if package in _LIBRARIES else None
    return frames


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_of_a_library(function: types.FunctionType) -> bool:
    """Whether one of the libraries that wrap users' functions made this one."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0] in _LIBRARIES


def call_in(frames: list[types.FrameType]) -> Call | None:
    """The innermost call of a jitted function in these frames; None where JAX does not show one."""
    index = 0
    while frames[index].f_code.co_name not in CALL_FRAMES or _package(frames[index]) != "jax":
        index += 1
        if index == len(frames):
            return None
    names, is_trace = frames[index].f_locals, frames[index].f_code.co_name == TRACE_FRAME
    options = options_record(names.get("ji" if is_trace else "jit_info"))
    if options is None or not {"fun", "args", "kwargs"} <= set(names):
        return None
    function, args, kwargs = names["fun"], names["args"], names["kwargs"]
    inner = options_of(function)  # of a jitted function that is jitted again, as make_jaxpr does
    if inner is None:
        call = jit_call(function, args, kwargs, options)
        call.outcome = _outcome(function, names) if is_trace else "unknown"
    else:
        call = jit_call(function.__wrapped__, args, kwargs, inner, jitted="twice")
    call = _as_the_user_wrote_it(call, frames[index:])
    call.jit_function = function
    # A call that nothing transforms is run by two functions, of which this is the inner one.
    call.in_transformation = not is_trace and frames[max(index - 2, 0)].f_code.co_name != "_pjit_call_impl_python"
    return call


def _outcome(function: Any, names: Mapping[str, Any]) -> Outcome:
    """Whether the program that a call got from JAX's cache of traces was made by this very call.

    A program keeps the names of the arguments as one tuple, which each call makes itself.
    """
    if "jaxpr" not in names:
        return "failed"
    program = names["jaxpr"]
    given = getattr(names.get("dbg"), "arg_names", None)
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
    for frame in frames:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith((PMAP, EQUINOX_JIT, FLAX_NNX)):
            continue
        names = frame.f_locals
        if not {"args", "kwargs"} <= set(names):
            continue
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
    function = cells.get("f", getattr(cells.get("wrapped_fun"), "f", None))  # `f` before JAX 0.10
    if function is None:
        return None
    settings = {f"{name} of pmap": cells[name] for name in PMAP_SETTINGS if name in cells}
    statics = {"static_argnums": cells.get("static_broadcasted_tuple", ())}
    # Where the arrays lie does not count: pmap spreads them itself.
    return dataclasses.replace(jit_call(function, args, kwargs, statics), live=False, settings=settings)


def inside_of_boundary(function: Any) -> Any:
    """What JAX's filter of tracebacks calls. Without its names, reports call `grad` by its inner function."""
    is_filter = getattr(getattr(function, "__code__", None), "co_name", "") == "reraise_with_filtered_traceback"
    return inspect.getclosurevars(function).nonlocals.get("fun", function) if is_filter else function


# Events of tracing and compiling. JAX tells of an outermost trace when it has ended and before anything is compiled, in
# the thread and on the stack of the call. Without the first, it is as without the frames. Without the third, blocks say
# that they see neither recompiles nor traces under `grad` or `vmap`.
# The others are of the persistent cache. JAX tells nothing of a program that was neither read nor written; without
# them, the command says nothing of that cache.
EventKind: TypeAlias = Literal["trace", "lower", "compile", "cache asked", "cache read", "cache written", "cache saved"]
_KINDS: Mapping[str, EventKind] = types.MappingProxyType(
    {
        "/jax/core/compile/jaxpr_trace_duration": "trace",
        "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
        "/jax/core/compile/backend_compile_duration": "compile",
        "/jax/compilation_cache/compile_requests_use_cache": "cache asked",
        "/jax/compilation_cache/cache_hits": "cache read",
        "/jax/compilation_cache/cache_misses": "cache written",
        "/jax/compilation_cache/compile_time_saved_sec": "cache saved",
    }
)


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """What JAX tells of: a trace, a lowering, a compilation, or what the persistent cache did inside of one."""

    kind: EventKind
    seconds: float
    # The name of the function that was traced, or of the program, `jit(step)`, and of a call what is its definition.
    definition: tuple[str, Any]
    call: Call | None = None  # that it is a part of, where the frames of JAX show it
    is_operation: bool = False  # whether it is JAX's own, such as `jnp.ones`, and no function of the user's
    caller: str = ""  # the nearest line in the user's own code: `train.py:69 in main`
    signature: Any = None  # of the call, for all that listen
    thread: int = dataclasses.field(default_factory=threading.get_ident)


class Observer:
    """The one listener that JAX knows of; without others that listen here, it does nothing.

    JAX walks through a plain list of its listeners. One that leaves it meanwhile, in any thread, makes JAX pass over
    the next one, so this one stays, and those that listen here leave a tuple.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may end a watch inside
        self._is_registered = False
        self._listeners: tuple[Callable[[Event], object], ...] = ()
        self._probes: dict[int, tuple[Callable[[Event], object], ...]] = {}  # by thread

    def __call__(self, event: str, duration_secs: float = 0.0, **details: str | int) -> None:
        """What JAX calls at each event."""
        kind, listeners = _KINDS.get(event), self._probes.get(threading.get_ident(), self._listeners)
        if kind is None or not listeners:
            return
        if kind == "trace" and jax.__version_info__ < (0, 10) and _is_inner():
            return
        told = Event(kind, duration_secs, (str(details.get("fun_name", "")), None))
        if kind in {"trace", "lower", "compile"}:
            frames = frames_to_the_user()
            told.call, code = call_in(frames), frames[-1].f_code
            file = code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = code.co_qualname.replace(".<locals>", "")
            told.caller = f"{file}:{frames[-1].f_lineno}" + ("" if place == "<module>" else f" in {place}")
            if told.call is None:
                modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
                told.is_operation = any(module.startswith(OPERATIONS) for module in modules)
            else:
                told.definition = definition_of(told.call.function)
                package = str(getattr(innermost(told.call.function), "__module__", "")).partition(".")[0]
                told.is_operation = package in {"jax", "jaxlib", "treewright"}
        for listener in listeners:
            listener(told)

    def is_heard(self) -> bool:
        """Whether JAX tells it of events; not after `jax.monitoring.clear_event_listeners()`, which is public.

        Without the function that is asked here, that goes unseen.
        """
        listeners: Any = getattr(monitoring, "get_event_duration_listeners", None)
        return self._is_registered and (listeners is None or self in listeners())

    def add(self, listener: Callable[[Event], object] | None = None) -> None:
        """Let a function hear of every event in the process."""
        with self._lock:
            if not self.is_heard():
                jax.monitoring.register_event_duration_secs_listener(self)
                untyped_jax.monitoring.register_event_listener(self)  # of those without seconds
                self._is_registered = True
            self._listeners += () if listener is None else (listener,)

    def remove(self, listener: Callable[[Event], object]) -> None:
        """Undo `add`."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    def events_of(self, work: Callable[[], object]) -> list[Event]:
        """What JAX tells of some work, done in a thread of its own: outside of the caller's traces and settings."""
        events: list[Event] = []

        def run() -> None:
            self._probes[threading.get_ident()] = (events.append,)
            with contextlib.suppress(Exception):  # whatever is missing, nothing was seen
                work()
            del self._probes[threading.get_ident()]

        self.add()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return events


OBSERVER = Observer()


def _is_inner() -> bool:
    """Whether what is traced is part of another trace. JAX 0.9 tells of such traces too, later releases do not."""
    functions: list[Any] = []
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == TRACE_FRAME and _package(frame) == "jax":
            functions.append(frame.f_locals.get("fun"))
        frame = frame.f_back
    return any(function is not functions[0] for function in functions)


def count_held(function: Any) -> int:
    """How many earlier calls of a function JAX has traces for; one that is traced now has none yet.

    Without the cache, or its keys as they are now, it is none: then a block can't say of a function's first trace in it
    that the function was compiled before. Of calls under other settings, those that raised are counted too.
    """
    count = 0
    with contextlib.suppress(Exception):  # a key of another form
        from jax._src import pjit

        cache, context = getattr(pjit, "_infer_params_cached"), _trace_context()  # noqa: B009  untyped
        for known, settings, arguments, _ in cache.cache_keys():
            if known() is function:
                count += settings != context or cache(function, *arguments).pjit_params is not None
    return count


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
# The settings of this thread that are part of the key of each trace.
_trace_context: Callable[[], tuple[Any, ...]] = getattr(config, "trace_context", tuple[Any, ...])
UNNAMED_SETTINGS = f"a setting that JAX {jax.__version__} gives no name"


def trace_settings() -> dict[str, Any]:
    """The settings of this thread with which JAX keeps its traces, by the names that users know.

    Without JAX's `trace_context`, only those in `_KNOWN_SETTINGS` and the mesh are named; without the names of what is
    in it, as in JAX 0.9, the others are told without a name.
    """
    values, names = _trace_context(), _names_of_settings()
    mesh = {"the mesh in use": untyped_jax.sharding.get_abstract_mesh()}
    if len(names) == len(values) > 0:
        return dict(zip(names, values, strict=True)) | mesh
    return (
        {UNNAMED_SETTINGS: values}
        | mesh
        | {f"jax.config.{name}": getattr(jax.config, name) for name in _KNOWN_SETTINGS}
    )


@functools.cache
def _names_of_settings() -> tuple[str, ...]:
    try:
        names = tuple(getattr(config, "trace_context_names")())  # noqa: B009  untyped
    except (AttributeError, NotImplementedError):
        return ()
    configured = (f"jax.config.{name}" if hasattr(jax.config, name) else name for name in names)
    return tuple(_SETTINGS_IN_WORDS.get(name, text) for name, text in zip(names, configured, strict=True))


# What can be seen in this version of JAX


# `functools.cache` holds no lock meanwhile: the trace below is an event itself, which others may hear of.
@functools.cache
def reads_calls() -> bool:
    """Trace a function, and see whether JAX tells of it and shows the call, and that it was traced."""

    def probe(x: Any) -> Any:
        return x

    events = OBSERVER.events_of(lambda: untyped_jax.jit(probe).trace(0.0))
    calls = [event.call for event in events if event.kind == "trace" and event.call is not None]
    return any(call.function is probe and call.outcome == "traced" for call in calls)


@functools.cache
def tells_of_compilations() -> bool:
    """Compile a program, and see whether JAX tells of it."""
    events = OBSERVER.events_of(lambda: untyped_jax.jit(lambda: 0).lower().compile())
    return any(event.kind == "compile" for event in events)
