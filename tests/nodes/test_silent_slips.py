"""What runs without a word in plain Python and means something else: refused where it is made, with what to write."""

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, Static, buffer, field, freeze, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError, StaticFieldError

OURS = [field, static, buffer]
CYCLIC: list[Any] = [1.0]
CYCLIC.append(CYCLIC)


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


# Specifiers


@pytest.mark.parametrize("specifier", [*OURS, dataclasses.field])
def test_a_specifier_without_its_parentheses_is_refused(specifier: Any) -> None:
    name = specifier.__name__

    bare = refused(__annotations__={"n": int}, n=specifier)
    assert bare == f"Net.n has {name} as default with no parentheses, which would be a leaf. Write n: int = {name}()."
    assert refused(__annotations__={"n": int}, n=field(default=specifier)) == bare
    assert refused(n=specifier) == (
        f"Net.n: 'n' is a field but has no type annotation, and only annotated names are fields.\n"
        f"  Write n: ... = {name}()"
    )


@pytest.mark.parametrize("specifier", OURS)
def test_a_comma_after_a_specifier_is_refused(specifier: Any) -> None:
    for value in ((specifier(),), [specifier()]):
        assert refused(__annotations__={"n": "int"}, n=value) == (
            f"Net.n has {specifier.__name__} as default with a comma or brackets around it, which would be a leaf. "
            f"Write n: int = {specifier.__name__}()."
        )


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        (static(), "static"),
        (buffer, "buffer"),
        ("__jax_dataclasses_static_field__", "static"),
        ("__static__", "static"),
    ],
)
def test_the_kind_of_a_field_in_its_annotation_is_refused(mark: Any, kind: str) -> None:
    assert refused(__annotations__={"n": Annotated[int, mark]}) == (
        f"Net.n is marked in its annotation, where nothing reads it, and would be a plain child. Write n: int = "
        f"{kind}()."
    )
    for cls in classes(__annotations__={"n": Annotated[int, "metres", 3], "m": Annotated[int, "__data__"]}):
        assert jax.tree.leaves(cls(1, 2)) == [1, 2]


@pytest.mark.parametrize(
    ("name", "mark"), [("jax_dataclasses", "__jax_dataclasses_static_field__"), ("flax.nnx", "__static__")]
)
def test_the_marks_are_those_of_the_libraries(name: str, mark: str) -> None:
    library = pytest.importorskip(name)
    if not hasattr(library, "Static"):
        pytest.skip(f"{name} has no Static")

    assert library.Static[int].__metadata__ == (mark,)


# Defaults


class WithProperty:
    @property
    def n(self) -> int:
        return 3


class WithCached:
    @functools.cached_property
    def n(self) -> int:
        return 3


class WithMethod:
    def n(self) -> int:
        return 3


class WithJitted:
    @jax.jit
    def n(self) -> Any:
        return 3


class WithStatic:
    @staticmethod
    def n() -> int:
        return 3


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (WithProperty, "property"),
        (WithCached, "property"),
        (WithMethod, "method"),
        (WithJitted, "method"),
        (WithStatic, "method"),
    ],
)
def test_a_field_and_a_method_or_property_of_one_name_are_refused(source: type[Any], what: str) -> None:
    message = refused(__annotations__={"n": int}, __qualname__=source.__qualname__, n=vars(source)["n"])

    assert message == (
        f"{source.__name__}.n is a field and a {what} of one name, so the {what} would become the field's default. "
        f"Rename one of them."
    )


@pytest.mark.parametrize(
    ("default", "what"),
    [
        (jnp.ones(3), "an array"),
        ((jnp.ones(3), 1.0), "a tuple that holds f32[3]"),
        (Inner(jnp.ones(3)), "a Inner that holds f32[3]"),
    ],
)
def test_an_array_anywhere_in_a_default_is_refused(default: Any, what: str) -> None:
    assert refused(__annotations__={"x": Any}, x=field(default=default)) == (
        f"Net.x has {what} as default: one array that all instances would share, made when the module is imported. Use "
        f"field(default_factory=lambda: ...)."
    )


# Values in the body without an annotation


@pytest.mark.parametrize(
    ("value", "found", "kind"),
    [
        (jnp.ones(3), "an array, f32[3],", "jax.Array"),
        (np.ones(3), "an array, f64[3](numpy),", "ndarray"),
        (jax.random.key(0), "an array, key<fry>[],", "jax.Array"),
        ([jnp.ones(3)], "a list that holds f32[3]", "list"),
        (Inner(jnp.ones(3)), "a Inner that holds f32[3]", "Inner"),
        (eqx.nn.LayerNorm(2), "a LayerNorm that holds f32[2]", "LayerNorm"),
        ([], "a list", "list"),
        ({1: jnp.ones(3), "a": 2}, "a dict", "dict"),  # which is not a tree
        ({2}, "a set", "set"),
        (CYCLIC, "a list", "list"),
    ],
)
def test_what_all_instances_would_share_is_refused_without_an_annotation(value: Any, found: str, kind: str) -> None:
    assert refused(w=value) == (
        f"Net.w is {found} without an annotation, so it is not a field: all instances share it, and what it holds is a "
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


# `Static` as the type of a field


@pytest.mark.parametrize(
    "annotation", [Static, Static[int], "Static[int]", Static[int] | None, Annotated[Static[int], "a word"]]
)
@pytest.mark.parametrize("declare", [field, buffer, dataclasses.field])
def test_a_field_of_type_static_takes_no_plain_value(annotation: Any, declare: Any) -> None:
    held = "..." if annotation is Static else "int"
    message = (
        f"Net.n is annotated with Static, a node around a static value, and is given 3, which would be a plain child, "
        f"traced by jit. Write n: {held} = static() in the class, or give it Static(3)."
    )

    for cls in classes(__annotations__={"n": annotation}, n=declare()):
        for give in (cls, lambda n, cls=cls: replace(cls(Static(1)), n=n)):
            with pytest.raises(StaticFieldError) as caught:
                give(3)
            assert str(caught.value) == message
        assert (cls(Static(3)).n.value, jax.tree.leaves(cls(Static(3))), cls(None).n) == (3, [], None)


def test_a_static_field_a_converter_and_a_union_take_plain_values() -> None:
    annotations = {"n": Static[int], "m": Static[int], "u": Static[int] | int}
    for cls in classes(__annotations__=annotations, n=static(), m=field(converter=Static)):
        assert (cls(3, 4, 5).n, cls(3, 4, 5).m, cls(3, 4, 5).u) == (3, Static(4), 5)


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
