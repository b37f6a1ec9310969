"""The methods of a node that Python calls: `==`, `hash`, `copy`, `pickle`, attributes; and the public flatten pair."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import copy as copying
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.functions import class_of, kept_in_pickles
from treewright._core.instance import (
    PAIR,
    Pair,
    finished_pair,
    from_pair,
    is_open,
    pair_or_unfinished,
    refuse_change,
    replaced,
    set_attribute,
)
from treewright._core.jax_private import is_key_dtype, jax_trees
from treewright._core.jax_refs import content_of, is_ref
from treewright._core.keys import ExactKeys, compared_by_itself, exact_key
from treewright._core.plain import NoExactKeyError, problem_of
from treewright._core.spec import NodeSpec, spec_of
from treewright._core.statics import Statics
from treewright._core.text import (
    PATIENCE,
    Verbatim,
    array_text,
    first_text,
    in_html,
    node_repr,
    seen_array,
    shown_fields,
)
from treewright.errors import TracedComparisonError

_store = object.__setattr__


def delete_attribute(self: Any, name: str) -> None:
    """Only while `__init__` runs; afterwards a node is frozen."""
    if not is_open(self):
        refuse_change(self, name, "delete")
    object.__delattr__(self, name)


def tree_flatten(self: Any) -> Pair:
    """`(children, aux_data)`: the values of the child fields in order, and the one object of all static fields."""
    return finished_pair(self)


def tree_unflatten(cls: type[Any], aux_data: object, children: Iterable[Any]) -> Any:
    """A node from what `tree_flatten` gave, with any children in place of the old ones.

    Runs no constructor, converter or check, so sentinels, tracers and specs pass.

    Raises:
        TypeError: If `aux_data` does not come from a node of this class.
        ValueError: If the number of children is not that of the class.
    """
    spec = spec_of(cls)
    values = tuple(children)
    if not isinstance(aux_data, Statics) or aux_data.table is not spec.table:
        raise TypeError(
            f"{cls.__qualname__}.tree_unflatten takes the aux_data of a {cls.__qualname__}, got "
            f"{first_text(aux_data)}. Take it from tree_flatten() of an instance."
        )
    if len(values) != len(spec.children):
        names = ", ".join(field.name for field in spec.children) or "none"
        raise ValueError(
            f"{cls.__qualname__} has the children {names}, {len(spec.children)} in all, got {len(values)}."
        )
    return from_pair(cls, (values, aux_data))


def equal(self: Any, other: object) -> Any:
    """A plain `bool`: same class, same statics, and children equal in structure, shape, dtype and value.

    NaN equals itself. Children that are not arrays compare as exactly as statics: `1`, `True` and `1.0` differ, and so
    do `0.0` and `-0.0`. Fields with `compare=False` are left out.

    Raises:
        TracedComparisonError: If the answer depends on a traced value.
    """
    if type(other) is not type(self):
        return NotImplemented
    if self is other:
        return True
    spec = spec_of(self)
    children, statics = finished_pair(self)
    other_children, other_statics = finished_pair(other)
    if statics is not other_statics and not _equal_statics(spec, statics, other_statics):
        return False
    # Every child before the first leaf: a difference in structure needs no values.
    compared = [index for index, field in enumerate(spec.children) if field.equal]
    ours = [jax_trees.tree_flatten(children[index]) for index in compared]
    theirs = [jax_trees.tree_flatten(other_children[index]) for index in compared]
    if any(a[1] != b[1] for a, b in zip(ours, theirs, strict=True)):
        return False
    return all(
        leaves_equal(left, right, f"{spec.cls.__qualname__}.{spec.children[index].name}")
        for index, a, b in zip(compared, ours, theirs, strict=True)
        for left, right in zip(a[0], b[0], strict=True)
    )


def _equal_statics(spec: NodeSpec, statics: Statics, others: Statics) -> bool:
    """Whether two that are not one differ in nothing but fields with `compare=False`."""
    compared = [index for index, field in enumerate(spec.statics) if field.equal]
    return len(compared) < len(spec.statics) and all(statics.keys[index] == others.keys[index] for index in compared)


def leaves_equal(left: Any, right: Any, place: str) -> bool:
    """Whether two leaves are equal: arrays by shape, dtype and value, refs by what they hold, all else as statics."""
    if left is right:
        return True
    if is_ref(left) or is_ref(right):
        return is_ref(left) and is_ref(right) and leaves_equal(content_of(left), content_of(right), place)
    if not any(isinstance(leaf, jax.Array | np.ndarray) for leaf in (left, right)):
        return _scalars_equal(left, right)
    both = all(isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in (left, right))
    if not both or left.shape != right.shape or left.dtype != right.dtype:
        return False
    if any(isinstance(leaf, Tracer) for leaf in (left, right)):
        raise TracedComparisonError(
            f"{place} is traced, so == has no value to compare and can't answer with a bool. Compare outside of jit, "
            f"or compare the arrays themselves with jnp.array_equal."
        )
    if is_key_dtype(left.dtype):
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype == object:
        return all(leaves_equal(x, y, place) for x, y in zip(a.flat, b.flat, strict=True))
    same: Any = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  NaN
    return bool(np.all(same))


def _scalars_equal(left: Any, right: Any) -> bool:
    """As exactly as statics, since a node that can be hashed may be a static argument of a jitted function."""
    try:
        return bool(exact_key(left) == exact_key(right))
    except NoExactKeyError:
        same: Any = type(left) is type(right) and left == right
    try:
        return bool(same)
    except ValueError:  # an array of answers
        return bool(np.all(same))


class _Hashed:
    """Stands for a value whose hash is known: each value is hashed once, not once a level of nesting."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


def _hash_of_value(value: object) -> int:
    """The hash of a value; where `==` of nodes is finer or coarser than Python's, that of its exact key."""
    if hasattr(type(value), "__node_spec__"):  # its own __hash__; called past hash(), which C limits in depth
        own: Any = class_of(value).__hash__
        return hash(value) if own is None else int(own(value))
    if type(value) is tuple:
        return hash(tuple(_Hashed(_hash_of_value(item)) for item in cast("tuple[object, ...]", value)))
    try:
        key = exact_key(value)
    except NoExactKeyError:
        if is_ref(value):
            raise TypeError("unhashable type: 'Ref'") from None  # JAX hashes it by identity, and == reads it
        return hash(value)
    return hash(value) if compared_by_itself(value, key) else hash(key)


def hash_of(self: Any) -> int:
    """By value, where all leaves can be hashed, as a tuple of the fields.

    Raises:
        TypeError: If a child holds an array, or anything else that can't be hashed.
    """
    spec, pair = spec_of(self), finished_pair(self)
    values: list[_Hashed] = []
    for field in spec.fields:
        if not field.hash:
            continue
        value = field.value_in(pair)
        try:
            values.append(_Hashed(_hash_of_value(value)))
        except TypeError as error:
            method = " As the function to jit or checkpoint, give its method: jit(node.__call__)." * callable(self)
            raise TypeError(
                f"unhashable type: {spec.cls.__qualname__}.{field.name} holds {_kind_text(value)}, so the node has no "
                f"hash. As an argument of a jitted function it needs none; as a static or a dict key it "
                f"does, and then every child must be hashable.{method}"
            ) from error
    return hash(tuple(values))


def _kind_text(value: object) -> str:
    shown = array_text(value)
    return repr(class_of(value).__name__) if shown is None else f"an array, {shown}"


def exact_key_of(self: Any, keys: ExactKeys) -> Hashable:
    """A node as a static of another: by class, statics and the exact keys of its children."""
    if is_open(self):
        raise problem_of(self)
    children, statics = finished_pair(self)
    cls: Any = class_of(self)
    return (cls, keys.statics(statics), *map(keys.key, children))


def copy(self: Any) -> Any:
    """A node with the same children and statics."""
    if not hasattr(class_of(self), "__node_spec__"):  # what is asked here first leaves the class to another library
        return copying.copy(self)
    return from_pair(class_of(self), finished_pair(self))


def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """A node with deep copies of the children; statics never change and are shared."""
    if not hasattr(class_of(self), "__node_spec__"):
        return copying.deepcopy(self, memo)
    children, statics = finished_pair(self)
    node = empty_node(class_of(self))
    memo[id(self)] = node
    _store(node, PAIR, (copying.deepcopy(children, memo), statics))
    return node


def reduce(self: Any) -> tuple[Any, ...]:
    """Pickle the pair: no `__init__` runs when it comes back."""
    if not hasattr(class_of(self), "__node_spec__"):
        return cast("tuple[Any, ...]", self.__reduce_ex__(2))
    children, statics = finished_pair(self)
    names = (field.name for field in spec_of(self).children)
    # The function that fills the node goes with the pickle: an instance that hangs on its own class comes back before
    # the class has its methods.
    return (empty_node, (type(self),), (dict(zip(names, children, strict=True)), statics), None, None, set_state)


@kept_in_pickles
def empty_node(cls: type[Any]) -> Any:
    """A node without values, for `set_state` to fill."""
    getattr(cls, "__node_spec__", None)  # an undecorated class becomes a node, if nothing has used it so far
    node: Any = object.__new__(cls)
    return node


@kept_in_pickles
def set_state(self: Any, state: tuple[dict[str, Any], Statics]) -> None:
    """Fill a node that comes back from a pickle."""
    if pair_or_unfinished(self) is not None:
        refuse_change(self, "__setstate__")
    children, statics = state
    spec: Any = getattr(class_of(self), "__node_spec__", None)
    names: list[str] = list(children) if spec is None else [field.name for field in spec.children]
    if set(names) != set(children) or (spec is not None and statics.table is not spec.table):
        raise TypeError(
            f"The pickle holds the children {', '.join(children) or 'none'} of {class_of(self).__qualname__}, which "
            f"now has {', '.join(names) or 'none'}. It was written by another version of the class."
        )
    _store(self, PAIR, (tuple(children[name] for name in names), statics))


# For printers of other libraries


def node_rich_repr(self: Any) -> Iterator[tuple[str, Any]]:
    """For `rich`: the fields, arrays as short text."""
    until = time.monotonic() + PATIENCE
    for name, value in shown_fields(self):
        yield name, _shortened(value, until, frozenset())


def _shortened(value: Any, until: float, inside: frozenset[int]) -> Any:
    """The value with short text in place of its arrays, in lists, tuples and dicts too."""
    short = seen_array(value, until)
    if short is not None:
        return Verbatim(short)
    kind = class_of(value)
    if kind not in {list, tuple, dict}:
        return value
    if id(value) in inside:
        return Verbatim("...")
    inside |= {id(value)}
    if kind is dict:
        return cast("Any", {key: _shortened(item, until, inside) for key, item in value.items()})
    return cast("Any", kind)(_shortened(item, until, inside) for item in value)


def node_wadler_lindig(self: Any, **options: Any) -> Any:
    """For `wadler_lindig`, which lays out long representations over several lines."""
    import wadler_lindig

    return wadler_lindig.bracketed(
        begin=wadler_lindig.TextDoc(f"{type(self).__qualname__}("),
        docs=cast("Any", wadler_lindig).named_objs(shown_fields(self), **options),
        sep=wadler_lindig.comma,
        end=wadler_lindig.TextDoc(")"),
        indent=options["indent"],
    )


_STATIC_STYLE = "color: #b45309; font-style: italic"


def node_treescope_repr(self: Any, path: str | None, subtree_renderer: Any) -> Any:
    """For `treescope`: a foldable object with its fields; statics and buffers are told apart from plain children."""
    from treescope import rendering_parts as parts

    kinds = {field.name: field.kind for field in spec_of(self).fields}
    shown = list(shown_fields(self))
    lines: list[Any] = []
    for index, (name, value) in enumerate(shown, 1):
        label, kind = parts.text(name), kinds[name]
        if kind == "static":
            label = parts.custom_style(label, _STATIC_STYLE)
        note = "" if kind == "child" else f"  # {kind}"
        end = parts.fold_condition(
            collapsed=parts.text("" if index == len(shown) else ", "),
            expanded=parts.siblings(",", parts.comment_color(parts.text(note))),
        )
        child = subtree_renderer(value, path=None if path is None else f"{path}.{name}")
        line = parts.siblings_with_annotations(label, "=", child)
        lines.append(parts.build_full_line_with_annotations(line, end))
    return parts.build_foldable_tree_node_from_children(
        prefix=parts.siblings(parts.maybe_qualified_type_name(class_of(self)), "("),
        children=lines,
        suffix=")",
        path=path,
    )


def node_repr_html(self: Any) -> Callable[[], str]:
    """For notebooks: the page of `treescope` where that is installed, else the text of `repr`.

    As a property: `treescope` asks the class for a method of this name, and would show in its page what that gives.
    A node whose class has a `__repr__` of a user's shows what that says.
    """

    def html() -> str:
        own: Any = class_of(self).__repr__
        if own is node_repr:
            try:
                import treescope
            except ImportError:
                pass
            else:
                return str(treescope.render_to_html(self, ignore_exceptions=True))
        return in_html(repr(self))

    return html


# What a node class takes over, by name. `Module` has all of them, a decorated class gets those it does not write.
Methods = MappingProxyType[str, Any]
FROZEN: Methods = MappingProxyType({"__setattr__": set_attribute, "__delattr__": delete_attribute})
COMPARISON: Methods = MappingProxyType({"__eq__": equal, "__hash__": hash_of, "__repr__": node_repr})
OTHERS: Methods = MappingProxyType(
    {
        "tree_flatten": tree_flatten,
        "tree_unflatten": classmethod(tree_unflatten),
        "__copy__": copy,
        "__deepcopy__": deepcopy,
        "__reduce__": reduce,
        "__replace__": replaced,
        "_exact_key_": exact_key_of,
        "__rich_repr__": node_rich_repr,
        "__pdoc__": node_wadler_lindig,
        "__treescope_repr__": node_treescope_repr,
        "_repr_html_": property(node_repr_html),
    }
)
