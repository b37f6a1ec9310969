"""Changed copies of nodes: `replace`, and the same for `at` and `edit`."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from treewright._core.fields import MISSING
from treewright._core.info import NodeInfo, info_of
from treewright._core.instance import (
    FlatForm,
    check,
    flat_form,
    from_flat_form,
    is_node,
    mark_failed,
    run_post_init,
    seal,
    set_attribute,
)
from treewright._core.rules import instances as rules
from treewright._core.rules import warn
from treewright.errors import ChildWarning

T = TypeVar("T")


def with_fields(node: Any, changes: Mapping[str, Any]) -> Any:
    """A copy with different values in some fields. Converters and checks run, but no constructor."""
    info: NodeInfo = node.__node_info__  # for speed, as below
    children, statics = flat_form(node)
    new_children, new_statics = list(children), list(statics.values)
    for name, value in changes.items():
        field = info.by_name[name]
        (new_statics if field.is_static else new_children)[field.index] = field.convert(value, info.cls)
    if any(map(operator.is_not, new_statics, statics.values)):
        statics = info.table.intern(tuple(new_statics))
    copy = from_flat_form(type(node), (tuple(new_children), statics))
    if changes and info.checks:
        check(copy)
    return copy


def with_post_init(node: Any, changes: dict[str, Any]) -> Any:
    """A copy with different values in some fields, for which `__post_init__` runs again.

    `dataclasses.replace` also runs it, and all spellings of `replace` must agree.
    """
    info, pair = info_of(node), flat_form(node)
    for name, default in info.init_vars.items():
        if changes.get(name, default) is MISSING:
            raise TypeError(rules.init_var_missing(info, name))
    variables = [changes.pop(name, default) for name, default in info.init_vars.items()]

    copy = from_flat_form(info.cls, info.unfinished)
    try:
        _derive(copy, info, pair, changes, variables)
        seal(copy, info, is_referenced=True, before=pair[1])
    except BaseException:
        mark_failed(copy)
        raise
    if info.checks or info.table.to_check:
        check(copy)
    return copy


def _derive(copy: Any, info: NodeInfo, pair: FlatForm, changes: Mapping[str, Any], variables: Sequence[Any]) -> None:
    """Assign the fields of a copy: the old values, the changes, and what `__post_init__` derives from them.

    As in the constructor, a field that only `__post_init__` sets has no value before.
    """
    pending: dict[str, Any] = copy.__dict__
    pending |= {field.name: field.value_in(pair) for field in info.fields if not field.set_only_in_post_init}
    for name, value in changes.items():
        set_attribute(copy, name, value)
    values = {name: pending[name] for name in changes if not info.by_name[name].init}
    run_post_init(copy, variables)
    for name, value in values.items():
        if pending[name] is not value:
            raise TypeError(rules.derived_field(info, name))


def replace(node: T, /, **changes: Any) -> T:
    """A copy of `node` with some fields replaced; everything else is shared, not copied.

    Converters and `__check_init__` run. If the class has a generated constructor and a `__post_init__`, that runs
    too and recomputes derived fields, as with `dataclasses.replace`. A custom `__init__` does not run. To change
    one value without recomputing derived fields, use `treewright.at`. Changing a static changes the treedef, so
    jitted functions retrace.

    Args:
        node: An instance of a node class.
        **changes: New values by field name, including statics and `init=False` fields. Also the `InitVar`s of
            `__post_init__`, which are required unless they have a default.

    Raises:
        TypeError: If a name is not a field; the message lists close matches. If `__post_init__` overwrites a
            passed value, or needs an `InitVar` that was not passed. If `node` is not a node.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     activation: str = static(default="relu")
        >>> replace(Layer(1.0), activation="gelu")
        Layer(kernel=1.0, activation='gelu')
    """
    copy: T = replace_fields(node, changes)
    return copy


def replace_fields(node: Any, changes: dict[str, Any]) -> Any:
    """The function and the method `replace`."""
    if not is_node(node):
        raise TypeError(rules.not_a_node(node))
    for name, value in changes.items():
        if value is None:
            warn([rules.none_in_place_of_container], ChildWarning, node, name)
    info: NodeInfo = node.__node_info__
    names: dict[str, Any] = {**info.by_name, **info.init_vars} if info.runs_post_init else info.by_name
    if not changes.keys() <= names.keys():
        raise TypeError(rules.unknown_fields(info, changes, names))
    return (with_post_init if changes and info.runs_post_init else with_fields)(node, changes)
