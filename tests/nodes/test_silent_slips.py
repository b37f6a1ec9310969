"""What runs without a word in plain Python and means something else: refused where it is made, with what to write."""

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


def made_both_ways(**body: Any) -> list[Callable[[], Any]]:
    """What makes a class of this body as a Module, and what makes it by the decorator."""
    body = {"__module__": __name__, **body}
    return [lambda: type("Net", (Module,), dict(body)), lambda: pytree_dataclass(type("Net", (), dict(body)))]


def classes(**body: Any) -> list[Any]:
    return [make() for make in made_both_ways(**body)]


def refused(**body: Any) -> str:
    """What is said of the class, either way."""
    said: set[str] = set()
    for make in made_both_ways(**body):
        with pytest.raises(NodeDefinitionError) as caught:
            make()
        said.add(str(caught.value))
    (message,) = said
    return message


class Inner(Module):
    x: Any = 1.0


# Specifiers and defaults


@pytest.mark.parametrize("specifier", [*OURS, dataclasses.field])
def test_a_specifier_without_its_parentheses_or_with_a_comma_is_refused(specifier: Any) -> None:
    name = specifier.__name__

    for value in (specifier, field(default=specifier), (specifier(),), [specifier()]):
        assert refused(__annotations__={"n": "int"}, n=value) == (
            f"Net.n has {name} as default, without parentheses or with a comma after them, which would be a leaf.\n"
            f"  Write n: int = {name}()"
        )


@pytest.mark.parametrize("default", [jnp.ones(3), np.ones(3), jax.random.key(0)])
def test_an_array_as_default_is_refused_as_by_dataclasses(default: Any) -> None:
    for make in made_both_ways(__annotations__={"x": Any}, x=field(default=default)):
        with pytest.raises(ValueError, match=r"mutable default <class '.*> for field x is not allowed: use default_fa"):
            make()


# Values in the body without an annotation


@pytest.mark.parametrize(
    ("value", "shown", "kind"),
    [
        (jnp.ones(3), "f32[3]", "jax.Array"),
        (np.ones(3), "f64[3](numpy)", "ndarray"),
        (jax.random.key(0), "key<fry>[]", "jax.Array"),
        ([jnp.ones(3)], "[f32[3]]", "list"),
        ([], "[]", "list"),
        ({"a": 2}, "{'a': 2}", "dict"),
        ({2}, "{2}", "set"),
    ],
)
def test_what_all_instances_would_share_is_refused_without_an_annotation(value: Any, shown: str, kind: str) -> None:
    assert refused(w=value) == (
        f"Net.w is {shown} without an annotation, so it is not a field: all instances share it, and what it holds is a "
        f"constant in what jit compiles.\n"
        f"  Write w: {kind} = field(default_factory=lambda: ...), or w: ClassVar[{kind}] = ... if that is meant."
    )
    for annotation in (ClassVar, ClassVar[Any], "ClassVar[jax.Array]", "ClassVar[Unknown]"):
        module, decorated = classes(__annotations__={"w": annotation}, w=value)
        below = [type("Below", (module,), {"w": value}), pytree_dataclass(type("Below", (decorated,), {"w": value}))]
        assert jax.tree.leaves([cls() for cls in (module, decorated, *below)]) == []


@pytest.mark.parametrize(
    "value",
    [
        *(2.0, "relu", (1.0, "a", None), np.float32(1.0), frozenset({1}), Static("train"), Inner(2.0)),
        *(freeze(np.ones(3)), eqx.nn.Identity(), jax.eval_shape(lambda: jnp.ones(3)), jnp.tanh, jax.Array),
    ],
)
def test_a_constant_of_the_class_needs_no_annotation(value: Any) -> None:
    for cls in classes(w=value):
        assert jax.tree.leaves(cls()) == []


# What a method returns, and what is never called


def generates(self: Any) -> Iterator[int]:
    self.x = 1.0
    yield 1


def test_what_a_check_returns_is_not_lost_in_silence() -> None:
    for function in (lambda self: True, lambda self: self, generates):
        for cls in classes(__annotations__={"x": Any}, __check_init__=function):
            with pytest.raises(TypeError, match=r"^Net\.__check_init__\(\) returned a value, .* Let it raise an error"):
                cls(1.0)


def test_what_an_init_returns_is_refused_in_pythons_words() -> None:
    def __init__(self: Any) -> Any:  # noqa: N807
        self.x = 1.0
        return self

    for cls in classes(__annotations__={"x": Any}, __init__=__init__):
        with pytest.raises(TypeError, match=r"^__init__\(\) should return None, not 'Net'$"):
            cls()


def test_where_an_init_subclass_does_not_call_super_the_first_instance_says_so() -> None:
    class Base(Module):
        x: Any

        def __init_subclass__(cls, *, named: str) -> None:
            """Registers."""

    net: Any = types.new_class("Net", (Base,), {"named": "net"})
    with pytest.raises(NodeDefinitionError, match=r"Let each __init_subclass__ of its bases call super\(\)"):
        net(1.0)
