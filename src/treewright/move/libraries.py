"""Migration rules: one table of the names in each library and their replacements."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Kind = Literal["decorator", "base", "specifier", "marker", "renamed", "stays", "unaware"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The rule for a name of a library.

    Decorators and bases make a class a pytree. A specifier is a function that declares a field. A marker is a type that
    makes a field static in its annotation, as `Static[int]`. A renamed name has the same meaning in Treewright; one
    that stays does not work with nodes, and one that is unaware takes them for plain values.

    Attributes:
        kind: The use of the name.
        becomes: The full name of the replacement.
        advice: The notice at each use of a name that stays, or at each class with a decorator.
        drops: Arguments or options to delete.
        keyword_only: For a decorator whose constructors are keyword-only, the option that can be `False` to change it.
        filtered: For a base, whether transformations skip leaves that are not arrays.
        argument: For a specifier, the argument that decides the kind; only this one may be positional.
        static_if: The value of this argument that makes the field static.
        static: Whether the field is static without an argument.
    """

    kind: Kind
    becomes: str = ""
    advice: str = ""
    drops: tuple[str, ...] = ()
    keyword_only: str | None = None
    filtered: bool = False
    argument: str | None = None
    static_if: str = "True"
    static: bool = False


_NO_MAPPING = (
    "is frozen, is not a mapping, and flattens in declaration order, not alphabetically: read attributes, and change "
    "them by replace, or edit for many"
)
_ABSTRACT = (
    "Module has no such annotation: write an abstract property, which a field, property or constant implements, or a "
    "ClassVar if the program calls hasattr on the class"
)
_WRAPPER = "nodes are frozen, so functools.update_wrapper fails: define __wrapped__ and __doc__ in the class"
_ENFORCED = "nodes have no such check: annotate with jaxtyping, or check in __check_init__"

_SERIALIZATION = ("to_bytes", "from_bytes", "to_state_dict", "from_state_dict")

RULES = MappingProxyType(
    {
        "flax.struct.dataclass": Rule("decorator"),
        "flax.struct.PyTreeNode": Rule("base"),
        "flax.struct.field": Rule("specifier", argument="pytree_node", static_if="False"),
        **{f"flax.serialization.{name}": Rule("unaware") for name in _SERIALIZATION},
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

# The package that everything moves to. Its classes are known too, so that a second run reports the remaining work.
OURS = "treewright"

# The page about each library. Files that use a library contain its name.
PAGES = MappingProxyType(
    {
        "flax": "docs/migrating/flax-struct.md",
        "chex": "docs/migrating/dataclasses.md",
        "equinox": "docs/migrating/equinox.md",
        "jax_dataclasses": "docs/migrating/dataclasses.md",
    }
)

# The notice for a name that is left unchanged, by its kind, and whether it must be changed manually.
LEFT: Mapping[Kind, tuple[str, bool]] = MappingProxyType(
    {
        "decorator": ("left, because the command does not know this use", True),
        "base": ("left: a Module of Treewright is not an instance of it", True),
        "specifier": ("left: nodes read its static mark, and nothing else", False),
        "marker": ("left, because it does not mark a field", False),
        "unaware": ("flax takes a node for a single value, until you register its class with flax", False),
    }
)

# Options of a dataclass that a node has by itself, or has no use for.
WITHOUT_USE = ("frozen", "slots", "weakref_slot", "mappable_dataclass")

ABSTRACT = frozenset({"equinox.AbstractVar", "equinox.AbstractClassVar"})
DICT = "a node does not keep its fields there: read them by the names in dataclasses.fields"
NEW = "a node without a call of __init__ stays unfinished: create it with the constructor"

# Types and functions, by their full names. Values of the first three are never arrays, but a number can be traced.
NUMBERS = frozenset({"builtins.bool", "builtins.int"})
CALLABLES = frozenset({"typing.Callable", "collections.abc.Callable"})
SETTINGS = frozenset({"builtins.str", "builtins.type", "builtins.bytes", "typing.Literal", "typing.Type"})
ARRAYS = ("jax.Array", "jax.numpy.ndarray", "chex.Array", "chex.PRNGKey", "jaxtyping.", "jax.typing.")
# Types whose values may be lists, dicts, sets or numpy arrays, which a static rejects.
CAN_CHANGE = frozenset(
    {
        *("builtins.list", "builtins.dict", "builtins.set", "numpy.ndarray", "collections.OrderedDict"),
        *(f"typing.{name}" for name in ("List", "Dict", "Set", "DefaultDict", "Sequence", "Mapping", "Iterable")),
        *(f"collections.abc.{name}" for name in ("Sequence", "Mapping", "Iterable")),
    }
)
# `freeze` leaves a tuple of plain values as it is.
FREEZABLE = CAN_CHANGE | {"builtins.tuple", "typing.Tuple"}
UNIONS = frozenset({"typing.Optional", "typing.Union", "typing.Final", "typing.Annotated"})
CONTAINERS = FREEZABLE | {"jaxtyping.PyTree"}
# The contents of the results of calls, by the first part of the full name of the function.
CALLS = MappingProxyType(
    {
        "container": (*sorted(CAN_CHANGE), "numpy."),
        "array": ("jax.numpy.", "jax.random.", "jax.device_put"),
    }
)
DTYPES = frozenset({"jax.numpy.dtype", "jax.numpy.result_type"})
