"""A class may define how its nodes are compared, hashed and printed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest

from tests.conftest import one_line
from treewright import Module, pytree_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


class Own:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


class OwnEquality:  # noqa: PLW1641  that is the point
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


class Empty:
    pass


def node_class(body: type[Any], *bases: type[Any], decorate: bool = False, **options: bool) -> Any:
    """A node class with the field `value` and the methods of `body`; decorated, or a subclass of Module."""
    methods = {name: value for name, value in vars(body).items() if name in {"__eq__", "__hash__", "__repr__"}}
    namespace = {"__annotations__": {"value": Any}, "__module__": __name__, **methods}
    if decorate:
        return pytree_dataclass(**options)(type("Net", bases, namespace))
    make: Callable[..., Any] = type(Module)
    return make("Net", bases or (Module,), namespace, **options)


def behaviour(cls: Any) -> tuple[str, str, str]:
    """How nodes of a class are compared, hashed and printed: by the class itself, by value, or as Python does."""
    node, equal = cls([1]), cls([1])
    equality = "own" if node == "a" else "value" if node == equal else "python"
    number = cls(1)
    if cls.__hash__ is None:
        with pytest.raises(TypeError, match=r"^unhashable type: 'Net'$"):
            hash(number)
        hashed = "none"
    else:
        code = hash(number)
        hashed = {7: "own", hash((1,)): "value", object.__hash__(number): "python"}[code]
    text = repr(number)
    return equality, hashed, "own" if text == "own" else "value" if text == "Net(value=1)" else "python"


VALUE, OWN, PYTHON = ("value",) * 3, ("own",) * 3, ("python",) * 3
SILENT = {"eq": False, "repr": False}
RULES: dict[str, tuple[Callable[[bool], Any], tuple[str, ...], tuple[str, ...]]] = {
    "no method": (lambda d: node_class(Empty, decorate=d), VALUE, VALUE),
    "the options off": (lambda d: node_class(Empty, decorate=d, **SILENT), PYTHON, PYTHON),
    "its own methods": (lambda d: node_class(Own, decorate=d), OWN, OWN),
    "methods of a base": (lambda d: node_class(Empty, node_class(Own, decorate=d), decorate=d), VALUE, OWN),
    "methods of a base, and the options off": (
        lambda d: node_class(Empty, node_class(Own, decorate=d), decorate=d, **SILENT),
        OWN,
        OWN,
    ),
    "below a node, the options off": (
        lambda d: node_class(Empty, node_class(Empty, decorate=d), decorate=d, **SILENT),
        PYTHON,
        PYTHON,
    ),
    "an equality": (
        lambda d: node_class(OwnEquality, decorate=d),
        ("own", "value", "value"),
        ("own", "value", "value"),
    ),
    "an equality, and eq=False": (
        lambda d: node_class(OwnEquality, decorate=d, eq=False),
        ("own", "none", "value"),
        ("own", "none", "value"),
    ),
    "no hash": (lambda d: node_class(Unhashable, decorate=d), ("value", "none", "value"), ("value", "none", "value")),
    "a base without a hash": (
        lambda d: node_class(Empty, node_class(Unhashable, decorate=d), decorate=d),
        VALUE,
        ("value", "none", "value"),
    ),
}


@pytest.mark.parametrize(("make", "decorated", "module"), RULES.values(), ids=RULES)
def test_methods_in_the_class_body_override_options(
    make: Callable[[bool], Any], decorated: tuple[str, str, str], module: tuple[str, str, str]
) -> None:
    assert behaviour(make(True)) == decorated
    assert behaviour(make(False)) == module


def test_methods_of_mixins_follow_the_mro() -> None:
    assert behaviour(node_class(Empty, Own, Module)) == OWN
    assert behaviour(node_class(Empty, Module, Own)) == VALUE
    assert behaviour(node_class(Empty, Own, decorate=True)) == VALUE
    assert behaviour(node_class(Empty, Own, decorate=True, **SILENT)) == OWN


def test_methods_generated_for_a_dataclass_base_are_regenerated() -> None:
    @dataclasses.dataclass
    class Plain:
        value: Any

    for cls in (node_class(Empty, Plain, decorate=True), node_class(Empty, Plain, Module)):
        assert cls(jnp.ones(2)) == cls(jnp.ones(2))
        assert hash(cls(1)) == hash((1,))
        assert one_line(cls(jnp.ones(2))).endswith("(value=f32[2])")
    assert behaviour(node_class(Empty, Plain, Module, eq=False))[0] == "python"
