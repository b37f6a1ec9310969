"""`loop`: the results of a jitted step, call by call, with a state that stays flat in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import treewright
from tests.conftest import count_traces
from treewright import Module, TrainState, buffer, loop, replace, static
from treewright.errors import DonatedStateError, LoopStateError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[1]
P: Any = PartitionSpec  # its constructor has no annotations


class Net(Module):
    kernel: Any
    mean: Any = buffer(default=None)
    activation: str = static(default="tanh")

    def __call__(self, x: Any) -> Any:
        activation: Any = getattr(jnp, self.activation)
        return activation(self.kernel * x)


class Pair(NamedTuple):
    first: Any
    second: Any


def net(**changes: Any) -> Net:
    return replace(Net(jnp.arange(3.0), jnp.zeros(3)), **changes)


def train_state() -> Any:
    return TrainState.create(params=net(), tx=optax.adam(0.1))


def training_step(state: Any, x: Any) -> tuple[Any, Any]:
    loss, grads = jax.value_and_grad(lambda net: jnp.sum(net(x) ** 2))(state.params)
    return state.apply_gradients(grads=grads), loss


def doubled(state: Any, x: Any) -> tuple[Any, Any]:
    """For any tree of numbers: floats grow by `x`, the rest does not change, as with buffers."""
    grown = jax.tree.map(lambda leaf: leaf + x if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state)
    return grown, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(grown) if jnp.issubdtype(leaf.dtype, jnp.number))


def with_noise(state: Any, x: Any) -> tuple[Any, Any]:
    key, now = jax.random.split(state["key"])
    return {"key": key, "sum": state["sum"] + jax.random.normal(now)}, x


def count(state: Any, *_: Any) -> tuple[Any, Any]:
    return jax.tree.map(lambda leaf: leaf + 1, state), None


def compilations(run: Callable[[], object]) -> list[str]:
    """The programs that a function compiles, without JAX's own."""
    programs: list[str] = []

    def record_event(event: str, duration_secs: float, **details: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(record_event)
    run()
    jax.monitoring.unregister_event_duration_listener(record_event)
    return [name for name in programs if name in {"jit(count)", "jit(doubled)", "jit(<lambda>)", "jit(step)"}]


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "an array": (lambda: jnp.ones(2), doubled),
    "a dict": (lambda: {"a": jnp.ones(2), "b": [jnp.zeros(()), jnp.arange(3)]}, doubled),
    "a named tuple of two": (lambda: Pair(jnp.ones(2), jnp.zeros(2)), doubled),
    "None and nothing": (lambda: {"a": None, "b": (), "c": jnp.ones(())}, doubled),
    "no leaf": (lambda: (None, []), lambda state, x: (state, x)),
    "a Module with a buffer": (net, lambda net, x: (replace(net, kernel=net.kernel + x), net(x))),
    "a TrainState": (train_state, training_step),
    "a typed key": (lambda: {"key": jax.random.key(0), "sum": jnp.zeros(())}, with_noise),
    "an old key": (lambda: {"key": jax.random.PRNGKey(0), "sum": jnp.zeros(())}, with_noise),
    "numpy arrays and numbers": (lambda: {"a": np.ones(2, np.float32), "b": 0.0, "c": np.int32(1)}, doubled),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_returns_the_results_of_the_jitted_step(name: str) -> None:
    make, step = CASES[name]
    jitted, state = jax.jit(lambda state, x: step(state, x)), make()
    run = loop(step, make())

    for x in jnp.asarray([1.0, 2.0, 3.0]):
        state, output = jitted(state, x)
        assert treewright.diff(run(x), output) == []
        assert treewright.diff(run.state, state) == []


def test_keyword_inputs_are_traced() -> None:
    def step(state: jax.Array, *, x: jax.Array, scale: float = 1.0) -> tuple[jax.Array, jax.Array]:
        return state + scale * x, x

    run = loop(counted := count_traces(step), jnp.zeros(()))
    for scale in (1.0, 2.0, 3.0):
        run(x=jnp.ones(()), scale=scale)

    assert (float(run.state), counted.count) == (6.0, 1)


# Donation


def test_each_call_donates_the_previous_state() -> None:
    first = {"a": jnp.ones(3)}
    run = loop(count, first)
    run()
    second = run.state
    assert not second["a"].is_deleted()
    run()

    assert first["a"].is_deleted()
    assert second["a"].is_deleted()
    assert run.state["a"].tolist() == [3, 3, 3]
    with pytest.raises(
        DonatedStateError, match=r"state\['a'\] was donated to a call that failed, or to a different loop"
    ):
        run.state = first
    assert run.state["a"].tolist() == [3, 3, 3]


def test_passing_donated_state_as_input_names_the_leaf() -> None:
    def step(state: Any, inputs: Any) -> Any:
        return {"a": state["a"] + inputs["x"]}, None

    donated = (
        r"^inputs\[0\]\['x'\] of this call of loop\(step\) is part of the state .* copy it first: jax\.tree\.map\("
    )
    run = loop(step, {"a": jnp.ones(2)})
    with pytest.raises(DonatedStateError, match=donated):
        run({"x": run.state["a"]})
    assert jnp.array_equal(run.state["a"], jnp.ones(2))  # JAX 0.11 donates no array that has been copied to the host

    earlier = run.state["a"]
    run({"x": jnp.ones(2)})
    with pytest.raises(DonatedStateError, match=donated):
        run({"x": earlier})
    assert run.state["a"].tolist() == [2, 2]


def test_a_shared_array_is_donated_once() -> None:
    one, key = jnp.ones(3), jax.random.key(0)
    state: Any = {"a": one, "b": one, "c": jax.device_put(one), "d": jnp.zeros(3)}
    run = loop(count, state)
    keys = loop(lambda keys: (keys, None), [key, key])
    for _ in range(2):
        run()
        keys()

    assert [run.state[name].tolist() for name in "abcd"] == [[3, 3, 3], [3, 3, 3], [3, 3, 3], [2, 2, 2]]
    assert keys.state[0] == keys.state[1] == jax.random.key(0)


def test_an_output_that_aliases_the_state_survives_the_next_call() -> None:
    def step(state: Any) -> tuple[Any, Any]:
        new = {"a": state["a"] + 1, "same": state["same"]}
        return new, (new["a"], state["a"], state["same"])

    run = loop(step, {"a": jnp.zeros(()), "same": jnp.full((), 7.0)})
    outputs = [run() for _ in range(3)]

    assert np.asarray(outputs).tolist() == [[1, 0, 7], [2, 1, 7], [3, 2, 7]]


@jax.tree_util.register_pytree_node_class
class Fragile:
    """An output that JAX can't unflatten while `broken`: the error comes after the step has been computed."""

    broken = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Fragile:
        if cls.broken:
            raise ValueError("bad luck")
        return cls(*children)


def test_a_call_that_fails_after_computing_loses_the_donated_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(state: Any) -> tuple[Any, Any]:
        return {"n": state["n"] + 1, "x": [state["x"][0] + 1]}, Fragile(state["n"])

    run, undonated = (loop(step, {"n": jnp.zeros(()), "x": [jnp.zeros(2)]}, donate=donate) for donate in (True, False))
    for each in (run, undonated):
        each()
        monkeypatch.setattr(Fragile, "broken", True)
        with pytest.raises(ValueError, match="bad luck"):
            each()
        monkeypatch.setattr(Fragile, "broken", False)

    assert float(undonated.state["n"]) == 1.0
    with pytest.raises(DonatedStateError, match=r"loop\(step\) is gone: state\['n'\] was donated to a"):
        _ = run.state
    run.state = undonated.state
    run()
    assert float(run.state["n"]) == 2.0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timer")
def test_an_interrupt_loses_no_state() -> None:
    # In a separate process: an interrupt during coverage's lock would leave it locked.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "tests.interrupt_loop"]
    result = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=120, check=False)

    assert (result.returncode, result.stdout) == (0, "100 interrupts\n"), result.stderr


# Results of steps

REJECTED: dict[str, tuple[Any, str]] = {
    "a leaf more": (lambda s, x: ({**s, "c": x}, x), r"state['c'] (added): float32[]"),
    "a different shape": (lambda s, x: ({**s, "a": s["a"][:1]}, x), "state['a'] (shape): float32[2] -> float32[1]"),
    "a different static": (
        lambda s, x: ({**s, "net": replace(s["net"], activation="sin")}, x),
        "state['net'].activation (static): 'tanh' -> 'sin'",
    ),
    "a different class": (lambda s, x: ((s["a"], s["net"]), x), "state (class): dict"),
    "only the state": (lambda s, x: s, "got {'a': f32[2](traced), 'net': Net("),
    "three": (
        lambda s, x: (s, x, x),
        "must return a pair, (state, output), got (",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_step_that_changes_the_state_type_is_rejected_by_path(name: str) -> None:
    step, message = REJECTED[name]
    state: Any = {"a": jnp.ones(2), "net": net()}
    run = loop(step, state)

    with pytest.raises(LoopStateError) as caught:
        run(jnp.ones(()))
    assert message in str(caught.value)
    assert run.state["a"].tolist() == [1, 1]


def test_a_leaf_that_is_not_an_array_is_rejected_by_path() -> None:
    with pytest.raises(
        LoopStateError, match=r"^state\['net'\]\.kernel is 'relu', but .* Make it a static field, or keep"
    ):
        loop(count, {"net": net(kernel="relu")})


def test_a_ref_is_rejected_in_the_state_by_path_and_accepted_as_an_input() -> None:
    with pytest.raises(
        LoopStateError, match=r"^state\['a'\] is f32\[2\]\(ref\), but .* Pass a ref as an input of the step"
    ):
        loop(count, {"a": jax.new_ref(jnp.ones(2))})

    def total(state: Any, ref: Any) -> Any:
        ref[...] += state
        return state, None

    ref = jax.new_ref(jnp.zeros(2))
    loop(total, jnp.ones(2))(ref)
    assert ref[...].tolist() == [1, 1]


# Numbers


def test_numbers_in_the_state_become_arrays_of_the_default_dtype() -> None:
    state: Any = (0, 1.0, jnp.ones(()))
    run = loop(counted := count_traces(lambda state, x: ((state[0] + 1, state[1] * 2.0, 0.0), x)), state)

    compiled = compilations(lambda: [run(jnp.ones(())) for _ in range(3)])

    assert [str(jax.typeof(leaf)) for leaf in run.state] == ["int32[]", "float32[]", "float32[]"]
    assert [float(leaf) for leaf in run.state] == [3, 8, 0]
    assert (counted.count, compiled) == (1, ["jit(<lambda>)"])


def test_a_number_of_a_different_type_than_the_result_is_rejected() -> None:
    with pytest.raises(LoopStateError, match=r"state \(dtype\): int32\[\] -> float32\[\]"):
        loop(lambda state, x: (state + x, x), 0)(0.5)


# Other states


def test_reading_and_assigning_the_state_keep_the_program() -> None:
    run = loop(counted := count_traces(training_step), train_state())
    first = run(jnp.ones(3))
    assert int(run.state.step) == 1
    run(jnp.ones(3))
    run.state = train_state()

    assert run(jnp.ones(3)) == first
    assert counted.count == 1


# Under tracing


def test_a_loop_can_be_created_and_called_under_jit() -> None:
    @jax.jit
    def total(xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        run = loop(lambda state, x: (state + x, state), jnp.zeros(()))
        outputs = [run(x) for x in xs]
        return run.state, jnp.stack(outputs)

    state, outputs = total(jnp.arange(3.0))

    assert (float(state), outputs.tolist()) == (3.0, [0, 0, 1])


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.make_jaxpr])
def test_calling_an_outer_loop_under_jit_is_rejected(transform: Any) -> None:
    run = loop(lambda state, x: (state + 1, x), jnp.zeros(2))
    run(jnp.ones(()))

    with pytest.raises(LoopStateError, match=r"was created outside this trace.* Create the loop inside the function"):
        transform(lambda x: run(x))(jnp.ones(2))

    assert run.state.tolist() == [1, 1]


# Devices


def mesh_of(kind: Any) -> Any:
    return jax.make_mesh((4,), ("x",), axis_types=(kind,))


@pytest.mark.devices(4)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_leaves_keep_their_shardings_with_one_program(kind: Any) -> None:
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        split, replicated = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        state = {"split": jax.device_put(jnp.ones(8), split), "n": jnp.zeros((), jnp.int32), "replicated": jnp.zeros(8)}
        run = loop(count, jax.device_put(state, {"split": split, "n": None, "replicated": replicated}))

        compiled = compilations(lambda: [run() for _ in range(3)])

    shardings = {name: leaf.sharding.is_equivalent_to(split, 1) for name, leaf in run.state.items() if name != "n"}
    assert shardings == {"split": True, "replicated": False}
    assert compiled == ["jit(count)"]


@pytest.mark.devices(4)
def test_the_state_moves_to_the_device_of_the_inputs() -> None:
    split = NamedSharding(mesh_of(AxisType.Auto), P("x"))
    run = loop(doubled, {"a": jnp.ones(8), "n": 1})

    compiled = compilations(lambda: [run(jax.device_put(jnp.ones(8), split)) for _ in range(3)])

    assert compiled == ["jit(doubled)"]
    assert run.state["a"].sharding.device_set == split.device_set
