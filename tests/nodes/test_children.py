"""Children that are settings: the warning at construction, and the note if a method needs the value."""

import dataclasses
import enum
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from treewright import Module, field, static
from treewright.errors import ChildWarning

PARTIAL: Any = jax.tree_util.Partial


class Mode(enum.Enum):
    TRAIN = 1


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3


class Scale(Module):
    factor: float

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.factor * x


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, "relu"),
        (str | None, "relu"),
        (Mode, Mode.TRAIN),
        (Config, Config()),
        (Callable[..., Any], jax.nn.relu),
    ],
)
def test_a_setting_in_a_child_field_warns_at_the_line_that_passes_it(annotation: Any, value: Any) -> None:
    net_class: Any = type("Net", (Module,), {"__annotations__": {"setting": annotation}, "__module__": __name__})

    with pytest.warns(
        ChildWarning, match=r"^Net\.setting is a child but holds .*\n.*\n  setting: .* = static\(\)"
    ) as caught:
        net_class(value)

    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "value",
    [map(Scale, [2.0]), (Scale(2.0) for _ in "a"), zip("a", "b", strict=True), {"a": 2}.values(), {2}, range(2)],
    ids=["map", "generator", "zip", "values", "set", "range"],
)
def test_an_iterable_that_is_not_a_tree_warns_before_jax_treats_it_as_a_leaf(value: Any) -> None:
    net_class: Any = type("Net", (Module,), {"__annotations__": {"layers": list[Any]}, "__module__": __name__})

    with pytest.warns(ChildWarning, match=r"^Net\.layers is a child but holds a") as caught:
        net_class(value)

    assert str(caught[0].message).endswith("Pass a tuple: layers = tuple(...).")
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[Scale, ...], (Scale(2.0), Scale(3.0))),
        (tuple[Scale, ...], jnp.ones(2)),
        (Sequence[Callable[..., Any]], [jnp.tanh]),
        (str, jnp.ones(2)),
        (str, None),
        (Callable[..., Any], Scale(2.0)),
        (Callable[..., Any], Scale(2.0).__call__),
        (Callable[..., Any], PARTIAL(jnp.dot, jnp.ones(2))),
    ],
)
def test_trees_with_leaves_and_untyped_fields_do_not_warn(annotation: Any, value: Any) -> None:
    net_class: Any = type("Net", (Module,), {"__annotations__": {"setting": annotation}, "__module__": __name__})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = net_class(value)
        jax.tree.map(lambda leaf: "label", net)

    assert jax.tree.leaves(net) == jax.tree.leaves(value)


def test_a_field_warns_once_unless_the_warning_is_an_error() -> None:
    class Net(Module):
        name: Any
        mode: Any = 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(ChildWarning, match="name is a child but holds"):
                Net("first")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("first", "second"):
            Net(name)
            Net(1.0, name)

    assert [str(each.message).partition(" ")[0].rpartition(".")[2] for each in caught] == ["name", "mode"]


def test_field_declares_any_value_a_leaf() -> None:
    class Named(Module):
        name: str = field()

    assert jax.tree.leaves(Named("relu")) == ["relu"]


class Branching(Module):
    training: bool
    depth: int
    named: bool = static(default=True)

    def branch(self) -> int:
        return 1 if self.training else 2

    def outer(self) -> int:
        return self.branch()

    def wrong(self, x: Any) -> Any:
        return x + "text"


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_an_error_in_a_traced_method_names_the_child_once(transform: Any) -> None:
    net = jax.tree.map(lambda leaf: jnp.asarray([leaf]) if transform is jax.vmap else leaf, Branching(True, 2))

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        transform(lambda net: net.outer())(net)

    notes = [note for note in caught.value.__notes__ if "static()" in note]
    assert len(set(notes)) == len(notes)
    assert "make it static:\n  training: bool = static()" in notes[0]


def test_unrelated_errors_in_methods_are_unchanged() -> None:
    with pytest.raises(TypeError) as caught:
        Branching(True, 2).wrong(1)

    assert not hasattr(caught.value, "__notes__")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_with_leaves_that_jit_rejects_needs_adopt() -> None:
    eqx = pytest.importorskip("equinox")
    linen = pytest.importorskip("flax.linen")
    mlp, linear = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0)), eqx.nn.Linear(2, 2, key=jax.random.key(0))

    for layer in (mlp, linen.Dense(3)):

        class Net(Module):
            layer: Any

        Net(linear)  # its leaves are arrays
        with pytest.warns(ChildWarning, match=r"layer = treewright\.adopt\(\.\.\.\)$"):
            Net(layer)
