"""Converters in annotations: `AsArray` and users' own run however they are spelt, or the class is refused."""

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
    "deep inside": dict[str, tuple[list[AsArray], int]],
    "one of two": AsArray | tuple[int, ...],
    "of an InitVar": InitVar[AsArray],
    "of a name that only checkers know": "tw.AsArray",
    "inside a name that only checkers know": "Final[Unknown[AsArray]]",
    "two": Annotated[Any, Converter(int), Converter(float)],
    "a specifier": Annotated[int, static()],
    "a specifier without its parentheses": Final[Annotated[int, static]],
    "of jax_dataclasses.Static": Annotated[int, "__jax_dataclasses_static_field__"],
    "of flax.nnx.Static": Optional[Annotated[int, "__static__"]],  # noqa: UP045
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
def test_where_it_would_not_be_read_the_class_is_refused(annotation: Any) -> None:
    message = (
        r"Net\.x: not all of .* would be read\. An annotation may hold one converter, for the whole value, .* Write x: "
        r"\.\.\. = field\(converter=\.\.\.\), or static\(\)\."
    )
    with pytest.raises(NodeDefinitionError, match=message):
        made(annotation)
    with pytest.raises(NodeDefinitionError, match=message):
        type("Net", (Module,), {"__annotations__": {"x": AsArray}, "x": field(converter=jnp.asarray)})


@pytest.mark.parametrize(
    ("name", "mark"), [("jax_dataclasses", "__jax_dataclasses_static_field__"), ("flax.nnx", "__static__")]
)
def test_the_marks_are_those_of_the_libraries(name: str, mark: str) -> None:
    library = pytest.importorskip(name)
    if not hasattr(library, "Static"):
        pytest.skip(f"{name} has no Static")

    assert library.Static[int].__metadata__ == (mark,)


def test_an_unknown_name_and_an_endless_alias_are_no_converters() -> None:
    assert made("UnitConverter")(2.0).x == 2.0
    assert made(Literal["AsArray"])(2.0).x == 2.0
    assert made(Endless)(2.0).x == 2.0


def test_a_static_is_converted_behind_an_alias() -> None:
    given: Any = TypeAliasType("given", AsTuple)  # type: ignore[misc, unused-ignore]  # pyright: ignore[reportGeneralTypeIssues]

    @pytree_dataclass
    class Layer:
        sizes: given = static()  # pyright: ignore[reportInvalidTypeForm]

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
