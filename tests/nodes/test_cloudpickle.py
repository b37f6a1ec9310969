"""Classes that a process cannot import: `cloudpickle` sends them by value, and they work on arrival."""

import dataclasses
import inspect
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import jax
import pytest

from tests.conftest import count_traces, one_line
from treewright import replace

pytestmark = pytest.mark.slow

SENDER = """
import abc, dataclasses, sys
from typing import Any, Generic, TypeVar

import cloudpickle, jax, jax.numpy as jnp
from treewright import Module, buffer, field, pytree_dataclass, static

T = TypeVar("T")
SCALE = 2.0

def doubled(x):
    return x * SCALE

@pytree_dataclass
class Point:
    x: Any
    y: Any = 1.0

@pytree_dataclass
class Layer:
    kernel: Any = field(converter=jnp.asarray)
    bias: Any = field(default_factory=lambda: [0.0])
    start: dataclasses.InitVar[float] = 0.0
    mean: Any = buffer(default=0.5)
    total: Any = field(init=False, default=7.0)
    name: str = static(default="Layer", converter=str.lower)
    activation: Any = static(default=doubled, kw_only=True)
    tags: Any = static(default=frozenset({"relu", "gelu", "tanh"}), repr=False)  # in an order of each process

    def __check_init__(self):
        if self.kernel.ndim > 0:
            raise ValueError("kernel is not a number")

    def __call__(self, x):
        return self.activation(x * self.kernel)

class Net(Module):
    layers: Any
    depth: int = static()

    def __init__(self, depth):
        self.layers = [Layer(float(i + 1)) for i in range(depth)]
        self.depth = depth

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class NamedNet(Net):
    name: str = static(default="named")

    def __init__(self, depth, name):
        super().__init__(depth)
        self.name = name

    @jax.jit
    def __call__(self, x):
        return super().__call__(x) + 1.0

class Box(Module, Generic[T], kw_only=True):
    item: T
    label: str = static(default="box")

class Shape(Module, abc.ABC):
    side: Any
    area: Any = field(init=False)

    def __post_init__(self):
        self.area = self.side * self.side

    @abc.abstractmethod
    def draw(self): ...

class Square(Shape):
    def draw(self):
        return f"{self.side} x {self.side}"

things = {
    "point": Point(2.0), "layer": Layer(3.0, name="FIRST"), "net": Net(2), "named": NamedNet(2, "second"),
    "box": Box[int](item=Net(1)), "square": Square(3.0), "method": Net(2).__call__,
    "treedef": jax.tree.structure(Net(2)),
    **{cls.__name__: cls for cls in (Point, Layer, Net, NamedNet, Box, Shape, Square)},
}

# Each of these is loaded separately, so that none depends on an earlier one.

@pytree_dataclass
class Plain:
    x: Any

@pytree_dataclass
class Tagged:
    x: Any
    tag: str = static(default="t")

    again = None

class Pure(Module):
    x: Any

    def __call__(self):
        return self.x

class Made(Module):
    x: Any
    tag: Any = static()

    def __init__(self, x):
        self.x = x
        self.tag = Plain(x)

class Own(Made):
    pass

Tagged.again = Tagged(1.0)
single = {
    "Plain(x=1.0)": Plain(1.0), "Tagged(x=1.0, tag='t')": Tagged(1.0), "Pure(x=1.0)": Pure(1.0),
    "Own(x=1.0, tag=Plain(x=1.0))": Own(1.0), "<class '__main__.Made'>": Made,
    "<method Pure.__call__ of Pure(x=2.0)>": Pure(2.0).__call__,
    "PyTreeDef(CustomNode(Tagged[tag='t'], [*]))": jax.tree.structure(Tagged(1.0)),
}
with open(sys.argv[1], "wb") as file:
    single = {name: cloudpickle.dumps(thing) for name, thing in single.items()}
    cloudpickle.dump({"all": cloudpickle.dumps(things), **single}, file)
"""


@pytest.fixture(scope="module")
def pickles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Pickles of a script by value, by name; `all` contains everything."""
    folder = tmp_path_factory.mktemp("sender")
    (folder / "sender.py").write_text(SENDER, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(folder / "sender.py"), str(folder / "things.pickle")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    things: dict[str, bytes] = pickle.loads((folder / "things.pickle").read_bytes())
    return things


@pytest.fixture(scope="module")
def sent(pickles: dict[str, bytes]) -> Any:
    things: dict[str, Any] = pickle.loads(pickles["all"])
    return type("Things", (), things)


def test_each_pickle_loads_independently(pickles: dict[str, bytes]) -> None:
    for name, data in pickles.items():
        if name != "all":
            assert repr(pickle.loads(data)) == name


def test_nodes_are_sent_by_value(sent: Any) -> None:
    assert type(sent.layer) is sent.Layer
    assert one_line(sent.layer) == (
        "Layer(kernel=f32(3.0), bias=[0.0], mean=0.5, total=7.0, name='first', activation=doubled)"
    )
    assert sent.point == sent.Point(2.0)
    assert sent.named.name == "second"
    assert sent.box == sent.Box(item=sent.Net(1))
    assert sent.square.draw() == "3.0 x 3.0"


def test_received_nodes_flatten_like_local_nodes(sent: Any) -> None:
    for here, there in [(sent.Net(2), sent.net), (sent.Point(2.0), sent.point), (sent.Square(3.0), sent.square)]:
        assert jax.tree.leaves(here) == jax.tree.leaves(there)
        assert jax.tree.structure(here) == jax.tree.structure(there)
        assert type(there).tree_unflatten(here.tree_flatten()[1], there.tree_flatten()[0]) == here
    assert sent.treedef == jax.tree.structure(sent.Net(2))
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(sent.net)[0][0]) == ".layers[0].kernel"


def test_received_nodes_share_traces_with_local_nodes(sent: Any) -> None:
    counted = count_traces(lambda net: net(1.0))
    apply = jax.jit(counted)
    assert apply(sent.net) == apply(sent.Net(2)) == apply(replace(sent.net)) == 8.0
    assert counted.count == 1
    assert jax.jit(sent.method)(1.0) == 8.0
    assert sent.named(1.0) == 9.0
    assert jax.grad(lambda net: net(1.0))(sent.net).layers[0].kernel == 8.0


def test_received_classes_construct_check_and_freeze(sent: Any) -> None:
    layer = sent.Layer(2, [1.0], mean=1.0, name="ABC")
    assert one_line(layer) == "Layer(kernel=i32(2), bias=[1.0], mean=1.0, total=7.0, name='abc', activation=doubled)"
    assert sent.Layer(1.0).bias is not sent.Layer(1.0).bias
    assert (sent.Square(2.0).area, sent.NamedNet(3, "x").depth, sent.Box(item=1).label) == (4.0, 3, "box")
    assert list(inspect.signature(sent.Layer).parameters)[:3] == ["kernel", "bias", "start"]
    with pytest.raises(TypeError, match="abstract"):
        sent.Shape(1.0)
    with pytest.raises(ValueError, match="kernel is not a number"):
        replace(sent.layer, kernel=[1.0])
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'depth'"):
        object.__setattr__(sent.net, "depth", 1)


def test_methods_are_pytrees_however_often_a_class_is_received(pickles: dict[str, bytes], sent: Any) -> None:
    nodes = [sent.Net(1) for _ in range(100)]  # as in a worker that gets the class with each task
    for data in (pickles["all"], pickles["all"]):
        again = pickle.loads(data)
        assert again["Net"] is sent.Net
        for net in (sent.Net(1), again["net"], nodes[0]):
            assert jax.tree.leaves(net.__call__) == jax.tree.leaves(net)


def test_a_round_trip_returns_an_equal_node(pickles: dict[str, bytes], sent: Any) -> None:
    nodes = [pickle.loads(data) for name, data in pickles.items() if name.endswith(")") and "Tree" not in name]
    for node in (sent.point, sent.square, sent.Box(item=sent.point), *nodes):
        built = type(node)(item=sent.point) if type(node) is sent.Box else type(node)(jax.tree.leaves(node)[0])
        back = pickle.loads(cloudpickle.dumps(node))
        assert type(back) is type(node)
        assert back == node == built
        assert jax.tree.structure(back) == jax.tree.structure(node) == jax.tree.structure(built)
