"""What a node class consists of. The only reader of `dataclasses.fields`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from treewright._core.annotations import declarers, resolved
from treewright._core.children import SettingsWarning, may_be_no_leaf
from treewright._core.converters import annotated_converter, only_static
from treewright._core.fields import Compare, FieldKind, FieldOptions, Sharding, Stack, options_of
from treewright._core.functions import kept_in_pickles
from treewright._core.jax_private import GetAttrKey
from treewright._core.statics import StaticTable
from treewright.errors import NodeDefinitionError

MISSING: Any = dataclasses.MISSING


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

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is MISSING: `pickle` would make that another object, which no `is` finds.
        given = {slot: getattr(self, slot) for slot in self.__slots__}
        return (field_spec, ({slot: value for slot, value in given.items() if value is not MISSING},))

    def value_in(self, pair: tuple[Any, Any]) -> Any:
        """The field's value in an instance's `(children, statics)`."""
        return pair[1].values[self.index] if self.is_static else pair[0][self.index]


@kept_in_pickles
def field_spec(given: dict[str, Any]) -> FieldSpec:
    """A field that comes back from a pickle, which leaves out what is MISSING."""
    return FieldSpec(**{"default": MISSING, "default_factory": MISSING, **given})


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a class was declared; its subclasses start from the same."""

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
    checks: tuple[Callable[[Any], None], ...]
    options: Options
    has_own_init: bool
    has_post_init: bool
    runs_post_init: bool  # the constructor does, if it is a generated one
    init_vars: dict[str, Any]  # the default of each, or MISSING


def spec_of(node_or_class: Any) -> NodeSpec:
    """The spec of a node or of its class."""
    spec: NodeSpec = node_or_class.__node_spec__
    return spec


def or_missing(value: Any) -> Any:
    """`MISSING` itself for any copy of it: fields that came by `cloudpickle` hold one."""
    return MISSING if isinstance(value, type(MISSING)) else value


def converter_of(cls: type[Any], field: "dataclasses.Field[Any]", options: FieldOptions, hint: Any) -> Any:
    """The converter that the field's specifier names, or its annotation."""
    annotated = annotated_converter(cls, field.name, hint)
    if getattr(annotated, "func", None) is only_static and (options.kind == "static" or options.converter is not None):
        return options.converter
    if annotated is not None and options.converter is not None:
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{field.name} has a converter in its annotation and another in converter=, and one of "
            f"them would not run. Drop one."
        )
    return options.converter or annotated


def field_specs(cls: type[Any]) -> tuple[tuple[FieldSpec, ...], list[FieldSpec]]:
    """The fields of a class that `dataclasses.dataclass` has processed, and the children that may be settings."""
    specs: list[FieldSpec] = []
    watched: list[FieldSpec] = []
    counts = {True: 0, False: 0}
    declared_in = declarers(cls)
    for field in dataclasses.fields(cls):
        specified = options_of(field)
        options = specified or FieldOptions()
        hint = resolved(field.type, declared_in.get(field.name, cls))
        is_static = options.kind == "static"
        said: str | None = getattr(field, "doc", None)  # of a standard field, on 3.14 and newer
        specs.append(
            FieldSpec(
                name=field.name,
                kind=options.kind,
                index=counts[is_static],
                type=field.type,
                default=or_missing(field.default),
                default_factory=or_missing(field.default_factory),
                init=field.init,
                repr=field.repr,
                hash=field.compare if field.hash is None else field.hash,
                equal=field.compare,
                kw_only=bool(field.kw_only),
                converter=converter_of(cls, field, options, hint),
                compare=options.compare,
                sharding=options.sharding,
                stack=options.stack,
                local=options.local,
                doc=options.doc if said is None else said,
            )
        )
        counts[is_static] += 1
        if specified is None and may_be_no_leaf(hint):
            watched.append(specs[-1])
    return tuple(specs), watched


def init_vars(cls: type[Any]) -> dict[str, Any]:
    """The `InitVar`s of a dataclass as it declares them: parameters of `__init__` that are not fields."""
    # `dataclasses.fields` leaves them out, and the mark below is the only word of them (its name has stood since 3.7).
    mark = getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009
    declared: dict[str, Any] = cls.__dataclass_fields__
    return {name: field for name, field in declared.items() if field._field_type is mark}


def node_spec(cls: type[Any], options: Options, kind: type[NodeSpec], *, has_own_init: bool) -> NodeSpec:
    """The spec of a class that `dataclasses.dataclass` has processed."""
    fields, watched = field_specs(cls)
    children = tuple(field for field in fields if not field.is_static)
    statics = tuple(field for field in fields if field.is_static)
    has_post_init = hasattr(cls, "__post_init__")
    own_checks = [vars(base).get("__check_init__") for base in reversed(cls.__mro__)]
    return kind(
        cls=cls,
        fields=fields,
        by_name={field.name: field for field in fields},
        children=children,
        statics=statics,
        table=StaticTable(
            cls, tuple(field.name for field in statics), tuple(field.compare == "content" for field in statics)
        ),
        keys=tuple(GetAttrKey(field.name) for field in children),
        checks=(
            *(check for check in own_checks if check is not None),
            *([SettingsWarning(tuple(watched))] if watched else []),
        ),
        options=options,
        has_own_init=has_own_init,
        has_post_init=has_post_init,
        runs_post_init=has_post_init and options.init and not has_own_init,
        init_vars={name: or_missing(variable.default) for name, variable in init_vars(cls).items()},
    )
