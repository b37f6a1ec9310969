"""A class may say itself how its nodes are compared and hashed."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest

from tests.conftest import one_line
from treewright import Module, pytree_dataclass

# Comparison of one's own


def test_without_eq_a_node_is_compared_and_hashed_by_identity() -> None:
    @pytree_dataclass(eq=False)
    class Decorated:
        value: Any

    class Subclass(Module, eq=False):
        value: Any

    for cls in (Decorated, Subclass):
        node = cls([jnp.ones(2)])
        assert node == node != cls(node.value)
        assert hash(node) == object.__hash__(node)


def test_own_comparison_and_hash_are_kept_and_inherited_by_modules() -> None:
    class Cell(Module):
        value: Any

        def __eq__(self, other: object) -> bool:
            return isinstance(other, str)

        def __hash__(self) -> int:
            return 7

    class BigCell(Cell):
        size: int = 3

    for node in (Cell(1), BigCell(1)):
        assert "anything" == node != 1
        assert hash(node) == 7


def test_own_comparison_and_hash_are_kept_on_decorated_classes() -> None:
    @pytree_dataclass
    class Cell:
        value: Any

        def __eq__(self, other: object) -> bool:
            return isinstance(other, str)

        def __hash__(self) -> int:
            return 7

    assert Cell(1) == "anything"
    assert hash(Cell(1)) == 7


def test_a_mixin_before_module_brings_its_comparison() -> None:
    class ByName:
        def __eq__(self, other: object) -> bool:
            return type(self).__name__ == type(other).__name__

        def __hash__(self) -> int:
            return 5

    class First(ByName, Module):
        value: Any

    class Last(Module, ByName):
        value: Any

    assert First(1) == First(2)
    assert hash(First(1)) == 5
    assert Last(1) != Last(2)


def test_a_class_that_says_it_has_no_hash_has_none_nor_has_a_subclass_of_a_module() -> None:
    @pytree_dataclass
    class Decorated:
        x: Any
        __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    class Model(Module):
        x: Any
        __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    class Deeper(Model):
        y: Any = 2

    for node in (Decorated(1), Model(1), Deeper(1)):
        with pytest.raises(TypeError, match=f"^unhashable type: '{type(node).__name__}'$"):
            hash(node)


def test_a_class_with_an_eq_of_its_own_and_no_word_on_its_hash_is_hashed_by_value() -> None:
    @pytree_dataclass
    class Decorated:  # noqa: PLW1641  that is the point
        x: Any

        def __eq__(self, other: object) -> bool:
            return True

    class Model(Module):  # noqa: PLW1641  that is the point
        x: Any

        def __eq__(self, other: object) -> bool:
            return True

    assert hash(Decorated(1)) == hash(Model(1)) == hash((1,))


# One rule for every way to a node class


def test_without_the_option_a_subclass_goes_back_to_pythons_own_methods() -> None:
    @pytree_dataclass
    class Decorated:
        value: Any

    @pytree_dataclass(eq=False, repr=False)
    class Below(Decorated):
        pass

    class Model(Module):
        value: Any

    class BelowModel(Model, eq=False, repr=False):
        pass

    for cls in (Below, BelowModel):
        assert cls(1) != cls(1)
        assert hash(cls(1)) != hash((1,))
        assert "object at 0x" in repr(cls(1))


def test_what_dataclasses_generated_for_a_base_is_generated_anew() -> None:
    @dataclasses.dataclass
    class Plain:
        value: Any

    @pytree_dataclass  # pyright: ignore[reportGeneralTypeIssues]
    class Decorated(Plain):  # type: ignore[misc]  # it is frozen, and Plain is not
        pass

    class Model(Plain, Module):
        pass

    class ByIdentity(Plain, Module, eq=False):
        pass

    for cls in (Decorated, Model):
        assert cls(jnp.ones(2)) == cls(jnp.ones(2))
        assert hash(cls(1)) == hash((1,))
        assert one_line(cls(jnp.ones(2))).endswith("(value=f32[2])")
    assert ByIdentity(1) != ByIdentity(1)


def test_a_decorator_generates_over_an_inherited_method_as_dataclasses_does_and_other_ways_keep_it() -> None:
    class Own:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, str)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    @pytree_dataclass
    class Decorated(Own):
        value: Any

    @pytree_dataclass(eq=False, repr=False)
    class Silent(Own):
        value: Any

    class Model(Own, Module):
        value: Any

    assert (Decorated(1) == "a", hash(Decorated(1)), one_line(Decorated(1)).endswith("(value=1)")) == (
        False,
        hash((1,)),
        True,
    )
    for cls in (Silent, Model):
        assert (cls(1) == "a", hash(cls(1)), repr(cls(1))) == (True, 7, "own")


def test_with_an_eq_of_its_own_and_eq_false_a_class_has_no_hash() -> None:
    @pytree_dataclass(eq=False)
    class Decorated:  # noqa: PLW1641  that is the point
        x: Any

        def __eq__(self, other: object) -> bool:
            return True

    class Model(Module, eq=False):  # noqa: PLW1641  that is the point
        x: Any

        def __eq__(self, other: object) -> bool:
            return True

    for node in (Decorated(1), Model(1)):
        with pytest.raises(TypeError, match=f"^unhashable type: '{type(node).__name__}'$"):
            hash(node)
