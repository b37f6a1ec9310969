"""What `jit` looks at in one call, as one tree: the arguments by name, settings of JAX, options of `jit`.

A tree of `Level`s and `Leaf`s like any other that is remembered, so that the differences between two calls are the
differences between two trees, with the arguments' own names at the root of the paths.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
from jax.core import Tracer

from treewright._nodes.classes import class_of
from treewright._trees.diff import Difference, differences
from treewright._trees.levels import Leaf, Level
from treewright._trees.reasons import Remembered
from treewright._trees.remembered import remembered, remembered_tree
from treewright._trees.texts import mesh_text, short_text

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

    def leaf(value: Any, kept: Leaf) -> Leaf:
        if call.fixed_numbers and kept.python is not None:
            return Leaf(None, kept.python, value)
        if not call.live:
            return kept
        return Leaf(kept.aval, kept.python, kept.value, placement_of(value))

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
