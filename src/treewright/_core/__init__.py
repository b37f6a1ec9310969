"""A class and its instances: what the rest of the package uses of it."""

from treewright._core.definition import pytree_dataclass
from treewright._core.fields import (
    AnyStatic,
    FieldSpec,
    NodeSpec,
    StaticValue,
    buffer,
    field,
    spec_of,
    static,
)
from treewright._core.freeze import FrozenArray, FrozenMapping, freeze
from treewright._core.functions import (
    bound_variables,
    globals_read,
    import_path,
    innermost,
    is_cached_property,
    of_earlier_class,
    public,
    state_of,
)
from treewright._core.instance import (
    PAIR,
    Unfinished,
    check,
    flat_form,
    from_flat_form,
    is_node,
    with_fields,
)
from treewright._core.keys import exact_key
from treewright._core.methods import leaves_equal
from treewright._core.misfits import NoExactKeyError
from treewright._core.module import Module
from treewright._core.statics import Statics

__all__ = [
    "PAIR",
    "AnyStatic",
    "FieldSpec",
    "FrozenArray",
    "FrozenMapping",
    "Module",
    "NoExactKeyError",
    "NodeSpec",
    "StaticValue",
    "Statics",
    "Unfinished",
    "bound_variables",
    "buffer",
    "check",
    "exact_key",
    "field",
    "flat_form",
    "freeze",
    "from_flat_form",
    "globals_read",
    "import_path",
    "innermost",
    "is_cached_property",
    "is_node",
    "leaves_equal",
    "of_earlier_class",
    "public",
    "pytree_dataclass",
    "spec_of",
    "state_of",
    "static",
    "with_fields",
]
