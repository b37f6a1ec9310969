"""The decoder of `examples/transformer_sharded.py` in equinox: the same layouts, by the same rules.

Equinox has no names for the axes of arrays, so a table beside the classes has them, and functions read it.
"""

import contextlib
import functools
import math
from collections.abc import Generator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from examples.transformer_sharded import BOTH, KEPT, NAMES, USED, VOCABULARY, Rules, batches, everywhere

# The model.


def kernel(key: jax.Array, *shape: int, inputs: int) -> jax.Array:
    """Normal numbers whose sums over `inputs` of them have a variance of 1."""
    return jax.random.normal(key, shape) / math.sqrt(inputs)


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Each row of `x` with a mean square of 1, times `scale`; the mean is taken in float32."""
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale[None, None, :]


class Block(eqx.Module):
    """One layer: attention, and experts, each of which answers as far as the router listens to it."""

    attention_scale: jax.Array
    projections: jax.Array  # queries, keys, values
    output: jax.Array
    expert_scale: jax.Array
    router: jax.Array
    up: jax.Array
    down: jax.Array

    def __init__(self, embed: int, heads: int, hidden: int, experts: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 5)
        size = embed // heads
        self.attention_scale = self.expert_scale = jnp.ones(embed)
        self.projections = kernel(keys[0], embed, 3, heads, size, inputs=embed)
        self.output = kernel(keys[1], heads, size, embed, inputs=embed)
        self.router = kernel(keys[2], embed, experts, inputs=embed)
        self.up = kernel(keys[3], experts, embed, hidden, inputs=embed)
        self.down = kernel(keys[4], experts, hidden, embed, inputs=hidden)

    def __call__(self, x: jax.Array, rules: Rules) -> jax.Array:
        """`[batch, sequence, embed]` from `[batch, sequence, embed]`."""
        here = split_tree(self, rules)
        x = x + here.attend(normalised(x, here.attention_scale), rules)
        return split(x + here.ask(normalised(x, here.expert_scale), rules), rules, "batch", "sequence", None)

    def attend(self, x: jax.Array, rules: Rules) -> jax.Array:
        """What each place finds at the places before it."""
        query, key, value = jnp.einsum("bse,ephd->pbshd", x, self.projections)
        query = split(query, rules, "batch", "sequence", "heads", None)
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return jnp.einsum("bshd,hde->bse", found, self.output)

    def ask(self, x: jax.Array, rules: Rules) -> jax.Array:
        """What the experts say, weighted."""
        weights = jax.nn.softmax((x @ self.router).astype(jnp.float32)).astype(x.dtype)
        hidden = jax.nn.gelu(jnp.einsum("bse,xeh->xbsh", x, self.up))
        hidden = split(hidden, rules, "experts", "batch", "sequence", "hidden")
        return jnp.einsum("xbsh,xhe,bsx->bse", hidden, self.down, weights)


class Decoder(eqx.Module):
    """Characters to logits for the next ones. All blocks are one, with a leading axis on each leaf."""

    embedding: jax.Array
    blocks: Block
    scale: jax.Array
    compute: DTypeLike = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        *,
        layers: int = 4,
        embed: int = 32,
        heads: int = 4,
        hidden: int = 32,
        experts: int = 4,
        compute: DTypeLike = jnp.bfloat16,
    ) -> None:
        first, rest = jax.random.split(key)
        self.embedding = kernel(first, VOCABULARY, embed, inputs=embed)
        keys = jax.random.split(rest, layers)
        self.blocks = eqx.filter_vmap(lambda key: Block(embed, heads, hidden, experts, key))(keys)
        self.scale = jnp.ones(embed)
        self.compute = compute

    def __call__(self, characters: jax.Array, rules: Rules) -> jax.Array:
        """`f32[batch, sequence, vocabulary]` from `i32[batch, sequence]`."""
        here = jax.tree.map(lambda leaf: leaf.astype(self.compute), self)

        @eqx.filter_checkpoint
        def layer(x: jax.Array, block: Block) -> tuple[jax.Array, None]:
            return block(x, rules), None

        x = split(here.embedding[characters] * math.sqrt(here.scale.size), rules, "batch", "sequence", None)
        x, _ = jax.lax.scan(layer, x, here.blocks)
        logits = jnp.einsum("bse,ve->bsv", normalised(x, here.scale), here.embedding)
        return split(logits.astype(jnp.float32), rules, "batch", "sequence", "vocabulary")


State = tuple[Decoder, optax.OptState]


def loss_of(model: Decoder, texts: jax.Array, rules: Rules) -> jax.Array:
    """The mean cross entropy of each next character, from `i32[batch, sequence + 1]`."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(texts[:, :-1], rules), texts[:, 1:])
    return jnp.mean(losses)


def decayed(model: Decoder) -> Any:
    """True for what weight decay makes smaller: all but the scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].name.endswith("scale"), model)


TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(4e-3, weight_decay=0.05, mask=decayed))


def make_state(key: jax.Array, compute: DTypeLike = jnp.bfloat16) -> State:
    """A new model and the state of its optimiser."""
    model = Decoder(key, compute=compute)
    return model, TX.init(eqx.filter(model, eqx.is_inexact_array))


def step(state: State, texts: jax.Array, used: Rules, kept: Rules) -> tuple[State, jax.Array]:
    """The state after one update, and the loss before it."""
    model, opt_state = state
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, texts, used)
    updates, opt_state = TX.update(split_tree(grads, kept), opt_state, model)
    return (eqx.apply_updates(model, updates), opt_state), loss


# The sharding, by the same rules.

AXES = {
    "attention_scale": ("embed",),
    "projections": ("embed", None, "heads", None),
    "output": ("heads", None, "embed"),
    "expert_scale": ("embed",),
    "router": ("embed", None),
    "up": ("experts", "embed", "hidden"),
    "down": ("experts", "hidden", "embed"),
    "embedding": ("vocabulary", "embed"),
    "scale": ("embed",),
}


def spec(rules: Rules, *names: str | None) -> PartitionSpec:
    """What the rules say of the axes of one array."""
    return PartitionSpec(*(None if name is None else rules[name] for name in names))


def specs(tree: Any, rules: Rules) -> Any:
    """A `PartitionSpec` for each leaf, by the last field of its path; in the stack, with one more axis in front."""

    def of_leaf(path: tuple[Any, ...], _: object) -> PartitionSpec:
        fields = [getattr(key, "name", None) for key in path]
        if fields[-1] not in AXES:
            return PartitionSpec()
        return spec(rules, *["layers"] * ("blocks" in fields), *AXES[fields[-1]])

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def split(x: jax.Array, rules: Rules, *names: str | None) -> jax.Array:
    """A value that is split by the names of its axes."""
    return jax.lax.with_sharding_constraint(x, spec(rules, *names))


def split_tree(tree: Any, rules: Rules) -> Any:
    """A tree whose arrays are split by the names of their fields."""
    return jax.lax.with_sharding_constraint(tree, specs(tree, rules))


def abstract_state(key: jax.Array, compute: DTypeLike, mesh: Mesh, kept: Rules) -> Any:
    """The state without arrays, with the sharding of each: the target of a restore."""
    state = eqx.filter_eval_shape(make_state, key, compute)
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        state,
        specs(state, kept),
    )


def sharded_init(key: jax.Array, compute: DTypeLike, mesh: Mesh, kept: Rules) -> State:
    """A new state, of which each device makes its part."""
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(key, compute, mesh, kept))
    return jax.jit(make_state, static_argnums=1, out_shardings=places)(key, compute)


@contextlib.contextmanager
def laid_out(layout: str) -> Generator[tuple[Mesh, Rules, Rules]]:
    """All devices as a mesh, set for the block; the rules for what is computed, and those for what is kept."""
    devices = jax.device_count()
    shape = (min(2, devices), max(1, devices // 2))
    mesh, kept = jax.make_mesh(shape, BOTH, axis_types=(AxisType.Auto,) * 2), {**NAMES, **KEPT[layout]}
    with jax.set_mesh(mesh):
        yield mesh, {**NAMES, "batch": None, "sequence": None, **USED[layout]}, kept


# The program


def train(layout: str, compute: DTypeLike, steps: int) -> tuple[Any, Any, list[float]]:
    """The target of a restore, the state after all steps, and the losses on the way."""
    key = jax.random.key(0)
    with laid_out(layout) as (mesh, used, kept):
        target, state = (make(key, compute, mesh, kept) for make in (abstract_state, sharded_init))
        update = jax.jit(functools.partial(step, used=used, kept=kept), donate_argnums=0)
        losses: list[float] = []
        for text in batches(steps):
            state, loss = update(state, everywhere(text, mesh))
            losses.append(float(loss))
    return target, state, losses
