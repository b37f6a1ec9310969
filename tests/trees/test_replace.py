"""`replace`: a changed copy without a constructor call, checked like a new node, sharing the rest."""

import collections
import copy
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from treewright import Module, at, buffer, edit, field, pytree_dataclass, replace, static
from treewright.errors import ChildWarning

ran: list[str] = []


def recording_converter(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Any]:
    def converter(value: Any) -> Any:
        ran.append(name)
        return convert(value)

    return converter


@pytree_dataclass
class Layer:
    kernel: Any = field(converter=recording_converter("kernel", jnp.asarray))
    bias: Any = field(default=0.0, converter=recording_converter("bias"))
    scale: dataclasses.InitVar[float] = 1.0
    mean: Any = buffer(default=0.5, init=False)
    width: Any = static(default=3, converter=recording_converter("width"))
    key: Any = field(default=None, kw_only=True)

    def __post_init__(self, scale: float) -> None:
        ran.append("__post_init__")

    def __check_init__(self) -> None:
        ran.append("__check_init__")
        if isinstance(self.width, int) and self.width < 0:
            checked.append(self)
            raise ValueError(f"width is {self.width}")


checked: list[Layer] = []


class Net(Module):
    layers: list[Layer]
    name: str = static()

    def __init__(self, size: int) -> None:
        ran.append("__init__")
        self.layers = [Layer(jnp.ones(size))]
        self.name = f"net of {size}"

    def __call__(self, x: Any) -> Any:
        return x * self.layers[0].kernel


class DeepNet(Net):
    depth: Any = 1.0

    def __check_init__(self) -> None:
        ran.append("DeepNet.__check_init__")


def changed(node: Any, /, **changes: Any) -> Any:
    """`replace`, with a cleared record of converters and checks."""
    ran.clear()
    return replace(node, **changes)


# Changed and unchanged fields


def test_replace_sets_new_values_and_shares_the_others() -> None:
    layer = Layer(jnp.ones(3), [1.0], key=jax.random.key(0))
    result = replace(layer, bias=2.0)
    assert type(result) is Layer
    assert result.bias == 2.0
    assert result.kernel is layer.kernel
    assert result.key is layer.key
    assert result.tree_flatten()[1] is layer.tree_flatten()[1]  # type: ignore[attr-defined]


# What runs


@pytest.mark.parametrize("name", ["kernel", "bias", "width"])
def test_replace_runs_converters_of_changed_fields_and_all_checks(name: str) -> None:
    changed(Layer(1.0), **{name: 2})
    assert ran == [name, "__post_init__", "__check_init__"]


def test_replace_skips_a_custom_init_but_runs_all_checks() -> None:
    build: Any = DeepNet  # It inherits the `__init__` of Net, but checkers assume a generated one.
    net = build(2)
    result = changed(net, depth=2.0, name="mine")
    assert ran == ["DeepNet.__check_init__"]
    assert (type(result), result.depth, result.name) == (DeepNet, 2.0, "mine")
    assert result.layers is net.layers

    @pytree_dataclass
    class Checked(Layer):
        extra: Any = 0

        def __check_init__(self) -> None:
            ran.append("Checked.__check_init__")

    changed(Checked(1.0), extra=1)
    assert ran == ["__post_init__", "__check_init__", "Checked.__check_init__"]


def test_modules_have_a_replace_method() -> None:
    net = Net(2)
    result = net.replace(name="mine")
    assert (result.name, result.layers, type(result)) == ("mine", net.layers, Net)
    assert net.replace() == net
    untyped: Any = net
    with pytest.raises(TypeError, match=r"Net has no field nam \(did you mean name\?\)\. Its fields: layers, name"):
        untyped.replace(nam=1)


def made_with(body: dict[str, Any], base: type = object) -> Any:
    return pytree_dataclass(type("Odd", (base,), {"__annotations__": {"x": Any}, **body}))


def test_a_field_or_method_named_replace_is_unchanged() -> None:
    field_of_its_own = made_with({"__annotations__": {"replace": Any, "x": Any}})
    assert field_of_its_own(1, 2).replace == 1
    assert replace(field_of_its_own(1, 2), x=3) == field_of_its_own(1, 3)
    below_the_method = made_with({"__annotations__": {"replace": Any}}, base=made_with({}))
    assert jax.tree.leaves(below_the_method(1, 2)) == [1, 2]
    assert made_with({"replace": lambda self, by: self.x + by})(1).replace(2) == 3
    mixin = type("Mixin", (), {"replace": lambda self: "the mixin's"})
    assert made_with({}, base=mixin)(1).replace() == "the mixin's"
    variable = made_with({"__annotations__": {"replace": dataclasses.InitVar[int], "x": Any}})
    assert not hasattr(variable, "replace")


# Fields derived by `__post_init__`: each spelling behaves like `dataclasses.replace`


@pytree_dataclass
class Interval:
    low: Any
    high: Any = 2.0
    unit: dataclasses.InitVar[float] = 1.0
    width: Any = field(init=False)
    steps: Any = field(default=0, init=False)
    kind: str = static(init=False)

    def __post_init__(self: Any, unit: float) -> None:
        self.width = (self.high - self.low) / unit
        self.kind = type(self.high).__name__
        self.low = self.low * 1.0


class Measured(Module):
    low: Any
    high: Any = 2.0
    unit: dataclasses.InitVar[float] = 1.0
    width: Any = field(init=False)
    kind: str = static(init=False, default="full")

    def __post_init__(self, unit: float) -> None:
        Interval.__post_init__(self, unit)


SPELLINGS: dict[str, Callable[..., Any]] = {
    "treewright.replace": replace,
    "node.replace": lambda node, **changes: node.replace(**changes),
    "node.__replace__": lambda node, **changes: node.__replace__(**changes),  # copy.replace calls it
    "dataclasses.replace": dataclasses.replace,
}
if sys.version_info >= (3, 13):
    SPELLINGS["copy.replace"] = copy.replace


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("cls", [Interval, Measured])
@pytest.mark.parametrize(
    "changes", [{"high": 10.0}, {"low": 2}, {"low": 1, "high": 5}, {"unit": 2.0}, {"low": 0, "unit": 4.0}]
)
def test_every_form_of_replace_reruns_post_init(spelling: Any, cls: Any, changes: dict[str, Any]) -> None:
    node = cls(1.0)
    result = spelling(node, **changes)
    assert result == cls(**{"low": 1.0, "high": 2.0, **changes})
    assert node == cls(1.0)
    assert jax.tree.structure(result) == jax.tree.structure(cls(**{"low": 1.0, **changes}))


def test_replace_rejects_fields_that_post_init_assigns() -> None:
    interval: Any = Interval(1.0)
    with pytest.raises(
        TypeError, match=r"Interval\.width is derived: __post_init__ assigned .* lost.*treewright\.at\(node"
    ):
        replace(interval, width=3.0)
    with pytest.raises(TypeError, match=r"Interval\.kind is derived"):
        replace(interval, kind="odd", low=0.0)
    assert at(interval, lambda node: node.width).set(3.0).width == 3.0


def test_at_and_edit_do_not_run_post_init() -> None:
    interval = Interval(1.0)
    assert at(interval, lambda node: node.high).set(10.0).width == 1.0
    with edit(interval) as draft:
        draft.high = 10.0
    assert (draft.high, draft.width) == (10.0, 1.0)


def test_replace_requires_init_vars_without_default() -> None:
    @pytree_dataclass
    class Scaled:
        x: Any
        factor: dataclasses.InitVar[float]

        def __post_init__(self: Any, factor: float) -> None:
            self.x = self.x * factor

    scaled: Any = Scaled(2.0, 3.0)
    with pytest.raises(TypeError, match=r"Scaled\.__post_init__ needs factor, an InitVar .* replace\(node, factor="):
        replace(scaled, x=1.0)
    with pytest.raises((ValueError, TypeError), match="'factor' must be specified"):  # the latter from 3.13 on
        dataclasses.replace(scaled, x=1.0)
    assert replace(scaled, x=1.0, factor=5.0) == Scaled(1.0, 5.0)
    assert replace(scaled) == scaled


def test_replace_runs_no_post_init_under_a_custom_init() -> None:
    class Own(Module):
        x: Any
        double: Any = field(init=False)

        def __init__(self, x: Any) -> None:
            self.x, self.double = x, x * 2

    assert jax.tree.leaves(replace(Own(1.0), x=5.0)) == [5.0, 2.0]


# Rejected changes


def test_replace_rejects_unknown_names_with_close_matches() -> None:
    layer: Any = Layer(1.0)  # checkers reject all of this
    ran.clear()
    with pytest.raises(TypeError, match=r"Layer has no field kernal \(did you mean kernel\?\), wide"):
        replace(layer, kernal=1, bias=2, wide=3)
    with pytest.raises(TypeError, match=r"Its fields: kernel, bias, mean, width, key, scale\."):
        replace(layer, x=1)
    assert ran == []


# In programs


@pytest.mark.slow
def test_replace_works_under_transformations() -> None:
    def step(layer: Layer, x: Any) -> Layer:
        return replace(layer, kernel=layer.kernel * x, bias=x, width=5)

    layer, xs = Layer(jnp.full(2, 2.0)), jnp.arange(3.0)
    result = jax.jit(step)(layer, 3.0)
    assert result.width == 5
    assert result == changed(layer, kernel=jnp.full(2, 6.0), bias=jnp.asarray(3.0), mean=jnp.asarray(0.5), width=5)
    many = jax.vmap(step, in_axes=(None, 0))(layer, xs)
    assert many.kernel.shape == (3, 2)
    assert many.bias.tolist() == [0.0, 1.0, 2.0]
    slope = jax.grad(lambda scale: replace(layer, kernel=layer.kernel * scale).kernel.sum())(1.0)
    assert slope == 4.0
    carried, _ = jax.lax.scan(lambda layer, x: (replace(layer, kernel=layer.kernel + x), None), layer, xs)
    assert carried.kernel.tolist() == [5.0, 5.0]


class Stack(Module):
    layers: Any = field()


class MayBeNone(Module):
    table: dict[str, float] | None = field()
    layers: Any = None


@pytest.mark.parametrize(
    ("layers", "change"),
    [
        ([1.0], lambda layers: layers.append(2.0)),
        ({"a": 1.0}, lambda layers: layers.update(b=2.0)),
        ({1.0}, lambda layers: layers.add(2.0)),
        (collections.deque([1.0]), lambda layers: layers.extend([2.0])),
        (bytearray(b"a"), lambda layers: layers.append(2)),
    ],
    ids=["list", "dict", "set", "deque", "bytearray"],
)
def test_none_in_place_of_a_mutable_container_is_a_warning(layers: Any, change: Callable[[Any], Any]) -> None:
    stack = Stack(layers)
    kind = type(layers).__name__
    with pytest.warns(
        ChildWarning, match=rf"^replace\(\) stores None in Stack\.layers, which is a {kind}\. append\(\)"
    ):
        assert replace(stack, layers=change(stack.layers)).layers is None
    assert at(stack, ".layers").set(None).layers is None


def test_none_in_place_of_another_value_is_no_warning() -> None:
    assert replace(Stack(None), layers=None).layers is None
    assert replace(Stack((1.0,)), layers=None).layers is None
    assert replace(MayBeNone({"a": 1.0}, [1.0]), layers=None, table=None) == MayBeNone(None, None)


def test_none_for_a_name_that_is_no_field() -> None:
    class Scaled(Module):
        x: float
        scale: dataclasses.InitVar[float | None] = 1.0

        def __post_init__(self, scale: float | None) -> None:
            self.x = self.x if scale is None else self.x * scale

    assert replace(Scaled(2.0), scale=None).x == 2.0
    with pytest.raises(TypeError, match=r"Scaled has no field nope\."):
        replace(Scaled(2.0), nope=None)  # type: ignore[call-arg]
