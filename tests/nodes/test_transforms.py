"""Nodes under transformations: each result equals the one for tuples of the arrays, and no code of the class runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding

from tests.conftest import count_traces
from treewright import Module, field, pytree_dataclass, static

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


@pytree_dataclass
class DataLinear:
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


@pytree_dataclass
class DataNet:
    first: Any
    second: Any
    scale: float = static(default=2.0)


class ModuleLinear(Module):
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


class ModuleNet(Module):
    first: Any
    second: Any
    scale: float = static(default=2.0)


ran: list[str] = []


def require_array(value: Any) -> Any:
    """A converter, and a check, that reject the values that transformations put into nodes."""
    ran.append("converter")
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or value.ndim > 2:
        raise TypeError(f"not an array of a layer: {value!r}")
    return value


class GuardedLinear(Module):
    kernel: Any = field(converter=require_array)
    bias: Any = field(default_factory=lambda: require_array(None), converter=require_array)
    name: str = static(default="Guarded", converter=str.lower)

    def __post_init__(self) -> None:
        ran.append("__post_init__")

    def __check_init__(self) -> None:
        require_array(self.kernel)


class GuardedNet(Module):
    first: Any
    second: Any
    scale: float = static()

    def __init__(self, first: Any, second: Any) -> None:
        ran.append("__init__")
        self.first, self.second, self.scale = first, second, 2.0


NODES = (DataLinear, DataNet, ModuleLinear, ModuleNet, GuardedLinear, GuardedNet)
Spec: Any = jax.sharding.PartitionSpec  # JAX leaves its constructor untyped
psum: Any = jax.lax.psum
X = jnp.linspace(-1.0, 1.0, 3)
ARRAYS = (
    (jnp.linspace(-0.5, 0.5, 6).reshape(3, 2), jnp.array([0.1, -0.2])),
    (jnp.linspace(0.4, -0.4, 4).reshape(2, 2), jnp.array([0.3, 0.0])),
)
FIRST, SECOND = ARRAYS
NETS: dict[str, Any] = {
    "decorated": DataNet(DataLinear(*FIRST), DataLinear(*SECOND)),
    "Module": ModuleNet(ModuleLinear(*FIRST), ModuleLinear(*SECOND)),
    "with a custom constructor and checks": GuardedNet(GuardedLinear(*FIRST), GuardedLinear(*SECOND)),
}


def plain(tree: Any) -> Any:
    """A tree with tuples of their children in place of its nodes."""
    if isinstance(tree, NODES):
        children: Any = tree.tree_flatten()[0]  # type: ignore[union-attr]
        return tuple(plain(child) for child in children)
    return jax.tree.map(lambda leaf: plain(leaf) if isinstance(leaf, NODES) else leaf, tree, is_leaf=is_net)


def is_net(tree: Any) -> bool:
    return isinstance(tree, NODES)


def apply(tree: Any, x: Any) -> Any:
    for kernel, bias in plain(tree):
        x = jnp.tanh(x @ kernel + bias)
    return 2.0 * x


def loss(tree: Any) -> Any:
    return jnp.sum(apply(tree, X) ** 2)


def double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, tree)


def batch(tree: Any) -> Any:
    """A batch of four: each leaf has a leading axis."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf, leaf + 1]), tree)


def with_rules(tree: Any) -> Any:
    """Derivatives by custom rules, with nodes as arguments and results."""

    @jax.custom_vjp
    def energy(tree: Any) -> Any:
        return loss(tree)

    @jax.custom_jvp
    def twice(tree: Any) -> Any:
        return double(tree)

    energy.defvjp(lambda tree: (energy(tree), tree), lambda tree, g: (jax.tree.map(lambda leaf: g * 10 * leaf, tree),))
    twice.defjvp(lambda primals, tangents: (twice(*primals), jax.tree.map(lambda leaf: 7 * leaf, tangents[0])))
    return energy(tree), jax.grad(lambda tree: 3 * energy(tree))(tree), jax.jvp(twice, (tree,), (tree,))


def mesh() -> Mesh:
    return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def map_over_shards(tree: Any) -> Any:
    split, replicated = (jax.tree.map(lambda _, spec=spec: spec, tree) for spec in (Spec("data"), Spec()))

    def share(part: Any) -> Any:
        assert {leaf.shape[0] for leaf in jax.tree.leaves(part)} == {1}
        return double(part), jax.tree.map(lambda leaf: psum(leaf, "data"), part)

    return jax.shard_map(share, mesh=mesh(), in_specs=(split,), out_specs=(split, replicated))(batch(tree))


def place_on_devices(tree: Any) -> Any:
    stacked = batch(tree)
    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh(), Spec("data", *[None] * (leaf.ndim - 1))), stacked)
    result = jax.jit(double, in_shardings=(shardings,), out_shardings=shardings)(jax.device_put(stacked, shardings))
    assert {leaf.sharding.shard_shape(leaf.shape)[0] for leaf in jax.tree.leaves(result)} == {1}
    return result


def export_and_call(tree: Any) -> Any:
    program: Any = jax.export.deserialize(jax.export.export(jax.jit(double))(tree).serialize())
    return program.call(tree)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "grad": jax.grad(loss),
    "value_and_grad with an auxiliary value": jax.value_and_grad(lambda tree: (loss(tree), double(tree)), has_aux=True),
    "jvp": lambda tree: jax.jvp(double, (tree,), (tree,)),
    "vjp": lambda tree: jax.vjp(lambda tree: jax.tree.map(jnp.sin, tree), tree)[1](tree),
    "linearize": lambda tree: jax.linearize(loss, tree)[1](tree),
    "jacfwd": lambda tree: jax.jit(jax.jacfwd(apply))(tree, X),
    "jacrev": lambda tree: jax.jit(jax.jacrev(apply))(tree, X),
    "hessian": jax.jit(jax.hessian(loss)),
    "custom_vjp and custom_jvp": with_rules,
    "checkpoint": jax.grad(jax.checkpoint(loss)),
    "vmap": lambda tree: (jax.vmap(apply, in_axes=(0, None))(batch(tree), X), jax.vmap(double)(batch(tree))),
    "scan that carries and stacks": lambda tree: jax.lax.scan(
        lambda carry, factor: (jax.tree.map(lambda leaf: leaf * factor, carry), carry), tree, jnp.arange(1.0, 4.0)
    ),
    "scan through a batch": lambda tree: jax.lax.scan(
        lambda sum_, net: (sum_ + loss(net), double(net)), 0.0, batch(tree)
    ),
    "while_loop": lambda tree: jax.lax.while_loop(lambda tree: jax.tree.leaves(tree)[1][0] < 1.0, double, tree),
    "fori_loop": lambda tree: jax.lax.fori_loop(0, 3, lambda _, tree: double(tree), tree),
    "cond": lambda tree: [
        jax.jit(lambda p, t: jax.lax.cond(p, double, lambda t: t, t))(yes, tree) for yes in (True, False)
    ],
    "eval_shape": lambda tree: jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(double, tree)
    ),
    "lower and compile from shapes": lambda tree: jax.jit(double).lower(jax.eval_shape(lambda: tree)).compile()(tree),
    "pmap": lambda tree: jax.pmap(double)(batch(tree)),
    "shard_map": map_over_shards,
    "device_put and shardings of jit": place_on_devices,
    "export": export_and_call,
    "tree.map with paths": lambda tree: jax.tree_util.tree_map_with_path(lambda path, leaf: leaf * len(path), tree),
    "tree.transpose": lambda tree: jax.tree.transpose(
        jax.tree.structure(tree), None, jax.tree.map(lambda leaf: [leaf, 7.0], tree)
    ),
    "optax.adam": lambda tree: optax.adam(0.1).update(tree, optax.adam(0.1).init(tree), tree)[0],
}


def cases() -> list[Any]:
    params = []
    for name, operation in OPERATIONS.items():
        needed = 4 if name in {"pmap", "shard_map", "device_put and shardings of jit"} else 1
        params.append(pytest.param(operation, id=name, marks=pytest.mark.devices(needed)))
    return params


@pytest.mark.filterwarnings("ignore:.*pmap.*:DeprecationWarning")
@pytest.mark.parametrize("operation", cases())
def test_transformations_match_tuples_and_run_no_class_code(
    operation: Callable[[Any], Any],
) -> None:
    expected = operation(ARRAYS)

    ran.clear()
    for net in NETS.values():
        result = operation(net)
        nodes = [node for node in jax.tree.leaves(result, is_leaf=is_net) if is_net(node)]
        assert {(type(node), getattr(node, "scale", 2.0)) for node in nodes} <= {(type(net), 2.0)}
        assert bool(nodes) == any(isinstance(leaf, tuple) for leaf in jax.tree.leaves(expected, is_leaf=is_arrays))
        assert jax.tree.structure(plain(result)) == jax.tree.structure(expected)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), plain(result), expected)
    assert ran == []


def test_constructors_run_class_code() -> None:
    ran.clear()
    GuardedNet(GuardedLinear(*FIRST), None)
    assert set(ran) == {"__init__", "__post_init__", "converter"}
    for placeholder in (None, object(), 0, jnp.zeros((2, 2, 2))):
        with pytest.raises(TypeError, match="not an array of a layer"):
            GuardedLinear(placeholder, jnp.zeros(2))


def test_unflatten_accepts_any_leaf_and_runs_no_class_code() -> None:
    guarded = GuardedLinear(*FIRST)
    ran.clear()
    shape: Any = jax.ShapeDtypeStruct
    leaves = [
        object(),
        "text",
        0,
        float("nan"),
        ...,
        int,
        require_array,
        shape((2,), jnp.float32),
        Spec("x"),
        np.zeros(3),
        [1],
    ]

    for leaf in leaves:
        node = jax.tree.unflatten(jax.tree.structure(guarded), [leaf, None])

        assert (type(node), node.kernel, node.bias, node.name) == (GuardedLinear, leaf, None, "guarded")
        assert node.kernel is leaf
        repr(node)
    assert jax.tree.map(lambda _: None, guarded).kernel is None
    with jax.explain_cache_misses(True):  # calls tree_unflatten with JAX's own objects
        jitted = jax.jit(lambda node: node.bias)
        for dtype in (jnp.float32, jnp.int32):
            jitted(jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), guarded))
    assert ran == []


# Specs as in_axes


def test_in_axes_and_out_axes_are_instances_of_the_class() -> None:
    layer = ModuleLinear(jnp.arange(24.0).reshape(4, 3, 2), jnp.ones(2))

    def doubled(part: Any) -> Any:
        assert part.kernel.shape == (3, 2)
        return ModuleLinear(2 * part.kernel, part.bias + 1)

    axes = (ModuleLinear(0, None), ModuleLinear(2, None))
    result = jax.vmap(doubled, in_axes=axes[:1], out_axes=axes[1])(layer)

    np.testing.assert_array_equal(result.kernel, jnp.moveaxis(2 * layer.kernel, 0, 2))
    np.testing.assert_array_equal(result.bias, [2.0, 2.0])


AXES: dict[str, Callable[[Any], Any]] = {
    "tree.map": lambda node: jax.tree.map(lambda _: 0, node),
    "tree_unflatten": lambda node: node.tree_unflatten(node.tree_flatten()[1], (0, 0)),
    "tree.unflatten": lambda node: jax.tree.unflatten(jax.tree.structure(node), (0, 0)),
    "a prefix": lambda _: 0,
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_in_axes_bypass_converters_and_checks(axes: Callable[[Any], Any]) -> None:
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), GuardedLinear(*FIRST))

    total = jax.vmap(lambda node: node.bias.sum(), in_axes=(axes(stacked),))(stacked)

    np.testing.assert_allclose(total, [-0.1, 1.9], rtol=1e-5)


def is_arrays(tree: Any) -> bool:
    """Whether a tree has the structure of `ARRAYS`."""
    return isinstance(tree, tuple) and len(tree) == 2 and all(isinstance(part, tuple) for part in tree)


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_jit_traces_once_for_nodes_with_equal_statics(net: Any) -> None:
    jitted = jax.jit(counted := count_traces(double))

    assert jitted(jitted(net)) == double(double(net))
    assert counted.count == 1


def test_donating_a_node_deletes_its_buffers() -> None:
    node = double(NETS["decorated"])

    jax.jit(double, donate_argnums=0)(node)

    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(node))
    assert repr(node.first) == "DataLinear(kernel=f32[3,2](deleted), bias=f32[2](deleted), activation='tanh')"
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        np.asarray(node.first.kernel)


# Nodes that do not match: a different class of the same shape, a different static


LEFT = ModuleLinear(jnp.ones((3, 2)), jnp.zeros(2))
OTHER_CLASS = DataLinear(jnp.ones((3, 2)), jnp.zeros(2))
OTHER_STATIC = ModuleLinear(jnp.ones((3, 2)), jnp.zeros(2), "relu")


def compile_and_call(other: Any) -> Any:
    return jax.jit(double).lower(LEFT).compile()(other)


def export_for_left(other: Any) -> Any:
    program: Any = jax.export.export(jax.jit(double))(LEFT)
    return program.call(other)


MIXES = {
    "tree.map": lambda other: jax.tree.map(jnp.add, LEFT, other),
    "cond": lambda other: jax.lax.cond(True, lambda: LEFT, lambda: other),
    "switch": lambda other: jax.lax.switch(0, [lambda: LEFT, lambda: other]),
    "scan": lambda other: jax.lax.scan(lambda _, x: (other, x), LEFT, jnp.ones(2)),
    "while_loop": lambda other: jax.lax.while_loop(lambda _: True, lambda _: other, LEFT),
    "fori_loop": lambda other: jax.lax.fori_loop(0, 2, lambda _, __: other, LEFT),
    "an executable": compile_and_call,
    "an exported program": export_for_left,
    "the pullback of vjp": jax.vjp(double, LEFT)[1],
    "in_axes": lambda other: jax.vmap(double, in_axes=(jax.tree.map(lambda _: 0, other),))(LEFT),
    "device_put": lambda other: jax.device_put(LEFT, jax.tree.map(lambda _: jax.devices()[0], other)),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize(
    ("other", "left", "right"),
    [(OTHER_CLASS, "ModuleLinear", "DataLinear"), (OTHER_STATIC, "activation='tanh'", "activation='relu'")],
    ids=["a different class", "a different static"],
)
def test_jax_names_the_difference_between_mixed_nodes(
    mix: Callable[[Any], object], other: Any, left: str, right: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=right) as raised:
        mix(other)

    assert left in str(raised.value)


def test_jit_dispatches_on_the_class_of_its_argument() -> None:
    jitted = jax.jit(counted := count_traces(lambda node: jnp.float32(type(node) is DataLinear)))

    assert [float(jitted(node)) for node in (LEFT, OTHER_CLASS, LEFT, OTHER_CLASS)] == [0.0, 1.0, 0.0, 1.0]
    assert counted.count == 2


def test_explain_cache_misses_names_the_path_and_the_static(caplog: pytest.LogCaptureFixture) -> None:
    jitted = jax.jit(lambda net: double(net))
    jitted(ModuleNet(LEFT, LEFT))

    with jax.explain_cache_misses(True):
        jitted(ModuleNet(LEFT, OTHER_STATIC))

    assert "at input path [0][0].second" in caplog.text
    assert "with pytree metadata activation='relu' and before" in caplog.text
    assert "with pytree metadata activation='tanh', so" in caplog.text
