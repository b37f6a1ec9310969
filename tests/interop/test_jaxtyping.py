"""jaxtyping with beartype: shapes of fields are checked only at construction."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

from treewright import Module, pytree_dataclass, static

jaxtyping = pytest.importorskip("jaxtyping")
beartype = pytest.importorskip("beartype")

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

checked = jaxtyping.jaxtyped(typechecker=beartype.beartype)
# Not annotations in a class body: in this file they are strings, which the checkers below can't resolve.
MATRIX, VECTOR = jaxtyping.Float[jax.Array, "n m"], jaxtyping.Float[jax.Array, " m"]


def decorated() -> Any:
    class Linear:
        size: int = static(default=3)

    Linear.__annotations__ = {"kernel": MATRIX, "bias": VECTOR, **Linear.__annotations__}
    return checked(pytree_dataclass(Linear))


def module() -> Any:
    return checked(type("Linear", (Module,), {"__annotations__": {"kernel": MATRIX, "bias": VECTOR}}))


@pytest.mark.parametrize("make", [decorated, module])
def test_shapes_are_checked_at_construction(make: Any) -> None:
    cls = make()
    cls(jnp.ones((2, 3)), jnp.ones(3))

    with pytest.raises(jaxtyping.TypeCheckError, match="'bias'"):
        cls(jnp.ones((2, 3)), jnp.ones(4))
    with pytest.raises(jaxtyping.TypeCheckError, match="'kernel'"):
        cls(jnp.ones(3), jnp.ones(3))


@pytest.mark.parametrize("make", [decorated, module])
def test_unflatten_and_transformations_skip_shape_checks(make: Any) -> None:
    cls = make()
    linear = cls(jnp.ones((2, 3)), jnp.ones(3))

    assert jax.tree.map(lambda _: "any leaf", linear).kernel == "any leaf"
    batched = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), linear)
    assert jax.vmap(lambda one: one.kernel @ one.bias)(batched).shape == (5, 2)
    assert jax.jit(lambda one: one)(linear) == linear
    jax.grad(lambda one: jnp.sum(one.kernel))(linear)


def test_the_jaxtyping_import_hook_checks_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "debug_override" not in inspect.signature(importlib.util.cache_from_source).parameters:
        pytest.skip("the hook calls cache_from_source with an argument that Python 3.15 has removed")
    (tmp_path / "hooked_model.py").write_text(
        "import jax\n"
        "from jaxtyping import Array, Float\n"
        "from treewright import Module\n"
        "class Linear(Module):\n"
        "    kernel: Float[Array, 'n m']\n"
        "    bias: Float[Array, 'm']\n"
        "    def __call__(self, x: Float[Array, 'n']) -> Float[Array, 'm']:\n"
        "        return x @ self.kernel + self.bias\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("hooked_model", "beartype.beartype"):
        hooked: Any = importlib.import_module("hooked_model")

    linear = hooked.Linear(jnp.ones((2, 3)), jnp.ones(3))

    assert jax.jit(linear.__call__)(jnp.ones(2)).shape == (3,)
    with pytest.raises(jaxtyping.TypeCheckError, match="'bias'"):
        hooked.Linear(jnp.ones((2, 3)), jnp.ones(4))
    with pytest.raises(jaxtyping.TypeCheckError, match="'x'"):
        linear(jnp.ones((2, 2)))
