"""A call of a jitted function: its signature, and how to find it among JAX's frames while it is traced."""

import dataclasses
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
from jax.core import Tracer

from treewright._jax import FRAMES, TRACING
from treewright._trees.diff import Difference, differences
from treewright._trees.level import LeafType, Level, remembered_tree
from treewright._values.reach import class_of, innermost
from treewright._values.snapshot import Remembered, remembered
from treewright._values.text import mesh_text, short_text

Label = Literal["argument", "static", "passing", "setting", "option", "function"]

# What a trace depends on besides its arguments. All public, and all read the setting of the thread.
SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_debug_key_reuse",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A key of a signature: an argument, a setting, an option."""

    name: str
    label: Label = "argument"

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call, by the name that the function gives it."""

    name: str
    value: Any
    passed: Literal["by position", "by keyword"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a jitted function.

    Args:
        function: The user's function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        options: What `jax.jit` was told.
        is_static: Whether an argument of this name and place is compared, not traced.
        fixed_numbers: Whether Python numbers are compared too, as equinox does.
        live: Whether the arrays are real ones, that lie somewhere.
        jit_name: The name by which JAX calls the function.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    is_static: Callable[[str, int, Any], bool] = lambda _name, _place, _value: False
    fixed_numbers: bool = False
    live: bool = True
    jit_name: str = ""


class MeshInUse:
    """A mesh that prints shortly."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshInUse) and bool(self._mesh == other._mesh)

    def __hash__(self) -> int:
        return hash(self._mesh)

    def __repr__(self) -> str:
        return mesh_text(self._mesh)


class Compared:
    """The class of the level of an argument that `jit` compares instead of tracing."""


class Traced:
    """The class of the level of an argument that `jit` traces."""


class Settings:
    """The class of the level of settings."""


class Options:
    """The class of the level of options."""


def arguments_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments of a call by the function's own names for them: `x`, `args[0]`, `kwargs['y']`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-in functions
        parameters = []
    kinds = inspect.Parameter
    places = [one for one in parameters if one.kind in {kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD}]
    rest = next((one.name for one in parameters if one.kind is kinds.VAR_POSITIONAL), "args")
    for index, value in enumerate(args):
        inside = index < len(places)
        yield Argument(places[index].name if inside else f"{rest}[{index - len(places)}]", value, "by position")
    names = {one.name for one in parameters if one.kind is not kinds.VAR_KEYWORD}
    others = next((one.name for one in parameters if one.kind is kinds.VAR_KEYWORD), "kwargs")
    for name in sorted(kwargs):
        yield Argument(name if name in names else f"{others}[{name!r}]", kwargs[name], "by keyword")


def signature_of(call: Call, like: Level | None = None) -> Level:
    """What `jit` looks at in this call. What is as it was in `like`, an earlier one, is shared with it."""
    known = {} if like is None else dict(like.children)
    children: list[tuple[Any, Any]] = []
    for place, argument in enumerate(arguments_of(call.function, call.args, call.kwargs)):
        key = Named(argument.name)
        children.append((key, _level_of(argument, place, call, known.get(key))))
    settings = {f"jax.config.{name}": getattr(jax.config, name, None) for name in SETTINGS}
    settings["the mesh in use"] = MeshInUse(jax.sharding.get_abstract_mesh())
    children.append((Named("", "setting"), _named_level(Settings, "setting", settings)))
    children.append((Named("", "option"), _named_level(Options, "option", call.options)))
    return Level(Call, None, (), tuple(children))


def _named_level(kind: type[Any], label: Label, values: Mapping[str, Any]) -> Level:
    statics = tuple((Named(name, label), remembered(value)) for name, value in values.items())
    return Level(kind, tuple(value for _, value in statics), statics, ())


def _level_of(argument: Argument, place: int, call: Call, like: Any) -> Level:
    passing = (Named("", "passing"), argument.passed)
    if call.is_static(argument.name, place, argument.value):
        value = _compared_value(argument.value)
        aux = (class_of(argument.value), value, argument.passed)
        return Level(Compared, aux, ((Named("", "static"), value), passing), (), (False, False))
    known = like.children[0][1] if isinstance(like, Level) and like.children else None

    def leaf(value: Any, kept: LeafType) -> LeafType:
        if call.fixed_numbers and kept.python is not None:
            return LeafType(None, kept.python, value)
        if not call.live:
            return kept
        return LeafType(kept.aval, kept.python, kept.value, placement_of(value))

    tree = remembered_tree(argument.value, known, leaf=leaf)
    return Level(Traced, argument.passed, (passing,), ((Named(""), tree),))


def _compared_value(value: Any) -> Any:
    """A static argument as it is remembered; one that holds arrays by its identity."""
    holds_arrays = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
    return Remembered(value) if holds_arrays else remembered(value)


# Where arrays lie


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where an array lies, as far as `jit` compiles for it. `sharding` is None where the array may go anywhere."""

    sharding: Any

    def __str__(self) -> str:
        if self.sharding is None:
            return "uncommitted"
        devices = sorted(str(device) for device in self.sharding.device_set)
        if len(devices) == 1:
            return f"committed to {devices[0]}"
        spec = getattr(self.sharding, "spec", None)
        return f"sharded {short_text(self.sharding)}" if spec is None else f"sharded {spec} over {len(devices)} devices"


ANYWHERE = Placement(None)


def placement_of(value: Any) -> Placement | None:
    """Where a leaf lies: nothing for tracers, and anywhere for numpy arrays and Python numbers."""
    if isinstance(value, Tracer):
        return None
    if isinstance(value, jax.Array) and value.committed:
        return Placement(value.sharding)
    return ANYWHERE


# Differences between calls


def label_of(difference: Difference) -> Label:
    """What sort of thing has changed: it stands in the last key of the path, past those inside a static."""
    labels: list[Label] = [key.label for key in difference.path if isinstance(key, Named)]
    return labels[-1]


def call_differences(old: Level, new: Level) -> list[Difference]:
    """The differences between two calls: of arguments, then of settings and options."""
    found = differences(old, new, values=False)
    return [dataclasses.replace(one, left=_argument_in(one.left), right=_argument_in(one.right)) for one in found]


def _argument_in(tree: Any) -> Any:
    """What an argument is, where it came or went as a whole."""
    if isinstance(tree, Level) and tree.kind is Traced:
        return tree.children[0][1]
    return tree.statics[0][1] if isinstance(tree, Level) and tree.kind is Compared else tree


def is_placement(difference: Difference) -> bool:
    """Whether `jit` compiles again for this difference, but does not trace."""
    return difference.kind == "placement" or label_of(difference) == "option"


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
