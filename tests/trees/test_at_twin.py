"""`at` with functions that look at more than values: types, identity, sizes, `jax.tree`, and a class's own protocols.

Every leaf of the trees below is at many places, so only the way that a function takes tells which one it means.
"""

# pyright: reportFunctionMemberAccess=false, reportIndexIssue=false, reportUnusedVariable=false
# ruff: noqa: RUF005, RUF015, FURB192, B009, PLC3002  the rows are what users write
from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import itertools
import operator
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import importorskip
from treewright import Module, at, count, nbytes, static
from treewright.errors import MissingPlaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Where = Any  # a function of a tree


class Layer(Module):
    w: Any
    b: Any = None
    name: str = static(default="layer")

    def __call__(self, x: Any) -> Any:
        return x * self.w

    @property
    def last(self) -> Any:
        return self.w if self.b is None else self.b

    @functools.cached_property
    def cached(self) -> Any:
        return self.b


class Conv(Layer):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


class Net(Module):
    layers: Any
    head: Any = None
    table: Any = None

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


TIED = jnp.ones(2)
# Every `b` is None; every `w` but one is the same array.
NET = Net(
    (Layer(TIED, name="first"), Layer(jnp.ones(9)), Conv(TIED)),
    Layer(TIED, name="head"),
    {"a": None, "b": Pair(None, TIED), "c": [None, None]},
)
LONG = Net([Layer(TIED) for _ in range(40)], Layer(TIED))


def paths(tree: Any, where: Where) -> list[str]:
    """The places in the `repr` of a selection."""
    return [name.lstrip("Net") for name in repr(at(tree, where)).removeprefix("<at ").removesuffix(">").split(", ")]


# They mislead a recorder that only imitates a tree.
HOSTILE: list[tuple[Where, list[str]]] = [
    (lambda m: max(m.layers, key=count).b, [".layers[1].b"]),
    (lambda m: max(m.layers, key=nbytes).b, [".layers[1].b"]),
    (lambda m: min(reversed(m.layers), key=count).b, [".layers[2].b"]),
    (lambda m: next(x.b for x in m.layers if type(x) is not Layer), [".layers[2].b"]),
    (lambda m: [x.b for x in m.layers if type(x) is Layer], [".layers[0].b", ".layers[1].b"]),
    (lambda m: next(x.b for x in m.layers if type(x).__name__ == "Conv"), [".layers[2].b"]),
    (lambda m: {type(x): x for x in m.layers}[Conv].b, [".layers[2].b"]),
    (lambda m: next(x.b for x in m.layers if x is not m.layers[0]), [".layers[1].b"]),
    (lambda m: next(x.b for x in m.layers if x == m.layers[2]), [".layers[2].b"]),
    (lambda m: m.layers[m.layers.index(m.layers[2])].b, [".layers[2].b"]),
    (lambda m: m.head.b if callable(m.head) else m.layers[0].b, [".head.b"]),
    (lambda m: m.layers[0].b if callable(m.layers) else m.head.b, [".head.b"]),
    (lambda m: jax.tree.leaves(m.layers)[2], [".layers[2].w"]),
    (lambda m: [x for x in jax.tree.leaves(m) if x.size == 9], [".layers[1].w"]),
    (lambda m: jax.tree.leaves(m, is_leaf=lambda x: x is None)[1], [".layers[0].b"]),
    (lambda m: [x.b for x in jax.tree.leaves(m, is_leaf=callable) if callable(x)][3], [".head.b"]),
    (lambda m: dict(zip("abc", m.layers, strict=True))["c"].b, [".layers[2].b"]),
    (lambda m: operator.attrgetter("layers")(m)[-1].b, [".layers[2].b"]),
    (lambda m: (m.layers if isinstance(m.layers, tuple) else m.table["c"])[1].b, [".layers[1].b"]),
    (lambda m: m.table["c"][1] if type(m.table["c"]) is list else m.table["c"][0], [".table['c'][1]"]),
    (lambda m: m.table["b"].left if type(m.table["b"]) is Pair else m.table["a"], [".table['b'].left"]),
    (lambda m: m.layers[int(jnp.argmax(jnp.array([x.w.size for x in m.layers])))].b, [".layers[1].b"]),
    (lambda m: next(x for x in m.layers if x.name == "first").b, [".layers[0].b"]),
    (lambda m: sorted(m.layers, key=lambda x: type(x).__qualname__)[0].b, [".layers[2].b"]),
    (lambda m: next(x.b for x in m.layers if hash(type(x)) == hash(Conv)), [".layers[2].b"]),
    (lambda m: m.head.b if np.shape(m.head.w) == (2,) else m.layers[0].b, [".head.b"]),
    (lambda m: next(x.b for x in m.layers if repr(x).startswith("Conv")), [".layers[2].b"]),
    (lambda m: [max(m.layers, key=count), m.head.b], [".layers[1]", ".head.b"]),
]


@pytest.mark.parametrize(("where", "expected"), HOSTILE)
def test_a_function_that_looks_at_types_sizes_or_identity_selects_what_it_read(
    where: Where, expected: list[str]
) -> None:
    assert paths(NET, where) == expected


def without_return(m: Any) -> Any:
    m.head.b  # noqa: B018


# The None is not where the function read one, or a stand-in, which is not None, misleads the function.
NOT_CERTAIN: list[Where] = [
    without_return,
    lambda m: print(m.head.b),  # noqa: T201
    lambda m: next((x.w for x in m.layers if x.b is not None), None),
    lambda m: m.table.get("z") if m.table["a"] is None else m.head.w,
    lambda m: m.head.b if m.head.b is None else m.head.w,
    lambda m: m.head.b if len(jax.tree.leaves(m.head)) == 1 else m.layers[0].b,
    lambda m: (lambda p, q: p if p is None else q)(m.head.b, m.layers[0].b),
    lambda m: m.layers[1].b if m.head.b is None and m.layers[1].b is None else m.head.b,
    lambda m: m.layers[len(jax.tree.leaves(m.layers)) - 1].b,
    lambda m: jax.tree.leaves(m, is_leaf=lambda x: type(x) is Conv)[2].b,
    lambda m: next(v for k, v in reversed(m.table.items()) if v is None),
    lambda m: [m.table["a"], m.head.b] if m.table["a"] is None else [m.head.b, m.table["a"]],
    lambda m: next(q if p is None else p for p, q in [m.table["c"]]),
]


@pytest.mark.parametrize("where", NOT_CERTAIN)
def test_a_function_whose_place_is_not_certain_is_an_error_that_lists_the_places(where: Where) -> None:
    with pytest.raises(
        ValueError, match=r"^The where function returned None, which is at 8 places of Net: .*Select by"
    ):
        at(NET, where)


IDIOMS: list[tuple[Where, list[str]]] = [
    (lambda m: m.head.w, [".head.w"]),
    (lambda m: m.head.b, [".head.b"]),
    (lambda m: m.head.name, [".head.name"]),
    (lambda m: m.head, [".head"]),
    (lambda m: m.layers, [".layers"]),
    (lambda m: m.table["a"], [".table['a']"]),
    (lambda m: m.table.get("a"), [".table['a']"]),
    (lambda m: m.table["b"].right, [".table['b'].right"]),
    (lambda m: m.table["b"][0], [".table['b'].left"]),
    (lambda m: m[0].b, [".layers[0].b"]),
    (lambda m: m[-1].b, [".layers[2].b"]),
    (lambda m: list(m)[1].b, [".layers[1].b"]),
    (lambda m: [x.b for x in m], [f".layers[{i}].b" for i in range(3)]),
    (lambda m: m.layers[len(m) - 1].b, [".layers[2].b"]),
    (lambda m: m.head.last, [".head.w"]),
    (lambda m: m.head.cached, [".head.b"]),
    (lambda m: (m.layers + (m.head,))[3].b, [".head.b"]),
    (lambda m: (*m.layers, m.head)[3].b, [".head.b"]),
    (lambda m: [*m.layers, m.head][-1].w, [".head.w"]),
    (lambda m: (m.layers * 2)[4].b, [".layers[1].b"]),
    (lambda m: m.layers[1:][0].b, [".layers[1].b"]),
    (lambda m: m.layers[::-1][0].b, [".layers[2].b"]),
    (lambda m: [x.b for x in m.layers[1:]], [".layers[1].b", ".layers[2].b"]),
    (lambda m: list(reversed(m.layers))[0].b, [".layers[2].b"]),
    (lambda m: m.table.copy()["a"], [".table['a']"]),
    (lambda m: (m.table | {})["a"], [".table['a']"]),
    (lambda m: {**m.table}["b"].left, [".table['b'].left"]),
    (lambda m: list(m.table.values())[0], [".table['a']"]),
    (lambda m: [v for k, v in m.table.items() if k == "a"], [".table['a']"]),
    (lambda m: m.table["b"]._replace(right=0).left, [".table['b'].left"]),
    (lambda m: [x.w for x in m.layers if x.b is None], [f".layers[{i}].w" for i in range(3)]),
    (lambda m: [x.w for x in m.layers if isinstance(x, Conv)], [".layers[2].w"]),
    (lambda m: [x.w for x in m.layers if x.w.ndim == 1 and x.w.size == 9], [".layers[1].w"]),
    (lambda m: tuple(x.b for i, x in enumerate(m.layers) if i % 2 == 0), [".layers[0].b", ".layers[2].b"]),
    (lambda m: {"one": m.head.b, "two": m.layers[0].b}, [".head.b", ".layers[0].b"]),
    (lambda m: [m.head.b, [m.layers[0].b]], [".head.b", ".layers[0].b"]),
    (lambda m: getattr(m, "head").b, [".head.b"]),
    (lambda m: functools.reduce(getattr, ["head", "b"], m), [".head.b"]),
    (lambda m: dict(enumerate(m.layers))[1].b, [".layers[1].b"]),
    (lambda m: next(itertools.islice(m.layers, 1, None)).b, [".layers[1].b"]),
    (lambda m: list(map(operator.attrgetter("b"), m.layers))[2], [".layers[2].b"]),
    (lambda m: list(filter(lambda x: x.w.size == 9, m.layers))[0].b, [".layers[1].b"]),
    (lambda m: next(x for x in m.layers if x.w.shape == (9,)).b, [".layers[1].b"]),
    (lambda m: m.head.b or m.head.w, [".head.w"]),
    (lambda m: (lambda a, b: (b, a))(m.head.b, m.layers[0].b), [".layers[0].b", ".head.b"]),
    (lambda m: [x.name for x in m.layers], [f".layers[{i}].name" for i in range(3)]),
    (lambda m: m.layers[0].name if m.layers[0].name == "first" else m.head.name, [".layers[0].name"]),
]


@pytest.mark.parametrize(("where", "expected"), IDIOMS)
def test_an_ordinary_function_selects_what_it_read(where: Where, expected: list[str]) -> None:
    assert paths(NET, where) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (lambda m: m.layers[30].b, [".layers[30].b"]),
        (lambda m: m.layers[-1].w, [".layers[39].w"]),
        (lambda m: m.layers[10:12][1].b, [".layers[11].b"]),
        (lambda m: [x.b for x in m.layers][20], [".layers[20].b"]),
        (lambda m: [*reversed(m.layers)][0].b, [".layers[39].b"]),
        (lambda m: (m.layers + [m.head])[40].b, [".head.b"]),
        (lambda m: jax.tree.leaves(m.layers)[25], [".layers[25].w"]),
        (lambda m: [x for i, x in enumerate(m.layers) if i == 7][0].b, [".layers[7].b"]),
        (lambda m: m.layers[m.layers.index(m.layers[0])].b, [".layers[0].b"]),
        (lambda m: m.head.b if type(m.layers).__name__ == "list" else m.layers[0].b, [".head.b"]),
    ],
)
def test_items_of_a_long_list_are_read_one_by_one_and_keep_their_places(where: Where, expected: list[str]) -> None:
    assert paths(LONG, where) == expected


def test_c_code_that_reads_a_long_list_gets_no_wrong_place() -> None:
    short, long = Net([Layer(TIED) for _ in range(5)], Layer(TIED)), LONG
    for tree in (short, long):
        assert paths(tree, lambda m: [x.b for x in [m.head] + m.layers][3]) == [".layers[2].b"]
        assert paths(tree, lambda m: m.layers.copy()[3].b) == [".layers[3].b"]
        assert paths(tree, lambda m: list.__getitem__(m.layers, 3).b) == [".layers[3].b"]
        assert paths(tree, lambda m: (m.layers[3] if type(m.layers) is list else m.head).b) == [".layers[3].b"]
        assert paths(tree, lambda m: (m.layers[3] if type(m.layers) is list else m.head).w) == [".layers[3].w"]


WRITES = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("get", "__contains__", "__getitem__", "__mul__", "__rmul__"), (1,)),
    **dict.fromkeys(("index", "count"), (2.5,)),
    "fromkeys": ("ab",),
    **dict.fromkeys(("__len__", "__iter__", "__reversed__", "__repr__"), ()),
}


@pytest.mark.parametrize("value", [{"a": 1.5, 1: 2.5}, [1.5, 2.5], (1.5, 2.5)])
def test_each_method_that_reads_a_list_tuple_or_dict_returns_the_same_in_each_call(value: Any) -> None:
    def read(container: Any) -> Any:
        result = getattr(container, name)(*ARGUMENTS.get(name, ()))
        return [*result] if hasattr(result, "__iter__") else result

    def where(container: Any) -> Any:
        results.append(None)  # stays if it fails
        results[-1] = read(container)
        return container

    public = {name for name in vars(type(value)) if not name.startswith("_")} - WRITES
    for name in public | ARGUMENTS.keys() & vars(type(value)).keys():
        results: list[Any] = []
        at(value, where)
        assert (name, results) == (name, [read(value)] * 2)


@jax.tree_util.register_pytree_node_class
class Item:
    """A container that knows whether it was copied."""

    was_flattened = False

    def tree_flatten(self) -> tuple[tuple[()], None]:
        self.was_flattened = True
        return (), None

    @classmethod
    def tree_unflatten(cls, _: Any, __: Any) -> Item:
        return cls()


@pytest.mark.parametrize("where", [lambda t: t[7], lambda t: t.get(7)])
def test_one_item_of_a_dict_is_copied_without_the_others(where: Where) -> None:
    table = {key: Item() for key in range(9)}
    at(table, where)
    assert [key for key, item in table.items() if item.was_flattened] == [7]


ONE = jnp.ones(2)


@pytest.mark.parametrize("value", [ONE, 1.5, 1, "abc", True, None, Layer(ONE), [ONE], (), jax.nn.relu])
@pytest.mark.parametrize("make", [lambda *pair: dict(zip("xy", pair, strict=True)), lambda *pair: list(pair)])
def test_a_choice_between_two_places_of_one_object_by_identity_is_right_or_an_error(make: Any, value: Any) -> None:
    tree = make(value, value)
    x, y = tree if isinstance(tree, dict) else (0, 1)
    is_leaf = not isinstance(value, Layer | list | tuple)  # the function gets copies of others
    for choose in (lambda t: t[x] is t[y], lambda t: t[x] is value if is_leaf else True):
        with contextlib.suppress(ValueError, MissingPlaceError):
            assert paths(tree, lambda t, choose=choose: t[y] if choose(t) else t[x])[0].endswith(f"[{y!r}]")
    assert paths(tree, lambda t: t[y])[0].endswith(f"[{y!r}]")


def test_no_update_keeps_an_earlier_tree_alive_until_the_next_collection() -> None:
    net = Net([Layer(jnp.ones(2)) for _ in range(20)], Layer(TIED))
    gc.collect()
    gc.disable()
    try:
        kept = weakref.ref(net.layers[3])
        net = at(net, lambda m: m.layers[3].b).set(1.0)
        net = at(net, lambda m: m.layers[3]).set(Layer(TIED))
        assert kept() is None
        with contextlib.suppress(AttributeError):
            at(net, lambda m: m.layers[3].missing)
    finally:
        gc.enable()


def interrupt(_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "where",
    [
        lambda t: t[0]["new"],
        lambda t: interrupt(t[1].w),
        lambda t: t[1].missing,
        lambda t: copy.deepcopy(t)[1].w,
        lambda t: (copy.deepcopy(t[1]), t[1].name)[1],
    ],
)
def test_no_call_keeps_the_tree_alive_until_the_next_collection(where: Any) -> None:
    tree: Any = [collections.defaultdict(list, a=[1]), Layer(ONE)]
    kept = weakref.ref(tree[1])
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(MissingPlaceError, KeyboardInterrupt, AttributeError, TypeError):
            at(tree, where)
        del tree
        assert kept() is None
    finally:
        gc.enable()


def test_some_of_these_functions_select_other_places_in_equinox() -> None:
    """In `tree_at` the functions see leaves without values: a column to compare with, not a fault."""
    equinox = importorskip("equinox")
    right = 0
    for where, expected in HOSTILE + IDIOMS:
        try:
            changed = equinox.tree_at(where, NET, replace_fn=lambda _: "here", is_leaf=lambda value: value is None)
        except Exception:  # noqa: BLE001  its checks
            continue
        leaves = jax.tree_util.tree_leaves_with_path(changed)
        found = [jax.tree_util.keystr(path) for path, leaf in leaves if isinstance(leaf, str)]
        right += found == expected
    assert 0 < right < len(HOSTILE + IDIOMS)


# The user's own errors


class NotFoundError(LookupError):
    pass


def fail(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    "error",
    [ValueError("width 2 is wrong"), NotFoundError("none"), IndexError("mine"), RuntimeError("no"), TypeError("mine")],
)
def test_an_error_of_the_function_itself_keeps_its_class_text_and_traceback(error: Exception) -> None:
    def where(m: Any) -> Any:
        return m.layers[0].b if m.layers[0].w.sum() + m.layers[0].w[0] == 0 else fail(error)

    with pytest.raises(type(error)) as caught:
        at(NET, where)
    assert caught.value is error
    assert caught.traceback[-1].name == "fail"
    assert not any("has no" in note or "is a leaf" in note for note in getattr(error, "__notes__", ()))


@pytest.mark.parametrize(
    ("where", "kind", "note"),
    [
        (lambda m: m.layres, AttributeError, r"Net has no \.layres \(did you mean \.layers\?\)\. It has "),
        (lambda m: m.layers[7], IndexError, r"Net\.layers \(tuple\) has no \[7\]\. It has \[0\] to \[2\]\."),
        (lambda m: m.layers[int(m.layers[0].w.sum()) + 5], IndexError, r"Net\.layers \(tuple\) has no \[7\]"),
        (lambda m: m.table["z"], KeyError, r"Net\.table \(dict\) has no \['z'\]"),
        (lambda m: m.head.b.x, AttributeError, r"Net\.head\.b \(None\) has no \.x\. It has nothing\."),
        (lambda m: m.head.w.kernel, AttributeError, r"Net\.head\.w is a leaf, f32\[2\], without a place \.kernel"),
        (
            lambda m: m.w,
            AttributeError,
            r"Net has no \.w\. It has \.layers, \.head, \.table\. To select it at any depth, write \"\*\*\.w\"\.",
        ),
        (lambda m: m.layers["a"], TypeError, r"Net\.layers \(tuple\) has no \['a'\]"),
    ],
)
def test_a_note_names_the_place_that_is_missing(where: Where, kind: type[Exception], note: str) -> None:
    with pytest.raises(kind, match=note) as caught:
        at(NET, where)
    assert not isinstance(caught.value, MissingPlaceError)


def test_a_key_whose_lack_the_function_expects_is_not_blamed_for_another_error() -> None:
    def where(m: Any) -> Any:
        with contextlib.suppress(KeyError):
            m.table["z"]
        return m.layers[7] if type(m.layers) is not tuple else dict[str, Any]()["mine"]

    with pytest.raises(KeyError, match=r"^'mine'$") as caught:
        at(NET, where)
    assert getattr(caught.value, "__notes__", []) == []


class Inactive(Layer):
    @property
    def active(self) -> Any:
        raise AttributeError("not yet", name="w", obj=self)


@pytest.mark.parametrize(
    "where", [lambda m: m.active, lambda m: fail(AttributeError("not yet")) if m.b is None else None]
)
def test_an_attribute_error_of_the_function_itself_gets_no_note(where: Where) -> None:
    with pytest.raises(AttributeError, match=r"^not yet$") as caught:
        at(Inactive(TIED), where)
    assert getattr(caught.value, "__notes__", []) == []


def test_an_error_of_jax_about_tracers_gets_no_note() -> None:
    def step(net: Any) -> Any:
        return at(net, lambda m: m.layers[0].b if m.head.w.sum() > 0 else m.head.b).set(1.0)

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.jit(step)(NET)
    assert not any("Net" in note or "whole tree" in note for note in getattr(caught.value, "__notes__", ()))


def test_no_stand_in_is_printed_or_named_in_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    def where(m: Any) -> Any:
        print(m.head, type(m.head.b))  # noqa: T201
        return m.head.b if jnp.shape(m.head.w) == (2,) else m.layers[0].b

    with warnings.catch_warnings(action="error"):
        assert paths(NET, where) == [".head.b"]
    assert "treewright" not in capsys.readouterr().out.lower()


# Generated trees


def trees(leaf: Callable[[], Any]) -> st.SearchStrategy[Callable[[], Any]]:
    """Makers of trees of the classes above; each leaf is a call of `leaf`."""
    layers = st.sampled_from([Layer, Conv]).map(lambda cls: lambda: cls(leaf(), leaf()))

    def wrap(inner: Any) -> Any:
        many = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            many.map(lambda makers: lambda: tuple(make() for make in makers)),
            many.map(lambda makers: lambda: [make() for make in makers]),
            many.map(lambda makers: lambda: {name: make() for name, make in zip("abc", makers, strict=False)}),
            inner.map(lambda make: lambda: Net(make(), leaf())),
        )

    return st.recursive(layers, wrap, max_leaves=6)


def chosen(tree: Any, way: str, cls: type[Any], index: int) -> Any:
    """One layer of a tree, chosen by its class, size, name or position."""
    found = jax.tree.leaves(tree, is_leaf=lambda value: isinstance(value, Layer))
    layers = [value for value in found if isinstance(value, Layer)]
    if way == "type":
        return next((each for each in layers if type(each) is cls), layers[-1])
    if way == "count":
        return max(reversed(layers), key=count)
    if way == "name":
        return min(layers, key=lambda each: type(each).__name__)
    return layers[index % len(layers)]


def selected(tree: Any, where: Where) -> str | None:
    """The places as text; None if the error says that they are not certain."""
    with contextlib.suppress(ValueError):
        return repr(at(tree, where))
    with pytest.raises(ValueError, match=r"Select by path, or with a predicate"):
        at(tree, where)
    return None


WAYS = st.tuples(st.sampled_from(["type", "name", "position"]), st.sampled_from([Layer, Conv]), st.integers(0, 5))
FIELDS = st.sampled_from(["w", "b"])


@given(st.data(), WAYS, FIELDS)
def test_with_one_array_everywhere_a_function_selects_what_it_selects_among_distinct_arrays(
    data: st.DataObject, way: tuple[str, type[Any], int], field: str
) -> None:
    leaves = [lambda: jnp.ones(2)]
    make = data.draw(trees(lambda: leaves[0]()))
    if data.draw(st.booleans()):
        way = ("count", *way[1:])
    distinct = make()
    leaves[0] = lambda: TIED

    def where(tree: Any) -> Any:
        return getattr(chosen(tree, *way), field)

    assert selected(make(), where) in {repr(at(distinct, where)), None}


@given(st.data(), WAYS, FIELDS)
def test_with_none_everywhere_a_function_selects_what_it_read(
    data: st.DataObject, way: tuple[str, type[Any], int], field: str
) -> None:
    leaves: list[Callable[[], Any]] = [lambda: None]
    make = data.draw(trees(lambda: leaves[0]()))
    tree = make()
    numbers = itertools.count()
    leaves[0] = lambda: f"leaf {next(numbers)}"
    marked = make()

    def where(tree: Any) -> Any:
        return getattr(chosen(tree, *way), field)

    assert selected(tree, where) in {repr(at(marked, where)), None}
