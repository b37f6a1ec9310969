"""docs/tutorials/language-model.md in equinox: scan, remat, bfloat16, a schedule, decay and an EMA."""

from pydoc_data.topics import topics
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

text = "\n\n".join(topics[name] for name in sorted(topics))
alphabet = "".join(sorted(set(text)))
numbers = jnp.asarray([alphabet.index(character) for character in text])


def batch_of(numbers: jax.Array, key: jax.Array, count: int = 8, length: int = 32) -> jax.Array:
    starts = jax.random.randint(key, (count,), 0, len(numbers) - length - 1)
    return numbers[starts[:, None] + jnp.arange(length + 1)[None, :]]


class Block(eqx.Module):
    norm_scale: jax.Array
    attention_kernel: jax.Array
    output_kernel: jax.Array
    mlp_scale: jax.Array
    up_kernel: jax.Array
    down_kernel: jax.Array
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.norm_scale = jnp.ones(width)
        self.attention_kernel = jax.random.normal(keys[0], (width, 3 * width)) / width**0.5
        self.output_kernel = jax.random.normal(keys[1], (width, width)) / width**0.5
        self.mlp_scale = jnp.ones(width)
        self.up_kernel = jax.random.normal(keys[2], (width, 4 * width)) / width**0.5
        self.down_kernel = jax.random.normal(keys[3], (4 * width, width)) / (4 * width) ** 0.5
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        projected = rms_norm(x, self.norm_scale) @ self.attention_kernel
        query, key, value = jnp.split(projected.reshape(len(x), self.heads, -1), 3, axis=-1)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x += attended.reshape(x.shape) @ self.output_kernel
        return x + jax.nn.gelu(rms_norm(x, self.mlp_scale) @ self.up_kernel) @ self.down_kernel


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale[None, :]


class LM(eqx.Module):
    embedding_kernel: jax.Array
    position_kernel: jax.Array
    blocks: Block
    final_scale: jax.Array
    compute: str = eqx.field(static=True, default="bfloat16")

    def __init__(self, characters: int, context: int, width: int, depth: int, heads: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.embedding_kernel = jax.random.normal(keys[0], (characters, width)) / width**0.5
        self.position_kernel = jax.random.normal(keys[1], (context, width)) / width**0.5
        self.blocks = eqx.filter_vmap(lambda key: Block(width, heads, key))(jax.random.split(keys[2], depth))
        self.final_scale = jnp.ones(width)

    def __call__(self, characters: jax.Array) -> jax.Array:
        lm = jax.tree.map(lambda leaf: leaf.astype(self.compute), self)
        x = lm.embedding_kernel[characters] + lm.position_kernel[: len(characters)]
        x, _ = jax.lax.scan(eqx.filter_checkpoint(lambda x, block: (block(x), None)), x, lm.blocks)
        return (rms_norm(x, lm.final_scale) @ lm.embedding_kernel.T).astype(jnp.float32)  # type: ignore[no-any-return]  # the call returns Any


def new_model() -> LM:
    return LM(len(alphabet), context=32, width=32, depth=3, heads=4, key=jax.random.key(0))


STEPS = 150


def decayed(params: LM) -> Any:
    scales = lambda lm: (lm.blocks.norm_scale, lm.blocks.mlp_scale, lm.final_scale)
    return eqx.tree_at(scales, jax.tree.map(lambda _: True, params), (False, False, False))


schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=20, decay_steps=STEPS)
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01, mask=decayed))


class State(eqx.Module):
    step: jax.Array
    params: LM
    opt_state: optax.OptState
    average: LM

    def __init__(self, params: LM) -> None:
        self.step = jnp.zeros((), jnp.int32)
        self.params = params
        self.opt_state = tx.init(params)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # its library names fewer types than it takes
        self.average = jax.tree.map(jnp.copy, params)


def loss_of(model: LM, batch: jax.Array) -> jax.Array:
    logits = jax.vmap(model)(batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


@eqx.filter_jit(donate="all-except-first")
def step(inputs: tuple[jax.Array, jax.Array], state: State) -> tuple[State, jax.Array]:
    numbers, key = inputs
    batch = batch_of(numbers, jax.random.fold_in(key, state.step))
    loss, grads = eqx.filter_value_and_grad(loss_of)(state.params, batch)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # its library names fewer types than it takes
    params = eqx.apply_updates(state.params, updates)
    average = optax.incremental_update(params, state.average, 0.02)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # its library names fewer types than it takes
    where = lambda state: (state.step, state.params, state.opt_state, state.average)
    return eqx.tree_at(where, state, (state.step + 1, params, opt_state, average)), loss


state = State(new_model())
test_batch = batch_of(numbers, jax.random.key(1), count=32)
print(f"before: {loss_of(state.params, test_batch):.1f}")
for _ in range(STEPS):
    state, loss = step((numbers, jax.random.key(2)), state)
print(f"after:  {loss_of(state.params, test_batch):.1f}, average {loss_of(state.average, test_batch):.1f}")


@eqx.filter_jit
def written(model: LM, prompt: jax.Array, keys: jax.Array) -> jax.Array:
    def write(context: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        character = jax.random.categorical(key, model(context)[-1] / 0.7)
        return jnp.append(context[1:], character), character

    return jnp.append(prompt, jax.lax.scan(write, prompt, keys)[1])


characters = written(state.average, numbers[:32], jax.random.split(jax.random.key(3), 80))
print("".join(alphabet[number] for number in characters))
