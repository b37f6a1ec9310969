"""Differences between two trees: complete, with the user's names, and without running code of classes."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import warnings
from typing import Any, NamedTuple, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import importorskip
from treewright import Module, diff, field, static
from treewright.errors import StaticWarning, TracedComparisonError


class Layer(Module):
    kernel: Any = field(default=None)
    bias: Any = field(default=None)
    activation: Any = static(default="relu")
    size: Any = static(default=1)

    def apply(self) -> None: ...


class Net(Module):
    layers: Any = field()


class Point(NamedTuple):
    x: Any
    y: Any


# They have no types.
flax: Any = importorskip("flax", "flax.core", "flax.struct")
FrozenDict: Any = flax.core.FrozenDict
Partial: Any = jax.tree_util.Partial
struct: Any = flax.struct


class FlaxLayer:
    kernel: Any
    activation: Any = struct.field(pytree_node=False, default="relu")


FLAX_LAYER: Any = struct.dataclass(FlaxLayer)


class EqxLayer(eqx.Module):
    kernel: Any
    activation: Any = eqx.field(static=True, default="relu")

    def apply(self) -> None: ...


def lines(left: Any, right: Any, **options: Any) -> list[str]:
    return list(map(str, diff(left, right, **options)))


# Kinds of differences


def test_diff_shows_old_and_new_statics_and_leaves() -> None:
    old = Net([Layer(jnp.ones(2)), Layer(jnp.ones(2))])
    new = Net([Layer(jnp.ones(2), activation="gelu"), Layer(jnp.ones((2, 3)))])

    assert lines(old, new) == [
        ".layers[0].activation (static): 'relu' -> 'gelu'",
        ".layers[1].kernel (shape): float32[2] -> float32[2,3]",
    ]


@pytest.mark.parametrize(
    ("left", "right", "line"),
    [
        ([1], (1,), "the whole tree (class): list of 1 -> tuple of 1"),
        ([1], [1, Layer()], "[1] (added): Layer(kernel, bias, activation='relu', size=1)"),
        ({"a": 1, "b": 2}, {"a": 1}, "['b'] (removed): 2"),
        ({"a": None}, {"a": np.ones(2)}, "['a'] (class): None -> float32[2]"),
        ([1], [True], "[0] (dtype): 1 -> True"),
        ([0.0], [-0.0], "[0] (value): 0.0 -> -0.0"),
        (["a"], ["b"], "[0] (value): 'a' -> 'b'"),
        (["a"], [1], "[0] (class): 'a' -> 1"),
        (
            [1],
            [jnp.ones((), int)],
            "[0] (weak_type): 1 -> int32[]; a Python int is weakly typed: its dtype adapts to other operands",
        ),
        (
            [jnp.asarray(1)],
            [jnp.ones((), int)],
            "[0] (weak_type): int32[] (weakly typed) -> int32[]; one is weakly typed, as Python numbers are: ...",
        ),
        (
            [np.arange(4.0)],
            [np.array([0.0, 1.5, np.nan, 3.0])],
            "[0] (value): float32[4] -> float32[4]; 2 of 4 elements differ, by at most nan",
        ),
        ([jnp.ones(2) > 0], [jnp.ones(2) < 0], "[0] (value): bool[2] -> bool[2]"),
        ([jnp.ones(2, complex)], [jnp.ones(2, complex) * 1j], "[0] (value): complex64[2] -> complex64[2]; 2 of 2 ..."),
        ([jax.random.key(0)], [jax.random.key(1)], "[0] (value): key<fry>[] -> key<fry>[]"),
        ([jnp.ones((32, 7))], [jnp.ones((31, 7))], "[0] (shape): float32[32,7] -> float32[31,7]; axis 0: 32 -> 31"),
        ([jnp.ones(2)], [jnp.ones(2, jnp.bfloat16)], "[0] (dtype): float32[2] -> bfloat16[2]"),
    ],
)
def test_diff_reports_each_kind_of_difference(left: Any, right: Any, line: str) -> None:
    (difference,) = lines(left, right)

    assert difference.startswith(line.removesuffix("..."))


def test_an_abstract_leaf_compares_by_its_type() -> None:
    abstract = jax.eval_shape(lambda: Layer(jnp.ones(2)))

    assert diff(Layer(jnp.zeros(2)), abstract) == []
    assert lines(Layer(jnp.zeros(3)), abstract) == [".kernel (shape): float32[3] -> float32[2]; axis 0: 3 -> 2"]


def test_traced_leaves_compare_by_type_only_when_asked() -> None:
    assert jax.jit(lambda x, y: len(diff([x], [y], values=False)))(1.0, 2.0) == 0
    with pytest.raises(TracedComparisonError, match=r"^\[0\] is traced"):
        jax.jit(lambda x, y: len(diff([x], [y])))(1.0, 2.0)


# Statics of nodes and of other classes


def test_diff_names_changes_inside_statics() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        rates: tuple[float, ...]
        names: Any = ()

    (difference,) = diff(Layer(activation=Config((0.1, 0.2))), Layer(activation=Config((0.1, 0.3))))

    assert str(difference) == ".activation.rates[1] (static): 0.2 -> 0.3"
    assert jax.tree_util.keystr(difference.path) == ".activation"
    assert (difference.left, difference.right) == (Config((0.1, 0.2)), Config((0.1, 0.3)))
    frozen = diff(Layer(activation=FrozenDict(a=1)), Layer(activation=FrozenDict(a=2)))
    assert list(map(str, frozen)) == [".activation['a'] (static): 1 -> 2"]


def factory(number: Any, rate: float = 0.1) -> Any:
    def function(x: Any) -> Any:
        return x * number * rate

    return function


def doubled(value: Any, levels: int) -> Any:
    return doubled((value, value), levels - 1) if levels else value


class Act:
    def __call__(self) -> None: ...


class Owner:
    def __init__(self, owned: Any = None) -> None:
        self.owned = owned

    def apply(self) -> None: ...


NUMBERS, DECIMALS = ((1, 2), (1, 3)), (decimal.Decimal(1), decimal.Decimal(2))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ((NUMBERS[0], NUMBERS[0]), (NUMBERS[1], NUMBERS[1]), ["[0][1] (static): 2 -> 3", "[1][1] (static): 2 -> 3"]),
        (tuple(range(100_000)), tuple(range(1, 100_001)), [" (static): (0, 1, 2, 3, 4, 5, ...) -> (1, 2, 3, 4, 5, 6"]),
        ((tuple(range(17)), 1), (tuple(range(1, 18)), 2), ["[0] (static): (0, 1, 2, 3,", "[1] (static): 1 -> 2"]),
        ((tuple(range(9)),) * 2, (tuple(range(1, 10)),) * 2, [f" (static): {i % 9} -> {i % 9 + 1}" for i in range(18)]),
        (doubled(1, 22), doubled(2, 22), [" (static): ((("]),
        ((factory(1), 5), (factory(1), 6), ["[1] (static): 5 -> 6"]),  # a new function is no further change
        (
            (factory(DECIMALS[0]), 5),
            (factory(DECIMALS[1]), 6),
            ["number: Decimal('1') -> Decimal('2')", "[1] (static)"],
        ),
        (factory(DECIMALS[0]), factory(DECIMALS[1], 0.2), ["number: Decimal('1') -> Decimal('2'), rate: 0.1 -> 0.2"]),
        ((Owner().apply, 5), (Owner().apply, 6), ["[1] (static): 5 -> 6"]),
        ((Act(), 5), (Act(), 6), ["[0] (static): <Act object> -> <Act object>; Act has no __eq__", "[1] (static): 5"]),
        (Owner(Owner()), Owner(Owner()), ["two have equal attributes"]),
        ((object(), 5), (object(), 6), ["[0] (static): <object object> -> <object object>", "[1] (static): 5 -> 6"]),
    ],
)
def test_diff_lists_each_change_in_a_static(old: Any, new: Any, changes: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaticWarning)
        (difference,) = diff(Layer(activation=old), Layer(activation=new))

    parts = difference.parts or (difference,)
    assert len(parts) == len(changes)
    assert all(change in str(part) for change, part in zip(changes, parts, strict=True)), difference


def test_statics_of_foreign_classes_are_compared_by_field() -> None:
    assert lines(FLAX_LAYER(1), FLAX_LAYER(1, "gelu")) == [".activation (static): 'relu' -> 'gelu'"]
    assert lines(EqxLayer(1), EqxLayer(1, "gelu")) == [".activation (static): 'relu' -> 'gelu'"]
    assert lines(EqxLayer(1).apply, EqxLayer(2).apply) == [".__self__.kernel (value): 1 -> 2"]
    assert lines(Partial(max, 1), Partial(min, 1)) == [".<aux_data> (static): max -> min"]
    assert lines(Layer().apply, Layer(size=2).apply) == [".__self__.size (static): 1 -> 2"]


def test_unnamed_aux_data_is_one_difference() -> None:
    class Hiding:
        def __init__(self, x: Any, name: str, hidden: int) -> None:
            self.x, self.name, self._hide = x, name, lambda: hidden

    def flat(node: Any) -> Any:
        return (node.x,), (node.name, node._hide())

    jax.tree_util.register_pytree_node(Hiding, flat, lambda aux, children: Hiding(*children, *aux))

    assert lines(Hiding(1, "a", 2), Hiding(1, "a", 3)) == [".<aux_data>[1] (static): 2 -> 3"]
    assert lines(Hiding(1, "a", 2), Hiding(1, "b", 2)) == [".name (static): 'a' -> 'b'"]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Flag:
    name: str


class Foreign:
    """An instance of a class that is registered with these children by key and this `aux_data`."""

    __slots__ = ("__dict__", "parts")

    def __init__(self, children: dict[Any, Any], aux: Any, **attributes: Any) -> None:
        self.parts = children, aux
        vars(self).update(attributes)


def keyed(tree: Foreign) -> Any:
    keys = [jax.tree_util.GetAttrKey(key[1:]) if key[0] == "." else jax.tree_util.DictKey(key) for key in tree.parts[0]]
    return list(zip(keys, tree.parts[0].values(), strict=True)), tree.parts[1]


jax.tree_util.register_pytree_with_keys(Foreign, keyed, lambda aux, children: Foreign(dict(enumerate(children)), aux))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (Foreign({}, "a", mode="a"), Foreign({}, "b", mode="b"), ".mode (static): 'a' -> 'b'"),
        (Foreign({}, (("a", 5),), mode="a"), Foreign({}, (("b", 5),), mode="b"), ".mode (static): 'a' -> 'b'"),
        (Foreign({".x": 1}, (1,), x=1, n=1), Foreign({".x": 1}, (2,), x=1, n=2), ".n (static): 1 -> 2"),
        (
            Foreign({"k": 1}, ("k", "a"), mode="a"),
            Foreign({"k": 1}, ("k", "b"), mode="b"),
            ".mode (static): 'a' -> 'b'",
        ),
        (Foreign({"k": 1}, ("k",)), [], "the whole tree (class): Foreign('k') -> list of 0"),
        (Foreign({"k": 1}, None, cache=None), [], "the whole tree (class): Foreign('k') -> list of 0"),
        (Foreign({"k": 1}, (9, ["k"])), [], "the whole tree (class): Foreign('k', <aux_data>=(9,)) -> list of 0"),
        (Foreign({"k": 1}, (9, 8)), [], "the whole tree (class): Foreign('k', <aux_data>=(9, 8)) -> list of 0"),
        ([Flag("a")], [Flag("b")], "[0].name (static): 'a' -> 'b'"),
    ],
)
def test_aux_data_of_a_foreign_class_has_the_names_of_its_attributes(left: Any, right: Any, expected: str) -> None:
    assert lines(left, right) == [expected]


def test_foreign_containers_are_matched_by_key() -> None:
    assert lines(FrozenDict(a=1, b=2), FrozenDict(a=1, c=2)) == ["['b'] (removed): 2", "['c'] (added): 2"]
    assert lines(collections.defaultdict(list, a=1), collections.defaultdict(int, a=1)) == [
        ".<aux_data>[0] (static): list -> int"
    ]
    ordered = collections.OrderedDict
    assert lines(ordered(a=1, b=2), ordered(b=2, a=1)) == [
        "the whole tree (static): ('a', 'b') -> ('b', 'a'); the same entries in a different order"
    ]


def test_treedef_differences_name_known_fields() -> None:
    def structures(left: Any, right: Any) -> list[str]:
        return lines(jax.tree.structure(left), jax.tree.structure(right))

    assert structures(Net([Layer()]), Net([Layer(activation="gelu")])) == [
        ".layers[0].activation (static): 'relu' -> 'gelu'"
    ]
    assert structures(FLAX_LAYER([1]), FLAX_LAYER([1, 2], "gelu")) == [
        ".activation (static): 'relu' -> 'gelu'",
        ".kernel[1] (added): *",
    ]
    assert structures(EqxLayer(1), EqxLayer(1, "gelu")) == [".activation (static): 'relu' -> 'gelu'"]
    assert structures({"a": 1}, {"a": None}) == ["['a'] (class): * -> None"]
    assert structures(Point(1, (2,)), Point(1, [2])) == [".y (class): tuple of 1 -> list of 1"]
    assert structures(FrozenDict(a=1), FrozenDict(b=1)) == ["['a'] (removed): *", "['b'] (added): *"]
    assert structures(Layer().apply, Layer(size=2).apply) == [".__self__.size (static): 1 -> 2"]
    assert structures(Partial(max, 1), Partial(min, 1)) == [".<aux_data> (static): max -> min"]


def test_a_tree_and_a_treedef_compare_by_structure() -> None:
    assert diff([1, {"a": 2}], jax.tree.structure([1, {"a": 2}])) == []
    assert lines(jax.tree.structure([1]), [1, 2]) == ["[1] (added): *"]
    assert len(diff([jax.tree.structure(1)], [jax.tree.structure([1])])) == 1  # in a tree, a treedef is a leaf


# Cost, and code that runs


def test_diff_skips_shared_objects() -> None:
    class Untouchable:
        def __eq__(self, other: object) -> Never:
            raise AssertionError("compared")

        def __hash__(self) -> Never:
            raise AssertionError("hashed")

    shared = [Untouchable()] * 3

    assert lines([shared, 1], [shared, 2]) == ["[1] (value): 1 -> 2"]


def test_long_diffs_are_truncated() -> None:
    left = {"a": [jnp.arange(1000.0) + index for index in range(30)], "config": tuple("x" * 60 for _ in range(3))}
    differences = diff(left, {**left, "a": [jnp.arange(1000.0)] * 30, "config": tuple("y" * 60 for _ in range(3))})
    lines = str(differences).splitlines()

    assert len(differences) == 32
    assert len(lines) <= 41
    assert max(map(len, lines)) <= 140  # one word may be longer than a line
    assert lines[0] == "['a'][1] (value): float32[1000] -> float32[1000]; 1000 of 1000 elements differ, by at most 1"
    assert lines[-1] == "and 12 more differences"
    assert repr(differences[0]) == f"<{differences[0]}>"
    assert str(diff(left, left)) == "no differences"


def test_diff_calls_no_unflatten() -> None:
    class Strict:
        def __init__(self, x: Any, name: str) -> None:
            self.x, self.name = x, name

    def unflatten(name: str, children: Any) -> Never:
        raise AssertionError("unflattened")

    jax.tree_util.register_pytree_node(Strict, lambda s: ((s.x,), s.name), unflatten)

    assert lines(Strict(1, "a"), Strict(2, "b")) == [
        ".name (static): 'a' -> 'b'",
        "[<flat index 0>] (value): 1 -> 2",
    ]


def test_diff_compares_trees_500_levels_deep() -> None:
    def nested(tree: Any) -> Any:
        for _ in range(500):
            tree = Net([tree])
        return tree

    (difference,) = diff(nested(1), nested(2))

    assert len(difference.path) == 1000
    assert (difference.left, difference.right) == (1, 2)
