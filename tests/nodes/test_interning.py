"""The table of statics under threads, and under values whose own code runs while they are compared."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from treewright import Module, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable


def two_classes() -> list[Any]:
    class First(Module):
        setting: Any = static()

    class Second(Module):
        setting: Any = static()

    return [First, Second]


class Running:
    """Equal to all of its number; the first time that it is compared with another one, it runs what it is given."""

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


def table_of(cls: Any) -> Any:
    return cls.__node_spec__.table


def test_two_classes_whose_values_make_nodes_of_each_other_do_not_lock_each_other_out() -> None:
    First, Second = two_classes()  # noqa: N806
    barrier = threading.Barrier(2, timeout=10)
    nodes: list[Any] = []

    def crossing(cls: Any, other: Any) -> Callable[[], None]:
        def run() -> None:
            kept = other(Running(5))
            barrier.wait()
            nodes.append(cls(Running(6)))
            nodes.append((other(Running(7)), kept))

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


def test_an_equal_value_that_comes_while_another_is_compared_is_found() -> None:
    First, _ = two_classes()  # noqa: N806
    meanwhile: list[Any] = []

    def come_first() -> None:
        if not meanwhile:
            meanwhile.append(First(Running(9)))

    kept = First(Running(8, come_first))
    late = First(Running(9))

    assert len(meanwhile) == 1
    assert late.tree_flatten()[1] is meanwhile[0].tree_flatten()[1]
    assert late != kept


def test_a_hash_of_two_values_does_not_make_them_one() -> None:
    First, _ = two_classes()  # noqa: N806
    nodes = [First(Running(number)) for number in (10, 11, 10)]

    assert nodes[0] == nodes[2] != nodes[1]


def test_what_nobody_holds_leaves_the_table() -> None:
    First, _ = two_classes()  # noqa: N806
    before = len(table_of(First))
    nodes = [First(Running(number)) for number in (20, 21)]
    assert len(table_of(First)) == before + 2

    held = weakref.ref(nodes[0].setting)
    del nodes[0]
    gc.collect()

    assert (held(), len(table_of(First))) == (None, before + 1)


def test_a_function_that_captures_its_own_node_is_freed_with_it() -> None:
    class Holder(Module):
        setting: Any = static(compare="content")

    def make() -> weakref.ref[Any]:
        nodes: list[Any] = []
        node = Holder(lambda x: (nodes, x))
        nodes.append(node)
        reading = Holder(lambda x: x + 1)
        nodes.append(reading)
        return weakref.ref(node)

    freed = make()
    gc.collect()

    assert freed() is None


def test_a_class_without_a_view_of_its_own_can_be_watched() -> None:
    class Base(Module):
        setting: Any = static()

    class Derived(Base):
        other: Any = 1

    def make() -> Callable[[Any], Any]:
        return lambda x: abs(x)

    nodes = [Derived(make()) for _ in range(2)]

    assert nodes[0].tree_flatten()[1] is nodes[1].tree_flatten()[1]
    assert [Base(make()).setting(-1), nodes[0].setting(-2), Derived("relu").setting] == [1, 2, "relu"]


def test_a_refusal_leaves_nothing_in_the_table() -> None:
    First, _ = two_classes()  # noqa: N806
    before = len(table_of(First))

    with pytest.raises(StaticFieldError, match=r"First\.setting is static but holds a list, \[1\]"):
        First([1])

    assert len(table_of(First)) == before
