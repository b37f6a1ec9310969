"""Selected values have their own type, and updated trees keep their class."""

from contextlib import suppress
from typing import Any, NamedTuple, assert_type

import jax
import jax.numpy as jnp

from treewright import (
    Module,
    allclose,
    at,
    buffer,
    combine,
    count,
    diff,
    edit,
    find_aliases,
    nbytes,
    node_at,
    partition,
    pytree_dataclass,
    spec_like,
    stack,
    static,
    summary,
    trainable,
    unstack,
)
from treewright.testing import assert_trees_close


@pytree_dataclass
class Layer:
    kernel: jax.Array
    bias: jax.Array | None = None
    mean: jax.Array | None = buffer(default=None)
    activation: str = static(default="relu")


class Pair(NamedTuple):
    left: Layer
    right: Layer


class Net(Module):
    layers: tuple[Layer, ...]
    table: dict[str, jax.Array]
    name: str = static(default="net")


layer = Layer(jnp.ones(3))
net = Net((layer, layer), {"x": jnp.ones(2)})
pair = Pair(layer, layer)

# The type of the selected value flows through get, set and apply.
assert_type(at(net, lambda net: net.name).get(), str)
assert_type(at(net, lambda net: net.layers[0]).get(), Layer)
assert_type(at(net, lambda net: net.layers[0].bias).get(), jax.Array | None)
assert_type(at(net, lambda net: net.table["x"]).get(), jax.Array)
assert_type(at(pair, lambda pair: pair.left.kernel).get(), jax.Array)
assert_type(at(net, lambda net: (net.name, net.table["x"])).get(), tuple[str, jax.Array])
assert_type(at(net, lambda net: [layer.kernel for layer in net.layers]).get(), list[jax.Array])
assert_type(at(net, lambda net: {"name": net.name}).get(), dict[str, str])
assert_type(at(net, lambda net: net.layers[0].bias).set(None), Net)
assert_type(at(net, lambda net: (net.name, net.layers)).set(("other", ())), Net)
assert_type(at(net, lambda net: net.layers[0].kernel).apply(lambda kernel: kernel.astype(int)), Net)
assert_type(at(net, lambda net: net.name).apply(lambda name: name.upper()), Net)
assert_type(at(pair, lambda pair: pair.right).set(layer), Pair)
assert_type(at([layer], lambda layers: layers[0].activation).set("gelu"), list[Layer])

# A text or a predicate may lead anywhere.
assert_type(at(net, ".layers[*].kernel").set(jnp.ones(1)), Net)
assert_type(at(net, "**.bias").apply(lambda bias: bias), Net)
assert_type(at(net, lambda path, value: path.endswith(".bias")).set(None), Net)
assert_type(at(net, lambda path, value: isinstance(value, Layer)).get(), Any)
assert_type(at(net, Layer).set(layer), Net)

with edit(net) as draft:
    draft.name = "other"
    draft.layers = draft.layers[:1]
    draft.table["y"] = jnp.ones(1)
assert_type(draft, Net)
assert draft.name == "other"

with edit(layer) as frozen_for_checkers:
    frozen_for_checkers.activation = "gelu"
assert_type(frozen_for_checkers, Any)

assert_type(spec_like(net, 0, {"**.kernel": None, lambda path, value: value is net: 1}), Net)
assert_type(trainable(net), Net)
assert_type(partition(net, trainable), tuple[Net, Net])
assert_type(combine(*partition(net, trainable)), Net)
assert_type(stack([layer, layer]), Layer)
assert_type(unstack(stack([layer, layer])), list[Layer])
assert_type(node_at(stack([layer, layer]), 0), Layer)
assert_type(count(net), int)
assert_type(nbytes(net), int)
assert_type(find_aliases(net), list[tuple[str, ...]])
assert_type(summary(net, depth=1).total, str)
assert_type(allclose(net, net, rtol=0.1).mismatches, tuple[str, ...])
assert_type(diff(net, net)[:0] == [], bool)
assert_trees_close(net, net, atol=0.1)


def rejected() -> Any:
    """Never called: each line is an error of the checkers."""
    at(net, lambda net: net.name).set(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    at(net, lambda net: net.layers[0].kernel).set("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    at(net, lambda net: (net.name, net.name)).set("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    at(net, lambda net: net.name).apply(len)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    at(net, lambda net: net.nope)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownLambdaType, reportUnknownMemberType]
    at(net, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    with suppress(Exception), edit(net) as draft:
        draft.name = 3  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        draft.nope = 3  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
