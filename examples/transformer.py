"""A small transformer learns to write like Python's documentation, character by character.

The text ships with Python: the topics that `help()` shows, and the licence. The layers are one stacked `Module` under
`lax.scan`, each recomputed in the backward pass; they compute in bfloat16, and parameters stay float32. At the end the
state goes into a checkpoint and comes back, and the model writes. All steps take one trace: a second one would raise.

Run `python examples/transformer.py` where `pip install ".[examples]"` has been done.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike
from tqdm import tqdm

from treewright import Module, TrainState, buffer, loop, max_traces, spec_like, static, summary
from treewright.checkpoint import load, save
from treewright.typed import eval_shape, remat, tree_map, value_and_grad

CHECKPOINT = "transformer.safetensors"
LICENCE = Path(os.__file__).with_name("LICENSE.txt")


# The text


@dataclass(frozen=True, slots=True)
class Text:
    """Characters as numbers, `i32[length]`, and which character each number is."""

    numbers: np.ndarray
    alphabet: str

    @classmethod
    def of_python(cls) -> "Text":
        """The text of Python's documentation."""
        licence = LICENCE.read_text(encoding="utf-8") if LICENCE.exists() else ""
        mixed = np.random.default_rng(0).permutation(sorted(topics))  # so that the end resembles the beginning
        text = "\n\n".join([licence, *(topics[name] for name in mixed)])
        alphabet = "".join(sorted(set(text)))
        places = {character: place for place, character in enumerate(alphabet)}
        return cls(np.asarray([places[character] for character in text], np.int32), alphabet)

    def split(self, tested: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
        """The beginning for training, and the end for testing."""
        border = int(len(self.numbers) * (1 - tested))
        return self.numbers[:border], self.numbers[border:]

    def read(self, numbers: Sequence[int]) -> str:
        """Numbers as characters."""
        return "".join(self.alphabet[number] for number in numbers)


def pieces(numbers: np.ndarray, count: int, length: int, random: np.random.Generator) -> np.ndarray:
    """Random pieces of a text, `i32[count, length + 1]`; each character but the last has a successor."""
    starts = random.integers(0, len(numbers) - length - 1, count)
    return np.stack([numbers[start : start + length + 1] for start in starts])


# The model: one piece of text in, logits for each next character out


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Each row of `x` with a mean square of 1, times `scale`; the mean is taken in float32."""
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale[None, :]


def rotated(x: jax.Array, rotation: jax.Array) -> jax.Array:
    """`x[time, heads, width]` with each pair of numbers turned by an angle that grows with time."""
    sine, cosine = (part[: len(x), None, :].astype(x.dtype) for part in rotation)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


class Block(Module):
    """One layer: causal attention, then an MLP."""

    attention_scale: jax.Array
    attention_kernel: jax.Array  # f32[width, 3 * width]: queries, keys, values
    output_kernel: jax.Array
    thought_scale: jax.Array
    up_kernel: jax.Array
    down_kernel: jax.Array
    heads: int = static()

    def __init__(self, width: int, heads: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)

        def kernel(key: jax.Array, inputs: int, outputs: int) -> jax.Array:
            return jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs)

        self.attention_scale = self.thought_scale = jnp.ones(width)
        self.attention_kernel = kernel(keys[0], width, 3 * width)
        self.output_kernel = kernel(keys[1], width, width)
        self.up_kernel = kernel(keys[2], width, 4 * width)
        self.down_kernel = kernel(keys[3], 4 * width, width)
        self.heads = heads

    def __call__(self, x: jax.Array, rotation: jax.Array) -> jax.Array:
        """`[time, width]` from `[time, width]`."""
        projected = normalised(x, self.attention_scale) @ self.attention_kernel
        query, key, value = jnp.split(projected.reshape(len(x), self.heads, -1), 3, axis=-1)
        query, key = rotated(query, rotation), rotated(key, rotation)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x += attended.reshape(x.shape) @ self.output_kernel
        return x + jax.nn.gelu(normalised(x, self.thought_scale) @ self.up_kernel) @ self.down_kernel


class Transformer(Module):
    """Characters to logits. All blocks are one, with a leading axis on each leaf."""

    embedding: jax.Array  # f32[characters, width], also used to turn the last layer into logits
    blocks: Block
    scale: jax.Array
    rotation: jax.Array = buffer()  # f32[2, context, width of half a head]: sine and cosine
    compute: DTypeLike = static(default=jnp.bfloat16)

    def __init__(self, characters: int, context: int, key: jax.Array, *, width: int, layers: int, heads: int) -> None:
        first, rest = jax.random.split(key)
        self.embedding = jax.random.normal(first, (characters, width)) / math.sqrt(width)
        self.blocks = jax.vmap(lambda key: Block(width, heads, key))(jax.random.split(rest, layers))
        self.scale = jnp.ones(width)
        half = width // heads // 2
        angles = jnp.outer(jnp.arange(context), 100.0 ** -jnp.linspace(0, 1, half))
        self.rotation = jnp.stack([jnp.sin(angles), jnp.cos(angles)])
        self.compute = jnp.bfloat16

    def __call__(self, characters: jax.Array) -> jax.Array:
        """`f32[time, characters]` from `i32[time]`: logits of the next character at each position."""
        embedding, blocks, scale = tree_map(
            lambda leaf: leaf.astype(self.compute), (self.embedding, self.blocks, self.scale)
        )

        @remat
        def layer(x: jax.Array, block: Block) -> tuple[jax.Array, None]:
            return block(x, self.rotation), None

        x, _ = jax.lax.scan(layer, embedding[characters] * math.sqrt(embedding.shape[1]), blocks)
        return (normalised(x, scale) @ embedding.T).astype(jnp.float32)


# Training


def loss_of(model: Transformer, texts: jax.Array) -> jax.Array:
    """The mean cross entropy of each next character, from `i32[batch, time + 1]`."""
    logits = jax.vmap(model)(texts[:, :-1])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, texts[:, 1:]))


def kernels(model: Transformer) -> Transformer:
    """True for the fields with weight decay, whose names end in `kernel`."""
    return spec_like(model, default=False, where={lambda path, _: path.endswith("kernel"): True})


def optimiser(steps: int, rate: float) -> optax.GradientTransformation:
    """AdamW with a warm start, a cosine at the end, and clipped gradients."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, min(50, steps // 4), steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.05, mask=kernels))


def update(state: TrainState[Transformer], texts: jax.Array) -> tuple[TrainState[Transformer], jax.Array]:
    """The state after one step, and the loss before it."""
    loss, grads = value_and_grad(loss_of)(state.params, texts)
    return state.apply_gradients(grads=grads), loss


@jax.jit
def written(model: Transformer, prompt: jax.Array, keys: jax.Array, temperature: float) -> jax.Array:
    """One more character for each key, `i32[count]`; the model always sees as many as `prompt` has."""

    def write(context: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        character = jax.random.categorical(key, model(context)[-1] / temperature).astype(context.dtype)
        return jnp.append(context[1:], character), character

    _, characters = jax.lax.scan(write, prompt, keys)
    return characters


# Output


def unseen_loss(model: Transformer, numbers: np.ndarray, context: int) -> float:
    """The loss on fixed pieces of the unseen text."""
    texts = pieces(numbers, 64, context, np.random.default_rng(0))
    return float(jax.jit(loss_of)(model, jnp.asarray(texts)))


def show_model(model: Transformer) -> None:
    """A table of the parameters; a shape that begins with the number of layers covers all layers."""
    print(summary(model))
    logits = eval_shape(model, jnp.zeros(model.rotation.shape[1], jnp.int32))
    print(f"computes in {jnp.dtype(model.compute)}, gives {logits.dtype}{list(logits.shape)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print the loss, and generate text."""
    parser = argparse.ArgumentParser(description="A transformer on Python's own documentation.")
    parser.add_argument("--steps", type=int, default=400, help="updates of the parameters")
    parser.add_argument("--width", type=int, default=64, help="of the layers")
    parser.add_argument("--layers", type=int, default=3, help="how many")
    parser.add_argument("--heads", type=int, default=4, help="of the attention")
    parser.add_argument("--context", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces of text in one update")
    parser.add_argument("--letters", type=int, default=400, help="how much it writes at the end")
    parser.add_argument("--seed", type=int, default=0, help="for the model, the pieces and the written text")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for the checkpoint")
    settings = parser.parse_args(argv)

    text = Text.of_python()
    train, test = text.split()
    key, writing = jax.random.split(jax.random.key(settings.seed))
    sizes = {"width": settings.width, "layers": settings.layers, "heads": settings.heads}
    model = Transformer(len(text.alphabet), settings.context, key, **sizes)
    print(f"{len(train):,} characters to learn from, {len(test):,} to test with, {len(text.alphabet)} different ones")
    show_model(model)

    state: TrainState[Transformer] = TrainState.create(params=model, tx=optimiser(settings.steps, 4e-3))
    print(f"loss on unseen text: {unseen_loss(state.params, test, settings.context):.3f}, before training")
    run, random = loop(max_traces(1)(update), state), np.random.default_rng(settings.seed)
    for _ in tqdm(range(settings.steps), desc="training", unit="step"):
        run(jnp.asarray(pieces(train, settings.batch_size, settings.context, random)))
    loss = unseen_loss(run.state.params, test, settings.context)
    print(f"loss on unseen text: {loss:.3f}, after {run.state.step} steps")

    settings.output.mkdir(parents=True, exist_ok=True)
    save(settings.output / CHECKPOINT, run.state)
    run.state = load(settings.output / CHECKPOINT, like=run.state)
    run(jnp.asarray(pieces(train, settings.batch_size, settings.context, random)))
    print(f"{settings.output / CHECKPOINT} restored, one more step; all steps took one trace")

    prompt = test[: settings.context]
    keys = jax.random.split(writing, settings.letters)
    characters = written(run.state.params, jnp.asarray(prompt), keys, 0.6)
    print(f"given: {text.read(prompt.tolist())!r}, it writes:\n")
    print(text.read(np.asarray(characters).tolist()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
