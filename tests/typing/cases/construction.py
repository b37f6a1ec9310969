"""Constructor arguments: in order, with defaults, by keyword, through inheritance, in generic classes."""

import abc
import dataclasses
from dataclasses import InitVar
from typing import Any, ClassVar, Generic, TypeVar, assert_type

import jax
import jax.numpy as jnp

from treewright import Module, buffer, field, pytree_dataclass, static

T = TypeVar("T")


@pytree_dataclass
class Layer:
    kernel: jax.Array
    bias: jax.Array | None = None
    activation: str = static(default="relu", doc="By name.")
    sizes: tuple[int, ...] = static(default_factory=tuple, kw_only=True)
    mean: float = buffer(default=0.0, kw_only=True, doc="Of the last batches.")
    steps: int = field(default=0, init=False)
    seed: InitVar[int] = 0
    limit: ClassVar[int] = 3

    def __post_init__(self, seed: int) -> None: ...


@pytree_dataclass(kw_only=True)
class Named(Layer):
    name: str = static()


class Net(Module):
    layer: Layer = field(doc="The only one.")
    width: int = static(doc=None)
    extra: list[jax.Array] = field(default_factory=list)  # pyright: ignore[reportUnknownVariableType]


class Deep(Net, kw_only=True):
    depth: int = static()


class Plain(Module):
    kernel: jax.Array = dataclasses.field()


@pytree_dataclass
class Box(Generic[T]):
    value: T
    label: str = static(default="")


class Pair(Module, Generic[T]):
    left: T
    right: T


class Shape(Module):
    size: float

    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape, order=True, eq=True):  # mypy expects both
    def area(self) -> float:
        return self.size**2


class Started(Module):
    kernel: jax.Array

    def __init__(self, start: float) -> None:
        self.kernel = jnp.asarray(start)


class Inherits(Started, init=False):
    depth: int = static(default=3)


w = jnp.ones(3)
assert_type(Layer(w), Layer)
assert Square(2.0) < Square(3.0)
assert_type(Layer(w, None, "gelu", sizes=(3, 4), mean=1.0, seed=3).kernel, jax.Array)
assert_type(Layer(w).bias, jax.Array | None)
assert_type(Layer(w).activation, str)
assert_type(Layer(w).sizes, tuple[int, ...])
assert_type(Layer(w).steps, int)
assert_type(Layer.limit, int)
assert_type(Named(w, name="a").name, str)
assert_type(Net(Layer(w), 3).layer.kernel, jax.Array)
assert_type(Net(Layer(w), 3, [w]).extra, list[jax.Array])
assert_type(Deep(Layer(w), 3, depth=2).depth, int)
assert_type(Plain(w).kernel, jax.Array)
assert_type(Inherits(start=2.0).depth, int)
assert_type(Box(3), Box[int])
assert_type(Box[int](3).value, int)
assert_type(Pair(w, w).left, jax.Array)
assert_type(hash(Box(3)), int)
assert_type(Layer(w) == Layer(w), bool)
for either in list[Net | Box[int]]([Net(Layer(w), 3)]):
    match either:
        case Net(layer, width):
            assert_type(layer, Layer)
            assert_type(width, int)
        case _:
            assert_type(either, Box[int])


def rejected() -> list[Any]:
    """Never called: each line is an error of the checkers."""
    return [  # pyright: ignore[reportUnknownVariableType]
        Layer(),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Layer("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Layer(w, None, 3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Layer(w, None, "gelu", 3, (3,)),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Layer(w, sizes=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Layer(w, steps=3),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Shape(2.0),  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
        Layer(w, kernal=w),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Layer(w, seed="no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Named(w),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Net(Layer(w)),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Inherits(kernel=w),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Net(w, 3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Deep(Layer(w), 3, [], 2),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Box[int]("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Layer(w).kernal,  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        Box(3).value.upper(),  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ]


def rejected_classes() -> None:
    """Also never called."""

    class Wrong(Module, kw_only=True):
        a: int = field(default="no")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        b: list[int] = field(default_factory=dict)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType, reportUnknownVariableType]
        c: int = field(nonsense=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        d: int = field(default=1, default_factory=int)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        e: int = static(default="no")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        f: int = static(compare="size")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
        g: int = buffer(default="no")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        h: int = static(doc=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]

    @pytree_dataclass(nonsense=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportUntypedClassDecorator]
    class Unknown:
        a: int

    @pytree_dataclass
    class Order:
        a: int = 0
        b: int  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]

    print(Wrong, Unknown, Order)
