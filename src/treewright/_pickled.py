"""What pickles hold by name: each function here keeps its name and its arguments, wherever its code stands.

A pickle calls these to come back, so it names this module and the public ones, and no other of the package. Each is
declared where its subject is, with `kept_in_pickles`; the list below is the promise, and tests/nodes/kept holds it.
"""

from treewright._core.converters import only_static
from treewright._core.definition import register_once
from treewright._core.dunders import empty_node, set_state
from treewright._core.freeze import frozen_array
from treewright._core.init import FACTORY
from treewright._core.module import bound_method
from treewright._core.spec import field_spec
from treewright._core.statics import imported, interned, table_of

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
