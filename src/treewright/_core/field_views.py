"""Field views: the descriptors through which nodes read their fields."""

import dataclasses
import sys
import types
from collections.abc import Callable
from typing import Any, Never

from treewright._core.fields import MISSING
from treewright._core.info import FieldInfo
from treewright._core.instance import Unfinished, delete_attribute, raw_form, set_attribute
from treewright._core.rules import instances as rules
from treewright._core.statics import StaticTable
from treewright.errors import FieldOnClassError, NodeDefinitionError, UnfinishedNodeError


def _caller_in_dataclasses() -> types.FrameType | None:
    """The frame of `dataclasses` if its code reads the attribute whose `__get__` calls this."""
    frame = sys._getframe(2)
    return frame if frame.f_globals.get("__name__") == dataclasses.__name__ else None


class _Hash:
    """The `__hash__` of `FieldView`, which is not hashable. It also rejects a `@dataclass` on a node class.

    `dataclasses` would take a view for a default; it reads `default.__class__.__hash__` to reject mutable defaults.
    """

    def __get__(self, view: "FieldView | None", cls: type[Any]) -> Callable[[], Never] | None:
        if view is not None:
            return view.reject_use
        caller = _caller_in_dataclasses()
        if caller is not None:
            name = getattr(caller.f_locals.get("cls"), "__qualname__", "This class")
            raise NodeDefinitionError(rules.dataclass_on_node_class(name))
        return None


class FieldView(property):
    """The descriptor of a field: returns the value on an instance; on the class, using it as a value raises.

    It reads by index in nodes of its own table, and by name in nodes that were built before their class was redefined.
    Tools that redefine a class, such as IPython's autoreload, copy the new class's attributes to the old one. Tools
    that check types create a property's class again with the same functions, which yields an equal view.
    """

    def __init__(self, fget: Any = None, fset: Any = None, fdel: Any = None, doc: str | None = None) -> None:
        super().__init__(fget, fset, fdel)
        self.__doc__ = doc
        self.field: FieldInfo
        self.table: StaticTable
        self.field, self.table = fget.reads

    @property
    def default(self) -> Any:
        """The default of the field, or MISSING."""
        return self.field.default

    def __reduce__(self) -> tuple[Any, ...]:
        return (field_view, (self.field, self.table))

    def __repr__(self) -> str:
        return f"<field {self.table.owner.__qualname__}.{self.field.name}>"

    def __getattr__(self, attribute: str) -> Never:
        raise AttributeError(self._problem(f"has no {attribute}"), name=None, obj=None)

    __hash__: Any = _Hash()

    def __eq__(self, other: object) -> bool:
        """Whether both are views of the same field, also before and after its class was redefined."""
        if not isinstance(other, FieldView):
            self.reject_use()
        owners = (self.table.owner, other.table.owner)
        paths = {(cls.__module__, cls.__qualname__) for cls in owners}
        return len(paths) == 1 and self.field.name == other.field.name

    def reject_use(self, *_: object, **__: object) -> Never:
        raise FieldOnClassError(self._problem("has no value"))

    def _problem(self, problem: str) -> str:
        return rules.field_read_on_class(self.field, self.table.owner, problem)


@dataclasses.dataclass(frozen=True)
class ArgumentView:
    """The descriptor of an `InitVar` with a default, which `dataclasses` would return as an instance's value."""

    full_name: str
    default: Any

    def __get__(self, node: Any, cls: Any = None) -> Any:
        if node is None or _caller_in_dataclasses() is not None:  # the class, or `dataclasses.replace`
            return self.default
        raise AttributeError(rules.init_var_read(self.full_name))


# Beartype recognises the builtin `property` by the name of its class, and rejects every other property.
FieldView.__module__, FieldView.__name__, FieldView.__qualname__ = property.__module__, "property", "property"

# Every operation of numbers and lists uses a view as a value: `Tiles.WALL == 1` would silently be False.
_OF_BUILTINS = {name for cls in (int, float, complex, list) for name in dir(cls) if name.startswith("__")}
_OTHERS = {f"__{name}__" for name in ("lt", "le", "gt", "ge", "format", "matmul", "rmatmul", "array", "jax_array")}
for _use in (_OF_BUILTINS - {*dir(object), "__getnewargs__"}) | _OTHERS:
    setattr(FieldView, _use, FieldView.reject_use)


def field_view(field: FieldInfo, table: StaticTable) -> FieldView:
    """The view of a field. It reads by index, in a third of the time of reading by name (benchmarks: node)."""
    index, name = field.index, field.name

    def read_child(node: Any) -> Any:
        try:
            children, statics = node._node
            if statics.table is table:
                return children[index]
        except (TypeError, AttributeError):  # unfinished
            pass
        return _read_by_name(node, field)

    def read_static(node: Any) -> Any:
        try:
            _, statics = node._node
            if statics.table is table:
                return statics.values[index]
        except (TypeError, AttributeError):  # unfinished
            pass
        return _read_by_name(node, field)

    read: Any = read_static if field.is_static else read_child
    read.reads = (field, table)
    # Sphinx prints the annotation. The mark keeps beartype from checking reads: a field of a spec holds other values.
    read.__annotations__ = {"return": field.type}
    read.__no_type_check__ = True
    return FieldView(
        read,
        lambda node, value: set_attribute(node, name, value),
        lambda node: delete_attribute(node, name),
        field.doc,
    )


def _read_by_name(node: Any, field: FieldInfo) -> Any:
    """The value of a field in an unfinished node, or in a node of an older definition of its class."""
    form, name = raw_form(node), field.name
    if isinstance(form, Unfinished):
        value = form.values_of(node).get(name, field.default)
        if value is MISSING:  # Python then calls a user's `__getattr__`.
            raise UnfinishedNodeError(
                f"{type(node).__qualname__}.{name} was read before __init__ set it. Assign it first."
            )
        return value
    children, statics = form
    values = dict(zip((*statics.table.children, *statics.table.names), (*children, *statics.values), strict=True))
    if name not in values:
        raise AttributeError(rules.older_definition(type(node), values, name))
    return values[name]
