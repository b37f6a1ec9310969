"""Methods of a `Module` as pytrees: looked up on an instance, a method is a node whose child is the instance."""

import inspect
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

import jax

from treewright._nodes.classes import own_annotations
from treewright._nodes.exact import ExactKeys, method_key, tracer_in
from treewright._nodes.export import register_function_node
from treewright._nodes.node import pair_or_unfinished
from treewright._nodes.refused import NoExactKeyError
from treewright._nodes.state_dicts import register_for_flax

_KEPT = "_kept_methods"  # in the __dict__ of an instance: the methods that it gives again, by function


class ModuleMethod:
    """What a `Module` keeps for each method; gives the function on the class, a `BoundMethod` on an instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @property
    def __isabstractmethod__(self) -> bool:
        return getattr(self.function, "__isabstractmethod__", False)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        kept: dict[Any, BoundMethod] | None = instance.__dict__.get(_KEPT)
        found = None if kept is None else kept.get(self.function)
        return BoundMethod(self.function, instance) if found is None else found


class BoundMethod:
    """A method of one instance. A pytree: the instance is its child, the function its `aux_data`.

    Two are equal when function and instance are: the instance as exactly as a static, and one with arrays by identity.
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

    def _identity(self) -> Hashable:
        # `==` on the instances would be too coarse: jit would share one program between 0.0 and -0.0.
        try:
            return method_key(self.__func__, self.__self__)
        except NoExactKeyError:
            return self.__func__, id(self.__self__)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, BoundMethod) and self._identity() == other._identity())

    def __hash__(self) -> int:
        _keep_for_next_lookup(self)
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"<method {self.__func__.__qualname__} of {self.__self__!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (BoundMethod, (self.__func__, self.__self__))

    def _exact_key_(self, keys: ExactKeys) -> Hashable:
        return keys.method(BoundMethod, self.__func__, self.__self__)


def _keep_for_next_lookup(method: BoundMethod) -> None:
    """Let the instance give this very object when the method is looked up again.

    `jax.jit(model.step)` keeps its programs under a weak reference to the function that it was given, so with a new
    method at each lookup a second `jax.jit(model.step)` would trace again. Only what takes a method as a function
    hashes it; no other method is kept, since instance and method then hold each other until the garbage collector
    runs. Never inside a trace, where that would keep tracers alive.
    """
    instance = method.__self__
    if not isinstance(pair_or_unfinished(instance), tuple) or tracer_in(instance) is not None:
        return
    kept: dict[Any, BoundMethod] = instance.__dict__.setdefault(_KEPT, {})
    kept.setdefault(method.__func__, method)


def wrap_methods(cls: type[Any]) -> None:
    """Make the methods in the class body pytrees: functions, jitted ones too, and `__call__`; no other dunders."""
    for name, value in list(vars(cls).items()):
        special = name.startswith("__") and name.endswith("__") and name != "__call__"
        if not special and name not in own_annotations(cls) and _is_method(value):
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
register_function_node(BoundMethod)
register_for_flax(
    BoundMethod,
    lambda method: {"__self__": method.__self__},
    lambda method, children: _unflatten(method.__func__, children),
)
