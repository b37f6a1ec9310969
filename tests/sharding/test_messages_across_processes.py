"""What processes tell each other, with the gather replaced: all branches in one process. Real ones: test_processes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from treewright import Module, static
from treewright.errors import ProcessMismatchError
from treewright.sharding import assert_same_on_all_processes, assert_same_program_on_all_processes
from treewright.sharding.processes import _names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest


class Layer(Module):
    kernel: Any
    act: str = static(default="relu")
    log: str = static(default="", local=True)


def messages(monkeypatch: pytest.MonkeyPatch, calls: Sequence[Callable[[], object]]) -> list[str | None]:
    """What each call raises, where each stands for a process: all gathers of one round see what the others gave.

    A call is run again from its start for each round, with what is known by then.
    """
    known: list[list[Any]] = [[] for _ in calls]  # by process, what it gave to each gather
    monkeypatch.setattr(jax, "process_count", lambda: len(calls))

    class NotKnownError(Exception):
        pass

    def run(process: int) -> str | None:
        count = 0

        def gather(value: Any, **_: Any) -> Any:
            nonlocal count
            if count == len(known[process]):
                known[process].append(value)
            count += 1
            if any(len(given) < count for given in known):
                raise NotKnownError
            return np.stack([given[count - 1] for given in known])

        monkeypatch.setattr(multihost_utils, "process_allgather", gather)
        try:
            calls[process]()
        except ProcessMismatchError as error:
            return str(error)
        return None

    while True:
        try:
            return [run(process) for process in range(len(calls))]
        except NotKnownError:
            for process in range(len(calls)):
                try:
                    run(process)
                except NotKnownError:
                    continue


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
    assert _names([3]) == "process 3"
    assert _names([0, 1, 2, 4, 6, 7]) == "processes 0-2, 4, 6-7"


def test_the_digest_that_is_gathered_is_of_32_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    def gather(value: Any, **_: Any) -> Any:
        sizes.append(value.nbytes)
        return np.stack([value, value])

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)

    assert_same_on_all_processes(Layer(jnp.ones(2)))

    assert sizes == [hashlib.sha256().digest_size]
