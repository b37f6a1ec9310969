"""The table of statics under threads, and under values whose own code runs while they are compared."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, static

if TYPE_CHECKING:
    from collections.abc import Callable


def two_classes() -> list[Any]:
    class First(Module):
        setting: Any = static()

    class Second(Module):
        setting: Any = static()

    return [First, Second]


class Running:
    """Equal to all objects with its number; its first comparison with a different object runs a function."""

    def __init__(self, number: int, run: Callable[[], None] = lambda: None) -> None:
        self.number = number
        self.run = run

    def __eq__(self, other: object) -> bool:
        if self is not other:
            run, self.run = self.run, lambda: None
            run()
        return isinstance(other, Running) and self.number == other.number

    def __hash__(self) -> int:
        return 1


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")  # their attributes can be assigned
def test_interning_does_not_deadlock_on_nested_statics() -> None:
    First, Second = two_classes()  # noqa: N806
    barrier = threading.Barrier(2, timeout=10)
    nodes: list[Any] = []

    def crossing(cls: Any, other: Any) -> Callable[[], None]:
        def run() -> None:
            old = other(Running(5))
            barrier.wait()
            nodes.append(cls(Running(6)))
            nodes.append((other(Running(7)), old))

        return run

    first, second = First(Running(3)), Second(Running(3))
    threads = [
        threading.Thread(target=lambda: nodes.append(First(Running(4, crossing(First, Second)))), daemon=True),
        threading.Thread(target=lambda: nodes.append(Second(Running(4, crossing(Second, First)))), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not any(thread.is_alive() for thread in threads)
    assert first.setting.number == second.setting.number == 3


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")  # their attributes can be assigned
def test_interning_finds_a_value_added_during_a_comparison() -> None:
    First, _ = two_classes()  # noqa: N806
    meanwhile: list[Any] = []

    def come_first() -> None:
        if not meanwhile:
            meanwhile.append(First(Running(9)))

    first = First(Running(8, come_first))
    late = First(Running(9))

    assert len(meanwhile) == 1
    assert late.tree_flatten()[1] is meanwhile[0].tree_flatten()[1]
    assert late != first


# Lifetimes


def table_of(cls: Any) -> Any:
    return cls.__node_info__.table


def statics_of(node: Any) -> Any:
    return node._node[1]


def number_after_collection(table: Any) -> int:
    gc.collect()
    return len(table.in_use)


def local_member() -> enum.Enum:
    class Local(enum.Enum):
        A = 1

    return Local.A


def nested_tuple(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = (value,)
    return value


class Kept(Module):
    setting: Any = static()


def test_statics_of_constants_are_kept_for_the_next_node() -> None:
    table = table_of(Kept)
    for value in ("a", 1, (1, "b"), ((1, 1), ((2,),)), np.dtype("f4"), jnp.float32, jax.nn.relu):
        first = id(statics_of(Kept(value)))

        assert table.in_use
        assert id(statics_of(Kept(value))) == first


def test_values_without_a_hash_are_found_without_building_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(Module):
        items: Any = static(identity=True)
        setting: Any = static()

    items, setting = [1], "relu"
    nodes = [Net(items, setting), Net(items, setting)]
    monkeypatch.setattr(type(table_of(Net)), "_keys_of", lambda *_: pytest.fail("built a key"))

    assert statics_of(Net(items, setting)) is statics_of(nodes[0])


def test_the_number_of_kept_statics_is_limited() -> None:
    class Counted(Module):
        setting: Any = static()

    table = table_of(Counted)
    for number in range(640):
        Counted(number)

    assert number_after_collection(table) == 64


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda x: x,
        lambda: optax.adam(1e-3),
        lambda: Running(1),
        lambda: (1, Running(1)),
        lambda: functools.partial(jnp.sum, axis=0),
        local_member,
        lambda: np.dtype("f4", metadata={"v": Running(1)}),
        lambda: "long" * 1000,
        lambda: (1 << 2000, 1),
        lambda: ((0,) * 40,) * 40,
        lambda: nested_tuple(340),
    ],
)
def test_statics_of_users_live_as_long_as_their_nodes(make: Callable[[], Any]) -> None:
    class Owner(Module):
        setting: Any = static()

    table = table_of(Owner)
    node = Owner(make())

    assert number_after_collection(table) == 1

    del node

    assert number_after_collection(table) == 0


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")
def test_an_object_that_owns_nodes_with_itself_in_a_static_is_freed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        logger: Any

    class Trainer:
        def __init__(self, wrap: Any) -> None:
            self.config = wrap(Config(self))
            self.nodes = [Kept(self.config), Kept(self.config), Kept(self.config)]  # found by its id from the third on

    trainers = [weakref.ref(Trainer(wrap)) for wrap in (lambda config: config, lambda config: (1, config))]
    gc.collect()

    assert [trainer() for trainer in trainers] == [None, None]


@pytest.mark.parametrize("decorator", [jax.custom_jvp, jax.custom_vjp])
def test_rules_that_are_defined_after_the_node_are_its_own(decorator: Any) -> None:
    class Net(Module):
        x: Any
        act: Any = static()

    def double(x: Any) -> Any:
        return 2 * x

    acts = [decorator(double), decorator(double)]
    nets = [Net(1.0, act) for act in acts]
    for act, factor in zip(acts, (3.0, 5.0), strict=True):
        if decorator is jax.custom_jvp:
            act.defjvps(lambda t, _ans, _x, factor=factor: factor * t)
        else:
            act.defvjp(lambda x: (2 * x, None), lambda _, g, factor=factor: (factor * g,))

    assert [float(jax.grad(net.act)(1.0)) for net in nets] == [3.0, 5.0]


def test_rules_that_are_defined_again_do_not_reach_the_nodes_of_an_equal_function() -> None:
    class Net(Module):
        x: Any
        act: Any = static()

    def double(x: Any) -> Any:
        return 2 * x

    forward: Any = lambda x: (2 * x, None)
    acts = [jax.custom_vjp(double), jax.custom_vjp(double)]
    for act in acts:
        act.defvjp(forward, lambda _, g: (3 * g,))
    before = [Net(1.0, act) for act in acts]
    acts[1].defvjp(forward, lambda _, g: (5 * g,))
    after = Net(1.0, acts[1])

    assert [float(jax.grad(net.act)(1.0)) for net in (*before, after)] == [3.0, 3.0, 5.0]
