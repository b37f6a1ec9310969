"""From names and rules to specs and shardings: live and abstract trees, optimisers, stacks, violations."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from tests.conftest import count_traces
from treewright import Module, TrainState, field, pytree_dataclass, static
from treewright.errors import ShardingError, ShardingWarning
from treewright.sharding import Rules, partition_specs, sharding_report, shardings

P: Any = PartitionSpec  # its constructor has no annotations
RULES: Rules = {"embed": "fsdp", "mlp": "tensor", "layers": None}


class Linear(Module):
    kernel: jax.Array = field(sharding=("embed", "mlp"))
    bias: jax.Array = field(sharding=("mlp",))
    scale: float = field(default=1.0)


class Net(Module):
    layers: tuple[Linear, ...]
    name: str = static(default="net")


def linear(inputs: int = 4, outputs: int = 8) -> Linear:
    return Linear(jnp.ones((inputs, outputs)), jnp.zeros(outputs))


def mesh(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes))


def specs_in(tree: object) -> list[PartitionSpec]:
    return jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, PartitionSpec))


untyped_field: Any = field
specs: Any = partition_specs  # for calls that checkers reject


class Single(Module):
    value: Any = field(sharding=("embed", "mlp"))


def test_specs_are_a_tree_of_the_same_class() -> None:
    net = Net((linear(), linear()))

    specs = partition_specs(net, None, RULES)

    assert isinstance(specs, Net)
    assert jax.tree.structure(specs) == jax.tree.structure(net)
    assert (specs.layers[1].kernel, specs.layers[1].bias, specs.layers[1].scale) == (
        P("fsdp", "tensor"),
        P("tensor"),
        P(),
    )


def test_an_abstract_tree_has_the_specs_of_a_live_one() -> None:
    assert partition_specs(jax.eval_shape(linear), None, RULES) == partition_specs(linear(), None, RULES)


@pytest.mark.devices(4)
def test_shardings_place_each_leaf() -> None:
    devices = jax.make_mesh((2, 2), ("fsdp", "tensor"))

    placed = jax.device_put(linear(), shardings(linear(), devices, RULES))

    assert placed.kernel.sharding == NamedSharding(devices, P("fsdp", "tensor"))
    assert placed.kernel.addressable_shards[0].data.shape == (2, 4)
    assert placed.bias.addressable_shards[0].data.shape == (4,)


def test_moments_gradients_and_averages_are_sharded_like_the_parameters() -> None:
    net = Net((linear(), linear()))
    tx = optax.chain(optax.adamw(1e-3), optax.ema(0.9))

    state = partition_specs(TrainState.create(params=net, tx=tx), None, RULES)
    grads = partition_specs(jax.grad(lambda net: net.layers[0].kernel.sum())(net), None, RULES)

    adam, average = state.opt_state[0][0], state.opt_state[1]
    assert adam.mu == adam.nu == average.ema == state.params == grads
    assert adam.mu.layers[0].kernel == P("fsdp", "tensor")
    assert state.step == adam.count == P()


def test_axis_names_apply_to_containers_but_not_to_nodes() -> None:
    @pytree_dataclass
    class Named:
        parts: Any = field(sharding=("mlp",))

    specs = partition_specs(Named({"a": [jnp.ones(2)], "b": Named(None), "c": None}), None, {"mlp": "tensor"})

    assert specs.parts == {"a": [P("tensor")], "b": Named(None), "c": None}
    for parts in (linear(), [jnp.ones(2), linear()]):
        with pytest.raises(
            ShardingError,
            match=r"^\.parts(\[1\])? is a Linear, but its field declares sharding=\('mlp',\), which would be ignored",
        ):
            shardings(Named(parts), mesh(tensor=2), RULES)


def test_a_tree_without_nodes_is_replicated() -> None:
    assert partition_specs({"w": jnp.ones((2, 3)), "n": 3}, None, {}) == {"w": P(), "n": P()}


def test_a_class_computes_its_names_from_its_statics() -> None:
    class Projection(Module):
        kernel: jax.Array = field(sharding=lambda self: ("embed", "mlp") if self.up else ("mlp", "embed"))
        blocks: Any = field(stack=lambda self: "stage" if self.stacked else None, default=())
        up: bool = static(default=True)
        stacked: bool = static(default=False)

    rules: Rules = {"embed": "fsdp", "mlp": "tensor", "stage": None}
    assert partition_specs(Projection(jnp.ones((2, 2))), None, rules).kernel == P("fsdp", "tensor")
    assert partition_specs(Projection(jnp.ones((2, 2)), up=False), None, rules).kernel == P("tensor", "fsdp")
    stacked = Projection(jnp.ones((2, 2)), jnp.ones((3, 4)), stacked=True)
    assert partition_specs(stacked, None, {**rules, "stage": "pipe"}).blocks == P("pipe")
    assert partition_specs(Projection(jnp.ones((2, 2)), jnp.ones((3, 4))), None, rules).blocks == P()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"sharding": lambda _: "embed"},
            r"\.inner\.kernel: the function in sharding= returned 'embed', not a tuple with a name or None",
        ),
        (
            {"stack": lambda _: 3},
            r"\.inner\.kernel: the function in stack= returned 3, not the name of an axis or None",
        ),
    ],
)
def test_a_sharding_function_that_returns_no_names_is_an_error(declared: Any, message: str) -> None:
    class Inner(Module):
        kernel: Any = untyped_field(**declared)

    class Outer(Module):
        inner: Any

    with pytest.raises(ShardingError, match=message):
        partition_specs(Outer(Inner(jnp.ones(2))), None, RULES)
    with pytest.raises(ShardingError, match=r"the tree\.kernel: the function"):
        partition_specs(Inner(jnp.ones(2)), None, RULES)


def test_a_stack_adds_a_leading_axis_to_its_leaves() -> None:
    class Deep(Module):
        blocks: Linear = field(stack="layers")
        stages: Any = field(stack="stage", default=None)

    keys = jax.random.split(jax.random.key(0), 6)
    blocks = jax.vmap(lambda key: Linear(jax.random.normal(key, (4, 8)), jnp.zeros(8)))(keys)
    rules = {**RULES, "layers": "pipe", "stage": None}

    specs = partition_specs(Deep(blocks), None, rules)
    nested = partition_specs(Deep(blocks, jax.tree.map(lambda x: x[None], Deep(blocks))), None, rules)

    assert (specs.blocks.kernel, specs.blocks.bias) == (P("pipe", "fsdp", "tensor"), P("pipe", "tensor"))
    assert specs.blocks.scale == P("pipe")
    assert nested.stages.blocks.kernel == P(None, "pipe", "fsdp", "tensor")


def test_absent_and_single_device_mesh_axes_are_dropped() -> None:
    assert partition_specs(linear(), mesh(tensor=2), RULES).kernel == P(None, "tensor")
    assert partition_specs(linear(), mesh(fsdp=1, tensor=2), RULES).kernel == P(None, "tensor")
    wide = partition_specs(linear(), mesh(data=2, fsdp=2, tensor=2), {"embed": ("data", "fsdp"), "mlp": None})
    assert wide.kernel == P(("data", "fsdp"))


@pytest.mark.parametrize(
    ("tree", "rules", "places"),
    [
        (
            Net((Linear(jnp.ones((4, 7)), jnp.ones(7)),)),
            RULES,
            [
                ".layers[0].kernel, f32[4,7]: axis 1 ('mlp', length 7) is not divisible by mesh axis 'tensor' (2)",
                ".layers[0].bias, f32[7]: axis 0 ('mlp', length 7) is not divisible by mesh axis 'tensor' (2)",
            ],
        ),
        (
            Single(jnp.ones((4, 4))),
            {"embed": "tensor", "mlp": "tensor"},
            [".value, f32[4,4]: axis 1 ('mlp', length 4) needs mesh axis 'tensor', already used by axis 0"],
        ),
        (
            Single(jnp.ones((4, 4))),
            {"embed": ("data", "data"), "mlp": None},
            [".value, f32[4,4]: axis 0 ('embed', length 4) needs a mesh axis twice: ('data', 'data')"],
        ),
        (Single(jnp.ones(6)), RULES, [".value, f32[6]: 2 names ('embed', 'mlp') for 1 axis"]),
        (
            Single(jnp.ones((6, 6))),
            {"embed": ("data", "fsdp"), "mlp": "tensor"},
            [".value, f32[6,6]: axis 0 ('embed', length 6) is not divisible by mesh axis 'data' (2) x 'fsdp' (2)"],
        ),
    ],
)
def test_violations_are_listed_by_path(tree: Any, rules: Rules, places: list[str]) -> None:
    with pytest.raises(ShardingError) as caught:
        shardings(tree, mesh(data=2, fsdp=2, tensor=2), rules)

    first, *listed, fix = str(caught.value).splitlines()
    assert re.match(r"The rules don't fit \d+ of \d+ leaves:", first)
    assert listed == [f"  {place}" for place in places]
    assert re.match(r'With on_misfit="replicate(_rank)?", such an axis or array is whole on every device\.', fix)


def test_a_name_without_a_rule_is_reported_with_the_closest_match() -> None:
    with pytest.raises(ShardingError) as caught:
        partition_specs([Single(jnp.ones((6, 6))), Single(3)], None, {"embed": None, "mpl": "tensor"})

    assert str(caught.value).splitlines() == [
        "The rules don't fit 2 of 2 leaves:",
        "  [0].value, f32[6,6]: no rule for 'mlp' (did you mean mpl?)",
        "  [1].value, 3: no rule for 'mlp' (did you mean mpl?)",
        "Add a rule for each name; None is the rule for an axis that is not split.",
    ]


def test_violations_of_equal_layers_are_merged_and_truncated() -> None:
    with pytest.raises(ShardingError, match=r"^The rules don't fit 25 of 25 leaves:(.*\n){21}  and 5 more\n"):
        partition_specs(Single([jnp.ones(size) for size in range(2, 27)]), None, RULES)
    with pytest.raises(ShardingError, match=r"\n  \[0-24\]\.value, f32\[6\]: 2 names"):
        partition_specs([Single(jnp.ones(6))] * 25, None, RULES)


def test_a_stack_counts_among_the_names() -> None:
    class Deep(Module):
        blocks: Linear = field(stack="layers")

    with pytest.raises(ShardingError, match=r"\.bias, f32\[8\]: 2 names, 1 of a stack, \('layers', 'mlp'\) for 1 axis"):
        partition_specs(Deep(linear()), None, RULES)


def test_on_misfit_can_replicate_instead() -> None:
    tree = Net((Linear(jnp.ones((4, 7)), jnp.ones((7, 1))),))

    specs = partition_specs(tree, mesh(fsdp=2, tensor=2), RULES, on_misfit="replicate")

    assert (specs.layers[0].kernel, specs.layers[0].bias) == (P("fsdp"), P())
    with pytest.raises(ShardingError, match="no rule for 'mlp'"):
        partition_specs(tree, None, {"embed": None}, on_misfit="replicate")


def test_factored_moments_are_an_error_or_replicated() -> None:
    single = Single(jnp.ones((256, 256)))
    state = jax.eval_shape(lambda: TrainState.create(params=single, tx=optax.adafactor(1e-3)))

    with pytest.raises(ShardingError, match=r"\.v_row\.value, f32\[256\]\(abstract\): 2 names"):
        partition_specs(state, None, RULES)
    specs = partition_specs(state, None, RULES, on_misfit="replicate")
    assert specs.params.value == P("fsdp", "tensor")
    assert {*specs_in(specs.opt_state)} == {P()}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: specs(linear(), None, "tensor"), TypeError, "rules= must be a mapping from names to mesh axes"),
        (lambda: specs(linear(), None, {"mlp": 3}), TypeError, "The rule for 'mlp' is 3, but must be a mesh axis"),
        (lambda: specs(linear(), None, {"mlp": (None,)}), TypeError, r"The rule for 'mlp' is \(None,\)"),
        (lambda: specs(linear(), {"a": 2}, RULES), TypeError, "mesh= must be a jax.sharding.Mesh or .*, got {'a': 2}"),
        (lambda: specs(linear(), None, RULES, on_misfit="skip"), ValueError, "on_misfit= must be .*, got 'skip'"),
    ],
)
def test_specs_and_shardings_reject_invalid_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.devices(4)
@given(
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8]), max_size=4),
    names=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=4),
    rules=st.fixed_dictionaries(
        {name: st.sampled_from([None, "x", "y", ("x", "y"), ("y", "gone")]) for name in ("a", "b", "c")}
    ),
)
def test_jax_accepts_shardings_with_replicated_violations(
    shape: list[int], names: list[str | None], rules: Any
) -> None:
    class Any1(Module):
        value: Any = field(sharding=tuple(names))

    devices = jax.make_mesh((2, 2), ("x", "y"))
    node = Any1(np.zeros(shape, np.float32))

    rules = {name: rule for name, rule in rules.items() if name in names}
    placed = jax.device_put(node, shardings(node, devices, rules, on_misfit="replicate"))

    parts = placed.value.addressable_shards[0].data.size
    (leaf,) = sharding_report(node, devices, rules, on_misfit="replicate").leaves
    assert leaf.device_nbytes == 4 * parts
    if not leaf.misfits:
        assert partition_specs(node, devices, rules).value == leaf.spec


@pytest.mark.devices(4)
def test_only_different_shardings_retrace() -> None:
    devices = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jitted = jax.jit(counted := count_traces(lambda net: net.kernel * 2))

    jitted(jax.device_put(linear(), shardings(linear(), devices, RULES)))
    partition_specs(linear(), None, {"embed": None, "mlp": "fsdp"})
    jitted(jax.device_put(linear(), shardings(linear(), devices, {"embed": None, "mlp": "fsdp"})))

    assert counted.count == 1


def test_axis_names_do_not_change_the_program() -> None:
    def program_of(**options: Any) -> str:
        class Layer(Module):
            kernel: Any = untyped_field(**options)

        lowered = jax.jit(lambda layer: jax.tree.map(lambda leaf: leaf * 2, layer)).lower(Layer(jnp.ones((4, 4))))
        return lowered.as_text()

    assert program_of(sharding=("embed", "mlp"), stack="layers") == program_of()


def test_the_report_shows_splits_and_bytes_of_each_device() -> None:
    tree = {"net": Net((Linear(jnp.ones((4, 7)), jnp.ones(7, jnp.bfloat16)),)), "key": jax.random.key(0)}
    rules: Rules = {"embed": ("data", "fsdp"), "mlp": "tensor", "experts": "expert"}

    report = sharding_report(tree, mesh(data=2, fsdp=2, tensor=2), rules, on_misfit="replicate")

    assert str(report).splitlines() == [
        "leaf                      array       split over   copies  bytes  on a device",
        "['key']                   key<fry>[]  replicated        8    8 B          8 B",
        "['net'].layers[0].kernel  f32[4,7]    data x fsdp       2  112 B         28 B",
        "['net'].layers[0].bias    bf16[7]     replicated        8   14 B         14 B",
        "['net'].layers[0].scale   1.0         replicated        8    4 B          4 B",
        "['net'].layers[0].kernel: axis 1 ('mlp', length 7) is not divisible by mesh axis 'tensor' (2)",
        "['net'].layers[0].bias: axis 0 ('mlp', length 7) is not divisible by mesh axis 'tensor' (2)",
        "mesh axes that split no leaf: tensor",
        "not in the mesh, so not used: expert",
        "rules for names that no field has: experts",
        "138 B on 8 devices (data 2, fsdp 2, tensor 2): 54 B on each, 26 B of them replicated",
    ]
    assert (report.nbytes, report.device_nbytes, report.replicated_nbytes) == (138, 54, 26)
    assert repr(report) == str(report)


def test_the_report_merges_equal_layers() -> None:
    tree = jax.eval_shape(lambda: [Net(tuple(linear(64, 2**14) for _ in range(80))), linear(1, 8)])

    report = sharding_report(tree, mesh(tensor=4), {"embed": None, "mlp": "tensor"})

    assert [re.split("  +", line) for line in str(report).splitlines()[1:4]] == [
        ["[0].layers[0-79].kernel", "f32[64,16384] x 80", "-, tensor", "1", "320 MiB", "80 MiB"],
        ["[0].layers[0-79].bias", "f32[16384] x 80", "tensor", "1", "5,120 KiB", "1,280 KiB"],
        ["[0].layers[0-79].scale", "f32[] x 80", "replicated", "4", "320 B", "320 B"],
    ]
    assert len(report.leaves) == 243


@pytest.mark.parametrize(
    ("rules", "close"),
    [
        ({"embed": "fsdp", "mlp": "tenser"}, r"axis 'tenser' \(did you mean 'tensor'\?\)"),
        ({"embed": "fdsp", "mlp": "tensor"}, r"axis 'fdsp' \(did you mean 'fsdp'\?\)"),
        (
            {"embed": ("data", "fsdpp"), "mlp": "tensors"},
            r"axes 'fsdpp' \(did you.*, 'tensors' \(did you mean 'tensor'",
        ),
    ],
)
def test_rules_with_a_misspelt_mesh_axis_are_an_error(rules: Rules, close: str) -> None:
    for function in (partition_specs, shardings, sharding_report):
        with pytest.raises(ShardingError, match=rf"^Unknown mesh {close}.*the mesh has data 2, fsdp 2, tensor 2\."):
            function(linear(), mesh(data=2, fsdp=2, tensor=2), rules)


@pytest.mark.parametrize("axis", ["dp", "expert", "model", "stage", "data2", "x"])
def test_an_absent_mesh_axis_is_not_a_misspelling(axis: str) -> None:
    specs = partition_specs(linear(), mesh(data1=2, fsdp=2, tensor=2, y=2), {"embed": axis, "mlp": "tensor"})

    assert specs.kernel == P(None, "tensor")


def test_rules_for_activations_may_be_in_the_same_dict() -> None:
    rules: Rules = {**RULES, "batch": "fsdp", "kv_heads": "tensor"}

    assert partition_specs(linear(), mesh(fsdp=2), rules) == partition_specs(linear(), mesh(fsdp=2), RULES)
    assert sharding_report(linear(), mesh(fsdp=2), rules).unused == ("batch", "kv_heads")


def test_rules_without_any_name_of_the_tree_warn_at_the_users_line() -> None:
    for function in (partition_specs, shardings):
        with pytest.warns(
            ShardingWarning,
            match=r"No field .* has a name that the rules split \('heads', 'vocab'\), .* are embed, mlp",
        ) as caught:
            function(linear(), mesh(fsdp=2), {"heads": "fsdp", "vocab": "fsdp", "embed": None, "mlp": None})
        assert caught[0].filename == __file__


def test_a_mesh_without_any_axis_of_the_rules_warns() -> None:
    rules: Rules = {"embed": "fsdp", "mlp": "tensor"}
    for function in (partition_specs, shardings):
        with pytest.warns(
            ShardingWarning,
            match=r"none of the axes in the rules \(fsdp, tensor\), so every .* The mesh has data 2, model 4\.",
        ) as caught:
            function(linear(), mesh(data=2, model=4), rules)
        assert caught[0].filename == __file__

    assert partition_specs(linear(), mesh(data=1), rules).kernel == P()
    assert partition_specs(linear(), mesh(data=8), {"embed": None, "mlp": None}).kernel == P()
    assert sharding_report(linear(), mesh(data=8), rules).absent == ("fsdp", "tensor")


def test_on_misfit_selects_by_path_or_rank() -> None:
    state = jax.eval_shape(lambda: TrainState.create(params=Single(jnp.ones((256, 256))), tx=optax.adafactor(1e-3)))
    odd = jax.eval_shape(lambda: TrainState.create(params=Single(jnp.ones((255, 256))), tx=optax.adafactor(1e-3)))
    on = mesh(fsdp=2, tensor=4)

    for misfits in (
        "replicate_rank",
        {"opt_state": "replicate_rank"},
        {"**.v_row": "replicate", "**.v_col": "replicate", "**.v": "replicate"},
    ):
        specs = partition_specs(state, on, RULES, on_misfit=misfits)  # type: ignore[arg-type]
        assert specs.params.value == P("fsdp", "tensor")
        assert specs.opt_state[0].v_row.value == P()
    with pytest.raises(ShardingError, match=r"1 of .*\n  \.params\.value, f32\[255,256\]\(abstract\): axis 0"):
        partition_specs(odd, on, RULES, on_misfit={"opt_state": "replicate"})
    with pytest.raises(
        ValueError, match=r"on_misfit= must be .* or a mapping from places in the tree to these, got 'skip'"
    ):
        partition_specs(state, on, RULES, on_misfit={"opt_state": "skip"})  # type: ignore[dict-item]


def test_specs_of_a_stacked_subtree_need_its_stack() -> None:
    blocks = jax.eval_shape(lambda: jax.vmap(lambda _: linear())(jnp.arange(6)))

    assert partition_specs(blocks, None, RULES, stack="layers").kernel == P(None, "fsdp", "tensor")
    assert shardings(blocks, mesh(pipe=2), {**RULES, "layers": "pipe"}, stack=("layers",)).bias.spec == P("pipe")
    assert sharding_report(blocks, mesh(pipe=2), {**RULES, "layers": "pipe"}, stack="layers").leaves[0].copies == 1
    with pytest.raises(ShardingError, match='name its leading axes, as in stack="layers"'):
        partition_specs(blocks, None, RULES)
