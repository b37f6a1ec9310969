"""How large a tree is, and which of its leaves are one array."""

from collections.abc import Callable
from typing import Any, Literal, overload

import jax

from treewright._trees.inventory import Item, bytes_in, elements_in, items_of, memory_of
from treewright._trees.paths import Path, path_text, place_of

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
