"""A lowered program of nodes is the same in each process, so the persistent compilation cache finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import dataclasses, enum, functools, hashlib
import jax, jax.numpy as jnp, optax
import treewright
from treewright import Module, TrainState, buffer, freeze, pytree_dataclass, static


class Kind(enum.Enum):
    PLAIN = "plain"
    ODD = "odd"


@dataclasses.dataclass(frozen=True)
class Options:
    names: frozenset = frozenset({"ash", "birch", "cedar", "elm"})
    rate: float = 0.1


class Layer(Module):
    kernel: jax.Array
    bias: jax.Array | None = None
    mean: jax.Array = buffer(default=None)
    tags: frozenset = static(default=frozenset({"fir", "oak", "pine", "yew"}))
    table: object = static(default=None, converter=freeze)
    kind: object = static(default=Kind.ODD)
    options: object = static(default=Options())
    activation: object = static(default=jax.nn.gelu)

    def __call__(self, x):
        for tag in sorted(self.tags):
            x = self.activation(x @ self.kernel) * len(tag)
        return x

    def loss(self, x):
        return self(x).sum()


@pytree_dataclass
class Pair:
    left: Layer
    rest: dict
    tag: object = static(default=None)


def made(factor):
    return lambda x: jnp.sin(factor * x)


def layer(**statics):
    return Layer(jnp.ones((4, 4)), jnp.zeros(4), jnp.ones(4), **statics)


VARIANTS = {
    "default": layer(),
    "set": layer(table={"ash", "birch", "cedar", "elm"}),
    "closure": layer(activation=made(2.0)),
    "partial": layer(activation=functools.partial(jax.nn.leaky_relu, negative_slope=0.2)),
    "lambda": layer(activation=lambda x: x + 1),
    "jitted": layer(activation=jax.jit(jax.nn.relu)),
}
x = jnp.ones((2, 4))
tx = optax.adamw(1e-3)


@jax.jit
def forward(node, x):
    return node(x)


@jax.jit
def step(state, x):
    grads = jax.grad(lambda params: params.loss(x))(state.params)
    return state.apply_gradients(grads=grads)


def programs():
    for name, node in VARIANTS.items():
        pair = Pair(node, {"b": x, "a": x}, tag=frozenset({"left", "right", "top"}))
        yield f"{name} forward", forward.lower(node, x)
        yield f"{name} method", jax.jit(node.loss).lower(x)
        yield f"{name} pair", jax.jit(lambda pair: pair.left(pair.rest["a"])).lower(pair)
        if name not in {"set", "closure"}:
            continue
        yield f"{name} scan", jax.jit(lambda n, x: jax.lax.scan(lambda n, _: (n, n(x)), n, None, 2)).lower(node, x)
        yield f"{name} vmap", jax.jit(lambda n, x: jax.vmap(n)(x)).lower(node, x)
        yield f"{name} grad", jax.jit(jax.grad(lambda n, x: n.loss(x))).lower(node, x)
    yield "state", step.lower(TrainState.create(params=VARIANTS["set"], tx=tx), x)
    stacked = treewright.stack([layer(), layer()])
    yield "stacked", jax.jit(lambda n, x: jax.vmap(lambda layer: layer(x))(n)).lower(stacked, x)


for name, lowered in programs():
    text = lowered.as_text() + lowered.as_text(debug_info=True)
    print(name, hashlib.sha256(text.encode()).hexdigest(), "0x7f" in text)
"""


def lowered_programs(seed: str, program: Path) -> list[str]:
    # Memory differs too, so an address inside a name would differ.
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": seed, "PADDING": "x" * 997 * int(seed)}
    run = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return run.stdout.splitlines()


def test_lowered_programs_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    first, second = (lowered_programs(seed, program) for seed in ("1", "2"))

    assert len(first) == 3 * 6 + 3 * 2 + 2
    assert second == first
    assert not [line for line in first if line.endswith("True")]
