"""Classes of all kinds: generic, abstract, protocols, plain bases, diamonds, undecorated and local classes."""

import dataclasses
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import pytest

from tests.conftest import one_line
from treewright import Module, pytree_dataclass, static
from treewright.errors import NodeDefinitionError

T = TypeVar("T")


def make_twice() -> list[type]:
    """Two classes of one name, as from running a notebook cell twice."""
    made: list[type] = []
    for _ in range(2):

        @pytree_dataclass
        class Cell:
            x: Any
            name: str = static(default="cell")

        made.append(Cell)
    return made


def test_generic_aliases_make_the_same_node() -> None:
    class Box(Module, Generic[T]):
        item: T

    @pytree_dataclass
    class Pair(Generic[T]):
        left: T
        right: T

    assert Box[int](3) == Box(3)
    assert jax.tree.structure(Pair[float](1.0, 2.0)) == jax.tree.structure(Pair(3, 4))
    assert vars(Box[int](3)) == {}


def test_protocol_bases_need_no_metaclass() -> None:
    @runtime_checkable
    class Apply(Protocol):
        width: int

        def __call__(self, x: Any) -> Any: ...

    class Net(Module, Apply):
        w: Any
        width: int = static(default=3)

        def __call__(self, x: Any) -> Any:
            return self.w * x

    assert Net(2.0)(3.0) == 6.0
    assert isinstance(Net(2.0), Apply)
    assert jax.tree.leaves(Net(2.0)) == [2.0]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_plain_dataclass_is_a_base_like_any_other(frozen: bool) -> None:
    @dataclasses.dataclass(frozen=frozen)  # type: ignore[literal-required]
    class Plain:
        x: Any
        y: Any = 2.0

    class Net(Module, Plain):
        z: Any = 3.0

    class Deeper(Net):
        t: Any = 4.0

    decorated: Any = pytree_dataclass(type("Decorated", (Plain,), {"__annotations__": {"z": Any}, "z": 3.0}))
    for made, leaves in ((Net, [1.0, 2.0, 3.0]), (Deeper, [1.0, 2.0, 3.0, 4.0]), (decorated, [1.0, 2.0, 3.0])):
        node = made(1.0)
        assert jax.tree.leaves(node) == leaves
        assert node == made(1.0)
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
            node.x = 5.0
    assert "Net(x=1.0" in repr(Net(1.0))
    assert Net(jnp.ones(2)) == Net(jnp.ones(2))


def test_several_bases_with_fields_and_diamonds_give_each_field_once() -> None:
    class Root(Module):
        a: Any = 1.0
        mode: str = static(default="m")

    class Left(Root):
        b: Any = 2.0

    class Right(Root):
        c: Any = 3.0
        size: int = static(default=5)

    class Both(Left, Right):
        d: Any = 4.0

    node = Both(d=9.0)
    assert [f.name for f in dataclasses.fields(Both)] == ["a", "mode", "c", "size", "b", "d"]
    assert (node.a, node.b, node.c, node.d, node.mode, node.size) == (1.0, 2.0, 3.0, 9.0, "m", 5)
    assert jax.tree.leaves(node) == [1.0, 3.0, 2.0, 9.0]
    assert jax.tree.map(lambda x: x * 2, node).c == 6.0


def test_a_decorated_subclass_of_a_decorated_class_is_a_node_too() -> None:
    @pytree_dataclass
    class Base:
        x: Any

    @pytree_dataclass
    class WithMethod(Base):
        def double(self) -> Any:
            return self.x * 2

    @pytree_dataclass
    class WithField(Base):
        y: Any = 2.0
        mode: str = static(default="m")

    assert jax.tree.leaves(WithMethod(1.0)) == [1.0]
    assert jax.tree.map(lambda x: x + 1, WithMethod(1.0)).double() == 4.0
    node: Any = WithField(1.0, 3.0)
    assert jax.tree.leaves(node) == [1.0, 3.0]
    assert node.mode == "m"


@pytree_dataclass
class Base:
    x: Any = 1.0


class Undecorated(Base):
    y: Any = 1.0


class WithInit(Base):
    def __init__(self) -> None:
        self.x = 2.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # set once, in __init__


class CallingInit(Base):
    def __init__(self) -> None:
        super().__init__(2.0)


class BelowWithInit(WithInit):
    pass


ByDataclasses: Any = dataclasses.dataclass(frozen=True)(
    type("ByDataclasses", (Base,), {"__annotations__": {"z": int}, "z": 3})
)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [(Undecorated, (1.0,)), (WithInit, ()), (CallingInit, ()), (BelowWithInit, ()), (ByDataclasses, (1.0, 2))],
)
def test_the_first_instance_of_an_undecorated_subclass_is_refused_with_the_cure(cls: Any, arguments: Any) -> None:
    with pytest.raises(NodeDefinitionError) as caught:
        cls(*arguments)

    assert str(caught.value) == (
        f"{cls.__name__} is a subclass of the node class Base and is not decorated itself, so its own fields would be "
        f"lost, and JAX would take its instances for leaves. Put @pytree_dataclass above class {cls.__name__}."
    )
    assert pytree_dataclass(type(cls.__name__, (Base,), {}))().x == 1.0


def test_a_users_init_subclass_still_runs_once_for_each_subclass() -> None:
    seen: list[str] = []

    @pytree_dataclass
    class Base:
        x: Any

        def __init_subclass__(cls, tag: str = "", **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            seen.append(cls.__name__ + tag)

    @pytree_dataclass
    class One(Base, tag="!"):
        y: Any

    @pytree_dataclass
    class Two(One):
        z: Any = 3.0

    assert seen == ["One!", "Two"]
    assert jax.tree.leaves([One(1.0, 2.0), Two(1.0, 2.0)]) == [1.0, 2.0, 1.0, 2.0, 3.0]


def test_module_keywords_reach_other_bases() -> None:
    class Tagged:
        tag: ClassVar[str]

        def __init_subclass__(cls, tag: str = "", **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            cls.tag = tag

    class Net(Module, Tagged, tag="t", kw_only=True):
        w: Any

    assert Net.tag == "t"
    assert jax.tree.leaves(Net(w=1.0)) == [1.0]


def test_nested_and_local_classes_and_cells_run_twice_are_classes_of_their_own() -> None:
    first, second = make_twice()
    one, two = first(1.0), second(1.0)
    assert one != two
    assert jax.tree.structure(one) != jax.tree.structure(two)

    class Outer(Module):
        class Inner(Module):
            w: Any

        inner: Inner

    assert one_line(Outer(Outer.Inner(1.0))).endswith("Outer(inner=" + one_line(Outer.Inner(1.0)) + ")")
