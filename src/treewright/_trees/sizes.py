"""`count`, `nbytes` and `find_aliases`: the sizes of trees, and arrays that stand in several places."""

import math
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core import FieldSpec, flat_form, is_node, spec_of
from treewright._core.jax_private import GetAttrKey, Key, Path, path_text
from treewright._trees.at import place_of
from treewright._trees.level import level_of

Kind = Literal["child", "static", "buffer"]
By = Literal["field", "class"]


LEAVES: tuple[type[Any], ...] = (jax.Array, np.ndarray, str, int, float, types.NoneType, types.FunctionType)


class Item(NamedTuple):
    """A leaf, a `None`, or a static. `owner` is the class of the node that it belongs to, or else of the whole tree."""

    path: Path
    value: Any
    owner: str
    kind: Kind


class _SureLeaves(dict[type[Any], bool]):
    """Whether all instances of a class are leaves, asked once for each class: to ask takes longer than the rest."""

    def __missing__(self, cls: type[Any]) -> bool:
        is_leaf = cls is not type(None) and (cls in LEAVES or issubclass(cls, (jax.Array, Tracer)))
        self[cls] = is_leaf
        return is_leaf


def items_of(tree: Any) -> Iterator[Item]:
    """All leaves, `None`s and statics, in the order of the fields, and of JAX below containers.

    Statics and `None`s in fields with `repr=False` are left out.
    """
    # Without a `Place` for each, which knows all that is above it: a third of the time (benchmarks: trees).
    waiting = [Item((), tree, class_name(tree), "child")]
    fields: dict[type[Any], list[tuple[Key, FieldSpec]]] = {}
    is_leaf = _SureLeaves()
    while waiting:
        item = waiting.pop()
        path, value, owner, kind = item
        cls = type(value)
        if kind != "static" and is_node(value):
            form = flat_form(value)
            if cls not in fields:
                fields[cls] = [(GetAttrKey(field.name), field) for field in reversed(spec_of(cls).fields)]
            for key, field in fields[cls]:
                child = field.value_in(form)
                if field.repr or not (field.is_static or child is None):
                    inner: Kind = "buffer" if kind == "buffer" and not field.is_static else field.kind
                    waiting.append(Item((*path, key), child, cls.__qualname__, inner))
            continue
        level = None if kind == "static" or value is None or is_leaf[cls] else level_of(value)
        if level is None:
            yield item
        else:
            waiting.extend(Item((*path, key), child, owner, kind) for key, child in reversed(level.children))


def class_name(value: object) -> str:
    """The name of a value's class, `Array` for what JAX computes with."""
    return "Array" if isinstance(value, jax.Array) else type(value).__qualname__


def elements_in(leaf: Any) -> int:
    """How many numbers a leaf holds: those of an array, abstract or traced too, 1 for a Python number, else 0."""
    shape: tuple[int, ...] | None = getattr(leaf, "shape", None)
    if shape is not None and hasattr(leaf, "dtype"):
        return math.prod(shape)
    return 1 if isinstance(leaf, (int, float, complex)) else 0


def bytes_in(leaf: Any) -> int:
    """How many bytes the numbers in a leaf take as an array of JAX."""
    elements = elements_in(leaf)
    if not elements:
        return 0
    dtype: Any = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return elements * int(dtype.itemsize)


def memory_of(leaf: Any) -> object:
    """A key that is equal for two leaves when they are one array; None for what is no array."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    if isinstance(leaf, Tracer | np.ndarray) or leaf.is_deleted():
        return id(leaf)
    # Two objects may share one buffer, as jax.device_put(x) and x[:] do.
    array: Any = leaf
    try:
        if len(array.sharding.device_set) == 1:  # the shard is the array; to make one takes 20 times as long
            return (array.unsafe_buffer_pointer(),)
        return tuple(shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards)
    except jax.errors.JaxRuntimeError:  # on some platforms
        return id(leaf)


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
    return _sum(tree, elements_in, by)


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
    return _sum(tree, bytes_in, by)


def _sum(tree: object, size: Callable[[Any], int], by: By | None) -> int | dict[str, int]:
    if by is None:
        return sum(map(size, jax.tree.leaves(tree)))
    if by not in {"field", "class"}:
        raise ValueError(f'by= is "field" or "class", got {by!r}.')
    sizes: dict[str, int] = {}
    for item in items_of(tree):
        if item.kind != "static":
            top = str(place_of(item.path[0])[1]) if item.path else item.owner
            group = item.owner if by == "class" else top
            sizes[group] = sizes.get(group, 0) + size(item.value)
    return sizes


def find_aliases(tree: object) -> list[tuple[str, ...]]:
    """The places where one array stands more than once, as paths: one tuple for each such array.

    `jit` makes two arrays of it, so that gradients and optimisers untie what was tied, and it can't be donated twice.

    Examples:
        >>> table = jnp.ones((5, 2))
        >>> find_aliases({"embed": table, "head": {"kernel": table}, "bias": jnp.zeros(5)})
        [("['embed']", "['head']['kernel']")]
    """
    return [tuple(map(path_text, paths)) for paths in aliases_in(items_of(tree))]


def aliases_in(items: Iterable[Item]) -> list[list[Path]]:
    """`find_aliases`, as JAX's paths, of the items of a tree."""
    places: dict[object, list[Path]] = {}
    for item in items:
        memory = None if item.kind == "static" else memory_of(item.value)
        if memory is not None:
            places.setdefault(memory, []).append(item.path)
    return [paths for paths in places.values() if len(paths) > 1]
