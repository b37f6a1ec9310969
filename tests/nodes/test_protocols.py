"""A node in use: frozen, flattened, a dataclass, readable, cached, deep, a static argument."""

import copy
import dataclasses
import functools
import inspect
import pickle
import pydoc
import sys
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

from tests.conftest import count_traces, one_line
from treewright import Module, buffer, field, pytree_dataclass, replace, static
from treewright.errors import UnfinishedNodeError


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


@pytree_dataclass
class Mixed:
    """A node with each kind of field."""

    first: Any
    second: dataclasses.InitVar[int] = 2
    third: Any = field(default=3, kw_only=True)
    fourth: Any = field(init=False, default=4)
    fifth: ClassVar[int] = 5

    def __post_init__(self, second: int) -> None: ...


# Frozen attributes


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: Layer(1.0), lambda: Net(1), lambda: replace(Net(1), name="a"), lambda: copy.deepcopy(Net(1))),
        *(lambda: pickle.loads(pickle.dumps(Net(1))), lambda: jax.tree.map(lambda leaf: leaf, Net(1))),
    ],
)
def test_fields_cannot_be_assigned_or_deleted(make: Any) -> None:
    node = make()
    before = repr(node)
    for name in node.__match_args__:
        message = (
            rf"cannot assign to field '{name}' of a \w+, it is frozen: use treewright.replace\(node, {name}=...\) for"
        )
        for assign in (setattr, object.__setattr__):
            with pytest.raises(dataclasses.FrozenInstanceError, match=message):
                assign(node, name, 5)
        for delete in (delattr, object.__delattr__):
            with pytest.raises(dataclasses.FrozenInstanceError, match=rf"cannot delete \w+\.{name}: a node"):
                delete(node, name)
        vars(node)[name] = 5
        vars(node).update({name: 5})
    assert repr(node) == before
    assert jax.tree.leaves(node) == jax.tree.leaves(make())
    assert copy.copy(node) == node == make()


def test_unknown_names_cannot_be_assigned() -> None:
    for node in (Layer(1.0), Net(2)):
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"'other': .* has no field of this name"):
            node.other = 1  # type: ignore[union-attr]
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot delete \w+\.other: a node keeps its fields"):
            del node.other  # type: ignore[union-attr]
    with pytest.raises(AttributeError, match="'Layer' object has no attribute 'other'"):
        _ = Layer(1.0).other  # type: ignore[attr-defined]


# Flattened


class Dense(Module):
    kernel: Any
    bias: Any = buffer(default=None)
    activation: str = static(default="tanh")


@pytree_dataclass
class Deep:
    layers: Any
    head: Any = buffer()
    scale: float = field(default=2.0, kw_only=True)


def test_key_paths_read_like_attribute_access() -> None:
    deep = Deep([Layer(1.0, 2.0), {"b": Dense(3.0), "a": 4.0}], (5.0, 6.0))

    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(deep)]

    assert paths == [
        *(".layers[0].kernel", ".layers[0].bias", ".layers[1]['a']", ".layers[1]['b'].kernel"),
        *(".head[0]", ".head[1]", ".scale"),
    ]
    assert [eval(f"deep{path}", {"deep": deep}) for path in paths] == jax.tree.leaves(deep)
    (path, _), *_ = jax.tree.leaves_with_path(deep)
    assert jax.tree_util.keystr(path, simple=True, separator="/") == "layers/0/kernel"


def test_tree_flatten_and_tree_unflatten_are_public() -> None:
    layer = Dense(1.0, [2.0], "relu")

    children, aux = layer.tree_flatten()

    assert children == (1.0, [2.0])
    assert repr(aux) == "activation='relu'"
    assert Dense.tree_unflatten(aux, children) == layer
    changed = layer.tree_unflatten(aux, iter(["any", None]))
    assert (changed.kernel, changed.bias, changed.activation) == ("any", None, "relu")
    assert Dense(3.0, 4.0, "relu").tree_flatten()[1] is aux
    assert Dense(3.0, 4.0, "tanh").tree_flatten()[1] != aux


def test_tree_unflatten_rejects_invalid_arguments() -> None:
    other: Any = Layer(1.0, 2.0)
    with pytest.raises(ValueError, match=r"Dense has 2 children, kernel, bias, got 1\."):
        Dense.tree_unflatten(Dense(1.0).tree_flatten()[1], (1.0,))
    for wrong in (other.tree_flatten()[1], None, ("tanh",)):
        with pytest.raises(
            TypeError, match=r"Dense.tree_unflatten needs the aux_data of a Dense, got .*Pass the aux_data"
        ):
            Dense.tree_unflatten(wrong, (1.0, 2.0))


def test_an_unfinished_node_cannot_be_flattened() -> None:
    class Early(Module):
        weight: Any

        def __init__(self) -> None:
            with pytest.raises(UnfinishedNodeError, match=r"Early: its __init__ has not returned"):
                self.tree_flatten()
            with pytest.raises(ValueError, match=r"Early: its __init__ has not returned, so it can't be flattened yet"):
                jax.tree.leaves(self)
            self.weight = 1.0

    assert jax.tree.leaves(Early()) == [1.0]


# Signatures and help


def test_a_class_has_the_signature_of_its_constructor() -> None:
    assert str(inspect.signature(Net)) == "(size: int, *, name: str = 'net') -> None"
    mixed = inspect.signature(Mixed).parameters
    assert list(mixed) == ["first", "second", "third"]
    assert mixed["third"].kind is inspect.Parameter.KEYWORD_ONLY
    assert repr(mixed["second"].annotation) == "dataclasses.InitVar[int]"
    assert str(inspect.signature(Net(2).__call__)) == "(x: Any, scale: float = 1.0) -> Any"


plain = pydoc.plaintext  # type: ignore[attr-defined]  # undeclared


def test_help_shows_signature_docstring_and_methods() -> None:
    assert "Layer(kernel: Any, bias: Any = None, width: Any = 3)" in pydoc.render_doc(Layer, renderer=plain)
    text = pydoc.render_doc(Net, renderer=plain)
    for part in (
        "size: The size of the kernel.",
        "__call__(self, x: Any, scale: float = 1.0)",
        "Apply it.",
        "kinds = 0",
    ):
        assert part in text
    assert "Apply it." in pydoc.render_doc(Net(2).__call__, renderer=plain)
    assert inspect.getdoc(Box) == "Box(value: Any)"


def test_a_cached_property_is_computed_once_and_not_a_field() -> None:
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
        assert dict(inspect.getmembers(node))["size"] == 2
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


# Depth


def nested(leaf: Any, depth: int = 500) -> Any:
    for _ in range(depth):
        leaf = Box(leaf)
    return leaf


def test_nodes_can_be_nested_500_deep() -> None:
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


def test_deep_nodes_can_be_hashed_pickled_and_copied() -> None:
    node = nested(1.0)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # on 3.11 also the limit of C code, such as pickle's
    try:
        # 3.12 has a separate limit for C code, which can't be raised.
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
    with pytest.raises(ValueError, match=r"Non-hashable static arguments[\s\S]*a child of Layer\(kernel=f32"):
        apply(Layer(jnp.ones(2)), 3.0)
