"""From construction to sealed: custom `__init__`, `__post_init__`, converters, `__check_init__`, and errors."""

import dataclasses
import gc
import inspect
import weakref
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import treewright
from treewright import Module, field, pytree_dataclass, replace, static
from treewright.errors import NodeInitError, UnfinishedNodeError


class Holder(Module):
    value: Any = field()


class Linear(Module):
    kernel: Any
    bias: Any = None
    items: Any = field(default_factory=lambda: [1.0])
    kept: Any = treewright.buffer(default=3.0)
    sizes: tuple[int, ...] = static(default_factory=lambda: (4,))
    width: int = static(default=0)

    def __init__(self, width: int) -> None:
        self.kernel = jnp.ones((width, width))
        self.width = self.kernel.shape[0]  # Assigned fields can be read.


# Custom __init__


def test_a_custom_init_assigns_fields_as_usual_and_the_instance_is_frozen_after() -> None:
    linear = Linear(3)
    assert linear.width == 3
    assert (linear.bias, linear.items, linear.kept, linear.sizes) == (None, [1.0], 3.0, (4,))  # their defaults
    assert Linear(3).items is not linear.items
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'width' of a Linear"):
        linear.width = 4


def test_super_init_works_with_custom_and_generated_bases() -> None:
    class Base(Module):
        a: Any
        mode: str = static(default="m")

    class Middle(Base):
        b: Any  # type: ignore[misc]

        def __init__(self, a: Any) -> None:
            super().__init__(a, "n")
            self.b = self.a + 1.0

    class Top(Middle):  # type: ignore[misc]
        c: Any  # type: ignore[misc]

        def __init__(self) -> None:
            super().__init__(1.0)
            self.c = self.b + 1.0

    assert jax.tree.leaves(Top()) == [1.0, 2.0, 3.0]
    assert Top().mode == "n"


def test_the_error_for_an_unset_field_says_that_no_init_sets_it() -> None:
    @pytree_dataclass(init=False)
    class Empty:
        x: Any

    with pytest.raises(UnfinishedNodeError, match="no __init__ has finished it"):
        _ = Empty().x
    with pytest.raises(UnfinishedNodeError, match=r"Assign the fields in __init__"):
        Empty().tree_flatten()  # type: ignore[attr-defined]
    with pytest.raises(UnfinishedNodeError, match=r"no __init__ has finished it\. .* call .*Empty\(\.\.\.\)"):
        object.__setattr__(Empty(), "x", 1.0)


def test_init_cannot_replace_a_method() -> None:
    class Net(Module):
        w: Any

        def __init__(self) -> None:
            self.w = 1.0
            self.apply = jax.jit(self.apply)  # type: ignore[has-type]

        def apply(self) -> Any:  # type: ignore[no-redef]
            return self.w

    with pytest.raises(NodeInitError, match="set apply, which is not a field"):
        Net()


@pytest.mark.parametrize("child", ["self", "method", "lambda"])
@pytest.mark.parametrize(
    "nest",
    [lambda value: value, lambda value: [value], lambda value: {"a": (1, value)}, lambda value: Holder([value])],
)
def test_a_node_that_would_contain_itself_is_rejected(child: str, nest: Any) -> None:
    class Net(Module):
        inner: Any

        def __init__(self) -> None:
            values = {"self": self, "method": self.apply, "lambda": lambda: self.apply()}
            self.inner = nest(values[child])

        def apply(self) -> int:
            return 1

    with pytest.raises(NodeInitError, match=r"Net\.inner is the node itself, one of its methods, or a function that"):
        Net()


def test_a_node_that_contains_itself_through_a_reference_from_before_init_is_rejected() -> None:
    class Net(Module):
        nodes: list[Any]

        def __new__(cls, nodes: list[Any]) -> Any:
            nodes.append(super().__new__(cls))
            return nodes[-1]

        def __init__(self, nodes: list[Any]) -> None:
            self.nodes = nodes

    with pytest.raises(NodeInitError, match=r"Net\.nodes is the node itself"):
        Net([])


def test_init_can_assign_a_field_twice_and_delete_only_what_is_no_field() -> None:
    class Net(Module):
        w: Any

        def __init__(self) -> None:
            with pytest.raises(UnfinishedNodeError, match=r"Net\.w was read before __init__ set it"):
                _ = self.w
            self.w = 1.0
            with pytest.raises(
                dataclasses.FrozenInstanceError, match=r"cannot delete .*Net\.w: a node keeps its fields"
            ):
                del self.w
            self.w = 2.0
            self.helper = 3.0
            del self.helper

    assert Net().w == 2.0


# __post_init__, converters, checks


def test_converters_run_before_post_init_and_checks_after_sealing() -> None:
    order: list[str] = []

    def converter(value: Any) -> float:
        order.append("convert")
        return float(value)

    @pytree_dataclass
    class Node:
        x: Any = field(converter=converter)
        y: Any = field(init=False)

        def __post_init__(self) -> None:
            order.append("post")
            assert isinstance(self.x, float)
            object.__setattr__(self, "y", self.x + 1.0)

        def __check_init__(self) -> None:
            order.append("check")
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
                self.x = 0.0  # type: ignore[misc]

    assert jax.tree.leaves(Node(1)) == [1.0, 2.0]
    assert order == ["convert", "post", "check"]


@pytest.mark.parametrize("specifier", [field, static])
def test_defaults_without_a_parameter_are_converted_before_post_init_and_after_super(specifier: Any) -> None:
    class Base(Module):
        path: Any = specifier(init=False, default="a/b", converter=PurePath)

    class Sub(Base):
        seen: Any = specifier(init=False)

        def __post_init__(self) -> None:
            self.seen = self.path

    class Own(Sub):
        path: Any = specifier(init=False, default="c/d", converter=PurePath)

        def __init__(self) -> None:
            super().__init__()

    class Unset(Own):
        path: Any = specifier(init=False)

        def __init__(self) -> None:
            self.path = PurePath("e")
            super().__init__()

    nodes: list[Any] = [Base(), Sub(), Own(), Unset()]

    assert [node.path for node in nodes] == [*map(PurePath, ("a/b", "a/b", "c/d", "e"))]
    assert [node.seen for node in nodes[1:]] == [node.path for node in nodes[1:]]
    assert "__store__" in inspect.getsource(Base.__init__)  # not as slow as by assignments


def test_init_converts_assigned_values_and_defaults() -> None:
    class Net(Module):
        w: Any = field(converter=jnp.asarray)
        sizes: Any = static(converter=tuple, default=())
        rate: Any = field(converter=float, default=3)

        def __init__(self) -> None:
            self.w = [1.0, 2.0]
            assert isinstance(self.w, jax.Array)
            self.sizes = [1, 2]

    assert (Net().sizes, repr(Net().rate)) == ((1, 2), "3.0")


def test_each_check_in_the_mro_runs_once_bases_first() -> None:
    order: list[str] = []

    class Root(Module):
        x: Any = 1.0

        def __check_init__(self) -> None:
            order.append("root")

    class Left(Root):
        def __check_init__(self) -> None:
            order.append("left")

    class Right(Root):
        def __check_init__(self) -> None:
            order.append("right")

    class Both(Left, Right):
        pass

    for _ in range(100):
        Both()
    assert order == ["root", "right", "left"] * 100


def test_inherited_post_init_runs_once_under_a_custom_init() -> None:
    count: list[int] = []

    class Base(Module):
        x: Any

        def __post_init__(self) -> None:
            count.append(1)

    class Sub(Base):
        y: Any

        def __init__(self) -> None:
            super().__init__(1.0)
            self.y = 2.0

    assert jax.tree.leaves(Sub()) == [1.0, 2.0]
    assert count == [1]


def test_a_field_that_post_init_leaves_unset_is_an_error() -> None:
    @pytree_dataclass
    class Node:
        x: Any = field(init=False)

    with pytest.raises(NodeInitError, match=r"Node\.__init__ did not set x"):
        Node()


def test_a_delegating_getattr_is_not_called_for_fields() -> None:
    class Wrapper(Module):
        inner: Any
        scale: Any

        def __init__(self, inner: Any) -> None:
            self.inner = inner
            assert self.inner is inner
            self.scale = self.width

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    wrapped = Wrapper(Linear(2))
    assert (wrapped.width, wrapped.scale) == (2, 2)
    assert replace(wrapped, scale=3.0).scale == 3.0


# A constructor that raises


def test_an_init_that_raises_leaves_an_immutable_node() -> None:
    leaked: list[Any] = []

    class Net(Module):
        w: Any

        def __init__(self, wrong: bool) -> None:
            self.w = 1.0
            if wrong:
                leaked.append(self)
                raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        Net(wrong=True)
    (net,) = leaked
    pattern = "unfinished .*Net: no __init__ has finished it"
    for use in (lambda: net.w, lambda: setattr(net, "w", 2.0), net.tree_flatten, lambda: net.__init__(wrong=False)):
        with pytest.raises(UnfinishedNodeError, match=pattern):
            use()
    with pytest.raises(ValueError, match=pattern):
        jax.tree.leaves(net)
    assert Net(wrong=False).w == 1.0


@pytest.mark.parametrize("where", ["__check_init__", "__post_init__"])
def test_a_check_or_post_init_that_raises_leaves_no_usable_node(where: str) -> None:
    leaked: list[Any] = []

    def reject(self: Any) -> None:
        leaked.append(self)
        raise ValueError("negative")

    cls: Any = pytree_dataclass(type("Node", (), {"__annotations__": {"x": Any}, where: reject}))
    with pytest.raises(ValueError, match="negative"):
        cls(1.0)
    with pytest.raises(UnfinishedNodeError, match="an unfinished Node: no __init__ has finished it"):
        _ = leaked[0].x
    assert vars(leaked[0]).keys() <= {"_node"}


def test_a_failed_construction_is_freed_without_the_garbage_collector() -> None:
    references: list[weakref.ref[Any]] = []

    class Net(Module):
        w: Any

        def __init__(self) -> None:
            references.append(weakref.ref(self))
            raise RuntimeError("no luck")

    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="no luck"):
            Net()
        assert references[0]() is None
    finally:
        gc.enable()


# Mistakes that Python's own errors do not explain


class Started(Module):
    value: Any

    def __init__(self, start: float) -> None:
        self.value = jnp.asarray(start)


def test_an_inherited_init_is_named_where_it_does_not_fit_the_fields() -> None:
    class Same(Started): ...

    class Wide(Started):
        more: int

    class Cured(Started, init=False):
        more: int = 3

    with pytest.raises(TypeError, match=r"^Started\.__init__\(\) got an unexpected keyword argument 'value'"):
        Same(value=1.0)
    with pytest.raises(NodeInitError, match=r"Started\.__init__, which .*Wide inherits, did not set more") as failed:
        Wide(2.0)  # type: ignore[call-arg]
    assert "write class Wide(..., init=False)" in str(failed.value)
    assert (Cured(2.0).value, Cured(start=2.0).more) == (2.0, 3)


def test_a_getattr_provides_the_values_of_unset_fields() -> None:
    class Net(Module):
        a: int
        b: int

        def __init__(self) -> None:
            self.a = getattr(self, "b", 3)
            self.b = 4 if hasattr(self, "b") else 5

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    assert (Net().a, Net().b) == (3, 5)
