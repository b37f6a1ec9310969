"""`at`: read and change any place in a tree, at the cost of its depth, sharing the rest."""

from __future__ import annotations

import collections
import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, at, buffer, field, freeze, partition, pytree_dataclass, spec_like, static
from treewright.errors import MissingPlaceError, StaticFieldError

flax: Any = importorskip("flax", "flax.core", "flax.struct")
FROZEN_DICT: Any = flax.core.FrozenDict


@pytree_dataclass
class Linear:
    kernel: Any
    bias: Any = None
    mean: Any = buffer(default=0.0)
    activation: Any = static(default="relu")


class Net(Module):
    layers: tuple[Linear, ...]
    table: dict[str, Any]
    name: str = static(default="net")


class Pair(NamedTuple):
    left: Any
    right: Any


def small_net() -> Net:
    return Net((Linear(1.0, 2.0), Linear(3.0)), {"b": [Pair(4.0, 5.0)], "a": 6.0})


# A function of the tree


@pytest.mark.parametrize(
    ("where", "old"),
    [
        (lambda net: net.layers[0].kernel, 1.0),
        (lambda net: net.layers[-1].bias, None),
        (lambda net: net.layers[0].mean, 0.0),
        (lambda net: net.layers[1].activation, "relu"),
        (lambda net: net.name, "net"),
        (lambda net: net.table["a"], 6.0),
        (lambda net: net.table["b"][0].right, 5.0),
        (lambda net: net.table["b"][0][1], 5.0),
        (lambda net: net.layers[1], Linear(3.0)),
    ],
    ids=["child", "None", "buffer", "static", "static of the root", "dict", "named tuple", "by index", "node"],
)
def test_at_reads_and_changes_every_kind_of_place(where: Any, old: Any) -> None:
    net = small_net()
    assert at(net, where).get() == old

    changed = at(net, where).set("new")
    assert at(changed, where).get() == "new"
    assert net == small_net()
    assert at(changed, where).set(old) == net


def test_at_copies_only_ancestors() -> None:
    net = small_net()
    changed = at(net, lambda net: net.layers[0].bias).set(7.0)

    assert changed.layers[0].kernel is net.layers[0].kernel
    assert changed.layers[1] is net.layers[1]
    assert changed.table is net.table


def test_at_changes_several_places_in_one_call() -> None:
    net = small_net()
    both = at(net, lambda net: (net.layers[0].kernel, net.table["a"]))
    named = at(net, lambda net: {"k": [layer.kernel for layer in net.layers]})

    assert both.get() == (1.0, 6.0)
    assert at(both.set((8.0, 9.0)), lambda net: (net.layers[0].kernel, net.table["a"])).get() == (8.0, 9.0)
    assert named.get() == {"k": [1.0, 3.0]}
    assert [layer.kernel for layer in named.apply(lambda k: {"k": k["k"][::-1]}).layers] == [3.0, 1.0]


def test_selectors_can_loop_slice_and_use_isinstance() -> None:
    net = Net((Linear(1.0), Linear(2.0), Linear(3.0)), {"x": 4.0, "y": 5.0})

    def kernels(where: Any) -> Any:
        return at(net, where).get()

    assert kernels(lambda net: [layer.kernel for layer in net.layers[1:]]) == [2.0, 3.0]
    assert kernels(lambda net: [net.layers[i].kernel for i in range(len(net.layers))]) == [1.0, 2.0, 3.0]
    assert kernels(lambda net: [layer.kernel for layer in net.layers if isinstance(layer, Linear)]) == [1.0, 2.0, 3.0]
    assert kernels(lambda net: [net.table[name] for name in net.table]) == [4.0, 5.0]
    assert kernels(lambda net: list(net.table.values())) == [4.0, 5.0]
    assert kernels(lambda net: {name: value for name, value in net.table.items() if name in net.table}) == net.table
    assert kernels(lambda net: [net.table[name] for name in net.table.keys()]) == [4.0, 5.0]  # noqa: SIM118
    assert (
        kernels(lambda net: [value for pair in net.layers for value in (pair.bias,) if hasattr(pair, "bias")])
        == [None] * 3
    )


# Converters, checks, statics, transformations

ran: list[str] = []


def record(value: Any) -> Any:
    ran.append("convert")
    return float(value)


class Checked(Module):
    value: Any = field(converter=record)
    limit: float = static(default=1.0, converter=float)

    def __check_init__(self) -> None:
        ran.append("check")
        if self.value > self.limit:
            raise ValueError(f"{self.value} is above {self.limit}")


def test_converters_and_checks_of_ancestors_run_once() -> None:
    tree = [Checked(0.5)]
    ran.clear()
    changed = at(tree, lambda tree: (tree[0].value, tree[0].limit)).set((3, 4))

    assert (changed[0].value, changed[0].limit) == (3.0, 4.0)
    assert ran == ["convert", "check"]
    with pytest.raises(ValueError, match=r"^3\.0 is above 1\.0$"):
        at(tree, lambda tree: tree[0].value).set(3)
    assert tree[0].value == 0.5


def test_a_static_changed_by_at_retraces_once() -> None:
    net = small_net()
    jitted = jax.jit(counted := count_traces(lambda net: net.layers[0].kernel))
    for activation in ("relu", "gelu", "relu"):
        jitted(at(net, lambda net: net.layers[1].activation).set(activation))

    assert counted.count == 2
    with pytest.raises(StaticFieldError, match=r"^Linear\.activation is static but holds a list"):
        at(net, lambda net: net.layers[1].activation).set(["relu"])


def test_at_changes_values_inside_statics() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        width: int
        sizes: tuple[int, ...]

    class Configured(Module):
        config: Config = static()
        table: Any = static(converter=freeze)
        inner: Linear = static()

    node = Configured(Config(3, (1, 2)), {"x": [1]}, Linear(1.0))

    assert at(node, lambda node: node.config.sizes[1]).set(5).config == Config(3, (1, 5))
    assert at(node, lambda node: node.config.width).apply(lambda width: width + 1).config.width == 4
    assert at(node, lambda node: node.table["x"][0]).set(9).table == freeze({"x": [9]})
    assert at(node, ".inner.kernel").set(2.0).inner == Linear(2.0)
    with pytest.raises(
        MissingPlaceError, match=r"Configured\.config \(.*Config\) has no \.wide \(did you mean \.width\?"
    ):
        at(node, ".config.wide")


# Containers


class Point(NamedTuple):
    x: Any


class Struct:
    child: Any
    note: str = flax.struct.field(pytree_node=False, default="")


STRUCT: Any = flax.struct.dataclass(Struct)


class Holder:
    """A pytree with a custom key for each child."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


jax.tree_util.register_pytree_with_keys(
    Holder,
    lambda holder: (((jax.tree_util.GetAttrKey("inner"), holder.inner),), None),
    lambda _, children: Holder(*children),
)


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ([1, 2], lambda tree: tree[1]),
        ((1, 2), lambda tree: tree[1]),
        ({"z": 1, "x": 2}, lambda tree: tree["x"]),
        (OrderedDict(z=1, x=2), lambda tree: tree["x"]),
        (defaultdict(int, {"z": 1, "x": 2}), lambda tree: tree["x"]),
        ({3: 1, "x": 2}, lambda tree: tree[3]),
        (Point(1), lambda tree: tree.x),
        (Point(1), lambda tree: tree[0]),
        (Point((1,)), lambda tree: tree[-1][0]),
        (FROZEN_DICT({"dense": {"kernel": 1}}), lambda tree: tree["dense"]["kernel"]),
        (FROZEN_DICT({"dense": {"kernel": 1}}), "['dense']"),  # it creates inner mappings when they are read
        (STRUCT(1), lambda tree: tree.child),
        (STRUCT(1, "a"), lambda tree: tree.note),
        (Holder([1]), lambda tree: tree.inner[0]),
    ],
)
def test_containers_keep_their_class_and_order(tree: Any, where: Any) -> None:
    before = repr(tree)
    changed = at(tree, where).set(7)

    assert type(changed) is type(tree)
    assert at(changed, where).get() == 7
    assert repr(tree) == before
    if isinstance(tree, dict):
        assert list(changed) == list(tree)


class Sized:
    weight: Any
    size: int

    def __init__(self, size: int) -> None:
        vars(self).update(weight=[0.0] * size, size=size)


class ReadOnly:
    weight: Any
    size: int

    def __init__(self) -> None:
        vars(self).update(weight=None)


for foreign in (Sized, ReadOnly):
    dataclasses.dataclass(frozen=True, init=False)(foreign)
    jax.tree_util.register_dataclass(foreign, data_fields=["weight"], meta_fields=["size"])
setattr(ReadOnly, "size", property(lambda self: 3))  # noqa: B010  a checker would reject the assignment


def test_at_bypasses_constructors_of_foreign_classes() -> None:
    sized = Sized(3)

    assert at(sized, lambda sized: sized.size).set(5).size == 5
    both = at(sized, lambda sized: (sized.weight, sized.size)).set((None, 7))
    assert (both.weight, both.size, sized.size) == (None, 7, 3)
    with pytest.raises(TypeError, match=r"^ReadOnly can't be copied with a different size: .* Build one with it"):
        at(ReadOnly(), ".size").set(5)


# The text of a path


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (".layers[0].kernel", 1.0),
        ("layers[-1].bias", None),
        ("['table']", None),
        (".table['b'][0].left", 4.0),
        (".name", "net"),
        ("", "the tree"),
        (".layers[*].kernel", {".layers[0].kernel": 1.0, ".layers[1].kernel": 3.0}),
        (".layers[-1].*", {".layers[1].kernel": 3.0, ".layers[1].bias": None, ".layers[1].mean": 0.0}),
        ("**.bias", {".layers[0].bias": 2.0, ".layers[1].bias": None}),
        ("**.k*", {".layers[0].kernel": 1.0, ".layers[1].kernel": 3.0}),
        ("**[0].right", {".table['b'][0].right": 5.0}),
        ("name", "net"),
    ],
)
def test_a_path_matches_one_place_and_a_pattern_many(where: str, expected: Any) -> None:
    net = small_net()
    if expected == "the tree":
        assert at(net, where).get() is net
    elif where == "['table']":
        with pytest.raises(MissingPlaceError, match=r"^Net has no \['table'\] \(did you mean \.table\?\)"):
            at(net, where)
    elif where.endswith(".*"):
        assert at(net, where).get() == {**expected, ".layers[1].activation": "relu"}
    else:
        assert at(net, where).get() == expected


def test_a_pattern_gives_every_place_the_value_and_applies_one_by_one() -> None:
    net = small_net()

    assert at(at(net, "**.bias").set(0.0), "**.bias").get() == {".layers[0].bias": 0.0, ".layers[1].bias": 0.0}
    doubled = at(net, ".layers[*].kernel").apply(lambda kernel: 2 * kernel)
    assert [layer.kernel for layer in doubled.layers] == [2.0, 6.0]
    assert at(net, ".layers[0].bia*").set(9.0).layers[0].bias == 9.0


def test_a_dict_by_path_sets_each_place_and_any_other_dict_is_a_value() -> None:
    net = small_net()
    biases = at(net, "**.bias")

    assert biases.set(biases.get()) == net
    assert biases.set({".layers[1].bias": 1.0, ".layers[0].bias": 0.0}).layers[1].bias == 1.0
    for value in ({"a": 1}, {0: 1}, {}):
        assert biases.set(value).layers[0].bias == value
    assert at(net, ".layers[0].bias").set({".layers[0].bias": 1}).layers[0].bias == {".layers[0].bias": 1}
    with pytest.raises(ValueError, match=r"^set\(\) needs a value for each selected place .*layers\[1\]\.bias' is mis"):
        biases.set({".layers[0].bias": 1.0, ".layers[2].bias": 2.0})


def test_a_name_without_a_dot_is_a_field_of_the_root() -> None:
    params: Any = {"dense": {"bias": 1.0, "kernel": 2.0}, "layers": [Linear(3.0, 4.0)]}

    assert at(small_net(), "name").get() == "net"
    assert at(params, "**.bias").get() == {"['layers'][0].bias": 4.0}
    assert at(params, "**['bias']").get() == {"['dense']['bias']": 1.0}
    assert message(params, "bias").endswith('To select it at any depth, write "**[\'bias\']" or "**.bias".')


# A predicate


def test_a_predicate_finds_nodes_leaves_and_statics() -> None:
    net: Any = small_net()

    assert at(net, lambda path, value: isinstance(value, Linear)).apply(lambda layer: layer.kernel).layers == (1.0, 3.0)
    assert at(net, lambda path, value: path.endswith(".bias")).set(0.0).layers[1].bias == 0.0
    assert at(net, lambda path, value: value == "relu").set("gelu").layers[1].activation == "gelu"

    class Named:
        def __call__(self, path: str, value: Any, exact: bool = True) -> bool:
            return bool(value == "net")

    assert at(net, Named()).get() == {".name": "net"}


# Rejected uses; the slips have the common ones


def message(tree: Any, where: Any) -> str:
    with pytest.raises((MissingPlaceError, ValueError, TypeError)) as caught:
        at(tree, where)
    return str(caught.value)


REJECTED: dict[str, tuple[Any, Any, str, list[str]]] = {
    "an index from the end": (
        lambda net: net.layers[-3],
        IndexError,
        "tuple index out of range",
        ["Net.layers (tuple) has no [-3]. It has [0] to [1]."],
    ),
    "a dict": (lambda net: net.table["c"], KeyError, "'c'", ["Net.table (dict) has no ['c']. It has ['b'], ['a']."]),
    "a misspelt field": (
        lambda net: net.layers[0].kernle,
        AttributeError,
        "'Linear' object has no attribute 'kernle'",
        ["Net.layers[0] (Linear) has no .kernle (did you mean .kernel?). It has .kernel, .bias, .mean, .activation."],
    ),
    "below a leaf": (
        lambda net: net.layers[0].kernel.x,
        AttributeError,
        "'float' object has no attribute 'x'",
        ["Net.layers[0].kernel is a leaf, 1.0, without a place .x below it."],
    ),
    "the user's own error": (
        lambda net: int("width") if net.layers[0].kernel == 1.0 else net.layers,
        ValueError,
        "invalid literal for int() with base 10: 'width'",
        [],
    ),
    "the user's own key": (lambda net: {"a": net.layers}["b"], KeyError, "'b'", []),
    "the user's own attribute": (lambda net: getattr(collections, "x" + "y"), AttributeError, "", []),
}


@pytest.mark.parametrize(("where", "error", "text", "notes"), REJECTED.values(), ids=REJECTED)
def test_an_error_of_a_function_stays_and_names_the_missing_place(
    where: Any, error: Any, text: str, notes: list[str]
) -> None:
    with pytest.raises(error) as caught:
        at(small_net(), where)
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert getattr(caught.value, "__notes__", []) == notes
    assert caught.value.__cause__ is None


def test_an_error_of_jax_about_tracers_stays() -> None:
    def where(net: Any) -> Any:
        return net.layers[0].bias if net.layers[0].kernel > 0 else net.layers[0].kernel

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.jit(lambda net: at(net, where).set(1.0))(small_net())
    assert not any("A function of one argument" in note for note in getattr(caught.value, "__notes__", []))


def test_long_lists_of_places_are_truncated() -> None:
    many = {str(index): index for index in range(20)}
    assert message(many, "['x']").endswith("['10'], ['11'], and 8 more.")


@pytest.mark.parametrize(
    ("where", "returned"),
    [
        (lambda net: net.layers[0].kernel * 2, "2.0"),
        (lambda net: [net.table["a"], 8.5], "8.5"),
        (lambda net: None, "None"),
        (lambda net: len(net.layers), "2"),
    ],
)
def test_a_function_that_computes_returns_no_place(where: Any, returned: str) -> None:
    net = at(small_net(), "**.bias").set(0.0)
    assert f"must return a place in the tree, or a tuple, list or dict of places, but returned {returned}, " in message(
        net, where
    )
    assert "To compute with a value or change part of an array, select the whole: at(tree, where).apply(" in message(
        net, where
    )


@pytest.mark.parametrize("answer", [False, True])
def test_a_predicate_of_one_argument_is_rejected(answer: bool) -> None:
    expected = f"The where function returned {answer} for the whole tree. A function of one argument is called with "
    for select in (at, partition, lambda tree, where: spec_like(tree, 0, {where: 1})):
        with pytest.raises(TypeError, match=expected):
            select(small_net(), lambda leaf: answer)
        predicate_of_leaves: Any = lambda leaf: leaf.ndim == 2
        with pytest.raises(AttributeError) as caught:
            select(small_net(), predicate_of_leaves)
        assert "lambda path, value: ..." in caught.value.__notes__[0]


@pytest.mark.parametrize("result", [None, 2, -1, "no", [False], np.ones(2, bool)])
def test_a_predicate_must_return_a_bool(result: Any) -> None:
    for select in (at, partition, lambda tree, where: spec_like(tree, 0, {where: 1})):
        with pytest.raises(TypeError, match=r"^The predicate must return True or False, but returned .* for "):
            select([1.0], lambda path, value: result)
    halves: Any = partition([1.0, -1.0], lambda path, value: jnp.sum(jnp.asarray(value)) > 0)
    assert halves == ([1.0, None], [None, -1.0])


@pytest.mark.parametrize("where", [lambda net: [], lambda net: {}, lambda net: ((), [])])
def test_an_empty_selection_is_rejected(where: Any) -> None:
    assert "The where function returned no places of Net" in message(small_net(), where)
    assert message(small_net(), spec_like(small_net(), False)) == "The mask is True for no leaf of Net."
    assert message(small_net(), Point) == "Net contains no Point."


# One grammar


@pytest.mark.parametrize(
    "where",
    [
        "**.kernel",
        lambda net: [layer.kernel for layer in net.layers],
        lambda path, value: path.endswith(".kernel"),
        spec_like(Net((Linear(0, 0), Linear(0)), {"b": [Pair(0, 0)], "a": 0}), False, {"**.kernel": True}),
        lambda net: spec_like(net, False, {"**.kernel": True}),
    ],
    ids=["pattern", "places", "predicate", "mask", "function that returns a mask"],
)
def test_all_functions_read_where_alike(where: Any) -> None:
    net = at(small_net(), ".layers[0].kernel").set(1.5)
    zeros = at(net, where).apply(lambda value: jax.tree.map(lambda _: 0.0, value))
    assert [layer.kernel for layer in zeros.layers] == [0.0, 0.0]
    assert jax.tree.leaves(partition(net, where)[0]) == [1.5, 3.0]
    if not isinstance(where, Net):  # a mapping has keys, and this mask has no hash
        assert jax.tree.leaves(spec_like(net, 0, {where: 1})).count(1) == 2


MISTAKES: list[Any] = [
    "layrs",
    ".layers[9]",
    ".layers[0].kernel.x",
    "layers.0.bias",
    ".layers[",
    "**.nothing",
    ".layers[*].nothing",
    "kernel",
    complex,
    Point,
    lambda: 1,
    lambda net, path, value: True,
    lambda net: net.layrs,
    lambda net: net.layers[9],
    lambda net: net.table["c"],
    lambda net: net.layers[0].kernel * 2,
    lambda net: 3,
    lambda net: True,
    lambda net: [],
    lambda net: (net.layers, net.layers[0]),
    lambda net: (net.name, net.name),
    lambda path, value: False,
    lambda path, value: None,
    lambda path, value: path.find("kernel"),
    lambda path, value: value.ndim == 2,
    None,
    3,
    1.5,
    ("layers", 0),
    ["layers"],
    {"layers": 0},
    {"layers": True},
]


@pytest.mark.parametrize("where", MISTAKES)
def test_all_functions_reject_a_mistake_in_where_with_one_message(where: Any) -> None:
    functions: list[Any] = [at, partition]
    if not isinstance(where, list | dict):  # a mapping has no such keys
        functions.append(lambda tree, where: spec_like(tree, 0, {where: 1}))
    errors: set[tuple[Any, ...]] = set()
    for select in functions:
        with pytest.raises((AttributeError, LookupError, TypeError, ValueError)) as caught:
            select(small_net(), where)
        errors.add((caught.type, str(caught.value), *getattr(caught.value, "__notes__", [])))
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("tree", "where", "calls"),
    [
        (Linear(jnp.ones(2), jnp.ones(2)), lambda tree: tree.kernel, 1),
        ([1.5, 2.5], lambda tree: tree[0], 2),
        ([jnp.ones(2)], lambda tree: tree[0] if jnp.all(tree[0] > 0) else None, 2),
        ([jnp.ones(2)], lambda tree: tree[0] if jnp.sum(tree[0]) > 0 else None, 4),
        (Linear(jnp.ones(2), None), lambda tree: tree.bias, 3),
        ([None] * 12, lambda tree: tree[0], 3),
        ([None] * 12, lambda tree: tree[:], 7),
        ([None] * 12, lambda tree: tree[:3], 5),
    ],
)
def test_the_number_of_calls_of_a_function_is_the_one_on_the_page(tree: Any, where: Any, calls: int) -> None:
    counted: list[None] = []

    def select(tree: Any) -> Any:
        counted.append(None)
        return where(tree)

    at(tree, select)
    assert len(counted) == calls


def test_a_class_selects_its_nodes() -> None:
    net: Any = small_net()

    assert list(at(net, Linear).get()) == [".layers[0]", ".layers[1]"]
    assert jax.tree.leaves(partition(net, Pair)[0]) == [4.0, 5.0]
    assert jax.tree.leaves(spec_like(net, 0, {Pair: 1})).count(1) == 2


# Results


def test_apply_rejects_a_function_without_a_return() -> None:
    net = small_net()
    for where in (".layers[0].kernel", "**.kernel", lambda net: net.table["a"]):
        with pytest.raises(TypeError, match=r"^apply\(\)'s function returned None for every place\. Does it lack a re"):
            at(net, where).apply(lambda value: None)
    assert at(net, "**.kernel").set(None).layers[0].kernel is None
    assert at(net, ".layers[1].bias").apply(lambda value: value) == net


def test_a_list_is_one_value_for_the_only_place_of_a_pattern() -> None:
    """Of two places it could be one value for each, so it is an error."""
    assert at({"a": 1, "b": {"c": 2}}, "['b'][*]").set([7]) == {"a": 1, "b": {"c": [7]}}
    tree: Any = [1, 2]
    assert at(tree, "[*]").set([7]) == [[7], [7]]
    assert at([1, [2]], "[*]").set([7, 8]) == [[7, 8], [7, 8]]
    with pytest.raises(ValueError, match=r"^set\(\) would put the list of 2 into each of the 2 places\."):
        at([1, 2], "[*]").set([7, 8])
    with pytest.raises(ValueError, match=r"^set\(\) would put the tuple of 2 into each of the 2 places\."):
        at([1, 2], "[*]").set((7, 8))


def test_places_and_selections_print_their_paths() -> None:
    assert repr(at(small_net(), "**.bias")) == "<at Net.layers[0].bias, Net.layers[1].bias>"
