"""`at`: read and change any place in a tree, at the cost of its depth, sharing the rest."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, at, buffer, field, freeze, pytree_dataclass, static
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
    at(tree, lambda tree: tree[0].value)
    assert ran == []
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
        double: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.width)

    class Configured(Module):
        config: Config = static()
        table: Any = static(converter=freeze)
        inner: Linear = static()

    node = Configured(Config(3, (1, 2)), {"x": [1]}, Linear(1.0))

    assert at(node, lambda node: node.config.sizes[1]).set(5).config == Config(3, (1, 5))
    assert at(node, lambda node: node.config.width).apply(lambda width: width + 1).config.double == 8
    assert at(node, lambda node: node.config.double).set(5).config.width == 3
    assert at(node, lambda node: node.table["x"][0]).set(9).table == freeze({"x": [9]})
    assert at(node, ".inner.kernel").set(2.0).inner == Linear(2.0)
    assert at(STRUCT(np.float32(1.0), "a"), "**.*").get() == {".child": 1.0, ".note": "a"}
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

    def __copy__(self) -> Sized:
        return self


class Slotted:
    __slots__ = ("__size", "size", "weight")
    weight: Any
    size: int

    def __init__(self, size: int) -> None:
        self.__size: int
        for name, value in {"weight": [0.0] * size, "size": size, "_Slotted__size": size}.items():
            object.__setattr__(self, name, value)

    @property
    def again(self) -> int:
        return self.__size


class ReadOnly:
    weight: Any
    size: int

    def __init__(self) -> None:
        vars(self).update(weight=None)


for foreign in (Sized, Slotted, ReadOnly):
    dataclasses.dataclass(frozen=True, init=False)(foreign)
    jax.tree_util.register_dataclass(foreign, data_fields=["weight"], meta_fields=["size"])
setattr(ReadOnly, "size", property(lambda self: 3))  # noqa: B010  a checker would reject the assignment


def test_at_bypasses_constructors_of_foreign_classes_and_copy_methods_that_return_the_object() -> None:
    for sized in (Sized(3), Slotted(3)):
        tree = [sized]
        assert at(tree, lambda tree: tree[0].size).set(5)[0].size == 5
        both = at(tree, lambda tree: (tree[0].weight, tree[0].size)).set((None, 7))[0]
        assert (both.weight, both.size, sized.size) == (None, 7, 3)
        assert repr(at(tree, lambda tree: tree[0].weight[1])) == "<at list[0].weight[1]>"
        assert type(sized.weight) is list
        assert sized.weight == [0.0] * 3
    assert at([Slotted(3)], "[0].size").set(5)[0].again == 3
    with pytest.raises(TypeError, match=r"^ReadOnly can't be copied with a different size: .* Build one instead\.$"):
        at(ReadOnly(), ".size").set(5)


class Cached:
    """Its copies have a lock of their own and no cached total."""

    weight: Any
    size: int

    def __init__(self, size: int) -> None:
        vars(self).update(weight=None, size=size, lock=object())

    @functools.cached_property
    def total(self) -> int:
        return 10 * self.size

    def __getstate__(self) -> Any:
        return {"weight": self.weight, "size": self.size}

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state, lock=object())


class CopiedBySelf(Cached):
    def __getstate__(self) -> Any:
        return vars(self)

    def __copy__(self) -> CopiedBySelf:
        return type(self)(self.size)


class Unit(Cached, int):
    pass


class FailedError(CopiedBySelf, Exception):
    pass


@pytest.mark.parametrize("cls", [Cached, CopiedBySelf, Unit, FailedError])
def test_a_static_of_a_foreign_object_is_set_in_a_copy_that_the_class_makes(cls: Any) -> None:
    dataclasses.dataclass(init=False, eq=False)(cls)
    jax.tree_util.register_dataclass(cls, data_fields=["weight"], meta_fields=["size"])
    before = cls(2)
    assert before.total == 20
    changed = at([before], "[0].size").set(3)[0]

    assert (type(changed), changed.size, changed.total) == (cls, 3, 30)
    assert changed.lock is not before.lock
    assert (before.size, before.total) == (2, 20)


# The text of a path


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
    with pytest.raises(
        ValueError, match=r"but '\.layers\[1\]\.bias' is missing, '\.layers\[2\]\.bias' is not selected\.$"
    ):
        biases.set({".layers[0].bias": 1.0, ".layers[2].bias": 2.0})


class Unhashable(str):
    __slots__ = ()
    __hash__: Any = None


def test_a_name_without_a_dot_is_a_field_of_the_root() -> None:
    params: Any = {"dense": {"bias": 1.0, "kernel": 2.0}, "layers": [Linear(3.0, 4.0)]}

    assert at(small_net(), "name").get() == "net"
    assert at(small_net(), Unhashable("name")).get() == "net"
    assert at(params, "**.bias").get() == {"['layers'][0].bias": 4.0}
    assert at(params, "**['bias']").get() == {"['dense']['bias']": 1.0}
    assert message(params, "bias").endswith('To select it at any depth, write "**[\'bias\']" or "**.bias".')


# Rejected uses; the slips have the common ones


def message(tree: Any, where: Any) -> str:
    with pytest.raises((MissingPlaceError, ValueError, TypeError)) as caught:
        at(tree, where)
    return str(caught.value)


def test_long_lists_of_places_are_truncated() -> None:
    many = {str(index): index for index in range(20)}
    assert message(many, "['x']").endswith("['10'], ['11'], and 8 more.")


# One grammar


@pytest.mark.parametrize(
    ("tree", "where", "calls"),
    [
        (Linear(jnp.ones(2), jnp.ones(2)), lambda tree: tree.kernel, 1),
        ([1.5, 2.5], lambda tree: tree[0], 3),
        ([jnp.ones(2), 2.5], lambda tree: tree[0], 2),
        ([jnp.ones(2)], lambda tree: tree[0] if jnp.all(tree[0] > 0) else None, 2),
        ([jnp.ones(2)], lambda tree: tree[0] if jnp.sum(tree[0]) > 0 else None, 4),
        (Linear(jnp.ones(2), None), lambda tree: tree.bias, 2),
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
