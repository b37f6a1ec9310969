"""A specifier belongs after the `=` of a field: inside the annotation it would be ignored."""

import dataclasses
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal, Optional

import pytest

import treewright  # noqa: F401  named in a string
from treewright import Module, static
from treewright.errors import NodeDefinitionError

REJECTED: dict[str, tuple[Any, str]] = {
    "a bare specifier": (static, "static()"),
    "a called specifier": (static(default=3), "static()"),
    "a specifier": (Annotated[int, static()], "static()"),
    "a specifier without its parentheses": (Final[Annotated[int, static]], "static()"),
    "a string": ("Annotated[int, static(default=3)]", "static()"),
    "a string with a module": ("Optional[Annotated[int, treewright.static]]", "static()"),
    "a string with a default": ("int = static(default=3)", "static()"),
    "a string with an alias": ("Static | None", "static()"),
    "a string with a path": ("Annotated[int, treewright.module.static()]", "static()"),
    "a string with another library's field": ("Annotated[int, libraries.struct.field(pytree_node=False)]", "static()"),
    "a string with another library's Static": ("libraries.nnx.Static | None", "static()"),
    "of jax_dataclasses.Static": (Annotated[int, "__jax_dataclasses_static_field__"], "static()"),
    "of flax.nnx.Static": (Optional[Annotated[int, "__static__"]], "static()"),  # noqa: UP045
}
ACCEPTED = (
    *(
        Literal["static"],
        Annotated[int, "metres"],
        "Unknown[statics, 1]",
        "Literal['static']",
        "unknown.static",
        "static[",
        "a static text",
        " Literal['field']",
    ),
    "unknown(static)",
)
Static = Annotated[int, static()]
libraries = SimpleNamespace(
    struct=SimpleNamespace(field=lambda **marks: dataclasses.field(metadata=marks)),
    nnx=SimpleNamespace(Static=Annotated[int, "__static__"]),
)


def made(annotation: Any) -> Any:
    return type("Net", (Module,), {"__annotations__": {"x": annotation}, "__module__": __name__})


@pytest.mark.parametrize(("annotation", "fix"), REJECTED.values(), ids=REJECTED)
def test_a_specifier_inside_an_annotation_is_rejected(annotation: Any, fix: str) -> None:
    message = rf"^Net\.x has \w+ in its annotation, where it would be ignored\.\n  Write x: \.\.\. = {fix[:-2]}"
    with pytest.raises(NodeDefinitionError, match=message):
        made(annotation)


@pytest.mark.parametrize("annotation", ACCEPTED)
def test_annotations_without_a_specifier_are_accepted(annotation: Any) -> None:
    assert made(annotation)(2.0).x == 2.0


@pytest.mark.parametrize(
    ("name", "mark"), [("jax_dataclasses", "__jax_dataclasses_static_field__"), ("flax.nnx", "__static__")]
)
def test_static_marks_match_their_libraries(name: str, mark: str) -> None:
    library = pytest.importorskip(name)
    if not hasattr(library, "Static"):
        pytest.skip(f"{name} has no Static")

    assert library.Static[int].__metadata__ == (mark,)
