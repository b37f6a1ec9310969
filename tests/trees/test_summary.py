"""`summary`: one table for every kind of tree, the same text everywhere, and a table of rich's."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import weakref
from typing import Any
from xml.etree import ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from jax.sharding import AxisType, NamedSharding

from treewright import Module, Static, TrainState, buffer, count, nbytes, spec_like, stack, static, summary, to_refs
from treewright._trees.summary import Row, Statistics, statistics_of
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


class Oscillator(Module):
    omega: Any
    table: Any
    phase: Any = 0.5
    name: str = static(default="a")


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
        "4,167 numbers, 16,660 bytes (16.3 KiB); 6 of them in buffers; 2,048 of them tied\n"
        ".config['rate']: Python floats as children, so training changes them; static() or buffer() if it should not"
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
    wrong: list[Any] = [0, -1, 1.0, "1"]
    for depth in wrong:
        with pytest.raises(ValueError, match=rf"^summary\(depth=\.\.\.\) takes 1 or more steps, got {depth!r}\.$"):
            summary(small_net(), depth=depth)


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
    assert summary(np.bool_(1)).plain.endswith("1 number, 1 byte")
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


def test_a_table_is_plain_text_as_a_string_and_richs_when_a_terminal_prints_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = summary(Linear(jnp.ones((64, 32))))
    plain = str(table)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)

    def printed() -> str:
        terminal.seek(0)
        terminal.truncate()
        table.print()
        return terminal.getvalue()

    assert plain.isascii()
    assert str(table) == f"{table}" == repr(table) == table.plain == plain
    assert "┏━" in printed()
    with monkeypatch.context() as without_rich:
        without_rich.setitem(sys.modules, "rich.console", None)
        assert printed() == f"{plain}\n"
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    assert printed() == f"{plain}\n"
    monkeypatch.setattr("sys.stdout", None)
    table.print()


def test_a_notebook_shows_a_table() -> None:
    shown: Any = summary({"<b>": Linear(jnp.ones((64, 32)))})
    page = ET.fromstring(shown._repr_html_().replace("<br>", ""))

    texts = [[cell.text or "" for cell in row] for row in page.iter("tr")]
    assert texts[0] == ["path", "class", "kind", "shape", "dtype", "count", "bytes"]
    assert texts[1] == ["['<b>'].kernel", "Linear", "child", "[64,32]", "f32", "2,048", "8,192"]
    assert texts[-1] == [shown.total]
    assert [row.get("style") for row in page.iter("tr")][1:4] == ["opacity:1", "opacity:0.65", "opacity:1"]


# Values


def test_values_are_shown_where_they_were_asked_for() -> None:
    model = Oscillator(jnp.asarray(2.5), jnp.array([1, -1, jnp.nan, jnp.inf]))

    assert str(summary(model, values=True)) == (
        "Oscillator\n"
        "path          class       kind    shape  dtype  count  bytes  mean  std  min  max  not finite\n"
        "------------  ----------  ------  -----  -----  -----  -----  ----  ---  ---  ---  ----------\n"
        ".omega = 2.5  Oscillator  child   []     f32        1      4\n"
        ".table        Oscillator  child   [4]    f32        4     16     0    1   -1    1           2\n"
        ".phase = 0.5  Oscillator  child          float      1      4\n"
        ".name = 'a'   Oscillator  static\n"
        "6 numbers, 24 bytes\n"
        ".phase: Python floats as children, so training changes them; static() or buffer() if it should not"
    )
    (row,) = summary([model.table], values=True, depth=1).rows
    assert row.values == Statistics(2, 0.0, 1.0, -1.0, 1.0, 2)
    assert all(row.values is None for row in summary(model).rows)


def test_what_is_below_the_depth_has_the_values_of_all_of_it() -> None:
    parts = {"a": jnp.arange(5.0), "b": {"c": jnp.array([7.0, jnp.nan]), "d": jnp.array(jnp.nan), "e": "text"}}
    (row,) = summary([parts], values=True, depth=1).rows
    assert row.values is not None
    whole = np.array([0, 1, 2, 3, 4, 7])
    expected = (6, whole.mean(), whole.std(), 0.0, 7.0, 2)
    np.testing.assert_allclose(dataclasses.astuple(row.values), expected, rtol=1e-6)


NUMBERS: dict[str, Any] = {
    "floats": lambda: jnp.linspace(-3, 5, 11),
    "bfloat16": lambda: jnp.linspace(-3, 5, 11).astype(jnp.bfloat16),
    "float8": lambda: jnp.linspace(-3, 5, 11).astype(jnp.float8_e4m3fn),
    "integers": lambda: jnp.arange(-5, 20),
    "small integers": lambda: jnp.arange(-5, 5).astype(jnp.int4),
    "bools": lambda: jnp.array([True, False, True]),
    "numpy": lambda: np.linspace(-3, 5, 11),
    "spread over devices": lambda: jax.device_put(
        jnp.arange(16.0), jax.NamedSharding(jax.make_mesh((4,), ("x",)), PARTITION("x"))
    ),
    "large": lambda: jnp.linspace(-3, 5, 2**18 + 1),
    "large of numpy": lambda: np.linspace(-3e200, 5e200, 2**18 + 1),
    "huge": lambda: jnp.linspace(1e38, 3e38, 2**18 + 1),
    "tiny": lambda: jnp.linspace(1e-30, 3e-30, 2**18 + 1),
    "far from zero": lambda: jnp.linspace(999_990, 1_000_010, 2**18 + 1),
    "too far from zero for their mean": lambda: jnp.arange(2**18 + 2) % 22 + 16_000_000.0,
    "zeros": lambda: jnp.zeros(2**18 + 1),
    "64 bits": lambda: in_64_bits([-3e200, 1e200, 5e200]),
    "large in 64 bits": lambda: in_64_bits(np.linspace(-3e200, 5e200, 2**18 + 1)),
}


def in_64_bits(numbers: Any) -> jax.Array:
    with jax.enable_x64(True):
        return jnp.asarray(numbers, jnp.float64)


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_the_values_are_those_of_numpy(make: Any) -> None:
    array = make()
    whole = np.asarray(array).astype(np.float64)

    (found,) = statistics_of([array])

    assert found is not None
    size = max(np.abs(whole).max(), 1e-300)
    expected = (whole.size, (whole / size).mean() * size, (whole / size).std() * size, whole.min(), whole.max(), 0)
    np.testing.assert_allclose(dataclasses.astuple(found), expected, rtol=1e-5)
    halves = summary([list(np.split(whole, [whole.size // 3]))], values=True, depth=1).rows[0].values
    assert halves is not None
    np.testing.assert_allclose(dataclasses.astuple(halves), expected, rtol=1e-5)


def test_large_arrays_are_reduced_where_they_are_and_say_the_same() -> None:
    array = jnp.linspace(-3, 5, 2**18 + 1).at[:3].set(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))

    (large,), (rest,) = statistics_of([array]), statistics_of([array[3:10_000]])

    assert large is not None
    assert rest is not None
    assert (large.not_finite, rest.not_finite) == (3, 0)
    assert large.low == rest.low
    assert large.finite == 2**18 - 2


def test_what_has_no_numbers_to_be_read_has_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = jnp.ones(3)
    deleted.delete()
    abstract: Any = jax.ShapeDtypeStruct
    without = [deleted, jax.random.key(0), jnp.ones(2, jnp.complex64), jnp.zeros(0), abstract((2,), jnp.float32)]
    assert statistics_of([*without, np.array(["a"]), "text", None, 1.0]) == [None] * 9
    assert summary([without[1:], None], values=True, depth=1).rows[0].values is None
    nothing = summary([jnp.array([jnp.nan])], values=True)
    assert nothing.rows[0].cells()[-6:] == ("", "", "", "", "1", "")
    assert summary([[jnp.array([jnp.nan])]], values=True, depth=1).rows[0].cells()[-6:-1] == ("", "", "", "", "1")
    array = jnp.ones(3)
    monkeypatch.setattr(type(array.sharding), "is_fully_addressable", property(lambda _: False))
    assert statistics_of([array]) == [None]


def test_values_can_be_had_of_arrays_anywhere_under_any_mesh() -> None:
    auto = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    explicit = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    whole, meshes = jnp.linspace(-3, 5, 2**18 + 4), (auto, explicit)
    arrays = [jax.device_put(whole, NamedSharding(mesh, PARTITION(mesh.axis_names[0]))) for mesh in meshes]
    arrays += [whole, jax.device_put(whole, jax.devices()[3])]

    for mesh in (None, *meshes):
        with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
            for found in statistics_of(arrays):
                assert found is not None
                np.testing.assert_allclose((found.mean, found.low, found.high), (1.0, -3.0, 5.0), rtol=1e-5)


@pytest.mark.parametrize("option", ["jax_debug_nans", "jax_debug_infs"])
def test_values_can_be_had_where_jax_looks_for_nan_itself(option: str) -> None:
    arrays = [jnp.full(size, value) for size in (3, 2**18 + 1) for value in (jnp.nan, jnp.inf)]
    with getattr(jax, option.removeprefix("jax_"))(True):
        found = statistics_of(arrays)

    assert [one and one.not_finite for one in found] == [3, 3, 2**18 + 1, 2**18 + 1]


def test_values_of_refs_are_those_that_they_hold() -> None:
    refs = to_refs({"kernel": jnp.arange(4.0), "rate": 0.5})
    kept: Any = refs["kernel"]
    kept[...] *= 2

    kernel, rate = summary(refs, values=True).rows
    assert (kernel.dtype, kernel.values and kernel.values.mean) == ("f32 (ref)", 3.0)
    assert (rate.path, rate.values) == ("['rate'] = 0.5", None)

    def traced(refs: Any) -> None:
        assert [row.values for row in summary(refs, values=True).rows] == [None, None]

    assert "get" not in str(jax.make_jaxpr(traced)(refs))  # nothing is read in the program


def test_under_jit_values_are_those_of_what_is_not_traced() -> None:
    known = jnp.array([1.0, 3.0])
    tables: list[Any] = []
    with jax.checking_leaks():
        jax.jit(lambda x: tables.append(summary([x, known], values=True)))(jnp.ones(2))

    assert [row.values and row.values.mean for row in tables[0].rows] == [None, 2.0]


def test_values_are_those_of_the_moment_when_they_were_asked_for() -> None:
    array = jnp.array([1.0, 3.0])
    table = summary([array], values=True)
    array.delete()

    assert table.rows[0].cells()[7] == "2"


# Python numbers as children


def test_of_python_numbers_that_are_children_it_is_said_that_they_are_trained_or_traced() -> None:
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
