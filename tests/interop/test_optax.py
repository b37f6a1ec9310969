"""optax: each transform with a mask or labels accepts nodes, with the same results as dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, TrainState, static

pytestmark = pytest.mark.slow

optax = pytest.importorskip("optax")


class Dense(Module):
    kernel: jax.Array
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array] = static(default=jnp.tanh)


class Net(Module):
    first: Dense
    second: Dense


def layer(scale: float) -> Dense:
    return Dense(scale * jnp.ones((2, 2)), scale * jnp.ones(2))


NET = Net(layer(1.0), layer(2.0))
GRADS = jax.tree.map(lambda leaf: 0.1 * leaf, NET)


def as_dict(tree: Any) -> Any:
    """The same tree of dicts, which optax was written for."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree) if field.name != "activation"]
        return {name: as_dict(getattr(tree, name)) for name in names}
    return tree


def kernels(tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: jax.tree_util.keystr(path).find("kernel") > 0, tree)


def labels(tree: Any) -> Any:
    return jax.tree.map(lambda kernel: "kernel" if kernel else "bias", kernels(tree))


# Each creates a transform from a mask or labels: a tree, or a function that returns one.
MASKED: dict[str, Callable[[Any], Any]] = {
    "adadelta": lambda mask: optax.adadelta(0.1, weight_decay=0.1, weight_decay_mask=mask),
    "adafactor": lambda mask: optax.adafactor(0.1, weight_decay_rate=0.1, weight_decay_mask=mask),
    "adamaxw": lambda mask: optax.adamaxw(0.1, weight_decay=0.1, mask=mask),
    "adamw": lambda mask: optax.adamw(0.1, weight_decay=0.1, mask=mask),
    "adan": lambda mask: optax.adan(0.1, weight_decay=0.1, mask=mask),
    "add_decayed_weights": lambda mask: optax.add_decayed_weights(0.1, mask=mask),
    "lamb": lambda mask: optax.lamb(0.1, weight_decay=0.1, mask=mask),
    "lars": lambda mask: optax.lars(0.1, weight_decay=0.1, weight_decay_mask=mask, trust_ratio_mask=mask),
    "lion": lambda mask: optax.lion(0.1, weight_decay=0.1, mask=mask),
    "masked": lambda mask: optax.chain(optax.masked(optax.add_decayed_weights(0.1), mask), optax.sgd(0.1)),
    "nadamw": lambda mask: optax.nadamw(0.1, weight_decay=0.1, mask=mask),
}
FROZEN: dict[str, Callable[[Any], Any]] = {
    "freeze": lambda mask: optax.freeze(mask),
    "selective_transform": lambda mask: optax.selective_transform(optax.adam(0.1), freeze_mask=mask),
}
LABELLED: dict[str, Callable[[Any], Any]] = {
    "multi_transform": lambda tree: optax.multi_transform({"kernel": optax.adam(0.1), "bias": optax.sgd(1.0)}, tree),
    "partition": lambda tree: optax.partition({"kernel": optax.adam(0.1), "bias": optax.set_to_zero()}, tree),
}
CONTRIBUTED: dict[str, Callable[[Any], Any]] = {
    "acprop": lambda mask: optax.contrib.acprop(0.1, weight_decay=0.1, mask=mask),
    "ademamix": lambda mask: optax.contrib.ademamix(0.1, weight_decay=0.1, mask=mask),
    "cocob": lambda mask: optax.contrib.cocob(0.1, weight_decay=0.1, mask=mask),
    "dog": lambda mask: optax.contrib.dog(0.1, weight_decay=0.1, mask=mask),
    "dowg": lambda mask: optax.contrib.dowg(0.1, weight_decay=0.1, mask=mask),
    "muon": lambda mask: optax.contrib.muon(0.1, weight_decay=0.1, weight_decay_mask=mask),
    "simplified_ademamix": lambda mask: optax.contrib.simplified_ademamix(0.1, weight_decay=0.1, mask=mask),
}
CASES = {
    **{name: (make, kernels) for name, make in {**MASKED, **FROZEN, **CONTRIBUTED}.items()},
    **{name: (make, labels) for name, make in LABELLED.items()},
}


def apply_once(transform: Any, params: Any, grads: Any) -> Any:
    """The parameters after three updates under jit."""

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any]:
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = transform.init(params)
    for _ in range(3):
        params, state = step(params, state)
    return params


ONCE_AS_FUNCTION = ("adamw", "masked", "multi_transform", "partition")


@pytest.mark.parametrize(
    ("name", "form"), [*[(name, "tree") for name in CASES], *[(name, "function") for name in ONCE_AS_FUNCTION]]
)
def test_masked_transforms_treat_nodes_like_dicts(name: str, form: str) -> None:
    if not (hasattr(optax, name) or hasattr(optax.contrib, name)):
        pytest.skip(f"this optax has no {name}")
    make, mask_of = CASES[name]

    ours = apply_once(make(mask_of(NET) if form == "tree" else mask_of), NET, GRADS)
    theirs = apply_once(make(mask_of(as_dict(NET)) if form == "tree" else mask_of), as_dict(NET), as_dict(GRADS))

    assert isinstance(ours, Net)
    assert ours.first.activation is jnp.tanh
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), as_dict(ours), theirs)


def test_every_masked_optax_transform_is_tested() -> None:
    import inspect

    def accepts_mask_or_labels(function: Any) -> bool:
        try:
            names = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return False
        return any(name.endswith(("mask", "param_labels")) for name in names)

    masked = {name for name in dir(optax) if not name.startswith("_") and accepts_mask_or_labels(getattr(optax, name))}
    contributed = {name for name in dir(optax.contrib) if accepts_mask_or_labels(getattr(optax.contrib, name))}

    assert masked - {*MASKED, *FROZEN, *LABELLED} == set()
    # galore works on whole matrices only and sophia asks for the objective: both are tried below.
    assert contributed - {*CONTRIBUTED, "galore", "sophia"} == set()


@pytest.mark.parametrize("name", ["adamw", "masked", "multi_transform", "partition"])
def test_an_optimiser_with_a_recreated_mask_does_not_retrace(name: str) -> None:
    make, mask_of = CASES[name]
    traces: list[None] = []

    @jax.jit
    def step(state: TrainState[Net]) -> TrainState[Net]:
        traces.append(None)
        return state.apply_gradients(grads=GRADS)

    for _ in range(2):
        state: TrainState[Net] = TrainState.create(params=NET, tx=make(mask_of(NET)))
        step(step(state))
    assert len(traces) == 1

    changed = jax.tree.map(lambda value: "bias" if isinstance(value, str) else not value, mask_of(NET))
    step(TrainState.create(params=NET, tx=make(changed)))
    assert len(traces) == 2
