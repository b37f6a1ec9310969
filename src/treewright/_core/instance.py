"""Node instances: storage, attribute access, construction.

An instance stores exactly what `tree_flatten` returns, in one attribute: `_node = (children, statics)`. Until its
`__init__` returns, `_node` is an `Unfinished` and the values are in the instance's `__dict__`.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import jax
import numpy as np

from treewright._base.jax_private import jax_trees
from treewright._base.text import is_node_class
from treewright._core.fields import MISSING, reject_field_on_class
from treewright._core.info import FLAT_FORM_NAME, FieldInfo, NodeInfo, info_of
from treewright._core.keys import reaches
from treewright._core.rules import first_text, reject
from treewright._core.rules import instances as rules
from treewright._core.rules.children import CHILD, marker_as_value
from treewright._core.statics import Statics
from treewright.errors import ChildWarning, NodeDefinitionError, NodeInitError, UnfinishedNodeError, warn_user

FlatForm = tuple[tuple[Any, ...], Statics]

_COMMON = frozenset({type(None), np.ndarray, bool, int, float, complex})  # values that are never a mistake
_new: Any = object.__new__
_read = object.__getattribute__
_store = object.__setattr__


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Unfinished:
    """The value of `_node` until the node is sealed, or forever if `__init__` raised. JAX's errors print it."""

    cls: type[Any]
    is_running: bool = True  # its `__init__`

    def values_of(self, node: Any) -> dict[str, Any]:
        """The values assigned to this node so far, which can be read, assigned and deleted.

        Raises:
            UnfinishedNodeError: If the node's `__init__` raised.
        """
        if not self.is_running:
            raise UnfinishedNodeError(f"This is {self}.")
        values: dict[str, Any] = node.__dict__
        return values

    def __repr__(self) -> str:
        why = "its __init__ has not returned, so it can't be flattened yet"
        return f"an unfinished {self.cls.__qualname__}: {why if self.is_running else rules.no_init_has_run(self.cls)}"


def raw_form(node: Any) -> FlatForm | Unfinished:
    """The value of `_node`, bypassing a user's `__getattr__`."""
    try:
        form: FlatForm | Unfinished = _read(node, FLAT_FORM_NAME)
    except AttributeError:
        cls = type(node)
        reject(rules.NOT_A_NODE_CLASS, NodeDefinitionError, cls)
        info_of(cls).restore_init(cls)
        return Unfinished(cls, is_running=False)
    return form


def flat_form(node: Any) -> FlatForm:
    """Return the values of the child fields in order, and one object for all static fields."""
    form = raw_form(node)
    if isinstance(form, Unfinished):
        raise UnfinishedNodeError(f"This is {form}.")
    table, current = form[1].table, type(node).__node_info__.table
    if table is not current and (table.children, table.names) != (current.children, current.names):
        raise TypeError(rules.older_definition(type(node), (*table.children, *table.names)))
    return form


def from_flat_form(cls: type[Any], pair: FlatForm | Unfinished) -> Any:
    """A node of this class with this flat form, or one whose fields can be assigned; runs none of the user's code."""
    node: Any = _new(cls)
    _store(node, FLAT_FORM_NAME, pair)
    return node


def is_node(value: object) -> bool:
    """Whether a value is an instance of a node class."""
    return is_node_class(type(value))


# Attributes


def set_attribute(node: Any, name: str, value: Any) -> None:
    """Assign an attribute while the constructor runs; afterwards the node is frozen. Converters run."""
    try:
        form = _read(node, FLAT_FORM_NAME)
    except AttributeError:
        form = raw_form(node)
    if isinstance(form, tuple):
        raise dataclasses.FrozenInstanceError(rules.frozen(info_of(type(node)), name))
    # Inlined, because a call for each `self.x = x` is measurable (benchmarks: node, own __init__).
    values = node.__dict__ if type(form) is Unfinished and form.is_running else form.values_of(node)
    field: FieldInfo | None = node.__node_fields__.get(name)
    if field is None:
        _store(node, name, value)
    else:
        values[name] = value if field.converter is None else field.convert(value, type(node))


def delete_attribute(node: Any, name: str) -> None:
    """Raise an error, but for what is no field while the constructor runs: a node has a value for each field."""
    form = raw_form(node)
    if type(form) is Unfinished and form.is_running and name not in node.__node_fields__:
        object.__delattr__(node, name)
        return
    problem = "a node keeps its fields. Change a value by replace() or, in __init__, by an assignment."
    raise dataclasses.FrozenInstanceError(f"cannot delete {type(node).__qualname__}.{name}: {problem}")


# Construction


def wrap_init(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a user's `__init__` so that it seals the node."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return run_init(self, init, *args, **kwargs)  # Python rejects a result other than None.

    return __init__


def run_init(node: Any, init: Callable[..., object], /, *args: Any, **kwargs: Any) -> object:
    """Run an `__init__`; the outermost one seals the node when it returns, or marks it as failed when it raises."""
    info: NodeInfo = node.__node_info__
    try:  # Before the outermost __init__, `_node` is missing; `getattr` is three times faster than `except`.
        form = _read(node, FLAT_FORM_NAME) if info.has_getattr else getattr(node, FLAT_FORM_NAME, None)
    except AttributeError:
        form = None
    if isinstance(form, tuple):
        raise dataclasses.FrozenInstanceError(rules.init_on_finished(type(node)))
    if form is not None:
        form.values_of(node)
        return init(node, *args, **kwargs)
    if info.cls is not type(node):
        reject(rules.NOT_A_NODE_CLASS, NodeDefinitionError, type(node))
    if info.table.to_check:
        info.restore_class(info)
    _store(node, FLAT_FORM_NAME, info.unfinished)
    try:
        # Without a new reference to the node, no value can contain it, unless its `__new__` stored one.
        references = 0 if info.has_own_new else getrefcount(node)
        returned = init(node, *args, **kwargs)
        is_referenced = getrefcount(node) > references
        seal(node, info, is_referenced=is_referenced)
    except BaseException:
        mark_failed(node)
        raise
    if info.checks or info.table.to_check:
        check(node)
    return returned


def seal(node: Any, info: NodeInfo, *, is_referenced: bool, before: Statics | None = None) -> None:
    """Check the assigned values and store the flat form; with the statics of `before` if all their values are kept."""
    pending, table = node.__dict__, info.table
    if not info.by_name.keys() <= pending.keys() or len(pending) > len(info.fields) + (FLAT_FORM_NAME in pending):
        _complete(info, pending)
    children = tuple([pending[name] for name in table.children])
    if is_referenced:
        for name, child in zip(table.children, children, strict=True):
            if _contains(child, node):
                raise NodeInitError(rules.contains_itself(info.cls, name))
    for slot in info.slots:
        if getattr(node, slot, MISSING) is not MISSING:
            raise NodeInitError(rules.slot_of_base(info.cls, slot))
    values = tuple([pending[name] for name in table.names])
    # Not only faster: keys may have changed since, because optax's cosine schedule assigns to a captured variable.
    is_same = before is not None and all(map(operator.is_, values, before.values))
    statics = before if is_same else table.intern(values)
    pending.clear()
    _store(node, FLAT_FORM_NAME, (children, statics))


def _contains(child: Any, node: Any) -> bool:
    """Whether a child contains the node that is being built, in its tree or captured by a function."""
    try:
        leaves = jax_trees.tree_leaves(child, is_leaf=lambda value: value is node)
    except Exception:  # noqa: BLE001  an unfinished node, a dict that JAX can't sort, or a user's flatten function
        return False
    return any(leaf is node or (callable(leaf) and reaches(leaf, node)) for leaf in leaves)


def _complete(info: NodeInfo, pending: dict[str, Any]) -> None:
    """Fill in defaults. Raise for fields without a value and for names that are not fields."""
    for field in info.fields:
        if field.name not in pending and field.default is not MISSING:
            pending[field.name] = field.convert(field.default, info.cls)
        elif field.name not in pending and field.default_factory is not MISSING:
            pending[field.name] = field.convert(field.call("default_factory", info.cls), info.cls)
    reject([rules.incomplete], NodeInitError, info, pending)


def check(node: Any) -> None:
    """Check the values of a new node, or of a changed copy, and run every `__check_init__`, bases first."""
    info: NodeInfo = type(node).__node_info__  # bypasses a user's `__getattr__`
    try:
        if info.table.to_check:
            info.restore_class(info)
            info.table.to_check = max(info.table.to_check - 1, 0)
            _check_values(node, info)
        for own_check in info.checks:
            reject_returned(own_check(node), info.cls, "__check_init__", "Raise an error for an invalid instance")
    except BaseException:
        mark_failed(node)
        raise


def _check_values(node: Any, info: NodeInfo) -> None:
    """Reject fields of a class and markers as values, and warn about children that are invalid leaves."""
    children, statics = _read(node, FLAT_FORM_NAME)
    for field, value in zip((*info.children, *info.statics), (*children, *statics.values), strict=True):
        if type(value) in _COMMON or isinstance(value, jax.Array):
            continue
        reject_field_on_class(value)
        reject([marker_as_value], NodeInitError, info.cls, field, value)
        is_new = field.is_plain and field.name not in info.table.warned
        problem = first_text(CHILD, info.cls, field, value) if is_new else None
        if problem is not None:
            warn_user(problem, ChildWarning)
            info.table.warned.add(field.name)  # not if the warning was an error, which must come again


def reject_returned(value: object, cls: type[Any], hook: str, instead: str) -> None:
    """Raise if a hook returned a value, as Python does for `__init__`: it would be lost."""
    if value is not None:
        raise TypeError(f"{cls.__qualname__}.{hook}() returned a value, which is ignored. {instead} instead.")


def run_post_init(node: Any, variables: Sequence[Any]) -> None:
    """Run the `__post_init__` of a node, whose fields can be assigned, with the values of its `InitVar`s."""
    reject_returned(node.__post_init__(*variables), type(node), "__post_init__", "Assign fields")


def mark_failed(node: Any) -> None:
    """Empty a node whose constructor raised, so that no use of it finds values."""
    node.__dict__.clear()
    _store(node, FLAT_FORM_NAME, Unfinished(type(node), is_running=False))
