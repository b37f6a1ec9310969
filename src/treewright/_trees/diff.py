"""What differs between two trees, place by place; and whether they are close."""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from treewright._core import NoExactKeyError, exact_key, flat_form, leaves_equal, public, spec_of
from treewright._core.jax_private import (
    DictKey,
    GetAttrKey,
    Key,
    Path,
    SequenceKey,
    is_ref,
    is_ref_type,
    jax_trees,
    path_text,
)
from treewright._core.text import LENGTH, common_start, cut_text, short_text
from treewright._lines import counted, first_of, mesh_text
from treewright._trees.level import AuxKey, LeafType, Level, Structure, leaf_type_of, level_of

_OfTrees: TypeAlias = Literal["class", "static", "added", "removed", "shape", "dtype", "weak_type", "sharding", "value"]
_OfCalls: TypeAlias = Literal["placement", "passing", "setting", "option", "function"]
DifferenceKind: TypeAlias = _OfTrees | _OfCalls

_BY_VALUE = ("static", "setting", "option", "function")  # of which the values themselves are shown
_OF_TYPES = ("shape", "dtype", "weak_type", "memory_space")
_DEPTH = 8  # levels inside of a static that are searched for what has changed
_SEPARATE = 4  # places in one container that are named; where more have changed, it has changed as a whole


class Absent(enum.Enum):
    """What stands where one of two trees has nothing."""

    ABSENT = "nothing"


ABSENT = Absent.ABSENT


@public("treewright")
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """One place where two trees differ. `str` gives it in one line.

    Putting `right` at `path` of the left tree, for each difference, gives the right tree.

    Args:
        path: The place, as JAX's keys; statics have the key of their field.
        left: What the left tree has there: a leaf, a static, or a whole subtree. `ABSENT` if nothing.
        right: What the right tree has there.
        kind: `"class"` (of nodes or containers, a leaf against one, or a ref against an array), `"static"`, `"added"`,
            `"removed"`; of leaves `"shape"`, `"dtype"`, `"weak_type"`, `"sharding"`, `"value"`. In reports on retraces
            also `"placement"` (of an array on devices), `"passing"` (by position or keyword), `"setting"` of JAX,
            `"option"` of `jit`, and `"function"`, where another function of the same definition was traced.
        reason: Why they differ, where the values alone do not show it; else empty.
        parts: Of a static that is a tuple, a dict, a dataclass or the like: the places inside where it differs.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        >>> for difference in diff([Layer(jnp.ones(2))], [Layer(jnp.ones(3), "gelu")]):
        ...     print(difference)
        [0].activation (static): 'relu' -> 'gelu'
        [0].kernel (shape): float32[2] -> float32[3]; axis 0: 2 -> 3
    """

    path: Path
    left: Any
    right: Any
    kind: DifferenceKind
    reason: str = ""
    parts: "tuple[Difference, ...]" = ()

    def __str__(self) -> str:
        if self.parts:
            return "; ".join(map(str, self.parts))
        reason = f"; {self.reason}" if self.reason else ""
        return f"{path_text(self.path) or 'the whole tree'} ({self.kind}): {self.change}{reason}"

    @property
    def change(self) -> str:
        """`'relu' -> 'gelu'`: both values, cut to a readable length."""
        if self.kind == "added":
            return shown(self.right)
        if self.kind == "removed":
            return shown(self.left)
        if self.kind == "placement":
            return f"{self.left.placement} -> {self.right.placement}"
        if self.kind == "passing":
            return f"{self.left} -> {self.right}"
        if self.kind in _BY_VALUE or (self.kind == "value" and not hasattr(self.left, "shape")):
            return " -> ".join(short_texts(self.left, self.right))
        return f"{shown(self.left)} -> {shown(self.right)}"


def short_texts(left: Any, right: Any) -> Sequence[str]:
    """The texts of two values that differ: as short as one alone, and different wherever that is possible."""
    texts = short_text(left), short_text(right)
    if texts[0] != texts[1]:
        return texts
    if isinstance(left, str) and isinstance(right, str):
        return excerpts((left, right), LENGTH // 2, show=repr)
    return short_text(left, with_module=True), short_text(right, with_module=True)


def excerpts(texts: Sequence[str], width: int, *, show: Callable[[str], str] = str) -> list[str]:
    """Texts that differ, those longer than `width` from a little before the place where they begin to differ."""
    same = len(common_start(texts))
    start = max(0, same - width // 3)
    end = start + width
    return [
        text
        if len(text) <= width
        else f"{'...' if start else ''}{show(text[start:end])}{'...' if end < len(text) else ''}"
        for text in texts
    ]


def shown(tree: Any) -> str:
    """An array as its type, a node or container as its class with its parts, anything else as it is."""
    tree = Structure(tree) if isinstance(tree, jax_trees.PyTreeDef) else tree
    opened = level_of(tree) or leaf_type_of(tree)
    as_it_is = isinstance(opened, LeafType) and (opened.python or opened.aval is None) and not opened.anything
    return short_text(tree) if as_it_is else cut_text(repr(opened))


def diff(left: Any, right: Any, *, values: bool = True) -> list[Difference]:
    """Every difference between two trees, or between two treedefs, in the order of the fields.

    Subtrees that are one object are not looked at. Nothing is unflattened, so no constructor runs.

    Args:
        left: Any tree, or a treedef.
        right: What to compare it with.
        values: Whether leaves compare by value as well, and statics exactly. With `False` two trees are the same where
            `jit` takes them for the same: leaves of one shape, dtype, weak type and sharding, statics of foreign
            classes by `==`.

    Returns:
        One `Difference` for each place; none if the trees are equal.

    Raises:
        TracedComparisonError: If values were to be compared and one is traced.

    Examples:
        >>> [difference] = diff({"x": 1, "y": 2}, {"x": 1, "y": 3})
        >>> difference.path, difference.left, difference.right, difference.kind
        ((DictKey(key='y'),), 2, 3, 'value')
    """
    if isinstance(left, jax_trees.PyTreeDef) or isinstance(right, jax_trees.PyTreeDef):
        left, right = _as_structure(left), _as_structure(right)
    return list(differences(left, right, values=values))


def _as_structure(tree: Any) -> Structure:
    return Structure(tree if isinstance(tree, jax_trees.PyTreeDef) else jax.tree.structure(tree))


# Statics


def same_to_jit(left: Any, right: Any) -> bool:
    """As `jit` compares the statics of foreign classes: identity, then `==`."""
    if left is right:
        return True
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001  a user's `__eq__`, or an array without one answer
        return False


def same_exactly(left: Any, right: Any) -> bool:
    """As our own nodes compare statics: by exact keys, and as `jit` does where there are none."""
    if left is right:
        return True
    try:
        return bool(exact_key(left) == exact_key(right))
    except NoExactKeyError:
        return type(left) is type(right) and same_to_jit(left, right)


class Comparison(NamedTuple):
    """How statics of foreign classes, and leaves that can't be arrays, compare: live here, remembered in retraces."""

    same: Callable[[Any, Any], bool]
    parts: Callable[[Any, Any], tuple[Mapping[Key, Any], Mapping[Key, Any]]]  # of two containers
    reason: Callable[[Any, Any], str]  # why two differ; empty where their texts say it all
    alike: Callable[[Any, Any], bool] = same_exactly  # of our own nodes, where the keys of two statics do not tell


def parts_of(value: Any) -> Mapping[Key, Any]:
    """The parts of a container or dataclass by JAX's keys; nothing for what has none."""
    cls: Any = type(value)
    match value:
        case Mapping():
            return {DictKey(name): part for name, part in value.items()}
        case _ if dataclasses.is_dataclass(cls):
            names = [field.name for field in dataclasses.fields(cls)]
        case tuple() if hasattr(cls, "_fields"):
            names = cls._fields
        case list() | tuple():
            return {SequenceKey(index): part for index, part in enumerate(value)}
        case _:
            return {}
    return {GetAttrKey(name): getattr(value, name) for name in names if hasattr(value, name)}


def _parts_of_both(left: Any, right: Any) -> tuple[Mapping[Key, Any], Mapping[Key, Any]]:
    return (parts_of(left), parts_of(right)) if type(left) is type(right) else ({}, {})


def alike_reason(left: Any, right: Any) -> str:
    """How two values differ whose texts are the same; empty for others."""
    a, b = (value if isinstance(value, type) else type(value) for value in (left, right))
    if a is not b and (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__):
        text = "its class statement ran twice, as in a notebook cell that runs again, a reloaded module or a function"
        return f"two classes are named {a.__qualname__}: {text}"
    if isinstance(left, str) or short_text(left, with_module=True) != short_text(right, with_module=True):
        return ""
    return f"another {a.__qualname__} with the same text"


def static_difference(
    path: Path, old: Any, new: Any, compare: Comparison, kind: DifferenceKind = "static"
) -> Difference:
    """The difference between two statics, with the places inside where they differ."""
    places = list(_changed_places(path, old, new, compare, _DEPTH))
    found = tuple(Difference(place, a, b, kind, compare.reason(a, b)) for place, a, b in places)
    return found[0] if places[0][0] == path else Difference(path, old, new, kind, parts=found)


def _changed_places(path: Path, old: Any, new: Any, compare: Comparison, depth: int) -> Iterator[tuple[Path, Any, Any]]:
    """The innermost places where two values differ, in tuples, dicts, dataclasses and the like; else the whole."""
    ours, theirs = compare.parts(old, new) if depth else ({}, {})
    changed = [key for key in ours if key not in theirs or not compare.same(ours[key], theirs[key])]
    if ours.keys() == theirs.keys() and 0 < len(changed) <= _SEPARATE:
        for key in changed:
            yield from _changed_places((*path, key), ours[key], theirs[key], compare, depth - 1)
    else:
        yield path, old, new


# Trees


def differences(
    left: Any, right: Any, *, values: bool, path: Path = (), compare: Comparison | None = None
) -> Iterator[Difference]:
    """`diff`, one at a time, of trees that hang at `path`."""
    compare = compare or Comparison(same_exactly if values else same_to_jit, _parts_of_both, alike_reason)
    waiting: list[tuple[Path, Any, Any]] = [(path, left, right)]
    while waiting:
        path, a, b = waiting.pop()
        if a is b:
            continue
        below = _pairs_below(a, b)
        if below is not None:
            waiting.extend([((*path, key), x, y) for key, x, y in below if x is not y][::-1])
            continue
        old, new = level_of(a), level_of(b)
        if old is None and new is None:
            found = _leaf_difference(a, b, compare, path if values else None)
            if found is not None:
                yield Difference(path, a, b, *found)
        elif old is None or new is None or old.kind is not new.kind:
            reason = compare.reason(old.kind, new.kind) if old and new else ""
            yield Difference(path, _bare(a), _bare(b), "class", reason)
        else:
            yield from _static_differences(path, old, new, compare)
            pairs, unpaired = _children_of_both(path, old, new)
            yield from unpaired
            waiting.extend(reversed(pairs))


def _pairs_below(a: Any, b: Any) -> "Iterable[tuple[Key, Any, Any]] | None":
    """What is below two trees of which only that can differ: 5 times faster than opening them (benchmarks: diff)."""
    cls = type(a)
    if cls is type(b) and hasattr(cls, "__node_spec__"):
        (children, statics), (others, other_statics) = flat_form(a), flat_form(b)
        return zip(spec_of(a).table.keys, children, others, strict=True) if statics is other_statics else None
    if cls is not type(b) or cls not in {list, tuple} or len(a) != len(b):
        return None
    return ((SequenceKey(index), x, y) for index, (x, y) in enumerate(zip(a, b, strict=True)) if x is not y)


def _bare(tree: Any) -> Any:
    return tree.treedef if isinstance(tree, Structure) else tree


def _children_of_both(path: Path, old: Level, new: Level) -> tuple[list[tuple[Path, Any, Any]], list[Difference]]:
    """Pairs of children that are still to be compared, and those that only one has."""
    if len(old.children) == len(new.children):
        pairs = list(zip(old.children, new.children, strict=True))
        if all(key == other for (key, _), (other, _) in pairs):
            return [((*path, key), a, b) for (key, a), (_, b) in pairs if a is not b], []
    ours, theirs = dict(old.children), dict(new.children)
    removed = [Difference((*path, key), _bare(ours[key]), ABSENT, "removed") for key in ours if key not in theirs]
    added = [Difference((*path, key), ABSENT, _bare(theirs[key]), "added") for key in theirs if key not in ours]
    return [((*path, key), ours[key], theirs[key]) for key in ours if key in theirs], removed + added


def _static_differences(path: Path, old: Level, new: Level, compare: Comparison) -> Iterator[Difference]:
    if old.aux is new.aux or (old.exact is None and compare.same(old.aux, new.aux)):
        return
    theirs = dict(new.statics)
    pairs = [(key, value, theirs.get(key, ABSENT)) for key, value in old.statics]
    if old.exact is None or new.exact is None:
        changed = [pair for pair in pairs if not compare.same(*pair[1:])]
    else:  # equal keys of unequal hashes are two statics as well
        keys = zip(old.exact, new.exact, strict=True)
        changed = [pair for pair, (a, b) in zip(pairs, keys, strict=True) if a != b or hash(a) != hash(b)]
        changed = changed or [pair for pair in pairs if not compare.alike(*pair[1:])]  # an object changed in place
    yield from (static_difference((*path, key), value, other, compare) for key, value, other in changed)
    names, others = ([key for key, _ in level.children] for level in (old, new))
    if changed or old.exact is not None or set(names) != set(others):
        return
    if names == others:  # what aux_data holds besides named fields
        yield static_difference((*path, AuxKey()), old.aux, new.aux, compare)
    else:
        old_order, new_order = (tuple(getattr(key, "key", key) for key in order) for order in (names, others))
        yield Difference(path, old_order, new_order, "static", "the same entries in another order")


# Leaves


def _leaf_difference(
    left: Any, right: Any, compare: Comparison, path: Path | None
) -> "tuple[DifferenceKind, str] | None":
    """What `jit` sees of a difference between leaves, and where they have a path, what else differs in their values."""
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
    abstract = isinstance(left, LeafType | jax.ShapeDtypeStruct) or isinstance(right, LeafType | jax.ShapeDtypeStruct)
    if path is None or abstract or leaves_equal(left, right, lambda: path_text(path)):
        return None
    return "value", _distance(_content_of(left), _content_of(right))


def _difference_of_types(old: LeafType, new: LeafType) -> tuple[DifferenceKind, str]:
    a, b = old.aval, new.aval
    if is_ref_type(a) != is_ref_type(b):
        return "class", "a ref and an array are two types"
    # Abstract tokens and references have not all of these.
    changed = [name for name in _OF_TYPES if getattr(a, name, None) != getattr(b, name, None)]
    if "shape" in changed:
        axes = enumerate(zip(a.shape, b.shape, strict=True)) if len(a.shape) == len(b.shape) else ()
        return "shape", ", ".join(f"axis {axis}: {x} -> {y}" for axis, (x, y) in axes if x != y)
    if "dtype" in changed or "weak_type" in changed:
        weak = _weak_one(old, new) if "weak_type" in changed else ""
        return "dtype" if "dtype" in changed else "weak_type", weak
    if changed:
        return "sharding", "the memory that it lies in is part of the type"
    if str(a) == str(b):
        meshes = [mesh_text(getattr(getattr(aval, "sharding", None), "mesh", None)) for aval in (a, b)]
        return "sharding", f"made under {meshes[0]}, and now under {meshes[1]}"
    return "sharding", "the sharding is part of the type on a mesh of explicit axes"


def _weak_one(old: LeafType, new: LeafType) -> str:
    numbers = [f"a Python {leaf.python.__name__}" for leaf in (old, new) if leaf.python is not None]
    if len(numbers) == 2:
        return ""
    which = f"{numbers[0]} is weakly typed" if numbers else "one is weakly typed, as Python numbers are"
    return f"{which}: its dtype gives way to that of others"


# Numbers


def _content_of(leaf: Any) -> Any:
    """What a ref holds now; anything else as it is."""
    return leaf[...] if is_ref(leaf) else leaf


def _distance(left: Any, right: Any) -> str:
    """How many elements of two arrays differ, and by how much; nothing for what is not a number."""
    if not (_is_numeric(left) and _is_numeric(right) and hasattr(left, "dtype")) or left.dtype == bool:
        return ""
    _, _, apart, distance = _apart(left, right)
    largest = np.max(distance, where=apart, initial=0.0)
    return f"{np.count_nonzero(apart)} of {apart.size} elements differ, by at most {largest:.3g}"


def _apart(left: Any, right: Any, rtol: float = 0.0, atol: float = 0.0) -> tuple[Any, Any, Any, Any]:
    """Two arrays or numbers in a dtype in which their distance has no rounding, where they are apart, and how far."""
    both = np.asarray(left), np.asarray(right)
    wide: Any = np.complex128 if any(map(np.iscomplexobj, both)) else np.float64
    if all(numbers.dtype.kind in "biuO" for numbers in both) and any(numbers.itemsize == 8 for numbers in both):
        wide = object  # Python's integers
    a, b = (numbers.astype(wide) for numbers in both)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.asarray(np.abs(a - b))
        close = (distance <= atol + rtol * np.abs(b)) & (np.abs(b) < np.inf)
    equal = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  NaN equals itself here
    return a, b, ~np.asarray(close | equal, bool), distance


@dataclasses.dataclass(frozen=True, slots=True)
class Closeness:
    """The answer of `allclose`: true if the trees are close; `str` says where they are not, and by how much.

    Args:
        apart: One line for each place where they are not close.
    """

    apart: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.apart

    def __str__(self) -> str:
        places = f"not close in {counted(len(self.apart), 'place')}:"
        return "\n  ".join([places, *first_of(self.apart)]) if self.apart else "close"

    def __repr__(self) -> str:
        return f"<{self}>"


def allclose(actual: object, expected: object, *, rtol: float = 1e-5, atol: float = 1e-8) -> Closeness:
    """Whether two trees are of one structure, with the same statics and shapes, and with values that are close.

    Close means `abs(actual - expected) <= atol + rtol * abs(expected)`, and NaN is close to NaN. Dtypes may differ, and
    a ref is compared by what it holds, with an array too; `diff` finds those as well. What is not a number has to be
    equal.

    Args:
        actual: A node, or any other tree.
        expected: What it should be.
        rtol: The tolerance relative to `expected`.
        atol: The absolute tolerance.

    Returns:
        Something that is true or false, and that says where and by how much: `assert allclose(a, b)` shows it.

    Raises:
        TracedComparisonError: If a value is traced.

    Examples:
        >>> bool(allclose({"w": jnp.ones(3)}, {"w": jnp.ones(3) + 1e-7}))
        True
        >>> print(allclose({"w": jnp.ones(3), "n": 1}, {"w": jnp.ones(3).at[1].set(1.5), "n": 1}))
        not close in 1 place:
          ['w']: 1 of 3 elements are apart, most at [1]: 1.0 and 1.5, by 0.5
    """
    lines = (_line(difference, rtol, atol) for difference in differences(actual, expected, values=True))
    return Closeness(tuple(line for line in lines if line))


def _line(difference: Difference, rtol: float, atol: float) -> str:
    """How far the values are apart where two trees differ; nothing if they are close."""
    left, right = _content_of(difference.left), _content_of(difference.right)
    of_values = difference.kind in {"value", "dtype", "weak_type", "sharding", "placement"}
    of_refs = is_ref(difference.left) != is_ref(difference.right) and np.shape(left) == np.shape(right)
    if not ((of_values or of_refs) and _is_numeric(left) and _is_numeric(right)):
        return str(difference)
    a, b, apart, distance = _apart(left, right, rtol, atol)
    if not apart.any():
        return ""
    furthest = np.where(apart, np.nan_to_num(distance, nan=np.inf, posinf=np.inf), -1.0).argmax()
    worst = np.unravel_index(int(furthest), distance.shape)
    name = path_text(difference.path) or "the whole tree"
    where = f" at [{', '.join(map(str, worst))}]" if worst else ""
    values = f"{a[worst]} and {b[worst]}, by {distance[worst]:.3g}"
    return f"{name}: {np.count_nonzero(apart)} of {a.size} elements are apart, most{where}: {values}"


def _is_numeric(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return leaf.dtype == bool or bool(jax.numpy.issubdtype(leaf.dtype, np.number))
    return isinstance(leaf, int | float | complex)
