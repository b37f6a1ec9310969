"""The cost of observing retraces: calls that hit jit's cache, and calls that trace."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import jax
import numpy as np
from interleaved import Statement, group
from peers import layers

import treewright

BLOCKS = {
    "without": contextlib.nullcontext,
    "in explain_retraces": lambda: treewright.explain_retraces(on_report=list[Any]().append),
    "in max_traces": lambda: treewright.max_traces(10_000),
}


def watched(name: str, call: Any) -> Any:
    """A function that makes many calls in one block, as a training loop does."""

    def run(times: int) -> None:
        with BLOCKS[name]():
            for _ in range(times):
                call()

    return run


@group(*BLOCKS, title="100 jitted calls of 216 arrays that hit the cache", rounds=60)
def test_hit(name: str) -> Statement:
    tree = layers("treewright.Module")
    step = jax.jit(lambda tree: jax.tree.leaves(tree)[0])
    jax.block_until_ready(step(tree))
    return "run(100)", {"run": watched(name, lambda: step(tree))}


@group(*BLOCKS, title="a jitted function of 216 arrays is traced and compiled again", rounds=15, loops=1)
def test_miss(name: str) -> Statement:
    tree, lengths = layers("treewright.Module"), itertools.count(2)
    step = jax.jit(lambda tree, x: jax.tree.map(lambda leaf: leaf * x[0], tree))
    jax.block_until_ready(step(tree, np.ones(1, np.float32)))
    return "run(1)", {"run": watched(name, lambda: step(tree, np.ones(next(lengths), np.float32)))}


@group("jax.eval_shape", "treewright.explain", title="explain a call of 216 arrays before it is made", rounds=15)
def test_explain(name: str) -> Statement:
    tree, x, longer = layers("treewright.Module"), np.ones(2, np.float32), np.ones(3, np.float32)

    def step(tree: Any, x: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * x[0], tree)

    if name == "jax.eval_shape":
        return "eval_shape(step, tree, x)", {"eval_shape": jax.eval_shape, "step": step, "tree": tree, "x": x}
    names = {"explain": treewright.explain, "step": jax.jit(step), "tree": tree, "x": x, "longer": longer}
    return "explain(step, (tree, x), (tree, longer))", names
