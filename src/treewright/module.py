"""`pytree_dataclass` and `Module`, the two ways to define a node class. `module.pyi` has the types for checkers."""

import dataclasses
from typing import Any, dataclass_transform

from treewright._base.text import short_text
from treewright._core import FLAT_FORM_NAME, NODE_METHODS, buffer, field, make_node_class, replace_method, static
from treewright._core import replace as replace  # noqa: PLC0414  `module.pyi` has its types
from treewright._export import register_for_export
from treewright.errors import NodeDefinitionError


@dataclass_transform(
    frozen_default=True, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field)
)
def pytree_dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = True,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """Turn a class into a frozen dataclass that is a JAX pytree.

    Fields become children; fields declared `static()` go to `aux_data`. In addition to
    `dataclasses.dataclass(frozen=True)`, it adds `tree_flatten`, `tree_unflatten`, key paths by field name, and statics
    that `jit` compares exactly. The class is registered with JAX and stays the same object.

    Args:
        cls: The class.
        init: Generate `__init__`, unless the class body defines one, which assigns the fields as usual.
        repr: Generate a short `__repr__`.
        eq: Generate `__eq__`, which returns a plain `bool` for any leaves, and `__hash__` by value.
        order: Generate `<`, `<=`, `>` and `>=`, which compare the fields in order, like a tuple. Comparing arrays with
            several elements raises: exclude such fields with `field(compare=False)`.
        unsafe_hash: Generate `__hash__` even with `eq=False` or with a custom `__eq__`.
        frozen: Always true.
        match_args: Generate `__match_args__`.
        kw_only: Make all fields of this class keyword-only.
        slots: Always false: a node stores all fields in one attribute. `dataclasses.make_dataclass` passes it.
        weakref_slot: Always false: nodes support weak references anyway.

    Raises:
        NodeDefinitionError: If the class can't be a node; the message names the field or option and the fix.
        TypeError: If `order` or `unsafe_hash` would overwrite a method of the class body, as in `dataclasses`.
        ValueError: If `order` is true but `eq` is not.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        >>> layer = Layer(jnp.ones((3, 2)))
        >>> layer
        Layer(kernel=f32[3,2], activation='relu')
        >>> jax.tree.map(jnp.shape, layer)
        Layer(kernel=(3, 2), activation='relu')

    Source: the dataclass protocol of PEP 557 and PEP 681; JAX, "Custom pytree nodes".
    """
    options: dict[str, Any] = dict(locals())

    def decorate(cls: Any) -> type[Any]:
        if not isinstance(cls, type):
            raise NodeDefinitionError(f"pytree_dataclass must decorate a class, got {short_text(cls)}.")
        make_node_class(cls, options, is_module=False)
        register_for_export(cls)
        return cls

    return decorate if cls is None else decorate(cls)


@dataclass_transform(eq_default=False, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field))
class Module:
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

    __slots__ = (FLAT_FORM_NAME, "__weakref__")

    def __init_subclass__(cls, **keywords: Any) -> None:
        defaults: dict[str, bool] = pytree_dataclass.__kwdefaults__ or {}
        options = {option: keywords.pop(option, default) for option, default in defaults.items()}
        super().__init_subclass__(**keywords)
        make_node_class(cls, options, is_module=True)
        register_for_export(cls)

    replace = replace_method
    locals().update(NODE_METHODS)


# Python itself rejects `Module()`, because Module is not a node class.
_module: Any = Module
_module.__abstractmethods__ = frozenset({"subclass"})
