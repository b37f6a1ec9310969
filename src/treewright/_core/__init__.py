"""Node classes and instances: the interface for the rest of the package."""

from treewright._base.text import is_node_class
from treewright._core.field_checks import NoExactKeyError, why_it_can_change
from treewright._core.fields import AnyStatic, StaticValue, buffer, field, static
from treewright._core.instance import FLAT_FORM, Unfinished, check, flat_form, from_flat_form, is_node, with_fields
from treewright._core.keys import exact_key, how_compared
from treewright._core.kinds import JSON_TYPES, Kind, kind_of, with_parts
from treewright._core.methods import leaves_equal
from treewright._core.module import Module, pytree_dataclass
from treewright._core.spec import FieldSpec, NodeSpec, spec_of
from treewright._core.statics import Statics
