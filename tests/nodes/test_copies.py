"""Copies by `copy`, `pickle`, `cloudpickle` and other processes are frozen, and freed as early as the original."""

import contextlib
import copy
import dataclasses
import functools
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, TrainState, field, freeze, pytree_dataclass, replace, static
from treewright.errors import UnfinishedNodeError

partial: Any = functools.partial
calls: list[str] = []


def record_call(value: Any) -> Any:
    calls.append("converter")
    return value


def squared(x: Any) -> Any:
    return x * x


@pytree_dataclass
class Layer:
    kernel: Any = field(converter=record_call)
    bias: Any = None
    start: dataclasses.InitVar[int] = 0
    total: Any = field(init=False, default=0)
    activation: Any = static(default=squared, converter=record_call)

    def __post_init__(self, start: int) -> None:
        calls.append("__post_init__")

    def __check_init__(self) -> None:
        calls.append("__check_init__")

    def __call__(self, x: Any) -> Any:
        return self.activation(x * self.kernel)


class Net(Module):
    layers: Any
    rate: float = static()

    def __init__(self, size: int, rate: float = 0.5) -> None:
        calls.append("__init__")
        self.layers = [Layer(jnp.arange(float(size)))]
        self.rate = rate

    def __call__(self, x: Any) -> Any:
        return self.layers[0](x) * self.rate


class Plain(Module):
    value: Any


@pytree_dataclass
class Box:
    value: Any


def pickle_round_trip(protocol: int, node: Any) -> Any:
    return pickle.loads(pickle.dumps(node, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": functools.partial(pickle_round_trip, protocol) for protocol in (0, 2, 5)},
    "cloudpickle": lambda node: pickle.loads(cloudpickle.dumps(node)),
    "tree.map": lambda node: jax.tree.map(lambda leaf: leaf, node),
    "replace": replace,
}

copies = pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)


@contextlib.contextmanager
def no_garbage_collector() -> Generator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@copies
def test_copying_runs_no_constructor_converter_or_check(duplicate: Callable[[Any], Any]) -> None:
    nodes: list[Any] = [Net(3), Layer(1.5, activation="relu"), Plain(None), Box({"a": [np.ones(2), "s"]})]
    for node in nodes:
        calls.clear()
        result = duplicate(node)
        assert calls == []
        assert result is not node
        assert type(result) is type(node)
        assert result == node
        assert repr(result) == repr(node)
        assert result.tree_flatten()[1] is node.tree_flatten()[1]


@copies
def test_a_copy_is_freed_with_its_last_reference(duplicate: Callable[[Any], Any]) -> None:
    with no_garbage_collector():
        for node in (Net(3), Box([1, {"a": jnp.ones(2)}])):
            result = duplicate(node)
            assert repr(result) == repr(node)
            assert result == node
            reference = weakref.ref(result)
            del result
            assert reference() is None


@pytest.mark.parametrize("name", [name for name in COPIES if name.startswith(("deepcopy", "pickle", "cloud"))])
def test_cycles_are_copied(name: str) -> None:
    items: list[Any] = []
    box = Box(items)
    items.append(box)
    result = COPIES[name](box)
    assert result is not box
    assert result.value is not items
    assert result.value[0] is result


def test_copy_shares_the_children_and_deepcopy_copies_them_once() -> None:
    shared = [1]
    box = Box([shared, {"again": shared}])
    assert copy.copy(box).value is box.value
    result = copy.deepcopy(box)
    assert result.value[0] is result.value[1]["again"] is not shared
    shared.append(2)
    assert result == Box([[1], {"again": [1]}])
    both = copy.deepcopy([box, box])
    assert both[0] is both[1] is not box


def test_methods_and_treedefs_are_copied_and_pickled() -> None:
    net = Net(3)
    for duplicate in (copy.copy, copy.deepcopy):
        assert jnp.array_equal(duplicate(net.__call__)(2.0), net(2.0))
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert jnp.array_equal(pickle.loads(dumps(net.__call__))(2.0), net(2.0))
        treedef = pickle.loads(dumps(jax.tree.structure(net)))
        assert treedef == jax.tree.structure(net)
        assert jax.tree.unflatten(treedef, jax.tree.leaves(net)) == net


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.gelu, jnp.exp, jax.lax.tanh, np.tanh, abs, len])
def test_static_functions_are_pickled_by_name(function: Any) -> None:
    layer = Layer(1.0, activation=function)
    for duplicate in (COPIES["pickle 0"], COPIES["pickle 5"], COPIES["cloudpickle"]):
        result = duplicate(layer)
        assert result.activation is function
        assert result == layer


@dataclasses.dataclass(frozen=True)
class Held:
    function: Any


@pytest.mark.parametrize(
    "value",
    [
        (jnp.tanh, [1]),
        frozenset({jnp.tanh}),
        Held(jnp.tanh),
        freeze({"act": [jnp.tanh]}),
        partial(partial(jnp.clip, min=0), max=jnp.tanh),
    ],
    ids=["tuple", "frozenset", "dataclass", "mapping", "partial"],
)
def test_functions_inside_statics_are_pickled_by_name(value: Any) -> None:
    layer = Layer(1.0, activation=freeze(value))
    for duplicate in (COPIES["pickle 0"], COPIES["pickle 5"], COPIES["cloudpickle"]):
        assert jax.tree.structure(duplicate(layer)) == jax.tree.structure(layer)


def test_an_unfinished_node_cannot_be_copied() -> None:
    empty = object.__new__(Box)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps, cloudpickle.dumps, replace):
        with pytest.raises(UnfinishedNodeError, match="an unfinished Box"):
            duplicate(empty)


def class_of_version(*children: str, statics: tuple[str, ...] = ()) -> Any:
    """`Version`, importable from this module, with these fields."""
    body = {name: static() for name in statics}
    annotations = dict.fromkeys((*children, *statics), Any)
    return type("Version", (Module,), {"__module__": __name__, "__annotations__": annotations, **body})


@pytest.mark.parametrize("later", [("a", "b"), ("b",), ()])
def test_unpickling_rejects_a_class_whose_children_changed(
    monkeypatch: pytest.MonkeyPatch, later: tuple[str, ...]
) -> None:
    before = class_of_version("a")
    monkeypatch.setattr(sys.modules[__name__], "Version", before, raising=False)
    data = pickle.dumps(before(1))
    monkeypatch.setattr(sys.modules[__name__], "Version", class_of_version(*later))
    with pytest.raises(TypeError, match=r"Version.*a different version of the class"):
        pickle.loads(data)


# Other processes


@pytest.mark.parametrize(
    "tx",
    [
        optax.adam(1e-3),
        optax.adamw(optax.cosine_decay_schedule(0.1, 100)),
        optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)),
    ],
    ids=["adam", "adamw with a schedule", "chain"],
)
def test_cloudpickle_restores_a_state_with_an_equal_optimiser(tx: Any) -> None:
    state = TrainState.create(params={"w": jnp.ones(2)}, tx=tx)

    back = pickle.loads(cloudpickle.dumps(state))

    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert back.apply_gradients(grads={"w": jnp.ones(2)}) == state.apply_gradients(grads={"w": jnp.ones(2)})


@pytest.mark.parametrize(
    ("tx", "name"),
    [
        (optax.adam(1e-3), r"chain\.<locals>\.init_fn"),
        ((lambda params: (), jnp.tanh), r"<lambda at test_copies\.py:\d+>"),
    ],
    ids=["optimiser", "lambda"],
)
def test_pickle_rejects_a_function_without_an_import_path(tx: Any, name: str) -> None:
    state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.GradientTransformation(*tx))

    with pytest.raises(pickle.PicklingError, match=rf"^TrainState\.tx holds {name}, a function .*cloudpickle\.dumps"):
        pickle.dumps(state)
