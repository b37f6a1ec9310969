"""Rules of fields: order, defaults, names, and kinds that are inherited."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, buffer, field, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError, NodeInitError, StaticFieldError


def test_fields_come_in_the_order_of_dataclasses() -> None:
    @pytree_dataclass
    class A:
        x: Any = 1
        y: Any = 2

    @pytree_dataclass
    class B(A):
        z: Any = 3
        x: Any = 10  # a new default, in the old place

    assert [f.name for f in dataclasses.fields(B)] == ["x", "y", "z"]
    assert jax.tree.leaves(B()) == [10, 2, 3]
    assert jax.tree.leaves(A()) == [1, 2]


def test_class_variables_are_no_fields() -> None:
    @pytree_dataclass
    class Counted:
        total: ClassVar[int] = 7
        w: Any

    Counted.total += 1
    assert Counted.total == 8
    assert jax.tree.leaves(Counted(1.0)) == [1.0]


def test_an_initvar_reaches_post_init_and_is_no_field() -> None:
    @pytree_dataclass
    class Scaled:
        w: Any
        factor: dataclasses.InitVar[float]
        scaled: Any = field(init=False)

        def __post_init__(self, factor: float) -> None:
            object.__setattr__(self, "scaled", self.w * factor)

    assert jax.tree.leaves(Scaled(2.0, 3.0)) == [2.0, 6.0]


def test_a_default_factory_makes_a_new_value_for_each_instance() -> None:
    @pytree_dataclass
    class Bag:
        items: list[Any] = field(default_factory=list)

    assert Bag().items is not Bag().items


@pytest.mark.parametrize("default", [[], {}, set()], ids=["list", "dict", "set"])
def test_a_mutable_default_is_refused(default: Any) -> None:
    with pytest.raises(ValueError, match=r"mutable default .* for field x is not allowed: use default_factory"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {"x": Any}, "x": default}))


@pytest.mark.parametrize("default", [np.zeros(2), field(default=np.zeros(2))], ids=["plain", "field"])
def test_an_array_as_default_is_refused_with_the_cure(default: Any) -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.w has an array as default.*field\(default_factory=lambda: "):
        pytree_dataclass(type("Bad", (), {"__annotations__": {"w": Any}, "w": default}))


def test_a_jax_array_as_default_is_refused_with_the_cure() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.w has an array as default.*default_factory"):

        class Bad(Module):
            w: Any = jnp.zeros(2)


def test_a_default_follows_no_default_by_the_rules_of_dataclasses() -> None:
    with pytest.raises(NodeDefinitionError, match="Bad: non-default argument 'y' follows default argument 'x'"):

        class Bad(Module):
            x: Any = 1
            y: Any  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize(
    "name", ["self", "cls", "static", "children", "type", "statics", "table", "store", "default_x"]
)
def test_a_field_may_have_a_name_that_the_library_uses_inside(name: str) -> None:
    made = pytree_dataclass(
        type(
            "Odd",
            (),
            {"__annotations__": {name: Any, "x": Any, "mode": str}, "x": 1.0, "mode": static(default="m")},
        )
    )
    node: Any = made(5.0)
    assert getattr(node, name) == 5.0
    assert jax.tree.leaves(node) == [5.0, 1.0]
    assert made(**{name: 6.0, "mode": "n"}).mode == "n"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["_node", "tree_flatten", "tree_unflatten", "__hash__"])
def test_a_field_with_a_name_that_every_node_has_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad can't have a field {name}: every node uses this name itself"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


def test_a_module_field_named_replace_is_refused() -> None:
    with pytest.raises(NodeDefinitionError, match="can't have a field replace"):

        class Bad(Module):
            replace: Any


@pytest.mark.parametrize("name", ["class", "a b", "1st"])
def test_a_field_that_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad has a field '{name}', which is not an identifier"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


def test_a_field_and_a_method_of_one_name_are_refused() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.norm is a field and a method of one name"):

        @pytree_dataclass
        class Bad:
            norm: Any  # pyright: ignore[reportRedeclaration]

            def norm(self) -> int:  # type: ignore[no-redef]
                return 1


def test_hiding_an_inherited_field_by_a_method_or_a_value_is_refused() -> None:
    class Base(Module):
        w: Any = 1.0

    with pytest.raises(NodeDefinitionError, match=r"Bad\.w would hide the field w of .*Base"):

        class Bad(Base):
            @property  # type: ignore[misc]
            def w(self) -> int:
                return 1

    with pytest.raises(NodeDefinitionError, match=r"repeat the annotation:\n  w: Any = 2\.0\nElse rename it"):

        class Worse(Base):
            w = 2.0


class Shape(Module):
    """Has fields that no constructor takes."""

    scale: Any = 1.0
    area: Any = field(init=False)
    names: Any = static(init=False)


def overriding(value: Any, *, own_init: bool) -> tuple[Any, Any]:
    """A subclass with this value in place of two fields, and a subclass of that."""

    class Known(Shape):
        area = value
        names = value

        if own_init:

            def __init__(self, scale: Any = 2.0) -> None:
                self.scale = scale

    class Deeper(Known):
        depth: Any = 3.0

    return Known, Deeper


@pytest.mark.parametrize("own_init", [False, True])
@pytest.mark.parametrize("value", [property(lambda self: self.scale * 4), 8.0, ("a", "b")])
def test_a_field_that_no_constructor_takes_may_be_overridden(value: Any, *, own_init: bool) -> None:
    known, deeper = overriding(value, own_init=own_init)
    for cls, names in [(known, ["scale"]), (deeper, ["scale", "depth"])]:
        node = cls(2.0)
        assert [field.name for field in dataclasses.fields(node)] == names
        assert jax.tree.leaves(node)[:1] == [2.0]
        assert node.area == node.names == (8.0 if isinstance(value, property) else value)
        assert jax.jit(lambda node: node.scale * 2)(node) == 4.0
        assert replace(node, scale=3.0).scale == 3.0


def test_an_overridden_field_that_is_annotated_again_is_a_field_again() -> None:
    known, _ = overriding(8.0, own_init=False)

    class Again(known):  # type: ignore[valid-type, misc]
        area: Any = 9.0

    assert jax.tree.leaves(Again()) == [1.0, 9.0]


def test_a_class_that_writes_its_own_init_may_override_any_field() -> None:
    class Base(Module):
        width: Any
        mode: str = static()

    class Fixed(Base):
        mode = "fixed"

        @property  # type: ignore[misc]
        def width(self) -> int:
            return 3

        def __init__(self) -> None:
            pass

    node = Fixed()
    assert (node.width, node.mode, jax.tree.leaves(node)) == (3, "fixed", [])

    class Assigns(Base):
        mode = "fixed"

        def __init__(self) -> None:
            self.width = 1
            self.mode = "other"

    with pytest.raises(NodeInitError, match="assigned to mode, which it does not declare"):
        Assigns()


def test_a_mixin_takes_no_field_away_from_a_class_that_inherits_it_elsewhere() -> None:
    class Named:
        area: Any = "a mixin's"

    class Both(Named, Shape):
        def __post_init__(self) -> None:
            self.area, self.names = 5.0, ()

    assert Both().area == 5.0


def test_a_field_may_stand_in_for_an_inherited_property_or_method() -> None:
    class Base(Module, abc.ABC):
        @property
        @abc.abstractmethod
        def width(self) -> int: ...

        def depth(self) -> int:
            return 1

    class Net(Base):
        width: int = static()  # pyright: ignore[reportIncompatibleMethodOverride]
        depth: Any

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    net = Net(3, 4.0)
    assert (net.width, net.depth, jax.tree.leaves(net)) == (3, 4.0, [4.0])
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'width' and 'depth'"):
        Net()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Kinds are inherited


def test_the_kind_of_a_field_is_inherited() -> None:
    @pytree_dataclass
    class Base:
        mode: str = static(default="a")

    @pytree_dataclass
    class Sub(Base):
        w: Any = 1.0

    assert jax.tree.leaves(Sub()) == [1.0]


@pytest.mark.parametrize(("specifier", "kind"), [(static, "static"), (buffer, "buffer")])
def test_annotating_an_inherited_static_or_buffer_anew_without_its_specifier_is_refused(
    specifier: Any, kind: str
) -> None:
    class Base(Module):
        mode: str = specifier(default="a")

    with pytest.raises(
        NodeDefinitionError, match=rf"Bad\.mode is annotated anew without {kind}\(\)(?s:.*){kind}\(default='b'\)"
    ):

        class Bad(Base):
            mode: str = "b"

    with pytest.raises(NodeDefinitionError, match=rf"Bare\.mode is annotated anew without {kind}\(\)"):

        class Bare(Base):
            mode: str  # pyright: ignore[reportGeneralTypeIssues]


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


@pytest.mark.parametrize(
    "annotation",
    [jax.Array, np.ndarray, list, dict[str, int], set[int], bytearray, tuple[list[int], ...], jax.Array | None],
    ids=str,
)
def test_a_static_annotated_as_what_it_cannot_be_is_refused_when_the_class_is_made(annotation: Any) -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.n is static, but its annotation holds [\w.]+, which has no"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {"n": annotation}, "n": static()}))


def test_a_string_annotation_of_a_static_is_resolved_where_it_can_be() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.n is static, but its annotation holds jax"):

        @pytree_dataclass
        class Bad:
            n: "jax.Array" = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    @pytree_dataclass
    class Later:
        n: "NotYetDefined" = static()  # type: ignore[name-defined]  # pyright: ignore[reportUndefinedVariable]  # noqa: F821

    with pytest.raises(StaticFieldError, match=r"Later\.n is static but holds a list"):
        Later([])


def test_a_module_field_and_method_of_one_name_are_refused() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.norm is a field and a method of one name"):

        class Bad(Module):
            norm: Any  # pyright: ignore[reportRedeclaration]

            def norm(self) -> int:  # type: ignore[no-redef]
                return 1


def test_a_new_default_for_an_inherited_static_is_shown_with_its_specifier() -> None:
    class Base(Module):
        width: int = static(default=3)

    with pytest.raises(NodeDefinitionError, match=r"width: int = static\(default=4\)\nElse"):

        class Bad(Base):
            width = 4
