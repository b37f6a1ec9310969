"""Refs as values of fields: the type for checkers, and `AsRef`, which makes one of the array that a field is given."""

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from treewright._jax_refs import is_ref
from treewright._nodes.fields import Converted, Converter

if TYPE_CHECKING:

    class Ref(jax.Ref):
        """An array that changes in place. `ref[...]` is what it holds, and `ref[...] = value` changes it."""

        @property
        def shape(self) -> tuple[int, ...]: ...
        def __getitem__(self, idx: Any) -> jax.Array: ...
        def __setitem__(self, idx: Any, x: ArrayLike) -> None: ...
        def __len__(self) -> int: ...
        def addupdate(self, x: ArrayLike, idx: Any = ()) -> None: ...

    def new_ref(init_val: ArrayLike, /) -> Ref:
        """A ref that holds a copy of an array."""
        ...
else:
    from jax import Ref

    from treewright._jax_refs import new_ref


def as_ref(value: Any) -> Ref:
    """A ref as it is; of an array, a random key or a number a new one, which is not weakly typed."""
    if is_ref(value):
        ref: Ref = value
        return ref
    array = jnp.asarray(value)
    weak = getattr(array, "weak_type", False)  # random keys have none
    return new_ref(array.astype(array.dtype) if weak else array)


AsRef: TypeAlias = Annotated[Converted[ArrayLike | jax.Ref, Ref], Converter(as_ref)]
