"""What happens seldom: races, odd objects, and what only another process does otherwise."""

import dataclasses
import enum
import json
import math
import pickle
import weakref
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treewright
from treewright import FrozenMapping, Module, Static, field, freeze, pytree_dataclass, static
from treewright._json import decode, encode
from treewright.errors import UnfinishedNodeError


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@pytree_dataclass
class Box:
    value: Any = None
    setting: Any = static(default=None)


@pytest.mark.parametrize(
    "value",
    [
        *(-0.0, 2j, b"ab", (1, ("a",)), frozenset({1}), Mode.READ | Mode.WRITE, Pair(1, 2.0), np.float32(1.5)),
        *(freeze(np.arange(3)), FrozenMapping({"a": (1,)}), Static("a"), np.dtype("float32"), len),
    ],
    ids=repr,
)
def test_a_static_comes_back_from_its_json(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert type(back) is type(value)
    assert jax.tree.structure(Box(setting=back)) == jax.tree.structure(Box(setting=value))


def test_a_result_of_frozen_arrays_is_pickled_as_one_that_can_change() -> None:
    result = freeze(np.arange(3)) + 1
    back = pickle.loads(pickle.dumps(result))
    back[0] = 7
    assert back.tolist() == [7, 2, 3]
    assert "(numpy)" in repr(Box(back))


def test_frozen_arrays_print_what_tells_them_apart() -> None:
    assert repr(Box(setting=freeze(np.arange(3)))) == "Box(value=None, setting=i64[3](frozen [0, 1, 2]))"
    shown = {repr(Box(setting=freeze(np.arange(300) + i))) for i in range(2)}
    assert len(shown) == 2
    assert all("i64[300](frozen #" in text for text in shown)


def test_a_class_by_value_keeps_its_factories_apart_from_given_values() -> None:
    @pytree_dataclass
    class Local:
        items: list[Any] = field(default_factory=lambda: [1.0])

    again = cloudpickle.loads(cloudpickle.dumps(Local))
    assert again().items == [1.0]
    assert again([2.0]).items == [2.0]


def test_a_method_may_be_hashed_while_init_runs() -> None:
    class Net(Module):
        w: Any

        def __init__(self) -> None:
            assert len({self.get, self.get}) == 1
            self.w = 1.0

        def get(self) -> Any:
            return self.w

    assert vars(Net()) == {}


@pytest.mark.parametrize("make", ["keys that do not sort", "a list in itself"])
def test_what_jax_cannot_flatten_is_left_for_jax_to_refuse(make: str) -> None:
    items: list[Any] = []
    items.append(items)
    value = {1: 1.0, "a": 2.0} if make.startswith("keys") else items

    class Net(Module):
        w: Any

        def __init__(self) -> None:
            self.w = value

    assert Net().w is value


def test_a_traced_value_that_is_no_array_is_named_by_its_class() -> None:
    shown: list[str] = []

    @jax.jit
    def trace(x: Any) -> Any:
        shown.append(repr(Box(jax.lax.create_token())))  # type: ignore[no-untyped-call]
        return x

    trace(1.0)
    assert shown[0].startswith("Box(value=<")


def test_an_entry_that_was_made_again_is_not_forgotten_with_the_old_one() -> None:
    @pytree_dataclass
    class Local:
        setting: str = static()

    local = Local("a")
    table: Any = Local.__node_spec__.table  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    (key,) = table.known
    older, other = table.known[key], table.intern(("b",))
    newer = table.known[key] = weakref.ref(other)
    del local
    assert older() is None
    assert table.known[key] is newer


def test_a_callable_under_a_false_name_is_pickled_as_itself() -> None:
    box = Box(setting=Renamed())
    assert pickle.loads(pickle.dumps(box)) == box


class Renamed:
    __qualname__ = "Renamed"

    def __init__(self) -> None:
        self.__qualname__ = "nothing.of.this.name"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Renamed)

    def __hash__(self) -> int:
        return 1

    def __call__(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Vouched:
    items: list[int]

    def __hash__(self) -> int:
        return len(self.items)


def test_a_frozen_dataclass_with_a_hash_of_its_own_vouches_for_what_it_holds() -> None:
    assert Box(setting=Vouched([1])) == Box(setting=Vouched([1]))
    assert Box(setting=Vouched([1])) != Box(setting=Vouched([2]))


def test_the_errors_are_a_public_name() -> None:
    assert vars(treewright)["__getattr__"]("errors").UnfinishedNodeError is UnfinishedNodeError


@pytest.mark.parametrize(
    "value",
    ["relu", 3, 0.5, Mode.READ, jax.nn.relu, jnp.tanh],
    ids=lambda value: str(value)[:9],
)
def test_common_statics_are_found_without_computing_a_key(value: Any) -> None:
    @pytree_dataclass
    class Local:
        setting: Any = static()

    local = Local(value)
    table: Any = Local.__node_spec__.table  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert table.known[type(value), value]() is local.tree_flatten()[1]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "value", [0.0, math.nan, (1, 2), lambda: 1, jax.jit(lambda: 1)], ids=["zero", "NaN", "tuple", "lambda", "jit"]
)
def test_statics_whose_equality_is_not_exact_are_looked_up_by_their_key(value: Any) -> None:
    @pytree_dataclass
    class Local:
        setting: Any = static()

    local = Local(value)
    assert not Local.__node_spec__.table.known  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert Local(value) == local


def test_statics_that_another_thread_made_in_the_meantime_are_taken_over() -> None:
    @pytree_dataclass
    class Local:
        setting: Any = static()

    table: Any = Local.__node_spec__.table  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    lock = table._lock
    made: list[Any] = []

    class Meanwhile:
        """Stands for the lock, while the other thread holds it."""

        def __enter__(self) -> None:
            table._lock = lock
            made.append(table.intern(("a",)))

        def __exit__(self, *_: object) -> None: ...

    table._lock = Meanwhile()
    assert table.intern(("a",)) is made[0]
