"""Node instances: storage, attribute access, construction, `replace`.

An instance holds exactly what `tree_flatten` returns, one attribute `_node = (children, statics)`. Until its `__init__`
has returned, `_node` holds an `Unfinished` instead and the values wait in the instance's `__dict__`.
"""

# The definition of `replace` for mypy is not assignable to the one for pyright.
# pyright: reportAssignmentType=false
import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from treewright._core.fields import MISSING, MYPY, FieldSpec, NodeSpec, spec_of
from treewright._core.functions import class_attribute, is_cached_property, of_earlier_class
from treewright._core.misfits import check_children, contains_itself
from treewright._core.statics import Statics
from treewright._core.text import did_you_mean, with_close_matches
from treewright.errors import NodeDefinitionError, NodeInitError, UnfinishedNodeError

PAIR = "_node"
Pair = tuple[tuple[Any, ...], Statics]

_new: Any = object.__new__
_read = object.__getattribute__
_store = object.__setattr__


class Unfinished:
    """What `_node` holds before a node is sealed, and for good where `__init__` raised. JAX's errors print it."""

    __slots__ = ("cls", "takes_values", "why")

    def __init__(
        self,
        cls: type[Any],
        why: str = "its __init__ has not returned, so it can't be flattened yet",
        *,
        takes_values: bool = True,
    ) -> None:
        self.cls = cls
        self.why = why
        self.takes_values = takes_values

    def values_of(self, node: Any) -> dict[str, Any]:
        """The values that wait in the node that holds this, to be read, assigned to and deleted.

        Raises:
            UnfinishedNodeError: If its `__init__` raised.
        """
        if not self.takes_values:
            raise self.error()
        values: dict[str, Any] = node.__dict__
        return values

    def error(self) -> UnfinishedNodeError:
        """The error for a use that this node can't stand."""
        return UnfinishedNodeError(f"This is {self}.")

    def __repr__(self) -> str:
        return f"an unfinished {self.cls.__qualname__}: {self.why}"


def stored(node: Any) -> Pair | Unfinished:
    """What `_node` holds, past any `__getattr__` of the user's."""
    try:
        form: Pair | Unfinished = _read(node, PAIR)
    except AttributeError:
        refuse_undecorated(type(node))
        return Unfinished(type(node), "no __init__ of a node has run, so it has no values")
    return form


def flat_form(node: Any) -> Pair:
    """`(children, aux_data)`: the values of the child fields in order, and the one object of all static fields.

    Raises:
        UnfinishedNodeError: If the node's `__init__` has not returned.
    """
    form = stored(node)
    if isinstance(form, Unfinished):
        raise form.error()
    return form


def from_flat_form(cls: type[Any], pair: Pair) -> Any:
    """A node of this class that holds `pair`; no code of the user's runs."""
    node: Any = _new(cls)
    _store(node, PAIR, pair)
    return node


def is_node(value: object) -> bool:
    """Whether a value is an instance of a node class."""
    return hasattr(type(value), "__node_spec__")


def refuse_undecorated(cls: type[Any]) -> None:
    """Refuse the first instance of a subclass of a node class that is no node class itself."""
    if "__node_spec__" in vars(cls):
        return
    name, cure = "is not decorated itself", f"Put @pytree_dataclass above class {cls.__name__}"
    if class_attribute(cls, PAIR) is not None:  # a Module, which makes a node of each subclass
        name = "was not made a node"
        cure = "Let each __init_subclass__ of its bases call super().__init_subclass__()"
    raise NodeDefinitionError(
        f"{cls.__qualname__} is a subclass of the node class {spec_of(cls).cls.__qualname__} and {name}, so its own "
        f"fields would be lost, and JAX would take its instances for leaves. {cure}."
    )


# Attributes


@dataclasses.dataclass(slots=True, eq=False)
class FieldView:
    """The attribute of a field, which finds its value by name: in a node of any class of that name.

    On the class, a field is this view. Tools that make a class again, such as IPython's autoreload, write it into the
    old class, or make an instance of the old class one of the new.
    """

    field: FieldSpec
    index: int
    # To `dataclasses`, which gives it a name, it is a field: as a default it would be lost, and the class with it.
    __class__ = property(lambda _: dataclasses.Field)  # pyright: ignore[reportIncompatibleMethodOverride]  # of object

    @property
    def name(self) -> str:
        """That of the field."""
        return self.field.name

    @name.setter
    def name(self, name: str) -> None:
        raise NodeDefinitionError(
            f"{name} is a field of a node class, and a node class is a dataclass already. Drop @dataclass, or put "
            f"@pytree_dataclass in its place above a subclass of a decorated class."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.field, self.index))

    def __get__(self, node: Any, owner: type | None = None) -> Any:
        if node is None:
            return FieldView(self.field, self.index)
        form, name = stored(node), self.field.name
        if isinstance(form, Unfinished):
            value = form.values_of(node).get(name, self.field.default)
            if value is MISSING:
                raise UnfinishedNodeError(
                    f"{type(node).__qualname__}.{name} has no value yet: __init__ must assign it before it is read."
                )
            return value
        children, statics = form
        values = dict(zip((*statics.table.children, *statics.names), (*children, *statics.values), strict=True))
        if name not in values:
            raise AttributeError(
                f"This {type(node).__qualname__} has no field {name}: it was made by an earlier class of that name, "
                f"with the fields {', '.join(values) or 'none'}. Make the object again."
            )
        return values[name]

    def __set__(self, node: Any, value: Any) -> None:
        set_attribute(node, self.field.name, value)

    def __delete__(self, node: Any) -> None:
        delete_attribute(node, self.field.name)


class ChildView(FieldView):
    """The attribute of a child, which reads it by its index: a third of the time (benchmarks: node)."""

    __slots__ = ()

    def __get__(self, node: Any, owner: type | None = None) -> Any:
        try:
            return node._node[0][self.index]
        except (TypeError, AttributeError):  # on the class, or unfinished
            return FieldView.__get__(self, node, owner)


class StaticView(FieldView):
    """The attribute of a static, which reads it by its index."""

    __slots__ = ()

    def __get__(self, node: Any, owner: type | None = None) -> Any:
        try:
            return node._node[1].values[self.index]
        except (TypeError, AttributeError):  # on the class, or unfinished
            return FieldView.__get__(self, node, owner)


def set_attribute(node: Any, name: str, value: Any) -> None:
    """Only while `__init__` runs; afterwards a node is frozen. The value of a field waits in `__dict__`, converted."""
    try:
        form = _read(node, PAIR)
    except AttributeError:
        form = stored(node)
    if isinstance(form, tuple):
        raise frozen_error(node, name, "assign to")
    # No call for each `self.x = x` in an `__init__` (benchmarks: node, own __init__).
    values = node.__dict__ if type(form) is Unfinished and form.takes_values else form.values_of(node)
    field: FieldSpec | None = node.__node_fields__.get(name)
    if field is None:
        _store(node, name, value)
    else:
        values[name] = value if field.converter is None else field.converter(value)


def delete_attribute(node: Any, name: str) -> None:
    """Only while `__init__` runs; afterwards a node is frozen."""
    form = stored(node)
    if isinstance(form, tuple):
        raise frozen_error(node, name, "delete")
    if form.values_of(node).pop(name, MISSING) is MISSING:
        raise UnfinishedNodeError(f"{type(node).__qualname__}.{name} has no value to delete yet.")


def frozen_error(node: Any, name: str, verb: str) -> dataclasses.FrozenInstanceError:
    """The error for an assignment to, or a deletion of, an attribute of a sealed node."""
    cls, names = type(node), spec_of(type(node)).by_name
    cure = (
        f"treewright.replace(node, {name}=...) gives a changed copy, and `with treewright.edit(node) as draft:` takes "
        f"assignments"
    )
    if name not in names:
        hint = did_you_mean(name, names)
        cure = f"{cls.__qualname__} has no field of this name{hint}, and takes no other attributes after its __init__"
    return dataclasses.FrozenInstanceError(
        f"cannot {verb} field {name!r} of a {cls.__qualname__}, it is frozen: {cure}."
    )


# Construction


def sealing(init: Callable[..., None]) -> Callable[..., None]:
    """A user's `__init__`, after which the node is sealed."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return build(self, init, *args, **kwargs)  # Python itself refuses what is not None

    return __init__


def build(node: Any, init: Callable[..., object], /, *args: Any, **kwargs: Any) -> object:
    """Run an `__init__`; the outermost one seals the node when it returns and abandons it when it raises."""
    try:  # nothing is stored before the outermost one, and `getattr` says so in a third of the time of an exception
        form = _read(node, PAIR) if hasattr(type(node), "__getattr__") else getattr(node, PAIR, None)
    except AttributeError:
        form = None
    if isinstance(form, tuple):
        raise frozen_error(node, "__init__", "assign to")
    if form is not None:
        form.values_of(node)
        return init(node, *args, **kwargs)
    spec: NodeSpec = node.__node_spec__
    if spec.cls is not type(node):
        refuse_undecorated(type(node))
    _store(node, PAIR, spec.unfinished)
    try:
        returned = init(node, *args, **kwargs)
        _seal(node, spec)
    except BaseException as error:
        abandon(node, error)
        if kwargs and isinstance(error, TypeError) and getattr(error.__traceback__, "tb_next", None) is None:
            error.args = (f"{error}{_keywords_cure(str(error), spec, init, kwargs)}",)  # Python refused the arguments
        raise
    if spec.checks or spec.unseen:
        check(node)
    return returned


def _keywords_cure(said: str, spec: NodeSpec, init: Callable[..., object], kwargs: Mapping[str, Any]) -> str:
    """What to add to Python's error for keywords that an `__init__` does not take."""
    if spec.has_own_init and {field.name for field in spec.fields if field.init} <= kwargs.keys():
        return (
            f". dataclasses.replace gives a constructor all fields, and {spec.cls.__qualname__} has an __init__ of its "
            f"own, which takes others. treewright.replace(node, ...) and node.replace(...) run no __init__."
        )
    code: Any = getattr(init, "__code__", None)
    if code is None or "Did you mean" in said:  # from Python 3.13 on
        return ""
    parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    hints = (did_you_mean(name, parameters) for name in kwargs if name not in parameters)
    return next(filter(None, hints), "")


def assign(node: Any, values: Mapping[str, Any], post_init: Sequence[Any] | None) -> None:
    """What a generated `__init__` does when there is more to it than storing the pair."""
    waiting, fields = node.__dict__, node.__node_fields__
    for name, value in values.items():
        if name in fields and fields[name].converter is None:
            waiting[name] = value
        else:
            set_attribute(node, name, value)
    if post_init is not None:
        node.__post_init__(*post_init)


def _seal(node: Any, spec: NodeSpec) -> None:
    """Check what `__init__` assigned, and store the pair."""
    waiting, table = node.__dict__, spec.table
    if not spec.by_name.keys() <= waiting.keys() or len(waiting) > len(spec.fields) + (PAIR in waiting):
        _complete(spec, waiting)
    children = tuple([waiting[name] for name in table.children])
    for child in children:
        if child is node:  # JAX would not come back from it
            raise contains_itself(node, next(name for name, value in waiting.items() if value is node))
    statics = table.find(tuple([waiting[name] for name in table.names]))
    waiting.clear()
    _store(node, PAIR, (children, statics))


def _complete(spec: NodeSpec, waiting: dict[str, Any]) -> None:
    """Fill in the defaults, and refuse fields without a value and names that are no fields."""
    for field in spec.fields:
        if field.name not in waiting and field.default is not MISSING:
            waiting[field.name] = field.convert(field.default)
        elif field.name not in waiting and field.default_factory is not MISSING:
            waiting[field.name] = field.convert(field.default_factory())
    missing = [name for name in spec.by_name if name not in waiting]
    # What a cached_property computed of the half-built node is dropped, to be computed again.
    others = waiting.keys() - {*spec.by_name, PAIR}
    undeclared = [name for name in waiting if name in others and not is_cached_property(spec.cls, name)]
    parts = [f"gave no value to {', '.join(missing)}"] if missing else []
    if undeclared:
        parts.append(f"assigned to {with_close_matches(undeclared, spec.by_name)}, which it does not declare")
    if parts:
        raise NodeInitError(
            f"{spec.cls.__qualname__}.__init__ {' and '.join(parts)}. Assign every field in __init__, and declare each "
            f"in the class body ({(undeclared or missing)[0]}: ...)."
        )


def check(node: Any) -> None:
    """Look at the children of a node that has just been stored, and run every `__check_init__`, bases first."""
    spec = spec_of(type(node))  # past what the node may pass on, as a generic alias does
    try:
        if spec.unseen:
            check_children(node)
        for own_check in spec.checks:
            if own_check(node) is not None:
                raise TypeError(
                    f"{spec.cls.__qualname__}.__check_init__() returned a value, which nobody reads. Let it raise an "
                    f"error for an instance that must not exist."
                )
    except BaseException as error:
        abandon(node, error)
        raise


def abandon(node: Any, error: BaseException) -> None:
    """Leave nothing of a node whose `__init__` raised but the word that it did."""
    node.__dict__.clear()
    why = f"its __init__ raised {type(error).__name__}({error}), so it has no fields to use"
    _store(node, PAIR, Unfinished(type(node), why, takes_values=False))


# Changed copies


def with_fields(node: Any, changes: Mapping[str, Any]) -> Any:
    """A copy with other values in some fields and all else as it was: converters and checks run, no constructor."""
    spec, (children, statics) = spec_of(node), flat_form(node)
    _refuse_unknown(spec, changes, spec.by_name)
    new_children, new_statics = list(children), list(statics.values)
    for name, value in changes.items():
        field = spec.by_name[name]
        (new_statics if field.is_static else new_children)[field.index] = field.convert(value)
    if any(map(operator.is_not, new_statics, statics.values)):
        statics = spec.table.find(tuple(new_statics))
    copy = from_flat_form(type(node), (tuple(new_children), statics))
    if changes and spec.checks:
        check(copy)
    return copy


def _with_post_init(node: Any, changes: dict[str, Any]) -> Any:
    """A copy of a node whose constructor runs `__post_init__`, which runs again, so that it derives from the changes.

    `dataclasses.replace` does that, which nothing here could change, and all spellings of one thing have to agree.
    """
    spec, pair = spec_of(node), flat_form(node)
    _refuse_unknown(spec, changes, (*spec.by_name, *spec.init_vars))
    for name, default in spec.init_vars.items():
        if changes.get(name, default) is MISSING:
            raise TypeError(
                f"{spec.cls.__qualname__}.__post_init__ takes {name}, an InitVar that no instance keeps. Give it: "
                f"replace(node, {name}=..., ...). treewright.at() and edit() change fields without __post_init__."
            )
    variables = [changes.pop(name, default) for name, default in spec.init_vars.items()]

    def derive(copy: Any) -> None:
        waiting: dict[str, Any] = copy.__dict__
        # What only `__post_init__` gives a value is left open for it, as in the constructor.
        waiting |= {field.name: field.value_in(pair) for field in spec.fields if not field.is_left_open}
        for name, value in changes.items():
            set_attribute(copy, name, value)
        given = {name: waiting[name] for name in changes if not spec.by_name[name].init}
        copy.__post_init__(*variables)
        for name, value in given.items():
            if waiting[name] is not value:
                raise TypeError(
                    f"{spec.cls.__qualname__}.{name} is derived: __post_init__ has assigned it again, so the value "
                    f"given to replace() would be lost. Replace what it is derived from; treewright.at(node, lambda "
                    f"node: node.{name}).set(...) changes it alone, without __post_init__."
                )

    copy = _new(type(node))
    build(copy, derive)
    # The same values are the same statics, though their key may have changed: optax's cosine schedule assigns to what
    # it has captured when it is first called.
    children, statics = flat_form(copy)
    if all(map(operator.is_, statics.values, pair[1].values)):
        return from_flat_form(type(node), (children, pair[1]))
    return copy


def _refuse_unknown(spec: NodeSpec, changes: Iterable[str], names: Collection[str]) -> None:
    wrong = [name for name in changes if name not in names]
    if wrong:
        raise TypeError(
            f"{spec.cls.__qualname__} has no field {with_close_matches(wrong, names)}. "
            f"Its fields: {', '.join(names) or 'none'}.{of_earlier_class(spec.cls)}"
        )


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class HasReplace(Protocol[P, R_co]):
    """What checkers give every dataclass from Python 3.13 on: a `__replace__` that takes its fields."""

    def __replace__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class ReplaceMethod(Protocol):
    """`replace` as a method, for checkers: it takes what `__replace__` takes, and gives the class of its node."""

    def __get__(self, node: HasReplace[P, Any], owner: type[T], /) -> Callable[P, T]: ...


if MYPY:
    # mypy knows this very function, and checks names and types of the fields on every Python version.
    from dataclasses import replace as replace  # type: ignore[unreachable, unused-ignore]  # noqa: PLC0414
elif TYPE_CHECKING and sys.version_info >= (3, 13):

    def replace(node: HasReplace[P, T], /, *args: P.args, **changes: P.kwargs) -> T: ...

else:

    def replace(node: T, /, **changes: Any) -> T:
        """A copy of `node` with some fields replaced; everything else is shared, not copied.

        Converters and `__check_init__` run, and so does `__post_init__` where the class has one and its constructor is
        the generated one: what it derives follows, as with `dataclasses.replace`. An `__init__` of your own does not
        run. To change a place and nothing else, whatever it is, use `treewright.at`. Changing a static changes the
        treedef, so jitted functions trace again.

        Args:
            node: An instance of a node class.
            **changes: New values by field name, statics and `init=False` fields among them; also what `__post_init__`
                takes as an `InitVar`, which it has to be given unless it has a default.

        Raises:
            TypeError: If a name is not a field; the message lists the close ones. If `__post_init__` assigns again what
                was given, or needs an `InitVar` that was not. Also if `node` is not a node.

        Examples:
            >>> @pytree_dataclass
            ... class Layer:
            ...     kernel: float
            ...     activation: str = static(default="relu")
            >>> replace(Layer(1.0), activation="gelu")
            Layer(kernel=1.0, activation='gelu')
        """
        if not is_node(node):
            raise TypeError(
                f"replace() takes an instance of a Module or of a class with @pytree_dataclass, "
                f"got {type(node).__name__!r}."
            )
        make: Any = _with_post_init if changes and spec_of(node).runs_post_init else with_fields
        copy: T = make(node, changes)
        return copy
