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

from tests.conftest import count_traces, skip_before_jax
from treewright import FrozenMapping, Module, field, freeze, static
from treewright.errors import ShardingError, ShardingWarning
from treewright.sharding import Rules, constrain, constrain_tree, out_sharding, sharded_init, shardings, use_rules

pytestmark = pytest.mark.slow

P: Any = PartitionSpec  # its constructor has no annotations
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
KEPT: Rules = {"embed": "fsdp", "hidden": "tensor"}
USED: Rules = {"embed": None, "hidden": "tensor", "batch": "fsdp"}
KINDS = {"none": None, "auto": (AUTO, AUTO), "explicit": (EXPLICIT, EXPLICIT), "both": (AUTO, EXPLICIT)}


class MLP(Module):
    """Stored fully sharded, gathered for use, and split over `tensor` while it computes."""

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


@pytest.mark.devices(4)
@pytest.mark.parametrize("name", KINDS)
def test_a_model_trains_equally_with_and_without_a_mesh(name: str) -> None:
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


@pytest.mark.devices(4)
@pytest.mark.parametrize("name", KINDS)
def test_a_batched_model_runs_on_any_mesh(name: str) -> None:
    kinds = KINDS[name]

    def doubled(x: jax.Array) -> jax.Array:
        return constrain(x * 2, "tensor")

    with contextlib.nullcontext() if kinds is None else jax.set_mesh(mesh_of(kinds)):
        assert jax.jit(jax.vmap(doubled))(jnp.ones((3, 4))).tolist() == [[2.0] * 4] * 3


@pytest.mark.devices(4)
@pytest.mark.parametrize("name", ["auto", "explicit", "both"])
@pytest.mark.parametrize("jitted", [True, False])
def test_values_are_split_inside_jit_and_outside(name: str, jitted: bool) -> None:
    def split(x: jax.Array) -> jax.Array:
        return constrain(x, "fsdp", "tensor", None)

    with jax.set_mesh(mesh_of(KINDS[name] or ())):
        x = (jax.jit(split) if jitted else split)(jnp.ones((2, 4, 3)))

    assert x.addressable_shards[0].data.shape == (1, 2, 3)


@pytest.mark.devices(4)
def test_explicit_mesh_axes_win_over_auto_axes() -> None:
    types: list[Any] = []

    with jax.set_mesh(mesh_of((EXPLICIT, AUTO))):
        jax.jit(lambda x: types.append(jax.typeof(constrain(x, ("fsdp", "tensor")))))(jnp.ones(8))

    assert types[0].sharding.spec == P("fsdp")


@pytest.mark.devices(4)
def test_an_explicit_mesh_types_the_value() -> None:
    types: list[Any] = []

    with jax.set_mesh(mesh_of((EXPLICIT, EXPLICIT))):
        jax.jit(lambda x: types.append(jax.typeof(constrain(x, None, "tensor"))))(jnp.ones((2, 4)))

    assert types[0].sharding.spec == P(None, "tensor")


@pytest.mark.devices(4)
def test_out_sharding_is_none_without_explicit_axes() -> None:
    assert out_sharding("fsdp", None) is None
    with jax.set_mesh(mesh_of((AUTO, AUTO))):
        assert out_sharding("fsdp", None) is None
    with jax.set_mesh(mesh_of((EXPLICIT, EXPLICIT))):
        assert out_sharding("gone", "fsdp", rules={"gone": "absent", "fsdp": "fsdp"}) == P(None, "fsdp")
        assert out_sharding(("fsdp", "tensor")) == P(("fsdp", "tensor"))


@pytest.mark.devices(4)
def test_constrain_ignores_axes_that_shard_map_maps() -> None:
    mesh = mesh_of((AUTO, AUTO))

    @jax.jit
    def doubled(x: jax.Array) -> jax.Array:
        return jax.shard_map(lambda x: constrain(x * 2, "fsdp"), mesh=mesh, in_specs=P("fsdp"), out_specs=P("fsdp"))(x)

    with jax.set_mesh(mesh):
        assert doubled(jnp.ones(4)).tolist() == [2.0] * 4


@pytest.mark.devices(4)
def test_constrain_tree_gathers_and_splits_by_field_names() -> None:
    mesh = mesh_of((AUTO, AUTO))
    model = jax.device_put(make(jax.random.key(0)), shardings(make(jax.random.key(0)), mesh, KEPT))

    with jax.set_mesh(mesh):
        used = jax.jit(lambda model: constrain_tree(model, USED))(model)

    assert used.up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "tensor")), 2)
    with pytest.raises(ShardingError, match=r"\.up, f32\[8,16\]: no rule for 'embed'"):
        constrain_tree(make(jax.random.key(0)), {"hidden": None})


@pytest.mark.devices(4)
@pytest.mark.parametrize("meshed", [True, False])
@pytest.mark.parametrize(
    ("names", "rules", "message"),
    [
        (("fsdp",), None, r"constrain\(f32\[3,4\]\) with the names \('fsdp',\): 1 name \('fsdp',\) for 2 axes."),
        (("a", None), {"b": "fsdp"}, r"constrain\(f32\[3,4\]\) with the names \('a', None\): no rule for 'a'."),
    ],
)
def test_invalid_names_are_rejected_with_and_without_a_mesh(meshed: bool, names: Any, rules: Any, message: str) -> None:
    context = jax.set_mesh(mesh_of((AUTO, AUTO))) if meshed else contextlib.nullcontext()
    with context, pytest.raises(ShardingError, match=message):
        constrain(jnp.ones((3, 4)), *names, rules=rules)


@pytest.mark.devices(4)
def test_an_indivisible_length_is_rejected_under_a_mesh() -> None:
    constrain(jnp.ones((3, 4)), "fsdp", None)
    with (
        jax.set_mesh(mesh_of((AUTO, AUTO))),
        pytest.raises(ShardingError, match=r"axis 0 \('fsdp', length 3\) is not divisible by mesh axis 'fsdp' \(2\)"),
    ):
        constrain(jnp.ones((3, 4)), "fsdp", None)


@pytest.mark.devices(4)
def test_use_rules_sets_default_rules_and_traces_once_for_each() -> None:
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


@pytest.mark.devices(4)
def test_use_rules_sets_compute_and_storage_rules() -> None:
    mesh, model = mesh_of((AUTO, AUTO)), make(jax.random.key(0))

    with jax.set_mesh(mesh), use_rules(USED, storage_rules=KEPT):
        used = jax.jit(lambda model: constrain_tree(model))(model)
        gradient = jax.jit(jax.grad(lambda model: jnp.sum(constrain_tree(model).up ** 2)))(model)

    assert used.up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "tensor")), 2)
    assert gradient.up.sharding.is_equivalent_to(NamedSharding(mesh, P("fsdp", "tensor")), 2)
    with use_rules({"batch": "fsdp"}), jax.set_mesh(mesh_of((EXPLICIT, EXPLICIT))):
        assert out_sharding("batch", None) == P("fsdp")


def test_use_rules_warns_if_no_block_is_entered() -> None:
    with pytest.warns(ShardingWarning, match=r"^use_rules\(\.\.\.\) has no effect without a block\. Write") as caught:
        use_rules({"batch": "fsdp"})

    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.devices(4)
def test_a_name_that_is_not_a_mesh_axis_warns_without_rules() -> None:
    def doubled(x: jax.Array) -> jax.Array:
        return constrain(x * 2, "batch", None)

    assert doubled(jnp.ones((4, 2))).shape == (4, 2)  # without a mesh, nothing is split
    with jax.set_mesh(mesh_of((AUTO, AUTO))):
        with pytest.warns(ShardingWarning, match=r"^constrain\(.*\): without rules, names are mesh axes"):
            jax.jit(doubled)(jnp.ones((4, 2)))
        with use_rules({"batch": "absent"}):
            assert jax.jit(doubled)(jnp.ones((4, 2))).sharding.is_fully_replicated
    with jax.set_mesh(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])):
        doubled(jnp.ones((4, 2)))


@pytest.mark.devices(4)
def test_constrain_rejects_arrays_under_an_abstract_mesh() -> None:
    skip_before_jax(0, 10)  # JAX 0.9 raises before
    x = jnp.ones((4, 2))
    with jax.sharding.use_abstract_mesh(mesh_of((EXPLICIT, EXPLICIT)).abstract_mesh):
        assert jax.eval_shape(lambda: constrain(jnp.ones((4, 2)), "fsdp", None)).shape == (4, 2)
        with pytest.raises(ShardingError, match=r"is abstract, without devices .* jax\.eval_shape"):
            constrain(x, "fsdp", None)


@pytest.mark.devices(4)
def test_constrain_tree_without_rules_is_rejected_only_under_a_mesh() -> None:
    model = make(jax.random.key(0))

    assert constrain_tree(model) is model
    with jax.set_mesh(mesh_of((AUTO, AUTO))), pytest.raises(TypeError, match="constrain_tree has no rules"):
        constrain_tree(model)
    with pytest.raises(TypeError, match="rules= must be a mapping"):
        use_rules("fsdp")  # type: ignore[arg-type]


@pytest.mark.devices(4)
def test_a_mesh_set_by_the_old_context_manager_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # JAX deprecates it.
        old: Any = mesh_of((AUTO, AUTO))
        with (
            old,
            pytest.warns(
                ShardingWarning, match=r"`with mesh:` sets a mesh of fsdp=2, tensor=2 .*, but has no effect on"
            ) as caught,
        ):
            constrain(jnp.ones((4, 4)), "fsdp", None)
    assert caught[0].filename == __file__


@pytest.mark.devices(4)
def test_constrain_rejects_a_misspelt_mesh_axis() -> None:
    with jax.set_mesh(mesh_of((AUTO, AUTO))), pytest.raises(ShardingError, match=r"'tensro' \(did you mean 'tensor'"):
        constrain(jnp.ones((4, 4)), "tensro", None)


@pytest.mark.devices(4)
def test_a_stack_is_constrained_by_the_names_below_it() -> None:
    mesh, model = mesh_of((AUTO, AUTO)), make(jax.random.key(0))
    stacked = jax.tree.map(lambda leaf: leaf[None], model)

    with jax.set_mesh(mesh):
        constrained = constrain_tree(stacked, {**KEPT, "layers": None}, stack="layers")

    assert constrained.up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "fsdp", "tensor")), 3)
