"""Kinds of classes: generics, protocols, diamonds, undecorated and abstract classes; and which `__init__` runs."""

import abc
import dataclasses
import itertools
import types
import typing
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import pytest
import typing_extensions

from treewright import Module, pytree_dataclass, static
from treewright.errors import NodeDefinitionError

T = TypeVar("T")


def test_generic_aliases_construct_the_same_class() -> None:
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
def test_a_plain_dataclass_can_be_a_base(frozen: bool) -> None:
    @dataclasses.dataclass(frozen=frozen)  # type: ignore[literal-required]
    class Plain:
        x: Any
        y: Any = 2.0

    class Net(Module, Plain):
        z: Any = 3.0

    class Deeper(Net):
        t: Any = 4.0

    decorated: Any = pytree_dataclass(type("Decorated", (Plain,), {"__annotations__": {"z": Any}, "z": 3.0}))
    for cls, leaves in ((Net, [1.0, 2.0, 3.0]), (Deeper, [1.0, 2.0, 3.0, 4.0]), (decorated, [1.0, 2.0, 3.0])):
        node = cls(1.0)
        assert jax.tree.leaves(node) == leaves
        assert node == cls(1.0)
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
            node.x = 5.0
    assert "Net(x=1.0" in repr(Net(1.0))
    assert Net(jnp.ones(2)) == Net(jnp.ones(2))


def test_diamond_inheritance_keeps_each_field_once() -> None:
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


@pytree_dataclass
class Base:
    x: Any = 1.0


class Undecorated(Base):
    y: Any = 1.0


class WithInit(Base):
    def __init__(self) -> None:
        self.x = 2.0  # type: ignore[misc]  # set once, in __init__


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
def test_an_undecorated_subclass_is_rejected_at_its_first_instance(cls: Any, arguments: Any) -> None:
    with pytest.raises(NodeDefinitionError) as caught:
        cls(*arguments)

    assert str(caught.value) == (
        f"{cls.__name__} is a subclass of the node class Base but not decorated: its own fields would be lost, and JAX "
        f"would treat its instances as leaves. Put @pytree_dataclass above class {cls.__name__}."
    )
    assert pytree_dataclass(type(cls.__name__, (Base,), {}))().x == 1.0


def test_a_users_init_subclass_still_runs_once_for_each_subclass() -> None:
    names: list[str] = []

    @pytree_dataclass
    class Base:
        x: Any

        def __init_subclass__(cls, tag: str = "", **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            names.append(cls.__name__ + tag)

    @pytree_dataclass
    class One(Base, tag="!"):
        y: Any

    @pytree_dataclass
    class Two(One):
        z: Any = 3.0

    assert names == ["One!", "Two"]
    assert jax.tree.leaves([One(1.0, 2.0), Two(1.0, 2.0)]) == [1.0, 2.0, 1.0, 2.0, 3.0]


def test_a_class_variable_may_be_a_property_or_a_method() -> None:
    class Net(Module):
        w: Any
        width: ClassVar[Any] = property(lambda self: self.w + 1)
        depth: "ClassVar[Any]" = property(lambda self: 3)
        scale: ClassVar[Any] = lambda self: 2 * self.w

    net = Net(1.0)

    assert (net.width, net.depth, net.scale()) == (2.0, 3, 2.0)
    assert jax.tree.leaves(net) == [1.0]


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


# Which __init__ runs


class Mixin:
    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", ("mixin", x))  # bypasses __setattr__ of a frozen dataclass


class Cooperative:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tag = "cooperative"


class Own(Module):
    x: Any

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", ("own", x))


class Generated(Module):
    x: Any


class Plain:
    """Without an `__init__`."""


class Speaks(typing.Protocol):
    """A protocol, to which `typing` adds an `__init__`."""


class Declares(typing_extensions.Protocol):
    """The same with typing_extensions."""


@dataclasses.dataclass(frozen=True)
class Data:
    x: Any


@dataclasses.dataclass(frozen=True)
class DataWithInit:
    x: Any

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", ("data", x))


SAYS: dict[type[Any], Any] = {Mixin: ("mixin", 1.0), Own: ("own", 1.0), DataWithInit: ("data", 1.0)}
SILENT = [Plain, Speaks, Declares]
BASES = [Mixin, Own, Generated, DataWithInit, Data, *SILENT]


def bases_with_a_node() -> list[tuple[type[Any], ...]]:
    pairs = [pair for pair in itertools.permutations(BASES, 2) if {Own, Generated} & set(pair)]
    behind_one = [(silent, *pair) for silent, pair in itertools.product(SILENT, pairs) if silent not in pair]
    return [*pairs, *behind_one]


def test_the_first_init_in_the_mro_runs() -> None:
    for bases in bases_with_a_node():
        cls: Any = types.new_class("Node", bases)
        first = next(base for base in bases if base not in SILENT)
        node = cls(1.0)
        assert node.x == SAYS.get(first, 1.0), bases
        assert jax.tree.structure(node) == jax.tree.structure(cls(2.0)), bases  # it is sealed
        assert types.new_class("Sub", (cls,))(1.0).x == node.x, bases


def test_a_decorated_class_does_not_inherit_the_init_of_a_mixin() -> None:
    @pytree_dataclass
    class Base:
        x: Any

    @pytree_dataclass
    class Decorated(Mixin, Base):  # dataclasses do the same
        pass

    assert Decorated(1.0).x == 1.0


def test_a_cooperative_mixin_calls_the_generated_init() -> None:
    class Net(Cooperative, Generated):
        tag: str = static(default="")

    class Bare(Cooperative, Module):
        tag: str = static(default="")

    class Behind(Module, Cooperative, init=False):
        tag: str = static(default="")

    assert (Net(1.0).x, Net(1.0).tag, Bare().tag, Behind().tag) == (1.0, *["cooperative"] * 3)


def test_module_init_calls_the_next_init_in_the_mro() -> None:
    class Net(Module, Mixin):
        x: Any

        def __init__(self) -> None:
            super().__init__(1.0)

    assert Net().x == ("mixin", 1.0)


# Abstract methods


def abstract(cls: Any) -> Any:
    """Python's message, from a class with its metaclass."""
    with pytest.raises(TypeError) as caught:
        cls()
    return str(caught.value)


@pytest.mark.parametrize("decorate", [lambda base: base, pytree_dataclass])
def test_abstract_methods_are_enforced_without_abc(decorate: Any) -> None:
    def shape(bases: tuple[type[Any], ...]) -> Any:
        def run(self: Any) -> None: ...

        def width(self: Any) -> int: ...  # type: ignore[empty-body]

        body = {"run": abc.abstractmethod(run), "width": property(abc.abstractmethod(width))}
        return type("Shape", bases, body)

    ours = decorate(shape((object,) if decorate is pytree_dataclass else (Module,)))
    theirs = shape((abc.ABC,))

    assert abstract(ours) == abstract(theirs)
    half = {"__annotations__": {"width": int}, "width": static(default=3)}
    assert "run" in abstract(decorate(type("Half", (ours,), half)))
    assert "width" not in abstract(decorate(type("Half", (ours,), half)))
    complete: Any = decorate(type("Whole", (decorate(type("Half", (ours,), half)),), {"run": lambda self: self.width}))
    assert (complete().run(), ours.__abstractmethods__) == (3, {"run", "width"})


# The base class itself


def test_module_itself_cannot_be_instantiated() -> None:
    with pytest.raises(TypeError, match="instantiate abstract class Module"):
        Module()

    class Empty(Module):
        pass

    empty = Empty()
    assert (jax.tree.leaves([empty, 1.0]), isinstance(empty, Module)) == ([1.0], True)


# __repr__


def test_super_repr_and_a_wrapped_repr_show_the_fields() -> None:
    class Net(Module):
        kernel: Any
        inner: Any = None

        def __repr__(self) -> str:
            return f"<{super().__repr__()}>"

    def wrapped(cls: Any) -> Any:  # beartype wraps every method of a class this way
        own = cls.__repr__
        cls.__repr__ = lambda self: own(self)
        return cls

    @wrapped
    @pytree_dataclass
    class Point:
        x: Any

    Net.__qualname__ = "Net"
    assert repr(Net(jnp.ones(3), Net(1.0))) == "<Net(kernel=f32[3], inner=<Net(kernel=1.0, inner=None)>)>"
    assert repr(Point(1.0)) == f"{Point.__qualname__}(x=1.0)"
    cyclic: list[Any] = []
    cyclic.append(Net(cyclic))
    assert repr(cyclic[0]) == "<Net(kernel=[...], inner=None)>"
