"""`NodeInfo` and `FieldInfo`: the description of a node class and its fields that all other modules read."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, Literal

from treewright._base.functions import is_pickled_by
from treewright._base.text import text_with_class
from treewright._core.fields import FieldKind, Sharding, Stack
from treewright._core.rules import note
from treewright._core.statics import StaticTable


@dataclasses.dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field. `index` is its position among the children, or among the statics."""

    name: str
    index: int
    type: Any
    init: bool
    repr: bool
    hash: bool
    equal: bool
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
            note((_function_of_field,), error, f"{function} of {cls.__qualname__}.{self.name}", *arguments)
            raise

    def value_in(self, pair: tuple[Any, Any]) -> Any:
        """The field's value in an instance's `(children, statics)`."""
        return pair[1].values[self.index] if self.is_static else pair[0][self.index]


def _function_of_field(_: BaseException, function: str, *arguments: Any) -> str:
    """The traceback of a converter or a default factory does not show for which field it ran."""
    values = "".join([f", called with {text_with_class(value)}" for value in arguments])
    return f"Raised by the {function}{values}."


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
    restore_class: Callable[["NodeInfo"], None]  # restores the views and methods that a tool replaced

    def __reduce_ex__(self, protocol: Any) -> Any:
        reject_dill(self.cls)
        return object.__reduce_ex__(self, protocol)


def reject_dill(cls: type[Any]) -> None:
    """Raise if dill pickles a class by value, which it does where `pickle` could not import the class.

    Dill needs the attributes of a class before the class, and those of a node class refer to it.
    """
    if is_pickled_by("dill"):
        raise pickle.PicklingError(
            f"dill can't pickle the node class {cls.__qualname__}, which is defined in __main__ or in a function. Use "
            f"cloudpickle.dumps(...), or define the class in a module."
        )


def info_of(node_or_class: Any) -> NodeInfo:
    """The description of a node's class."""
    info: NodeInfo = node_or_class.__node_info__
    return info
