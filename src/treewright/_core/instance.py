"""Node instances: storage, attribute access, construction, `replace`.

An instance stores exactly what `tree_flatten` returns, in one attribute: `_node = (children, statics)`. Until its
`__init__` returns, `_node` is an `Unfinished` and the values are in the instance's `__dict__`.
"""

import dataclasses
import functools
import operator
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from sys import getrefcount
from typing import Any, TypeVar

from treewright._base.functions import earlier_class_hint, is_cached_property
from treewright._base.jax_private import jax_trees
from treewright._base.text import (
    annotation_text,
    class_name,
    did_you_mean,
    is_node_class,
    with_article,
    with_close_matches,
)
from treewright._core.field_checks import check_fields
from treewright._core.fields import MISSING
from treewright._core.info import FieldInfo, NodeInfo, info_of
from treewright._core.keys import reaches
from treewright._core.rules import note
from treewright._core.statics import Statics
from treewright.errors import ChildWarning, NodeDefinitionError, NodeInitError, UnfinishedNodeError, warn_user

FLAT_FORM_NAME = "_node"
FlatForm = tuple[tuple[Any, ...], Statics]

T = TypeVar("T")

_SETTINGS = frozenset({types.NoneType, bool, int, str})  # what a spec holds where its nodes have arrays

_new: Any = object.__new__
_read = object.__getattribute__
_store = object.__setattr__


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Unfinished:
    """The value of `_node` until the node is sealed, or forever if `__init__` raised. JAX's errors print it."""

    cls: type[Any]
    why: str = ""  # why it can't be finished; empty while its `__init__` runs

    def values_of(self, node: Any) -> dict[str, Any]:
        """The values assigned to this node so far, which can be read, assigned and deleted.

        Raises:
            UnfinishedNodeError: If the node's `__init__` raised.
        """
        if self.why:
            raise UnfinishedNodeError(f"This is {self}.")
        values: dict[str, Any] = node.__dict__
        return values

    def __repr__(self) -> str:
        why = self.why or "its __init__ has not returned, so it can't be flattened yet"
        return f"an unfinished {self.cls.__qualname__}: {why}"


def raw_form(node: Any) -> FlatForm | Unfinished:
    """The value of `_node`, bypassing a user's `__getattr__`."""
    try:
        form: FlatForm | Unfinished = _read(node, FLAT_FORM_NAME)
    except AttributeError:
        cls = type(node)
        reject_undecorated(cls)
        why = f"no __init__ has run. Create it by calling the class: {cls.__qualname__}(...)"
        if cls.__init__ is object.__init__:
            why = "the class has no __init__. Remove init=False, or write an __init__"
        elif _wrap_init_again(cls):
            why = (
                "its __init__ was replaced after the class was defined, for example by autoreload, so it did not "
                f"finish the node. This is repaired now: call {cls.__qualname__}(...) again"
            )
        elif cls.__new__ is not _new:
            why = f"{cls.__qualname__}.__new__ runs before __init__. Assign fields in __init__"
        return Unfinished(cls, why)
    return form


def flat_form(node: Any) -> FlatForm:
    """Return the values of the child fields in order, and one object for all static fields."""
    form = raw_form(node)
    if isinstance(form, Unfinished):
        raise UnfinishedNodeError(f"This is {form}.")
    return form


def from_flat_form(cls: type[Any], pair: FlatForm) -> Any:
    """A node of this class with this flat form; runs none of the user's code."""
    node: Any = _new(cls)
    _store(node, FLAT_FORM_NAME, pair)
    return node


def is_node(value: object) -> bool:
    """Whether a value is an instance of a node class."""
    return is_node_class(type(value))


def reject_undecorated(cls: type[Any]) -> None:
    """Raise if a subclass of a node class is not a node class itself."""
    if "__node_info__" in vars(cls):
        if cls.__dictoffset__:
            return
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a copy of a node class with slots, which have no place for the values of a node. "
            f"Another decorator made it, such as attrs.define. Remove that decorator."
        )
    base = next((base.__qualname__ for base in cls.__mro__ if "__node_info__" in vars(base)), "Module")
    problem, fix = "not decorated", f"Put @pytree_dataclass above class {cls.__name__}"
    if hasattr(cls, FLAT_FORM_NAME):  # Module.__init_subclass__ did not run.
        problem = "not a node class itself"
        fix = "Call super().__init_subclass__() in every __init_subclass__ of its bases"
    raise NodeDefinitionError(
        f"{cls.__qualname__} is a subclass of the node class {base} but {problem}: its own fields would be lost, and "
        f"JAX would treat its instances as leaves. {fix}."
    )


# Attributes


def set_attribute(node: Any, name: str, value: Any) -> None:
    """Assign an attribute while the constructor runs; afterwards the node is frozen. Converters run."""
    try:
        form = _read(node, FLAT_FORM_NAME)
    except AttributeError:
        form = raw_form(node)
    if isinstance(form, tuple):
        raise frozen_error(node, name, "assign to")
    # Inlined, because a call for each `self.x = x` is measurable (benchmarks: node, own __init__).
    values = node.__dict__ if type(form) is Unfinished and not form.why else form.values_of(node)
    field: FieldInfo | None = node.__node_fields__.get(name)
    if field is None:
        _store(node, name, value)
    else:
        values[name] = value if field.converter is None else field.convert(value, type(node))


def delete_attribute(node: Any, name: str) -> None:
    """Delete an attribute while the constructor runs; afterwards the node is frozen."""
    form = raw_form(node)
    if isinstance(form, tuple):
        raise frozen_error(node, name, "delete")
    if form.values_of(node).pop(name, MISSING) is MISSING:
        raise UnfinishedNodeError(f"{type(node).__qualname__}.{name} has no value to delete yet.")


def frozen_error(node: Any, name: str, verb: str) -> dataclasses.FrozenInstanceError:
    """The error for assigning or deleting an attribute of a sealed node."""
    cls, names = type(node), info_of(type(node)).by_name
    if name not in names:
        return dataclasses.FrozenInstanceError(
            f"cannot {verb} {name!r}: {cls.__qualname__} has no field of this name{did_you_mean(name, names)}, and "
            f"nodes are frozen after __init__."
        )
    return dataclasses.FrozenInstanceError(
        f"cannot {verb} field {name!r} of {with_article(cls.__qualname__)}, it is frozen: use "
        f"treewright.replace(node, {name}=...) for a changed copy, or assign in `with treewright.edit(node) as draft:`."
    )


# Construction


def wrap_init(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a user's `__init__` so that it seals the node."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return run_init(self, init, *args, **kwargs)  # Python rejects a result other than None.

    return __init__


def _wrap_init_again(cls: type[Any]) -> bool:
    """Wrap an `__init__` that a tool replaced: IPython's autoreload writes new code into our wrapper. False if ours."""
    owner: Any = next(base for base in cls.__mro__ if "__init__" in vars(base))
    init: Any = vars(owner)["__init__"]
    if "__node_info__" not in vars(owner) or not isinstance(init, types.FunctionType) or hasattr(init, "__wrapped__"):
        return False
    if "__build__" in init.__code__.co_freevars:  # generated
        return False
    owner.__init__ = wrap_init(init)
    return True


def run_init(node: Any, init: Callable[..., object], /, *args: Any, **kwargs: Any) -> object:
    """Run an `__init__`; the outermost one seals the node when it returns, or marks it as failed when it raises."""
    info: NodeInfo = node.__node_info__
    try:  # Before the outermost __init__, `_node` is missing; `getattr` is three times faster than `except`.
        form = _read(node, FLAT_FORM_NAME) if info.has_getattr else getattr(node, FLAT_FORM_NAME, None)
    except AttributeError:
        form = None
    if isinstance(form, tuple):
        name = type(node).__qualname__
        raise dataclasses.FrozenInstanceError(
            f"{name}.__init__ was called on a finished {name}, but nodes are frozen. Call {name}(...) for a new one, "
            f"or treewright.replace(node, ...) for a changed copy."
        )
    if form is not None:
        form.values_of(node)
        return init(node, *args, **kwargs)
    if info.cls is not type(node):
        reject_undecorated(type(node))
    if info.table.to_check:
        info.restore_class(info)
    _store(node, FLAT_FORM_NAME, info.unfinished)
    try:
        # Without a new reference to the node, no value can contain it, unless its `__new__` stored one.
        references = 0 if info.has_own_new else getrefcount(node)
        returned = init(node, *args, **kwargs)
        is_referenced = getrefcount(node) > references
        _seal(node, info, is_referenced=is_referenced)
    except BaseException as error:
        mark_failed(node, error)
        note((_call_of_inherited_init, _arguments_for_object), error, node)
        raise
    if info.checks or info.table.to_check:
        check(node)
    return returned


def _call_of_inherited_init(error: BaseException, node: Any) -> str | None:
    """Type checkers take the fields for parameters, but an inherited `__init__` has its own."""
    cls, writer = type(node), type(node).__init__.__qualname__
    is_from_call = type(error) is TypeError and len(_frames(error)) == 1
    if not is_from_call or writer == f"{cls.__qualname__}.__init__":
        return None
    return (
        f"{cls.__qualname__} inherits {writer}, so its fields are not parameters. Type checkers expect them to be, "
        f"unless you write class {cls.__name__}(..., init=False)."
    )


def _arguments_for_object(error: BaseException, node: Any) -> str | None:
    """`super().__init__(x)` assigns nothing if no class after it has an `__init__`."""
    if type(error) is not TypeError or not str(error).startswith("object.__init__() takes exactly one argument"):
        return None
    code, caller = _frames(error)[-1].f_code, _frames(error)[-1].f_locals
    if not code.co_varnames or caller.get(code.co_varnames[0]) is not node:  # the `__init__` of another object
        return None
    cls: Any = type(node)
    name = next(iter(info_of(cls).by_name), "x")
    fix = f"Assign them in {code.co_qualname}: self.{name} = ..."
    if cls.__init__.__qualname__ != f"{cls.__qualname__}.__init__":
        fix = f"Write an __init__ in {cls.__qualname__} that assigns them: self.{name} = ..."
    return (
        f"{code.co_qualname} called super().__init__(...) with arguments, but no other class has an __init__, and "
        f"neither Module nor object assigns fields. {fix}"
    )


def _frames(error: BaseException) -> list[types.FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def assign(node: Any, values: Mapping[str, Any], post_init: Sequence[Any] | None) -> None:
    """Assign the fields from a generated `__init__` that has to do more than store the flat form."""
    for name, value in values.items():
        set_attribute(node, name, value)
    if post_init is not None:
        run_post_init(node, post_init)


def _seal(node: Any, info: NodeInfo, *, is_referenced: bool, before: Statics | None = None) -> None:
    """Check the assigned values and store the flat form; with the statics of `before` if all their values are kept."""
    pending, table = node.__dict__, info.table
    if not info.by_name.keys() <= pending.keys() or len(pending) > len(info.fields) + (FLAT_FORM_NAME in pending):
        _complete(info, pending)
    children = tuple([pending[name] for name in table.children])
    if is_referenced:
        for name, child in zip(table.children, children, strict=True):
            if _contains(child, node):
                raise NodeInitError(
                    f"{info.cls.__qualname__}.{name} is the node itself, one of its methods, or a function that "
                    f"captured it, so the node would contain itself. Write a method, and look it up where you call it."
                )
    for slot in info.slots:
        if getattr(node, slot, MISSING) is not MISSING:
            cls = info.cls.__qualname__
            raise NodeInitError(
                f"{cls}.{slot} was assigned, but it is a slot of a base class, not a field: flattening would lose it. "
                f"Declare it in {cls} ({slot}: ...)."
            )
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
    missing = [name for name in info.by_name if name not in pending]
    # Values of a cached_property were computed from an unfinished node: drop them.
    others = pending.keys() - {*info.by_name, FLAT_FORM_NAME}
    undeclared = [name for name in pending if name in others and not is_cached_property(info.cls, name)]
    cls = info.cls.__qualname__
    method = f"{cls}.__post_init__" if info.runs_post_init else info.cls.__init__.__qualname__
    problems = [f"did not set {', '.join(missing)}"] if missing else []
    fixes = [f"Set every field in {method.rpartition('.')[2]}."] if missing else []
    if missing and method.rpartition(".")[0] != cls:
        method += f", which {cls} inherits,"
        class_line = f"class {info.cls.__name__}(..., init=False)"
        fixes = [f"Write an __init__ in {cls}. Or declare defaults and, for type checkers, write {class_line}."]
    if undeclared:
        not_fields = "which is not a field" if len(undeclared) == 1 else "which are not fields"
        problems.append(f"set {with_close_matches(undeclared, info.by_name)}, {not_fields}")
        fixes.append(f"Declare new fields in the class body ({undeclared[0]}: ...).")
    if problems:
        raise NodeInitError(f"{method} {', and '.join(problems)}. {' '.join(fixes)}")


def check(node: Any, *, is_copy: bool = False) -> None:
    """Check the children of a new node, or of a changed copy, and run every `__check_init__`, bases first."""
    info: NodeInfo = type(node).__node_info__  # bypasses a user's `__getattr__`
    try:
        if info.table.to_check:
            info.restore_class(info)
            check_fields(node)
        for own_check in info.checks:
            reject_returned(own_check(node), info.cls, "__check_init__", "Raise an error for an invalid instance")
    except BaseException as error:
        if is_copy:
            note((_copy_looks_like_spec,), error, node)
        mark_failed(node, error)
        raise


def _copy_looks_like_spec(_: BaseException, node: Any) -> str | None:
    """Checks are for arrays, and fail for a spec that `replace` or `at` filled with settings."""
    children, _ = flat_form(node)
    for field, child in zip(info_of(node).children, children, strict=True):
        annotation = annotation_text(field.type, type(node))
        if type(child) in _SETTINGS and "rray" in annotation and not (child is None and "None" in annotation):
            return (
                f"{type(node).__qualname__}.{field.name} = {child!r} is not an array. For a spec, such as in_axes or a "
                f"mask, use treewright.spec_like(node, ...), which runs no checks."
            )
    return None


def reject_returned(value: object, cls: type[Any], hook: str, instead: str) -> None:
    """Raise if a hook returned a value, as Python does for `__init__`: it would be lost."""
    if value is not None:
        raise TypeError(f"{cls.__qualname__}.{hook}() returned a value, which is ignored. {instead} instead.")


def run_post_init(node: Any, variables: Sequence[Any]) -> None:
    """Run the `__post_init__` of a node, whose fields can be assigned, with the values of its `InitVar`s."""
    reject_returned(node.__post_init__(*variables), type(node), "__post_init__", "Assign fields")


def mark_failed(node: Any, error: BaseException) -> None:
    """Empty a node whose `__init__` raised, so that every use reports the error."""
    node.__dict__.clear()
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  a user's `__str__`, which must not replace the error
        message = "..."
    why = f"its __init__ raised {type(error).__name__}({message}), so it has no fields to use"
    _store(node, FLAT_FORM_NAME, Unfinished(type(node), why))


# Changed copies


def with_fields(node: Any, changes: Mapping[str, Any]) -> Any:
    """A copy with different values in some fields. Converters and checks run, but no constructor."""
    info, (children, statics) = info_of(node), flat_form(node)
    if not changes.keys() <= info.by_name.keys():
        raise _unknown_fields(info, changes, info.by_name)
    new_children, new_statics = list(children), list(statics.values)
    for name, value in changes.items():
        field = info.by_name[name]
        (new_statics if field.is_static else new_children)[field.index] = field.convert(value, info.cls)
    if any(map(operator.is_not, new_statics, statics.values)):
        statics = info.table.intern(tuple(new_statics))
    copy = from_flat_form(type(node), (tuple(new_children), statics))
    if changes and info.checks:
        check(copy, is_copy=True)
    return copy


def with_post_init(node: Any, changes: dict[str, Any]) -> Any:
    """A copy with different values in some fields, for which `__post_init__` runs again.

    `dataclasses.replace` also runs it, and all spellings of `replace` must agree.
    """
    info, pair = info_of(node), flat_form(node)
    names = {**info.by_name, **info.init_vars}.keys()
    if not changes.keys() <= names:
        raise _unknown_fields(info, changes, names)
    for name, default in info.init_vars.items():
        if changes.get(name, default) is MISSING:
            raise TypeError(
                f"{info.cls.__qualname__}.__post_init__ needs {name}, an InitVar that instances do not store. Pass it: "
                f"replace(node, {name}=..., ...). treewright.at() and edit() change fields without __post_init__."
            )
    variables = [changes.pop(name, default) for name, default in info.init_vars.items()]

    copy = _new(type(node))
    _store(copy, FLAT_FORM_NAME, info.unfinished)
    try:
        _derive(copy, info, pair, changes, variables)
        _seal(copy, info, is_referenced=True, before=pair[1])
    except BaseException as error:
        mark_failed(copy, error)
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
            raise TypeError(
                f"{info.cls.__qualname__}.{name} is derived: __post_init__ assigned it again, so the value passed "
                f"to replace() would be lost. Replace the fields that it is derived from, or use treewright.at("
                f"node, lambda node: node.{name}).set(...) to change only this field, without __post_init__."
            )


def _unknown_fields(info: NodeInfo, changes: Iterable[str], names: Collection[str]) -> TypeError:
    wrong = [name for name in changes if name not in names]
    return TypeError(
        f"{info.cls.__qualname__} has no field {with_close_matches(wrong, names)}. "
        f"Its fields: {', '.join(names) or 'none'}.{earlier_class_hint(info.cls)}"
    )


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
        raise TypeError(
            f"replace() needs an instance of a Module or of a class with @pytree_dataclass, "
            f"got {with_article(class_name(node))}."
        )
    for name, value in changes.items():
        if value is None and type(getattr(node, name, None)) is list:
            warn_user(
                f"replace() stores None in {type(node).__qualname__}.{name}, which is a list. append() and other "
                f"methods that change a list return None. Pass a new list, [*old, new], or store None with "
                f"treewright.at(node, '.{name}').set(None).",
                ChildWarning,
            )
    make: Any = with_post_init if changes and info_of(node).runs_post_init else with_fields
    return make(node, changes)
