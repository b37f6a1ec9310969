"""Specs: what a node class and each of its fields consist of."""

import dataclasses
from collections.abc import Callable
from typing import Any

from treewright._core.fields import MISSING, Compare, FieldKind, Sharding, Stack
from treewright._core.statics import StaticTable


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field. `index` is its place among the children, or among the statics."""

    name: str
    kind: FieldKind
    index: int
    type: Any
    default: Any
    default_factory: Any
    init: bool
    repr: bool
    hash: bool
    equal: bool
    kw_only: bool
    converter: Callable[[Any], Any] | None
    compare: Compare
    sharding: Sharding | None
    stack: Stack | None
    local: bool
    doc: str | None

    @property
    def is_static(self) -> bool:
        """Whether the field is kept in `aux_data`."""
        return self.kind == "static"

    @property
    def is_left_open(self) -> bool:
        """Whether only `__post_init__` can give the field its value."""
        return not self.init and self.default is MISSING and self.default_factory is MISSING

    def convert(self, value: Any) -> Any:
        """The value as the field keeps it."""
        return value if self.converter is None else self.converter(value)

    def value_in(self, pair: tuple[Any, Any]) -> Any:
        """The field's value in an instance's `(children, statics)`."""
        return pair[1].values[self.index] if self.is_static else pair[0][self.index]

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is MISSING: `pickle` makes another object of it, which no `is` finds.
        given = {slot: getattr(self, slot) for slot in self.__slots__}
        return (field_spec, ({slot: value for slot, value in given.items() if value is not MISSING},))


def field_spec(given: dict[str, Any]) -> FieldSpec:
    """A field that comes back from a pickle, which leaves out what is MISSING."""
    return FieldSpec(**{"default": MISSING, "default_factory": MISSING, **given})


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The options of a class: see `pytree_dataclass`."""

    init: bool = True
    repr: bool = True
    eq: bool = True
    order: bool = False
    unsafe_hash: bool = False
    kw_only: bool = False
    match_args: bool = True


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NodeSpec:
    """A node class: its fields in order, its table of statics, and how its instances are made."""

    cls: type[Any]
    fields: tuple[FieldSpec, ...]
    by_name: dict[str, FieldSpec]
    children: tuple[FieldSpec, ...]
    statics: tuple[FieldSpec, ...]
    table: StaticTable
    keys: tuple[Any, ...]  # of GetAttrKey
    checks: tuple[Callable[[Any], None], ...]  # each `__check_init__`, bases first
    options: Options
    has_own_init: bool
    has_post_init: bool
    runs_post_init: bool  # the constructor does, if it is a generated one
    init_vars: dict[str, Any]  # the default of each, or MISSING
    plain_children: frozenset[str]  # those without a specifier
    unseen: list[None]  # one for each of the next nodes whose children are looked at: see `children.py`


def spec_of(node_or_class: Any) -> NodeSpec:
    """The spec of a node or of its class."""
    spec: NodeSpec = node_or_class.__node_spec__
    return spec
