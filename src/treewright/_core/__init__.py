"""A class and its instances: what the rest of the package uses of it."""

from treewright._core.definition import pytree_dataclass
from treewright._core.fields import (
    AnyStatic,
    FieldSpec,
    NodeSpec,
    StaticValue,
    buffer,
    field,
    options_of,
    spec_of,
    static,
)
from treewright._core.freeze import FrozenArray, FrozenMapping, freeze
from treewright._core.functions import (
    captured,
    defaults,
    globals_read,
    import_path,
    innermost,
    is_cached_property,
    is_library,
    of_earlier_class,
    of_python,
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
    replace,
    with_close_matches,
    with_fields,
)
from treewright._core.keys import exact_key
from treewright._core.kinds import parts_of
from treewright._core.methods import leaves_equal
from treewright._core.misfits import NoExactKeyError
from treewright._core.module import Module
from treewright._core.registration import refuse_base, register_for_export, register_with_jax
from treewright._core.statics import Statics, StaticTable, table_in

__all__ = [
    "PAIR",
    "AnyStatic",
    "FieldSpec",
    "FrozenArray",
    "FrozenMapping",
    "Module",
    "NoExactKeyError",
    "NodeSpec",
    "StaticTable",
    "StaticValue",
    "Statics",
    "Unfinished",
    "buffer",
    "captured",
    "check",
    "defaults",
    "exact_key",
    "field",
    "flat_form",
    "freeze",
    "from_flat_form",
    "globals_read",
    "import_path",
    "innermost",
    "is_cached_property",
    "is_library",
    "is_node",
    "leaves_equal",
    "of_earlier_class",
    "of_python",
    "options_of",
    "parts_of",
    "public",
    "pytree_dataclass",
    "refuse_base",
    "register_for_export",
    "register_with_jax",
    "replace",
    "spec_of",
    "state_of",
    "static",
    "table_in",
    "with_close_matches",
    "with_fields",
]
