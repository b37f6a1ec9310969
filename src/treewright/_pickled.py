"""What pickles hold by name: each function here keeps its name and its arguments, wherever its code stands.

A pickle calls these to come back, so it names this module and the public ones, and no other of the package. Each is
declared where its subject is, with `kept_in_pickles`; the list below is the promise, and tests/nodes/kept holds it.
"""

from treewright._nodes.converters import only_static
from treewright._nodes.dunders import empty_node, set_state
from treewright._nodes.init import FACTORY
from treewright._nodes.make_class import register_once
from treewright._nodes.module import bound_method
from treewright._nodes.spec import field_spec
from treewright._nodes.statics import imported, interned, table_of
from treewright._values.freeze import frozen_array

__all__ = [
    "FACTORY",
    "bound_method",
    "empty_node",
    "field_spec",
    "frozen_array",
    "imported",
    "interned",
    "only_static",
    "register_once",
    "set_state",
    "table_of",
]
