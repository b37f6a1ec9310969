"""`Module`: the base class of models. Every subclass is a node by itself."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Self, dataclass_transform

from treewright._nodes import protocols
from treewright._nodes.dataclass import refuse_options
from treewright._nodes.definition import define, document, writes_hash
from treewright._nodes.fields import buffer, field, static
from treewright._nodes.methods import wrap_methods
from treewright._nodes.node import PAIR, replaced
from treewright._nodes.replacing import ReplaceMethod
from treewright._nodes.spec import Options


# Not frozen for checkers, which know no assignment in the `__init__` of a frozen class. Without `eq_default=False` they
# would take a class that is not frozen for unhashable, and so refuse it as a static.
@dataclass_transform(eq_default=False, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field))
class Module:
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

    def __init_subclass__(
        cls,
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
        **keywords: Any,
    ) -> None:
        given = {"order": order, "unsafe_hash": unsafe_hash, "slots": slots, "weakref_slot": weakref_slot}
        refuse_options("Module", cls, given, frozen=frozen)
        options = Options(init=init, repr=repr, eq=eq, kw_only=kw_only, match_args=match_args)
        wrap_methods(cls)
        define(cls, options, inherits_init=True, reserved=frozenset({"replace"}))
        _choose_comparison(cls, options)
        document(cls)
        super().__init_subclass__(**keywords)

    # From 3.13 on checkers make a `__replace__` with the fields as parameters, but pyright not for a class that has an
    # `__init__` of its own: then it finds the one below.
    if TYPE_CHECKING and sys.version_info >= (3, 13):
        replace: ReplaceMethod

        def __replace__(self, /, **changes: Any) -> Self: ...
    else:

        def replace(self, /, **changes: Any) -> Self:
            """A copy with some fields replaced: `treewright.replace` as a method."""
            copy: Self = replaced(self, **changes)
            return copy

    if TYPE_CHECKING:
        from collections.abc import Hashable, Iterable

        def tree_flatten(self) -> tuple[tuple[Any, ...], Hashable]: ...

        @classmethod
        def tree_unflatten(cls, aux_data: object, children: Iterable[Any]) -> Self: ...
    else:
        for _name, _method in {
            **protocols.FROZEN,
            **protocols.COMPARISON,
            **protocols.OTHERS,
            **protocols.REPR,
        }.items():
            locals()[_name] = _method
        del _name, _method


def _choose_comparison(cls: type[Any], options: Options) -> None:
    """By the options; but methods of the user's own are kept, inherited ones too."""
    wanted = {
        "__eq__": protocols.equal if options.eq else object.__eq__,
        "__hash__": protocols.hash_of if options.eq else object.__hash__,
        "__repr__": protocols.REPR["__repr__"] if options.repr else object.__repr__,
    }
    written = (wanted.keys() & vars(cls).keys()) - (set() if writes_hash(cls) else {"__hash__"})
    for name, method in wanted.items():
        writer = next(base for base in cls.__mro__ if name in vars(base))
        generated = getattr(cls, name) in {*wanted.values(), getattr(object, name), getattr(Module, name)} or (
            "__dataclass_params__" in vars(writer) and "__node_spec__" not in vars(writer)
        )
        if name not in written and (generated or name in vars(cls)):
            setattr(cls, name, method)
