"""`program_report`, against programs whose collectives, splits and donations are counted by hand."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from treewright import Module, field
from treewright.sharding import Rules, abstract_state, constrain, constrain_tree, hlo, program_report, use_rules

untyped_jax: Any = jax
P: Any = PartitionSpec  # whose constructor has no annotations
KEPT: Rules = {"embed": "data", "hidden": "tensor"}
USED: Rules = {"embed": None, "hidden": "tensor"}


class MLP(Module):
    up: jax.Array = field(sharding=("embed", "hidden"))
    down: jax.Array = field(sharding=("hidden", "embed"))

    def __call__(self, x: jax.Array) -> jax.Array:
        here = constrain_tree(self)
        hidden = constrain(jax.nn.relu(x @ here.up), "data", "tensor", rules={"data": "data", "tensor": "tensor"})
        return constrain(hidden @ here.down, "data", None, rules={"data": "data"})


def mesh() -> Mesh:
    return jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)


def split(shape: tuple[int, ...], *axes: Any, dtype: Any = jnp.float32) -> Any:
    return untyped_jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh(), P(*axes)))


def collectives(function: Any, *args: Any, **options: Any) -> list[tuple[Any, ...]]:
    with jax.set_mesh(mesh()):
        report = program_report(jax.jit(function, **options), *args)
    return [(one.kind, one.axes, one.nbytes, one.count) for one in report.collectives]


def test_a_tensor_parallel_layer_has_one_sum_over_its_axis() -> None:
    found = collectives(
        lambda x, up, down: constrain(jax.nn.relu(x @ up) @ down, None, None),
        *(split((8, 16)), split((16, 32), None, "tensor"), split((32, 16), "tensor")),
    )

    assert found == [("all-reduce", ("tensor",), 4 * 8 * 16, 1)]


def test_a_data_parallel_gradient_is_summed_over_the_batch() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x @ w))

    assert collectives(jax.grad(loss), split((16, 4)), split((8, 16), ("data", "tensor")), out_shardings=None) == [
        ("all-reduce", ("data", "tensor"), 4 * 16 * 4, 1)
    ]


def test_a_kernel_that_is_kept_in_parts_is_gathered() -> None:
    found = collectives(lambda x, w: x @ constrain(w, None, None), split((8, 16), "data"), split((16, 32), "data"))

    assert found == [("all-gather", ("data",), 4 * 16 * 32, 1)]


@pytest.mark.parametrize("layers", [1, 3])
def test_collectives_in_a_loop_count_as_often_as_it_runs(layers: int) -> None:
    def deep(x: jax.Array, stack: tuple[jax.Array, jax.Array]) -> jax.Array:
        def layer(x: jax.Array, kernels: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            up, down = kernels
            return constrain(jax.nn.relu(x @ up) @ down, None, None), None

        return jax.lax.scan(layer, x, stack)[0]

    stack = split((layers, 16, 32), None, None, "tensor"), split((layers, 32, 16), None, "tensor")

    assert collectives(deep, split((8, 16)), stack) == [("all-reduce", ("tensor",), 4 * 8 * 16, layers)]


@pytest.mark.parametrize(
    ("function", "out", "kind", "nbytes"),
    [
        (lambda x: untyped_jax.lax.psum_scatter(x, "data", tiled=True), ("data",), "reduce-scatter", 4 * 4 * 6),
        (lambda x: jax.lax.all_gather(x, "data", tiled=True), (), "all-gather", 4 * 8 * 6),
        (lambda x: untyped_jax.lax.psum(x, "data"), (), "all-reduce", 4 * 4 * 6),
        (lambda x: untyped_jax.lax.ppermute(x, "data", [(0, 1), (1, 0)]), ("data",), "collective-permute", 4 * 4 * 6),
        (lambda x: untyped_jax.lax.all_to_all(x, "data", 1, 0, tiled=True), ("data",), "all-to-all", 4 * 4 * 6),
    ],
)
def test_each_kind_of_collective_has_its_axis_and_bytes(function: Any, out: Any, kind: str, nbytes: int) -> None:
    mapped = jax.shard_map(function, mesh=mesh(), in_specs=P("data"), out_specs=P(*out), check_vma=False)

    assert collectives(mapped, split((8, 6), "data")) == [(kind, ("data",), nbytes, 1)]


def test_without_collectives_there_are_none_and_the_bytes_are_those_of_a_device() -> None:
    report = program_report(lambda x: x * 2, split((8, 6), "data", "tensor"))

    assert report.collectives == ()
    assert report.moved_nbytes == 0
    assert report.mesh == {"data": 2, "tensor": 2}
    (argument,), (result,) = report.arguments, report.results
    assert (argument.path, argument.array, argument.spec) == ("args[0]", "f32[8,6]", P("data", "tensor"))
    assert (argument.nbytes, argument.device_nbytes) == (4 * 8 * 6, 4 * 4 * 3)
    assert (result.path, result.spec, result.device_nbytes) == ("the result", P("data", "tensor"), 4 * 4 * 3)


@pytest.mark.parametrize(("kept", "spec"), [(None, P(None, "tensor")), (KEPT, P("data", "tensor"))])
def test_gradients_come_back_split_where_it_is_said_how_parameters_are_kept(kept: Rules | None, spec: Any) -> None:
    model = abstract_state(lambda: MLP(jnp.ones((16, 32)), jnp.ones((32, 16))), mesh=mesh(), rules=KEPT)

    with jax.set_mesh(mesh()), use_rules(USED, kept=kept):
        report = program_report(jax.jit(jax.grad(lambda m, x: jnp.mean(m(x) ** 2))), model, split((8, 16), "data"))

    assert report.results[0].path == ".up"
    assert report.results[0].spec == spec


def test_memory_that_is_donated_and_that_which_is_donated_in_vain_are_told_apart() -> None:
    x = split((8, 6), "data")

    step = jax.jit(lambda state, x, unused: (state["w"] + x, state["v"].sum()), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX tells of it too, on some platforms
        report = program_report(step, {"w": x, "v": split((3,))}, x, x)

    assert {one.path: one.donated for one in report.arguments} == {
        "args[0]['v']": "unused",
        "args[0]['w']": "yes",
        "args[1]": "no",
        "args[2]": "no",
    }
    assert report.not_donated == ("args[0]['v']",)
    assert "donated in vain: args[0]['v']" in str(report).splitlines()


def test_an_array_that_a_device_holds_whole_is_named() -> None:
    def sorted_columns(x: jax.Array) -> jax.Array:
        return constrain(jnp.sort(constrain(x, None, None), axis=0), "data", None)

    with jax.set_mesh(mesh()):
        report = program_report(jax.jit(sorted_columns), split((8, 6), "data"))

    assert report.whole == ("args[0]", "the result")
    assert "held whole on a device: args[0]" in str(report).splitlines()


def test_the_report_of_one_device_reads_well() -> None:
    report: Any = program_report(jax.jit(lambda *, x: x + 1), x=jnp.ones(3))
    lines = str(report).splitlines()

    assert [line.split() for line in lines[:2]] == [
        ["argument", "array", "split", "over", "bytes", "on", "a", "device", "donated"],
        ["x", "f32[3]", "one", "device", "12", "B", "12", "B", "no"],
    ]
    assert lines[-1].startswith("one device: 12 B of arguments on a device, ")
    assert report._repr_html_() == f"<pre>{report}</pre>"


def test_the_report_folds_layers_and_moments() -> None:
    state = {"layers": [split((4, 4), "data")] * 3, "one": split((2,))}

    lines = str(program_report(jax.jit(lambda s, x: s), state, split((8, 6), "data"))).splitlines()

    assert [line.split("  ")[0] for line in lines[:4]] == [
        "argument",
        "args[0]['layers'][0-2]",
        "args[0]['one']",
        "args[1]",
    ]


GROUPS = [
    ("replica_groups={{0,1},{2,3}}, x", ("tensor",)),
    ("replica_groups={{0,2},{1,3}}, x", ("data",)),
    ("replica_groups={{0,1,2,3}}, x", ("data", "tensor")),
    ("replica_groups={}, x", ("data", "tensor")),
    ("replica_groups=[2,2]<=[4], x", ("tensor",)),
    ("replica_groups=[2,2]<=[2,2]T(1,0), x", ("data",)),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, x", ("data",)),
    ("replica_groups=mesh['axis_0'=4] {'axis_0'}, x", ("data", "tensor")),
    ("replica_groups=mesh['a'=1,'b'=2,'c'=2], device_ids=([2,2]T(1,0)) {'b'}, x", ("tensor",)),
    ("replica_groups=mesh['a'=1,'b'=2,'c'=2], device_ids=([2,2]T(1,0)) {'c'}, x", ("data",)),
    ("replica_groups=mesh['a'=4] {'a':(1)2}, x", None),
    ("source_target_pairs={{0,1},{1,0},{2,3},{3,2}}, x", ("tensor",)),
    ("another form of groups", None),
]


@pytest.mark.parametrize(("settings", "axes"), GROUPS)
def test_the_axes_of_a_collective_are_read_in_every_form(settings: str, axes: Any) -> None:
    text = (
        f"HloModule m\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n  ROOT %r = f32[4]{{0}} all-reduce(%p), {settings}\n}}\n"
    )

    (line,) = hlo.collectives_in(text, {"data": 2, "tensor": 2})

    assert (line.kind, line.arrays, line.nbytes, line.axes, line.count) == ("all-reduce", ("f32[4]",), 16, axes, 1)


def test_asynchronous_collectives_and_branches_are_read() -> None:
    text = """HloModule m

%one (p: bf16[4]) -> bf16[8] {
  %start = (bf16[4]{0}, bf16[8]{0}) all-gather-start(%p), replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %done = bf16[8]{0} all-gather-done(%start)
}

%two (p: bf16[4]) -> bf16[8] {
  %start = (bf16[4]{0}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  %done = bf16[4]{0} collective-permute-done(%start)
  ROOT %sizes = (pred[3]{0}, s4[8]{0}, token[]) all-to-all(%done), replica_groups={}
}

%dead (p: bf16[4]) -> bf16[4] {
  ROOT %r = bf16[4]{0} all-reduce(%p), replica_groups={}
}

ENTRY %main (p: bf16[4]) -> bf16[8] {
  %token = token[] after-all()
  a line of another form
  %flag = pred[3]{0} parameter(0)
  ROOT %c = bf16[8]{0} conditional(%flag, %p, %p), branch_computations={%one, %two}
}
"""
    found = [(one.kind, one.arrays, one.nbytes) for one in hlo.collectives_in(text, {"data": 2, "tensor": 2})]

    assert found == [
        ("all-gather", ("bf16[8]",), 16),
        ("collective-permute", ("bf16[4]",), 8),
        ("all-to-all", ("pred[3]", "s4[8]", "token[]"), 3 + 4 + 0),
    ]
    assert hlo.donated_parameters(text) == frozenset()


def test_values_are_what_the_program_gives_alone() -> None:
    x = jax.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh(), P("data")))
    step = jax.jit(lambda x: x + 1, donate_argnums=0)

    report = program_report(step, x)

    assert report.arguments[0].donated == "yes"
    assert x.sum() == 48  # nothing has run, and nothing is given up
