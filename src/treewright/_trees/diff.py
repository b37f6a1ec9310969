"""Compare two trees: `diff` lists the differences by path, `allclose` compares with a tolerance."""

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._base.jax_private import (
    Key,
    Path,
    SequenceKey,
    is_ref,
    is_ref_type,
    jax_trees,
    path_text,
)
from treewright._base.text import short_text
from treewright._core import equal_keys, flat_form, info_of, is_node_class, leaves_equal
from treewright._reports import counted, first_lines, mesh_text
from treewright._trees.causes import cause_of, innermost, is_recreated, one_static, snapshot
from treewright._trees.difference import (
    ABSENT,
    Difference,
    DifferenceKind,
)
from treewright._trees.level import AuxKey, LeafType, Level, leaf_type_of, level_of, reject_class

_OF_SAME_SHAPE = ("value", "dtype", "weak_type", "sharding", "placement")
_OF_TYPES = ("shape", "dtype", "weak_type", "memory_space")
_WIDTH, _MAX_SHOWN = 100, 20  # characters per line and entries of a printed list of differences


class Differences(list[Difference]):
    """The list that `diff` returns. It prints its first entries, one per line."""

    def __repr__(self) -> str:
        wrapper = textwrap.TextWrapper(_WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        entries: Any = self  # first_lines() slices, so only the printed entries are formatted
        shown = [wrapper.fill(str(entry)) for entry in first_lines(entries, _MAX_SHOWN, more="more differences")]
        return "\n".join(shown) or "no differences"


def diff(left: Any, right: Any, *, values: bool = True) -> "Differences":
    """Every difference between two trees, or between two treedefs, in the order of the fields.

    Subtrees that are the same object in both trees are skipped. Trees are not unflattened, but treedefs are.

    Args:
        left: Any tree, or a treedef.
        right: The tree or treedef to compare it with.
        values: Whether to compare the values of leaves, and statics exactly. With `False`, trees are compared as `jit`
            does: leaves by shape, dtype, weak type and sharding, statics of foreign classes by `==`. A
            `jax.ShapeDtypeStruct` has no value, so it is always compared like this.

    Returns:
        A list of one `Difference` per place; empty if the trees are equal. It prints the first 20, in lines of at most
        100 characters.

    Raises:
        TracedComparisonError: If values are compared and one is traced.
        TypeError: If one is a class.

    Examples:
        >>> diff({"x": jnp.ones(1000), "y": 2}, {"x": jnp.zeros(1000), "y": 3})
        ['x'] (value): float32[1000] -> float32[1000]; 1000 of 1000 elements differ, by at most 1
        ['y'] (value): 2 -> 3
        >>> [difference] = diff({"x": 1, "y": 2}, {"x": 1, "y": 3})
        >>> difference.path, difference.left, difference.right, difference.kind
        ((DictKey(key='y'),), 2, 3, 'value')
    """
    reject_class("diff", left, right)
    if isinstance(left, jax_trees.PyTreeDef) or isinstance(right, jax_trees.PyTreeDef):
        left, right = _without_values(left), _without_values(right)
    return Differences(differences(left, right, values=values))


def _without_values(tree: Any) -> Any:
    """A tree with the structure of a tree or treedef; its leaves are placeholders, which match any leaf."""
    treedef = tree if isinstance(tree, jax_trees.PyTreeDef) else jax.tree.structure(tree)
    return jax.tree.unflatten(treedef, [LeafType(None, anything=True)] * treedef.num_leaves)


# Statics


class Comparator(NamedTuple):
    """How to compare statics and leaves that can't be arrays: live values, or snapshots of them."""

    exactly: bool  # as nodes compare their statics, also those of foreign classes
    reasons: bool = True  # why, and where inside a static, two values differ; without reasons, a third of the time

    def same(self, left: Any, right: Any) -> bool:
        return one_static(left, right, exactly=self.exactly)

    def reason(self, left: Any, right: Any) -> str:
        """Why two values differ; empty if their texts show it."""
        return (self.reasons and cause_of(left, right)) or ""


def static_difference(
    path: Path, old: Any, new: Any, compare: Comparator, kind: DifferenceKind = "static"
) -> Difference:
    """The difference between two statics, with the differences inside."""
    changes = innermost(old, new, only_containers=True, exactly=compare.exactly) if compare.reasons else []
    if not changes:
        return Difference(path, old, new, kind, compare.reason(old, new))
    sides = [(snapshot(each.left), snapshot(each.right)) for each in changes]
    parts = [
        Difference((*path, *each.path), each.left, each.right, kind, compare.reason(*pair))
        for each, pair in zip(changes, sides, strict=True)
    ]
    # A new function with the same contents is reported only if nothing else differs.
    is_listed = [len(parts) == 1 or not is_recreated(*pair) for pair in sides]
    listed = list(itertools.compress(parts, is_listed)) or parts
    return Difference(path, old, new, kind, parts=tuple(listed))


# Trees


def differences(left: Any, right: Any, *, values: bool, path: Path = (), reasons: bool = True) -> Iterator[Difference]:
    """The differences between two trees that are at `path` in a larger one."""
    compare = Comparator(values, reasons)
    queue: list[tuple[Path, Any, Any]] = [(path, left, right)]
    while queue:
        path, a, b = queue.pop()
        if a is b:
            continue
        below = _pairs_below(a, b)
        if below is not None:
            queue.extend([((*path, key), x, y) for key, x, y in below if x is not y][::-1])
            continue
        old, new = level_of(a), level_of(b)
        if old is None and new is None:
            kind_and_reason = _leaf_difference(a, b, compare, path, values=values)
            if kind_and_reason is not None:
                yield Difference(path, a, b, *kind_and_reason)
        elif old is None or new is None or old.cls is not new.cls:
            reason = compare.reason(old.cls, new.cls) if old and new else ""
            yield Difference(path, a, b, "class", reason)
        else:
            yield from _static_differences(path, old, new, compare)
            pairs, unpaired = _children_of_both(path, old, new)
            yield from unpaired
            queue.extend(reversed(pairs))


def _pairs_below(a: Any, b: Any) -> "Iterable[tuple[Key, Any, Any]] | None":
    """The children of two trees that can differ in nothing else: 5 times faster than `level_of` (benchmarks: diff)."""
    cls = type(a)
    if cls is type(b) and is_node_class(cls):
        (children, statics), (others, other_statics) = flat_form(a), flat_form(b)
        return zip(info_of(a).table.keys, children, others, strict=True) if statics is other_statics else None
    if cls is not type(b) or cls not in {list, tuple} or len(a) != len(b):
        return None
    return ((SequenceKey(index), x, y) for index, (x, y) in enumerate(zip(a, b, strict=True)) if x is not y)


def _children_of_both(path: Path, old: Level, new: Level) -> tuple[list[tuple[Path, Any, Any]], list[Difference]]:
    """The pairs of children to compare, and the differences for children that only one tree has."""
    ours, theirs = dict(old.children), dict(new.children)
    removed = [Difference((*path, key), ours[key], ABSENT, "removed") for key in ours if key not in theirs]
    added = [Difference((*path, key), ABSENT, theirs[key], "added") for key in theirs if key not in ours]
    return [((*path, key), ours[key], theirs[key]) for key in ours if key in theirs], removed + added


def _static_differences(path: Path, old: Level, new: Level, compare: Comparator) -> Iterator[Difference]:
    """The differences between the statics of two levels of one class."""
    is_foreign = old.keys is None
    compare = compare if is_foreign else compare._replace(exactly=True)
    if old.aux is new.aux or (is_foreign and compare.same(old.aux, new.aux)):
        return
    theirs = dict(new.statics)
    pairs = [(key, value, theirs.get(key, ABSENT)) for key, value in old.statics]
    if is_foreign:
        changed = [pair for pair in pairs if not compare.same(*pair[1:])]
    else:  # Keys that are equal but have different hashes are two statics.
        keys = zip(old.keys or (), new.keys or (), strict=True)
        changed = [pair for pair, (a, b) in zip(pairs, keys, strict=True) if not equal_keys(a, b) or hash(a) != hash(b)]
        changed = changed or [pair for pair in pairs if not compare.same(*pair[1:])]  # an object changed in place
    for key, value, other in changed:
        place = path if key == AuxKey(is_value=True) else (*path, key)
        yield static_difference(place, value, other, compare)
    if is_foreign and not changed:
        yield from _unnamed_differences(path, old, new, compare)


def _unnamed_differences(path: Path, old: Level, new: Level, compare: Comparator) -> Iterator[Difference]:
    """The difference in a foreign class's `aux_data` that no named part shows: a part without a name, or the order."""
    names, others = ([key for key, _ in level.children] for level in (old, new))
    if names == others:
        yield static_difference((*path, AuxKey()), old.aux, new.aux, compare)
    elif set(names) == set(others):
        old_order, new_order = (tuple(getattr(key, "key", key) for key in order) for order in (names, others))
        yield Difference(path, old_order, new_order, "static", "the same entries in a different order")


# Leaves


def _leaf_difference(
    left: Any, right: Any, compare: Comparator, path: Path, *, values: bool
) -> "tuple[DifferenceKind, str] | None":
    """The kind and reason of a difference between two leaves; None if they are alike."""
    old, new = leaf_type_of(left), leaf_type_of(right)
    if old.anything or new.anything:
        return None
    if old.aval is None or new.aval is None:
        if old.aval is not new.aval:
            return "class", ""
        return None if compare.same(old.value, new.value) else ("value", compare.reason(old.value, new.value))
    if old.aval != new.aval:
        return _difference_of_types(old, new)
    if old.placement is not None and new.placement is not None and old.placement != new.placement:
        return "placement", ""
    is_abstract = any(isinstance(leaf, LeafType | jax.ShapeDtypeStruct) for leaf in (left, right))
    if not values or is_abstract or leaves_equal(left, right, lambda: path_text(path)):
        return None
    left, right = _content_of(left), _content_of(right)
    dtypes = [str(getattr(side, "dtype", "")) for side in (left, right)]
    if all(dtypes) and dtypes[0] != dtypes[1]:
        return "dtype", f"stored as {dtypes[0]} and {dtypes[1]}"
    return "value", _distance(left, right)


def _difference_of_types(old: LeafType, new: LeafType) -> tuple[DifferenceKind, str]:
    a, b = old.aval, new.aval
    if is_ref_type(a) != is_ref_type(b):
        return "class", "a ref and an array are different types"
    # Abstract tokens and references lack some of these.
    changed = [name for name in _OF_TYPES if getattr(a, name, None) != getattr(b, name, None)]
    if "shape" in changed:
        axes = enumerate(zip(a.shape, b.shape, strict=True)) if len(a.shape) == len(b.shape) else ()
        return "shape", ", ".join(f"axis {axis}: {x} -> {y}" for axis, (x, y) in axes if x != y)
    if "dtype" in changed or "weak_type" in changed:
        weak = _weak_one(old, new) if "weak_type" in changed else ""
        return "dtype" if "dtype" in changed else "weak_type", weak
    if changed:
        return "sharding", "the memory space is part of the type"
    if str(a) == str(b):
        meshes = [mesh_text(getattr(getattr(aval, "sharding", None), "mesh", None)) for aval in (a, b)]
        return "sharding", f"created under {meshes[0]}, and now under {meshes[1]}"
    return "sharding", "the sharding is part of the type on a mesh of explicit axes"


def _weak_one(old: LeafType, new: LeafType) -> str:
    numbers = [f"a Python {leaf.python.__name__}" for leaf in (old, new) if leaf.python is not None]
    if len(numbers) == 2:
        return ""
    subject = f"{numbers[0]} is weakly typed" if numbers else "one is weakly typed, as Python numbers are"
    return f"{subject}: its dtype adapts to other operands"


# Numbers


def _content_of(leaf: Any) -> Any:
    """The current value of a ref; any other leaf unchanged."""
    return leaf[...] if is_ref(leaf) else leaf


def _distance(left: Any, right: Any) -> str:
    """How many elements of two arrays differ, and by how much; empty if they are not numeric."""
    if not (_is_numeric(left) and _is_numeric(right) and hasattr(left, "dtype")) or left.dtype == bool:
        return ""
    _, _, differs, distance = _compare(left, right)
    largest = np.max(distance, where=differs, initial=0.0)
    return f"{np.count_nonzero(differs)} of {differs.size} elements differ, by at most {largest:.3g}"


def _compare(left: Any, right: Any, rtol: float = 0.0, atol: float = 0.0) -> tuple[Any, Any, Any, Any]:
    """Two arrays or numbers in a dtype that compares without rounding, where they differ, and by how much."""
    a, b = np.asarray(left), np.asarray(right)
    common: Any = None if "O" in {a.dtype.kind, b.dtype.kind} else np.result_type(a.dtype, b.dtype)
    if common is not None and common.kind in "iu" and common.itemsize == 8:
        # Subtracting the smaller from the larger, modulo 2**64, is right also where a signed difference overflows.
        integers = a.astype(common), b.astype(common)
        larger, smaller = (extreme(*integers).view(np.uint64) for extreme in (np.maximum, np.minimum))
        distance, size = (larger - smaller).astype(np.float64), np.abs(b.astype(np.float64))
        return a, b, (larger != smaller) & ~(distance <= atol + rtol * size), distance
    wide: Any = np.complex128 if any(map(np.iscomplexobj, (a, b))) else np.float64
    if all(numbers.dtype.kind in "biuO" for numbers in (a, b)) and any(numbers.itemsize == 8 for numbers in (a, b)):
        wide = object  # Python integers, for uint64 beside int64 and for ints that no dtype holds
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.asarray(np.abs(a - b))
        close = (distance <= atol + rtol * np.abs(b)) & (np.abs(b) < np.inf)
    equal = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  NaN equals itself here
    return a, b, ~np.asarray(close | equal, bool), distance


@dataclasses.dataclass(frozen=True, slots=True)
class Closeness:
    """The result of `allclose`: true if the trees are close; `str` lists where they differ, and by how much.

    Args:
        mismatches: One line for each place where they are not close.
    """

    mismatches: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        places = f"not close in {counted(len(self.mismatches), 'place')}:"
        return "\n  ".join([places, *first_lines(self.mismatches)]) if self.mismatches else "close"

    def __repr__(self) -> str:
        return f"<{self}>"


def allclose(actual: object, expected: object, *, rtol: float = 1e-5, atol: float = 1e-8) -> Closeness:
    """Whether two trees have the same structure, statics and shapes, and values that are close.

    Close means `abs(actual - expected) <= atol + rtol * abs(expected)`, and NaN is close to NaN. Dtypes may differ, and
    a ref is compared by its value, also with an array; `diff` reports both. Values that are not numbers must be equal.

    Args:
        actual: A node, or any other tree.
        expected: The tree to compare it with.
        rtol: The tolerance relative to `expected`.
        atol: The absolute tolerance.

    Returns:
        An object that is true or false, and that prints where the trees differ: a failing `assert allclose(a, b)` shows
        it.

    Raises:
        TracedComparisonError: If a value is traced.
        TypeError: If one of the trees is a class, or a leaf is a `jax.ShapeDtypeStruct`.

    Examples:
        >>> bool(allclose({"w": jnp.ones(3)}, {"w": jnp.ones(3) + 1e-7}))
        True
        >>> print(allclose({"w": jnp.ones(3), "n": 1}, {"w": jnp.ones(3).at[1].set(1.5), "n": 1}))
        not close in 1 place:
          ['w']: 1 of 3 elements are not close, worst at [1]: 1.0 and 1.5, by 0.5
    """
    reject_class("allclose", actual, expected)
    for path, leaf in jax_trees.tree_leaves_with_path((actual, expected)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(
                f"allclose() compares values, but {path_text(path[1:]) or 'the tree'} is {short_text(leaf)}, which has "
                f"none. To compare structure, shapes and dtypes, write diff(actual, expected)."
            )
    lines = (_line(difference, rtol, atol) for difference in differences(actual, expected, values=True))
    return Closeness(tuple(line for line in lines if line))


def _line(difference: Difference, rtol: float, atol: float) -> str:
    """The line of a difference, with the distance between the values; empty if they are close."""
    left, right = _content_of(difference.left), _content_of(difference.right)
    has_same_shape = difference.kind in _OF_SAME_SHAPE
    if is_ref(difference.left) != is_ref(difference.right):
        has_same_shape = np.shape(left) == np.shape(right)
    if not (has_same_shape and _is_numeric(left) and _is_numeric(right)):
        return str(difference)
    a, b, differs, distance = _compare(left, right, rtol, atol)
    if not differs.any():
        return ""
    furthest = np.argmax(np.where(differs, np.nan_to_num(distance, nan=np.inf, posinf=np.inf), -1.0))
    worst = np.unravel_index(int(furthest), distance.shape)
    name = path_text(difference.path) or "the whole tree"
    where = f" at [{', '.join(map(str, worst))}]" if worst else ""
    values = f"{a[worst]} and {b[worst]}, by {distance[worst]:.3g}"
    return f"{name}: {np.count_nonzero(differs)} of {a.size} elements are not close, worst{where}: {values}"


def _is_numeric(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return leaf.dtype == bool or bool(jax.numpy.issubdtype(leaf.dtype, np.number))
    return isinstance(leaf, int | float | complex)
