"""`Module`: the base class of models; its methods are nodes too, so that `jit(model.step)` works."""

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, dataclass_transform

from treewright._core import methods
from treewright._core.definition import OPTIONS, make_node_class
from treewright._core.fields import buffer, field, spec_of, static
from treewright._core.functions import public
from treewright._core.instance import PAIR, ReplaceMethod
from treewright._core.jax_private import GetAttrKey
from treewright._core.keys import Keys, exact_key
from treewright._core.misfits import NoExactKeyError, note_settings
from treewright._core.registration import register_for_export, register_once, register_with_jax
from treewright._core.statics import StaticTable
from treewright._core.text import text


class ModuleMethod:
    """What a `Module` keeps for each method; gives the function on the class, a `BoundMethod` on an instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        # What pydoc, doctest and abc look for.
        wrapper: Any = self
        functools.update_wrapper(wrapper, function, (*functools.WRAPPER_ASSIGNMENTS, "__isabstractmethod__"), ())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        return BoundMethod(self.function, instance)


class BoundMethod:
    """A method of one instance. A pytree: the instance is its child, the function its `aux_data`.

    Two are equal when function and instance are: the instance as exactly as a static, and one with arrays by identity.
    """

    __slots__ = ("__func__", "__self__", "__weakref__")
    __func__: Callable[..., Any]
    __self__: Any

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        self.__func__ = function
        self.__self__ = instance

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # IPython and pytest leave the frame out
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except TypeError as error:
            note_settings(error, self.__self__)
            raise

    def __getattr__(self, name: str) -> Any:
        # As types.MethodType does: __name__, __doc__ and the attributes of a jitted function are the function's.
        return getattr(self.__func__, name)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(self.__func__, self.__self__))

    @property  # where object has a plain attribute
    def __doc__(self) -> str | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__func__.__doc__

    def _identity(self) -> Hashable:
        # `==` on the instances would be too coarse: jit would share one program between 0.0 and -0.0.
        try:
            return exact_key(self)
        except NoExactKeyError:
            return self.__func__, id(self.__self__)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, BoundMethod) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"<method {self.__func__.__qualname__} of {text(self.__self__)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (BoundMethod, (self.__func__, self.__self__))

    def _exact_key_(self, keys: Keys) -> Hashable:
        return keys.whole(self, Keys.method)


def _method_of(value: Any) -> ModuleMethod | None:
    """What a Module keeps for a function in its body, jitted ones too; None for any other value."""
    if not isinstance(value, types.FunctionType):
        wraps_function = callable(value) and isinstance(getattr(value, "__wrapped__", None), types.FunctionType)
        if not wraps_function or not hasattr(type(value), "__get__") or isinstance(value, staticmethod | classmethod):
            return None
    return ModuleMethod(value)


_SELF_KEY: Any = GetAttrKey("__self__")
register_with_jax(
    BoundMethod,
    lambda method: (((_SELF_KEY, method.__self__),), method.__func__),
    lambda function, children: BoundMethod(function, *children),
    lambda method: ((method.__self__,), method.__func__),
)
register_for_export(BoundMethod, lambda function, children: BoundMethod(function, *children), "treewright.BoundMethod")


# For checkers, which else make instances of abstract Modules: at run time Python refuses them without the metaclass.
if TYPE_CHECKING:
    from abc import ABC
else:
    ABC = object


# Not frozen for checkers, which know no assignment in the `__init__` of a frozen class. Without `eq_default=False` they
# would take a class that is not frozen for unhashable, and so refuse it as a static.
@public("treewright")
@dataclass_transform(eq_default=False, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field))
class Module(ABC):
    """Subclass it to write a model: annotated fields are children, those marked `static()` go to `aux_data`.

    A subclass gets an `__init__` from its fields, or writes its own and assigns to them; when that returns, the
    instance is frozen. Methods that are looked up on an instance are pytrees themselves, so they can be passed to
    `jit`, `vmap` and `scan` and stored in fields. Options stand in the class statement, as for `pytree_dataclass`:
    `class Net(Module, kw_only=True)`.

    A subclass without an `__init__` of its own inherits a custom one, and is given one otherwise.

    Raises:
        NodeDefinitionError: When a subclass is made that can't be a node.

    Examples:
        >>> class Linear(Module):
        ...     kernel: jax.Array
        ...     activation: Callable[[jax.Array], jax.Array] = static(default=jax.nn.relu)
        ...     def __init__(self, inputs, outputs, key):
        ...         self.kernel = jax.random.normal(key, (inputs, outputs))
        ...     def __call__(self, x):
        ...         return self.activation(x @ self.kernel)
        >>> linear = Linear(3, 2, jax.random.key(0))
        >>> linear
        Linear(kernel=f32[3,2], activation=relu)
        >>> jax.jit(linear.__call__)(jnp.ones((5, 3))).shape
        (5, 2)
    """

    __slots__ = (PAIR, "__weakref__")

    def __init_subclass__(cls, **keywords: Any) -> None:
        options = {option: keywords.pop(option, default) for option, default in OPTIONS.items()}
        super().__init_subclass__(**keywords)
        make_node_class(cls, options, _method_of)

    # From 3.13 on checkers make a `__replace__` with the fields as parameters, but pyright not for a class that has an
    # `__init__` of its own: then it finds the one below.
    if TYPE_CHECKING and sys.version_info >= (3, 13):
        replace: ClassVar[ReplaceMethod]

        def __replace__(self, /, **changes: Any) -> Self: ...
    elif TYPE_CHECKING:

        def replace(self, /, **changes: Any) -> Self: ...

    if TYPE_CHECKING:
        # ty refuses `del net.kernel` by this one; the other checkers have no way to know.
        def __delattr__(self, name: str, /) -> NoReturn: ...
        def tree_flatten(self) -> tuple[tuple[Any, ...], Hashable]: ...

        @classmethod
        def tree_unflatten(cls, aux_data: object, children: Iterable[Any]) -> Self: ...
    else:
        replace = methods.replace
        locals().update(methods.METHODS)


class _Bare(Module):
    """A node without fields."""


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    # Seal a bare `Module()`; for a subclass go on to the next `__init__` in its MRO.
    if type(self) is Module:
        object.__setattr__(self, PAIR, ((), spec_of(self).table.empty))
    super(Module, self).__init__(*args, **kwargs)


# `Module` itself is what a class without fields is, but no dataclass: then all other bases of a subclass that are
# dataclasses would have to be frozen.
_module: Any = Module
_module.__node_spec__ = dataclasses.replace(spec_of(_Bare), cls=Module, table=StaticTable(Module, (), (), ()))
_module.__init__ = _init
_init.__signature__ = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)])  # type: ignore[attr-defined]
register_once(Module)
