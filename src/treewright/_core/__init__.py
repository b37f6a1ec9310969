"""A class and its instances: what the rest of the package uses of it."""

from treewright._core.fields import FieldSpec, NodeSpec, buffer, field, spec_of, static
from treewright._core.freeze import FrozenArray, FrozenMapping, freeze
from treewright._core.functions import captured, defaults, import_path, innermost
from treewright._core.functions import read_by as globals_read
from treewright._core.instance import flat_form, from_flat_form, is_node, replace
from treewright._core.keys import NoExactKeyError, exact_key
from treewright._core.module import Module
from treewright._core.statics import Statics

__all__ = [
    "FieldSpec",
    "FrozenArray",
    "FrozenMapping",
    "Module",
    "NoExactKeyError",
    "NodeSpec",
    "Statics",
    "buffer",
    "captured",
    "defaults",
    "exact_key",
    "field",
    "flat_form",
    "freeze",
    "from_flat_form",
    "globals_read",
    "import_path",
    "innermost",
    "is_node",
    "replace",
    "spec_of",
    "static",
]
