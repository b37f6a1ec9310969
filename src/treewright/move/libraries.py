"""What each library calls its parts, and what becomes of each: one table, and the only place that knows their names."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Decorator:
    """A decorator that makes a class a pytree: `@pytree_dataclass` takes its place.

    Attributes:
        frozen: Whether instances are frozen without `frozen=True`.
        keyword_only: Whether the constructor takes keywords alone, unless the option of this name is `False`.
        registers: Whether it stands above `@dataclass`, or is called with a class and the names of its statics.
    """

    frozen: bool = True
    keyword_only: str | None = None
    registers: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """A base class: `Module` takes its place.

    Attributes:
        drops: Options in the class statement that a `Module` has no use for.
        filtered: Whether transformations leave out leaves that are not arrays, so that these were statics in effect.
        declared: Whether fields are those that are annotated.
    """

    drops: tuple[str, ...] = ()
    filtered: bool = False
    declared: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Specifier:
    """A function that declares a field: `static` or `field` takes its place.

    Attributes:
        marker: The argument that says whether the field is static; also the only one that may be positional.
        static_if: The value of it that makes the field static.
        static: Whether the field is static without the argument.
    """

    marker: str | None = None
    static_if: str = "True"
    static: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Marker:
    """A type that makes a field static in its annotation, as `Static[int]`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Renamed:
    """The same under another name, given by its module and its name there, but for some arguments."""

    module: str
    name: str
    drops: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Stays:
    """What the command leaves, with what to do about it; `works` if nothing has to be done."""

    advice: str
    works: bool = False


Rule = Decorator | Base | Specifier | Marker | Renamed | Stays


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """A library that programs move from: the page about it, and the rule for each of its names."""

    name: str
    page: str
    rules: tuple[tuple[str, Rule], ...]


_SERIALIZED = "a node is known to flax.serialization: drop the call, or give it override=True"
_FILTERED = "runs on nodes as it is; jax.{} does the same where all leaves are arrays"
_TREE_AT = "runs on nodes as it is; at(tree, where).set(value) does the same"
_FILES = (
    "takes nodes as it is, with the leaves in the order of before; treewright.checkpoint saves nodes and trees of "
    "arrays by name, but no modules of equinox"
)
_ABSTRACT = "Module has no such annotation: declare the field here and again in the subclass, or make it a property"
_JDC_JIT = "runs on nodes as it is; jax.jit(f, static_argnames=...) does the same without it"
_ENFORCED = "a node has no such check: annotate with jaxtyping, or check in __check_init__"

LIBRARIES = (
    Library(
        "flax.struct",
        "docs/moving/flax-struct.md",
        (
            ("flax.struct.dataclass", Decorator()),
            ("flax.struct.PyTreeNode", Base()),
            ("flax.struct.field", Specifier("pytree_node", static_if="False")),
            ("flax.training.train_state.TrainState", Renamed("treewright", "TrainState")),
            ("flax.serialization.register_serialization_state", Stays(_SERIALIZED)),
        ),
    ),
    Library(
        "chex",
        "docs/moving/chex.md",
        (
            ("chex.dataclass", Decorator(frozen=False, keyword_only="mappable_dataclass")),
            ("chex.mappable_dataclass", Stays("a node is not a mapping: read attributes, and drop it")),
        ),
    ),
    Library(
        "equinox",
        "docs/moving/equinox.md",
        (
            ("equinox.Module", Base(drops=("strict",), filtered=True)),
            ("equinox.field", Specifier("static")),
            ("equinox.static_field", Specifier(static=True)),
            ("equinox.tree_at", Stays(_TREE_AT, works=True)),
            ("equinox.tree_serialise_leaves", Stays(_FILES, works=True)),
            ("equinox.tree_deserialise_leaves", Stays(_FILES, works=True)),
            *(
                (f"equinox.filter_{name}", Stays(_FILTERED.format(name), works=True))
                for name in ("jit", "grad", "value_and_grad", "vmap")
            ),
            ("equinox.AbstractVar", Stays(_ABSTRACT)),
            ("equinox.AbstractClassVar", Stays(_ABSTRACT)),
        ),
    ),
    Library(
        "jax_dataclasses",
        "docs/moving/jax-dataclasses.md",
        (
            ("jax_dataclasses.pytree_dataclass", Decorator()),
            ("jax_dataclasses.Static", Marker()),
            ("jax_dataclasses.field", Specifier()),
            ("jax_dataclasses.static_field", Specifier(static=True)),
            ("jax_dataclasses.replace", Renamed("treewright", "replace")),
            ("jax_dataclasses.copy_and_mutate", Renamed("treewright", "edit", drops=("validate",))),
            *(
                (f"jax_dataclasses.{name}", Renamed("dataclasses", name))
                for name in ("asdict", "astuple", "fields", "is_dataclass")
            ),
            ("jax_dataclasses.jit", Stays(_JDC_JIT, works=True)),
            ("jax_dataclasses.EnforcedAnnotationsMixin", Stays(_ENFORCED)),
        ),
    ),
    Library(
        "simple_pytree",
        "docs/moving/simple-pytree.md",
        (
            ("simple_pytree.Pytree", Base(drops=("mutable",), declared=False)),
            ("simple_pytree.field", Specifier("pytree_node", static_if="False")),
            ("simple_pytree.static_field", Specifier(static=True)),
        ),
    ),
    Library(
        "register_dataclass",
        "docs/moving/register-dataclass.md",
        (("jax.tree_util.register_dataclass", Decorator(registers=True)),),
    ),
)

# What has moved already, so that a class that extends it is known as a node.
OURS = Library("treewright", "docs/nodes.md", (("treewright.Module", Base()),))

# Words of which a file has at least one if it uses any of the libraries.
WORDS = ("flax", "chex", "equinox", "jax_dataclasses", "simple_pytree", "register_dataclass", "treewright")
# The standard library's decorator, and copies of it: it gives way where a class becomes a node.
DATACLASS = frozenset({"dataclasses.dataclass", "simple_pytree.dataclass"})
OUR_SPECIFIERS = frozenset({"treewright.field", "treewright.static", "treewright.buffer"})
# Options of a dataclass that a node has by itself, or has no use for.
WITHOUT_USE = frozenset({"frozen", "slots", "weakref_slot"})

# What annotations say of a value, by the names of the types.
ARRAYS = frozenset(
    {
        *("jax.Array", "jax.numpy.ndarray", "chex.Array", "chex.PRNGKey", "jaxtyping.Array", "jaxtyping.PRNGKeyArray"),
        *(f"jaxtyping.{kind}" for kind in ("Float", "Complex", "Inexact", "Int", "UInt", "Integer", "Bool", "Key")),
        *(f"jaxtyping.{kind}" for kind in ("Num", "Real", "Shaped")),
    }
)
NEVER_ARRAYS = frozenset(
    {
        *("builtins.str", "builtins.bool", "builtins.int", "builtins.type", "builtins.bytes"),
        *("typing.Callable", "collections.abc.Callable", "typing.Literal", "typing.Type"),
    }
)
# What a static may be given as a list, dict, set or array: `freeze` leaves tuples and the like as they are.
CAN_CHANGE = frozenset(
    {
        *("builtins.list", "builtins.dict", "builtins.set", "numpy.ndarray"),
        *("typing.List", "typing.Dict", "typing.Set", "typing.DefaultDict", "collections.OrderedDict"),
        *(
            f"{module}.{kind}"
            for module in ("typing", "collections.abc")
            for kind in ("Sequence", "Mapping", "Iterable")
        ),
    }
)
CONTAINERS = frozenset(
    {"builtins.list", "builtins.tuple", "builtins.dict", "typing.List", "typing.Tuple", "typing.Dict"}
)
MUTABLE_FACTORIES = frozenset({"builtins.list", "builtins.dict", "builtins.set"})
UNIONS = frozenset({"typing.Optional", "typing.Union", "typing.Final", "typing.Annotated"})
