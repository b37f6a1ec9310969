"""The grammar of `where=`: what each form selects, or how it fails, in every function that accepts it."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, adopt, at, buffer, partition, spec_like, static, trainable

if TYPE_CHECKING:
    from collections.abc import Callable


class Linear(Module):
    kernel: Any
    bias: Any = None
    mean: Any = buffer(default=0.0)
    activation: Any = static(default="relu")


class Net(Module):
    layers: Any
    table: Any
    name: str = static(default="net")
    rest: Any = ()
    note: Any = static(default=None)

    def __call__(self, x: Any) -> Any:
        """So its masks can be called too."""


class Pair(NamedTuple):
    left: Any
    right: Any


class Point(Module):
    x: Any


def arrays(count: int) -> list[Any]:
    return [jnp.full((2, index + 1), float(index)) for index in range(count)]


A = arrays(9)
NET = Net((Linear(A[0], A[1], A[2]), Linear(A[3], None, A[4])), {"*": A[8], "a": A[5], "b": [Pair(A[6], A[7])]})
LEAVES = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(NET)]
KERNELS = [".layers[0].kernel", ".layers[1].kernel"]
FIRST = [".layers[0].kernel", ".layers[0].bias", ".layers[0].mean"]


class Picker(Module):
    def pick(self, tree: Any) -> Any:
        return tree.layers[1]

    def any(self, *trees: Any, last: bool = True, **options: Any) -> Any:
        return trees[0].layers[1]

    def one(self, tree: Any, *trees: Any) -> Any:
        return tree.layers[1]


class IsNet:
    """A predicate that is no function."""

    def __call__(self, path: str, value: Any, exact: bool = True) -> bool:
        return value is NET.layers[1] or path == ".name"


def is_array(path: str, value: Any) -> bool:
    return isinstance(value, jax.Array)


def ends_with(end: str, path: str, value: Any) -> bool:
    return path.endswith(end)


def mask(*places: str) -> Any:
    return spec_like(NET, False, dict.fromkeys(places, True))


# The places that `at` selects; the other functions select the leaves at and below them.
FORMS: list[tuple[Any, list[str]]] = [
    # The text of a path
    (".table", [".table"]),
    ("table", [".table"]),
    ("", [""]),
    (".layers[0].kernel", KERNELS[:1]),
    ("layers[-1].kernel", KERNELS[1:]),
    (".layers[1]", [".layers[1]"]),
    (".table['a']", [".table['a']"]),
    (".table['*']", [".table['*']"]),
    ('.table["b"][0].left', [".table['b'][0].left"]),
    (".table['b'][0][1]", [".table['b'][0].right"]),
    # A pattern
    (".layers[*].kernel", KERNELS),
    (".layers[-1].*", [f".layers[1].{name}" for name in ("kernel", "bias", "mean", "activation")]),
    (".layers[0].*a*", [".layers[0].bias", ".layers[0].mean", ".layers[0].activation"]),
    ("**.kernel", KERNELS),
    ("**.k*", KERNELS),
    ("**['a']", [".table['a']"]),
    ("**['*']", [".table['*']"]),
    ("**[0].right", [".table['b'][0].right"]),
    ("**.table**.left", [".table['b'][0].left"]),
    (".table.**.left", [".table['b'][0].left"]),
    ("**", [""]),
    ("**[-1]", [".layers[1]", ".table['b'][0]"]),
    ("**.bias", [".layers[0].bias", ".layers[1].bias"]),
    # A function of the tree
    (lambda m: m.layers[0].kernel, KERNELS[:1]),
    (lambda m: m.layers[-1], [".layers[1]"]),
    (lambda m: m.table["b"], [".table['b']"]),
    (lambda m: m, [""]),
    (lambda m: (m.layers[0].kernel, m.table["a"]), [KERNELS[0], ".table['a']"]),
    (lambda m: [m.table["a"], m.layers[0].kernel], [".table['a']", KERNELS[0]]),
    (lambda m: {"k": [layer.kernel for layer in m.layers]}, KERNELS),
    (lambda m, i=1: m.layers[i].kernel, KERNELS[1:]),
    (lambda m=NET: m.layers[1], [".layers[1]"]),
    (lambda *trees: trees[0].layers[1], [".layers[1]"]),
    (functools.partial(lambda m, *, i: m.layers[i], i=1), [".layers[1]"]),
    (operator.attrgetter("table"), [".table"]),
    (Picker().pick, [".layers[1]"]),
    (Picker().any, [".layers[1]"]),
    (Picker().one, [".layers[1]"]),
    # A predicate
    (lambda path, value: isinstance(value, Linear), [".layers[0]", ".layers[1]"]),
    (lambda path, value: path.endswith("kernel"), KERNELS),
    (lambda path, value: is_array(path, value) and value.shape == (2, 6), [".table['a']"]),
    (lambda path, value: np.bool_("kernel" in path), KERNELS),
    (lambda path, value: is_array(path, value) and value[0, 0] == 5.0, [".table['a']"]),  # a bool of JAX
    (is_array, LEAVES),
    (IsNet(), [".layers[1]", ".name"]),
    (functools.partial(ends_with, "kernel"), KERNELS),
    # A class
    (Linear, [".layers[0]", ".layers[1]"]),
    (Module, [""]),
    (dict, [".table"]),
    (Pair, [".table['b'][0]"]),
    (jax.Array, LEAVES),
    # A mask
    (True, LEAVES),
    (Net((True, False), {"*": False, "a": np.True_, "b": False}), [*FIRST, ".table['a']"]),
    (mask("**.kernel"), KERNELS),
    (lambda m: spec_like(m, False, {".layers[0]": True}), FIRST),
    (lambda m: Net((False, False), dict.fromkeys(m.table, True)), LEAVES[5:]),
    (trainable, [place for place in LEAVES if "mean" not in place]),
]


def is_below(leaf: str, place: str) -> bool:
    return leaf.startswith(place) and leaf[len(place) :][:1] in {"", ".", "["}


@pytest.mark.parametrize(("where", "places"), FORMS)
def test_every_function_selects_the_same(where: Any, places: list[str]) -> None:
    assert repr(at(NET, where)) == f"<at {', '.join(f'Net{place}' for place in places)}>"
    leaves = [leaf for leaf in LEAVES if any(is_below(leaf, place) for place in places)]
    halves = partition(NET, where)
    assert [leaf for leaf, value in zip(LEAVES, settings(halves[0]), strict=True) if value is not None] == leaves
    assert [leaf for leaf, value in zip(LEAVES, settings(halves[1]), strict=True) if value is None] == leaves
    buffers = jax.tree.leaves(partition(adopt(NET, buffers=where), trainable)[1])
    own = {id(layer.mean) for layer in NET.layers}
    assert {id(each) for each in buffers} == {id(value) for value in jax.tree.leaves(halves[0])} | own
    if not isinstance(where, Net):  # a key has a hash
        spec = spec_like(NET, "no", {where: "yes"})
        assert [leaf for leaf, value in zip(LEAVES, jax.tree.leaves(spec), strict=True) if value == "yes"] == leaves


def settings(half: Any) -> list[Any]:
    """For each leaf of `NET`, the value in a half."""
    leaves = jax.tree_util.tree_leaves_with_path(half, is_leaf=lambda value: value is None)
    by_path = {jax.tree_util.keystr(path): value for path, value in leaves}
    return [by_path[leaf] for leaf in LEAVES]


FIELDS = ".layers, .table, .name, .rest, .note"
STEPS = 'A step is .name, [0], [\'name\'], .*, [*] or **, as in ".layers[*].kernel" or "**.bias".'
FORM = "TypeError: where= must be a path, a function, a predicate, a class or a mask (a tree of bools), but got "
HOW = "A function of one argument is called with the whole tree"
NO_PLACE = (
    "TypeError: The where function must return a place in the tree, or a tuple, list or dict of places, but returned"
)
NO_BOOL = "TypeError: The predicate must return True or False, but returned"
NO_NDIM = "AttributeError: 'Net' object has no attribute 'ndim'\n"
# The error of all functions, with its notes. A text that ends with a full stop is the whole.
MISTAKES: list[tuple[Any, str]] = [
    # The text of a path
    (".layrs", f"MissingPlaceError: Net has no .layrs (did you mean .layers?). It has {FIELDS}."),
    (".layers[9]", "MissingPlaceError: Net.layers (tuple) has no [9]. It has [0] to [1]."),
    (".layers[-3]", "MissingPlaceError: Net.layers (tuple) has no [-3]. It has [0] to [1]."),
    (".table['c']", "MissingPlaceError: Net.table (dict) has no ['c']. It has ['*'], ['a'], ['b']."),
    (".table['a'].x", "MissingPlaceError: Net.table['a'] is a leaf, f32[2,6], without a place .x below it."),
    (".table['b'][0][2]", "MissingPlaceError: Net.table['b'][0] (Pair) has no [2]. It has .left, .right."),
    (".rest[0]", "MissingPlaceError: Net.rest (tuple) has no [0]. It has nothing."),
    (".layers[1].bias.x", "MissingPlaceError: Net.layers[1].bias (None) has no .x. It has nothing."),
    ("['table']", f"MissingPlaceError: Net has no ['table'] (did you mean .table?). It has {FIELDS}."),
    (
        "kernel",
        f'MissingPlaceError: Net has no .kernel. It has {FIELDS}. To select it at any depth, write "**.kernel".',
    ),
    (
        "layers.0.bias",
        f"ValueError: 'layers.0.bias' is not a path: '.0.bias' is not a step. {STEPS} Did you mean 'layers[0].bias'?",
    ),
    (".layers[", f"ValueError: '.layers[' is not a path: '[' is not a step. {STEPS}"),
    (".layers[0]bias", "ValueError: '.layers[0]bias' is not a path: 'bias' is not a step"),
    ("(0]", f"ValueError: '(0]' is not a path: '(0]' is not a step. {STEPS}"),
    ("a b", "ValueError: 'a b' is not a path: ' b' is not a step"),
    (".table..b", "ValueError: '.table..b' is not a path: '..b' is not a step"),
    (".table[b]", "ValueError: '.table[b]' is not a path: '[b]' is not a step"),
    # A pattern
    (
        "**.nothing",
        "MissingPlaceError: Nothing in Net matches **.nothing. It has .activation, .bias, .kernel, .layers, ",
    ),
    (".layers[*].nothing", "MissingPlaceError: Nothing in Net matches .layers[*].nothing. It has "),
    (".layers.*.bias", "MissingPlaceError: Nothing in Net matches .layers.*.bias. It has "),
    # A function of the tree
    (
        lambda m: m.layrs,
        "AttributeError: 'Net' object has no attribute 'layrs'\nNet has no .layrs (did you mean .layers?",
    ),
    (lambda m: m.layers[9], "IndexError: tuple index out of range\nNet.layers (tuple) has no [9]. It has [0] to [1]."),
    (lambda m: m.table["c"], "KeyError: 'c'\nNet.table (dict) has no ['c']. It has "),
    (
        lambda m: m.layers[0].kernel * 2,
        f"{NO_PLACE} f32[2,1], which is not in Net. To compute with a value or change pa",
    ),
    (lambda m: [m.table["a"], 8.5], f"{NO_PLACE} 8.5, which is not in Net"),
    (lambda m: len(m.layers), f"{NO_PLACE} 2, which is not in Net"),
    (
        lambda m: None,
        "ValueError: The where function returned None, which is at 2 places of Net: .layers[1].bias, .note. ",
    ),
    (lambda m: True, f"TypeError: The where function returned True for the whole tree. {HOW}"),
    (lambda m: m is None, f"TypeError: The where function returned False for the whole tree. {HOW}"),
    (lambda leaf: leaf.ndim == 2, f"{NO_NDIM}Net has no .ndim. It has {FIELDS}. {HOW}"),
    (lambda m: [], "MissingPlaceError: The where function returned no places of Net, but []."),
    (lambda m: ({}, []), "MissingPlaceError: The where function returned no places of Net, but ({}, [])."),
    (lambda m: (m.layers, m.layers[0]), "ValueError: Net.layers[0] is inside Net.layers, which is also selected"),
    (lambda m: (m.name, m.name), "ValueError: Net.name is selected twice, so it could get two values. Select it once."),
    (lambda: 1, f"{FORM}<lambda at "),
    (lambda net, path, value: True, f"{FORM}<lambda at "),
    # A predicate
    (
        lambda path, value: False,
        "MissingPlaceError: The predicate is true nowhere in Net. It is called with paths such ",
    ),
    (lambda path, value: None, f"{NO_BOOL} None for Net. Does it lack a return?"),
    (lambda path, value: path.find("kernel"), f"{NO_BOOL} -1 for Net. Write a comparison, or bool(...)."),
    (lambda path, value: path or "no", f"{NO_BOOL} 'no' for Net"),
    (lambda path, value: [False], f"{NO_BOOL} [False] for Net"),
    (lambda path, value: np.ones(2, bool), f"{NO_BOOL} bool[2](numpy) for Net"),
    (
        lambda path, leaf: leaf.ndim == 2,
        f"{NO_NDIM}The predicate was called with Net. It is called with nodes, containe",
    ),
    # A class
    (complex, "MissingPlaceError: Net contains no complex."),
    (Point, "MissingPlaceError: Net contains no Point."),
    # A mask
    (None, f"{FORM}None."),
    (3, f"{FORM}3."),
    (Point(1.0), f"{FORM}Point(x=1.0)."),
    (Net((1,), 2), f"{FORM}Net(layers=(1,), table=2, "),
    (("layers", 0), f"{FORM}('layers', 0)."),
    (Net((True, 2), True), "TypeError: A mask needs True or False for each leaf, got 2."),
    ((True, True), "ValueError: where= is not a prefix of the tree. "),
]
# What `at` selects, but has no leaf for the other functions.
WITHOUT_LEAVES: list[tuple[Any, str]] = [
    (".layers[1].bias", "No leaf at Net.layers[1].bias: None is not a leaf."),
    (lambda m: [layer.bias for layer in m.layers], "No leaf at Net.layers[1].bias: None is not a leaf."),
    (lambda path, value: path == ".layers[1].bias", "No leaf at Net.layers[1].bias: None is not a leaf."),
    (".rest", "No leaf at Net.rest."),
    (".name", "No leaf at Net.name: a static has no leaves and no settings. To change it: at(tree, where).set(value)."),
    ("name", "No leaf at Net.name: a static has no leaves and no settings. To change it: at(tree, where).set(value)."),
    (".note", "No leaf at Net.note: a static has no leaves and no settings. To change it: at(tree, where).set(value)."),
    (lambda m: m.layers[0].activation, "No leaf at Net.layers[0].activation: a static has no leaves and no settings."),
    (
        "**.activation",
        "No leaf at Net.layers[0].activation, Net.layers[1].activation: a static has no leaves and no settings.",
    ),
]


def errors(where: Any) -> list[str]:
    """The errors of all functions, with their notes."""
    functions: list[Callable[[Any], Any]] = [lambda where: at(NET, where), lambda where: partition(NET, where)]
    if not isinstance(where, Net | Point):  # a key has a hash
        functions.append(lambda where: spec_like(NET, 0, {where: 1}))
    if where is not None:  # the default of buffers=
        functions.append(lambda where: adopt(NET, buffers=where))
    found = []
    for select in functions:
        try:
            select(where)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            notes = getattr(error, "__notes__", [])
            found.append("\n".join([f"{type(error).__name__}: {error}", *notes]))
        else:
            found.append("")
    return found


@pytest.mark.parametrize(("where", "text"), MISTAKES)
def test_every_function_rejects_a_mistake_with_one_message(where: Any, text: str) -> None:
    (message,) = {*errors(where)}
    assert message == text if text.endswith(".") else message.startswith(text)


@pytest.mark.parametrize(("where", "text"), WITHOUT_LEAVES)
def test_a_place_without_a_leaf_is_selected_only_by_at(where: Any, text: str) -> None:
    of_at, *others = errors(where)
    assert of_at == ""
    assert all(message.startswith(f"ValueError: {text}") for message in others)


def test_a_mask_may_have_a_class_that_can_be_called() -> None:
    partial: Any = jax.tree_util.Partial
    assert jax.tree.leaves(partition(partial(len, 1.0), partial(len, True))[0]) == [1.0]


def test_a_mask_may_select_nothing_but_in_at() -> None:
    assert jax.tree.leaves(partition(NET, np.False_)[0]) == jax.tree.leaves(partition(NET, mask())[0]) == []
    assert partition([], []) == ([], [])
    assert errors(mask())[0] == "MissingPlaceError: The mask is True for no leaf of Net."
