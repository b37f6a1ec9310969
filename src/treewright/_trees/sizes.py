"""How many numbers and bytes a tree holds, each array once."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core.fields import FieldKind
from treewright._core.functions import class_of
from treewright._core.instance import finished_pair, is_node
from treewright._core.jax_private import GetAttrKey, Key, Path, path_text
from treewright._core.jax_refs import is_ref
from treewright._core.spec import FieldSpec, spec_of
from treewright._trees.at import place_of
from treewright._trees.level import SureLeaves, is_none, level_of


class Item(NamedTuple):
    """A leaf, a `None`, or a static. `owner` is the class of the node that it belongs to, or else of the whole tree."""

    path: Path
    value: Any
    owner: str
    kind: FieldKind


def items_of(tree: Any) -> Iterator[Item]:
    """All leaves and statics, in the order of the fields, and of JAX below containers."""
    # Without a `Place` for each, which knows all that is above it: a third of the time (benchmarks/trees.py: count).
    waiting = [Item((), tree, class_of(tree).__qualname__, "child")]
    keys: dict[type[Any], list[tuple[Key, FieldSpec]]] = {}
    is_leaf = SureLeaves()
    while waiting:
        item = waiting.pop()
        path, value, owner, kind = item
        cls = class_of(value)
        if kind != "static" and hasattr(cls, "__node_spec__"):
            pair = finished_pair(value)
            if cls not in keys:
                keys[cls] = [(GetAttrKey(field.name), field) for field in reversed(spec_of(cls).fields)]
            for key, field in keys[cls]:
                inner: FieldKind = "buffer" if kind == "buffer" and not field.is_static else field.kind
                waiting.append(Item((*path, key), field.value_in(pair), cls.__qualname__, inner))
            continue
        level = None if kind == "static" or value is None or is_leaf[cls] else level_of(value)
        if level is None:
            yield item
        else:
            waiting.extend(Item((*path, key), child, owner, kind) for key, child in reversed(level.children))


def elements_in(leaf: Any) -> int:
    """How many numbers a leaf holds: those of an array, abstract or traced too, 1 for a Python number, else 0."""
    shape: tuple[int, ...] | None = getattr(leaf, "shape", None)
    if shape is not None and hasattr(leaf, "dtype"):
        return math.prod(shape)
    return 1 if isinstance(leaf, (int, float, complex)) else 0


def bytes_in(leaf: Any) -> int:
    """What the numbers in a leaf take as an array of JAX."""
    elements = elements_in(leaf)
    if not elements:
        return 0
    dtype: Any = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return elements * int(dtype.itemsize)


def memory_of(leaf: Any) -> object:
    """What is equal for two leaves when they are one array or one ref; None for what is neither."""
    if is_ref(leaf):
        return id(leaf)
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    if isinstance(leaf, Tracer | np.ndarray) or leaf.is_deleted():
        return id(cast("Any", leaf))
    # Two objects may share one buffer, as jax.device_put(x) and x[:] do.
    array: Any = leaf
    try:
        if len(array.sharding.device_set) == 1:  # the shard is the array; to make one takes 20 times as long
            return (array.unsafe_buffer_pointer(),)
        return tuple(shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards)
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
    groups = _by_class(tree) if by == "class" else _by_field(tree)
    return {name: sum(map(size, leaves)) for name, leaves in groups.items()}


def _by_field(tree: Any) -> dict[str, list[Any]]:
    """All leaves and `None`s by the name of the place at the top of the tree that they are below."""
    level = None if tree is None else level_of(tree)
    if level is None:
        return {class_of(tree).__qualname__: [tree]}
    groups: dict[str, list[Any]] = {}
    for key, child in level.children:
        leaves = jax.tree.leaves(child, is_leaf=is_none)
        if leaves:
            groups.setdefault(str(place_of(key)[1]), []).extend(leaves)
    return groups


def _by_class(tree: Any) -> dict[str, list[Any]]:
    """All leaves and `None`s by the class of the node that holds them."""
    groups: dict[str, list[Any]] = {}
    is_leaf = SureLeaves()
    waiting: list[tuple[str, Iterator[Any]]] = [(class_of(tree).__qualname__, iter((tree,)))]
    while waiting:
        owner, values = waiting[-1]
        for value in values:
            if value is None or is_leaf[type(value)]:
                groups.setdefault(owner, []).append(value)
                continue
            children = _children_of(value)
            if children is not None:
                waiting.append((class_of(value).__qualname__ if is_node(value) else owner, iter(children)))
                break
            groups.setdefault(owner, []).append(value)
        else:
            waiting.pop()
    return groups


def _children_of(value: Any) -> Iterable[Any] | None:
    """What is directly below a value; None for a leaf. `level_of` makes a key for each."""
    if is_node(value):
        return finished_pair(value)[0]
    if class_of(value) in {list, tuple}:
        return cast("Iterable[Any]", value)
    level = level_of(value)
    return None if level is None else [child for _, child in level.children]


def find_aliases(tree: object) -> list[tuple[str, ...]]:
    """The places where one array or ref stands more than once, as paths: one tuple for each such array.

    `jit` makes two arrays of it, so that gradients and optimisers untie what was tied, and it can't be donated twice.
    A call with one ref in two places is refused by JAX.

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
