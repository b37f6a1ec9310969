"""A field on the class is not a value: using it as one is rejected; inspection tools still work."""

from __future__ import annotations

import abc
import copy
import dataclasses
import doctest
import inspect
import math
import operator
import pickle
import pydoc
import types
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, field, pytree_dataclass, replace, static
from treewright.errors import FieldOnClassError, NodeDefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable


class Tiles(Module):
    """Codes of a grid.

    >>> Tiles().wall
    1
    """

    wall: int = static(default=1)
    speed: float = 2.0
    name: str = static(default="grid", doc="What the map is called.")


@pytree_dataclass
class Point:
    x: float
    y: float = 0.0


wall: Any = Tiles.wall
USES: dict[str, Callable[[], Any]] = {
    "==": lambda: wall == 1,
    "== from the left": lambda: wall == 1,
    "!=": lambda: wall != 1,
    "== of numpy": lambda: np.arange(3) == wall,
    "== of jax": lambda: jnp.arange(3) == wall,
    "in a tuple": lambda: wall in (0, 1),
    "as a key": lambda: {1: "a"}.get(wall),
    "order": lambda: wall < 3,
    "sorted": lambda: sorted([wall, 3]),
    "if": lambda: 3 if wall else 4,
    "+": lambda: wall + 1,
    "+ from the right": lambda: 1 + wall,
    "*": lambda: np.ones(2) * wall,
    "@": lambda: operator.matmul(jnp.ones(2), wall),
    "-": lambda: -wall,
    "int": lambda: int(wall),
    "float": lambda: math.sqrt(wall),
    "round": lambda: round(wall),
    "index": lambda: [1, 2][wall],
    "range": lambda: range(wall),
    "length": lambda: len(wall),
    "iteration": lambda: list(wall),
    "item": lambda: wall[0],
    "f-string": lambda: f"{wall}",
    "np.asarray": lambda: np.asarray(wall),
    "jnp.asarray": lambda: jnp.asarray(wall),
    "np.add": lambda: np.add(1, wall),
    "as a child": lambda: Point(wall),
}


@pytest.mark.parametrize("use", USES)
def test_a_field_on_the_class_cannot_be_used_as_a_value(use: str) -> None:
    with pytest.raises(FieldOnClassError) as caught:
        USES[use]()

    assert str(caught.value) == (
        "Tiles.wall is a field, so on the class it has no value: only instances have one. Read it on an instance. "
        "For a class constant, declare a ClassVar:\n"
        "  wall: ClassVar[int] = 1\n"
        "For the default: {field.name: field.default for field in dataclasses.fields(Tiles)}['wall']"
    )


def test_a_field_on_the_class_has_no_attributes() -> None:
    with pytest.raises(AttributeError, match=r"Tiles\.wall is a field, so on the class it has no real"):
        _ = wall.real
    with pytest.raises(AttributeError, match=r"Tiles\.wall is a field, so on the class it has no name"):
        _ = wall.name


def test_a_method_of_the_same_name_in_a_user_class_is_not_called() -> None:
    class Other:
        def reject_use(self) -> None:
            raise AssertionError

    class Net(Module):
        x: Any

    assert isinstance(Net(Other()).x, Other)


def test_each_fix_in_the_message_works() -> None:
    class Constants(Module):
        wall: ClassVar[int] = 1

    assert (Constants.wall == 1, Tiles().wall == 1) == (True, True)
    assert {field.name: field.default for field in dataclasses.fields(Tiles)}["wall"] == 1


def test_a_field_view_equals_only_views_of_the_same_field() -> None:
    speed: Any = Tiles.speed

    assert (wall == Tiles.wall, wall != speed, repr(wall)) == (True, True, "<field Tiles.wall>")


def inspect_with_tools() -> None:
    inspect.getmembers(Tiles)
    inspect.classify_class_attrs(Tiles)
    assert "What the map is called" in pydoc.plain(pydoc.render_doc(Tiles))
    assert "Tiles" in pydoc.HTMLDoc().docclass(Tiles)
    module = types.ModuleType(__name__)
    vars(module).update(Tiles=Tiles)
    (example,) = [
        test for test in doctest.DocTestFinder().find(module, module=False, globs={"Tiles": Tiles}) if test.examples
    ]
    assert doctest.DocTestRunner().run(example).failed == 0
    mock.create_autospec(Tiles)
    copied, deep = copy.copy(wall), copy.deepcopy(wall)
    assert copied == deep == wall
    assert pickle.loads(pickle.dumps(wall)) == wall
    abc.update_abstractmethods(Tiles)
    assert inspect.isabstract(Tiles) is False


def test_inspection_tools_see_fields_as_properties() -> None:
    inspect_with_tools()

    assert isinstance(inspect.getattr_static(Tiles, "wall"), property)


def test_mock_patch_restores_a_field() -> None:
    with mock.patch.object(Tiles, "speed", 7.0):
        assert Tiles.speed == 7.0

    assert Tiles(speed=3.0).speed == 3.0


# Reads through super()


def test_super_reads_fields_in_a_diamond() -> None:
    class A(Module):
        a: float

    class B(Module):
        b: float
        kind: str = static()

    class D(A, B):
        def base_fields(self) -> Any:
            return super().a, super().b, super().kind

    assert D(b=1.0, a=2.0, kind="d").base_fields() == (2.0, 1.0, "d")


def test_super_reads_a_static_that_a_subclass_made_a_child() -> None:
    class Base(Module):
        first: str = static(default="s")
        size: Any = static(default=3)

    class Sub(Base):
        size: Any = field(default=4.0)

        def base_fields(self) -> Any:
            return super().size, super().first

    with pytest.raises(NodeDefinitionError, match="turn it into a plain child"):
        type("Plain", (Base,), {"__annotations__": {"size": Any}, "size": 4.0})
    assert jax.tree.leaves(Sub()) == [4.0]
    assert Sub().base_fields() == (4.0, "s")


# `__init__` of a built node


class Built(Module):
    w: float


class BuiltByHand(Module):
    w: float

    def __init__(self, w: float) -> None:
        self.w = w


class Shared(Module):
    w: float
    only: ClassVar[Any] = None

    def __new__(cls, *args: Any) -> Any:
        if cls.only is None:
            cls.only = super().__new__(cls)
        return cls.only


@pytest.mark.parametrize("cls", [BuiltByHand, Shared])
def test_calling_a_custom_init_on_a_built_node_is_rejected(cls: Any) -> None:
    node = cls(1.0)

    with pytest.raises(dataclasses.FrozenInstanceError) as caught:
        node.__init__(2.0)

    name = cls.__name__
    assert str(caught.value) == (
        f"{name}.__init__ was called on a finished {name}, but nodes are frozen. Call {name}(...) for a new one, or "
        f"treewright.replace(node, ...) for a changed copy."
    )
    assert jax.tree.leaves(node)[0] == 1.0


def test_new_that_returns_a_built_instance_is_rejected() -> None:
    Shared.only = None
    first = Shared(1.0)

    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Shared\.__init__ was called on a finished Shared"):
        Shared(2.0)

    assert first.w == 1.0
    assert replace(first, w=2.0).w == 2.0


# Names that are not fields


class Slotted:
    __slots__ = ("cache",)
    cache: Any


def test_init_cannot_assign_to_a_slot_of_a_base() -> None:
    @pytree_dataclass
    class Layer(Slotted):
        w: float

        def __init__(self, way: str) -> None:
            object.__setattr__(self, "w", 1.0)
            if way == "=":
                self.cache = 3
            elif way == "past the node":
                object.__setattr__(self, "cache", 3)

    assert Layer("without").w == 1.0
    for way in ("=", "past the node"):
        with pytest.raises(TypeError) as caught:
            Layer(way)
        assert str(caught.value).endswith(
            "Layer.cache was assigned, but it is a slot of a base class, not a field: flattening would lose it. "
            "Declare it in test_init_cannot_assign_to_a_slot_of_a_base.<locals>.Layer (cache: ...)."
        )


def test_undeclared_names_assigned_in_post_init_are_reported() -> None:
    class Net(Module):
        w: float
        b: float = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.c = self.w

    with pytest.raises(TypeError, match=r"Net\.__post_init__ did not set b, and set c, which is not a field"):
        Net(1.0)


def fails(value: Any = None) -> Any:
    raise OverflowError("too large")


def test_errors_of_converters_and_default_factories_name_the_field() -> None:
    class Net(Module):
        w: Any = dataclasses.field(default_factory=fails)

    class Converting(Module):
        w: Any = dataclasses.field(default=1.0, metadata={"converter": fails})

    fails_later: list[bool] = []

    class Later(Module):
        w: Any = static(converter=lambda value: fails() if fails_later else value)

    node, *_ = [Later(3) for _ in range(100)]  # after the first nodes, which are checked more closely
    fails_later.append(True)
    for build, note in (
        (Net, "Raised by the default_factory of test_errors_of_converters_and_default_factories_name_the_field"),
        (Converting, "Converting.w, called with a float, 1.0."),
        (lambda: Later(4), "Later.w, called with an int, 4."),
        (lambda: replace(node, w=5), "Later.w, called with an int, 5."),
    ):
        with pytest.raises(OverflowError) as caught:
            build()
        (text,) = caught.value.__notes__
        assert note in text
