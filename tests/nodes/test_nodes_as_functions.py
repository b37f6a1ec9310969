"""Which of JAX's functions accept a node in the place of a function: the table in docs/faq.md."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING, Any

import jax
import jax.experimental
import jax.numpy as jnp
import pytest

from treewright import Module

if TYPE_CHECKING:
    from collections.abc import Callable


class Scale(Module):
    factor: jax.Array

    def __call__(self, *values: Any) -> Any:
        return self.factor * values[-1]


class Step(Module):
    factor: jax.Array

    def __call__(self, carry: Any, x: Any) -> Any:
        return self.factor * carry, x


class Below(Scale):
    def __call__(self, *values: Any) -> Any:
        return values[-1] < self.factor


ONE, LIMIT = jnp.array(1.0), Below(jnp.array(0.0)).__call__
NEED_THE_METHOD: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jax.jit(f)(ONE),
    "checkpoint": lambda f: jax.checkpoint(f)(ONE),
    "scan": lambda f: jax.lax.scan(f, ONE, jnp.ones(2)),
    "fori_loop": lambda f: jax.lax.fori_loop(0, 2, f, ONE),
    "while_loop": lambda f: jax.lax.while_loop(LIMIT, f, ONE),
    "cond": lambda f: jax.lax.cond(True, f, f, ONE),
    "switch": lambda f: jax.lax.switch(0, [f, f], ONE),
    "pure_callback": lambda f: jax.pure_callback(f, ONE, ONE),
    "io_callback": lambda f: jax.experimental.io_callback(f, ONE, ONE),
}
ACCEPT_NODES: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "grad": lambda f: jax.grad(f)(ONE),
    "value_and_grad": lambda f: jax.value_and_grad(f)(ONE),
    "jacfwd": lambda f: jax.jacfwd(f)(ONE),
    "vjp": lambda f: jax.vjp(f, ONE),
    "jvp": lambda f: jax.jvp(f, (ONE,), (ONE,)),
    "linearize": lambda f: jax.linearize(f, ONE),
    "eval_shape": lambda f: jax.eval_shape(f, ONE),
    "make_jaxpr": lambda f: jax.make_jaxpr(f)(ONE),
    "lax.map": lambda f: jax.lax.map(f, jnp.ones(2)),
    "associative_scan": lambda f: jax.lax.associative_scan(f, jnp.ones(2)),
    "debug.callback": lambda f: jax.debug.callback(f, ONE),
}


def node_for(name: str) -> Any:
    return (Step if name == "scan" else Scale)(jnp.array(2.0))


@pytest.mark.parametrize("name", NEED_THE_METHOD)
def test_a_function_that_hashes_a_node_is_told_to_take_its_method(name: str) -> None:
    use, node = NEED_THE_METHOD[name], node_for(name)

    with pytest.raises(TypeError, match=r"unhashable type '(Scale|Step)': a child of (Scale|Step).*f32\[\]") as caught:
        use(node)
    message = str(caught.value)
    assert message.endswith("pass its method: node.__call__.")
    assert (name.partition("_")[2] if name.endswith("callback") else name) in message
    use(node.__call__)


@pytest.mark.parametrize("name", ACCEPT_NODES)
def test_other_transformations_accept_a_node_and_its_method(name: str) -> None:
    use, node = ACCEPT_NODES[name], node_for(name)

    use(node)
    use(node.__call__)


def test_the_table_in_the_faq_lists_these_functions() -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs" / "faq.md").read_text()

    for start, uses in {
        "| `node` or `node.__call__` |": ACCEPT_NODES,
        "| only `node.__call__` |": NEED_THE_METHOD,
    }.items():
        row = next(line for line in text.splitlines() if line.startswith(start))
        assert {*uses} <= {*re.findall(r"`([\w.]+)`", row)}
