"""`Module`: the base class of models. Its bound methods are pytrees too, so that `jit(model.step)` works."""

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, dataclass_transform

from treewright._base.functions import NodeMethod, set_public_module
from treewright._base.jax_private import GetAttrKey
from treewright._base.text import text
from treewright._core import methods
from treewright._core.definition import OPTIONS, make_node_class
from treewright._core.field_checks import NoExactKeyError, add_static_hint
from treewright._core.fields import buffer, field, static
from treewright._core.instance import FLAT_FORM, ReplaceMethod
from treewright._core.keys import exact_key
from treewright._core.registration import register_for_export, register_with_jax


class ModuleMethod:
    """The descriptor of a `Module`'s method: returns the function on the class, a `BoundMethod` on an instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        # pydoc, doctest and abc look for these attributes.
        wrapper: Any = self
        functools.update_wrapper(wrapper, function, (*functools.WRAPPER_ASSIGNMENTS, "__isabstractmethod__"), ())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        return BoundMethod(self.function, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, for code that reads methods from the `__dict__` of the class."""
        return self.function(*args, **kwargs)


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
            add_static_hint(error, self.__self__)
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


def _method_of(value: Any) -> ModuleMethod | None:
    """The descriptor for a function in the body of a Module, jitted or not; None for any other value."""
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


# Only for checkers, which need it to reject instances of abstract Modules; at run time Python needs no metaclass.
if TYPE_CHECKING:
    from abc import ABC
else:
    ABC = object


# For checkers it is not frozen, because they reject assignments in the `__init__` of a frozen class. Without
# `eq_default=False` they would treat a class that is not frozen as unhashable, and so reject it as a static.
@set_public_module("treewright")
@dataclass_transform(eq_default=False, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field))
class Module(ABC):
    """Base class for models: annotated fields are children, fields declared `static()` go to `aux_data`.

    A subclass gets an `__init__` generated from its fields, or defines one that assigns them; when it returns, the
    instance is frozen. A subclass without its own `__init__` inherits one written in a base class; if there is none, it
    is generated. Bound methods are pytrees too, so they can be passed to `jit`, `vmap` and `scan` and stored in fields.

    Pass options in the class statement: `class Net(Module, kw_only=True)`. They are those of `pytree_dataclass`.

    Raises:
        NodeDefinitionError: When a subclass is defined that can't be a node.

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

    __slots__ = (FLAT_FORM, "__weakref__")

    def __init_subclass__(cls, **keywords: Any) -> None:
        options = {option: keywords.pop(option, default) for option, default in OPTIONS.items()}
        super().__init_subclass__(**keywords)
        make_node_class(cls, options, _method_of)

    # From Python 3.13 on checkers synthesise a `__replace__` with the fields as parameters. For a class with a custom
    # `__init__`, pyright does not, and uses the one below.
    if TYPE_CHECKING and sys.version_info >= (3, 13):
        replace: ClassVar[ReplaceMethod]

        def __replace__(self, /, **changes: Any) -> Self: ...
    elif TYPE_CHECKING:

        def replace(self, /, **changes: Any) -> Self: ...

    if TYPE_CHECKING:
        # With this, ty rejects `del net.kernel`; other checkers can't.
        def __delattr__(self, name: str, /) -> NoReturn: ...
        def tree_flatten(self) -> tuple[tuple[Any, ...], Hashable]: ...

        @classmethod
        def tree_unflatten(cls, aux_data: object, children: Iterable[Any]) -> Self: ...
    else:
        replace = methods.replace
        locals().update(methods.METHODS)


# Python itself rejects `Module()`, because Module is not a node class.
_module: Any = Module
_module.__abstractmethods__ = frozenset({"subclass"})
