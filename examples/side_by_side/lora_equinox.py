"""docs/tutorials/lora.md in equinox: inserted, trained, saved and merged."""

import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def mean_square(net: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(net)(x) - y) ** 2)


tx = optax.adam(1e-2)


@eqx.filter_jit
def train_step(net: eqx.nn.MLP, opt_state: optax.OptState, x: jax.Array, y: jax.Array) -> tuple[Any, optax.OptState]:
    grads = eqx.filter_grad(mean_square)(net, x, y)
    updates, opt_state = tx.update(grads, opt_state, eqx.filter(net, eqx.is_inexact_array))
    return eqx.apply_updates(net, updates), opt_state


x = jnp.linspace(-3, 3, 128)[:, None]
base = eqx.nn.MLP(1, 1, 64, 2, jnp.tanh, key=jax.random.key(0))
opt_state = tx.init(eqx.filter(base, eqx.is_inexact_array))
for _ in range(300):
    base, opt_state = train_step(base, opt_state, x, jnp.sin(x))
print(f"loss on the sine below 0.01: {mean_square(base, x, jnp.sin(x)) < 0.01}")


class LoRA(eqx.Module):
    base: eqx.nn.Linear
    down: jax.Array
    up: jax.Array

    def __init__(self, base: eqx.nn.Linear, rank: int, key: jax.Array) -> None:
        outputs, inputs = base.weight.shape
        self.base = base
        self.down = jax.random.normal(key, (inputs, rank)) / inputs**0.5
        self.up = jnp.zeros((rank, outputs))

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        return self.base(x) + x @ self.down @ self.up


def layers_of(net: Any, kind: type) -> list[Any]:
    leaves = jax.tree.leaves(net, is_leaf=lambda value: isinstance(value, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def with_lora(net: eqx.nn.MLP, rank: int, key: jax.Array) -> eqx.nn.MLP:
    linear = layers_of(net, eqx.nn.Linear)
    keys = jax.random.split(key, len(linear))
    layers = [LoRA(layer, rank, key) for layer, key in zip(linear, keys, strict=True)]
    return eqx.tree_at(lambda net: layers_of(net, eqx.nn.Linear), net, layers)  # type: ignore[no-any-return]  # the call returns Any


tuned = with_lora(base, 2, jax.random.key(1))


def is_lora(net: eqx.nn.MLP) -> Any:
    where = lambda net: [array for layer in layers_of(net, LoRA) for array in (layer.down, layer.up)]
    nothing = jax.tree.map(lambda _: False, net)
    return eqx.tree_at(where, nothing, replace_fn=lambda _: True)


small, frozen = eqx.partition(tuned, is_lora(tuned))


@eqx.filter_jit
def tune_step(small: Any, frozen: Any, opt_state: optax.OptState, x: jax.Array, y: jax.Array) -> Any:
    grads = eqx.filter_grad(lambda small: mean_square(eqx.combine(small, frozen), x, y))(small)
    updates, opt_state = tx.update(grads, opt_state, small)
    return eqx.apply_updates(small, updates), opt_state


target = jnp.sin(x + 0.7) + 0.2
opt_state = tx.init(small)
for _ in range(400):
    small, opt_state = tune_step(small, frozen, opt_state, x, target)
print(f"before: {mean_square(base, x, target):.1f}, after: {mean_square(eqx.combine(small, frozen), x, target):.3f}")

path = Path(tempfile.mkdtemp()) / "lora.eqx"
eqx.tree_serialise_leaves(path, small)
fresh = with_lora(base, 2, jax.random.key(0))
like, frozen = eqx.partition(fresh, is_lora(fresh))
restored = eqx.combine(eqx.tree_deserialise_leaves(path, like=like), frozen)
print(f"the same: {bool(eqx.tree_equal(restored, eqx.combine(small, frozen)))}")


def merged(net: eqx.nn.MLP) -> eqx.nn.MLP:
    def merge(layer: LoRA) -> eqx.nn.Linear:
        return eqx.tree_at(lambda base: base.weight, layer.base, replace_fn=lambda w: w + (layer.down @ layer.up).T)  # type: ignore[no-any-return]  # the call returns Any

    layers = layers_of(net, LoRA)
    return eqx.tree_at(lambda net: layers_of(net, LoRA), net, list(map(merge, layers)))  # type: ignore[no-any-return]  # the call returns Any


final = merged(restored)
print("as close:", bool(jnp.allclose(jax.vmap(final)(x), jax.vmap(restored)(x), atol=1e-4)))
print("of the same class and structure:", jax.tree.structure(final) == jax.tree.structure(base))
