"""`==` returns a plain bool for any leaves, `hash` uses values, and the two agree."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, buffer, field, pytree_dataclass, static
from treewright.errors import TracedComparisonError

NAN = float("nan")
spec: Any = jax.P  # jax types neither of these
abstract: Any = jax.ShapeDtypeStruct


class Pair(NamedTuple):
    left: Any
    right: Any


@pytree_dataclass
class Box:
    value: Any = field()


@pytree_dataclass
class Crate:
    value: Any


@pytree_dataclass
class SmallBox(Box):
    pass


@pytree_dataclass
class Layer:
    kernel: Any = field()
    bias: Any = field(default=None)
    width: Any = static(default=3)


class Net(Module):
    layer: Layer
    name: str = static()

    def __init__(self, layer: Layer, name: str = "net") -> None:
        self.layer = layer
        self.name = name


class Elementwise:
    """Compares like other libraries' arrays."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Elementwise)
        return np.array(self.values) == np.array(other.values)

    __hash__: Any = None


def not_a_number() -> float:
    """A new NaN object."""
    return float("nan")


LEAVES: dict[str, Callable[[], Any]] = {
    "f32[2,3]": lambda: jnp.ones((2, 3)),
    "bfloat16": lambda: jnp.ones(3, jnp.bfloat16),
    "bool": lambda: jnp.array([True, False]),
    "typed key": lambda: jax.random.key(0),
    "sharded": lambda: jax.device_put(jnp.arange(4), jax.NamedSharding(jax.make_mesh((4,), ("x",)), spec("x"))),
    "numpy": lambda: np.arange(6.0).reshape(2, 3),
    "numpy scalar": lambda: np.float32(1.5),
    "numpy records": lambda: np.array([(1, NAN)], [("a", int), ("b", float)]),
    "numpy times": lambda: np.array(["2020-01-01", "NaT"], "datetime64[s]"),
    "numpy objects": lambda: np.array([{"a": 1}, not_a_number(), "s"], object),
    "int": lambda: 10**20,
    "str": lambda: str(10**5),
    "None": lambda: None,
    "ShapeDtypeStruct": lambda: abstract((2,), jnp.float32),
    "function": lambda: jax.nn.relu,
    "elementwise ==": lambda: Elementwise(1, 2),
    "NaN": not_a_number,
    "NaN in an array": lambda: jnp.array([1.0, NAN]),
    "list": lambda: [jnp.ones(2), [1, "a"], []],
    "tuple": lambda: (1, not_a_number()),
    "namedtuple": lambda: Pair(1, jnp.ones(2)),
    "dict": lambda: {"a": jnp.ones(2), "b": {"c": None}},
    "node": lambda: Layer(jnp.ones(2), [jnp.zeros(1)]),
    "Module": lambda: Net(Layer(jnp.ones(2), not_a_number())),
}

DIFFERENT: dict[str, tuple[Any, Any]] = {
    "value": (jnp.ones(3), jnp.array([1.0, 1.0, 2.0])),
    "shape": (jnp.ones((2, 3)), jnp.ones((3, 2))),
    "shape of no elements": (jnp.zeros((0, 3)), jnp.zeros((0, 4))),
    "dtype": (jnp.ones(3, jnp.float32), jnp.ones(3, jnp.bfloat16)),
    "byte order": (np.ones(3, ">f4"), np.ones(3, "<f4")),
    "key": (jax.random.key(0), jax.random.key(1)),
    "implementation of a key": (jax.random.key(0), jax.random.key(0, impl="rbg")),
    "NaN and a number": (jnp.array([NAN, 1.0]), jnp.array([1.0, NAN])),
    "array and Python number": (jnp.asarray(1.0), 1.0),
    "array and list": (jnp.ones(2), [1.0, 1.0]),
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "list and tuple": ([1], (1,)),
    "tuple and namedtuple": ((1, 2), Pair(1, 2)),
    "dict keys": ({"a": 1}, {"b": 1}),
    "length": ([1, 2], [1]),
    "statics of a node": (Layer(1, width=3), Layer(1, width=4)),
    "statics that only exact comparison distinguishes": (Layer(1, width=1), Layer(1, width=True)),
    "class of a node": (Box(1), Crate(1)),
    "a node and its subclass": (Box(1), SmallBox(1)),
    "objects": (object(), object()),
    "elementwise ==": (Elementwise(1, 2), Elementwise(1, 3)),
}


@pytest.mark.devices(4)
@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_two_nodes_with_the_same_leaf_are_equal(make: Callable[[], Any]) -> None:
    assert (Box(make()) == Box(make())) is True
    assert (Box(make()) != Box(make())) is False


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_nodes_with_different_leaves_are_unequal_in_both_orders(one: Any, other: Any) -> None:
    assert (Box(one) == Box(other)) is False
    assert (Box(other) == Box(one)) is False
    assert (Box(one) != Box(other)) is True


@pytest.mark.devices(2)
def test_arrays_compare_by_value_on_any_device() -> None:
    assert Box(jnp.ones(3)) == Box(np.ones(3, np.float32))
    assert Box(jnp.asarray(1.0)) == Box(np.float32(1.0))
    assert Box(jnp.asarray(1.0)) == Box(jnp.float32(1.0))  # weakly typed or not
    assert Box(jax.device_put(jnp.ones(3), jax.devices()[1])) == Box(jnp.ones(3))


def test_comparison_with_a_different_type_asks_that_type() -> None:
    box: Any = Box(1)
    assert box not in (1, (1,))
    assert box == mock.ANY
    assert box.__eq__(Crate(1)) is NotImplemented


def test_a_node_always_equals_itself() -> None:
    changing: list[Any] = [Elementwise(1)]
    box = Box(changing)
    changing.append(NAN)
    assert box == box


def test_fields_with_compare_false_are_excluded_from_equality_and_hash() -> None:
    @pytree_dataclass
    class Log:
        value: Any
        steps: Any = field(default=0, compare=False)
        mean: Any = buffer(default=0, compare=False)
        note: Any = field(default="", compare=False)
        key: Any = field(default=0, hash=False)

    one, other = Log(1, jnp.ones(3), jnp.ones(2), "a"), Log(1, jnp.ones(4), None, "b")
    assert one == other
    assert hash(one) == hash(other)
    assert one != Log(2, jnp.ones(3), jnp.ones(2), "a")
    assert one != Log(1, key=1)


@pytest.mark.parametrize("specifier", ["ours", "dataclasses"])
def test_jit_compares_a_static_with_compare_false(specifier: str) -> None:
    unseen = {
        "ours": static(default="", compare=False),
        "dataclasses": dataclasses.field(default="", compare=False, metadata={"static": True}),
    }[specifier]
    cls: Any = pytree_dataclass(
        type("Log", (), {"__annotations__": {"x": Any, "n": int, "note": str}, "n": static(default=0), "note": unseen})
    )
    one, other = cls(1, note="a"), cls(1, note="b")
    assert one == other
    assert hash(one) == hash(other)
    assert one != cls(1, 1, "a")
    assert one != cls(2, note="a")
    assert jax.tree.structure(one) != jax.tree.structure(other)
    read = jax.jit(lambda log: log.x + len(log.note))
    assert read(cls(1, note="")) == 1
    assert read(one) == 2


# Under tracing


def test_comparing_a_traced_node_names_its_class_and_field() -> None:
    layer = Layer(jnp.ones(()), jnp.ones(()))

    def compare(traced: Layer) -> Any:
        return traced.kernel if traced == layer else traced.bias

    for transform in (jax.jit, jax.grad, jax.vmap):
        argument = jax.tree.map(lambda leaf: leaf[None], layer) if transform is jax.vmap else layer
        with pytest.raises(TracedComparisonError, match=r"^Layer\.kernel is traced.*can't return a bool.*array_equal"):
            transform(compare)(argument)
    with pytest.raises(TracedComparisonError, match=r"^Box\.value\[1\]\.value is traced"):
        jax.jit(lambda key: Box([0, Box(key)]) == Box([0, Box(jax.random.key(0))]))(jax.random.key(0))


def test_traced_nodes_compare_without_values_if_possible() -> None:
    @jax.jit
    def compare(layer: Any) -> None:
        assert layer == layer
        assert layer != Layer(layer.kernel, layer.bias, width=4)
        assert layer != Layer(layer.kernel[None], layer.bias)
        assert layer != Layer(layer.kernel.astype(jnp.bfloat16), layer.bias)
        assert layer != Layer([layer.kernel], layer.bias)
        assert layer == Layer(layer.kernel, layer.bias)  # identical tracers
        assert layer != Box(layer)

    compare(Layer(jnp.ones(3), jnp.ones(2)))


# Hash


@pytest.mark.devices(4)
@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_equal_nodes_have_equal_hashes(make: Callable[[], Any]) -> None:
    one, other = Box(make()), Box(make())
    try:
        code = hash(one)
    except TypeError:
        with pytest.raises(TypeError, match=r"unhashable type 'Box': a child of Box\(value="):
            hash(other)
    else:
        assert code == hash(other)
        assert {one: "found"}[other] == "found"


def test_the_hash_equals_the_hash_of_a_tuple_of_fields() -> None:
    assert hash(Layer(1, "a", 2)) == hash((1, "a", 2))
    assert hash(Layer(Layer(1), (None,))) == hash((Layer(1), (None,), 3))


@pytest.mark.parametrize("other", [Layer(1, "b"), Layer(2, "a"), Layer(1, "a", 4), Layer((1,), "a")])
def test_the_hash_is_by_value(other: Layer) -> None:
    assert hash(Layer(1, "a")) == hash(Layer(1, "a")) != hash(other)
    assert hash(Net(Layer(1, "a"))) == hash(Net(Layer(1, "a"))) != hash(Net(other))


@pytest.mark.parametrize("value", [jnp.ones(2), jnp.asarray(1), np.ones(2), [1], {}, jax.random.key(0)])
def test_hashing_an_unhashable_value_shows_the_node(value: Any) -> None:
    for node in (Layer(1, value), Net(Layer(value)), Layer((1, Layer(2, (3, value))))):
        name = type(node).__name__
        with pytest.raises(
            TypeError, match=rf"^unhashable type '{name}': a child of {name}\(.* has no hash\. .* key"
        ) as caught:
            hash(node)
        assert caught.value.__cause__ is not None


def test_a_node_with_a_partial_as_a_child_has_a_hash() -> None:
    first, second = (Layer(functools.partial(max, 1)) for _ in range(2))

    assert first == second
    assert hash(first) == hash(second)


def test_hashing_takes_linear_time_in_depth() -> None:
    looks: list[int] = []

    class Leaf:
        def __hash__(self) -> int:
            looks[-1] += 1
            return 1

    for depth in (1, 12):
        node: Any = Leaf()
        looks.append(0)
        for _ in range(depth):
            node = Layer(1, Box(node))
        hash(node)
    assert looks[0] == looks[1] > 0


# Nested nodes


@pytree_dataclass(eq=False)
class ByIdentity:
    value: Any


class Named(Module):
    value: Any
    name: str = static(compare=False)


class ByValue(Module):
    value: Any
    other: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


SAME = ByIdentity(1)


@pytest.mark.parametrize(
    ("left", "right", "are_equal"),
    [
        (ByIdentity(1), ByIdentity(1), False),
        (SAME, SAME, True),
        (Named(1, "a"), Named(1, "b"), True),
        (Named(1, "a"), Named(2, "a"), False),
        (ByValue(1, 2), ByValue(1, 3), True),
        (ByValue(1, 2), ByValue(2, 2), False),
    ],
)
@pytest.mark.parametrize(
    "outer", [lambda node: node, Box, lambda node: Box((node, 1)), lambda node: Box(Box((Box(node),)))]
)
def test_nested_nodes_compare_like_top_level_nodes(left: Any, right: Any, are_equal: bool, outer: Any) -> None:
    one, other = outer(left), outer(right)

    assert (one == other) is are_equal
    assert not are_equal or hash(one) == hash(other)
