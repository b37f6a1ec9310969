"""Layers to copy: each a few lines, for one example, that `jax.vmap` maps over a batch.

Copy the layers that you need into your own program and change them. A test compares each with the numbers of
equinox's. For other initialisers, call one of `jax.nn.initializers` in place of `random.normal`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax, random

from treewright import Module, buffer, replace, static

# Linear layers


class Linear(Module):
    """`f32[outputs]` from `f32[inputs]`."""

    kernel: jax.Array
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, *, key: jax.Array) -> None:
        self.kernel = random.normal(key, (inputs, outputs)) / inputs**0.5
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel + self.bias


class MLP(Module):
    """Linear layers with an activation between them: `MLP((784, 128, 10), key=key)`."""

    layers: tuple[Linear, ...]
    activation: Callable[[jax.Array], jax.Array] = static(default=jax.nn.relu)

    def __init__(self, widths: tuple[int, ...], *, key: jax.Array) -> None:
        keys = random.split(key, len(widths) - 1)
        self.layers = tuple(Linear(*sizes, key=key) for *sizes, key in zip(widths, widths[1:], keys, strict=False))

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class Embedding(Module):
    """`f32[width]` for a number below `count`; `attend` returns logits with the same table."""

    table: jax.Array

    def __init__(self, count: int, width: int, *, key: jax.Array) -> None:
        self.table = random.normal(key, (count, width))

    def __call__(self, number: jax.Array) -> jax.Array:
        return self.table[number]

    def attend(self, x: jax.Array) -> jax.Array:
        return x @ self.table.T


class Conv(Module):
    """`f32[height, width, outputs]` from `f32[height, width, inputs]`; `size` is the window's size.

    For one or three dimensions, change the numbers of axes in `layout` and in the kernel.
    """

    kernel: jax.Array
    bias: jax.Array
    stride: int = static(default=1)
    padding: str = static(default="SAME")

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, *, key: jax.Array) -> None:
        self.kernel = random.normal(key, (size, size, inputs, outputs)) / (size * size * inputs) ** 0.5
        self.bias = jnp.zeros(outputs)
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x[None], self.kernel, strides, self.padding, dimension_numbers=layout)
        return y[0] + self.bias[None, None, :]


# Norms


class LayerNorm(Module):
    """Mean 0 and variance 1 of `f32[width]`, then scale and bias; computed in float32."""

    scale: jax.Array
    bias: jax.Array
    epsilon: float = static(default=1e-5)

    def __init__(self, width: int) -> None:
        self.scale, self.bias = jnp.ones(width), jnp.zeros(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = (y - y.mean()) * lax.rsqrt(y.var() + self.epsilon)
        return (y * self.scale + self.bias).astype(x.dtype)


class RMSNorm(Module):
    """A mean square of 1 of `f32[width]`, then scale; computed in float32."""

    scale: jax.Array
    epsilon: float = static(default=1e-6)

    def __init__(self, width: int) -> None:
        self.scale = jnp.ones(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        return (y * lax.rsqrt(jnp.square(y).mean() + self.epsilon) * self.scale).astype(x.dtype)


class BatchNorm(Module):
    """Mean 0 and variance 1 over a batch, `x[batch, width]`; returns the output and itself with new statistics.

    It is the only layer here that accepts a batch. `docs/training.md` has the step that keeps the statistics.
    """

    scale: jax.Array
    bias: jax.Array
    mean: jax.Array = buffer()
    var: jax.Array = buffer()
    momentum: float = static(default=0.99)
    epsilon: float = static(default=1e-5)

    def __init__(self, width: int) -> None:
        self.scale, self.bias = jnp.ones(width), jnp.zeros(width)
        self.mean, self.var = jnp.zeros(width), jnp.ones(width)

    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, "BatchNorm"]:
        mean, var, new = self.mean, self.var, self
        if train:
            mean, var = x.mean(0), x.var(0)
            new = replace(self, mean=self._moved(self.mean, mean), var=self._moved(self.var, var))
        y = (x - mean[None]) * lax.rsqrt(var + self.epsilon)[None]
        return y * self.scale[None] + self.bias[None], new

    def _moved(self, old: jax.Array, batch: jax.Array) -> jax.Array:
        return self.momentum * old + (1 - self.momentum) * batch


# Attention and dropout


class Attention(Module):
    """Self-attention with several heads: `f32[time, width]` from the same.

    `jax.nn.dot_product_attention` uses cuDNN if it is requested: `implementation="cudnn"`.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int = static()

    def __init__(self, width: int, heads: int, *, key: jax.Array) -> None:
        keys = random.split(key, 4)
        self.query, self.key, self.value, self.output = (Linear(width, width, key=key) for key in keys)
        self.heads = heads

    def __call__(self, x: jax.Array, *, causal: bool = False) -> jax.Array:
        projected = (jax.vmap(layer)(x) for layer in (self.query, self.key, self.value))
        query, key, value = (y.reshape(len(x), self.heads, -1) for y in projected)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=causal)
        return jax.vmap(self.output)(attended.reshape(x.shape))


class Dropout(Module):
    """Replace a part of `x` by zeros and scale the rest; with `train=False`, return `x`.

    In a batch each example needs its own key, or all get the same mask: `vmap(dropout)(x, random.split(key, len(x)))`.
    """

    rate: float = static(default=0.1)

    def __call__(self, x: jax.Array, key: jax.Array | None = None, *, train: bool = True) -> jax.Array:
        if not train or self.rate == 0:
            return x
        if key is None:
            raise ValueError("Dropout needs a key in training; in evaluation, pass train=False.")
        mask = random.bernoulli(key, 1 - self.rate, x.shape)
        return jnp.where(mask, x / (1 - self.rate), 0)
