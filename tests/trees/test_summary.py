"""`summary`: one table for every kind of tree, as plain text and in notebooks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, Static, buffer, count, field, freeze, nbytes, spec_like, stack, static, summary

PARTITION: Any = jax.P  # untyped
Row: Any = type(summary(1.0).rows[0])


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
    assert str(summary(small_net())) == (
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
        "4,167 numbers, 16,660 bytes (16.3 KiB); 6 of them in buffers; 2,048 of them tied\n"
        ".config['rate']: Python floats as children, so training changes them; static() or buffer() if it should not"
    )


def test_a_value_that_is_a_static_and_a_child_has_both_rows() -> None:
    half = 0.5
    assert [row.cells()[:5] for row in summary([Linear(half, half), Static(half), half]).rows] == [
        ("[0].kernel = 0.5", "Linear", "child", "", "float"),
        ("[0].activation = 0.5", "Linear", "static", "", ""),
        ("[0].bias = None", "Linear", "child", "", ""),
        ("[1].value = 0.5", "Static", "static", "", ""),
        ("[2] = 0.5", "list", "child", "", "float"),
    ]


def test_only_arrays_among_the_leaves_have_a_dtype() -> None:
    fake = SimpleNamespace(dtype=np.dtype("float32"), shape=(2,))
    values = [np.ones(2, np.float32), np.ones(2, np.int32), fake, Static(freeze(np.ones(2)))]

    assert [row.dtype for row in summary(values).rows[:2]] == ["f32", "i32"]
    assert "= namespace(" in summary(values).rows[2].path
    assert summary(values).rows[3][2:] == ("static", "", "", 0, 0, "")


def test_a_field_with_repr_false_has_a_row_only_for_leaves() -> None:
    class Hidden(Module):
        w: Any = field(repr=False)
        none: Any = field(default=None, repr=False)
        name: str = static(default="a", repr=False)
        inner: Any = static(default=Static(1))

    paths = [row.path for row in summary(Hidden(jnp.ones(2))).rows]
    assert paths == [".w", ".inner = Static(value=1)"]  # a static is one row, also if it is a node


def test_totals_equal_count_and_nbytes_at_every_depth() -> None:
    net = small_net()
    for depth in (None, 1, 2, 3):
        table = summary(net, depth=depth)
        assert sum(row.count for row in table.rows) == count(net)
        assert sum(row.nbytes for row in table.rows) == nbytes(net)
        assert table.total == summary(net).total


def test_rows_below_the_depth_are_summed() -> None:
    assert summary(small_net(), depth=1).rows == (
        Row(".layers", "tuple", "child, tied", "", "f32", 4128, 16512),
        Row(".norm", "Norm", "child, buffer", "", "f32, float, bf16, int", 38, 144),
        Row(".config", "dict", "child", "", "float", 1, 4),
        Row(f".note = '{'x' * 36}...", "Net", "static"),
    )
    assert [row.class_name for row in summary(small_net(), depth=2).rows][:2] == ["Linear", "Linear"]
    assert summary([Static(1)], depth=1).rows == (Row("[0]", "Static", "static"),)
    wrong: list[Any] = [0, -1, 1.0, "1"]
    for depth in wrong:
        with pytest.raises(ValueError, match=rf"^depth= must be a positive integer or None, got {depth!r}\.$"):
            summary(small_net(), depth=depth)


def test_abstract_stacked_and_traced_trees_and_specs_have_tables() -> None:
    layer = Linear(jnp.ones((2, 3)))
    tables: list[Any] = []
    with jax.checking_leaks():  # a table keeps no tracer
        jax.jit(lambda layer: tables.append(summary(layer)))(layer)
    tables.append(summary(jax.eval_shape(lambda: layer)))

    assert list(map(str, tables)) == [str(summary(layer))] * 2
    assert summary(stack([layer] * 5)).rows[0] == Row(".kernel", "Linear", "child", "[5,2,3]", "f32", 30, 120)
    assert summary(spec_like(layer, "decay")).rows[0] == Row(".kernel = 'decay'", "Linear", "child")
    assert summary(jnp.ones(())).title == "jax.Array"
    assert summary(jnp.ones(())).rows == (Row("the tree itself", "jax.Array", "child", "[]", "f32", 1, 4),)
    assert str(summary(None)).endswith("0 numbers, 0 bytes")
    assert str(summary(np.bool_(1))).endswith("1 number, 1 byte")
    assert summary([jax.random.key(0)]).rows[0].dtype == "key<fry>"


def test_a_notebook_shows_a_table() -> None:
    table: Any = summary({"<b>": Linear(jnp.ones((64, 32)))})
    page = ET.fromstring(table._repr_html_().replace("<br>", ""))

    texts = [[cell.text or "" for cell in row] for row in page.iter("tr")]
    assert texts[0] == ["path", "class", "kind", "shape", "dtype", "count", "bytes"]
    assert texts[1] == ["['<b>'].kernel", "Linear", "child", "[64,32]", "f32", "2,048", "8,192"]
    assert texts[-1] == [table.total]
    assert [row.get("style") for row in page.iter("tr")][1:4] == ["opacity:1", "opacity:0.65", "opacity:1"]


# Python numbers as children


def test_summary_notes_python_numbers_among_the_children() -> None:
    class Model(Module):
        w: Any
        temperature: float = 2.0
        width: int = 3
        training: bool = True
        momentum: float = buffer(default=0.9)
        eps: float = static(default=1e-3)

    model = Model(jnp.ones(2))
    floats = "Python floats as children, so training changes them; static() or buffer() if it should not"
    others = "Python ints or bools as children, so jit traces them; static() if they are settings"

    assert summary(model).notes == (f".temperature: {floats}", f".width, .training: {others}")
    assert str(summary(model)).splitlines()[-2:] == list(summary(model).notes)
    assert summary([model] * 4).notes[0] == f"[0].temperature, [1].temperature, [2].temperature, ...: {floats}"
    nowhere = [Model(1.0), {"w": jnp.ones(2), "temperature": 2.0}, spec_like(model, 0.5), [1.0, jnp.ones(2)]]
    assert [summary(tree).notes for tree in nowhere] == [()] * 4


def test_a_table_is_a_snapshot_of_the_tree() -> None:
    layers = [Linear(jnp.ones(2))]
    table, expected = summary(layers), summary([Linear(jnp.ones(2))])
    layers.append(Linear(jnp.ones(3)))

    assert table == expected
    assert hash(table) == hash(expected)
    assert table != summary(layers)


@pytest.mark.devices(4)
def test_equal_layouts_have_equal_texts_at_every_depth_and_when_traced() -> None:
    mesh = jax.make_mesh((2, 2), ("x", "y"))

    def put(array: Any, *axes: Any) -> Any:
        return jax.device_put(array, jax.NamedSharding(mesh, PARTITION(*axes)))

    layer = Linear(put(jnp.ones((8, 4)), "x"), bias=put(jnp.ones(4)))
    computed = jax.tree.map(lambda array: array + 1, layer)
    traced: list[Any] = []
    with jax.set_mesh(mesh):
        jax.jit(lambda layer: traced.append(summary(layer)))(layer)

    for table in (summary(layer), summary(computed), *traced):
        assert [row.sharding for row in table.rows if row.kind == "child"] == ["P('x',)", "P()"]
    assert [row.sharding for row in summary({"a": layer}, depth=1).rows] == ["P('x',), P()"]
    assert str(summary(layer)).splitlines()[1].endswith("  sharding")
    assert "sharding" not in str(summary(jnp.ones(4)))


def test_a_child_that_is_nested_deeper_than_a_line_is_wide_can_be_printed() -> None:
    nested: Any = "y" * 60
    for _ in range(40):
        nested = [nested, "y" * 60]

    assert repr(Norm(nested)).count("y" * 60) == 41
