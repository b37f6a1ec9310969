"""Migration rules: one table of the names in each library and their replacements."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

ValueKind = Literal["plain", "array", "node", "container", "function", "unknown"]
Kind = Literal["decorator", "base", "specifier", "marker", "renamed", "stays"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The rule for a name: its use, its replacement and the changes.

    A decorator makes a class a pytree, and so does a base; a specifier is a function that declares a field; a marker is
    a type that makes a field static in its annotation, as `Static[int]`.

    Attributes:
        kind: Its use. A name that is renamed has the same meaning under another; one that stays does not run on nodes.
        becomes: The full name that takes its place.
        advice: For one that stays, what to do instead; for a decorator, what changes in every class under it.
        drops: Arguments or options that are dropped.
        keyword_only: For a decorator that gives a constructor of keywords only, the option that is `False` if not.
        filtered: For a base, whether leaves that are not arrays are statics in effect, since transformations skip them.
        argument: For a specifier, the argument that says the kind; also the only one that may be positional.
        static_if: The value of it that makes the field static.
        static: Whether the field is static without it.
    """

    kind: Kind
    becomes: str = ""
    advice: str | None = None
    drops: tuple[str, ...] = ()
    keyword_only: str | None = None
    filtered: bool = False
    argument: str | None = None
    static_if: str = "True"
    static: bool = False


_NO_MAPPING = "is frozen and no mapping: read attributes, and change them by replace, or edit for many"
_ABSTRACT = "Module has no such annotation: write an abstract property, which a field, property or constant implements"
_WRAPPER = "a node is frozen, so functools.update_wrapper fails for it: give the class __wrapped__ and __doc__ itself"
_ENFORCED = "a node has no such check: annotate with jaxtyping, or check in __check_init__"

RULES = MappingProxyType(
    {
        "flax.struct.dataclass": Rule("decorator"),
        "flax.struct.PyTreeNode": Rule("base"),
        "flax.struct.field": Rule("specifier", argument="pytree_node", static_if="False"),
        "flax.training.train_state.TrainState": Rule("renamed", "treewright.TrainState"),
        "chex.dataclass": Rule("decorator", keyword_only="mappable_dataclass", advice=_NO_MAPPING),
        "chex.mappable_dataclass": Rule("stays", advice="a node is not a mapping: read attributes, and drop it"),
        "equinox.Module": Rule("base", drops=("strict",), filtered=True),
        "equinox.field": Rule("specifier", argument="static"),
        "equinox.static_field": Rule("specifier", static=True),
        "equinox.AbstractVar": Rule("stays", advice=_ABSTRACT),
        "equinox.AbstractClassVar": Rule("stays", advice=_ABSTRACT),
        "equinox.module_update_wrapper": Rule("stays", advice=_WRAPPER),
        "jax_dataclasses.pytree_dataclass": Rule("decorator"),
        "jax_dataclasses.Static": Rule("marker"),
        "jax_dataclasses.field": Rule("specifier"),
        "jax_dataclasses.static_field": Rule("specifier", static=True),
        "jax_dataclasses.replace": Rule("renamed", "treewright.replace"),
        "jax_dataclasses.copy_and_mutate": Rule("renamed", "treewright.edit", drops=("validate",)),
        "jax_dataclasses.asdict": Rule("renamed", "dataclasses.asdict"),
        "jax_dataclasses.astuple": Rule("renamed", "dataclasses.astuple"),
        "jax_dataclasses.fields": Rule("renamed", "dataclasses.fields"),
        "jax_dataclasses.is_dataclass": Rule("renamed", "dataclasses.is_dataclass"),
        "jax_dataclasses.EnforcedAnnotationsMixin": Rule("stays", advice=_ENFORCED),
        "treewright.pytree_dataclass": Rule("decorator"),
        "treewright.Module": Rule("base"),
        "treewright.static": Rule("specifier", static=True),
        "treewright.field": Rule("specifier"),
        "treewright.buffer": Rule("specifier"),
    }
)

DATACLASSES = frozenset({"dataclasses.dataclass", *(name for name, rule in RULES.items() if rule.kind == "decorator")})

# The package that everything moves to. Its classes are known too, so that a second run reports what is left to do.
OURS = "treewright"

# The page about each library. A file that uses one has its name somewhere.
PAGES = MappingProxyType(
    {
        "flax": "docs/migrating/flax-struct.md",
        "chex": "docs/migrating/chex.md",
        "equinox": "docs/migrating/equinox.md",
        "jax_dataclasses": "docs/migrating/jax-dataclasses.md",
    }
)

# What to do with a name that is left, by its kind, and whether it has to be changed by hand.
LEFT: Mapping[Kind, tuple[str, bool]] = MappingProxyType(
    {
        "decorator": ("left here, where it is used in a way that the command does not know", True),
        "base": ("left here: a Module of ours is not an instance of it", True),
        "specifier": ("left outside of a class that moves: nodes read its static mark, and nothing else", False),
        "marker": ("left here, where it marks no field", False),
    }
)

# Options of a dataclass that a node has by itself, or has no use for.
WITHOUT_USE = ("frozen", "slots", "weakref_slot", "mappable_dataclass")

ABSTRACT = frozenset({"equinox.AbstractVar", "equinox.AbstractClassVar"})
NEW = "a node that no constructor has built stays unfinished: build it through __init__"

# Types and functions, by their full names. Fields of these types hold no arrays, but numbers can be traced.
NUMBERS = frozenset({"builtins.bool", "builtins.int"})
CALLABLES = frozenset({"typing.Callable", "collections.abc.Callable"})
NEVER_ARRAYS = (
    NUMBERS | CALLABLES | {"builtins.str", "builtins.type", "builtins.bytes", "typing.Literal", "typing.Type"}
)
ARRAYS = ("jax.Array", "jax.numpy.ndarray", "chex.Array", "chex.PRNGKey", "jaxtyping.", "jax.typing.")
# What a static may be given as a list, dict, set or array of numpy: `freeze` leaves tuples and the like as they are.
CAN_CHANGE = frozenset(
    {
        *("builtins.list", "builtins.dict", "builtins.set", "numpy.ndarray"),
        *("typing.List", "typing.Dict", "typing.Set", "typing.DefaultDict", "collections.OrderedDict"),
        *("typing.Sequence", "typing.Mapping", "typing.Iterable"),
        *("collections.abc.Sequence", "collections.abc.Mapping", "collections.abc.Iterable"),
    }
)
UNIONS = frozenset({"typing.Optional", "typing.Union", "typing.Final", "typing.Annotated"})
CONTAINERS = CAN_CHANGE | {"builtins.tuple", "typing.Tuple", "jaxtyping.PyTree"}
# The kinds of the values that a call returns, by how the full name of its function begins; the first that fits.
CALLS: Mapping[ValueKind, tuple[str, ...]] = MappingProxyType(
    {
        "plain": (
            *(f"builtins.{name}" for name in ("int", "float", "bool", "str", "len", "range")),
            *(f"builtins.{name}" for name in ("isinstance", "issubclass", "callable", "hasattr", "all", "any")),
            *("jax.numpy.dtype", "jax.numpy.result_type", "jax.dtypes.", "jax.ShapeDtypeStruct"),
        ),
        "container": (
            *(*sorted(CAN_CHANGE), "numpy."),
            *("jax.tree.flatten", "jax.tree.leaves", "jax.tree_util.tree_flatten", "jax.tree_util.tree_leaves"),
        ),
        "function": ("functools.partial", "jax.jit", "jax.vmap", "jax.grad", "jax.value_and_grad"),
        "node": (
            "equinox.nn.",
            "equinox.Partial",
            "equinox.filter_jit",
            "equinox.filter_vmap",
            "jax.tree_util.Partial",
        ),
        "array": ("jax.numpy.", "jax.random.", "jax.lax.", "jax.device_put"),
    }
)
PLAIN_ATTRIBUTES = frozenset({"shape", "ndim", "dtype"})  # Attributes of an array, also under jit
