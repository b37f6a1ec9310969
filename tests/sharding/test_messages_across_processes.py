"""What processes tell each other, with JAX's service replaced, so that all branches run in one process."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from treewright import Module, static
from treewright.errors import ProcessMismatchError
from treewright.sharding import (
    assert_same_on_all_processes,
    assert_same_program_on_all_processes,
    processes,
    sharded_init,
)
from treewright.sharding.processes import processes_text, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Layer(Module):
    kernel: Any
    act: str = static(default="relu")
    log: str = static(default="", local=True)


class Service:
    """JAX's coordination service for processes that are threads."""

    def __init__(self, count: int) -> None:
        self.values: dict[str, bytes] = {}
        self.turns: dict[str, int] = {}
        self.barrier = threading.Barrier(count)

    def key_value_increment(self, key: str, by: int) -> int:
        self.turns[key] = self.turns.get(key, 0) + by
        return self.turns[key]

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def wait_at_barrier(self, name: str, milliseconds: int) -> None:
        del name
        try:
            self.barrier.wait(milliseconds / 1000)
        except threading.BrokenBarrierError:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out.") from None

    def key_value_dir_get_bytes(self, folder: str) -> list[tuple[str, bytes]]:
        return [(key, value) for key, value in self.values.items() if key.startswith(folder)]

    def key_value_delete(self, folder: str) -> None:
        for key in [key for key in self.values if key.startswith(folder)]:
            del self.values[key]


def messages(
    monkeypatch: pytest.MonkeyPatch, calls: Sequence[Callable[[], object]], service: Service | None = None
) -> list[str | None]:
    """What each call raises, where each stands for a process."""
    number = threading.local()
    shared = service or Service(len(calls))
    monkeypatch.setattr(jax, "process_count", lambda: len(calls))
    monkeypatch.setattr(jax, "process_index", lambda: number.value)
    monkeypatch.setattr(processes, "coordination_client", lambda: shared)

    def run(process: int) -> str | None:
        number.value = process
        try:
            calls[process]()
        except ProcessMismatchError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, range(len(calls))))


def of_trees(monkeypatch: pytest.MonkeyPatch, *trees: Any) -> str | None:
    """The one message that all processes raise."""
    found = messages(monkeypatch, [lambda tree=tree: assert_same_on_all_processes(tree) for tree in trees])  # type: ignore[misc]
    assert len({*found}) == 1
    return found[0]


def test_one_process_has_nothing_to_compare() -> None:
    assert_same_on_all_processes(Layer(jnp.ones(2)))
    assert_same_program_on_all_processes(jax.jit(lambda x: x).lower(1.0))


def test_equal_trees_pass_whatever_their_values_and_local_statics(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [Layer(jnp.ones(2) * number, log=f"process {number}") for number in range(3)]

    assert of_trees(monkeypatch, *trees) is None


def test_a_static_that_differs_is_named_with_path_process_and_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [[Layer(jnp.ones(2), act)] for act in ("relu", "gelu", "relu", "relu", "tanh")]

    assert of_trees(monkeypatch, *trees) == (
        "The processes hold different trees:\n"
        "  [0].act (static)\n"
        "    processes 0, 2-3: 'relu'\n"
        "    process 1: 'gelu'\n"
        "    process 4: 'tanh'\n"
        "Give every process the same. A static that may differ, since no program depends on it, is declared "
        "static(local=True)."
    )


def test_shapes_dtypes_and_structures_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = of_trees(
        monkeypatch,
        {"a": jnp.ones((2, 3)), "b": [1], "c": ()},
        {"a": jnp.ones((2, 3), jnp.bfloat16), "b": [1, 2], "c": []},
    )

    assert message is not None
    assert message.splitlines()[1:-1] == [
        "  ['a']",
        "    process 0: f32[2,3]",
        "    process 1: bf16[2,3]",
        "  ['c']",
        "    process 0: tuple",
        "    process 1: list",
        "  ['b'][1]",
        "    process 0: nothing",
        "    process 1: 2",
    ]


def test_of_a_long_static_the_part_that_differs_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    message = of_trees(monkeypatch, Layer(1, "a" * 100 + "b" + "c" * 100), Layer(1, "a" * 100 + "d"))

    assert message is not None
    assert message.splitlines()[2:4] == [
        f"    process 0: ...{'a' * 30}b{'c' * 59}...",
        f"    process 1: ...{'a' * 30}d'",
    ]


def test_at_most_twenty_places_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    message = of_trees(monkeypatch, list(range(25)), list(range(1, 26)))

    assert message is not None
    assert "  and 5 places more" in message.splitlines()


def of_programs(monkeypatch: pytest.MonkeyPatch, *functions: Any) -> str | None:
    lowered = [jax.jit(function).lower(jnp.ones(3)) for function in functions]
    found = messages(monkeypatch, [lambda one=one: assert_same_program_on_all_processes(one) for one in lowered])  # type: ignore[misc]
    assert len({*found}) == 1
    return found[0]


def same(x: jax.Array) -> jax.Array:
    return x * 2


def test_equal_programs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(x: jax.Array) -> jax.Array:
        return x * 2

    other.__name__ = "same"
    assert of_programs(monkeypatch, same, other) is None


def test_of_programs_the_first_line_that_differs_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(x: jax.Array) -> jax.Array:
        return x * 3

    other.__name__ = "same"
    message = of_programs(monkeypatch, same, other, same)

    assert message is not None
    assert message.splitlines()[0] == "The processes have lowered different programs:"
    assert "processes 0, 2: %cst = stablehlo.constant dense<2.0" in message
    assert "process 1: %cst = stablehlo.constant dense<3.0" in message


def test_a_program_that_ends_earlier_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Text:
        def __init__(self, text: str) -> None:
            self.text = text

        def as_text(self) -> str:
            return self.text

    programs: list[Any] = [Text("a\nb"), Text("a")]
    found = messages(
        monkeypatch,
        [lambda one=one: assert_same_program_on_all_processes(one) for one in programs],  # type: ignore[misc]
    )

    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].splitlines()[1:4] == ["  line 2", "    process 0: b", "    process 1: the end of the program"]


def test_processes_are_named_in_ranges() -> None:
    assert processes_text([3]) == "process 3"
    assert processes_text([0, 1, 2, 4, 6, 7]) == "processes 0-2, 4, 6-7"


def test_what_equal_trees_exchange_is_a_digest_each_and_the_last_turn_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(3)

    for _ in range(2):
        assert messages(monkeypatch, [lambda: assert_same_on_all_processes(Layer(1))] * 3, service) == [None] * 3

    assert {len(value) for value in service.values.values()} == {hashlib.sha256().digest_size}
    assert {key.split("/")[2] for key in service.values} == {"2"}


def test_of_many_trees_the_first_eight_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    message = of_trees(monkeypatch, *(Layer(1, f"act {number}") for number in range(11)))

    assert message is not None
    assert "    process 7: 'act 7'\n  Processes 8-10: still other values\n" in message


def test_a_process_that_has_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        assert_same_on_all_processes(Layer(1), timeout_seconds=0.2)

    assert [message and message.splitlines()[0] for message in messages(monkeypatch, [wait, lambda: None, wait])] == [
        "Process 1 has not come to assert_same_on_all_processes after 0.2 s; process 0 has.",
        None,
        "Process 1 has not come to assert_same_on_all_processes after 0.2 s; process 2 has.",
    ]
    said = messages(monkeypatch, [wait, lambda: None, lambda: None])[0] or ""
    assert said.startswith("Processes 1-2 have not come")


def test_a_process_that_comes_late_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        assert_same_on_all_processes(Layer(1), timeout_seconds=0.2)

    def come_late() -> None:
        time.sleep(0.4)
        wait()

    said = messages(monkeypatch, [wait, come_late])[1] or ""
    assert said.startswith("Process 1 has come to assert_same_on_all_processes when others had stopped waiting for it")


def test_processes_at_different_checks_are_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = jax.jit(same).lower(jnp.ones(3))

    found = messages(
        monkeypatch,
        [lambda: assert_same_on_all_processes(Layer(1)), lambda: assert_same_program_on_all_processes(lowered)],
    )

    assert found[0] == found[1]
    assert (found[0] or "").splitlines() == [
        "The processes are not at the same check:",
        "  the check",
        "    process 0: assert_same_on_all_processes",
        "    process 1: assert_same_program_on_all_processes",
        "Every process calls the same checks in one order.",
    ]


def test_what_would_be_made_is_compared_before_anything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((2,), ("data",))
    seeds = [0, 0, 1]

    def make(seed: int) -> object:
        key = jax.random.key(seed)
        return sharded_init(lambda key: Layer(jax.random.normal(key, (4,))), key, mesh=mesh, rules={})

    found = messages(monkeypatch, [lambda seed=seed: make(seed) for seed in seeds])  # type: ignore[misc]

    assert len({*found}) == 1
    assert (found[0] or "").splitlines()[:3] == [
        "The processes would make different trees:",
        "  argument key",
        "    processes 0-1: key<fry>[]#af5570f5a181",
    ]
    assert messages(monkeypatch, [lambda: make(0)] * 2) == [None, None]


def test_an_error_of_the_service_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Service):
        def wait_at_barrier(self, name: str, milliseconds: int) -> None:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: the coordinator has ended")

    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        messages(monkeypatch, [lambda: assert_same_on_all_processes(Layer(1))] * 2, Gone(2))


def test_without_the_service_processes_meet_in_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "coordination_client", lambda: None)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda value, **_: np.stack([value, value]))

    assert_same_on_all_processes(Layer(jnp.ones(2)))


def test_versions_are_those_of_packages_and_not_of_modules_of_ones_own() -> None:
    found = versions({"optax._src.base", __name__, "builtins", "einops.not_imported"})

    assert {*found} >= {"version of Python", "version of jax", "version of optax"}
    assert not [name for name in found if "tests" in name or "builtins" in name]
