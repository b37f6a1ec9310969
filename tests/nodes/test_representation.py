"""`repr`: short arrays, full statics, and no failure for any value; also rich, notebooks and other printers."""

import collections
import functools
import io
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
import treescope
import wadler_lindig

from tests.conftest import one_line
from treewright import FrozenMapping, Module, Static, field, freeze, pytree_dataclass, static
from treewright.errors import StaticFieldError, UnfinishedNodeError

# jax's own constructors of these have no types.
partition_spec: Any = jax.P
abstract: Any = jax.ShapeDtypeStruct


@pytree_dataclass
class Box:
    value: Any = field()


@pytree_dataclass
class Layer:
    kernel: Any = field()
    bias: Any = field(default=None)
    activation: Any = static(default="relu")


class Net(Module):
    layers: Any
    name: str = static()
    secret: Any = field(default=0, repr=False)

    def __init__(self, *layers: Any, name: str = "net") -> None:
        self.layers = list(layers)
        self.name = name

    def shown(self) -> str:
        return repr(self)


class Sizes(NamedTuple):
    inputs: int
    outputs: Any


class Half(Module):
    first: Any
    second: Any = 2
    seen: Any = static(default=())

    def __init__(self, fail: bool) -> None:
        before = repr(self)
        self.first = jnp.ones(3)
        self.seen = (before, repr(self), str(self), f"{self}")
        if fail:
            abandoned.append(self)
            raise RuntimeError("no")


abandoned: list[Half] = []


# Leaves and containers

SHORT: dict[str, tuple[Callable[[], Any], str]] = {
    "f32": (lambda: jnp.ones((784, 128)), "f32[784,128]"),
    "bf16": (lambda: jnp.ones(3, jnp.bfloat16), "bf16[3]"),
    "scalar": (lambda: jnp.asarray(1), "i32(1)"),
    "scalar float": (lambda: jnp.asarray(0.1), "f32(0.1)"),
    "scalar bool": (lambda: jnp.asarray(True), "bool(True)"),
    "scalar NaN": (lambda: jnp.asarray(jnp.nan), "f32(nan)"),
    "time of numpy": (lambda: np.array("2026-01-01", "M8[D]"), "datetime64[D][](numpy)"),
    "bool": (lambda: jnp.array([True]), "bool[1]"),
    "c64": (lambda: jnp.asarray(1 - 2j), "c64(1-2j)"),
    "float8": (lambda: jnp.ones(2, jnp.float8_e4m3fn), "f8_e4m3fn[2]"),
    "typed key": (lambda: jax.random.key(0), "key<fry>[]"),
    "typed keys": (lambda: jax.random.split(jax.random.key(0), 3), "key<fry>[3]"),
    "numpy": (lambda: np.ones((2, 3)), "f64[2,3](numpy)"),
    "numpy objects": (lambda: np.array([None]), "object[1](numpy)"),
    "numpy scalar": (lambda: np.float32(2), "np.float32(2.0)"),
    "ShapeDtypeStruct": (lambda: abstract((2,), jnp.float32), "f32[2](abstract)"),
    "PartitionSpec": (lambda: partition_spec("x", None), repr(partition_spec("x", None))),
    "dtype": (lambda: np.dtype("float32"), "dtype('float32')"),
    "str": (lambda: "a'b", '"a\'b"'),
    "function": (lambda: jnp.sum, "sum"),
    "custom function": (lambda: jax.nn.relu, "relu"),
    "list": (lambda: [jnp.ones(2), []], "[f32[2], []]"),
    "tuple": (lambda: (jnp.ones(2),), "(f32[2],)"),
    "namedtuple": (lambda: Sizes(3, jnp.ones(2)), "Sizes(inputs=3, outputs=f32[2])"),
    "dict": (lambda: {"a": jnp.ones(2), 1: {}}, "{'a': f32[2], 1: {}}"),
    "node": (lambda: Layer(jnp.ones(2)), "Layer(kernel=f32[2], bias=None, activation='relu')"),
    "static wrapper": (lambda: Static(("a", 1)), "Static(value=('a', 1))"),
}


@pytest.mark.parametrize(("make", "expected"), SHORT.values(), ids=SHORT)
def test_the_repr_is_short(make: Callable[[], Any], expected: str) -> None:
    assert repr(Box(make())) == f"Box(value={expected})"


def test_different_frozen_arrays_print_differently() -> None:
    assert repr(Static(freeze(np.arange(3)))) == "Static(value=i64[3](frozen [0, 1, 2]))"
    texts = {repr(Static(freeze(np.arange(300) + i))) for i in range(2)}
    assert len(texts) == 2
    assert all("i64[300](frozen #" in text for text in texts)


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_repr_marks_deleted_arrays(shape: tuple[int, ...]) -> None:
    deleted = jnp.ones(shape)
    box = Box(deleted)
    deleted.delete()
    assert repr(box) == f"Box(value=f32[{','.join(map(str, shape))}](deleted))"
    assert printed_by_rich(box) == f"{box!r}\n"


def test_repr_omits_unavailable_scalar_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = Box(jnp.asarray(2.5))

    def fail(_: Any) -> Any:
        raise RuntimeError("out of memory")

    with jax.transfer_guard("disallow"):  # forbids only implicit transfers
        assert repr(box) == "Box(value=f32(2.5))"
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_get", fail)
        assert repr(box) == "Box(value=f32[])"
    kind = type(box.value)
    monkeypatch.setattr(kind, "is_fully_addressable", property(lambda _: False))
    assert repr(box) == "Box(value=f32(2.5))"  # replicated
    monkeypatch.setattr(kind, "is_fully_replicated", property(lambda _: False))
    assert repr(box) == "Box(value=f32[])"


# Over several lines


def wide(count: int) -> Any:
    return [Layer(1, bias="x" * 40) for _ in range(count)]


LAID_OUT: dict[str, tuple[Any, str]] = {
    "what fits": (Layer("x" * 42), f"Layer(kernel='{'x' * 42}', bias=None, activation='relu')"),
    "what does not": (
        Layer("x" * 43),
        f"Layer(\n    kernel='{'x' * 43}',\n    bias=None,\n    activation='relu',\n)",
    ),
    "a tuple of one": (
        Box(({"a": "x" * 70},)),
        f"Box(\n    value=(\n        {{'a': '{'x' * 70}'}},\n    ),\n)",
    ),
    "a named tuple": (
        Box(Sizes(3, "x" * 70)),
        f"Box(\n    value=Sizes(\n        inputs=3,\n        outputs='{'x' * 70}',\n    ),\n)",
    ),
    "sets": (
        Box([frozenset({"x" * 60}), {"y" * 60}]),
        f"Box(\n    value=[\n        frozenset({{'{'x' * 60}'}}),\n        {{'{'y' * 60}'}},\n    ],\n)",
    ),
    "numbers fill their lines": (
        Box(tuple(range(40))),
        (
            "Box(\n    value=(\n"
            "        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,\n"
            "        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39\n"
            "    ),\n)"
        ),
    ),
    "a frozen mapping": (
        Box(FrozenMapping({"rates": (0.5,), "text": "x" * 60})),
        f"Box(\n    value=FrozenMapping({{\n        'rates': (0.5,),\n        'text': '{'x' * 60}',\n    }}),\n)",
    ),
    "a partial": (
        Box(functools.partial(print, end="x" * 70)),
        f"Box(\n    value=partial(\n        print,\n        end='{'x' * 70}',\n    ),\n)",
    ),
}


@pytest.mark.parametrize(("node", "expected"), LAID_OUT.values(), ids=LAID_OUT)
def test_long_reprs_are_laid_out_over_several_lines(node: Any, expected: str) -> None:
    assert repr(node) == str(node) == expected


def test_a_custom_multiline_repr_is_indented() -> None:
    class Own(Module):
        value: Any

        def __repr__(self) -> str:
            return "own\nlines"

    assert repr(Layer(1, Own(1))) == "Layer(\n    kernel=1,\n    bias=own\n    lines,\n    activation='relu',\n)"


def test_repr_of_a_large_tree_is_cut_after_about_a_thousand_values() -> None:
    layers = wide(10)
    trees: list[Any] = [Net(*layers * 1000), Net(*[Box(layers)] * 1000), Net(*[[Box(layers)] * 10] * 100)]
    trees += [Net(frozenset(range(10_000)), dict.fromkeys(range(10_000), 1), range(10_000))]
    for tree in trees:
        text = repr(tree)
        assert text.count("\n") < 4000
        assert text.endswith("    name='net',\n)")
        assert re.search(r"    \.\.\.,\n|, \.\.\.\n|\[\.\.\.\],\n", text)
    assert "Box(...)" in repr(trees[1])


def test_messages_show_a_model_on_one_line() -> None:
    net = Net(*wide(5))
    assert "\n" not in repr(net.shown) + str(jax.tree.structure(Static(net.name)))
    with pytest.raises(
        StaticFieldError, match=r"holds a list, \[Net\(layers=\[Layer\(kernel=1, bias='x+', *\.\.\.\.\n"
    ):
        Layer(1, activation=[net])


# Statics


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (tuple(range(10)), repr(tuple(range(10)))),
        (jnp.tanh, "tanh"),
        (freeze({"a": [1, 2]}), "FrozenMapping({'a': (1, 2)})"),
        (frozenset({1}), "frozenset({1})"),
        (Sizes(3, (4, 5)), "Sizes(inputs=3, outputs=(4, 5))"),
        (Layer(1), "Layer(kernel=1, bias=None, activation='relu')"),
        (None, "None"),
    ],
)
def test_statics_are_shown_in_full(value: Any, expected: str) -> None:
    assert repr(Layer(1, activation=value)) == f"Layer(kernel=1, bias=None, activation={expected})"


def test_static_functions_show_name_and_location() -> None:
    assert repr(Layer(1, activation=printed_by_rich)).endswith("activation=printed_by_rich)")
    assert "activation=<lambda at test_representation.py:" in repr(Layer(1, activation=lambda x: x))
    partial = repr(Layer(1, activation=functools.partial(jnp.clip, max=1.0)))
    assert "partial" in partial
    assert "max=1.0" in partial


# Options


def test_fields_with_repr_false_are_left_out() -> None:
    assert repr(Net(name="a")) == "Net(layers=[], name='a')"

    @pytree_dataclass
    class Hidden:
        value: Any = field(default=1, repr=False)
        name: Any = static(default="a", repr=False)

    assert repr(Hidden()).endswith("Hidden()")


# Values that are hard to print


def repr_or_failure(node: Any) -> str:
    """`repr`, or the name of the error, because pytest can't print a traceback of a thousand frames."""
    try:
        return repr(node)
    except RecursionError as error:
        return type(error).__name__


def test_a_traced_node_can_be_printed() -> None:
    texts = []

    def show(box: Box) -> Any:
        texts.append(repr(box))
        return box.value

    jax.jit(show)(Box(jnp.ones((2, 3))))
    jax.grad(show)(Box(1.0))
    jax.vmap(show)(Box(jnp.ones((2, 3))))
    jax.jit(lambda keys: show(Box(keys)))(jax.random.key(0))
    jax.eval_shape(show, Box(jnp.ones(4, jnp.bfloat16)))
    jax.jit(lambda x: (show(Box(jax.lax.create_token())), x)[1])(1.0)  # type: ignore[no-untyped-call]
    assert texts[-1].startswith("Box(value=<")
    assert texts[:-1] == [
        "Box(value=f32[2,3](traced))",
        "Box(value=f32[](traced))",
        "Box(value=f32[3](traced))",
        "Box(value=key<fry>[](traced))",
        "Box(value=bf16[4](traced))",
    ]


def test_a_node_of_placeholders_can_be_printed() -> None:
    layer = Layer(jnp.ones(2), 1.0)
    sentinel = object()
    assert one_line(jax.tree.map(lambda _: sentinel, layer)) == (
        f"Layer(kernel={sentinel!r}, bias={sentinel!r}, activation='relu')"
    )
    assert repr(jax.tree.map(jnp.shape, layer)) == "Layer(kernel=(2,), bias=(), activation='relu')"
    assert repr(jax.tree.map(lambda _: None, layer)) == "Layer(kernel=None, bias=None, activation='relu')"


def test_repr_of_a_cycle_terminates() -> None:
    items: list[Any] = [1]
    items.append(Box(items))
    assert repr(items[1]) == "Box(value=[1, ...])"
    entries: dict[str, Any] = {}
    entries["box"] = Layer(entries, 2)
    assert repr(entries["box"]) == "Layer(kernel={'box': ...}, bias=2, activation='relu')"
    queue: collections.deque[Any] = collections.deque()
    queue.append(Box(queue))
    assert "..." in repr(queue[0])


def test_a_shared_value_is_not_a_cycle() -> None:
    layer = Layer(1)
    text = "Layer(kernel=1, bias=None, activation='relu')"
    assert one_line(Box([layer, {"again": layer}])) == f"Box(value=[{text}, {{'again': {text}}}])"


def test_deep_nesting_can_be_printed() -> None:
    node: Any = jnp.ones(2)
    for _ in range(500):
        node = Box([node])
    text = repr_or_failure(node)
    assert text.startswith("Box(\n    value=[\n        Box(\n            value=[\n")
    assert text.count("...") == 1


def test_an_unfinished_node_shows_its_current_values() -> None:
    nothing, some, *later = Half(fail=False).seen
    assert nothing == "Half(first=<no value>, second=2, seen=())"
    assert some == "Half(first=f32[3], second=2, seen=())"
    assert later == [some, some]


def test_a_node_whose_init_raised_or_never_ran_shows_no_values() -> None:
    with pytest.raises(RuntimeError, match=r"^no$"):
        Half(fail=True)
    node = abandoned.pop()
    assert repr(node) == "Half(first=<no value>, second=<no value>, seen=<no value>)"
    assert repr(Box([node])) == f"Box(value=[{node!r}])"
    assert repr(object.__new__(Box)) == "Box(value=<no value>)"
    with pytest.raises(UnfinishedNodeError, match="an unfinished Half: no __init__ has finished it"):
        _ = node.first


# Printers


def printed_by_rich(value: Any, width: int = 200) -> str:
    output = io.StringIO()
    rich.console.Console(file=output, width=width, color_system=None).print(value)
    return output.getvalue()


def deep_net() -> Net:
    return Net(Layer(jnp.ones((784, 128)), np.ones(3)), Layer(jnp.ones((128, 10))), name="digits")


def test_rich_prints_the_same_text() -> None:
    assert printed_by_rich(deep_net()) == f"{deep_net()!r}\n"
    assert printed_by_rich(Box([jnp.ones(300), {"a": (np.ones(300), "s")}])) == (
        "Box(value=[f32[300], {'a': (f64[300](numpy), 's')}])\n"
    )


# On first use, treescope reads all of numpy, including deprecated names.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:numpy", "ignore:The chararray class")
def test_every_printer_shows_frozen_mappings() -> None:
    box = Box(FrozenMapping({"rate": 0.5}))
    for show in (repr, wadler_lindig.pformat, printed_by_rich, treescope.render_to_text):
        assert "rate" in show(box)


# Bounded


def test_messages_format_only_the_visible_part_of_a_value() -> None:
    written: list[int] = []

    class Item:
        def __repr__(self) -> str:
            written.append(1)
            return "item"

    items = [Item() for _ in range(1000)]
    for value in (items, [items] * 100, dict.fromkeys(range(1000), items), set(items)):
        written.clear()
        with pytest.raises(StaticFieldError, match="item"):
            Layer(1, activation=value)
        assert len(written) <= 200


def test_statics_with_one_text_differ_in_jaxs_messages_by_a_number() -> None:
    class Layer(Module):
        x: Any
        activation: Any = static()

    def times(factor: float) -> Any:
        return lambda x: x * factor

    layers = [Layer(1.0, times(2.0)), Layer(1.0, times(3.0))]
    texts = [str(layer.tree_flatten()[1]) for layer in layers]

    assert texts[0].split(" #")[0] == texts[1].split(" #")[0]
    assert texts[0] != texts[1]
    assert str(Layer(2.0, layers[0].activation).tree_flatten()[1]) == texts[0]
    with pytest.raises(ValueError, match=re.escape(texts[1])):
        jax.tree.map(lambda a, b: a, *layers)
    assert str(Layer(1.0, "relu").tree_flatten()[1]) == "activation='relu'"
