"""Private parts of JAX that retrace reports need: events, stack frames, and the settings of a trace.

Each comment states what is lost in a version of JAX without the part. Silent losses are tested once per process, by
`can_read_calls` and others, and cause a `RetraceWarning`. `tests/retrace/test_jax_private.py` removes each part.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from traceback import walk_stack
from typing import Any, Literal, TypeAlias

import jax
import jax.monitoring
import numpy as np

from treewright._base.functions import METHOD_TYPES, STANDARD_FOLDER
from treewright._base.jax_private import (
    is_jitted,
    mesh_of_old_context,
    options_of,
    options_record,
    private,
    untyped_jax,
)
from treewright._contents import unwrap, wrapper_chain

# Frames of JAX, and their local variables

# The frames with a call of a jitted function, during its trace and during its compilation. Without them, or their
# variables, nothing is observed, and blocks warn; `max_traces` raises.
TRACE_FRAME, CALL_FRAME = "_trace_for_jit", "cache_miss"
# The frames of a trace for no program: of `eval_shape`, `make_jaxpr` and `jitted.trace`, unless `lower` called them.
# Without the first, such a trace is reported like any other; without the second, a lowered one is not reported.
TRACE_ONLY_FRAME, LOWER_FRAME = "jit_trace", "jit_lower"
# The function that wraps a function for `jit`. All jitted functions of one function with equal options share a cache.
# Without it, reports do not say that a function had programs before the block.
JIT_WRAPPER = "_cpp_pjit"
# The frame in which `vmap` maps the program of a jitted function. Without it, or its variable, recompiles for a
# different batch size are not observed, and blocks with a transformation warn.
BATCH_FRAME = "_pjit_batcher"

# The variable in the frame of `pmap`, and the options on which a trace depends. Without it, calls of `pmap` are not
# observed.
PMAP = "infer_params"
OF_PMAP = " of pmap"  # the end of the names that reports give to these options
_NO_NAME = ("<axis 0x", "_internal_pmap_axis_name")
PMAP_SETTINGS = ("axis_name", "in_axes", "out_axes", "devices", "axis_size")

# The modules in which equinox and flax call `jit` for the user. Without them, or their local variables, reports show
# the arguments that these libraries pass to `jit` instead of the user's.
EQUINOX_JIT = "equinox._jit"
EQUINOX_BOUND = "equinox._module"  # bound methods and partials
EQUINOX_PMAP = "equinox._vmap_pmap"  # it has one inner function for all that it maps
FLAX_NNX = "flax.nnx"
FLAX_NODES = "._pytree__nodes"  # the static in which nnx lists its attributes; without it, reports have one more line

# The modules of functions that are operations to users.
OPERATIONS = ("jax._src.numpy", "jax._src.lax", "jax._src.random")

_LIBRARIES = frozenset({"chex", "contextlib", "equinox", "flax", "functools", "jax", "jaxlib", "treewright"})

# The options of `jax.jit` that cause a recompile, by their public names and by JAX's internal ones.
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
    options: Mapping[str, Any] = dataclasses.field(
        default_factory=dict[str, Any]
    )  # options of `jax.jit` except statics
    statics: frozenset[str | int] = frozenset()  # names and positions of static arguments
    fixed_numbers: bool = False  # True if Python numbers are static, as in equinox
    live: bool = True  # False if the arrays' devices do not count
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # such as the axes of `pmap`
    # Whether JAX ran the function for this call, reused an earlier trace, or neither because the function raised.
    outcome: Outcome = "unknown"
    in_transformation: bool = False  # True inside `grad` or `vmap`, which trace without an event
    batch: tuple[int, ...] = ()  # the sizes of the axes that `vmap` maps over, outermost first, as users write them
    is_for_program: bool = True  # False in `eval_shape` and the like, which compile nothing
    # What the call went through: JAX's record of the jitted function, or the wrapper of equinox or flax.
    entries: tuple[Any, ...] = ()
    # The entries of the function in jit's cache: one for each program, but two if it was also called with numpy arrays.
    count_cached: Callable[[], int] = lambda: 0


def jit_call(function: Any, args: Any, kwargs: Any, options: Mapping[str, Any], *, jitted: str = "once") -> Call:
    """A call under the options of `jax.jit`, as returned by `options_of`."""
    statics: set[str | int] = {*options.get("static_argnames", ())}
    for number in options.get("static_argnums", ()):  # negative ones count from the last positional argument
        if -len(args) <= number < len(args):
            statics.add(number % len(args))
    compared = {name: options[kept] for name, kept in _COMPARED_OPTIONS.items() if kept in options}
    compared["jitted"] = jitted
    return Call(function, tuple(args), kwargs, compared, frozenset(statics))


def is_bound(function: Any) -> bool:
    """Whether this is a method or a partial: a new object, beside others for the same function."""
    is_of_equinox = type(function).__module__.startswith(EQUINOX_BOUND)
    return is_of_equinox or isinstance(function, (functools.partial, *METHOD_TYPES))


_WITH_OWN_CODE: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def use_in(function: Any) -> Any:
    """The function or jitted function that is limited by a decorator; a different object is limited itself.

    The function gets a copy of its code, so the stack shows whether it runs, or another closure of the same `def`. It
    keeps this copy, because it may be decorated again while it runs.
    """
    kinds = (EQUINOX_JIT, FLAX_NNX)
    for use in wrapper_chain(function):
        if isinstance(use, types.FunctionType):
            if use not in _WITH_OWN_CODE:
                use.__code__ = use.__code__.replace()
                _WITH_OWN_CODE.add(use)
            return use
        if is_jitted(use) or type(use).__module__.startswith(kinds):
            return use
    return function


def goes_through(call: Call, use: Any) -> bool:
    """Whether a call is one of this function, or of a jitted function that it calls while it runs."""
    if isinstance(use, types.FunctionType) and any(frame.f_code is use.__code__ for frame, _ in walk_stack(None)):
        return True
    entry = getattr(use, "_jit_info", use) if is_jitted(use) else use  # a decorator copies the attribute
    return any(each is entry for each in call.entries) or any(each is use for each in wrapper_chain(call.function))


def definition_of(function: Any) -> tuple[str, Any]:
    """The name and definition of a function: the code and file that all functions from one `def` or `lambda` share.

    The file is needed because code with equal text and line number is equal in all files. The definition of a callable
    object is its class.
    """
    inner = unwrap(function)
    code = getattr(inner, "__code__", None)
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return name, type(inner) if code is None else (code, code.co_filename)


def frames_up_to_user() -> list[types.FrameType]:
    """The library frames on the stack, innermost first, up to and including the user's nearest frame.

    Treewright's frames are omitted: one of them refers to this list, and the cycle would keep its variables alive.
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


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed library, rather than to the user."""
    return "-packages" in file or file.startswith(("<frozen ", STANDARD_FOLDER))


def is_of_library(definition: Any) -> bool:
    """Whether a function of this definition, as returned by `definition_of`, is in an installed file."""
    return isinstance(definition, tuple) and is_installed(definition[1])


def _line_of_user(nearest: types.FrameType) -> str:
    """The line of the user that called a library, such as optax, and the library's line; or the nearest line alone."""
    frame: types.FrameType | None = nearest
    while frame is not None and (is_installed(frame.f_code.co_filename) or _package(frame) in _LIBRARIES):
        frame = frame.f_back
    return _line(nearest) if frame is None or frame is nearest else f"{_line(frame)} (at {_line(nearest)})"


def _line(frame: types.FrameType) -> str:
    code = frame.f_code
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    place = code.co_qualname.replace(".<locals>", "")
    return f"{file}:{frame.f_lineno}" + ("" if place == "<module>" else f" in {place}")


def call_in(frames: list[types.FrameType]) -> Call | None:
    """The innermost call of a jitted function in these frames; None if there is none to read."""
    index = next((index for index, frame in enumerate(frames) if _is_of_jax(frame, (TRACE_FRAME, CALL_FRAME))), None)
    call = None if index is None else _call_of_jax(frames[index])
    if index is None or call is None:
        return None
    is_trace = frames[index].f_code.co_name == TRACE_FRAME
    # An untransformed call runs in two functions of JAX; `cache_miss` has called the outer one.
    is_plain = frames[max(index - 2, 0)].f_code.co_name == "_pjit_call_impl_python"
    mapped: list[Any] = [
        frame.f_locals.get("axis_data") for frame in frames[:index] if _is_of_jax(frame, {BATCH_FRAME})
    ]
    return dataclasses.replace(
        _user_call(call, frames[index:]),
        in_transformation=not (is_trace or is_plain),
        batch=tuple([axis.size for axis in mapped if isinstance(getattr(axis, "size", None), int)]),
        is_for_program=not is_trace or _is_for_program(frames[index:]),
    )


def _is_of_jax(frame: types.FrameType, names: Collection[str]) -> bool:
    return frame.f_code.co_name in names and _package(frame) == "jax"


def _call_of_jax(frame: types.FrameType) -> Call | None:
    """The call as JAX sees it, by the variables of its frame; None if JAX has renamed one."""
    names, is_trace = frame.f_locals, frame.f_code.co_name == TRACE_FRAME
    info = names.get("ji" if is_trace else "jit_info")
    options = options_record(info)
    if options is None or not {"fun", "args", "kwargs"} <= set(names):
        return None
    function, args, kwargs = names["fun"], names["args"], names["kwargs"]
    inner = options_of(function)  # a jitted function may be jitted again, as in make_jaxpr
    if inner is not None:
        call = jit_call(function.__wrapped__, args, kwargs, inner, jitted="twice")
        call.entries = info, function._jit_info
        return call
    call = jit_call(function, args, kwargs, options)
    call.entries = (info,)
    call.outcome = _outcome(function, names) if is_trace else "unknown"
    call.count_cached = functools.partial(_cached, frame.f_globals.get(JIT_WRAPPER), function, info)
    return call


def _is_for_program(frames: list[types.FrameType]) -> bool:
    """Whether a trace is for a call or for `lower`."""
    called = (TRACE_FRAME, CALL_FRAME, TRACE_ONLY_FRAME, LOWER_FRAME)
    names = [frame.f_code.co_name for frame in frames if _is_of_jax(frame, called)]
    return names[1:2] != [TRACE_ONLY_FRAME] or LOWER_FRAME in names[2:3]


def _cached(jit: Any, function: Any, info: Any) -> int:
    """The entries of a function in jit's cache, without those of calls that are still running in this thread.

    The stacks of other threads change while they are read, which has crashed CPython 3.11; so a first call that another
    thread has begun counts as an earlier program. 0 if JAX has renamed the frame of a running call.
    """
    try:
        entries = int(jit(function, info)._cache_size())
    except (AttributeError, TypeError):
        return 0
    called = (CALL_FRAME, TRACE_ONLY_FRAME, LOWER_FRAME)
    frames = [frame for frame, _ in walk_stack(None) if _is_of_jax(frame, called)] if entries else []
    running = [frame for frame in frames if frame.f_code.co_name == CALL_FRAME]
    of_function = sum(frame.f_locals.get("fun") is function for frame in running)
    return max(entries - of_function, 0) if of_function or len(running) < len(frames) else 0


def _outcome(function: Any, names: Mapping[str, Any]) -> Outcome:
    """Whether JAX traced the function for this very call, or found the program in its cache of traces.

    A program stores the argument names in a tuple, and each call creates a new one.
    """
    if "jaxpr" not in names:
        return "failed"
    program = names["jaxpr"]
    of_call = getattr(names.get("dbg"), "arg_names", None)
    of_program = getattr(getattr(getattr(program, "jaxpr", program), "debug_info", None), "arg_names", None)
    # The empty tuple is a singleton, and functions with this attribute share one tuple.
    if not of_call or of_call != of_program or hasattr(function, "__fun_debug_info__"):
        return "unknown"
    if of_call is of_program:
        return "traced"
    # From JAX 0.11 on, the program of a function that captured arrays is a copy, so signatures have to decide.
    constants = getattr(program, "consts", None)
    return "unknown" if constants is None or len(constants) > 0 else "shared"


def _user_call(call: Call, frames: list[types.FrameType]) -> Call:
    """The call with the user's function and arguments if it goes through `pmap`, equinox or flax."""
    if str(getattr(call.function, "__module__", "")).startswith(OPERATIONS):  # called by JAX itself
        return call
    for frame in frames:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("jax.", EQUINOX_JIT, FLAX_NNX)):
            continue
        names = frame.f_locals
        if not {"args", "kwargs"} <= set(names):
            continue
        args, kwargs = tuple(names["args"]), names["kwargs"]
        if PMAP in names:
            return _pmapped(names[PMAP], args, kwargs) or call
        if module == EQUINOX_JIT and "jit_wrapper" in names:
            wrapper = names["jit_wrapper"]
            is_tree = wrapper.__wrapped__ is not wrapper.__wrapped__  # equinox rebuilds it on each access
            function = wrapper if is_tree else wrapper.__wrapped__
            return Call(function, args, kwargs, fixed_numbers=True, entries=(wrapper,))
        if module.startswith(FLAX_NNX) and hasattr(names.get("self"), "fun"):
            return dataclasses.replace(
                call, function=names["self"].fun, args=args, kwargs=kwargs, entries=(names["self"],)
            )
    return call


def _pmapped(infer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """A call of a `pmap`ped function, from the variables that JAX's inner function captured."""
    cells = inspect.getclosurevars(infer).nonlocals
    function = cells.get("f", getattr(cells.get("wrapped_fun"), "f", None))  # `f` before JAX 0.10
    if function is None:
        return None
    # JAX names an axis without a name itself, in some versions by an address.
    values = [(name, cells[name]) for name in PMAP_SETTINGS if name in cells]
    settings = {f"{name}{OF_PMAP}": None if str(value).startswith(_NO_NAME) else value for name, value in values}
    statics = {"static_argnums": cells.get("static_broadcasted_tuple", ())}
    # The devices of the arrays do not count, because pmap moves the arrays.
    return dataclasses.replace(jit_call(function, args, kwargs, statics), live=False, settings=settings)


# Events of tracing and compiling. JAX sends the event of an outermost trace after the trace and before any compilation,
# in the thread and on the stack of the call. Without the first event, calls can't be read, as without the frames.
# Without the third, blocks warn that recompiles, and traces under `grad` or `vmap`, are not observed.
EventKind: TypeAlias = Literal["trace", "lower", "compile"]
_KINDS: Mapping[str, EventKind] = types.MappingProxyType(
    {
        "/jax/core/compile/jaxpr_trace_duration": "trace",
        "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
        "/jax/core/compile/backend_compile_duration": "compile",
    }
)


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """One event from JAX: a trace, a lowering or a compilation."""

    kind: EventKind
    seconds: float
    # The name of the function or the program, such as `jit(step)`, and the definition if there is a call.
    definition: tuple[str, Any]
    call: Call | None  # the call that caused it, if JAX's frames show it
    is_operation: bool  # True for JAX's own functions, such as `jnp.ones`
    caller: str  # the user's line: `train.py:69 in main`, or `train.py:31 (at _tree_math.py:275 in _square)`
    thread: int = dataclasses.field(default_factory=threading.get_ident)


def _is_outermost() -> bool:
    return True


class Observer:
    """The only listener registered with JAX. It passes events on to its own listeners.

    JAX iterates over a plain list of listeners: unregistering one meanwhile, in any thread, makes JAX skip the next. So
    this one stays registered, and its own listeners are in a dict that never changes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: the garbage collector may end a tracker inside
        self._listeners: dict[Hashable, Callable[[Event], object]] = {}
        self._probes: dict[int, dict[Hashable, Callable[[Event], object]]] = {}  # per thread

    def __call__(self, event: str, duration_secs: float, **details: str | int) -> None:
        """Called by JAX at each event."""
        kind, listeners = _KINDS.get(event), self._probes.get(threading.get_ident(), self._listeners)
        if kind is None or not listeners:
            return
        if kind == "trace" and not private("core.trace_state_clean", _is_outermost)():
            return  # JAX 0.9 also sends events for traces inside another trace, `grad` or `vmap`
        frames = frames_up_to_user()
        call, caller = call_in(frames), _line_of_user(frames[-1])
        if call is None:
            definition: tuple[str, Any] = str(details.get("fun_name", "")), None
            modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
            is_operation = any(module.startswith(OPERATIONS) for module in modules)
        else:
            definition = definition_of(call.function)
            package = str(getattr(unwrap(call.function), "__module__", "")).partition(".")[0]
            is_operation = package in {"jax", "jaxlib", "treewright"}
        observed = Event(kind, duration_secs, definition, call, is_operation, caller)
        for listener in listeners.values():
            listener(observed)

    def add(self, key: Hashable, listener: Callable[[Event], object]) -> bool:
        """Call a function at every event in the process, in place of an earlier one with this key; True without one."""
        self._register()
        with self._lock:
            is_new = key not in self._listeners
            self._listeners = {**self._listeners, key: listener}
        return is_new

    def _register(self) -> None:
        with self._lock:
            # Again after `jax.monitoring.clear_event_listeners()`, which removes it.
            registered: Any = private("monitoring.get_event_duration_listeners")
            if registered is None:
                with contextlib.suppress(AssertionError, ValueError):  # it is not registered
                    jax.monitoring.unregister_event_duration_listener(self)
            if registered is None or self not in registered():
                jax.monitoring.register_event_duration_secs_listener(self)

    def remove(self, key: Hashable) -> None:
        """Undo `add`."""
        with self._lock:
            self._listeners = {other: listener for other, listener in self._listeners.items() if other != key}

    def events_of(self, work: Callable[[], object]) -> list[Event]:
        """The events of some work, run in a new thread, outside the caller's traces and settings."""
        events: list[Event] = []

        def run() -> None:
            self._probes[threading.get_ident()] = {None: events.append}
            with contextlib.suppress(Exception):  # an error means that nothing was observed
                work()
            del self._probes[threading.get_ident()]

        self._register()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return events


OBSERVER = Observer()


# Settings on which a trace depends

MESH_IN_USE = "the mesh in use"
_OLD_MESH = "the mesh of `with mesh:`"
# JAX's internal names, and the names that users know.
_SETTINGS_IN_WORDS: Mapping[str, str] = types.MappingProxyType(
    {
        "abstract_mesh_context_manager": MESH_IN_USE,
        "mesh_context_manager": _OLD_MESH,
        "axis_env_state": "the named axes in scope",
        "trace_state": "the trace around the call",
        "eager_constant_folding": "jax.ensure_compile_time_eval",
    }
)
# Long-standing settings, which all versions of JAX have.
_KNOWN_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_device", "jax_numpy_dtype_promotion"),
    *("jax_numpy_rank_promotion", "jax_threefry_partitionable", "jax_random_seed_offset", "jax_debug_key_reuse"),
)


def trace_settings() -> dict[str, Any]:
    """The settings of this thread on which JAX's traces depend, by the names that users know.

    Without JAX's `trace_context`, or the names of its values, as in JAX 0.9, these are the long-standing ones.
    """
    values, names = private("config.trace_context", tuple)(), _names_of_settings()
    if len(names) != len(values) or not names:
        names = (_OLD_MESH, *(f"jax.config.{name}" for name in _KNOWN_SETTINGS))
        values = (mesh_of_old_context(), *(getattr(jax.config, name) for name in _KNOWN_SETTINGS))
    return dict(zip(names, values, strict=True)) | {MESH_IN_USE: untyped_jax.sharding.get_abstract_mesh()}


def compiled_mesh() -> dict[str, Any]:
    """The mesh of `set_mesh` with its devices, for which `jit` compiles. Its trace depends only on the axes."""
    current = private("mesh.get_concrete_mesh")
    mesh = None if current is None else current()
    return {} if mesh is None or mesh.empty else {MESH_IN_USE: mesh}


@functools.cache
def _names_of_settings() -> tuple[str, ...]:
    try:
        names = tuple(private("config.trace_context_names", tuple)())
    except NotImplementedError:
        return ()
    configured = (f"jax.config.{name}" if hasattr(jax.config, name) else name for name in names)
    return tuple(_SETTINGS_IN_WORDS.get(name, text) for name, text in zip(names, configured, strict=True))


# What this version of JAX shows


# `functools.cache` does not lock during the call: the trace below is itself an event for other listeners.
@functools.cache
def can_read_calls() -> bool:
    """Whether JAX reports a trace with its call and its outcome; tested by tracing a function, on no device."""
    jitted: Any = untyped_jax.jit(lambda x: x)
    events = OBSERVER.events_of(lambda: jitted.trace(0.0))
    return [event.call.outcome for event in events if event.kind == "trace" and event.call is not None] == ["traced"]


@functools.cache
def can_observe_compilations() -> bool:
    """Whether JAX reports compilations, whether a transformation caused them, and the batch size of `vmap`.

    Tested by compiling a function twice, so it starts JAX's backends.
    """
    jitted: Any = untyped_jax.jit(lambda x: -x)

    def work() -> None:
        jitted(np.zeros(1))
        untyped_jax.vmap(jitted)(np.zeros((1, 1)))

    calls = [event.call for event in OBSERVER.events_of(work) if event.kind == "compile"]
    read = [(call.in_transformation, call.batch) for call in calls if call is not None]
    return read == [(False, ()), (True, (1,))]
