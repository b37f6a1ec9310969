"""The steps from a class as a user wrote it to a registered node class, one list for every way that leads there."""

import abc
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from treewright._nodes import dunders
from treewright._nodes.annotations import own_annotations, signature_of
from treewright._nodes.init import make_init, pairing
from treewright._nodes.node import ChildView, build, register, view, with_close_matches
from treewright._nodes.others import register_for_export, register_node_for_flax
from treewright._nodes.refusals import of_mutable_default, refuse_annotations, refuse_class_body
from treewright._nodes.spec import NodeSpec, Options, node_spec
from treewright._values.reach import class_attribute, class_of, kept_in_pickles
from treewright.errors import NodeDefinitionError


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """What differs between the ways to a node class.

    Attributes:
        inherits: Whether an `__init__`, `__eq__`, `__hash__` or `__repr__` that a user wrote in a base is kept, and not
            generated over.
        methods: What the class takes over besides, where its body does not write it.
        reserved: Names that no field may have, besides those that no node's field may have.
    """

    inherits: bool
    methods: Mapping[str, Any]
    reserved: frozenset[str] = frozenset()


_METHODS = types.MappingProxyType({**dunders.FROZEN, **dunders.OTHERS})
DECORATED = Way(inherits=False, methods=_METHODS)
UNDECORATED = Way(inherits=True, methods=_METHODS)  # a subclass of a decorated class, without the decorator
MODULE = Way(inherits=True, methods=types.MappingProxyType({}), reserved=frozenset({"replace"}))  # Module has them

# What a class keeps when it goes back to what it was before.
_MANAGED = frozenset({"__dict__", "__weakref__", "__node_registered__", "__abstractmethods__", "_abc_impl"})
# Never changed here, but by `dataclasses.make_dataclass` between the making of a class and its decorator: from 3.12 on
# the module, from 3.14 on the annotations too.
_OTHERS = frozenset({"__module__", "__annotate_func__", "__annotate__", "__annotations__", "__annotations_cache__"})
# `typing.Generic` and `typing.Protocol` pass on to `object` what they get, which takes nothing.
_PYTHONS = frozenset({object.__module__, typing.__name__})


def make_node_class(cls: type[Any], options: Options, way: Way) -> None:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used.

    Args:
        cls: The class, whose own annotations are its new fields.
        options: As `pytree_dataclass` takes them.
        way: How it became one.
    """
    refuse_class_body(cls, way.reserved)
    _read_fields(cls, options)
    spec = node_spec(cls, options, has_own_init=_has_own_init(cls, way))
    refuse_annotations(spec)
    cls.__node_spec__ = spec
    _install_views(spec)
    _install_init(spec)
    _install_comparison(spec, way)
    _install(cls, way.methods)
    abc.update_abstractmethods(cls)
    _document(spec)
    registration = register_once(cls)
    if own_annotations(cls):  # without, it may be a class that cloudpickle is still to give its fields
        registration.flatten_with_keys.__code__ = pairing(spec.keys)


def _has_own_init(cls: type[Any], way: Way) -> bool:
    inherited: NodeSpec | None = getattr(cls, "__node_spec__", None)  # of the nearest base that is a node
    return "__init__" in vars(cls) or (way.inherits and inherited is not None and inherited.has_own_init)


def _read_fields(cls: type[Any], options: Options) -> None:
    """Let the standard library read the fields; what it would generate is ours, or is not needed."""
    own = own_annotations(cls)
    for name in own:
        inherited = class_attribute(cls, name)
        if name not in vars(cls) and not isinstance(inherited, ChildView) and hasattr(class_of(inherited), "__get__"):
            # A field in place of an inherited property or method. Else dataclasses takes that for the default.
            setattr(cls, name, dataclasses.field())
    bases = [vars(base)["__dataclass_params__"] for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    all_frozen = all(base.frozen for base in bases)
    doc, cls.__doc__ = cls.__doc__, "spares dataclasses the work of making a text from a signature it does not know"
    ours = {name: vars(cls).get(name) for name in (*dunders.FROZEN, "__replace__")}
    try:
        dataclasses.dataclass(
            init=False,
            repr=False,
            eq=False,
            frozen=any(base.frozen for base in bases),
            match_args=options.match_args,
            kw_only=options.kw_only,
        )(cls)
    except ValueError as error:
        raise ValueError(of_mutable_default(cls, error)) from None
    finally:
        cls.__doc__ = doc
    for name, written in ours.items():
        if written is None and name in vars(cls):
            delattr(cls, name)
    params: Any = cls.__dataclass_params__
    params.init, params.repr, params.eq = options.init, options.repr, options.eq
    params.frozen = all_frozen  # False below a base that is not, or dataclasses would refuse the next subclass


def _install_views(spec: NodeSpec) -> None:
    cls = spec.cls
    for field in spec.fields:
        inherited = class_attribute(cls, field.name)
        if not isinstance(inherited, ChildView) or inherited.field != field:
            setattr(cls, field.name, view(field))


def _install_init(spec: NodeSpec) -> None:
    """Generate the `__init__`, or let one that a user wrote seal the node when it returns."""
    cls = spec.cls
    if "__init__" in vars(cls):
        cls.__init__ = _sealing(cls.__init__)
    elif not spec.has_own_init and spec.options.init:
        cls.__init__ = make_init(spec)
    elif not spec.has_own_init and cls.__init__ is not object.__init__:
        cls.__init__ = _sealing(cls.__init__)  # of a base that is not a node: it seals nothing


def _sealing(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        build(self, init, *args, **kwargs)

    return __init__


def _install_comparison(spec: NodeSpec, way: Way) -> None:
    """`__eq__`, `__hash__` and `__repr__`: what the body writes stays, the options decide on the rest.

    An option that is true puts ours in place, and one that is false puts Python's there. What a user wrote in a base
    stays too, but where a decorator generates over it, as `dataclasses` does.
    """
    cls, body = spec.cls, dict(vars(spec.cls))
    for name, ours in dunders.COMPARISON.items():
        wanted = spec.options.repr if name == "__repr__" else spec.options.eq
        # Beside an `__eq__`, Python puts `__hash__ = None` into the body by itself, and that says nothing.
        unsaid = name == "__hash__" and "__eq__" in body and body.get(name, name) is None
        if name in body and not unsaid:
            continue
        generated = _is_generated(cls, name, (ours, getattr(object, name)))
        method = ours if wanted else getattr(object, name)
        if (generated or (wanted and (unsaid or not way.inherits))) and class_attribute(cls, name) is not method:
            setattr(cls, name, method)


def _is_generated(cls: type[Any], name: str, methods: tuple[Any, ...]) -> bool:
    """Whether a class has one of these methods, or one that `dataclasses` generated for a base."""
    writer = next(base for base in cls.__mro__ if name in vars(base))
    by_dataclasses = "__dataclass_params__" in vars(writer) and "__node_spec__" not in vars(writer)
    return by_dataclasses or any(vars(writer)[name] is method for method in methods)


def _install(cls: type[Any], methods: Mapping[str, Any]) -> None:
    for name, method in methods.items():
        if name not in vars(cls):
            setattr(cls, name, method)


def _document(spec: NodeSpec) -> None:
    """A docstring with the signature, as dataclasses write it, for a class that has none; and what `doc=` says."""
    cls, documented = spec.cls, [(field.name, field.doc) for field in spec.fields if field.doc is not None]
    if sys.version_info >= (3, 15) and cls.__doc__ is None and not documented:
        cls.__doc__ = cast("Any", _Later())
    elif cls.__doc__ is None:
        cls.__doc__ = _with_docs(_from_signature(cls), documented)
    elif documented:
        cls.__doc__ = _with_docs(inspect.cleandoc(cls.__doc__), documented)


def _from_signature(cls: type[Any]) -> str:
    try:
        signature = str(signature_of(cls)).replace(" -> None", "")
    except (TypeError, ValueError):  # a metaclass with a __call__ that has no signature
        signature = ""
    return cls.__name__ + signature


def _with_docs(text: str, documented: Sequence[tuple[str, str]]) -> str:
    """With a section for the fields, as tools that make references read it."""
    lines = [f"    {name}: {inspect.cleandoc(doc)}".replace("\n", "\n        ") for name, doc in documented]
    return "\n".join([text, "", "Attributes:", *lines]) if documented else text


if sys.version_info >= (3, 15):

    class _Later:
        """A docstring that is made when somebody looks, as that of dataclasses: later names are found."""

        def __get__(self, instance: object, cls: type[Any]) -> str:
            text = cls.__doc__ = _from_signature(cls)
            return text


@kept_in_pickles
def register_once(cls: type[Any]) -> "Registration":
    """Tell JAX of the class, unless it has been told."""
    if "__node_registered__" not in vars(cls):
        registration = Registration(cls, register(cls))
        register_for_export(cls)
        register_node_for_flax(cls)
        cls.__node_registered__ = registration
    known: Registration = vars(cls)["__node_registered__"]
    return known


class Registration:
    """The mark of a class that JAX knows; where `cloudpickle` brings the class to a new process, it tells JAX there."""

    def __init__(self, cls: type[Any], flatten_with_keys: Any) -> None:
        self.cls = cls
        self.flatten_with_keys = flatten_with_keys

    def __reduce__(self) -> tuple[Any, ...]:
        return (register_once, (self.cls,))


def refuse_keywords(cls: type[Any], after: type[Any], keywords: Mapping[str, Any], cure: str) -> None:
    """Refuse keywords of a class statement that the bases behind `after` do not take.

    Raises:
        NodeDefinitionError: With the class, the names, the options that they may have meant, and the cure.
    """
    behind = cls.__mro__[cls.__mro__.index(after) + 1 :]
    takers = [base for base in behind if "__init_subclass__" in vars(base) and base.__module__ not in _PYTHONS]
    if keywords and not takers:
        wrong = ", ".join(with_close_matches(keywords, Options.__match_args__))
        raise NodeDefinitionError(
            f"{cls.__qualname__} is given {wrong} in its class statement, and no base takes that. {cure}"
        )


def undo(cls: type[Any], before: Mapping[str, Any]) -> None:
    """Bring the attributes of a class back to what they were; what JAX knows of it holds for any fields."""
    kept = _MANAGED | _OTHERS
    for name in vars(cls).keys() - before.keys() - kept:
        delattr(cls, name)
    for name, value in before.items():
        if name not in kept and vars(cls).get(name) is not value:
            setattr(cls, name, value)
