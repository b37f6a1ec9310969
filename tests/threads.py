"""Eight threads that use all tables and caches concurrently; raises if a thread sees a wrong state.

`tests/test_threads.py` runs it, and if there is a Python without the GIL, runs this file as a program with it.
"""

import pickle
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from treewright import Module, explain_retraces, pytree_dataclass, replace, static

THREADS = 8


@pytree_dataclass
class Layer:
    kernel: Any
    width: int = static(default=1)
    name: str = static(default="layer")
    scales: Any = static(default=(1.0,))


class Net(Module):
    layer: Layer
    activation: Any = static(default=jnp.tanh)

    def apply(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.activation(x * self.layer.kernel) * self.layer.width)


def statics_of(node: Any) -> object:
    return node.tree_flatten()[1]


def check_interning(number: int, turn: int, together: Callable[[object], list[object]]) -> None:
    """Equal statics that all threads create together are one object."""
    layer = Layer(float(number), turn % 50, f"turn {turn}", (float(turn), turn))

    assert len(set(map(id, together(statics_of(layer))))) == 1, "equal statics are several objects"
    assert statics_of(replace(layer, width=turn % 50)) is statics_of(layer)


def check_forgetting(number: int, turn: int) -> None:
    """Unused statics are freed while other threads intern equal ones."""
    for _ in range(20):
        first, second = Layer(1, turn % 2), Layer(2, turn % 2)
        assert statics_of(first) is statics_of(second)
        del first, second


def check_pickling(number: int, turn: int) -> None:
    net = Net(Layer(jnp.full(2, number), turn % 3), jnp.tanh)
    restored = pickle.loads(pickle.dumps(net))

    assert restored == net
    assert statics_of(restored.layer) is statics_of(net.layer)


def check_class_creation(number: int, turn: int) -> None:
    """A new class, whose instances pass through `jit`."""
    body = {"__annotations__": {"x": Any, "size": int}, "size": static(default=turn), "__module__": __name__}
    cls: Any = types.new_class(f"Made{number}", (Module,), exec_body=lambda names: names.update(body))
    plain: Any = pytree_dataclass(type("Plain", (), {"__annotations__": {"x": Any}}))

    assert jax.tree.map(lambda x: x + 1, cls(number)) == cls(number + 1, turn)
    assert jax.tree.leaves(plain(number)) == [number]


@jax.jit
def shared(net: Net, x: jax.Array) -> jax.Array:
    return net.apply(x)


def check_jit(number: int, turn: int) -> None:
    """A jitted function shared by all threads, and one for this thread."""
    net = Net(Layer(jnp.ones(2), 1 + (turn + number) % 4), jnp.abs)

    assert shared(net, jnp.full(2, 3.0)).tolist() == [3.0 * net.layer.width] * 2
    assert jax.jit(net.apply)(jnp.full(2, 2.0)).tolist() == [2.0 * net.layer.width] * 2


def check_retraces(number: int, turn: int) -> None:
    """Each thread's block reports only its own retrace."""
    reports: list[Any] = []
    name = f"double_{number}_{turn}"
    code = (lambda x: x * 2).__code__.replace(co_name=name, co_qualname=name)  # retraces are distinguished by the code

    double = jax.jit(types.FunctionType(code, globals(), name))
    with explain_retraces(on_report=reports.append):
        for size in (2, 3):
            double(jnp.ones(size))

    lines = [f"{report.function}: {report.differences[0]}" for report in reports if report.differences]
    assert f"{name}: x (shape): float32[2] -> float32[3]; axis 0: 2 -> 3" in lines, lines


def run(turns: int) -> int:
    """Run all checks in eight threads; returns the number of successful turns."""
    barrier = threading.Barrier(THREADS)
    values: list[object] = [None] * THREADS
    failures: list[BaseException] = []

    def thread(number: int) -> int:
        def together(value: object) -> list[object]:
            barrier.wait(60)
            values[number] = value
            barrier.wait(60)
            snapshot = list(values)
            barrier.wait(60)
            return snapshot

        try:
            for turn in range(turns):
                check_interning(number, turn, together)
                for check in (check_forgetting, check_pickling, check_class_creation, check_jit, check_retraces):
                    check(number, turn)
        except BaseException as error:  # noqa: BLE001  raised below
            failures.append(error)
            barrier.abort()  # Otherwise the other threads would wait.
        return turns

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            done = sum(pool.map(thread, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
    return done


if __name__ == "__main__":
    sys.stdout.write(f"{run(int(sys.argv[1]))} turns\n")
