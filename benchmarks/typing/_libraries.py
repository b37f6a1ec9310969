"""The libraries, and how each spells a class, a static field, a converter, a changed copy and a transform.

Where a library knows two spellings, the one that checkers understand better stands here: `frozen=True` is said wherever
it may be, though most libraries freeze without it.
"""

import dataclasses
from collections.abc import Mapping

STANDARD = "from dataclasses import field, replace"
LOOPS = "from jax.lax import scan, while_loop"
JAX = f"from jax import grad, jit, value_and_grad, vmap\n{LOOPS}\nfrom jax.tree import map as tree_map"


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """How one library is used.

    `decorators` and `keywords` of the class statement are given by option: `""`, `"keyword-only"`, `"own-init"`, and
    `"heir"` for a class that inherits fields; what is not given is as for `""`. In `static`, `{type}` is the type of
    the field, `{args}` are the arguments of `static(...)`, `{more}` is the same after a comma, and `{value}` is a
    default or factory as a plain right-hand side. `lacks` maps the beginning of an expression's name to the reason why
    it is not asked: such an expression counts neither for nor against the library.
    """

    name: str
    distribution: str
    imports: str
    static: str
    decorators: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    base: str = ""
    keywords: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    converted: str = ""
    replaced: str = "replace({node}, {name}={value})"
    jit_method: str = "jit"
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    ours: bool = False
    plain: bool = False


def _decorators(plain: str) -> dict[str, str]:
    """A decorator, and the same for a keyword-only class."""
    opened = plain.removesuffix(")") + ", " if plain.endswith(")") else plain + "("
    return {"": plain, "keyword-only": f"{opened}kw_only=True)"}


def _because(reason: str, *starts: str) -> dict[str, str]:
    """Expressions that are not asked, all for one reason."""
    return dict.fromkeys(starts, reason)


_NO_CONVERTERS = _because("has no converters", "C01", "C02", "C03")
_NO_OWN_INIT = {"C": "has no converters, and no own __init__ that assigns to fields"}
_NO_REPLACE = _because("has no method replace", "R07", "R08", "R09", "R10", "R11")
_NO_LATE_FIELDS = _because("has no fields with init=False", "F08", "F09")
_NO_KEYWORD_CLASS = _because("has no kw_only for a class", "D15", "D16", "D17")
_NO_KEYWORD_FIELD = _because("has no kw_only for a field", "F06", "F07")
_NO_FACTORY = _because("has no default_factory", "D07", "D08", "D09", "F03", "F04", "S08", "S09", "S25", "P18", "P19")
_NO_STATICS = _because("has no static fields", "S0", "S1", "S2", "A04", "P10", "P11", "P12")
_MUTABLE = _because("is mutable on purpose", "A", "I07", "I08", "C09", "C11", "T10")
_NO_STATIC_ARGUMENTS = _because("its jit has no static_argnames", "J07", "M16", "M17", "M18")
_NO_GETITEM = _because("has items of its own: it is a mapping", "M20", "M21", "M22")
# Checkers see no such mark, and those who forget it are told at run time.
_DATA_IS_MARKED = "takes a tuple, list or dict for static unless it is marked as data at each construction"
_NNX = _because(
    _DATA_IS_MARKED,
    *(f"G{n:02}" for n in (1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21)),
    *(f"M{n:02}" for n in range(1, 26) if n != 19),
    "P03",
    "P04",
    "P05",
    "T",
) | _because("compares a float as part of the treedef, so a loop can't carry it", "L01", "L02", "L03", "L09", "L13")
_CHEX = _because("takes keywords only", "N03", "N08", "I02", "P15", "P16") | {
    "F09": "takes fields with init=False",
    "I10": "fails on Python 3.11",
    "I11": "fails on Python 3.11",
    "T16": "fails on Python 3.11",
    "T17": "fails on Python 3.11",
}

LIBRARIES = (
    Library(
        "treewright.pytree_dataclass",
        "treewright",
        "from treewright import AsArray, field, pytree_dataclass, replace, static\n"
        "from treewright.typed import grad, jit, jit_method, scan, tree_map, value_and_grad, vmap, while_loop",
        "{type} = static({args})",
        _decorators("@pytree_dataclass"),
        converted="AsArray",
        jit_method="jit_method",
        lacks=_NO_REPLACE,
        ours=True,
    ),
    Library(
        "treewright.Module",
        "treewright",
        "from treewright import AsArray, Module, field, replace, static\n"
        "from treewright.typed import grad, jit, jit_method, scan, tree_map, value_and_grad, vmap, while_loop",
        "{type} = static({args})",
        base="Module",
        keywords={"": "frozen=True", "keyword-only": "frozen=True, kw_only=True", "own-init": ""},
        converted="AsArray",
        jit_method="jit_method",
        ours=True,
    ),
    Library(
        "treewright.Module, plain",
        "treewright",
        "from treewright import AsArray, Module, field, replace, static\n"
        "from treewright.typed import grad, jit, jit_method, scan, tree_map, value_and_grad, vmap, while_loop",
        "{type} = static({args})",
        base="Module",
        keywords={"keyword-only": "kw_only=True"},
        converted="AsArray",
        jit_method="jit_method",
        ours=True,
        plain=True,
    ),
    Library(
        "register_dataclass",
        "jax",
        f"{STANDARD}\n{JAX}\nfrom jax.tree_util import register_dataclass",
        "{type} = field(metadata=dict(static=True){more})",
        _decorators("@register_dataclass\n@dataclasses.dataclass(frozen=True)"),
        lacks=_NO_OWN_INIT | _NO_REPLACE | _NO_LATE_FIELDS,
    ),
    Library(
        "flax.struct.dataclass",
        "flax",
        f"from dataclasses import replace\nfrom flax import struct\nfrom flax.struct import field\n{JAX}",
        "{type} = field(pytree_node=False{more})",
        _decorators("@struct.dataclass(frozen=True)"),
        lacks=_NO_OWN_INIT | _NO_LATE_FIELDS,
    ),
    Library(
        "flax.struct.PyTreeNode",
        "flax",
        f"from dataclasses import replace\nfrom flax import struct\nfrom flax.struct import field\n{JAX}",
        "{type} = field(pytree_node=False{more})",
        base="struct.PyTreeNode",
        keywords={"": "frozen=True", "keyword-only": "frozen=True, kw_only=True"},
        lacks=_NO_OWN_INIT | _NO_LATE_FIELDS,
    ),
    Library(
        "flax.nnx.Pytree",
        "flax",
        f"{STANDARD}\nfrom flax import nnx\nfrom flax.nnx import grad, jit, static, value_and_grad, vmap\n"
        "from jax.tree import map as tree_map\n" + LOOPS,
        "{type} = static({args})",
        _decorators("@nnx.dataclass") | {"own-init": ""},
        base="nnx.Pytree",
        lacks=_MUTABLE | _NO_CONVERTERS | _NO_REPLACE | _NNX,
    ),
    Library(
        "chex.dataclass",
        "chex",
        f"{STANDARD}\nimport chex\n{JAX}",
        "",
        _decorators("@chex.dataclass"),
        lacks=_NO_STATICS | _NO_OWN_INIT | _MUTABLE | _NO_GETITEM | _CHEX,
    ),
    Library(
        "chex.dataclass(frozen=True)",
        "chex",
        f"{STANDARD}\nimport chex\n{JAX}",
        "",
        _decorators("@chex.dataclass(frozen=True)"),
        lacks=_NO_STATICS | _NO_OWN_INIT | _NO_GETITEM | _CHEX,
    ),
    Library(
        "jax_dataclasses",
        "jax_dataclasses",
        "import jax_dataclasses as jdc\nfrom jax import grad, value_and_grad, vmap\n"
        "from jax.tree import map as tree_map\nfrom jax_dataclasses import field, jit, replace\n" + LOOPS,
        "jdc.Static[{type}]{value}",
        _decorators("@jdc.pytree_dataclass(frozen=True)"),
        lacks=_NO_OWN_INIT | _NO_REPLACE | _NO_STATIC_ARGUMENTS,
    ),
    Library(
        "equinox.Module",
        "equinox",
        "import equinox as eqx\nfrom dataclasses import replace\nfrom equinox import field\n"
        "from equinox import filter_grad as grad, filter_jit as jit, filter_value_and_grad as value_and_grad\n"
        "from equinox import filter_vmap as vmap\nfrom jax.tree import map as tree_map\n" + LOOPS,
        "{type} = field(static=True{more})",
        base="eqx.Module",
        converted="{type} = field(converter={args})",
        lacks={"A03": "deletes fields", "J13": "its grad has no argnums", "M12": "its grad gives None for floats"}
        | _NO_REPLACE
        | _NO_STATIC_ARGUMENTS
        | _NO_KEYWORD_CLASS,
    ),
    Library(
        "penzai",
        "penzai",
        f"{STANDARD}\n{JAX}\nfrom penzai import pz",
        '{type} = field(metadata={{"pytree_node": False}}{more})',
        _decorators("@pz.pytree_dataclass") | {"heir": "@pz.pytree_dataclass(has_implicitly_inherited_fields=True)"},
        base="pz.Struct",
        lacks={"N16": "makes no positional patterns unless asked"} | _NO_CONVERTERS | _NO_REPLACE,
    ),
    Library(
        "simple_pytree",
        "simple_pytree",
        f"from dataclasses import dataclass\n{STANDARD}\n{JAX}\nfrom simple_pytree import Pytree, static_field",
        "{type} = static_field({args})",
        _decorators("@dataclass(frozen=True)") | {"own-init": ""},
        base="Pytree",
        lacks={"A03": "deletes fields"} | _NO_CONVERTERS,
    ),
    Library(
        "sepes",
        "sepes",
        f"{JAX}\nimport sepes as sp\nfrom sepes import field",
        "{type} = field(on_setattr=[sp.tree_mask], on_getattr=[sp.tree_unmask]{more})",
        {"": "@sp.autoinit", "own-init": ""},
        base="sp.TreeClass",
        converted="{type} = field(on_setattr=[{args}])",
        replaced='{node}.at["{name}"].set({value})',
        lacks=_because("is no dataclass", "N16", "D11", "D13", "D14", "D18", "D19", "F13", "P22")
        | _NO_REPLACE
        | _NO_KEYWORD_CLASS
        | _NO_KEYWORD_FIELD
        | _NO_FACTORY,
    ),
    Library(
        "tjax",
        "tjax",
        "from dataclasses import replace\nfrom jax import grad, value_and_grad, vmap\n"
        "from jax.tree import map as tree_map\nfrom tjax import jit\n"
        f"from tjax.dataclasses import dataclass, field\n{LOOPS}",
        "{type} = field(static=True{more})",
        {"": "@dataclass"},
        lacks=_NO_OWN_INIT | _NO_REPLACE | _NO_KEYWORD_CLASS,
    ),
)
