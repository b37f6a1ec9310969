"""How many numbers and bytes a tree holds, each array once."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._jax import Path, path_text
from treewright._nodes.fields import FieldKind
from treewright._trees.level import Place, is_node, walk
from treewright._trees.paths import place_of
from treewright._values.reach import class_of


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A leaf, a `None`, or a static. `owner` is the class of the node that it belongs to, or else of the whole tree."""

    path: Path
    value: Any
    owner: str
    kind: FieldKind


def items_of(tree: Any) -> Iterator[Item]:
    """All leaves and statics, in the order of the fields, and of JAX below containers."""
    for place in walk(Place(tree), _fields_or_children):
        if _is_static(place) or place.value is None or place.level is None:
            fields = place.fields
            in_buffer = any(field.kind == "buffer" for _, field in fields)
            kind: FieldKind = "static" if _is_static(place) else "buffer" if in_buffer else "child"
            yield Item(place.path, place.value, class_of(fields[-1][0] if fields else tree).__qualname__, kind)


def _fields_or_children(place: Place) -> Iterator[Place]:
    if _is_static(place):
        return iter(())
    return place.entries() if is_node(place.value) else place.children()


def _is_static(place: Place) -> bool:
    return place.field is not None and place.field.is_static


def elements_in(leaf: Any) -> int:
    """How many numbers a leaf holds: those of an array, abstract or traced too, 1 for a Python number, else 0."""
    if isinstance(leaf, int | float | complex):
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
    """What is equal for two leaves when they are one array; None for what is not an array."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    if isinstance(leaf, Tracer | np.ndarray) or leaf.is_deleted():
        return id(cast("Any", leaf))
    # Two objects may share one buffer, as jax.device_put(x) and x[:] do.
    shards: Any = leaf.addressable_shards
    try:
        return tuple(shard.data.unsafe_buffer_pointer() for shard in shards)
    except jax.errors.JaxRuntimeError:  # on some platforms
        return id(cast("Any", leaf))


By = Literal["field", "class"]


@overload
def count(tree: object, *, by: None = None) -> int: ...
@overload
def count(tree: object, *, by: By) -> dict[str, int]: ...
def count(tree: object, *, by: By | None = None) -> int | dict[str, int]:
    """How many numbers the leaves of a tree hold: the parameters of a model.

    Arrays count all their elements, Python numbers one, other leaves none. An array that stands in two places counts
    twice, as it does for `jit`; `find_aliases` finds such.

    Args:
        tree: A node, or any other tree, of arrays, `jax.ShapeDtypeStruct`s or tracers.
        by: `"field"` for a dict by the fields, keys or indices at the top of the tree, `"class"` for one by the classes
            of the nodes that hold the leaves.

    Raises:
        ValueError: If `by` is anything else.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     mean: jax.Array = buffer()
        >>> layer = Layer(jnp.ones((2, 3)), jnp.zeros(3))
        >>> count(layer), count(layer, by="field")
        (9, {'kernel': 6, 'mean': 3})
        >>> count([layer, layer, 1.0], by="class")
        {'Layer': 18, 'list': 1}
        >>> count(partition(layer, trainable)[0])
        6
    """
    return _summed(tree, elements_in, by)


@overload
def nbytes(tree: object, *, by: None = None) -> int: ...
@overload
def nbytes(tree: object, *, by: By) -> dict[str, int]: ...
def nbytes(tree: object, *, by: By | None = None) -> int | dict[str, int]:
    """How many bytes the leaves of a tree take, on all devices together; a replicated array counts once.

    Args:
        tree: As for `count`.
        by: As for `count`.

    Raises:
        ValueError: As for `count`.

    Examples:
        >>> nbytes({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3, jnp.bfloat16)}, by="field")
        {'bias': 6, 'kernel': 24}
        >>> nbytes(jax.eval_shape(lambda: jnp.ones((1000, 1000))))
        4000000
    """
    return _summed(tree, bytes_in, by)


def _summed(tree: object, size: Callable[[Any], int], by: By | None) -> int | dict[str, int]:
    if by is None:
        return sum(map(size, jax.tree.leaves(tree)))
    if by not in {"field", "class"}:
        raise ValueError(f'by= is "field" or "class", got {by!r}.')
    sums: dict[str, int] = {}
    for item in items_of(tree):
        if item.kind != "static":
            name = item.owner if by == "class" else _top_of(item)
            sums[name] = sums.get(name, 0) + size(item.value)
    return sums


def _top_of(item: Item) -> str:
    return str(place_of(item.path[0])[1]) if item.path else item.owner


def find_aliases(tree: object) -> list[tuple[str, ...]]:
    """The places where one array stands more than once, as paths: one tuple for each such array.

    `jit` makes two arrays of it, so that gradients and optimisers untie what was tied, and it can't be donated twice.

    Examples:
        >>> table = jnp.ones((5, 2))
        >>> find_aliases({"embed": table, "head": {"kernel": table}, "bias": jnp.zeros(5)})
        [("['embed']", "['head']['kernel']")]
    """
    return [tuple(map(path_text, paths)) for paths in aliases_in(tree)]


def aliases_in(tree: object) -> list[list[Path]]:
    """`find_aliases`, as JAX's paths."""
    places: dict[object, list[Path]] = {}
    for item in items_of(tree):
        memory = None if item.kind == "static" else memory_of(item.value)
        if memory is not None:
            places.setdefault(memory, []).append(item.path)
    return [paths for paths in places.values() if len(paths) > 1]
