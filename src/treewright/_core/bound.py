"""A Module's methods: on an instance they are pytrees, with the instance as child, so jit and vmap accept them."""

import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any

from treewright._base.functions import NodeMethod
from treewright._base.jax_private import GetAttrKey
from treewright._base.text import text
from treewright._core.info import FLAT_FORM_NAME
from treewright._core.keys import exact_key
from treewright._core.methods import NODE_METHODS
from treewright._core.registration import register_with_jax
from treewright._core.rules import note
from treewright._core.rules.instances import METHOD
from treewright._core.rules.statics import NoExactKeyError

_store = object.__setattr__


def _forward(name: str) -> Any:
    """An attribute of a method that is its function's attribute."""
    return property(lambda method: getattr(method.function, name))


_FUNCTION_ATTRIBUTES = (
    *("__code__", "__closure__", "__defaults__", "__kwdefaults__", "__globals__", "__builtins__", "__annotations__"),
    *("__annotate__", "__type_params__", "__dict__", "__doc__", "__wrapped__", "__isabstractmethod__"),
)


class ModuleMethod:
    """The descriptor of a `Module`'s method: returns the function on the class, a `BoundMethod` on an instance.

    Otherwise it is a proxy of the function, also for `isinstance`, because tools that change the methods of a class
    look for functions in its `__dict__`: beartype and typeguard replace them, IPython's autoreload assigns `__code__`.
    """

    function: Callable[..., Any]
    __class__ = property(lambda method: type(method.function))  # pyright: ignore[reportIncompatibleMethodOverride]
    # `__getattr__` instead would slow down `__get__`.
    locals().update({name: _forward(name) for name in _FUNCTION_ATTRIBUTES})

    def __init__(self, function: Callable[..., Any]) -> None:
        _store(self, "function", function)  # `__setattr__` assigns to the function.
        for name in ("__module__", "__name__", "__qualname__"):  # pydoc and doctest read them
            _store(self, name, getattr(function, name, None))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        return BoundMethod(self.function, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            setattr(self.function, name, value)
        except ValueError as error:  # Code with other captured variables: autoreload would write into our memory.
            raise NotImplementedError(str(error)) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return (ModuleMethod, (self.function,))


class BoundMethod(NodeMethod):
    """A method of one instance. It is a pytree: the instance is its child, the function its `aux_data`.

    Two methods are equal if their functions and instances are. Instances compare as exactly as statics, or by identity
    if they contain arrays.
    """

    __slots__ = ()

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        self.__func__ = function
        self.__self__ = instance

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # IPython and pytest hide the frame.
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except TypeError as error:
            note(METHOD, error, self.__self__)
            raise

    def __getattr__(self, name: str) -> Any:
        # Like types.MethodType: __name__, __doc__ and the attributes of a jitted function come from the function.
        return getattr(self.__func__, name)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(self.__func__, self.__self__))

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__func__.__doc__

    def _identity(self) -> Hashable:
        # `==` on the instances is too coarse: jit would share one program between 0.0 and -0.0.
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


def wrap_methods(cls: type[Any]) -> None:
    """Wrap the methods of a Module, jitted or not, so that bound methods are pytrees."""
    if not hasattr(cls, FLAT_FORM_NAME):  # a decorated class
        return
    for name, value in list(vars(cls).items()):
        is_special = name.startswith("__") and name.endswith("__") and name != "__call__"
        if is_special or name in NODE_METHODS or type(value) is ModuleMethod:
            continue
        method: Any = value
        is_wrapper = callable(value) and isinstance(getattr(value, "__wrapped__", None), types.FunctionType)
        is_descriptor = hasattr(type(value), "__get__") and not isinstance(value, staticmethod | classmethod)
        if isinstance(value, types.FunctionType) or (is_wrapper and is_descriptor):
            setattr(cls, name, ModuleMethod(method))


_SELF_KEY: Any = GetAttrKey("__self__")
register_with_jax(
    BoundMethod,
    lambda method: (((_SELF_KEY, method.__self__),), method.__func__),
    lambda function, children: BoundMethod(function, *children),
    lambda method: ((method.__self__,), method.__func__),
)
