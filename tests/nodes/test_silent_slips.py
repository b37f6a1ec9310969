"""What runs without a word in plain Python and means something else: refused where it is made, with what to write."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, Static, buffer, field, freeze, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError, StaticFieldError

SPECIFIERS = [field, static, buffer, dataclasses.field]
SPEC = jax.eval_shape(lambda: jnp.ones(3))
CYCLIC: list[Any] = [1.0]
CYCLIC.append(CYCLIC)


def module(**body: Any) -> Any:
    return type("Net", (Module,), {"__module__": __name__, **body})


def decorated(**body: Any) -> Any:
    return pytree_dataclass(type("Net", (), {"__module__": __name__, **body}))


both_ways = pytest.mark.parametrize("make", [module, decorated])


def refused(make: Callable[..., Any], **body: Any) -> str:
    with pytest.raises(NodeDefinitionError) as caught:
        make(**body)
    return str(caught.value)


class Inner(Module):
    x: Any = 1.0


# Specifiers


@both_ways
@pytest.mark.parametrize("specifier", SPECIFIERS)
def test_a_specifier_without_its_parentheses_is_refused(make: Any, specifier: Any) -> None:
    name = specifier.__name__

    bare = refused(make, __annotations__={"n": int}, n=specifier)
    assert bare == (f"Net.n has {name} as default with no parentheses, which would be a leaf. Write n: int = {name}().")
    assert refused(make, __annotations__={"n": int}, n=field(default=specifier)) == bare
    assert refused(make, n=specifier) == (
        f"Net.n: 'n' is a field but has no type annotation, and only annotated names are fields.\n"
        f"  Write n: ... = {name}()"
    )


@both_ways
@pytest.mark.parametrize("specifier", [field, static, buffer])
def test_a_comma_after_a_specifier_is_refused(make: Any, specifier: Any) -> None:
    name = specifier.__name__

    assert refused(make, __annotations__={"n": "int"}, n=(specifier(),)) == (
        f"Net.n has {name} as default with a comma or brackets around it, which would be a leaf. Write n: int = "
        f"{name}()."
    )
    assert "Net.n has field as default with a comma or brackets around it" in refused(
        make, __annotations__={"n": int}, n=[field()]
    )


@both_ways
def test_a_specifier_without_an_annotation_is_refused_by_dataclasses(make: Any) -> None:
    with pytest.raises(TypeError, match="'n' is a field but has no type annotation"):
        make(n=static())


@both_ways
@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        (static(), "static"),
        (buffer, "buffer"),
        ("__jax_dataclasses_static_field__", "static"),
        ("__static__", "static"),
    ],
)
def test_the_kind_of_a_field_in_its_annotation_is_refused(make: Any, mark: Any, kind: str) -> None:
    assert refused(make, __annotations__={"n": Annotated[int, mark]}) == (
        f"Net.n is marked in its annotation, where nothing reads it, and would be a plain child. Write n: int = "
        f"{kind}()."
    )


def test_annotated_with_anything_else_is_a_plain_child() -> None:
    made = module(__annotations__={"n": Annotated[int, "metres", 3], "m": Annotated[int, "__data__"]})

    assert jax.tree.leaves(made(1, 2)) == [1, 2]


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


@both_ways
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
def test_a_field_and_a_method_or_property_of_one_name_are_refused(make: Any, source: type[Any], what: str) -> None:
    body = {**vars(source), "__annotations__": {"n": int}, "__qualname__": source.__qualname__}
    del body["__dict__"], body["__weakref__"]

    assert refused(make, **body) == (
        f"{source.__name__}.n is a field and a {what} of one name, so the {what} would become the field's default. "
        f"Rename one of them."
    )


@both_ways
@pytest.mark.parametrize(
    ("default", "what"),
    [
        (jnp.ones(3), "an array"),
        ((jnp.ones(3), 1.0), "a tuple that holds f32[3]"),
        (Inner(jnp.ones(3)), "a Inner that holds f32[3]"),
    ],
)
def test_an_array_anywhere_in_a_default_is_refused(make: Any, default: Any, what: str) -> None:
    message = refused(make, __annotations__={"x": Any}, x=field(default=default))

    assert message == (
        f"Net.x has {what} as default: one array that all instances would share, made when the module is imported. Use "
        f"field(default_factory=lambda: ...)."
    )


# Arrays in the body


@both_ways
@pytest.mark.parametrize(
    ("value", "what", "kind"),
    [
        (jnp.ones(3), "is an array, f32[3]", "jax.Array"),
        (np.ones(3), "is an array, f64[3](numpy)", "ndarray"),
        (jax.random.key(0), "is an array, key<fry>[]", "jax.Array"),
        ([jnp.ones(3)], "is a list that holds an array, f32[3]", "list"),
        ({"a": (1.0, jnp.ones(2))}, "is a dict that holds an array, f32[2]", "dict"),
        (Inner(jnp.ones(3)), "is a Inner that holds an array, f32[3]", "Inner"),
        (eqx.nn.Identity(), None, ""),
        (eqx.nn.LayerNorm(2), "is a LayerNorm that holds an array, f32[2]", "LayerNorm"),
        ((1.0, "a", None), None, ""),
        (2.0, None, ""),
        (np.float32(1.0), None, ""),
        (Static("train"), None, ""),
        (Inner(2.0), None, ""),
        (freeze(np.ones(3)), None, ""),
        (SPEC, None, ""),
        (CYCLIC, None, ""),
        ({1: jnp.ones(3), "a": 2}, None, ""),  # which is not a tree
        (jnp.tanh, None, ""),
        (jax.Array, None, ""),
    ],
)
def test_an_array_without_an_annotation_is_refused(make: Any, value: Any, what: str | None, kind: str) -> None:
    if what is None:
        assert jax.tree.leaves(make(w=value)()) == []
        return
    message = (
        f"Net.w {what}, and is not a field: no leaf of an instance, never trained, and a constant in what jit "
        f"compiles. Write w: {kind} = field(default_factory=lambda: ...), or w: ClassVar[{kind}] = ... if a constant "
        f"is meant."
    )
    assert refused(make, w=value) == message
    for annotation in (ClassVar, ClassVar[Any], "ClassVar[jax.Array]", "ClassVar[Unknown]"):
        assert jax.tree.leaves(make(__annotations__={"w": annotation}, w=value)()) == []


# `Static` as the type of a field


ANNOTATIONS: list[Any] = [Static, Static[int], "Static[int]", Static[int] | None, Annotated[Static[int], "a word"]]


@both_ways
@pytest.mark.parametrize("annotation", ANNOTATIONS)
@pytest.mark.parametrize("declare", [field, buffer, dataclasses.field])
def test_a_field_of_type_static_takes_no_plain_value(make: Any, annotation: Any, declare: Any) -> None:
    made = make(__annotations__={"n": annotation}, n=declare())
    held = "..." if annotation is Static else "int"
    message = (
        f"Net.n is annotated with Static, a node around a static value, and is given 3, which would be a plain child, "
        f"traced by jit. Write n: {held} = static() in the class, or give it Static(3)."
    )

    for give in (made, lambda n: replace(made(Static(1)), n=n)):
        with pytest.raises(StaticFieldError) as caught:
            give(3)
        assert str(caught.value) == message
    assert (made(Static(3)).n.value, jax.tree.leaves(made(Static(3))), made(None).n) == (3, [], None)


def test_a_static_field_and_a_converter_take_plain_values() -> None:
    made = module(
        __annotations__={"n": Static[int], "m": Static[int], "u": Static[int] | int},
        n=static(),
        m=field(converter=Static),
    )

    assert (made(3, 4, 5).n, made(3, 4, 5).m, made(3, 4, 5).u) == (3, Static(4), 5)


# What a method returns, and what is never called


def generates(self: Any) -> Iterator[int]:
    self.x = 1.0
    yield 1


@both_ways
@pytest.mark.parametrize(
    ("method", "cure"),
    [
        ("__init__", "Assign to the fields of self; treewright.replace outside of it gives a changed copy."),
        ("__post_init__", "Assign to the fields of self, which is not frozen yet."),
        ("__check_init__", "Raise an error for an instance that is not to be."),
    ],
)
@pytest.mark.parametrize(
    ("function", "kind"), [(lambda self: True, "bool"), (lambda self: self, "Net"), (generates, "generator")]
)
def test_what_a_method_returns_is_not_lost_in_silence(
    make: Any, method: str, cure: str, function: Any, kind: str
) -> None:
    made = make(__annotations__={"x": Any}, **{method: function})

    with pytest.raises(TypeError) as caught:
        made(*() if method == "__init__" else (1.0,))
    assert str(caught.value) == (
        f"Net.{method}() should return None, not {kind!r}: what it returns would be lost. {cure}"
    )


def test_where_an_init_subclass_does_not_call_super_the_first_instance_says_so() -> None:
    seen: list[str] = []

    class Base(Module):
        x: Any

        def __init_subclass__(cls, *, named: str) -> None:
            """Registers."""
            seen.append(named)

    class Good(Module):
        x: Any

        def __init_subclass__(cls, **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            seen.append(cls.__name__)

    net: Any = type("Net", (Base,), {"__annotations__": {"y": Any}}, named="net")
    with pytest.raises(NodeDefinitionError, match=r"Let each __init_subclass__ of its bases call super\(\)"):
        net(1.0)
    made: Any = type("Sub", (Good,), {"__annotations__": {"y": Any}}, kw_only=True)
    assert jax.tree.leaves(made(1.0, y=2.0)) == [1.0, 2.0]
    assert seen == ["net", "Sub"]
