"""The steps from a class as a user wrote it to a registered node class, one list for every way that leads there."""

import abc
import contextlib
import dataclasses
import functools
import inspect
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import typing_extensions

from treewright._core import dunders
from treewright._core.annotations import own_annotations, signature_of
from treewright._core.foreign import (
    is_of_others,
    leave_to_others,
    refuse_builtin_base,
    refuse_registered,
    restore_body,
    written_by_dataclasses,
)
from treewright._core.functions import class_attribute, class_of, kept_in_pickles
from treewright._core.init import make_init, pairing
from treewright._core.instance import ChildView, StaticView, build, register, replaced, with_close_matches
from treewright._core.others import register_for_export, register_node_for_flax
from treewright._core.refusals import of_mutable_default, refuse_annotations, refuse_class_body, warn_of_idle_post_init
from treewright._core.spec import MISSING, NodeSpec, Options, node_spec
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

Body = Mapping[str, tuple[Any, Any]]

# What a class keeps when it goes back to what it was before.
_MANAGED = frozenset(
    {"__dict__", "__weakref__", "__node_registered__", "__node_exported__", "__abstractmethods__", "_abc_impl"}
)
# Never changed here, but by `dataclasses.make_dataclass` between the making of a class and its decorator: from 3.12 on
# the module, from 3.14 on the annotations too.
_OTHERS = frozenset({"__module__", "__annotate_func__", "__annotate__", "__annotations__", "__annotations_cache__"})
# `typing.Generic` and `typing.Protocol` pass on to `object` what they get, which takes nothing.
_PYTHONS = frozenset({object.__module__, typing.__name__})
# They give each protocol an `__init__` that only looks for the next one.
_PLACEHOLDERS = frozenset({typing.__name__, typing_extensions.__name__})


def make_node_class(cls: type[Any], options: Options, way: Way) -> None:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used."""
    use_bases(cls)
    if "__node_registered__" not in vars(cls):
        refuse_registered(cls)
        refuse_builtin_base(cls)
    options = restore_body(cls, options)
    # The class in the MRO that has the `__init__` which Python runs, and the function.
    inits = (found for found in _inits_of(cls) if getattr(found[1], "__module__", None) not in _PLACEHOLDERS)
    writer, init = next(inits)
    has_own_init = _has_own_init(cls, way, writer, init)
    own = own_annotations(cls)
    refuse_class_body(cls, own, way.reserved, has_own_init=has_own_init)
    _read_fields(cls, options, own)
    _drop_overridden(cls, own)
    spec = node_spec(cls, options, OwnSpec, has_own_init=has_own_init)
    refuse_annotations(spec, own)
    cls.__node_spec__ = spec
    cls.__node_fields__ = spec.by_name
    warn_of_idle_post_init(spec, init)
    _install_views(spec)
    final_init = _init_of(spec, writer, init)
    _install_comparison(spec, way)
    _install(cls, way)
    if "replace" not in cls.__dataclass_fields__ and class_attribute(cls, "replace") is None:
        cls.replace = replaced
    _enforce_abstract_methods(cls)
    registration = register_once(cls)
    if final_init is not None:  # only now: until JAX knows the class, another thread that makes an instance has to wait
        cls.__init__ = cast("Any", final_init)
    if cls.__doc__ is None:
        cls.__doc__ = cast("Any", _Later(spec))
    elif any(field.doc is not None for field in spec.fields):
        cls.__doc__ = _with_docs(cls.__doc__, spec)
    if own:  # without, it may be a class that cloudpickle is still to give its fields
        registration.flatten_with_keys.__code__ = pairing(spec.keys)


def use_bases(cls: type[Any]) -> None:
    """Make nodes of those that wait for their first use: fields come from there."""
    for base in reversed(cls.__mro__[1:]):
        getattr(base, "__node_spec__", None)


def _has_own_init(cls: type[Any], way: Way, writer: type[Any], init: Callable[..., None]) -> bool:
    """Whether the class keeps an `__init__` that a user wrote: in its body, or in the base where Python finds one."""
    if writer is cls or not way.inherits:
        return writer is cls and not written_by_dataclasses(init)
    spec = vars(writer).get("__node_spec__")
    if isinstance(spec, NodeSpec):
        return spec.has_own_init
    return writer is not object and not written_by_dataclasses(init)


def _inits_of(cls: type[Any]) -> Iterator[tuple[type[Any], Callable[..., None]]]:
    return ((base, init) for base in cls.__mro__ for init in written(base, "__init__"))


def _read_fields(cls: type[Any], options: Options, own: Iterable[str]) -> None:
    """Let the standard library read the fields; what it would generate is ours, or is not needed."""
    for name in own:
        inherited = class_attribute(cls, name)
        if name not in vars(cls) and not isinstance(inherited, ChildView) and hasattr(class_of(inherited), "__get__"):
            # A field in place of an inherited property or method. Else dataclasses takes that for the default.
            setattr(cls, name, dataclasses.field())
    bases = [vars(base)["__dataclass_params__"] for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    all_frozen = all(base.frozen for base in bases)
    # Past the descriptor of Python 3.15, which would ask for the signature, and so for the first use of the class.
    doc = vars(cls).get("__doc__")
    cls.__doc__ = "spares dataclasses the work of making a text from a signature it does not know"
    ours = {*dunders.FROZEN, "__eq__", "__hash__", "__replace__"} - vars(cls).keys()
    try:
        dataclasses.dataclass(
            init=False,
            repr=False,
            eq=options.order and options.eq,  # which order asks for
            order=options.order,
            unsafe_hash=options.unsafe_hash,
            frozen=any(base.frozen for base in bases),
            match_args=options.match_args,
            kw_only=options.kw_only,
        )(cls)
    except ValueError as error:
        raise ValueError(of_mutable_default(cls, error)) from None
    finally:
        cls.__doc__ = doc
    for name in ours & vars(cls).keys():
        delattr(cls, name)
    params: Any = cls.__dataclass_params__
    params.init, params.repr, params.eq = options.init, options.repr, options.eq
    params.frozen = all_frozen  # False below a base that is not, or dataclasses would refuse the next subclass


def _drop_overridden(cls: type[Any], own: Mapping[str, Any]) -> None:
    """Forget the fields that the body of this class, or of a node class that it inherits, overrides by a value."""
    fields: dict[str, Any] = cls.__dataclass_fields__
    for name in fields.keys() - own.keys():
        holders = [base for base in cls.__mro__ if name in vars(base)]
        if not holders or isinstance(vars(holders[0])[name], ChildView):
            continue
        is_node = holders[0] is cls or isinstance(vars(holders[0]).get("__node_spec__"), NodeSpec)
        hidden = (vars(base)[name] for base in holders if base in holders[0].__mro__[1:])
        if is_node and any(isinstance(value, ChildView) for value in hidden):
            del fields[name]


def _install_views(spec: NodeSpec) -> None:
    cls = spec.cls
    for field in spec.fields:
        inherited = class_attribute(cls, field.name)
        if not isinstance(inherited, ChildView) or inherited.field != field:
            setattr(cls, field.name, StaticView(field) if field.is_static else ChildView(field))


def _init_of(spec: NodeSpec, writer: type[Any], init: Callable[..., None]) -> Callable[..., None] | None:
    """A generated `__init__`, or one that a user wrote, made to seal the node when it returns; None to inherit it."""
    if spec.options.init and not spec.has_own_init:
        made = make_init(spec)
        if hasattr(init, "__globals__"):  # not object's, which says nothing
            made.__doc__ = init.__doc__
        return made
    # What a user wrote in a base that is a node has been made to seal.
    seals = writer is not spec.cls and spec.has_own_init and "__node_spec__" in vars(writer)
    inherits = writer is object or (seals and next(_inits_of(spec.cls))[1] is init)
    return None if inherits else _sealing(init)


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
    cls, body, options = spec.cls, dict(vars(spec.cls)), spec.options
    asked = (options.eq, options.eq or options.unsafe_hash, options.repr)
    for (name, ours), wanted in zip(dunders.COMPARISON.items(), asked, strict=True):
        # Beside an `__eq__`, Python puts `__hash__ = None` into the body by itself, and that says nothing.
        unsaid = name == "__hash__" and "__eq__" in body and body.get(name, name) is None
        if name in body and not unsaid:
            continue
        held, pythons = class_attribute(cls, name), getattr(object, name)
        generated = held is ours or held is pythons or _is_generated(cls, name)
        method = ours if wanted else pythons
        if held is not method and (generated or (wanted and (unsaid or not way.inherits))):
            setattr(cls, name, method)


def _is_generated(cls: type[Any], name: str) -> bool:
    """Whether a class has a method that `dataclasses` generated for a base."""
    writer = next(base for base in cls.__mro__ if name in vars(base))
    is_node = isinstance(vars(writer).get("__node_spec__"), NodeSpec)
    return "__dataclass_params__" in vars(writer) and not is_node


def _install(cls: type[Any], way: Way) -> None:
    """The other methods of a node, over those that `dataclasses` generated for a base."""
    body = dict(vars(cls))
    for name, method in _METHODS.items():
        if (
            name not in body
            and class_attribute(cls, name) is not method
            and (name in way.methods or _is_generated(cls, name))
        ):
            setattr(cls, name, method)


def _enforce_abstract_methods(cls: type[Any]) -> None:
    """As `abc.ABC` does: Python itself refuses the instance, whatever the metaclass of its class."""
    inherited = any(getattr(base, "__abstractmethods__", ()) for base in cls.__bases__)
    if inherited or any(getattr(value, "__isabstractmethod__", False) for value in vars(cls).values()):
        cls.__abstractmethods__ = cast("Any", frozenset())  # which the next line fills
    abc.update_abstractmethods(cls)


class _Later:
    """A docstring with the signature, as dataclasses write it; made when somebody looks, as theirs from 3.15 on is."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def __get__(self, instance: object, cls: type[Any]) -> str:
        try:
            signature = str(signature_of(self.spec.cls)).replace(" -> None", "")
        except (TypeError, ValueError):  # a metaclass with a __call__ that has no signature
            signature = ""
        self.spec.cls.__doc__ = text = _with_docs(self.spec.cls.__name__ + signature, self.spec)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.__get__(None, self.spec.cls),))


def _with_docs(text: str, spec: NodeSpec) -> str:
    """With a section for the fields, as tools that make references read it."""
    documented = [(field.name, field.doc) for field in spec.fields if field.doc is not None]
    lines = [f"    {name}: {inspect.cleandoc(doc)}".replace("\n", "\n        ") for name, doc in documented]
    return "\n".join([inspect.cleandoc(text), "", "Attributes:", *lines]) if documented else text


@kept_in_pickles
def register_once(cls: type[Any]) -> "Registration":
    """Tell JAX of the class, unless it has been told."""
    if "__node_registered__" not in vars(cls):
        registration = Registration(cls, register(cls))
        if "__node_exported__" not in vars(cls):
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
    """Refuse keywords of a class statement that the bases behind `after` do not take."""
    behind = cls.__mro__[cls.__mro__.index(after) + 1 :]
    takers = [base for base in behind if "__init_subclass__" in vars(base) and base.__module__ not in _PYTHONS]
    if keywords and not takers:
        wrong = ", ".join(with_close_matches(keywords, Options.__match_args__))
        raise NodeDefinitionError(
            f"{cls.__qualname__} is given {wrong} in its class statement, and no base takes that. {cure}"
        )


def undo(cls: type[Any], before: Body) -> None:
    """Bring the attributes of a class back to what they were; what JAX knows of it holds for any fields."""
    kept = _MANAGED | _OTHERS
    for name in vars(cls).keys() - before.keys() - kept:
        delattr(cls, name)
    for name, (value, kw_only) in before.items():
        if name not in kept and vars(cls).get(name) is not value:
            setattr(cls, name, value)
        if isinstance(value, dataclasses.Field):
            value.kw_only = kw_only


# Subclasses of a decorated class, without the decorator


_MAKING = threading.RLock()  # two threads may make the first instance of a class at one time
_ORDERING = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
_ON_FIRST_USE = ("__init__", "__post_init__", "__dataclass_fields__", "__signature__")


class OwnSpec(NodeSpec):
    """The spec in its class. A subclass that inherits it has its own when it is asked for it: see `first_use`."""

    __slots__ = ()

    def __get__(self, node: Any, owner: type[Any]) -> NodeSpec:
        # Another class than its own holds it where IPython's autoreload has written it there.
        return self if owner is self.cls or vars(owner).get("__node_spec__") is self else first_use(owner)


class NoSpec:
    """In place of a spec, in `Module` and in a subclass of a node that another library has registered."""

    def __init__(self, cls: type[Any] | None) -> None:
        self.cls = cls

    def __get__(self, node: Any, owner: type[Any]) -> NodeSpec:
        if self.cls is not owner and vars(owner).get("__node_spec__") is not self:
            return first_use(owner)
        raise AttributeError(f"{owner.__qualname__} is not a node")


def await_first_use(cls: type[Any]) -> bool:
    """Leave a class as Python made it, so that a decorator or a registration of others may follow, until it is used.

    False for one that is a node, or waits already. An instance is made by `__init__`, which finds the hook;
    `dataclasses`, which is about to write an `__init__`, asks for `__post_init__` first. The name for `jax.export` is
    taken at once: a program may be read before an instance is.
    """
    if {"__node_spec__", "__node_exported__"} & vars(cls).keys():
        return False
    register_for_export(cls)
    cls.__node_exported__ = True
    _enforce_abstract_methods(cls)
    _hook(cls)
    return True


def await_first_use_of_subclasses(cls: type[Any]) -> None:
    """The same for what subclasses a class has by the time that it becomes a node: JAX takes them for leaves."""
    for subclass in type.__subclasses__(cls):
        if await_first_use(subclass):
            await_first_use_of_subclasses(subclass)


def _hook(cls: type[Any]) -> None:
    if not isinstance(vars(cls).get("__new__"), FirstInstance):
        for name in _ON_FIRST_USE:
            setattr(cls, name, FirstUse(name, *written(cls, name)))


def await_no_more(cls: type[Any], *, but: str = "") -> None:
    """Take the hooks out of a class, but for one of them."""
    for name in _ON_FIRST_USE:
        hook = vars(cls).get(name)
        if isinstance(hook, FirstUse) and name != but:
            delattr(cls, name)
            for value in hook.written:
                setattr(cls, name, value)


def written(cls: type[Any], name: str) -> tuple[Any, ...]:
    """What the body of a class has under a name, if it has anything, also where a hook stands in its place."""
    held = vars(cls).get(name, MISSING)
    return held.written if isinstance(held, FirstUse) else () if held is MISSING else (held,)


def first_use(cls: type[Any]) -> NodeSpec:
    """The spec of a class that is used for the first time: now it becomes a node, unless it is another library's.

    Raises:
        AttributeError: If another library has registered it.
        NodeDefinitionError: If it can't be a node. It is as it was, and says so again the next time.
    """
    with _MAKING:
        use_bases(cls)
        if "__node_spec__" not in vars(cls):
            await_no_more(cls, but="__init__")  # which keeps other threads waiting until the class is made
            _settle(cls)
        await_no_more(cls)
    spec: NodeSpec = cls.__node_spec__  # its own now
    return spec


def _settle(cls: type[Any]) -> None:
    if "__node_registered__" not in vars(cls) and is_of_others(cls):
        await_no_more(cls)
        leave_registered(cls)
        return
    specs = (vars(base).get("__node_spec__") for base in cls.__mro__[1:])  # past what would make nodes of them
    options = next((spec.options for spec in specs if isinstance(spec, NodeSpec)), Options())
    before = body_of(cls)
    options = dataclasses.replace(  # but for what would overwrite methods in its body
        options,
        order=options.order and _ORDERING.isdisjoint(before),
        unsafe_hash=options.unsafe_hash and "__hash__" not in before,
    )
    try:
        make_node_class(cls, options, UNDECORATED)
    except (TypeError, ValueError) as error:
        undo(cls, before)
        _hook(cls)
        raise NodeDefinitionError(f"{cls.__qualname__} is not a node yet: {error}") from error
    cls.__before_node__ = before


def leave_registered(cls: type[Any]) -> None:
    """Let a subclass of a node be what another library has registered it as."""
    leave_to_others(cls)
    cls.__node_spec__ = NoSpec(cls)


def body_of(cls: type[Any]) -> Body:
    """The attributes of a class as they stand, each with its `kw_only`, which dataclasses writes into a field."""
    return {
        name: (value, value.kw_only if isinstance(value, dataclasses.Field) else None)
        for name, held in vars(cls).items()
        for value in (held.written if isinstance(held, FirstUse) else (held,))
    }


class FirstUse:
    """Stands in a class for an attribute that its first use makes, or that the body wrote."""

    def __init__(self, name: str, *written: Any) -> None:
        self.name = name
        self.written = written

    def __get__(self, node: Any, owner: type[Any]) -> Any:
        frame: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  public, by its docs
        asks = str(frame.f_globals.get("__name__"))
        while frame.f_globals.get("__name__") == dataclasses.__name__:
            frame = frame.f_back
        if self.name == "__post_init__" and asks == dataclasses.__name__:
            _expect_instances(self._holder(owner))
        elif (
            self.name == "__post_init__"
            or (self.name == "__init__" and node is None and self.written)
            or str(frame.f_globals.get("__name__")).startswith("jax.")  # register_dataclass: it may be left to others
        ):
            return self._as_written(node, owner)
        else:
            with contextlib.suppress(AttributeError):  # another library's
                first_use(owner)
        return getattr(owner if node is None else node, self.name)

    def _holder(self, owner: type[Any]) -> type[Any]:
        return next(base for base in owner.__mro__ if vars(base).get(self.name) is self)

    def _as_written(self, node: Any, owner: type[Any]) -> Any:
        for written in self.written:
            return written if node is None else written.__get__(node, owner)
        return getattr(cast("Any", super)(self._holder(owner), cast("Any", owner if node is None else node)), self.name)


def _expect_instances(cls: type[Any]) -> None:
    """Make way for the `__init__` that `dataclasses` writes next, for itself or for the library that called it."""
    await_no_more(cls)
    cls.__new__ = cast("Any", FirstInstance(vars(cls).get("__new__")))
    cls.__signature__ = SignatureOfInit()


class FirstInstance:
    """The `__new__` of a class that `dataclasses` has written an `__init__` for.

    It stays: a class that once had a `__new__` can't go back to that of `object`, which would refuse arguments.
    """

    def __init__(self, written: Any) -> None:
        self.written = written

    def __call__(self, cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        getattr(cls, "__node_spec__", None)
        found: list[Any] = [vars(base)["__new__"] for base in cls.__mro__ if "__new__" in vars(base)]
        new: Any = self.written or next(new for new in found if not isinstance(new, FirstInstance))
        return object.__new__(cls) if new is vars(object)["__new__"] else new(cls, *args, **kwargs)


class SignatureOfInit:
    """The signature of a class whose `__new__` takes anything."""

    def __get__(self, node: Any, owner: type[Any]) -> inspect.Signature:
        signature = signature_of(cast("Any", owner).__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])
