"""What tests and debugging use: chex, hypothesis, treescope, and jax's own export, debug.print and checkify."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from treewright import Module, pytree_dataclass, static


@pytree_dataclass
class Dense:
    kernel: jax.Array
    bias: jax.Array
    activation: str = static(default="relu")


class Net(Module):
    layers: tuple[Dense, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = x @ layer.kernel + layer.bias[None, :]
        return x


def net(scale: float = 1.0) -> Net:
    return Net((Dense(scale * jnp.ones((2, 3)), jnp.ones(3)), Dense(jnp.ones((3, 1)), jnp.ones(1), "tanh")))


# chex


def test_chex_compares_nodes_and_names_the_place_of_a_difference() -> None:
    chex = pytest.importorskip("chex")

    chex.assert_trees_all_equal(net(), net())
    chex.assert_trees_all_close(net(), net(1 + 1e-8))
    chex.assert_trees_all_equal_shapes_and_dtypes(net(), net(2.0))
    chex.assert_tree_all_finite(net())
    chex.assert_tree_shape_prefix(jax.tree.map(lambda leaf: leaf[None], net()), (1,))
    with pytest.raises(AssertionError, match="kernel"):
        chex.assert_trees_all_equal(net(), net(2.0))
    with pytest.raises(AssertionError, match="do not match"):
        chex.assert_trees_all_equal_structs(net(), net().layers[0])


def test_chex_counts_traces_and_makes_all_variants_of_a_function_of_nodes() -> None:
    chex = pytest.importorskip("chex")
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(lambda model: model.layers[0].kernel.sum(), n=1))

    for scale in (1.0, 2.0):
        step(net(scale))

    with pytest.raises(AssertionError, match="traced"):
        step(Net(net().layers[:1]))


# hypothesis


FLOATS = st.floats(-10, 10, width=32)


@hypothesis.given(st.builds(Dense, kernel=FLOATS, bias=FLOATS, activation=st.sampled_from(["relu", "tanh"])))
def test_hypothesis_builds_nodes(dense: Dense) -> None:
    leaves, structure = jax.tree.flatten(dense)

    assert jax.tree.unflatten(structure, leaves) == dense


@pytree_dataclass
class Point:
    x: float
    y: tuple[int, ...]
    name: str = static(default="point")


@hypothesis.given(st.builds(Point))
def test_hypothesis_builds_nodes_from_their_annotations(point: Point) -> None:
    assert isinstance(point.x, float)
    assert all(isinstance(number, int) for number in point.y)
    assert jax.tree.map(lambda leaf: leaf, point) == point


def test_hypothesis_shows_the_call_that_makes_the_failing_node() -> None:
    @hypothesis.given(st.builds(Point, x=FLOATS, y=st.just(()), name=st.just("p")))
    @hypothesis.settings(database=None, derandomize=True)
    def fails(point: Point) -> None:
        assert point.x < 1

    with pytest.raises(AssertionError) as caught:
        fails()

    assert "Point(x=1.0, y=(), name='p')" in "\n".join(caught.value.__notes__)


# treescope


@pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")  # treescope asks numpy for it
def test_treescope_shows_fields_and_statics() -> None:
    treescope: Any = pytest.importorskip("treescope")

    shown = treescope.render_to_text(net())

    assert "Net(" in shown
    assert "activation='tanh'" in shown
    assert "<script" in treescope.render_to_html(net())


# jax itself


def test_an_exported_function_of_nodes_is_read_back_and_called() -> None:
    exported: Any = jax.export.export(jax.jit(lambda model, x: (model, model(x))))(net(), jnp.ones((4, 2)))

    read: Any = jax.export.deserialize(exported.serialize())
    model, outputs = read.call(net(2.0), jnp.ones((4, 2)))

    assert model == net(2.0)
    np.testing.assert_allclose(outputs, net(2.0)(jnp.ones((4, 2))))


def test_debug_print_shows_a_node_from_inside_jit(capsys: pytest.CaptureFixture[str]) -> None:
    @jax.jit
    def f(dense: Dense) -> Dense:
        jax.debug.print("inside: {dense} {kernel}", dense=dense, kernel=dense.kernel[0, 0])
        return dense

    jax_untyped: Any = jax
    jax_untyped.block_until_ready(f(net(3.0).layers[0]))
    jax_untyped.effects_barrier()

    printed = capsys.readouterr().out
    assert "inside: Dense(kernel=f32[2,3]" in printed
    assert "activation='relu') 3.0" in printed


def test_checkify_reports_errors_of_a_function_of_nodes() -> None:
    def f(model: Net, x: jax.Array) -> jax.Array:
        checkify.check(jnp.all(model.layers[0].kernel > 0), "a kernel is not positive: {k}", k=model.layers[0].kernel)
        return jnp.log(model(x))

    checked = jax.jit(checkify.checkify(f, errors=checkify.user_checks | checkify.nan_checks))

    none, _ = checked(net(), jnp.ones((1, 2)))
    error, _ = checked(net(-1.0), jnp.ones((1, 2)))

    assert none.get() is None
    with pytest.raises(checkify.JaxRuntimeError, match="a kernel is not positive"):
        error.throw()
