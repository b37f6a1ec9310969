"""`@pytree_dataclass` and `Module`: what a declaration gives, and what it refuses."""

import abc
import dataclasses
import types
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treewright
from treewright import Module, buffer, field, pytree_dataclass, static
from treewright.errors import NodeDefinitionError, StaticFieldError

T = TypeVar("T")


def make_twice() -> list[type]:
    """Two classes of one name, as from running a notebook cell twice."""
    made: list[type] = []
    for _ in range(2):

        @pytree_dataclass
        class Cell:
            x: Any
            name: str = static(default="cell")

        made.append(Cell)
    return made


# What a declaration gives


def test_the_decorated_class_is_the_same_object() -> None:
    class Plain:
        x: Any

    assert pytree_dataclass(Plain) is Plain
    assert Plain.__mro__ == (Plain, object)


def test_the_decorator_is_used_bare_and_called() -> None:
    @pytree_dataclass
    class Bare:
        x: Any

    @pytree_dataclass()
    class Called:
        x: Any

    assert jax.tree.leaves([Bare(1), Called(2)]) == [1, 2]


def test_fields_are_children_and_static_fields_are_aux_data() -> None:
    @pytree_dataclass
    class Layer:
        kernel: Any
        width: int = static()
        bias: Any = None
        activation: str = static(default="relu")

    children, aux = Layer(1.0, 3, 2.0).tree_flatten()
    assert children == (1.0, 2.0)
    assert aux.values == (3, "relu")
    assert repr(aux) == "width=3, activation='relu'"


def test_every_module_subclass_is_a_node_by_itself() -> None:
    class Net(Module):
        w: Any
        depth: int = static(default=2)

    class Deeper(Net):
        b: Any = 0.0

    assert jax.tree.leaves(Deeper(1.0, 4, 2.0)) == [1.0, 2.0]
    assert jax.tree.map(lambda x: x + 1, Deeper(1.0)) == Deeper(2.0, 2, 1.0)


def test_module_options_stand_in_the_class_statement() -> None:
    class Net(Module, kw_only=True):
        w: Any
        b: Any = 0.0

    assert Net(w=1.0) == Net(b=0.0, w=1.0)
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        Net(1.0)  # type: ignore[call-arg, misc]  # pyright: ignore[reportCallIssue]


def test_options_of_the_standard_library_are_honoured() -> None:
    @pytree_dataclass(init=False, repr=False, eq=False, match_args=False)
    class Bare:
        x: Any

        def __init__(self) -> None:
            object.__setattr__(self, "x", 1.0)

    bare = Bare()
    assert bare == bare
    assert bare != Bare()
    assert "object at 0x" in repr(bare)
    assert "__match_args__" not in vars(Bare)


def test_a_module_without_eq_compares_and_hashes_by_identity() -> None:
    class Net(Module, eq=False, repr=False):
        w: Any

    net = Net(jnp.ones(3))
    assert net == net
    assert net != Net(net.w)
    assert hash(net) == hash(net)
    assert "object at 0x" in repr(net)


@pytest.mark.parametrize("option", ["order", "unsafe_hash", "slots", "weakref_slot"])
def test_an_option_that_no_node_can_have_is_refused_by_name(option: str) -> None:
    class Plain:
        x: Any

    with pytest.raises(NodeDefinitionError, match=rf"pytree_dataclass\({option}=True\) for .*Plain: \w+"):
        pytree_dataclass(**{option: True})(Plain)
    with pytest.raises(NodeDefinitionError, match=rf"Module\({option}=True\) for .*Net: \w+"):
        types.new_class("Net", (Module,), {option: True})
    assert jax.tree.leaves(Plain()) != []  # a leaf: nothing was registered


def test_frozen_false_is_refused_with_the_cure() -> None:
    with pytest.raises(NodeDefinitionError, match=r"frozen=False\) for .*treewright\.replace"):
        pytree_dataclass(frozen=False)(type("Plain", (), {}))

    @pytree_dataclass(frozen=True, order=False, slots=False)
    class Fine:
        x: Any

    assert jax.tree.leaves(Fine(1)) == [1]


def test_what_is_no_class_is_refused() -> None:
    with pytest.raises(NodeDefinitionError, match="decorates a class, got 3"):
        pytree_dataclass(3)  # type: ignore[type-var]  # pyright: ignore


# Field specifiers


def test_specifiers_take_what_dataclasses_field_takes() -> None:
    import inspect

    wanted = set(inspect.signature(dataclasses.field).parameters) - {"doc"}
    for specifier in (field, static, buffer):
        assert set(inspect.signature(specifier).parameters) - {"converter"} == wanted


def test_the_decorator_takes_what_dataclass_takes() -> None:
    import inspect

    wanted = inspect.signature(dataclasses.dataclass).parameters
    ours = inspect.signature(pytree_dataclass).parameters
    assert set(ours) == set(wanted)
    defaults = {name: parameter.default for name, parameter in ours.items() if name not in {"cls", "frozen"}}
    assert defaults == {name: wanted[name].default for name in defaults}


def test_plain_defaults_and_dataclasses_field_keep_working() -> None:
    @pytree_dataclass
    class Mixed:
        a: Any
        b: Any = 2.0
        c: Any = dataclasses.field(default=3.0)
        d: Any = dataclasses.field(default_factory=lambda: [4.0])
        e: Any = dataclasses.field(default=5.0, kw_only=True)

    assert jax.tree.leaves(Mixed(1.0)) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_metadata_static_is_honoured_as_in_jax() -> None:
    @pytree_dataclass
    class Layer:
        w: Any
        name: str = dataclasses.field(default="a", metadata={"static": True})
        kind: str = field(default="b", metadata={"static": False})

    assert Layer(1.0).tree_flatten()[0] == (1.0, "b")
    assert Layer(1.0).tree_flatten()[1].values == ("a",)


def test_a_static_tells_other_tools_so_in_its_metadata() -> None:
    @pytree_dataclass
    class Layer:
        name: str = static(default="a", metadata={"unit": "m"})

    (found,) = dataclasses.fields(Layer)  # type: ignore[arg-type]
    assert found.metadata["static"] is True
    assert found.metadata["unit"] == "m"


def test_a_buffer_is_a_child_with_its_own_kind() -> None:
    @pytree_dataclass
    class Norm:
        scale: Any
        mean: Any = buffer(default=0.0)

    assert jax.tree.leaves(Norm(1.0)) == [1.0, 0.0]
    assert [f.kind for f in Norm.__node_spec__.fields] == ["child", "buffer"]  # type: ignore[attr-defined]  # pyright: ignore


def test_a_converter_runs_on_given_values_and_defaults() -> None:
    @pytree_dataclass
    class Layer:
        w: Any = field(converter=jnp.asarray)
        sizes: Any = static(default_factory=list, converter=tuple)
        scale: Any = field(default=2, converter=float)

    layer = Layer([1.0, 2.0], sizes=[3, 4])
    assert isinstance(layer.w, jax.Array)
    assert layer.sizes == (3, 4)
    assert Layer(0.0).sizes == ()
    assert isinstance(layer.scale, float)


def test_a_converter_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="converter must be a function of one value, got 3"):
        field(converter=3)  # type: ignore[call-overload]  # pyright: ignore


def test_a_static_always_takes_part_in_the_comparison() -> None:
    with pytest.raises(TypeError, match=r'compare=\.\.\.\) is "value" or "content", got False'):
        static(compare=False)  # type: ignore[call-overload]  # pyright: ignore


def test_default_and_default_factory_together_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot specify both default and default_factory"):
        static(default=1, default_factory=int)  # type: ignore[call-overload]  # pyright: ignore


# Field rules


def test_fields_come_in_the_order_of_dataclasses() -> None:
    @pytree_dataclass
    class A:
        x: Any = 1
        y: Any = 2

    @pytree_dataclass
    class B(A):
        z: Any = 3
        x: Any = 10  # a new default, in the old place

    assert [f.name for f in dataclasses.fields(B)] == ["x", "y", "z"]  # type: ignore[arg-type]
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
            self.scaled = self.w * factor  # type: ignore[misc]  # pyright: ignore

    assert jax.tree.leaves(Scaled(2.0, 3.0)) == [2.0, 6.0]


def test_a_default_factory_makes_a_new_value_for_each_instance() -> None:
    @pytree_dataclass
    class Bag:
        items: list[Any] = field(default_factory=list)

    assert Bag().items is not Bag().items


@pytest.mark.parametrize("default", [[], {}, set()], ids=["list", "dict", "set"])
def test_a_mutable_default_is_refused(default: Any) -> None:
    with pytest.raises(ValueError, match="mutable default .* for field x is not allowed: use default_factory"):
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
            y: Any  # type: ignore[misc]  # pyright: ignore


@pytest.mark.parametrize("name", ["self", "cls", "static", "children", "type", "statics", "table", "store", "default_x"])
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
    assert made(**{name: 6.0, "mode": "n"}).mode == "n"


@pytest.mark.parametrize("name", ["_node", "tree_flatten", "tree_unflatten", "__hash__"])
def test_a_field_with_a_name_that_every_node_has_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad can't have a field {name}: every node uses this name itself"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


def test_a_module_field_named_replace_is_refused() -> None:
    with pytest.raises(NodeDefinitionError, match="can't have a field replace"):

        class Bad(Module):
            replace: Any  # type: ignore[assignment]  # pyright: ignore


@pytest.mark.parametrize("name", ["class", "a b", "1st"])
def test_a_field_that_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Bad has a field '{name}', which is no identifier"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {name: Any}}))


def test_a_field_and_a_method_of_one_name_are_refused() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.norm is a field and a method of one name"):

        @pytree_dataclass
        class Bad:
            norm: Any

            def norm(self) -> int:  # type: ignore[no-redef]  # pyright: ignore  # noqa: F811
                return 1


def test_hiding_an_inherited_field_by_a_method_or_a_value_is_refused() -> None:
    class Base(Module):
        w: Any = 1.0

    with pytest.raises(NodeDefinitionError, match=r"Bad\.w would hide the field w of .*Base"):

        class Bad(Base):
            @property
            def w(self) -> int:  # type: ignore[override]  # pyright: ignore
                return 1

    with pytest.raises(NodeDefinitionError, match=r"repeat the annotation: w: \.\.\. = 2\.0"):

        class Worse(Base):
            w = 2.0


def test_a_field_may_stand_in_for_an_inherited_property_or_method() -> None:
    class Base(Module, abc.ABC):
        @property
        @abc.abstractmethod
        def width(self) -> int: ...

        def depth(self) -> int:
            return 1

    class Net(Base):
        width: int = static()  # type: ignore[assignment]  # pyright: ignore
        depth: Any  # type: ignore[assignment]  # pyright: ignore

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]  # pyright: ignore
    net = Net(3, 4.0)
    assert (net.width, net.depth, jax.tree.leaves(net)) == (3, 4.0, [4.0])
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'width' and 'depth'"):
        Net()  # type: ignore[call-arg]  # pyright: ignore


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

    with pytest.raises(NodeDefinitionError, match=rf"Bad\.mode is annotated anew without {kind}\(\).*{kind}\(default='b'\)"):

        class Bad(Base):
            mode: str = "b"

    with pytest.raises(NodeDefinitionError, match=rf"Bare\.mode is annotated anew without {kind}\(\)"):

        class Bare(Base):
            mode: str


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
    with pytest.raises(NodeDefinitionError, match=r"Bad\.n is static, but its annotation holds [\w.]+\. jit compares"):
        pytree_dataclass(type("Bad", (), {"__annotations__": {"n": annotation}, "n": static()}))


def test_a_string_annotation_of_a_static_is_resolved_where_it_can_be() -> None:
    with pytest.raises(NodeDefinitionError, match=r"Bad\.n is static, but its annotation holds jax"):

        @pytree_dataclass
        class Bad:
            n: "jax.Array" = static()

    @pytree_dataclass
    class Later:
        n: "NotYetDefined" = static()  # type: ignore[name-defined]  # pyright: ignore  # noqa: F821

    with pytest.raises(StaticFieldError, match=r"Later\.n is static but holds a list"):
        Later([])


# Classes of all kinds


def test_one_form_of_the_flattened_node_is_enough() -> None:
    with pytest.raises(NodeDefinitionError, match="Bad defines tree_flatten itself"):

        @pytree_dataclass
        class Bad:
            x: Any

            def tree_flatten(self) -> Any: ...


def test_slots_are_refused() -> None:
    with pytest.raises(NodeDefinitionError, match="Bad declares __slots__"):

        class Bad(Module):
            __slots__ = ("x",)
            x: Any  # type: ignore[misc]  # pyright: ignore


@pytest.mark.parametrize("name", ["__setattr__", "__delattr__"])
def test_a_setattr_of_the_users_own_is_refused(name: str) -> None:
    with pytest.raises(NodeDefinitionError, match=f"Cannot overwrite attribute {name} in class Bad"):
        pytree_dataclass(type("Bad", (), {name: lambda *_: None}))


def test_decorating_twice_is_refused() -> None:
    with pytest.raises(NodeDefinitionError, match="Twice is a node class already"):

        @pytree_dataclass
        @pytree_dataclass
        class Twice:
            x: Any


def test_decorating_a_module_is_refused_with_the_right_place_for_options() -> None:
    with pytest.raises(NodeDefinitionError, match=r"class Net\(Module, kw_only=True\)"):

        @pytree_dataclass(kw_only=True)
        class Net(Module):
            x: Any


def test_generic_aliases_make_the_same_node() -> None:
    class Box(Module, Generic[T]):
        item: T

    @pytree_dataclass
    class Pair(Generic[T]):
        left: T
        right: T

    assert Box[int](3) == Box(3)
    assert jax.tree.structure(Pair[float](1.0, 2.0)) == jax.tree.structure(Pair(3, 4))
    assert vars(Box[int](3)) == {}


def test_protocol_bases_need_no_metaclass() -> None:
    @runtime_checkable
    class Apply(Protocol):
        width: int

        def __call__(self, x: Any) -> Any: ...

    class Net(Module, Apply):
        w: Any
        width: int = static(default=3)

        def __call__(self, x: Any) -> Any:
            return self.w * x

    assert Net(2.0)(3.0) == 6.0
    assert isinstance(Net(2.0), Apply)
    assert jax.tree.leaves(Net(2.0)) == [2.0]


def test_abstract_classes_refuse_instances_and_their_subclasses_do_not() -> None:
    class Base(Module, abc.ABC):
        w: Any

        @abc.abstractmethod
        def __call__(self, x: Any) -> Any: ...

    class Net(Base):
        def __call__(self, x: Any) -> Any:
            return x

    with pytest.raises(TypeError, match="abstract"):
        Base(1.0)  # type: ignore[abstract]  # pyright: ignore
    assert Net(1.0)(2.0) == 2.0


@pytest.mark.parametrize("frozen", [True, False])
def test_a_plain_dataclass_is_a_base_like_any_other(frozen: bool) -> None:
    @dataclasses.dataclass(frozen=frozen)
    class Plain:
        x: Any
        y: Any = 2.0

    class Net(Module, Plain):  # type: ignore[misc]  # pyright: ignore
        z: Any = 3.0

    class Deeper(Net):  # type: ignore[misc]
        t: Any = 4.0

    decorated: Any = pytree_dataclass(type("Decorated", (Plain,), {"__annotations__": {"z": Any}, "z": 3.0}))
    for made, leaves in ((Net, [1.0, 2.0, 3.0]), (Deeper, [1.0, 2.0, 3.0, 4.0]), (decorated, [1.0, 2.0, 3.0])):
        node = made(1.0)
        assert jax.tree.leaves(node) == leaves
        assert node == made(1.0)
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
            node.x = 5.0
    assert "Net(x=1.0" in repr(Net(1.0))
    assert Net(jnp.ones(2)) == Net(jnp.ones(2))


def test_several_bases_with_fields_and_diamonds_give_each_field_once() -> None:
    class Root(Module):
        a: Any = 1.0
        mode: str = static(default="m")

    class Left(Root):
        b: Any = 2.0

    class Right(Root):
        c: Any = 3.0
        size: int = static(default=5)

    class Both(Left, Right):
        d: Any = 4.0

    node = Both(d=9.0)
    assert [f.name for f in dataclasses.fields(Both)] == ["a", "mode", "c", "size", "b", "d"]  # type: ignore[arg-type]
    assert (node.a, node.b, node.c, node.d, node.mode, node.size) == (1.0, 2.0, 3.0, 9.0, "m", 5)
    assert jax.tree.leaves(node) == [1.0, 3.0, 2.0, 9.0]
    assert jax.tree.map(lambda x: x * 2, node).c == 6.0


def test_an_undecorated_subclass_of_a_decorated_class_is_a_node_too() -> None:
    @pytree_dataclass
    class Base:
        x: Any

    class WithMethod(Base):
        def double(self) -> Any:
            return self.x * 2

    class WithField(Base):
        y: Any = 2.0
        mode: str = static(default="m")

    assert jax.tree.leaves(WithMethod(1.0)) == [1.0]
    assert jax.tree.map(lambda x: x + 1, WithMethod(1.0)).double() == 4.0
    node: Any = WithField(1.0, 3.0)  # type: ignore[call-arg]  # pyright: ignore
    assert jax.tree.leaves(node) == [1.0, 3.0]
    assert node.mode == "m"


def test_a_decorated_subclass_starts_over_with_its_own_options() -> None:
    @pytree_dataclass
    class Base:
        x: Any = 1.0

    @pytree_dataclass(kw_only=True)
    class Sub(Base):
        y: Any  # without kw_only it would follow a default
        mode: str = static(default="m")

        def __post_init__(self) -> None:
            assert self.mode

    node = Sub(y=2.0)
    assert jax.tree.leaves(node) == [1.0, 2.0]
    assert node.mode == "m"
    assert Sub.__doc__ is not None
    assert "y: Any" in Sub.__doc__


def test_what_is_wrong_with_an_undecorated_subclass_is_said_when_it_is_called() -> None:
    @pytree_dataclass
    class Base:
        x: Any = 1.0

    class Bad(Base):
        y: Any  # pyright: ignore

    with pytest.raises(NodeDefinitionError, match="Bad is no node yet: .*non-default argument 'y' follows"):
        Bad()


def test_a_users_init_subclass_still_runs_once_for_each_subclass() -> None:
    seen: list[str] = []

    @pytree_dataclass
    class Base:
        x: Any

        def __init_subclass__(cls, tag: str = "", **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            seen.append(cls.__name__ + tag)

    @pytree_dataclass
    class One(Base, tag="!"):
        y: Any

    class Two(One):
        z: Any = 3.0

    assert seen == ["One!", "Two"]
    assert jax.tree.leaves([One(1.0, 2.0), Two(1.0, 2.0)]) == [1.0, 2.0, 1.0, 2.0, 3.0]


def test_module_keywords_reach_other_bases() -> None:
    class Tagged:
        tag: ClassVar[str]

        def __init_subclass__(cls, tag: str = "", **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            cls.tag = tag

    class Net(Module, Tagged, tag="t", kw_only=True):
        w: Any

    assert Net.tag == "t"
    assert jax.tree.leaves(Net(w=1.0)) == [1.0]


def test_nested_and_local_classes_and_cells_run_twice_are_classes_of_their_own() -> None:
    first, second = make_twice()
    one, two = first(1.0), second(1.0)
    assert one != two
    assert jax.tree.structure(one) != jax.tree.structure(two)

    class Outer(Module):
        class Inner(Module):
            w: Any

        inner: Inner

    assert repr(Outer(Outer.Inner(1.0))).endswith("Outer(inner=" + repr(Outer.Inner(1.0)) + ")")


def test_a_class_is_documented_by_its_signature() -> None:
    class Net(Module):
        w: float
        depth: int = static(default=2)

    assert Net.__doc__ == "Net(w: float, depth: int = 2)"


def test_a_traceback_through_a_generated_init_shows_its_line() -> None:
    import traceback

    def refuse(value: Any) -> Any:
        raise ValueError(value)

    @pytree_dataclass
    class Checked:
        w: Any = field(converter=refuse)

    with pytest.raises(ValueError, match="3") as caught:
        Checked(3)
    lines = traceback.format_exception(caught.value)
    assert any("w = convert_w(w)" in line for line in lines)


def test_all_public_names_are_found_and_others_are_not() -> None:
    assert set(treewright.__all__) <= set(dir(treewright))
    for name in treewright.__all__:
        assert getattr(treewright, name) is not None
    with pytest.raises(AttributeError, match="module 'treewright' has no attribute 'nothing'"):
        _ = treewright.nothing  # type: ignore[attr-defined]  # pyright: ignore
