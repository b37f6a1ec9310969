"""From a class as the user wrote it to a registered node class: refuse, process, install, register, in that order."""

import abc
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from treewright._nodes import dunders
from treewright._nodes.annotations import own_annotations, signature_of
from treewright._nodes.init import make_init
from treewright._nodes.node import ChildView, build, register, view
from treewright._nodes.others import register_for_export, register_node_for_flax
from treewright._nodes.refusals import refuse_annotations, refuse_class_body
from treewright._nodes.spec import NodeSpec, Options, node_spec, spec_of
from treewright._values.reach import class_attribute, class_of

_MANAGED = frozenset({"__dict__", "__weakref__", "__node_registered__", "__abstractmethods__", "_abc_impl"})
# Never changed here, but by `dataclasses.make_dataclass` between the making of a class and its decorator: from 3.12 on
# the module, from 3.14 on the annotations too.
_OTHERS = frozenset({"__module__", "__annotate_func__", "__annotate__", "__annotations__", "__annotations_cache__"})


def define(
    cls: type[Any], options: Options, *, inherits_init: bool, reserved: frozenset[str] = frozenset()
) -> NodeSpec:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used.

    Args:
        cls: The class, whose own annotations are its new fields.
        options: As `pytree_dataclass` takes them.
        inherits_init: Whether a custom `__init__` of the nearest base that is a node is kept, instead of generating
            one over it.
        reserved: Names that no field may have, besides those that no node's field may have.
    """
    refuse_class_body(cls, reserved)
    own_init = "__init__" in vars(cls)
    _process(cls, options)
    inherited = inherits_init and _base_has_own_init(cls)
    spec = node_spec(cls, options, has_own_init=own_init or inherited)
    refuse_annotations(spec)
    cls.__node_spec__ = spec
    _install_views(spec)
    if own_init:
        _replace_own_init(cls, vars(cls)["__init__"])
    elif options.init and not inherited:
        cls.__init__ = make_init(spec)
    elif not inherited and cls.__init__ is not object.__init__:
        _replace_own_init(cls, cls.__init__)  # of a base that is no node: it seals nothing
    abc.update_abstractmethods(cls)
    register_once(cls)
    return spec


def register_once(cls: type[Any]) -> "Registration":
    """Tell JAX of the class, unless it has been told."""
    if "__node_registered__" not in vars(cls):
        register(cls)
        register_for_export(cls)
        register_node_for_flax(cls)
        cls.__node_registered__ = Registration(cls)
    registration: Registration = vars(cls)["__node_registered__"]
    return registration


class Registration:
    """The mark of a class that JAX knows; where `cloudpickle` brings the class to a new process, it tells JAX there."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def __reduce__(self) -> tuple[Any, ...]:
        return (register_once, (self.cls,))


def node_bases(cls: type[Any]) -> Iterator[type[Any]]:
    """The bases of `cls` that are node classes, nearest first."""
    return (base for base in cls.__mro__[1:] if "__node_spec__" in vars(base))


def _base_has_own_init(cls: type[Any]) -> bool:
    return any(spec_of(base).has_own_init for base in list(node_bases(cls))[:1])


def _process(cls: type[Any], options: Options) -> None:
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


def _replace_own_init(cls: type[Any], init: Callable[..., None]) -> None:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        build(self, functools.partial(init, self, *args, **kwargs))

    cls.__init__ = __init__


def install(cls: type[Any], methods: Mapping[str, Any]) -> None:
    """Give `cls` the methods that its own body does not write."""
    for name, method in methods.items():
        if name not in vars(cls):
            setattr(cls, name, method)


def writes_hash(cls: type[Any]) -> bool:
    """Whether the body of `cls` says how it is hashed; `__hash__ = None` says that it is not.

    Beside an `__eq__`, Python puts that None into the body by itself, and it says nothing.
    """
    own = vars(cls)
    return own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)


def install_comparison(cls: type[Any], options: Options) -> None:
    """`__repr__`, `__eq__` and `__hash__` by the rules of `dataclass(frozen=True)`."""
    if options.repr:
        install(cls, dunders.REPR)
    own_hash = writes_hash(cls)
    if options.eq:
        install(cls, {"__eq__": dunders.equal})
        if not own_hash:
            setattr(cls, "__hash__", dunders.hash_of)  # noqa: B010  checkers know it as None


def document(cls: type[Any]) -> None:
    """A docstring with the signature, as dataclasses write it, for a class that has none; and what `doc=` says."""
    documented = [(field.name, field.doc) for field in spec_of(cls).fields if field.doc is not None]
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


def undo(cls: type[Any], before: Mapping[str, Any]) -> None:
    """Bring the attributes of a class back to what they were; what JAX knows of it holds for any fields."""
    kept = _MANAGED | _OTHERS
    for name in vars(cls).keys() - before.keys() - kept:
        delattr(cls, name)
    for name, value in before.items():
        if name not in kept and vars(cls).get(name) is not value:
            setattr(cls, name, value)
