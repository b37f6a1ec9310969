"""`count`, `nbytes` and `find_aliases`: on arrays, abstract arrays and tracers."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, TrainState, buffer, count, find_aliases, nbytes, partition, static, trainable
from treewright.checkpoint import load, save

if TYPE_CHECKING:
    from pathlib import Path

# jax's own constructors of these have no types.
ABSTRACT: Any = jax.ShapeDtypeStruct
PARTITION: Any = jax.P


class Layer(Module):
    kernel: Any
    mean: Any = buffer(default=None)
    table: Any = static(default=None)


class Net(Module):
    layers: Any
    rate: Any = 0.1


def small_net() -> Net:
    half = jnp.ones((3, 1), jnp.bfloat16)
    return Net([Layer(jnp.ones((2, 3)), np.zeros(3)), Layer({"a": half, "s": "text", "f": len}, table=(1, 2))])


def test_all_numbers_are_counted() -> None:
    net = small_net()

    assert (count(net), nbytes(net)) == (6 + 3 + 3 + 1, 24 + 24 + 6 + 4)
    assert count(partition(net, trainable)[0]) == 10
    assert (count(None), nbytes([])) == (0, 0)
    assert (count([True, 1, 1.0, 1j, np.float32(1)]), nbytes([True, 1, 1.0, 1j])) == (5, 1 + 4 + 4 + 8)
    assert (count(jax.random.key(0)), nbytes(jax.random.key(0))) == (1, 8)


def test_sizes_by_field_and_by_class() -> None:
    net = small_net()

    assert count(net, by="field") == {"layers": 12, "rate": 1}
    assert count(net, by="class") == {"Layer": 12, "Net": 1}
    assert nbytes(net, by="class") == {"Layer": 54, "Net": 4}
    assert nbytes({"a": [net, 1.0], "b": 2.0}, by="field") == {"a": 62, "b": 4}
    assert count([net, {"x": 1.0}], by="field") == {"0": 13, "1": 1}
    assert count([net, {"x": 1.0}], by="class") == {"Layer": 12, "Net": 1, "list": 1}
    assert count(jnp.ones(3), by="field") == {"Array": 3}
    with pytest.raises(ValueError, match=r"""^by= is "field" or "class", got 'path'\.$"""):
        count(net, by="path")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_abstract_arrays_and_tracers_have_sizes() -> None:
    sizes: list[Any] = []

    def measure(net: Any) -> Any:
        sizes.append((count(net), nbytes(net), count(net, by="class")))
        return net

    net = Net([Layer(jnp.ones((2, 3)))], 1.0)
    abstract = jax.eval_shape(lambda: net)
    jax.jit(measure)(net)
    jax.vmap(measure)(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), net))
    measure(abstract)

    assert sizes == [(7, 28, {"Layer": 6, "Net": 1})] * 3


# Aliases


def test_one_array_in_several_places_is_found() -> None:
    array, other = jnp.ones(3), np.ones(3)
    tree = Net([Layer(array, other), Layer(array, other)], array)

    assert find_aliases(tree) == [
        (".layers[0].kernel", ".layers[1].kernel", ".rate"),
        (".layers[0].mean", ".layers[1].mean"),
    ]
    assert find_aliases(Net([Layer(array), Layer(array.copy())])) == []


def test_two_objects_with_one_buffer_are_one_array() -> None:
    array = jnp.arange(8.0)

    assert find_aliases({"a": array, "b": jax.device_put(array), "c": array[:], "d": array + 0}) == [
        ("['a']", "['b']", "['c']")
    ]
    mesh = jax.make_mesh((4,), ("x",))
    sharded = jax.device_put(array, jax.NamedSharding(mesh, PARTITION("x")))
    assert find_aliases([sharded, sharded, array]) == [("[0]", "[1]")]


def test_where_a_platform_tells_no_pointers_one_object_is_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    array = jnp.ones(3)

    def refuse(_: Any) -> None:
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")

    monkeypatch.setattr(type(array), "unsafe_buffer_pointer", refuse)
    assert find_aliases([array, array, jnp.ones(3)]) == [("[0]", "[1]")]


def test_what_is_no_array_is_no_alias() -> None:
    shape = ABSTRACT((3,), jnp.float32)

    assert find_aliases([1, 1, "a", "a", None, None, len, len, shape, shape]) == []
    assert find_aliases([Layer(1, table=(1, 2)), Layer(1, table=(1, 2))]) == []


def test_arrays_that_are_deleted_or_traced_are_told_apart() -> None:
    deleted, other = jnp.ones(3), jnp.ones(3)
    deleted.delete()
    other.delete()
    assert find_aliases([deleted, other, deleted]) == [("[0]", "[2]")]

    found: list[Any] = []
    jax.jit(lambda a, b: found.append(find_aliases([a, b, a])))(1.0, 2.0)
    assert found == [[("[0]", "[2]")]]


def test_tied_arrays_are_untied_by_grad_and_refused_by_donation() -> None:
    """What the documentation says of ties."""
    array = jnp.ones(2)
    tied = {"a": array, "b": array}

    grads = jax.grad(lambda tree: jnp.sum(2 * tree["a"] + 3 * tree["b"]))(tied)
    assert (grads["a"].tolist(), grads["b"].tolist()) == ([2.0, 2.0], [3.0, 3.0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="donate the same buffer twice"):
        jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(tied)


class Decoder(Module):
    """Weights that are tied as the documentation ties them: stored once, and read twice."""

    embed: jax.Array

    @property
    def head(self) -> jax.Array:
        return self.embed.T

    def __call__(self, token: int) -> jax.Array:
        return self.embed[token] @ self.head


def test_weights_that_are_stored_once_stay_tied_through_gradients_checkpoints_and_donation(tmp_path: Path) -> None:
    decoder = Decoder(jnp.arange(6.0).reshape(3, 2))
    grad = jax.grad(lambda decoder: decoder(1).sum())(decoder)
    untied: Any = jax.grad(lambda embed, head: (embed[1] @ head.T).sum(), argnums=(0, 1))
    assert jnp.array_equal(grad.embed, sum(untied(decoder.embed, decoder.embed)))

    state: Any = TrainState.create(params=decoder, tx=optax.adamw(0.1))
    assert find_aliases(state) == []
    stepped = jax.jit(lambda state: state.apply_gradients(grads=grad), donate_argnums=0)(state)
    assert state.params.embed.is_deleted()
    assert jnp.array_equal(stepped.params.head, stepped.params.embed.T)

    save(tmp_path / "checkpoint", stepped)
    restored = load(tmp_path / "checkpoint", like=stepped)
    for params in (restored.params, pickle.loads(pickle.dumps(stepped.params))):
        assert len(jax.tree.leaves(params)) == 1
        assert jnp.array_equal(params.head, stepped.params.embed.T)


def test_what_holds_no_leaf_has_no_entry_by_field() -> None:
    assert count({"empty": [], "kernel": jnp.ones((2, 3))}, by="field") == {"kernel": 6}
