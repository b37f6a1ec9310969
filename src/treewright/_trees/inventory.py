"""All that is in a tree, one item at a time: what kind it is, how large, and in which memory."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._nodes.classes import class_of
from treewright._nodes.fields import Kind
from treewright._nodes.node import finished_pair
from treewright._nodes.spec import spec_of
from treewright._trees.entries import is_node
from treewright._trees.paths import Path, entries_of, field_key


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A leaf, a `None`, or a static. `owner` is the class of the node that it belongs to, or else of the whole tree."""

    path: Path
    value: Any
    owner: str
    kind: Kind


def items_of(tree: Any) -> Iterator[Item]:
    """In the order of the fields, and of JAX below containers."""
    return _items(Item((), tree, class_of(tree).__qualname__, "child"))


def _items(item: Item) -> Iterator[Item]:
    value = item.value
    if is_node(value):
        pair, spec = finished_pair(value), spec_of(value)
        for field in spec.fields:
            kind = field.kind if item.kind == "child" else item.kind  # all that is in a buffer is one
            inner = Item((*item.path, field_key(field.name)), field.value_in(pair), spec.cls.__qualname__, kind)
            if field.is_static:
                yield dataclasses.replace(inner, kind="static")
            else:
                yield from _items(inner)
        return
    entries = entries_of(value)
    if entries is None or value is None:
        yield item
        return
    for key, child in entries:
        yield from _items(dataclasses.replace(item, path=(*item.path, key), value=child))


def elements_in(leaf: Any) -> int:
    """How many numbers a leaf holds: those of an array, abstract or traced too, 1 for a Python number, else 0."""
    if isinstance(leaf, bool | int | float | complex):
        return 1
    shape: tuple[int, ...] | None = getattr(leaf, "shape", None)
    return 0 if shape is None or not hasattr(leaf, "dtype") else math.prod(shape)


def bytes_in(leaf: Any) -> int:
    """What the numbers in a leaf take as an array of JAX."""
    elements = elements_in(leaf)
    if not elements:
        return 0
    dtype: Any = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return elements * int(dtype.itemsize)


def memory_of(leaf: Any) -> object:
    """What is equal for two leaves when they are one array; None for what is no array."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    if isinstance(leaf, Tracer | np.ndarray) or leaf.is_deleted():
        return id(cast("Any", leaf))
    # Also two objects with one buffer, as jax.device_put(x) and x[:] make.
    shards: Any = leaf.addressable_shards
    try:
        return tuple(shard.data.unsafe_buffer_pointer() for shard in shards)
    except jax.errors.JaxRuntimeError:  # a platform that does not tell
        return id(cast("Any", leaf))
