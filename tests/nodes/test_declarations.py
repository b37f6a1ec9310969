"""Declarations: options, specifiers, names, overridden fields, inherited kinds, and `doc=`."""

import abc
import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import operator
import pathlib
import pydoc
import re
import traceback
import types
import typing  # noqa: F401  named in strings
from collections.abc import Callable
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import pytest
import typing_extensions  # noqa: F401  named in a string

from treewright import Module, buffer, field, pytree_dataclass, static
from treewright._core import FieldInfo, fields
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning


def test_fields_are_children_and_static_fields_are_aux_data() -> None:
    @pytree_dataclass
    class Layer:
        kernel: Any
        width: int = static()
        bias: Any = None
        activation: str = static(default="relu")

    children, aux = Layer(1.0, 3, 2.0).tree_flatten()  # type: ignore[attr-defined]
    assert children == (1.0, 2.0)
    assert aux.values == (3, "relu")
    assert repr(aux) == "width=3, activation='relu'"


def new_class(way: str, body: dict[str, Any], **options: Any) -> Any:
    """A class with the field `x` and the static `n`, a node of either kind or a dataclass."""
    body = {"__annotations__": {"x": Any, "n": Any}, "n": static(default=0), **body}
    if way == "Module":
        return types.new_class("Example", (Module,), options, lambda space: space.update(body))
    decorate = pytree_dataclass if way == "decorated" else functools.partial(dataclasses.dataclass, frozen=True)
    return decorate(**options)(type("Example", (), body))


WAYS = ["decorated", "Module"]


@pytest.mark.parametrize("way", WAYS)
def test_order_compares_as_a_dataclass_with_order_does(way: str) -> None:
    ours, theirs = new_class(way, {}, order=True), new_class("dataclasses", {}, order=True)
    fields = [(1, 2), (1, 3), (2, 1), (jnp.ones(()), 1), (True, 2)]
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        for left, right in itertools.product(fields, repeat=2):
            assert bool(compare(ours(*left), ours(*right))) is bool(compare(theirs(*left), theirs(*right)))
        with pytest.raises(TypeError, match="not supported between instances"):
            compare(ours(1), new_class(way, {}, order=True)(1))


@pytest.mark.parametrize("way", WAYS)
def test_order_leaves_equality_and_hash_unchanged(way: str) -> None:
    cls = new_class(way, {}, order=True)
    assert cls(1) != cls(1.0)
    assert cls(jnp.ones(3)) == cls(jnp.ones(3))
    assert hash(cls(1)) == hash(new_class(way, {})(1))
    with pytest.raises(ValueError, match="ambiguous"):
        _ = cls(jnp.ones(3)) < cls(jnp.zeros(3))


@pytest.mark.parametrize("way", WAYS)
def test_unsafe_hash_without_eq_hashes_by_value(way: str) -> None:
    cls = new_class(way, {}, eq=False, unsafe_hash=True)
    assert cls(1) != cls(1)
    assert hash(cls(1)) == hash(cls(1)) == hash(new_class(way, {})(1))
    own = new_class(way, {"__eq__": lambda self, other: self.x == other.x}, unsafe_hash=True)
    assert own(1, 2) == own(1, 3)
    assert hash(own(1)) == hash(cls(1))


# Field specifiers


@pytest.mark.parametrize("specifier", [field, static, buffer])
def test_specifiers_accept_the_arguments_of_dataclasses_field(specifier: Callable[..., Any]) -> None:
    ours = inspect.signature(specifier).parameters
    theirs = inspect.signature(dataclasses.field).parameters

    assert {name: parameter.kind for name, parameter in ours.items() if name in theirs} == {
        name: parameter.kind for name, parameter in theirs.items()
    }


def test_the_decorator_accepts_the_arguments_of_dataclass() -> None:
    expected = inspect.signature(dataclasses.dataclass).parameters
    ours = inspect.signature(pytree_dataclass).parameters
    assert set(ours) == set(expected)
    defaults = {name: parameter.default for name, parameter in ours.items() if name not in {"cls", "frozen"}}
    assert defaults == {name: expected[name].default for name in defaults}


@pytest.mark.parametrize("option", ["slots", "weakref_slot"])
def test_a_node_has_no_slots(option: str) -> None:
    with pytest.raises(NodeDefinitionError, match=rf"Slotted: {option}=True is not supported, because .*Remove it"):
        pytree_dataclass(**{option: True})(type("Slotted", (), {}))


def test_metadata_static_declares_a_static() -> None:
    class Layer(Module):
        w: Any
        name: str = dataclasses.field(default="a", metadata={"static": True})
        kind: str = field(default="b", metadata={"static": False})
        ours: str = static(default="c", metadata={"unit": "m"})

    assert jax.tree.leaves(Layer(1.0)) == [1.0, "b"]
    metadata = dataclasses.fields(Layer)[3].metadata
    assert (metadata["static"], metadata["unit"]) == (True, "m")


def test_a_traceback_through_a_generated_init_shows_its_line() -> None:
    def reject(value: Any) -> Any:
        raise ValueError(value)

    @pytree_dataclass
    class Checked:
        w: Any = field(converter=reject)

    with pytest.raises(ValueError, match="3") as caught:
        Checked(3)
    lines = traceback.format_exception(caught.value)
    assert any("w = __own__.cls.__node_fields__['w'].call('converter', __own__.cls, w)" in line for line in lines)


# Names


@pytest.mark.parametrize("name", ["_node", "tree_flatten", "tree_unflatten", "__hash__"])
def test_reserved_field_names_are_rejected(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad can't have a field named {name}: every node uses this name"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


# Overridden fields


class Shape(Module):
    """Has a field that is not an argument of the constructor."""

    scale: Any = 1.0
    area: Any = field(init=False)
    mode: str = static(default="a")

    def __post_init__(self) -> None:
        self.area = self.scale * 2


METHOD = r"is both a field and a method\. Rename one of them, or declare it in the base class as an abstract property"


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        (
            "scale",
            8.0,
            r"For a new default, repeat the annotation:\n  scale: Any = 8\.0\nFor a constant, write scale: ",
        ),
        ("mode", "b", r"For a new default, repeat the annotation:\n  mode: str = static\(default='b'\)\nFor a const"),
        (
            "area",
            property(lambda self: self.scale * 4),
            "",
        ),
        ("scale", lambda self: 1, ""),
    ],
)
def test_a_value_that_would_hide_a_field_is_rejected(name: str, value: Any, fix: str) -> None:
    for own_init in ({}, {"__init__": lambda self: None}):
        problem = rf"would hide an inherited field\. {fix}" if fix else METHOD
        with pytest.raises(NodeDefinitionError, match=rf"Known\.{name} {problem}"):
            type("Known", (Shape,), {name: value, **own_init})


def test_a_class_constant_replaces_an_inherited_field() -> None:
    class Known(Shape):
        mode: ClassVar[str] = "b"  # type: ignore[misc]
        scale: ClassVar[Any] = 3.0  # type: ignore[misc]

    class Deeper(Known):
        depth: Any = 4.0

    for node, leaves in ((Known(), [6.0]), (Deeper(), [6.0, 4.0])):
        assert (node.mode, node.scale, jax.tree.leaves(node)) == ("b", 3.0, leaves)


def test_a_field_may_override_an_inherited_property_or_method() -> None:
    class Base(Module, abc.ABC):
        @property
        @abc.abstractmethod
        def width(self) -> int: ...

        def depth(self) -> int:
            return 1

    class Net(Base):
        width: int = static()
        depth: Any

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]
    net = Net(3, 4.0)
    assert (net.width, net.depth, jax.tree.leaves(net)) == (3, 4.0, [4.0])
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'width' and 'depth'"):
        Net()  # type: ignore[call-arg]


# Inherited kinds


class ClassVarUnreadable(type):
    def __repr__(cls) -> str:
        raise RuntimeError("no text")


class ClassVarSpec(metaclass=ClassVarUnreadable): ...


CV = ClassVar
CLASS_VARIABLES = (CV, CV[int], "CV", " CV[Unknown]", "ClassVar[int]", "typing.ClassVar[int]", "typing . ClassVar")
NOT_CLASS_VARIABLES = (
    *(ClassVarSpec, "ClassVarSpec", Literal["ClassVar"], "Literal['ClassVar']", "'ClassVar[int]'", "Unknown"),
    *("typing_extensions.ClassVar[int]", "types.ClassVar", "", [int]),
)


@pytest.mark.parametrize("annotation", [*CLASS_VARIABLES, *NOT_CLASS_VARIABLES])
def test_a_class_variable_is_what_dataclasses_takes_for_one(annotation: Any) -> None:
    def made(value: Any, *bases: Any) -> Any:
        body = {"mode": value, "__annotations__": {"mode": annotation}, "__module__": __name__}
        return types.new_class("Other", bases, {}, lambda namespace: namespace.update(body))

    class Net(Module):
        mode: str = static(default="a")

    is_class_variable = annotation in CLASS_VARIABLES
    assert is_class_variable is not bool(dataclasses.fields(dataclasses.dataclass(made("b"))))
    warning = NodeDefinitionWarning, r"^Other\.mode is not a field of User, because Other is neither a node class nor"
    both = NodeDefinitionError, r"Other\.mode is both a field and a method\. Rename one of them\.$"
    lost = NodeDefinitionError, r"Other\.mode redeclares a static\(\) field without static\(\)"
    with contextlib.nullcontext() if is_class_variable else pytest.raises(lost[0], match=lost[1]):
        made("b", Net)
    with contextlib.nullcontext() if is_class_variable else pytest.raises(both[0], match=both[1]):
        made(property(lambda self: 1), Module)
    # `dataclasses` would make it a field, but nobody means one by it.
    is_meant = is_class_variable or annotation == "typing_extensions.ClassVar[int]"
    with contextlib.nullcontext() if is_meant else pytest.warns(warning[0], match=warning[1]):
        type("User", (made("b"), Module), {})


def test_of_two_specifiers_without_parentheses_the_first_is_named() -> None:
    names = [f"field_{number}" for number in range(20)]
    body = {**dict.fromkeys(names, static), "__annotations__": dict.fromkeys(names, int)}

    with pytest.raises(NodeDefinitionError, match=r"Net\.field_0 has static as default"):
        types.new_class("Net", (Module,), {}, lambda namespace: namespace.update(body))


@pytest.mark.parametrize(("specifier", "kind"), [(static, "static"), (buffer, "buffer")])
def test_redeclaring_a_static_or_buffer_without_its_specifier_is_rejected(specifier: Any, kind: str) -> None:
    class Base(Module):
        mode: str = specifier(default="a")

    with pytest.raises(
        NodeDefinitionError,
        match=rf"Bad\.mode redeclares a {kind}\(\) field without {kind}\(\)(?s:.*){kind}\(default='b'\)",
    ):

        class Bad(Base):
            mode: str = "b"

    with pytest.raises(NodeDefinitionError, match=rf"Bare\.mode redeclares a {kind}\(\) field without {kind}\(\)"):

        class Bare(Base):
            mode: str


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"converter": float}, "converter=..."),
        ({"sharding": ("embed",)}, "sharding=('embed',)"),
        ({"stack": "layers"}, "stack='layers'"),
        ({"compare": False}, "compare=False"),
        ({"repr": False, "converter": float}, "repr=False, converter=..."),
    ],
)
def test_an_option_of_the_base_is_named_where_a_subclass_would_lose_it(options: dict[str, Any], shown: str) -> None:
    base: Any = type("Base", (Module,), {"__annotations__": {"lr": Any}, "lr": field(default=0.1, **options)})
    loss = f"lose its {' and '.join(options)}" if "sharding" not in options else "store it whole on every device"

    with pytest.raises(NodeDefinitionError) as caught:
        type("Sub", (base,), {"__annotations__": {"lr": Any}, "lr": 0.2})
    assert str(caught.value) == (
        f"Sub.lr redeclares a field() field without field(), which would {loss}.\n"
        f"  Write lr: Any = field(default=0.2, {shown}), or field(default=0.2) for a plain child."
    )
    with pytest.raises(NodeDefinitionError, match=re.escape(f"lr: Any = field(default=0.2, {shown})")):
        type("Sub", (base,), {"lr": 0.2})


def test_metadata_of_other_tools_is_not_kept_as_in_dataclasses() -> None:
    class Base(Module):
        x: float = field(default=1.0, metadata={"unit": "m"})

    class Sub(Base):
        x: float = 3.0

    assert [dict(cls.__dataclass_fields__["x"].metadata).get("unit") for cls in (Base, Sub)] == ["m", None]
    assert Sub().x == 3.0


@pytest.mark.parametrize("option", ["identity", "local"])
def test_a_static_keeps_its_options_in_the_line_to_write(option: str) -> None:
    body = {"__annotations__": {"log": Any}, "log": cast("Any", static)(default=None, **{option: True})}
    base: Any = type("Base", (Module,), body)

    with pytest.raises(NodeDefinitionError, match=rf"Write log: Any = static\(default=3, {option}=True\), or field"):
        type("Sub", (base,), {"__annotations__": {"log": Any}, "log": 3})


@pytest.mark.parametrize(
    ("mark", "instead"),
    [({"static": True}, "static()"), ({"pytree_node": False}, "static()"), ({"static": False}, "field()")],
)
def test_the_mark_of_another_library_names_the_specifier(mark: dict[str, Any], instead: str) -> None:
    (name,) = mark
    with pytest.raises(TypeError, match=rf"^field\(\) has no option {name}\. Write {re.escape(instead)} in place"):
        field(**mark)


def test_a_specifier_changes_the_kind_by_name() -> None:
    class Base(Module):
        mode: Any = static(default="a")
        w: Any = 1.0

    class Child(Base):
        mode: Any = field(default=2.0)

    class Frozen(Base):
        w: Any = static(default=3.0)

    assert jax.tree.leaves(Child()) == [2.0, 1.0]
    assert jax.tree.leaves(Frozen()) == []


# doc=


def test_help_shows_the_docs_of_fields_also_where_a_subclass_declares_them_again() -> None:
    class Layer(Module):
        """A layer.

        Of a net.
        """

        kernel: float = field(doc="f32[inputs, outputs].")
        width: int = static(default=3, doc="How many outputs.")
        mean: float = buffer(default=0.0, doc="Of the last batches.")

    class Wide(Layer):
        kernel: Any
        width: int = static(default=30, doc="How many.")
        mean: float = buffer(default=1.0)

    for cls, width in ((Layer, "How many outputs."), (Wide, "How many.")):
        shown = pydoc.plain(pydoc.render_doc(cls))
        for name, text in (("kernel", "f32[inputs, outputs]."), ("width", width), ("mean", "Of the last batches.")):
            assert f"\n |  {name}\n |      {text}" in shown
    assert inspect.getdoc(Layer) == "A layer.\n\nOf a net."


# The table of options

STUB = ast.parse(pathlib.Path(fields.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
OVERLOADS = [
    (node.name, {argument.arg for argument in node.args.kwonlyargs})
    for node in ast.walk(STUB)
    if isinstance(node, ast.FunctionDef) and node.name in {"field", "static", "buffer"}
]


@pytest.mark.parametrize("specifier", [field, static, buffer])
def test_signatures_and_stubs_have_the_options_of_the_table(specifier: Any) -> None:
    options = {name: each.default for name, each in inspect.signature(specifier).parameters.items()}
    overloads = [names for name, names in OVERLOADS if name == specifier.__name__]

    assert options.items() <= {name: option.default for name, option in fields.OPTIONS.items()}.items()
    assert set[str]().union(*overloads) == options.keys()
    # An overload without a default, or without `identity`, has a type of its own.
    assert all(options.keys() - names <= {"default", "default_factory", "identity"} for names in overloads)


def test_the_description_of_a_field_has_the_options_of_the_table() -> None:
    assert fields.OPTIONS.keys() - {"metadata"} <= {each.name for each in dataclasses.fields(FieldInfo)}
