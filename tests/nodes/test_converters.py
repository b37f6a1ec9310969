"""Converters in annotations: `AsArray` and users' own run, or the class is rejected."""

from collections.abc import Iterable
from dataclasses import InitVar
from typing import Annotated, Any, Final, Literal, Optional, Union

import jax
import jax.numpy as jnp
import pytest
from typing_extensions import TypeAliasType

from treewright import AsArray, Converted, Converter, Module, field, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError

Alias: Any = TypeAliasType("Alias", AsArray)  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
AliasOfAlias: Any = TypeAliasType("AliasOfAlias", Alias)  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
Endless: Any = TypeAliasType("Endless", "list[Endless] | tuple[Endless, int]")  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]
AsTuple = Annotated[Converted[Iterable[int], tuple[int, ...]], Converter(tuple)]

RUNS: dict[str, Any] = {
    "AsArray": AsArray,
    "a string": "AsArray",
    "Annotated again": Annotated[AsArray, "metres"],
}
ONE_CONVERTER = "field(converter=asarray)"
UNKNOWN = "field(converter=...)"
REJECTED: dict[str, tuple[Any, str]] = {
    "Final": (Final[AsArray], ONE_CONVERTER),
    "an alias": (Alias, ONE_CONVERTER),
    "an alias of an alias": (AliasOfAlias, ONE_CONVERTER),
    "or None": (AsArray | None, ONE_CONVERTER),  # pyright: ignore[reportOperatorIssue]
    "Optional": (Optional[AsArray], ONE_CONVERTER),  # noqa: UP045
    "Union": (Union[None, AsArray], ONE_CONVERTER),  # noqa: UP007
    "a string inside": (Final["AsArray"], ONE_CONVERTER),
    "Annotated or None": (Annotated[AsArray | None, "metres"], ONE_CONVERTER),
    "inside a tuple": (tuple[AsArray, ...], ONE_CONVERTER),
    "inside a list of an alias": (list[Alias], ONE_CONVERTER),
    "deep inside": (dict[str, tuple[list[AsArray], int]], ONE_CONVERTER),
    "one of two": (AsArray | tuple[int, ...], ONE_CONVERTER),
    "of an InitVar": (InitVar[AsArray], ONE_CONVERTER),
    "of a name that only checkers know": ("tw.AsArray", UNKNOWN),
    "inside a name that only checkers know": ("Final[Unknown[AsArray]]", UNKNOWN),
    "two": (Annotated[Any, Converter(int), Converter(float)], "field(converter=int)"),
    "a specifier": (Annotated[int, static()], "static()"),
    "a specifier without its parentheses": (Final[Annotated[int, static]], "static()"),
    "of jax_dataclasses.Static": (Annotated[int, "__jax_dataclasses_static_field__"], "static()"),
    "of flax.nnx.Static": (Optional[Annotated[int, "__static__"]], "static()"),  # noqa: UP045
}


def made(annotation: Any) -> Any:
    return type("Net", (Module,), {"__annotations__": {"x": annotation}, "__module__": __name__})


@pytest.mark.parametrize("annotation", RUNS.values(), ids=RUNS)
def test_the_converter_in_an_annotation_runs(annotation: Any) -> None:
    net = made(annotation)

    assert isinstance(net(2.0).x, jax.Array)
    assert isinstance(replace(net(2.0), x=3.0).x, jax.Array)


@pytest.mark.parametrize(("annotation", "cure"), REJECTED.values(), ids=REJECTED)
def test_a_converter_that_would_be_ignored_is_rejected(annotation: Any, cure: str) -> None:
    with pytest.raises(
        NodeDefinitionError, match=r"Net\.x: part of .* would be ignored\. A field has at most one"
    ) as caught:
        made(annotation)

    assert str(caught.value).endswith(f"\n  Write x: ... = {cure}")


def test_two_converters_for_a_field_are_rejected() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Net\.x: part of .* would be ignored"):
        type("Net", (Module,), {"__annotations__": {"x": AsArray}, "x": field(converter=jnp.asarray)})


@pytest.mark.parametrize(
    ("name", "mark"), [("jax_dataclasses", "__jax_dataclasses_static_field__"), ("flax.nnx", "__static__")]
)
def test_static_marks_match_their_libraries(name: str, mark: str) -> None:
    library = pytest.importorskip(name)
    if not hasattr(library, "Static"):
        pytest.skip(f"{name} has no Static")

    assert library.Static[int].__metadata__ == (mark,)


def test_unknown_names_and_recursive_aliases_are_not_converters() -> None:
    assert made("UnitConverter")(2.0).x == 2.0
    assert made(Literal["AsArray"])(2.0).x == 2.0
    assert made(Endless)(2.0).x == 2.0


def test_a_static_is_converted_by_its_annotation() -> None:
    @pytree_dataclass
    class Layer:
        sizes: AsTuple = static()

    assert Layer(range(3)).sizes == (0, 1, 2)


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
