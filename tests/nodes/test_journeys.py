"""How many functions and files a reader passes, from a class or a constructor call to its result."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.journeys import assert_passes_at_most
from treewright import Module, pytree_dataclass, static


def define() -> None:
    @pytree_dataclass
    class Decorated:
        kernel: jax.Array
        activation: str = static(default="relu")


def test_a_decorated_class_passes_few_functions_and_files() -> None:
    assert_passes_at_most(33, 8, define)


def test_a_node_with_a_static_lambda_passes_few_functions_and_files() -> None:
    class Layer(Module):
        kernel: jax.Array
        activation: Callable[[Any], Any] = static()

    kernel, functions = jnp.ones(2), [lambda x: x + 1, lambda x: x + 2]

    # The first nodes of a class are checked more closely.
    assert_passes_at_most(24, 5, lambda: Layer(kernel, functions[0]))
    for _ in range(100):
        Layer(kernel, abs)
    assert_passes_at_most(17, 3, lambda: Layer(kernel, functions[1]))
