"""Node classes and instances: the interface for the rest of the package."""

from treewright._base.text import is_node_class
from treewright._core.comparison import By, Comparison, Parts, comparison_of
from treewright._core.copies import replace, with_fields
from treewright._core.definition import make_node_class
from treewright._core.fields import AnyStatic, FieldKind, StaticValue, buffer, field, static
from treewright._core.info import FLAT_FORM_NAME, FieldInfo, NodeInfo, info_of
from treewright._core.instance import Unfinished, check, flat_form, from_flat_form, is_node
from treewright._core.keys import equal_keys, exact_key, within
from treewright._core.kinds import JSON_TYPES, Kind, kind_of, with_parts
from treewright._core.methods import NODE_METHODS, leaves_equal, replace_method
from treewright._core.pickles import Recipe
from treewright._core.rules import first_text, note, reject, warn
from treewright._core.rules.declarations import declared_as
from treewright._core.rules.statics import can_change
from treewright._core.statics import Statics
