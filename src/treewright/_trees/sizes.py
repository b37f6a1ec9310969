"""`count`, `nbytes` and `find_aliases`: the sizes of trees, and arrays that appear in several places."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._base.functions import attribute_of
from treewright._base.jax_private import GetAttrKey
from treewright._base.text import class_name
from treewright._core import FieldInfo, FieldKind, flat_form, info_of, is_node
from treewright._trees.level import is_leaf_class, level_of, reject_classes


class Item(NamedTuple):
    """A leaf, a `None`, or a static. `owner` is the class of its node, or outside all nodes of the whole tree."""

    path: str
    value: Any
    owner: str
    kind: FieldKind
    steps: int = 0  # in the path
    group: "Item | None" = None  # the subtree at the depth at which a table sums up, if this is deeper


def items_of(tree: Any, depth: int | None = None) -> Iterator[Item]:
    """All leaves, `None`s and statics, in the order of the fields, and in JAX's order in containers.

    Statics and `None`s in fields with `repr=False` are omitted. `depth` is that of the groups.
    """
    # Without a `Place` for each, this takes a third of the time (benchmarks: trees).
    queue = [Item("", tree, class_name(tree), "child")]
    fields: dict[type[Any], list[tuple[str, FieldInfo]]] = {}
    # Cached: the check takes longer than the rest of the loop.
    is_leaf: Callable[[Any], bool] = functools.cache(is_leaf_class)
    while queue:
        item = queue.pop()
        path, value, owner, kind, steps, group = item
        below = steps + 1, item if steps == depth else group
        cls = type(value)
        if kind != "static" and is_node(value):
            form = flat_form(value)
            if cls not in fields:
                fields[cls] = [(str(GetAttrKey(field.name)), field) for field in reversed(info_of(cls).fields)]
            for key, field in fields[cls]:
                child = field.value_in(form)
                if field.repr or not (field.is_static or child is None):
                    inner: FieldKind = "buffer" if kind == "buffer" and not field.is_static else field.kind
                    queue.append(Item(path + key, child, cls.__qualname__, inner, *below))
            continue
        level = None if kind == "static" or is_leaf(cls) else level_of(value)
        if level is None:
            yield item
        else:
            queue.extend(Item(f"{path}{key}", child, owner, kind, *below) for key, child in reversed(level.children))


def elements_in(leaf: Any) -> int:
    """The number of elements of an array, also an abstract or traced one; 1 for a Python number, else 0."""
    shape: object = attribute_of(leaf, "shape")
    if isinstance(shape, tuple) and attribute_of(leaf, "dtype") is not None:
        return math.prod(shape)
    return 1 if isinstance(leaf, (int, float, complex)) else 0


def bytes_in(leaf: Any) -> int:
    """The number of bytes of a leaf as a JAX array."""
    elements = elements_in(leaf)
    if not elements:
        return 0
    dtype: Any = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return elements * int(dtype.itemsize)


def memory_of(leaf: Any) -> object:
    """A key that is equal for two leaves if they share their memory; None for a leaf that is not an array."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    if isinstance(leaf, Tracer | np.ndarray):
        return id(leaf)
    # Two objects may share one buffer, as jax.device_put(x) and x[:] do.
    array: Any = leaf
    try:
        if len(array.sharding.device_set) == 1:  # the array is its only shard; creating one takes 20 times as long
            return (array.unsafe_buffer_pointer(),)
        return tuple(shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards)
    except RuntimeError:  # it was deleted, or the platform has no pointers
        return id(leaf)


def count(tree: object) -> int:
    """The number of elements in all leaves of a tree: the parameters of a model.

    Arrays count all their elements, Python numbers one, other leaves none. An array that appears in two places counts
    twice, as in `jit`; `find_aliases` lists such arrays. `summary(tree, depth=1)` has the number for each field.

    Args:
        tree: A node, or any other tree, of arrays, `jax.ShapeDtypeStruct`s or tracers.

    Raises:
        TypeError: If `tree` is a class or contains one, or is an iterator, such as `params.values()`.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     mean: jax.Array = buffer()
        >>> layer = Layer(jnp.ones((2, 3)), jnp.zeros(3))
        >>> count(layer), count(partition(layer, trainable)[0])
        (9, 6)
    """
    reject_classes("count", tree)
    return sum(map(elements_in, jax.tree.leaves(tree)))


def nbytes(tree: object) -> int:
    """The number of bytes of all leaves of a tree, on all devices together; a replicated array counts once.

    Args:
        tree: As for `count`.

    Raises:
        TypeError: As for `count`.

    Examples:
        >>> nbytes({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3, jnp.bfloat16)})
        30
        >>> nbytes(jax.eval_shape(lambda: jnp.ones((1000, 1000))))
        4000000
    """
    reject_classes("nbytes", tree)
    return sum(map(bytes_in, jax.tree.leaves(tree)))


def find_aliases(tree: object) -> list[tuple[str, ...]]:
    """Arrays that appear more than once in a tree: one tuple of paths per array.

    `jit` turns such an array into two, so gradients and optimisers untie tied weights. It also can't be donated twice.

    Examples:
        >>> table = jnp.ones((5, 2))
        >>> find_aliases({"embed": table, "head": {"kernel": table}, "bias": jnp.zeros(5)})
        [("['embed']", "['head']['kernel']")]
    """
    reject_classes("find_aliases", tree)
    return [tuple(item.path for item in items) for items in aliases_in(items_of(tree))]


def aliases_in(items: Iterable[Item]) -> list[list[Item]]:
    """The items that share their memory, by array."""
    places: dict[object, list[Item]] = {}
    for item in items:
        memory = None if item.kind == "static" else memory_of(item.value)
        if memory is not None:
            places.setdefault(memory, []).append(item)
    return [items for items in places.values() if len(items) > 1]
