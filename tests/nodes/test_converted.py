"""Converters in annotations: `AsArray` and users' own run however they are spelt, or the class is refused."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Optional, Union

import jax
import jax.numpy as jnp
import pytest
from typing_extensions import TypeAliasType

from treewright import AsArray, Converted, Converter, Module, Static, field, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError, StaticFieldError

Alias: Any = TypeAliasType("Alias", AsArray)  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
AliasOfAlias: Any = TypeAliasType("AliasOfAlias", Alias)  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
StaticAlias: Any = TypeAliasType("StaticAlias", Static[str])  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
AsTuple = Annotated[Converted[Iterable[int], tuple[int, ...]], Converter(tuple)]

RUNS: dict[str, Any] = {
    "AsArray": AsArray,
    "Final": Final[AsArray],
    "an alias": Alias,
    "an alias of an alias": AliasOfAlias,
    "Final of an alias": Final[Alias],
    "or None": AsArray | None,  # pyright: ignore[reportOperatorIssue]
    "Optional": Optional[AsArray],  # noqa: UP045
    "Union": Union[None, AsArray],  # noqa: UP007
    "an alias or None": Alias | None,
    "a string": "AsArray",
    "a string inside": Final["AsArray"],
    "Annotated again": Annotated[AsArray, "metres"],
    "Annotated or None": Annotated[AsArray | None, "metres"],
}
REFUSED: dict[str, Any] = {
    "inside a tuple": tuple[AsArray, ...],
    "inside a list of an alias": list[Alias],
    "one of two": AsArray | tuple[int, ...],
}


def made(annotation: Any) -> Any:
    return type("Net", (Module,), {"__annotations__": {"x": annotation}, "__module__": __name__})


@pytest.mark.parametrize("annotation", RUNS.values(), ids=RUNS)
def test_the_converter_runs(annotation: Any) -> None:
    net = made(annotation)

    assert isinstance(net(2.0).x, jax.Array)
    assert isinstance(replace(net(2.0), x=3.0).x, jax.Array)


@pytest.mark.parametrize("name", [name for name in RUNS if "or None" in name or name in {"Optional", "Union"}])
def test_a_none_that_the_annotation_allows_is_kept(name: str) -> None:
    assert made(RUNS[name])(None).x is None


@pytest.mark.parametrize("annotation", REFUSED.values(), ids=REFUSED)
def test_where_it_is_not_about_the_whole_value_the_class_is_refused(annotation: Any) -> None:
    with pytest.raises(NodeDefinitionError, match=r"Net\.x: the converter inside .* would not run, since it is not"):
        made(annotation)


def test_an_unknown_name_is_no_converter_by_its_letters() -> None:
    assert made("UnitConverter")(2.0).x == 2.0
    with pytest.raises(NodeDefinitionError, match=r"Net\.x: the annotation 'Final\[Unknown\[AsArray\]\]' can't be"):
        made("Final[Unknown[AsArray]]")


def test_a_static_is_converted_and_checked_behind_an_alias() -> None:
    given: Any = TypeAliasType("given", AsTuple)  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
    lists: Any = TypeAliasType("lists", list[int])  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]

    @pytree_dataclass
    class Layer:
        sizes: given = static()  # pyright: ignore[reportInvalidTypeForm]

    assert Layer(range(3)).sizes == (0, 1, 2)
    with pytest.raises(NodeDefinitionError, match=r"Net\.n is static, but its annotation holds list"):
        type("Net", (Module,), {"__annotations__": {"n": Final[lists]}, "n": static()})


@pytest.mark.parametrize("annotation", [StaticAlias, Final[StaticAlias], StaticAlias | None, "StaticAlias"])
def test_static_takes_no_plain_value_behind_an_alias(annotation: Any) -> None:
    with pytest.raises(StaticFieldError, match=r"Net\.x is annotated with Static"):
        made(annotation)("relu")
    assert made(annotation)(Static("relu")).x.value == "relu"


@pytree_dataclass
class Layer:
    kernel: AsArray
    bias: AsArray = Converted(0.0)
    sizes: AsTuple = static(default=Converted((3,)), kw_only=True)


def test_constructor_defaults_and_replace_convert_by_the_annotation_and_unflatten_does_not() -> None:
    layer = Layer(1.0, sizes=[1, 2])

    assert isinstance(layer.kernel, jax.Array)
    assert isinstance(layer.bias, jax.Array)
    assert layer.sizes == (1, 2)
    assert isinstance(replace(layer, kernel=2).kernel, jax.Array)
    assert jax.tree.map(lambda leaf: "any leaf", layer).kernel == "any leaf"


def test_an_annotation_that_hides_its_converter_and_two_converters_are_refused() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Net\.x: the annotation 'tw\.AsArray' can't be resolved"):
        made("tw.AsArray")
    with pytest.raises(NodeDefinitionError, match=r"Net\.x has 2 converters, .* Make them one function"):
        made(Annotated[Any, Converter(int), Converter(float)])
    with pytest.raises(NodeDefinitionError, match=r"Net\.x has 2 converters, in its annotation and"):
        type("Net", (Module,), {"__annotations__": {"x": AsArray}, "x": field(converter=jnp.asarray)})
