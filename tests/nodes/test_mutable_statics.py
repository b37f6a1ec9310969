"""Mutable statics: each kind is rejected, causes a warning or is frozen; and no static reaches a node with arrays."""

from __future__ import annotations

import argparse
import array
import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import logging
import operator
import random
import re
import sys
import tempfile
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, Static, TrainState, freeze, static
from treewright.errors import NodeInitError, StaticFieldError, StaticWarning

if TYPE_CHECKING:
    from collections.abc import Callable

equinox: Any = importorskip("equinox")
nnx: Any = importorskip("flax", "flax.nnx").nnx


pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")


class Net(Module):
    setting: Any = static()


class Kept(Module):
    setting: Any = static(identity=True)


class Frozen(Module):
    setting: Any = static(converter=freeze)


class Config:
    def __init__(self, widths: list[int]) -> None:
        self.widths = widths


class Slotted:
    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        self.width = width


@dataclasses.dataclass(unsafe_hash=True)
class Hashed:
    width: int = 1


@dataclasses.dataclass(eq=False)
class ByIdentity:
    width: int = 1


@dataclasses.dataclass
class Open:
    width: int = 1


@attrs.define
class Attrs:
    width: int = 1


@attrs.define(eq=False, slots=False)
class AttrsByIdentity:
    width: int = 1


class Model(pydantic.BaseModel):
    width: int = 1


class Countdown:
    def __init__(self, left: int) -> None:
        self.left = left

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        self.left -= 1
        return self.left


class Name(str):
    __slots__ = ("note",)
    note: str


def noted_name() -> Name:
    name = Name("relu")
    name.note = "draft"
    return name


def capturing(value: Any) -> Callable[[Any], Any]:
    return lambda x: (value, x)


def row() -> Any:
    table = np.zeros(2, [("a", float)])
    table.flags.writeable = False
    return table[0]


def memmap() -> Any:
    with tempfile.NamedTemporaryFile() as file:  # closed and deleted; the map stays
        return np.memmap(file, dtype="float32", shape=(2,), mode="w+")


CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "bytearray": lambda: bytearray(b"a"),
    "deque": lambda: collections.deque([1]),
    "Counter": lambda: collections.Counter("a"),
    "defaultdict": lambda: collections.defaultdict(list),
    "OrderedDict": lambda: collections.OrderedDict(a=1),
    "UserDict": lambda: collections.UserDict(a=1),
    "SimpleNamespace": lambda: types.SimpleNamespace(a=1),
    "Namespace": lambda: argparse.Namespace(a=1),
    "array.array": lambda: array.array("i", [1]),
    "WeakSet": weakref.WeakSet,
    "numpy array": lambda: np.ones(2),
    "memmap": memmap,
}
REJECTED: dict[str, Callable[[], Any]] = {
    "matrix": lambda: np.asmatrix([[1.0]]),
    "masked array": lambda: np.ma.masked_array([1.0], mask=[True]),
    "record array": lambda: np.rec.array([(1.0,)], dtype=[("a", float)]),
    "row of a structured array": row,
    "array of objects": lambda: np.array([object()]),
    "JAX array": lambda: jnp.ones(2),
    "ref": lambda: jax.new_ref(jnp.ones(2)),
    "Random": lambda: random.Random(0),
    "Generator": lambda: np.random.default_rng(0),
    "BitGenerator": lambda: np.random.PCG64(0),
    "RandomState": lambda: np.random.RandomState(0),
    "list iterator": lambda: iter([1]),
    "generator": lambda: (x for x in [1]),
    "map": lambda: map(str, [1]),
    "count": itertools.count,
    "own iterator": lambda: Countdown(3),
    "open file": lambda: open(0, closefd=False, encoding="utf-8"),  # noqa: SIM115
    "StringIO": io.StringIO,
    "standard output": lambda: sys.stdout,
    "nnx module": lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
    "nnx variable": lambda: nnx.Param(jnp.ones(2)),
    "nnx generators": lambda: nnx.Rngs(0),
    "dataclass with ==": Open,
    "attrs class with ==": Attrs,
    "pydantic model": Model,
}
WARNED: dict[str, Callable[[], Any]] = {
    "object with attributes": lambda: Config([64]),
    "object with slots": lambda: Slotted(64),
    "dataclass with unsafe_hash": Hashed,
    "dataclass with eq=False": ByIdentity,
    "attrs class with eq=False": AttrsByIdentity,
    "str with attributes": noted_name,
}
INSIDE: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "in a tuple": lambda value: (1, (value,)),
    "in a partial": lambda value: functools.partial(max, key=value),
    "in a node": Static,
}


@pytest.mark.parametrize("hide", INSIDE.values(), ids=INSIDE)
@pytest.mark.parametrize("make", (CONTAINERS | REJECTED).values(), ids=CONTAINERS | REJECTED)
def test_a_static_rejects_mutable_objects_without_identity(make: Callable[[], Any], hide: Callable[[Any], Any]) -> None:
    value = make()

    with pytest.raises(StaticFieldError, match=r"^(Net\.setting|Static\.value) is static but (holds|reaches) an? "):
        Net(hide(value))
    with warnings.catch_warnings(action="error"):
        assert Kept(value).setting is value


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_freeze_makes_containers_valid_statics(make: Callable[[], Any]) -> None:
    value = make()

    assert jax.tree.structure(Frozen(value)) == jax.tree.structure(Frozen(make()))
    assert Frozen(value).setting is not value


@pytest.mark.parametrize("make", (CONTAINERS | REJECTED).values(), ids=CONTAINERS | REJECTED)
def test_the_error_offers_freeze_exactly_if_freeze_accepts_the_value(make: Callable[[], Any]) -> None:
    with pytest.raises(StaticFieldError) as caught:
        Net(make())

    with contextlib.nullcontext() if "converter=treewright.freeze" in str(caught.value) else pytest.raises(TypeError):
        freeze(make())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", (REJECTED | WARNED).values(), ids=REJECTED | WARNED)
def test_freeze_rejects_values_it_cannot_freeze(make: Callable[[], Any]) -> None:
    for value in (make(), [make()]):
        with pytest.raises(TypeError, match=r"^freeze (can't freeze|is for settings, but) .*\."):
            freeze(value)


@pytest.mark.parametrize("make", WARNED.values(), ids=WARNED)
def test_a_mutable_static_object_warns_once_at_the_users_line(make: Callable[[], Any]) -> None:
    class Example(Module):
        setting: Any = static()

    name = type(make()).__name__
    text = rf"Example\.setting is static and holds an? {name}, (?s:.*)@dataclass\(frozen=True\)\n  class {name}: \.\.\."
    with pytest.warns(StaticWarning, match=text) as caught:
        Example(make())

    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(action="error"):
        assert isinstance(Example(make()), Example)
        assert isinstance(Kept(make()), Kept)


def test_the_fix_in_the_warning_makes_the_config_exact() -> None:
    @dataclasses.dataclass(frozen=True)
    class Cold:
        widths: tuple[int, ...]

    jitted = jax.jit(counted := count_traces(lambda net: jnp.asarray(net.setting.widths).sum()))

    assert [int(jitted(Net(Cold(widths)))) for widths in ((1,), (1,), (1, 2))] == [1, 1, 3]
    assert counted.count == 2


linen: Any = importorskip("flax", "flax.linen").linen
orbax: Any = importorskip("orbax.checkpoint")
QUIET: dict[str, Callable[[], Any]] = {
    "optimiser": lambda: optax.adamw(1e-3),
    "layer of linen": lambda: linen.Dense(3),
    "method of linen": lambda: linen.Dense(3).apply,
    "object of an installed package": lambda: orbax.StandardCheckpointHandler(),
    "logger": lambda: logging.getLogger("quiet"),
    "object without attributes": object,
    "method of an object": lambda: Config([1]).widths.append,
}


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_immutable_statics_do_not_warn(make: Callable[[], Any]) -> None:
    class Example(Module):
        setting: Any = static()

    with warnings.catch_warnings(action="error"):
        value = make()
        assert Example(value).setting is value


def test_all_invalid_static_fields_are_listed_in_one_error() -> None:
    class Game(Module):
        sizes: Any = static()
        table: Any = static()
        names: Any = static()
        name: str = static(default="pong")

    with pytest.raises(StaticFieldError, match=r"(?s)Game\.sizes is static but holds a list.*\n  sizes: ") as caught:
        Game(sizes=[], table=np.ones(2), names={})

    assert str(caught.value).splitlines()[-3:] == [
        f"Other static fields of {Game.__qualname__} that must change:",
        "  table: an array, f64[2](numpy)",
        "  names: a dict, {}",
    ]


# Nodes with arrays


class Dense(Module):
    kernel: Any

    def __call__(self, x: Any) -> Any:
        return self.kernel * x


def dense() -> Dense:
    return Dense(jnp.ones(2))


REACHING: dict[str, Callable[[Any], Any]] = {
    "method": lambda node: node.__call__,
    "jit": lambda node: jax.jit(node.__call__),
    "vmap": lambda node: jax.vmap(node.__call__),
    "grad": lambda node: jax.value_and_grad(node.__call__),
    "checkpoint": lambda node: jax.checkpoint(node.__call__),
    "partial": lambda node: functools.partial(node.__call__, 1),
    "keyword of a partial": lambda node: functools.partial(max, key=node.__call__),
    "lambda": lambda node: lambda x: node.kernel * x,
    "default": lambda node: lambda x, layer=node: layer.kernel * x,
    "closure over a method": lambda node: capturing(node.__call__),
    "closure over a list": lambda node: capturing([{"a": node}]),
    "cache": lambda node: functools.lru_cache(node.__call__),
    "wrapper": lambda node: functools.wraps(node.__call__)(lambda x: x),
    "tuple of methods": lambda node: (1, node.__call__),
}


@pytest.mark.parametrize("reach", REACHING.values(), ids=REACHING)
def test_a_static_rejects_values_that_contain_nodes_with_arrays(reach: Callable[[Any], Any]) -> None:
    with pytest.raises(
        StaticFieldError, match=r"^Net\.setting is static but reaches a Dense with arrays, through an? "
    ):
        Net(reach(dense()))
    with pytest.raises(StaticFieldError, match=r"^TrainState\.apply_fn is static but reaches a Dense with arrays"):
        TrainState.create(params=dense(), tx=optax.sgd(1.0), apply_fn=reach(dense()))


@pytest.mark.parametrize("reach", (REACHING | {"itself": lambda node: node}).values(), ids=[*REACHING, "itself"])
@pytest.mark.parametrize("is_static", [True, False])
def test_a_field_cannot_refer_to_the_node_under_construction(reach: Callable[[Any], Any], is_static: bool) -> None:
    class Own(Module):
        kernel: Any
        call: Any = static() if is_static else None

        def __init__(self) -> None:
            self.kernel = jnp.ones(2)
            self.call = reach(self)

        def __call__(self, x: Any) -> Any:
            return self.kernel * x

    own = re.escape(Own.__qualname__)
    text = rf"^{own}\.call is static but (holds|reaches) an? {own} that is being built"
    if not is_static:
        text = rf"^{own}\.call is the node itself, one of its methods, or a function that captured it"
    with pytest.raises(StaticFieldError if is_static else NodeInitError, match=text):
        Own()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)).__call__,
        lambda: capturing(nnx.Linear(2, 2, rngs=nnx.Rngs(0))),
        lambda: capturing(equinox.nn.Linear(2, 2, key=jax.random.key(0))),
    ],
    ids=["method of nnx", "closure over nnx", "closure over equinox"],
)
def test_a_static_rejects_values_that_contain_foreign_nodes(make: Callable[[], Any]) -> None:
    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but reaches a Linear with arrays, through "):
        Net(make())


def test_fixes_in_the_errors_get_gradients() -> None:
    class Free(Module):
        layer: Dense
        call: Any = static()

    class Child(Module):
        call: Any

    free, child = Free(dense(), Dense.__call__), Child(dense().__call__)

    assert jax.grad(lambda net: net.call(net.layer, 3.0).sum())(free).layer.kernel.tolist() == [3.0, 3.0]
    assert jax.grad(lambda net: net.call(3.0).sum())(child).call.__self__.kernel.tolist() == [3.0, 3.0]


def test_methods_and_closures_without_node_arrays_are_valid_statics() -> None:
    for value in (Static(2).__bool__, capturing(jnp.ones(2)), operator.itemgetter(0)):
        assert Net(value).setting is value


# Values at the edge


def test_static_objects_may_use_any_attribute_names() -> None:
    class Odd:
        _kind_ = "odd"
        _exact_key_ = "odd"

    value = Odd()

    assert Net(value).setting is value
    assert freeze(value) is value
    assert "Odd object" in repr(Net(value))


def test_a_dict_whose_attributes_raise_key_error_is_rejected() -> None:
    class Attributes(dict[str, Any]):
        __getattr__ = dict.__getitem__

    class Child(Module):
        value: Any

    assert "value=Attributes({'a': 1})" in repr(Child(Attributes(a=1)))
    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but holds an Attributes, Attributes\("):
        Net(Attributes(a=1))


def test_a_frozen_dataclass_with_an_unset_field_is_compared_by_identity() -> None:
    @dataclasses.dataclass(frozen=True)
    class Lazy:
        width: int
        cache: Any = dataclasses.field(init=False)

    lazy = Lazy(1)

    assert jax.tree.structure(Net(lazy)) == jax.tree.structure(Net(lazy)) != jax.tree.structure(Net(Lazy(1)))
