"""Rules of fields: order, defaults, names, and kinds that are inherited."""

import abc
import dataclasses
from typing import Any

import jax
import pytest

from treewright import Module, buffer, field, pytree_dataclass, replace, static
from treewright.errors import NodeDefinitionError, NodeInitError


@pytest.mark.parametrize("name", ["_node", "tree_flatten", "tree_unflatten", "__hash__"])
def test_a_field_with_a_name_that_every_node_has_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad can't have a field {name}: every node uses this name itself"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


@pytest.mark.parametrize("name", ["class", "a b", "1st"])
def test_a_field_that_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad has a field '{name}', which is not an identifier"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


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
