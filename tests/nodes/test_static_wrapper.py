"""`Static`, the smallest node with a static: its lifetime, copies and pickles; and the values that may be static."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import TypeAliasType

from tests.conftest import count_traces
from treewright import Module, Static, freeze, pytree_dataclass, replace, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

T = TypeVar("T")
ALIAS: Any = TypeAliasType


@pytree_dataclass
class Layer:
    x: Any
    width: Any = static(default=1)
    activation: Any = static(default=None)


def interned(node: Any) -> Any:
    """The shared object of the node's static values."""
    return node.tree_flatten()[1]


def in_use(cls: Any) -> int:
    """The number of interned combinations of statics of the class, without unused ones."""
    gc.collect()
    return len(cls.__node_info__.table.in_use)


# The wrapper


def test_static_wrappers_in_containers_are_not_leaves() -> None:
    def scale(settings: dict[str, Any]) -> Any:
        return settings["x"] * {"double": 2.0, "triple": 3.0}[settings["modes"][0].value]

    scaled = jax.jit(counted := count_traces(scale))

    def called(mode: str) -> list[float]:
        result: list[float] = scaled({"x": jnp.ones(2), "modes": [Static(mode), 1.0]}).tolist()
        return result

    assert jax.tree.leaves([Static("double"), 1.0, (Static(2),)]) == [1.0]
    assert [called(mode) for mode in ("double", "triple", "double")] == [[2.0] * 2, [3.0] * 2, [2.0] * 2]
    assert counted.count == 2


def test_the_wrapper_rejects_invalid_statics() -> None:
    with pytest.raises(StaticFieldError, match=r"^Static\.value is static but holds a list, \[1\]"):
        Static([1])  # type: ignore[type-var]
    with pytest.raises(StaticFieldError, match=r"^Static\.value is static but holds a tracer, f32\[2\]\(traced\)"):
        jax.jit(lambda x: Static(x).value)(jnp.ones(2))

    assert Static(freeze([1])).value == (1,)


@pytest.mark.parametrize("value", [False, True, 0, 1, "", "train", None, (), (0,)])
def test_static_truthiness_follows_its_value_under_jit(value: Any) -> None:
    assert bool(Static(value)) is bool(value)
    assert jax.jit(lambda flag, x: x if flag else -x)(Static(value), 1.0) == (1.0 if value else -1.0)


# The interned object


def test_the_aux_data_names_the_fields() -> None:
    layer = Layer(1.0, 64, jax.nn.relu)

    assert repr(interned(layer)) == "width=64, activation=jax._src.nn.functions.relu"
    assert "width=64, activation=" in str(jax.tree.structure(layer))
    with pytest.raises(ValueError, match=r"width=64, activation=(?s:.*)width=32, activation="):
        jax.tree.map(lambda a, b: a, layer, replace(layer, width=32))
    with pytest.raises(ValueError, match=r"width=3, (?s:.*)width=3\.0, "):
        jax.tree.map(lambda a, b: a, Layer(1.0, 3), Layer(1.0, 3.0))


def test_unpickled_statics_are_interned_and_treedefs_equal() -> None:
    layer = Layer(1.0, (64, float("nan")), jnp.mean)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):  # JAX's treedefs reject older ones
        node, aux, treedef = pickle.loads(pickle.dumps((layer, interned(layer), jax.tree.structure(layer)), protocol))
        assert interned(node) is aux is interned(layer)
        assert treedef == jax.tree.structure(layer)


def test_unpickling_a_different_class_version_names_both_sets_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(*names: str) -> Any:
        annotations = dict.fromkeys(names, "int")
        body = {"__annotations__": annotations, "__module__": __name__, **{name: static() for name in names}}
        cls = pytree_dataclass(type("Versioned", (), body))
        monkeypatch.setitem(globals(), "Versioned", cls)
        return cls

    data = pickle.dumps(declare("width", "depth")(width=1, depth=2))

    again = declare("depth", "width")
    assert pickle.loads(data) == again(width=1, depth=2)
    declare("width", "height")
    with pytest.raises(TypeError, match=r"width, depth of Versioned, which now has width, height\. It was written by"):
        pickle.loads(data)


# Lifetime


def test_unused_statics_are_freed() -> None:
    @pytree_dataclass
    class Example:
        x: Any
        setting: Any = static()

    def function() -> None: ...
    def unused() -> None: ...

    assert in_use(Example) == 0
    example = Example(jnp.ones(2), function)
    other = Example(jnp.ones(2), unused)
    jitted = jax.jit(lambda example: example.x)
    jitted(example)
    assert in_use(Example) == 2

    del example, other
    assert in_use(Example) == 1  # The compiled program uses it.

    del jitted
    clear_caches: Any = jax.clear_caches
    clear_caches()
    assert in_use(Example) == 0
    assert in_use(Example) == 0


@pytest.mark.parametrize("refer", ["method of an object", "object"])
def test_a_static_that_refers_to_its_own_node_is_freed(refer: str) -> None:
    class Callback:
        def __init__(self, target: Any) -> None:
            self._target = target

        def call(self) -> Any:
            return self._target

    class Net(Module):
        scale: float
        hook: Any = static()

        def __init__(self) -> None:
            self.scale = 1.0
            self.hook = Callback(self).call if refer == "method of an object" else Callback(self)

    nets = [Net() for _ in range(3)]
    watched = [weakref.ref(net) for net in nets]
    assert in_use(Net) == 3

    del nets
    assert in_use(Net) == 0
    assert [reference() for reference in watched] == [None] * 3


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch threads a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 1000)
    yield
    sys.setswitchinterval(before)


class Slow:
    """Compares in Python, so that other threads run meanwhile."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slow) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number % 3)


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")  # their attributes can be assigned
@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("make", [int, lambda n: (n, -0.0), Slow], ids=["by value", "by key", "slow"])
def test_sixteen_threads_get_one_object_for_equal_statics(make: Callable[[int], Any]) -> None:
    barrier = threading.Barrier(16)
    layers_by_thread: list[list[Layer]] = []

    def build() -> None:
        barrier.wait()
        layers_by_thread.append([Layer(1, make(number)) for number in range(30)])

    threads = [threading.Thread(target=build) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len({id(interned(layer)) for layer in layers}) for layers in zip(*layers_by_thread, strict=True)] == [
        1
    ] * 30
    assert len({id(interned(layer)) for layer in layers_by_thread[0]}) == 30


# Allowed static values


@pytest.mark.parametrize("annotation", [list[int], "jax.Array", np.ndarray, tuple[list[int], ...], "Undeclared", int])
@pytest.mark.parametrize("declare", [static, lambda: dataclasses.field(metadata={"static": True})])
def test_statics_are_checked_by_value_not_by_annotation(annotation: Any, declare: Any) -> None:
    cls: Any = pytree_dataclass(type("Example", (), {"__annotations__": {"n": annotation}, "n": declare()}))
    assert cls((1, 2)).n == (1, 2)
    with pytest.raises(StaticFieldError, match=r"Example\.n is static but holds a list"):
        cls([1, 2])
