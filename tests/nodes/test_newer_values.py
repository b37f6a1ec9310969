"""Values that newer Pythons brought, in fields: as in those of a frozen dataclass."""

import dataclasses
import functools
import operator
import pickle
import sys
from typing import Any

import jax
import pytest

from treewright import pytree_dataclass, static

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="t-strings and Placeholder are new in Python 3.14")


@pytree_dataclass
class Layer:
    x: Any
    f: Any = static(default=None)


def template(name: str) -> Any:
    return eval("t'hello {name}'", {"name": name})  # a syntax error before


def test_a_t_string_is_kept_as_it_is_in_both_kinds_of_fields() -> None:
    text = template("world")
    layer = Layer(1.0, text)

    assert jax.tree.map(lambda x: x + 1, layer).f is text
    assert dataclasses.replace(layer, x=2.0).f is text
    assert jax.tree.leaves(Layer(text)) == [text]
    assert jax.tree.structure(layer) == jax.tree.structure(Layer(2.0, text))


def test_a_partial_with_a_placeholder_is_one_static_with_an_equal_one() -> None:
    placeholder: Any = getattr(functools, "Placeholder")  # noqa: B009  not in all stubs

    def layer(*args: Any) -> Any:
        return Layer(1.0, functools.partial(operator.sub, *args))

    assert layer(placeholder, 2).f(5) == 3
    assert jax.tree.structure(layer(placeholder, 2)) == jax.tree.structure(layer(placeholder, 2))
    assert jax.tree.structure(layer(placeholder, 2)) != jax.tree.structure(layer(3, 2))
    assert pickle.loads(pickle.dumps(layer(placeholder, 2))) == layer(placeholder, 2)
