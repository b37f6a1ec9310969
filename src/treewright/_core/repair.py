"""Repair a class after a tool replaced the descriptors in its `__dict__` by plain properties and functions.

Beartype and typeguard do so when the class statement ends, IPython's autoreload when a file changes, cloudpickle when
it loads a class. Without a metaclass nothing runs then, so the next node repairs its class.
"""

import types
from typing import Any

from treewright._core.bound import wrap_methods
from treewright._core.field_views import FieldView
from treewright._core.info import NodeInfo
from treewright._core.instance import wrap_init
from treewright._core.statics import MAX_CHECKED_NODES


def as_view(value: Any) -> Any:
    """The view of a field that a tool replaced by a plain property with the same functions; else the value itself."""
    if isinstance(value, property) and not isinstance(value, FieldView) and hasattr(value.fget, "reads"):
        return FieldView(value.fget, value.fset, value.fdel, value.__doc__)
    return value


def restore_class(info: NodeInfo) -> None:
    """Before the first node, restore the views and methods that a tool replaced by plain properties or functions.

    When autoreload changes a class, its next node is the first with the new `NodeInfo`.
    """
    if info.table.to_check < MAX_CHECKED_NODES:
        return
    for field in info.fields:  # Any other value that was assigned to a field on the class stays.
        value = vars(info.cls).get(field.name)
        view = as_view(value)
        if view is not value:
            setattr(info.cls, field.name, view)
    for base in info.cls.__mro__:
        if "__node_info__" in vars(base):
            wrap_methods(base)


def restore_init(cls: type[Any]) -> None:
    """Wrap an `__init__` that a tool replaced: IPython's autoreload writes new code into our wrapper."""
    owner: Any = next(base for base in cls.__mro__ if "__init__" in vars(base))
    init: Any = vars(owner)["__init__"]
    if "__node_info__" not in vars(owner) or not isinstance(init, types.FunctionType) or hasattr(init, "__wrapped__"):
        return
    if "__build__" not in init.__code__.co_freevars:  # not generated
        owner.__init__ = wrap_init(init)
