"""Mistakes that plain Python accepts silently: each is rejected with a fix."""

import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, Static, buffer, field, freeze, pytree_dataclass, static
from treewright.errors import NodeDefinitionError

OURS = [field, static, buffer]


def class_factories(**body: Any) -> list[Callable[[], Any]]:
    """Two functions that create a class with this body: as a Module, and with the decorator."""
    body = {"__module__": __name__, **body}
    return [lambda: type("Net", (Module,), dict(body)), lambda: pytree_dataclass(type("Net", (), dict(body)))]


def classes(**body: Any) -> list[Any]:
    return [make() for make in class_factories(**body)]


def definition_error(**body: Any) -> str:
    """The error for the class, which is the same for both kinds."""
    messages: set[str] = set()
    for make in class_factories(**body):
        with pytest.raises(NodeDefinitionError) as caught:
            make()
        messages.add(str(caught.value))
    (message,) = messages
    return message


class Inner(Module):
    x: Any = 1.0


# Specifiers and defaults


@pytest.mark.parametrize("specifier", [*OURS, dataclasses.field])
def test_a_specifier_without_parentheses_or_with_a_comma_is_rejected(specifier: Any) -> None:
    name = specifier.__name__

    for value in (specifier, field(default=specifier), (specifier(),), [specifier()]):
        assert definition_error(__annotations__={"n": "int"}, n=value) == (
            f"Net.n has {name} as default, but without parentheses or with a comma after them, so it would be a "
            f"leaf.\n"
            f"  Write n: int = {name}()"
        )


@pytest.mark.parametrize("default", [jnp.ones(3), np.ones(3), jax.random.key(0), [1], {"a": 1}])
@pytest.mark.parametrize("specifier", [lambda default: default, field, buffer, static])
def test_a_default_that_all_nodes_would_share_is_rejected_as_by_dataclasses(specifier: Any, default: Any) -> None:
    value = specifier(default=default) if specifier in OURS else specifier(default)
    for make in class_factories(__annotations__={"x": Any}, x=value):
        with pytest.raises(ValueError, match=r"^mutable default <class .*> for field x is not allowed"):
            make()


# Values in the body without an annotation


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (jnp.ones(3), "f32[3]", "jax.Array"),
        (jax.random.key(0), "key<fry>[]", "jax.Array"),
        ([jnp.ones(3)], "[f32[3]]", "list"),
        ((jnp.ones(3), 2), "(f32[3], 2)", "tuple"),
        (Inner(jnp.ones(3)), "Inner(x=f32[3])", "Inner"),
    ],
)
def test_class_attributes_with_arrays_need_an_annotation(value: Any, text: str, kind: str) -> None:
    assert definition_error(w=value) == (
        f"Net.w = {text} has no annotation, so it is not a field: all instances would share it, and jit would compile "
        f"its contents as constants.\n"
        f"  Write w: {kind} = field(default_factory=lambda: ...), or w: ClassVar[{kind}] = ... if this is intended."
    )
    for annotation in (ClassVar, ClassVar[Any], "ClassVar[jax.Array]", "ClassVar[Unknown]"):
        module, decorated = classes(__annotations__={"w": annotation}, w=value)
        subclasses = [
            type("Below", (module,), {"w": value}),
            pytree_dataclass(type("Below", (decorated,), {"w": value})),
        ]
        assert jax.tree.leaves([cls() for cls in (module, decorated, *subclasses)]) == []


@pytest.mark.parametrize(
    "value",
    [
        *(2.0, "relu", (1.0, "a", None), np.float32(1.0), frozenset({1}), Static("train"), Inner(2.0)),
        *(freeze(np.ones(3)), eqx.nn.Identity(), jax.eval_shape(lambda: jnp.ones(3)), jnp.tanh, jnp.float32),
    ],
)
def test_a_class_constant_needs_no_annotation(value: Any) -> None:
    for cls in classes(w=value):
        assert jax.tree.leaves(cls()) == []


# Lost return values, and methods that are never called


def generates(self: Any) -> Iterator[int]:
    self.x = 1.0
    yield 1


@pytest.mark.parametrize("hook", ["__check_init__", "__post_init__"])
def test_a_hook_that_returns_a_value_is_an_error(hook: str) -> None:
    for function in (lambda self: True, lambda self: self):
        for cls in classes(__annotations__={"x": Any}, **{hook: function}):
            with pytest.raises(TypeError, match=rf"^Net\.{hook}\(\) returned a value, .*\. (Raise|Assign) .* instead"):
                cls(1.0)


@pytest.mark.parametrize("hook", ["__init__", "__check_init__", "__post_init__"])
def test_a_hook_that_is_a_generator_is_an_error(hook: str) -> None:
    assert definition_error(__annotations__={"x": Any}, **{hook: generates}) == (
        f"Net.{hook} is a generator or coroutine, so its body would never run. Remove yield, async and await"
    )


def test_an_init_that_returns_a_value_is_an_error() -> None:
    def __init__(self: Any) -> Any:  # noqa: N807
        self.x = 1.0
        return self

    for cls in classes(__annotations__={"x": Any}, __init__=__init__):
        with pytest.raises(TypeError, match=r"^__init__\(\) should return None, not 'Net'$"):
            cls()


def test_the_first_instance_reports_an_init_subclass_without_super() -> None:
    class Base(Module):
        x: Any

        def __init_subclass__(cls, *, named: str) -> None:
            """Registers."""

    net: Any = types.new_class("Net", (Base,), {"named": "net"})
    with pytest.raises(NodeDefinitionError, match=r"Call super\(\)\.__init_subclass__\(\) in every __init_subclass__"):
        net(1.0)
