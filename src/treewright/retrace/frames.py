"""What the call stack says while JAX traces: who called, and which function with which arguments.

The caller is found with public means alone. The function and its arguments stand in local variables of JAX's own
frames, whose names are JAX's to change: where they are not found, `call_on_stack` gives None, and reports go by the
name of the function only.
"""

import dataclasses
import functools
import inspect
import itertools
import types
from collections.abc import Iterator
from typing import Any

from treewright._jax import FRAMES, TRACING
from treewright._nodes.reach import innermost
from treewright.retrace.signature import Call

Frame = types.FrameType

_LIBRARIES = frozenset({"chex", "contextlib", "equinox", "flax", "functools", "jax", "jaxlib", "treewright"})

# The frame that holds the options of a jitted function, and the options of `jax.jit` that are compared.
_MISSES = frozenset({"cache_miss"})
_OPTIONS = (
    *("donate_argnums", "donate_argnames", "static_argnums", "static_argnames", "device", "backend", "keep_unused"),
    *("inline", "in_shardings_leaves", "out_shardings_leaves", "compiler_options_kvs"),
)


def package_of(frame: Frame) -> str:
    """The package that a frame's code belongs to."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_of_a_library(frame: Frame) -> bool:
    return package_of(frame) in _LIBRARIES


def frames_above() -> Iterator[Frame]:
    """The frames of the stack, the innermost first, without Treewright's own."""
    frame = inspect.currentframe()
    while frame is not None:
        if package_of(frame) != "treewright":
            yield frame
        frame = frame.f_back


def caller() -> str:
    """The nearest place in the user's own code: `train.py:69 in main`."""
    for frame in frames_above():
        if not _is_of_a_library(frame):
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            name = frame.f_code.co_qualname.replace(".<locals>", "")
            return f"{file}:{frame.f_lineno}" + ("" if name == "<module>" else f" in {name}")
    return ""


def called_by_a_library() -> bool:
    """Whether JAX or the like called the code of Treewright that asks, as when it traces, and not the user's code.

    `jax.tree.map` calls functions as they are.
    """
    above = next(frames_above(), None)
    return above is not None and package_of(above) in {"jax", "equinox", "flax"} and not _maps_trees(above)


def _maps_trees(frame: Frame) -> bool:
    return str(frame.f_globals.get("__name__", "")).endswith((".tree_util", ".tree"))


def call_on_stack() -> Call | None:
    """The nearest call of a jitted function on the stack; None where no frame of JAX shows one."""
    frames = list(frames_above())
    for index, one in enumerate(frames):
        if one.f_code.co_name in FRAMES and package_of(one) == "jax" and _has(one, "fun", "args", "kwargs"):
            call = _of_wrapper(frames[index:]) or _of_jit(one.f_locals, frames[index:])
            return dataclasses.replace(call, jit_name=_jit_name(one.f_locals["fun"]))
    return None


def is_inside_another() -> bool:
    """Whether what is traced is part of another trace. JAX 0.9.0 tells of such traces too, later releases do not."""
    tracing = (one for one in frames_above() if one.f_code.co_name in TRACING and package_of(one) == "jax")
    functions = [one.f_locals["fun"] for one in tracing if _has(one, "fun")]
    return any(function is not functions[0] for function in functions)


def _has(frame: Frame, *names: str) -> bool:
    return all(name in frame.f_locals for name in names)


def _jit_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "<unnamed function>")


def _of_jit(names: Any, above: list[Frame]) -> Call:
    info: Any = names.get("ji")
    for frame in above[:3]:
        info = frame.f_locals.get("jit_info") if info is None and frame.f_code.co_name in _MISSES else info
    return Call(names["fun"], tuple(names["args"]), names["kwargs"], *options_in(info))


def options_in(info: Any) -> tuple[Any, Any]:
    """The options of a jitted function, from what JAX keeps of them, and the test for its static arguments."""
    options = {name: getattr(info, name) for name in _OPTIONS if hasattr(info, name)}
    numbers, names = options.pop("static_argnums", ()), options.pop("static_argnames", ())

    def is_static(name: str, place: int, _: Any) -> bool:
        return place in numbers or name in names

    return options, is_static


def _of_wrapper(above: list[Frame]) -> Call | None:
    """The call as the user wrote it, where equinox or flax stands between."""
    # No further than the libraries: before Python 3.13, reading the user's f_locals would keep what is in them alive.
    for frame in itertools.takewhile(_is_of_a_library, above):
        names, module = frame.f_locals, str(frame.f_globals.get("__name__", ""))
        if module == "equinox._jit" and _has(frame, "jit_wrapper", "args", "kwargs"):
            function = names["jit_wrapper"].__wrapped__
            return Call(function, tuple(names["args"]), names["kwargs"], fixed_numbers=True)
        if module.startswith("flax.nnx") and _has(frame, "self", "args", "kwargs") and hasattr(names["self"], "fun"):
            return Call(names["self"].fun, tuple(names["args"]), names["kwargs"])
    return None


def is_of_users() -> bool:
    """Whether the user's code called a jitted function, and not an operation of JAX that is made of one."""
    frames = list(itertools.takewhile(_is_of_a_library, frames_above()))
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    inside = any(module.startswith(("jax._src.numpy", "jax._src.lax", "jax._src.random")) for module in modules)
    return not inside and all(frame.f_code.co_name != "apply_primitive" for frame in frames)


def is_internal(function: Any) -> bool:
    """Whether a function is JAX's own, such as those that make arrays, or ours: their programs are not the user's."""
    return str(getattr(innermost(function), "__module__", "")).partition(".")[0] in {"jax", "jaxlib", "treewright"}
