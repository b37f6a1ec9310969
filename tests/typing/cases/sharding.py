"""Fields with names for their axes, and trees of the same class in functions that accept them."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from treewright import Module, buffer, field, pytree_dataclass, static
from treewright.sharding import (
    Rules,
    ShardingReport,
    abstract_state,
    constrain,
    constrain_tree,
    partition_specs,
    sharded_init,
    sharding_report,
    shardings,
)


class Layer(Module):
    kernel: jax.Array = field(sharding=("embed", None))
    bias: jax.Array | None = field(default=None, sharding=("mlp",))
    mean: jax.Array = buffer(sharding=lambda layer: ("mlp",), default_factory=lambda: jnp.ones(3))
    log: str = static(default="", local=True)


@pytree_dataclass
class Net:
    first: Layer
    blocks: Layer = field(stack="layers")
    last: Any = field(stack=lambda net: "layers", sharding=lambda net: None, default=None)


rules: Rules = {"embed": "fsdp", "mlp": ("fsdp", "tensor"), "layers": None}
mesh = AbstractMesh((1,), ("fsdp",))
layer = Layer(jnp.ones((2, 3)), jnp.ones(3))


def initialised(on: Mesh) -> None:
    """Needs a mesh of devices."""
    assert_type(sharded_init(make, jax.random.key(0), mesh=on, rules=rules), Layer)
    assert_type(abstract_state(make, jax.random.key(0), mesh=on, rules=rules), Layer)


def make(key: jax.Array) -> Layer:
    return Layer(jax.random.normal(key, (2, 3)), jnp.ones(3))


assert_type(layer.kernel, jax.Array)
assert_type(layer.mean, jax.Array)
assert_type(layer.log, str)
assert_type(partition_specs(layer, None, rules), Layer)
assert_type(shardings({"a": layer}, mesh, rules), dict[str, Layer])
assert_type(sharding_report(layer, mesh, rules), ShardingReport)
assert_type(sharding_report(layer, mesh, rules).device_nbytes, int)
assert_type(constrain(jnp.ones((2, 3)), "fsdp", None), jax.Array)
assert_type(constrain_tree(layer, rules), Layer)
print(Net(layer, layer))


def rejected() -> None:
    """Never called: checkers must reject each line."""

    class Wrong(Module, kw_only=True):
        a: jax.Array = field(sharding="embed")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
        b: jax.Array = field(sharding=("embed", 3))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        c: jax.Array = buffer(stack=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
        d: int = static(sharding=("embed",))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        e: int = static(local="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]

    partition_specs(layer, None, {"embed": 3})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    shardings(layer, rules, rules)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sharding_report(layer, mesh, rules, on_misfit="skip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(Wrong)
