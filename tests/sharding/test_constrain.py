"""One model without a mesh, on an Auto mesh, on Explicit axes, and on a mesh with both."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.conftest import count_traces
from treewright import FrozenMapping, Module, field, freeze, static
from treewright.errors import ShardingError, ShardingWarning
from treewright.sharding import Rules, constrain, constrain_tree, out_sharding, sharded_init, shardings, use_rules

pytestmark = pytest.mark.slow

P: Any = PartitionSpec  # whose constructor has no annotations
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
KEPT: Rules = {"embed": "fsdp", "hidden": "tensor"}
USED: Rules = {"embed": None, "hidden": "tensor", "batch": "fsdp"}
KINDS = {"none": None, "auto": (AUTO, AUTO), "explicit": (EXPLICIT, EXPLICIT), "both": (AUTO, EXPLICIT)}


class MLP(Module):
    """Fully sharded where it is kept, gathered where it is used, and split over `tensor` while it computes."""

    up: jax.Array = field(sharding=("embed", "hidden"))
    down: jax.Array = field(sharding=("hidden", "embed"))
    rules: FrozenMapping[str, Any] = static(converter=freeze)

    def __call__(self, x: jax.Array) -> jax.Array:
        used = constrain_tree(self, self.rules)
        x = constrain(x, "batch", None, rules=self.rules)
        hidden = jax.nn.relu(jnp.dot(x, used.up, out_sharding=out_sharding("batch", "hidden", rules=self.rules)))
        hidden = constrain(hidden, "batch", "hidden", rules=self.rules)
        return jnp.dot(hidden, used.down, out_sharding=out_sharding("batch", None, rules=self.rules))


def make(key: jax.Array) -> MLP:
    up, down = jax.random.split(key)
    return MLP(jax.random.normal(up, (8, 16)), jax.random.normal(down, (16, 8)), USED)  # type: ignore[arg-type]


def loss(model: MLP, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


def mesh_of(kinds: tuple[AxisType, ...]) -> Mesh:
    return jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=kinds)


@pytest.mark.parametrize("name", KINDS)
def test_one_model_trains_alike_without_a_mesh_and_on_any(name: str) -> None:
    kinds = KINDS[name]
    x, key = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32), jax.random.key(0)
    step = jax.jit(
        counted := count_traces(
            lambda model, x: jax.tree.map(lambda p, g: p - g / 100, model, jax.grad(loss)(model, x))
        )
    )
    expected: Any = make(key)
    for _ in range(3):
        expected = jax.tree.map(lambda p, g: p - g / 100, expected, jax.grad(loss)(expected, jnp.asarray(x)))

    if kinds is None:
        model, data = make(key), jnp.asarray(x)
    else:
        mesh = mesh_of(kinds)
        model = sharded_init(make, key, mesh=mesh, rules=KEPT)
        data = jax.device_put(x, NamedSharding(mesh, P("fsdp")))
    with contextlib.nullcontext() if kinds is None else jax.set_mesh(mesh_of(kinds)):
        for _ in range(3):
            model = step(model, data)

    assert counted.count == 1
    for left, right in zip(jax.tree.leaves(model), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-6)
    if kinds is not None:
        assert model.up.addressable_shards[0].data.shape == (4, 8)


@pytest.mark.parametrize("name", KINDS)
def test_a_batched_model_runs_on_any_mesh(name: str) -> None:
    kinds = KINDS[name]

    def one(x: jax.Array) -> jax.Array:
        return constrain(x * 2, "tensor")

    with contextlib.nullcontext() if kinds is None else jax.set_mesh(mesh_of(kinds)):
        assert jax.jit(jax.vmap(one))(jnp.ones((3, 4))).tolist() == [[2.0] * 4] * 3


@pytest.mark.parametrize("name", ["auto", "explicit", "both"])
@pytest.mark.parametrize("jitted", [True, False])
def test_values_are_split_inside_jit_and_outside(name: str, jitted: bool) -> None:
    def split(x: jax.Array) -> jax.Array:
        return constrain(x, "fsdp", "tensor", None)

    with jax.set_mesh(mesh_of(KINDS[name] or ())):
        x = (jax.jit(split) if jitted else split)(jnp.ones((2, 4, 3)))

    assert x.addressable_shards[0].data.shape == (1, 2, 3)


def test_of_two_kinds_of_mesh_axes_on_one_axis_the_explicit_ones_are_sure() -> None:
    seen: list[Any] = []

    with jax.set_mesh(mesh_of((EXPLICIT, AUTO))):
        jax.jit(lambda x: seen.append(jax.typeof(constrain(x, ("fsdp", "tensor")))))(jnp.ones(8))

    assert seen[0].sharding.spec == P("fsdp")


def test_an_explicit_mesh_types_the_value() -> None:
    seen: list[Any] = []

    with jax.set_mesh(mesh_of((EXPLICIT, EXPLICIT))):
        jax.jit(lambda x: seen.append(jax.typeof(constrain(x, None, "tensor"))))(jnp.ones((2, 4)))

    assert seen[0].sharding.spec == P(None, "tensor")


def test_out_sharding_is_none_but_under_explicit_axes() -> None:
    assert out_sharding("fsdp", None) is None
    with jax.set_mesh(mesh_of((AUTO, AUTO))):
        assert out_sharding("fsdp", None) is None
    with jax.set_mesh(mesh_of((EXPLICIT, EXPLICIT))):
        assert out_sharding("gone", "fsdp") == P(None, "fsdp")
        assert out_sharding(("fsdp", "tensor")) == P(("fsdp", "tensor"))


def test_axes_that_shard_map_took_over_are_left_alone() -> None:
    mesh = mesh_of((AUTO, AUTO))

    @jax.jit
    def doubled(x: jax.Array) -> jax.Array:
        return jax.shard_map(lambda x: constrain(x * 2, "fsdp"), mesh=mesh, in_specs=P("fsdp"), out_specs=P("fsdp"))(x)

    with jax.set_mesh(mesh):
        assert doubled(jnp.ones(4)).tolist() == [2.0] * 4


def test_trees_are_gathered_and_split_by_the_names_of_their_fields() -> None:
    mesh = mesh_of((AUTO, AUTO))
    model = jax.device_put(make(jax.random.key(0)), shardings(make(jax.random.key(0)), mesh, KEPT))

    with jax.set_mesh(mesh):
        used = jax.jit(lambda model: constrain_tree(model, USED))(model)

    assert used.up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "tensor")), 2)
    with pytest.raises(ShardingError, match=r"\.up, f32\[8,16\]: no rule for 'embed'"):
        constrain_tree(make(jax.random.key(0)), {"hidden": None})


@pytest.mark.parametrize("meshed", [True, False])
@pytest.mark.parametrize(
    ("names", "rules", "message"),
    [
        (("fsdp",), None, r"constrain\(f32\[3,4\]\) with the names \('fsdp',\): 1 name \('fsdp',\) for 2 axes."),
        (("a", None), {"b": "fsdp"}, r"constrain\(f32\[3,4\]\) with the names \('a', None\): no rule for 'a'."),
    ],
)
def test_names_that_are_wrong_anywhere_are_refused_everywhere(
    meshed: bool, names: Any, rules: Any, message: str
) -> None:
    context = jax.set_mesh(mesh_of((AUTO, AUTO))) if meshed else contextlib.nullcontext()
    with context, pytest.raises(ShardingError, match=message):
        constrain(jnp.ones((3, 4)), *names, rules=rules)


def test_a_length_that_does_not_divide_is_refused_where_it_matters() -> None:
    constrain(jnp.ones((3, 4)), "fsdp", None)
    with (
        jax.set_mesh(mesh_of((AUTO, AUTO))),
        pytest.raises(ShardingError, match=r"axis 0 \('fsdp', length 3\) does not divide by 'fsdp' \(2\)"),
    ):
        constrain(jnp.ones((3, 4)), "fsdp", None)


def test_rules_of_a_block_hold_for_all_that_is_given_none_and_trace_once_each() -> None:
    jitted = jax.jit(counted := count_traces(lambda x: constrain(x * 2, "batch", None)))
    mesh = mesh_of((AUTO, AUTO))
    x = jnp.ones((4, 4))

    def parts(rules: Rules) -> tuple[int, ...]:
        with use_rules(rules):
            shape: tuple[int, ...] = jitted(x).addressable_shards[0].data.shape
        return shape

    with jax.set_mesh(mesh):
        shapes = [parts({"batch": axes}) for axes in ("fsdp", ("fsdp", "tensor"), None, "fsdp")]

    assert shapes == [(2, 4), (1, 4), (4, 4), (2, 4)]
    assert counted.count == 3


def test_rules_of_a_block_say_how_trees_are_used_and_kept() -> None:
    mesh, model = mesh_of((AUTO, AUTO)), make(jax.random.key(0))

    with jax.set_mesh(mesh), use_rules(USED, kept=KEPT):
        used = jax.jit(lambda model: constrain_tree(model))(model)
        gradient = jax.jit(jax.grad(lambda model: jnp.sum(constrain_tree(model).up ** 2)))(model)

    assert used.up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "tensor")), 2)
    assert gradient.up.sharding.is_equivalent_to(NamedSharding(mesh, P("fsdp", "tensor")), 2)
    with use_rules({"batch": "fsdp"}), jax.set_mesh(mesh_of((EXPLICIT, EXPLICIT))):
        assert out_sharding("batch", None) == P("fsdp")


def test_without_rules_a_tree_is_left_alone_where_no_mesh_is_set_and_refused_where_one_is() -> None:
    model = make(jax.random.key(0))

    assert constrain_tree(model) is model
    with jax.set_mesh(mesh_of((AUTO, AUTO))), pytest.raises(TypeError, match="constrain_tree has no rules"):
        constrain_tree(model)
    with pytest.raises(TypeError, match="rules= is a mapping"):
        use_rules("fsdp")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_mesh_that_is_set_in_the_old_way_is_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of JAX
        old: Any = mesh_of((AUTO, AUTO))
        with (
            old,
            pytest.warns(ShardingWarning, match=r"`with mesh:` does not reach .* a mesh of fsdp=2, tensor=2") as caught,
        ):
            constrain(jnp.ones((4, 4)), "fsdp", None)
    assert caught[0].filename == __file__


def test_a_mesh_axis_that_is_misspelt_is_refused() -> None:
    with jax.set_mesh(mesh_of((AUTO, AUTO))), pytest.raises(ShardingError, match=r"'tensro' \(did you mean 'tensor'"):
        constrain(jnp.ones((4, 4)), "tensro", None)


def test_a_stack_is_constrained_by_the_names_below_it() -> None:
    mesh, model = mesh_of((AUTO, AUTO)), make(jax.random.key(0))
    stacked = jax.tree.map(lambda leaf: leaf[None], model)

    with jax.set_mesh(mesh):
        kept = constrain_tree(stacked, {**KEPT, "layers": None}, stack="layers")

    assert kept.up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "fsdp", "tensor")), 3)
