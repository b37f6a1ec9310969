"""Tools that read or change a class: its properties, functions, annotations and sources."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from treewright import Module, field, pytree_dataclass, static
from treewright.errors import FieldOnClassError


def classes() -> list[Any]:
    class Net(Module):
        x: float
        kind: str = static(default="a")

        def scaled(self, y: Any) -> Any:
            return self.x * y

    @pytree_dataclass
    class Data:
        x: float
        kind: str = static(default="a")

        def scaled(self, y: Any) -> Any:
            return self.x * y

    return [Net, Data]


def rebuild_as_beartype(cls: Any) -> None:
    """Replace each property by a builtin one, and each function by a wrapper without `functools.wraps`."""
    for name, value in dict(vars(cls)).items():
        if isinstance(value, types.FunctionType):

            def wrapper(*args: Any, _function: Any = value, **kwargs: Any) -> Any:
                return _function(*args, **kwargs)

            setattr(cls, name, wrapper)
        elif isinstance(value, property):
            assert (value.__class__.__module__, value.__class__.__name__) == ("builtins", "property")
            setattr(cls, name, property(value.fget, value.fset, value.fdel, value.__doc__))


def rebuild_as_typeguard(cls: Any) -> None:
    """Call the class of each property to replace it."""
    for name, value in dict(vars(cls)).items():
        if isinstance(value, property):
            new = value.__class__(fget=value.fget, fset=value.fset, fdel=value.fdel, doc=value.__doc__)
            setattr(cls, name, new)


@pytest.mark.parametrize("rebuild", [rebuild_as_beartype, rebuild_as_typeguard])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("has_nodes", [False, True])
def test_a_class_works_after_a_tool_replaced_its_attributes(rebuild: Any, number: int, has_nodes: bool) -> None:
    cls = classes()[number]
    old = cls(1.0) if has_nodes else None
    rebuild(cls)

    node = cls(2.0, kind="b")
    assert old is None or (old.x, old.scaled(3.0), jax.tree.leaves(old)) == (1.0, 3.0, [1.0])
    sub = type("Sub", (cls,), {"__annotations__": {"kind": str}, "kind": static(default="c")})
    sub = sub if number == 0 else pytree_dataclass(sub)

    assert (node.x, node.kind, node.scaled(3.0), jax.tree.leaves(node)) == (2.0, "b", 6.0, [2.0])
    assert sub(1.0).kind == "c"
    with pytest.raises(AttributeError):
        node.x = 3.0
    if not has_nodes:  # The first node of a class repairs it.
        with pytest.raises(FieldOnClassError):
            _ = cls.x == 2.0
    if not (number or has_nodes):
        assert jax.tree.leaves(node.scaled) == [2.0]


def test_a_method_can_be_patched_in_place() -> None:
    cls, _ = classes()
    node, method = cls(2.0), vars(cls)["scaled"]

    assert inspect.isfunction(method)
    assert method(node, 3.0) == 6.0
    method.__code__ = (lambda self, y: self.x + y).__code__
    method.__dict__ = {"mark": 1}
    assert (node.scaled(3.0), node.scaled.mark, jax.tree.leaves(node.scaled)) == (5.0, 1, [2.0])
    with pytest.raises(NotImplementedError, match="free vars"):  # Autoreload then runs the whole module again.
        method.__code__ = (lambda self: (lambda: self, node)).__code__.replace(co_freevars=("node",))


def test_a_getter_is_annotated_with_the_type_of_its_field() -> None:
    for cls in classes():
        assert inspect.signature(vars(cls)["kind"].fget).return_annotation == "str"


def test_a_parameter_of_a_field_with_a_converter_has_no_annotation() -> None:
    def number(text: str) -> int:
        return int(text)

    @pytree_dataclass
    class Data:
        a: int = field(converter=number)
        b: Any = static(converter=tuple)
        c: jax.Array = field(converter=jnp.asarray)
        d: float = 1.0

    assert inspect.get_annotations(Data.__init__) == {"d": "float", "return": None}


def test_tracebacks_of_classes_of_one_name_show_their_own_source() -> None:
    def fail(value: Any) -> Any:
        raise ValueError(value)

    def make(name: str) -> Any:
        return pytree_dataclass(type("Same", (), {"__annotations__": {name: Any}, name: field(converter=fail)}))

    first, _ = make("alpha"), make("beta")
    with pytest.raises(ValueError, match="1") as caught:
        first(1)

    lines = "".join(traceback.format_exception(caught.value))
    assert "alpha" in lines
    assert "beta" not in lines
    assert {name for name in linecache.cache if "Same.__init__ " in name}


@pytest.mark.parametrize("number", [0, 1])
def test_methods_of_nodes_have_public_names_and_docstrings_without_markup(number: int) -> None:
    cls = classes()[number]

    functions = {name for name, value in vars(Module).items() if callable(getattr(value, "__func__", value))}
    for name in functions - {"__init_subclass__"}:
        method = getattr(cls, name)
        assert method.__name__ == ("replace" if name == "__replace__" else name)
        assert not re.search(r"[`*]|:\n", inspect.getdoc(method) or "`"), name


def test_classes_of_one_name_share_the_source_of_an_equal_init() -> None:
    def make(name: str) -> Any:
        return pytree_dataclass(type("Shared", (), {"__annotations__": {name: Any}}))

    for _ in range(5):
        make("alpha")
        make("beta")
    assert len([name for name in linecache.cache if "rebuilt_classes.Shared.__init__" in name]) == 2
