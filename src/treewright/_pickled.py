"""What pickles hold by name: each function here keeps its name and its arguments, wherever its code stands.

A pickle calls these to come back, so it names this module and the public ones, and no other of the package. Each is
declared where its subject is, with `kept_in_pickles`; tests/nodes/test_pickled.py holds the list.
"""

from treewright._core.converters import only_static, unless_none
from treewright._core.fields import field_spec
from treewright._core.freeze import frozen_array
from treewright._core.init import FACTORY
from treewright._core.methods import empty_node, set_state
from treewright._core.module import bound_method
from treewright._core.pickling import closure, imported, partial_of
from treewright._core.registration import register_once
from treewright._core.statics import interned, table_of

__all__ = [
    "FACTORY",
    "bound_method",
    "closure",
    "empty_node",
    "field_spec",
    "frozen_array",
    "imported",
    "interned",
    "only_static",
    "partial_of",
    "register_once",
    "set_state",
    "table_of",
    "unless_none",
]
