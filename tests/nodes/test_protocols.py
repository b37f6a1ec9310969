"""A node among Python's own protocols: frozen, a dataclass, readable, matched, cached, in threads, deep, static."""

import copy
import dataclasses
import functools
import inspect
import pickle
import pydoc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces, one_line
from treewright import Module, field, pytree_dataclass, replace, static


@pytree_dataclass
class Layer:
    """A layer."""

    kernel: Any
    bias: Any = None
    width: Any = static(default=3)


@pytree_dataclass
class Box:
    value: Any


class Net(Module):
    layer: Layer
    name: str = static()
    kinds: ClassVar[int] = 0

    def __init__(self, size: int, *, name: str = "net") -> None:
        """Build it.

        Args:
            size: The size of the kernel.
            name: Its name.
        """
        self.layer = Layer(jnp.ones(size))
        self.name = name

    def __call__(self, x: Any, scale: float = 1.0) -> Any:
        """Apply it."""
        return x * self.layer.kernel.sum() * scale


class Point(NamedTuple):
    x: Any
    y: Any


@pytree_dataclass
class Mixed:
    """One of each kind of field."""

    first: Any
    second: dataclasses.InitVar[int] = 2
    third: Any = field(default=3, kw_only=True)
    fourth: Any = field(init=False, default=4)
    fifth: ClassVar[int] = 5

    def __post_init__(self, second: int) -> None: ...


# Frozen attributes


@pytest.mark.parametrize("make", [lambda: Layer(1.0), lambda: Net(1), lambda: replace(Net(1), name="a")])
def test_no_way_of_assigning_changes_a_field(make: Any) -> None:
    node = make()
    before = repr(node)
    for name in node.__match_args__:
        cure = rf"cannot assign to field '{name}' of a \w+, it is frozen: treewright.replace\(node, {name}=...\) gives"
        for assign in (setattr, object.__setattr__):
            with pytest.raises(dataclasses.FrozenInstanceError, match=cure):
                assign(node, name, 5)
        vars(node)[name] = 5
        vars(node).update({name: 5})
    assert repr(node) == before
    assert jax.tree.leaves(node) == jax.tree.leaves(make())
    assert copy.copy(node) == node == make()


@pytest.mark.parametrize("make", [lambda: Layer(1.0), lambda: Net(2)])
def test_no_way_of_deleting_removes_a_field(make: Any) -> None:
    node = make()
    before = repr(node)
    for name in node.__match_args__:
        for delete in (delattr, object.__delattr__):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}' of a"):
                delete(node, name)
    assert repr(node) == before


def test_names_that_are_no_fields_are_refused_with_the_close_ones() -> None:
    for node in (Layer(1.0), Net(2)):
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"'other' of a .* has no field of this name"):
            node.other = 1  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"'other' of a .* has no field of this name"):
            del node.other  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"'kernal'.*did you mean kernel\?"):
        Layer(1.0).kernal = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="'Layer' object has no attribute 'other'"):
        _ = Layer(1.0).other  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_whole_node_is_not_built_again() -> None:
    net = Net(2)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"__init__.*Net"):
        net.__init__(3)  # type: ignore[misc]
    assert net == Net(2)


def test_attributes_of_the_class_are_free() -> None:
    class Counted(Module):
        value: Any
        made: ClassVar[int] = 0

        def __check_init__(self) -> None:
            type(self).made += 1

    assert [Counted(1).made, Counted(2).made] == [1, 2]


# dataclasses


def test_a_node_is_a_dataclass() -> None:
    for cls in (Layer, Net, Mixed):
        assert dataclasses.is_dataclass(cls)
    assert dataclasses.is_dataclass(Net(2))
    assert [field.name for field in dataclasses.fields(Net)] == ["layer", "name"]
    assert [field.name for field in dataclasses.fields(Mixed(1))] == ["first", "third", "fourth"]
    assert dataclasses.fields(Layer)[1].default is None


def test_asdict_and_astuple_look_into_nodes_and_containers() -> None:
    kernel = np.ones(2)
    node = Box([Layer(kernel), {"a": Point(Box(1), 2)}])
    found = dataclasses.asdict(node)
    assert found["value"][1] == {"a": Point({"value": 1}, 2)}
    layer = found["value"][0]
    assert (layer["bias"], layer["width"]) == (None, 3)
    assert np.array_equal(layer["kernel"], kernel)
    assert dataclasses.astuple(Layer(1, Layer(2))) == (1, (2, None, 3), 3)
    assert list(dataclasses.asdict(Net(2))) == ["layer", "name"]


def test_replace_of_dataclasses_goes_through_the_constructor_as_ever() -> None:
    assert dataclasses.replace(Layer(1, 2), bias=5, width=4) == Layer(1, 5, 4)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is new in Python 3.13")
def test_replace_of_copy_is_ours() -> None:
    copy_replace: Any = getattr(copy, "replace", None)
    assert copy_replace(Layer(1, 2), bias=5) == Layer(1, 5)
    net = Net(2)
    found = copy_replace(net, name="a")
    assert (found.name, found.layer) == ("a", net.layer)
    assert copy_replace(Mixed(1), fourth=5).fourth == 5
    with pytest.raises(TypeError, match=r"Net has no field nme \(did you mean name\?\)"):
        copy_replace(net, nme="a")


# What a reader sees


def test_the_signature_of_a_class_is_that_of_its_constructor() -> None:
    assert list(inspect.signature(Layer).parameters) == ["kernel", "bias", "width"]
    assert inspect.signature(Layer).parameters["width"].default == 3
    assert str(inspect.signature(Net)) == "(size: int, *, name: str = 'net') -> None"
    mixed = inspect.signature(Mixed).parameters
    assert list(mixed) == ["first", "second", "third"]
    assert mixed["third"].kind is inspect.Parameter.KEYWORD_ONLY
    assert repr(mixed["second"].annotation) == "dataclasses.InitVar[int]"
    assert str(inspect.signature(Net(2).__call__)) == "(x: Any, scale: float = 1.0) -> Any"
    assert str(inspect.signature(Net.__call__)) == "(self, x: Any, scale: float = 1.0) -> Any"


plain = pydoc.plaintext  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # undeclared


def test_help_shows_the_signature_the_text_and_the_methods() -> None:
    text = pydoc.render_doc(Layer, renderer=plain)
    assert "class Layer(" in text
    assert "Layer(kernel: Any, bias: Any = None, width: Any = 3)" in text
    assert "A layer." in text
    text = pydoc.render_doc(Net, renderer=plain)
    for part in (
        "size: The size of the kernel.",
        "__call__(self, x: Any, scale: float = 1.0)",
        "Apply it.",
        "kinds = 0",
    ):
        assert part in text
    assert pydoc.render_doc(Net(2), renderer=plain)
    assert "Apply it." in pydoc.render_doc(Net(2).__call__, renderer=plain)
    assert inspect.getdoc(Box) == "Box(value: Any)"
    assert {"kernel", "bias", "width", "tree_flatten"} <= set(dir(Layer(1)))


def test_nodes_match_patterns_by_position_and_by_name() -> None:
    def described(node: Any) -> Any:
        match node:
            case Layer(kernel, None, 3):
                return kernel
            case Layer(kernel=Box(value)):
                return value
            case Net(name="special"):
                return "special"
            case Net(layer=Layer(width=width)):
                return width
            case _:
                return None

    nodes = [Layer(1), Layer(Box(2), 0), Net(2, name="special"), Net(2), Layer(1, 1), Box(1)]
    assert [described(node) for node in nodes] == [1, 2, "special", 3, None, None]
    assert Mixed.__match_args__ == ("first", "second")


# References, caches, threads


def test_nodes_are_referred_to_weakly() -> None:
    for node in (Layer(1.0), Net(2)):
        assert weakref.ref(node)() is node
    layer = Layer(1.0)
    cache = weakref.WeakKeyDictionary({layer: "found"})
    assert cache[Layer(1.0)] == "found"
    del layer
    assert len(cache) == 0


def test_a_cached_property_is_computed_once_and_never_part_of_the_node() -> None:
    computed: list[Any] = []

    class Sized(Module):
        value: Any

        @functools.cached_property
        def size(self) -> Any:
            computed.append(self.value)
            return 2 * self.value

    @pytree_dataclass
    class Decorated(Box):
        size = Sized.__dict__["size"]

    nodes: list[Any] = [Sized(1), Decorated(1)]
    for node in nodes:
        computed.clear()
        assert node.size == node.size == 2
        assert computed == [1]
        assert jax.tree.leaves(node) == [1]
        assert node == type(node)(1)
        assert hash(node) == hash(type(node)(1))
        assert one_line(node).endswith("(value=1)")
        for copied in (copy.copy(node), copy.deepcopy(node), replace(node), jax.tree.map(lambda leaf: leaf, node)):
            assert copied.size == 2
        assert len(computed) == 5
        assert replace(node, value=5).size == 10
        with pytest.raises(dataclasses.FrozenInstanceError, match="'size'"):
            node.size = 3
    assert jax.jit(lambda node: node.size)(Sized(4)) == 8


def test_threads_build_read_and_copy_nodes_at_once() -> None:
    start = threading.Barrier(16)
    shared = Net(4, name="shared")

    def work(number: int) -> Any:
        start.wait()
        found = []
        for turn in range(50):
            net = Net(2, name=f"{turn % 5}")
            found.append((net.name, hash(Layer(turn)), repr(replace(net.layer, width=turn)), net.tree_flatten()[1]))
            assert shared.layer.width == 3
            assert copy.copy(shared).name == "shared"
        return found

    with ThreadPoolExecutor(16) as pool:
        first, *rest = pool.map(work, range(16))
    assert all(found == first for found in rest)


# Depth


def nested(leaf: Any, depth: int = 500) -> Any:
    for _ in range(depth):
        leaf = Box(leaf)
    return leaf


def test_nodes_are_nested_500_deep() -> None:
    node = nested(1.0)
    assert jax.tree.leaves(node) == [1.0]
    assert jax.tree.structure(node) == jax.tree.structure(nested(2.0))
    assert jax.tree.leaves(jax.tree.map(lambda a, b: a + b, node, nested(2.0))) == [3.0]
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(node)[0][0]) == 500 * ".value"
    assert jax.tree.leaves(jax.jit(lambda node: jax.tree.map(lambda leaf: 2 * leaf, node))(node)) == [2.0]
    assert node == nested(1.0)
    assert node != nested(2.0)
    assert replace(node, value=1) == Box(1)
    assert copy.copy(node) == node


def test_a_module_in_a_module_is_built_100_deep() -> None:
    class Chain(Module):
        next: Any

        def __init__(self, depth: int) -> None:
            self.next = Chain(depth - 1) if depth else 1.0

    assert jax.tree.leaves(Chain(100)) == [1.0]


def test_deep_nodes_are_hashed_pickled_and_copied_where_python_may_recurse_as_deep() -> None:
    node = nested(1.0)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # on 3.11 also the limit of C code, such as pickle's
    try:
        # 3.12 has a limit of its own for C code, and no way to raise it.
        depth = 100 if sys.version_info[:2] == (3, 12) else 500
        assert hash(nested(1.0, depth)) == hash(nested(1.0, depth))
        assert pickle.loads(pickle.dumps(nested(1.0, depth))) == nested(1.0, depth)
        assert copy.deepcopy(node) == node
    finally:
        sys.setrecursionlimit(before)


# A static of jit


def test_a_node_without_arrays_is_a_static_argument_by_value() -> None:
    counted = count_traces(lambda layer, x: x * layer.kernel)
    apply = functools.partial(jax.jit, static_argnums=0)(counted)
    for layer, traces in [
        (Layer(2), 1),
        (Layer(2), 1),
        (Layer(3), 2),
        (Layer(2.0), 3),
        (Layer(2), 3),
        (Layer(True), 4),
    ]:
        assert apply(layer, 3.0) == 3.0 * layer.kernel
        assert counted.count == traces
    for layer in (Layer(float("nan")), Layer(float("nan"))):
        apply(layer, 3.0)
        assert counted.count == 5
    with pytest.raises(ValueError, match=r"Non-hashable static arguments[\s\S]*Layer\.kernel"):
        apply(Layer(jnp.ones(2)), 3.0)


def test_static_arguments_that_differ_in_the_sign_of_zero_give_their_own_results() -> None:
    apply = jax.jit(lambda box, x: x * box.value, static_argnums=0)
    assert not np.signbit(apply(Box(0.0), 3.0))
    assert np.signbit(apply(Box(-0.0), 3.0))


def test_a_node_without_arrays_is_a_static_of_another_node() -> None:
    counted = count_traces(lambda layer: layer.kernel * layer.width.kernel)
    apply = jax.jit(counted)
    for inner, traces in [
        (1, 1),
        (1, 1),
        (1.0, 2),
        (2, 3),
        (0.0, 4),
        (-0.0, 5),
        (1, 5),
        (float("nan"), 6),
        (float("nan"), 6),
    ]:
        apply(Layer(3.0, width=Layer(inner)))
        assert counted.count == traces, inner
