"""`NodeInfo` and `FieldInfo`: the description of a node class and its fields that all other modules read."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from treewright._core.fields import FieldKind, Sharding, Stack
from treewright._core.rules import note
from treewright._core.rules.children import call_for_field
from treewright._core.statics import StaticTable

FLAT_FORM_NAME = "_node"


class Draft(NamedTuple):
    """A class that is becoming a node class: the body that the user wrote, and the inherited attributes."""

    cls: Any
    options: Mapping[str, bool]
    is_module: bool
    annotations: Mapping[str, Any]  # annotations in this class body, without inherited ones
    body: Mapping[str, Any]
    inherited: Mapping[str, Any]  # attributes of the bases in MRO order, without calling descriptors


@dataclasses.dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field. `index` is its position among the children, or among the statics."""

    name: str
    index: int
    type: Any
    init: bool
    repr: bool
    hash: bool
    compare: bool
    kw_only: bool
    default: Any
    default_factory: Any
    kind: FieldKind = "child"
    converter: Callable[[Any], Any] | None = None
    identity: bool = False  # a static that is compared by identity
    sharding: Sharding | None = None
    stack: Stack | None = None
    local: bool = False
    doc: str | None = None
    is_plain: bool = False  # declared without a specifier
    is_static: bool = False  # stored in `aux_data`
    set_only_in_post_init: bool = False  # neither a parameter nor a default

    def convert(self, value: Any, cls: Any) -> Any:
        """The value after the field's converter, in a node of `cls`."""
        return value if self.converter is None else self.call("converter", cls, value)

    def call(self, function: Literal["converter", "default_factory"], cls: Any, *arguments: Any) -> Any:
        """The result of the field's converter or default factory; an error gets a note with the field and arguments."""
        try:
            return getattr(self, function)(*arguments)
        except Exception as error:
            note([call_for_field], error, f"{function} of {cls.__qualname__}.{self.name}", *arguments)
            raise

    def value_in(self, pair: tuple[Any, Any]) -> Any:
        """The field's value in an instance's `(children, statics)`."""
        return pair[1].values[self.index] if self.is_static else pair[0][self.index]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NodeInfo:
    """A node class: its fields in order, its table of statics, and how its instances are created."""

    cls: type[Any]
    fields: tuple[FieldInfo, ...]
    by_name: dict[str, FieldInfo]
    children: tuple[FieldInfo, ...]
    statics: tuple[FieldInfo, ...]
    table: StaticTable
    checks: tuple[Callable[[Any], None], ...]  # each `__check_init__`, bases first
    has_own_init: bool
    has_getattr: bool
    has_own_new: bool  # its `__new__` may store the node, or return a finished one
    runs_post_init: bool  # True if the generated constructor calls a `__post_init__`
    init_vars: dict[str, Any]  # the default of each, or MISSING
    unfinished: Any  # the value of `_node` until an instance is sealed
    slots: tuple[str, ...]  # slots of bases that are not nodes; their values would be lost
    restore_class: Callable[["NodeInfo"], None]  # these two repair the class after a tool changed it
    restore_init: Callable[[type[Any]], None]


def info_of(node_or_class: Any) -> NodeInfo:
    """The description of a node's class."""
    info: NodeInfo = node_or_class.__node_info__
    return info
