"""`field(sharding=..., stack=...)`: checked when the class is created, and not part of the tree."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.conftest import count_traces
from treewright import Module, buffer, field, static
from treewright.errors import NodeDefinitionError


class Layer(Module):
    kernel: jax.Array = field(sharding=("embed", "mlp"))
    mean: jax.Array = buffer(sharding=("mlp",))


untyped_static: Any = static
untyped: Any = field  # for calls that checkers would reject


def declare(value: Any, base: Any = Module) -> Any:
    return type(base)("Example", (base,), {"__annotations__": {"kernel": Any}, "kernel": value})


def test_the_class_knows_the_names_of_each_axis() -> None:
    assert [field.sharding for field in vars(Layer)["__node_info__"].fields] == [("embed", "mlp"), ("mlp",)]
    assert declare(field(stack="layers")).__node_info__.fields[0].stack == "layers"


def test_axis_names_are_not_in_the_treedef() -> None:
    assert repr(jax.tree.structure(declare(field(sharding=("a",)))(1))) == repr(jax.tree.structure(declare(field())(1)))


def test_different_axis_names_do_not_retrace() -> None:
    current = {"names": ("a",)}

    class Moving(Module):
        kernel: jax.Array = field(sharding=lambda _: current["names"])

    jitted = jax.jit(counted := count_traces(lambda node: node.kernel))
    jitted(Moving(jnp.ones(2)))
    current["names"] = ("b",)
    jitted(Moving(jnp.ones(2)))

    assert counted.count == 1


def test_a_subclass_inherits_or_overrides_axis_names() -> None:
    class Same(Layer):
        extra: float = 0.0

    class Other(Layer):
        kernel: jax.Array = field(sharding=(None, "mlp"))

    class Whole(Layer):
        kernel: jax.Array = field()

    assert vars(Same)["__node_info__"].fields[0].sharding == ("embed", "mlp")
    assert vars(Other)["__node_info__"].fields[0].sharding == (None, "mlp")
    assert vars(Whole)["__node_info__"].fields[0].sharding is None


def test_copies_and_pickles_of_a_field_keep_its_names() -> None:
    declared = vars(Layer)["__node_info__"].fields[0]

    assert pickle.loads(pickle.dumps(declared)).sharding == ("embed", "mlp")
    assert copy.deepcopy(declared).sharding == ("embed", "mlp")


@pytest.mark.parametrize("wrong", ["embed", ["embed"], ("embed", 3), ("",), ""])
def test_field_rejects_invalid_shardings(wrong: Any) -> None:
    message = f'sharding={wrong!r} must be a tuple with a name or None for each axis of the array, such as ("embed", '
    with pytest.raises(TypeError, match=re.escape(message)):
        untyped(sharding=wrong)
    with pytest.raises(TypeError, match="stack=2 must be the name of one leading axis"):
        untyped(stack=2)


def test_static_rejects_sharding() -> None:
    with pytest.raises(TypeError, match=r"static\(\) got an unexpected keyword argument 'sharding'"):
        untyped_static(sharding=("embed",))


def test_redeclaring_a_field_without_its_names_is_rejected() -> None:
    with pytest.raises(
        NodeDefinitionError,
        match=r"Example.kernel redeclares a field\(\) field without field\(\), which would store it whole on every",
    ):
        declare(1.0, Layer)


def test_metadata_static_of_a_field_makes_it_static() -> None:
    class Named(Module):
        name: str = field(default="a", metadata={"static": True})

    assert jax.tree.leaves(Named()) == []
