"""`summary`: one table for every kind of tree, the same text everywhere, and a table of rich's."""

from __future__ import annotations

import io
import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import rich.console

from treewright import Module, Static, TrainState, buffer, count, nbytes, spec_like, stack, static, summary
from treewright._trees.summary import Row
from treewright.errors import UnfinishedNodeError

PARTITION: Any = jax.P  # which has no types


class Linear(Module):
    kernel: Any
    activation: Any = static(default=jax.nn.relu)
    bias: Any = None


class Norm(Module):
    scale: Any
    mean: Any = buffer(default=0.0)
    inner: Any = buffer(default=None)


class Net(Module):
    layers: Any
    norm: Any = None
    config: Any = None
    note: Any = static(default="digits")


def small_net() -> Net:
    table = jnp.ones((64, 32))
    layers = (Linear(table, bias=jnp.zeros(32)), Linear(table))
    inner = [Linear(jnp.ones((2, 2), jnp.bfloat16)), 3]
    return Net(layers, Norm(jnp.ones(32), inner=inner), {"rate": 0.1, "mode": Static("train"), "f": len}, "x" * 50)


def test_every_leaf_and_static_has_a_row() -> None:
    assert summary(small_net()).plain == (
        "Net\n"
        "path                                              class   kind    shape    dtype  count  bytes\n"
        "------------------------------------------------  ------  ------  -------  -----  -----  -----\n"
        ".layers[0].kernel                                 Linear  child   [64,32]  f32    2,048  8,192\n"
        ".layers[0].activation = relu                      Linear  static\n"
        ".layers[0].bias                                   Linear  child   [32]     f32       32    128\n"
        ".layers[1].kernel = .layers[0].kernel             Linear  tied    [64,32]  f32    2,048  8,192\n"
        ".layers[1].activation = relu                      Linear  static\n"
        ".layers[1].bias = None                            Linear  child\n"
        ".norm.scale                                       Norm    child   [32]     f32       32    128\n"
        ".norm.mean = 0.0                                  Norm    buffer           float      1      4\n"
        ".norm.inner[0].kernel                             Linear  buffer  [2,2]    bf16       4      8\n"
        ".norm.inner[0].activation = relu                  Linear  static\n"
        ".norm.inner[0].bias = None                        Linear  buffer\n"
        ".norm.inner[1] = 3                                Norm    buffer           int        1      4\n"
        ".config['f'] = len                                Net     child\n"
        ".config['mode'].value = 'train'                   Static  static\n"
        ".config['rate'] = 0.1                             Net     child            float      1      4\n"
        f".note = '{'x' * 36}...  Net     static\n"
        "4,167 numbers, 16,660 bytes (16.3 KiB); 6 of them in buffers; 2,048 of them tied"
    )


def test_the_totals_are_those_of_count_and_nbytes_at_every_depth() -> None:
    net = small_net()
    for depth in (None, 1, 2, 3):
        table = summary(net, depth=depth)
        assert sum(row.count for row in table.rows) == count(net)
        assert sum(row.nbytes for row in table.rows) == nbytes(net)
        assert table.total == summary(net).total


def test_below_the_depth_all_is_summed_up() -> None:
    assert summary(small_net(), depth=1).rows == (
        Row(".layers", "tuple", "child, tied", "", "f32", 4128, 16512),
        Row(".norm", "Norm", "child, buffer", "", "f32, float, bf16, int", 38, 144),
        Row(".config", "dict", "child", "", "float", 1, 4),
        Row(f".note = '{'x' * 36}...", "Net", "static"),
    )
    assert [row.class_name for row in summary(small_net(), depth=2).rows][:2] == ["Linear", "Linear"]
    assert summary([Static(1)], depth=1).rows == (Row("[0]", "Static", "static"),)
    with pytest.raises(ValueError, match=r"^summary\(depth=\.\.\.\) takes 1 or more steps, got 0\.$"):
        summary(small_net(), depth=0)


def test_abstract_stacked_and_traced_trees_and_specs_have_tables() -> None:
    layer = Linear(jnp.ones((2, 3)))
    tables: list[str] = []
    jax.jit(lambda layer: tables.append(summary(layer).plain))(layer)
    tables.append(summary(jax.eval_shape(lambda: layer)).plain)

    assert tables == [summary(layer).plain] * 2
    assert summary(stack([layer] * 5)).rows[0] == Row(".kernel", "Linear", "child", "[5,2,3]", "f32", 30, 120)
    assert summary(spec_like(layer, "decay")).rows[0] == Row(".kernel = 'decay'", "Linear", "child")
    assert summary(jnp.ones(())).rows == (Row("the tree itself", "ArrayImpl", "child", "[]", "f32", 1, 4),)
    assert summary(None).plain.endswith("0 numbers, 0 bytes")
    assert summary([jax.random.key(0)]).rows[0].dtype == "key<fry>"


def test_shardings_have_a_column_where_there_are_any() -> None:
    mesh = jax.make_mesh((4,), ("x",))
    spread = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, PARTITION("x")))
    other = jnp.ones(4)
    shown = summary({"a": spread, "b": other}).plain

    assert "sharding" in shown.splitlines()[1]
    assert shown.splitlines()[3].endswith("P('x',)")
    assert "sharding" not in summary(other).plain


def test_a_training_state_has_a_table() -> None:
    import optax

    state = TrainState.create(params=Linear(jnp.ones((2, 3))), tx=optax.adam(1e-3))

    assert ".opt_state[0].mu.kernel" in summary(state).plain


def test_rich_prints_a_table_of_its_own() -> None:
    shown = io.StringIO()
    rich.console.Console(file=shown, width=120).print(summary(small_net()))

    assert "┃ path" in shown.getvalue()
    assert "[64,32]" in shown.getvalue()
    assert "4,167 numbers" in shown.getvalue()
    assert repr(summary(small_net())) == str(summary(small_net()))


def test_print_shows_richs_table_in_a_terminal_and_the_plain_one_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    table = summary(Linear(jnp.ones((64, 32))))
    plain = str(table)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)

    assert "┏━" in str(table)
    assert table.plain == plain
    with monkeypatch.context() as without_rich:
        without_rich.setitem(sys.modules, "rich.console", None)
        assert str(table) == plain
    monkeypatch.setattr("sys.stdout", None)
    assert str(table) == plain


def test_a_table_shows_the_tree_as_it_was_when_it_was_asked_for() -> None:
    layers = [Linear(jnp.ones(2))]
    table, expected = summary(layers), summary([Linear(jnp.ones(2))])
    layers.append(Linear(jnp.ones(3)))

    assert table == expected
    assert hash(table) == hash(expected)
    assert table != summary(layers)


def test_a_table_keeps_no_array_once_it_has_been_looked_at() -> None:
    array = jnp.ones(2)
    kept = weakref.ref(array)
    table = summary([array])
    assert table.rows[0].count == 2
    del array

    assert kept() is None


def test_a_table_made_under_jit_keeps_no_tracer() -> None:
    tables: list[Any] = []
    with jax.checking_leaks():
        jax.jit(lambda x: tables.append(summary([x])))(jnp.ones(2))

    assert tables[0].rows[0].shape == "[2]"


def test_a_node_whose_init_has_not_returned_is_refused() -> None:
    class Net(Module):
        w: Any

        def __init__(self) -> None:
            with pytest.raises(UnfinishedNodeError, match="Net: its __init__ has not returned"):
                summary(self)
            self.w = 1.0

    assert Net().w == 1.0
