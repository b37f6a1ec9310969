"""Annotations that convert: `AsArray`, and those that users make with `Converted` and `Converter`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import pytest

from treewright import AsArray, Converted, Converter, Module, field, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError

AsTuple: TypeAlias = Annotated[Converted[Iterable[int], tuple[int, ...]], Converter(tuple)]


@pytree_dataclass
class Layer:
    kernel: AsArray
    bias: AsArray = Converted(0.0)
    sizes: AsTuple = static(default=Converted((3,)), kw_only=True)


@pytree_dataclass
class Deep(Layer):
    pass


class Net(Module):
    kernel: AsArray

    def __init__(self, kernel: float) -> None:
        self.kernel = kernel


@pytest.mark.parametrize("cls", [Layer, Deep])
def test_constructor_defaults_and_replace_convert_by_the_annotation(cls: Any) -> None:
    layer = cls(1.0, sizes=[1, 2])

    assert isinstance(layer.kernel, jax.Array)
    assert isinstance(layer.bias, jax.Array)
    assert layer.sizes == (1, 2)
    assert isinstance(replace(layer, kernel=2).kernel, jax.Array)


def test_an_assignment_in_a_custom_init_converts() -> None:
    assert isinstance(Net(2.0).kernel, jax.Array)


def test_unflatten_converts_nothing() -> None:
    assert jax.tree.map(lambda leaf: "any leaf", Layer(1.0)).kernel == "any leaf"


def declare(annotation: Any, **body: Any) -> Any:
    return type("Example", (Module,), {"__annotations__": {"kernel": annotation}, **body})


def test_an_annotation_that_hides_its_converter_is_refused() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Example\.kernel: the annotation 'tw\.AsArray' can't be resolved"):
        declare("tw.AsArray")


def test_two_converters_for_one_field_are_refused() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Example\.kernel has 2 converters, .* Make them one function"):
        declare(Annotated[Any, Converter(int), Converter(float)])
    with pytest.raises(NodeDefinitionError, match=r"Example\.kernel has 2 converters, in its annotation and"):
        declare(AsArray, kernel=field(converter=jnp.asarray))
