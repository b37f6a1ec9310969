"""`@pytree_dataclass` and `Module`: what a declaration gives, and what it refuses."""

import dataclasses
import functools
import itertools
import operator
import types
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import pytest

from treewright import Module, buffer, field, pytree_dataclass, static

T = TypeVar("T")


# What a declaration gives


def test_the_decorated_class_is_the_same_object() -> None:
    class Plain:
        x: Any

    assert pytree_dataclass(Plain) is Plain
    assert Plain.__mro__ == (Plain, object)


def test_fields_are_children_and_static_fields_are_aux_data() -> None:
    @pytree_dataclass
    class Layer:
        kernel: Any
        width: int = static()
        bias: Any = None
        activation: str = static(default="relu")

    children, aux = Layer(1.0, 3, 2.0).tree_flatten()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert children == (1.0, 2.0)
    assert aux.values == (3, "relu")
    assert repr(aux) == "width=3, activation='relu'"


def test_options_of_the_standard_library_are_honoured() -> None:
    @pytree_dataclass(init=False, repr=False, eq=False, match_args=False)
    class Bare:
        x: Any

        def __init__(self) -> None:
            object.__setattr__(self, "x", 1.0)

    bare = Bare()
    assert bare == bare
    assert bare != Bare()
    assert "object at 0x" in repr(bare)
    assert "__match_args__" not in vars(Bare)


def declared(way: str, body: dict[str, Any], **options: Any) -> Any:
    """A class with the field `x` and the static `n`, as either way makes it, or as dataclasses does."""
    body = {"__annotations__": {"x": Any, "n": Any}, "n": static(default=0), **body}
    if way == "Module":
        return types.new_class("Example", (Module,), options, lambda space: space.update(body))
    decorate = pytree_dataclass if way == "decorated" else functools.partial(dataclasses.dataclass, frozen=True)
    return decorate(**options)(type("Example", (), body))


WAYS = ["decorated", "Module"]
ORDER = [operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compare", ORDER)
def test_order_compares_as_a_dataclass_with_order_does(way: str, compare: Any) -> None:
    ours, theirs = declared(way, {}, order=True), declared("dataclasses", {}, order=True)
    fields = [(1, 2), (1, 3), (2, 1), (jnp.ones(()), 1), (True, 2)]
    for left, right in itertools.product(fields, repeat=2):
        assert bool(compare(ours(*left), ours(*right))) is bool(compare(theirs(*left), theirs(*right)))
    with pytest.raises(TypeError, match="not supported between instances"):
        compare(ours(1), declared(way, {}, order=True)(1))


@pytest.mark.parametrize("way", WAYS)
def test_order_leaves_equality_and_hash_ours(way: str) -> None:
    cls = declared(way, {}, order=True)
    assert cls(1) != cls(1.0)
    assert cls(jnp.ones(3)) == cls(jnp.ones(3))
    assert hash(cls(1)) == hash(declared(way, {})(1))
    with pytest.raises(ValueError, match="ambiguous"):
        _ = cls(jnp.ones(3)) < cls(jnp.zeros(3))


@pytest.mark.parametrize("way", [*WAYS, "dataclasses"])
@pytest.mark.parametrize(
    ("body", "options", "error", "match"),
    [
        ({"__lt__": operator.lt}, {"order": True}, TypeError, "Cannot overwrite attribute __lt__"),
        ({}, {"order": True, "eq": False}, ValueError, "eq must be true if order is true"),
        ({"__hash__": hash}, {"unsafe_hash": True}, TypeError, "Cannot overwrite attribute __hash__"),
    ],
)
def test_order_and_unsafe_hash_refuse_what_dataclasses_refuse(
    way: str, body: dict[str, Any], options: dict[str, bool], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        declared(way, body, **options)


@pytest.mark.parametrize("way", WAYS)
def test_unsafe_hash_is_by_value_where_eq_is_not(way: str) -> None:
    cls = declared(way, {}, eq=False, unsafe_hash=True)
    assert cls(1) != cls(1)
    assert hash(cls(1)) == hash(cls(1)) == hash(declared(way, {})(1))
    own = declared(way, {"__eq__": lambda self, other: self.x == other.x}, unsafe_hash=True)
    assert own(1, 2) == own(1, 3)
    assert hash(own(1)) == hash(cls(1))


# Field specifiers


def test_specifiers_take_what_dataclasses_field_takes() -> None:
    import inspect

    wanted = set(inspect.signature(dataclasses.field).parameters) | {"doc"}  # which it has since Python 3.14
    for specifier in (field, static, buffer):
        ours = {"converter", "local", "sharding", "stack"}
        assert set(inspect.signature(specifier).parameters) - ours == wanted


def test_the_decorator_takes_what_dataclass_takes() -> None:
    import inspect

    wanted = inspect.signature(dataclasses.dataclass).parameters
    ours = inspect.signature(pytree_dataclass).parameters
    assert set(ours) == set(wanted) - {"slots", "weakref_slot"}
    defaults = {name: parameter.default for name, parameter in ours.items() if name not in {"cls", "frozen"}}
    assert defaults == {name: wanted[name].default for name in defaults}


def test_plain_defaults_and_dataclasses_field_keep_working() -> None:
    @pytree_dataclass
    class Mixed:
        a: Any
        b: Any = 2.0
        c: Any = dataclasses.field(default=3.0)
        d: Any = dataclasses.field(default_factory=lambda: [4.0])
        e: Any = dataclasses.field(default=5.0, kw_only=True)

    assert jax.tree.leaves(Mixed(1.0)) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_metadata_static_is_honoured_as_in_jax() -> None:
    @pytree_dataclass
    class Layer:
        w: Any
        name: str = dataclasses.field(default="a", metadata={"static": True})
        kind: str = field(default="b", metadata={"static": False})

    assert Layer(1.0).tree_flatten()[0] == (1.0, "b")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert Layer(1.0).tree_flatten()[1].values == ("a",)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_static_tells_other_tools_so_in_its_metadata() -> None:
    @pytree_dataclass
    class Layer:
        name: str = static(default="a", metadata={"unit": "m"})

    (found,) = dataclasses.fields(Layer)
    assert found.metadata["static"] is True
    assert found.metadata["unit"] == "m"


def test_a_static_is_compared_in_one_of_four_ways() -> None:
    with pytest.raises(TypeError, match=r'compare=\.\.\.\) is "value", "content", True or False, got 3'):
        static(compare=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_traceback_through_a_generated_init_shows_its_line() -> None:
    import traceback

    def refuse(value: Any) -> Any:
        raise ValueError(value)

    @pytree_dataclass
    class Checked:
        w: Any = field(converter=refuse)

    with pytest.raises(ValueError, match="3") as caught:
        Checked(3)
    lines = traceback.format_exception(caught.value)
    assert any("w = convert_w(w)" in line for line in lines)
