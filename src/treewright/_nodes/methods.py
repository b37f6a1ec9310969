"""Methods of a `Module` as pytrees: looked up on an instance, a method is a node whose child is the instance."""

import inspect
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

import jax
from jax.core import Tracer

from treewright._nodes.node import pair_or_unfinished


class ModuleMethod:
    """What a `Module` keeps for each method; gives the function on the class, a `BoundMethod` on an instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @property
    def __isabstractmethod__(self) -> bool:
        return getattr(self.function, "__isabstractmethod__", False)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.function if instance is None else BoundMethod(self.function, instance)


class BoundMethod:
    """A method of one instance. A pytree: the instance is its child, the function its `aux_data`.

    Two are equal when function and instance are, the instance by identity or, where it can be hashed, by value.
    """

    __slots__ = ("__func__", "__self__", "__weakref__")
    __func__: Callable[..., Any]
    __self__: Any

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        object.__setattr__(self, "__func__", function)
        object.__setattr__(self, "__self__", instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # As types.MethodType does: __name__, __doc__ and the attributes of a jitted function are the function's.
        return getattr(self.__func__, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot assign {name!r} to the method {self!r}; assign it to the function.")

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(self.__func__, self.__self__))

    @property
    def __wrapped__(self) -> Any:
        raise AttributeError("a method has no __wrapped__: its function takes one argument more")

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__func__.__doc__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMethod) or self.__func__ is not other.__func__:
            return False
        if self.__self__ is other.__self__:
            return True
        try:
            return hash(self.__self__) == hash(other.__self__) and bool(self.__self__ == other.__self__)
        except TypeError:
            return False

    def __hash__(self) -> int:
        _keep_for_next_lookup(self)
        try:
            return hash((self.__func__, self.__self__))
        except TypeError:
            return hash((self.__func__, id(self.__self__)))

    def __repr__(self) -> str:
        return f"<method {self.__func__.__qualname__} of {self.__self__!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (BoundMethod, (self.__func__, self.__self__))

    def _exact_key_(self, key: Callable[[object], Hashable]) -> Hashable:
        try:
            return (BoundMethod, self.__func__, key(self.__self__))
        except TypeError:  # an instance with arrays: one method is the same static only for one instance
            return (BoundMethod, self.__func__, id(self.__self__))


def _keep_for_next_lookup(method: BoundMethod) -> None:
    """Let the instance give this very object when the method is looked up again.

    `jax.jit(model.step)` keeps its programs under a weak reference to the function that it was given, so with a new
    method at each lookup a second `jax.jit(model.step)` would trace again. Only what takes a method as a function
    hashes it; no other method is kept, since instance and method then hold each other until the garbage collector
    runs. Never inside a trace, where that would keep tracers alive.
    """
    instance, name = method.__self__, getattr(method.__func__, "__name__", None)
    if not isinstance(pair_or_unfinished(instance), tuple) or not isinstance(name, str):
        return
    declared = next((vars(base)[name] for base in type(instance).__mro__ if name in vars(base)), None)
    if not isinstance(declared, ModuleMethod) or declared.function is not method.__func__:
        return
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(instance)):
        instance.__dict__.setdefault(name, method)


def wrap_methods(cls: type[Any]) -> None:
    """Make the methods in the class body pytrees: functions, jitted ones too, and `__call__`; no other dunders."""
    for name, value in list(vars(cls).items()):
        special = name.startswith("__") and name.endswith("__") and name != "__call__"
        if not special and _is_method(value):
            setattr(cls, name, ModuleMethod(value))


def _is_method(value: object) -> bool:
    if isinstance(value, types.FunctionType):
        return True
    wraps_function = callable(value) and isinstance(getattr(value, "__wrapped__", None), types.FunctionType)
    return wraps_function and hasattr(type(value), "__get__") and not isinstance(value, staticmethod | classmethod)


def _flatten_with_keys(method: BoundMethod) -> tuple[tuple[tuple[Any, Any]], Callable[..., Any]]:
    return ((_SELF_KEY, method.__self__),), method.__func__


def _flatten(method: BoundMethod) -> tuple[tuple[Any], Callable[..., Any]]:
    return (method.__self__,), method.__func__


def _unflatten(function: Callable[..., Any], children: Iterable[Any]) -> BoundMethod:
    (instance,) = children
    return BoundMethod(function, instance)


_SELF_KEY: Any = jax.tree_util.GetAttrKey("__self__")
cast("Any", jax.tree_util).register_pytree_with_keys(BoundMethod, _flatten_with_keys, _unflatten, _flatten)
