"""Exchange text between the processes of a run; and what this needs of JAX that is private or recent."""

import json
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jax
import numpy as np

from treewright._core.jax_private import process_count, process_index, untyped_jax
from treewright.errors import ProcessMismatchError

TIMEOUT = 60.0  # seconds; below the 100 s after which JAX itself ends a run with a process that gives no sign of life
_READING = 10.0  # seconds for every process to read what the others passed
_LINGER = 1.0  # seconds for the other processes to raise before the one with the service does
_FOLDER = "treewright/exchange"  # of our keys in JAX's coordination service


def exchange(text: str, *, name: str, timeout: float = TIMEOUT) -> list[str]:
    """The texts that all processes passed, in the order of processes: the same list in each of them.

    Every process has to call it, from one thread, in the same order as its other exchanges. No device computes
    anything. One process alone gets `[text]` at once.

    Args:
        text: What this process passes.
        name: What the exchange is for, as messages call it: `save of step 3`. The same in all processes.
        timeout: Seconds to wait for the others.

    Raises:
        ProcessMismatchError: In every process, with the same message: if some process does not come in time, or if
            the names differ.
    """
    if process_count() == 1:
        return [text]
    packed = zlib.compress(json.dumps([name, text]).encode())
    client = coordination_client()
    messages = _allgather(packed) if client is None else _by_service(client, packed, name, timeout)
    names, texts = zip(*(json.loads(zlib.decompress(message)) for message in messages), strict=True)
    if len({*names}) > 1:
        places = (f"  {processes_text(_indices(names, other))}: {other}" for other in dict.fromkeys(names))
        raise_in_all(
            ProcessMismatchError(
                "\n".join(
                    [
                        "The processes are not at the same place of the program:",
                        *places,
                        "Every process makes the same checks, saves and restores in the same order.",
                    ]
                )
            )
        )
    return list(texts)


def raise_in_all(error: Exception) -> NoReturn:
    """Raise an error that all processes raise, each for itself, after an exchange: the first process does so last.

    JAX's coordination service lives in the first process. Where that one ends, JAX aborts the others, which may not
    have raised yet: without this second, in about half of all runs that end by `os._exit`.
    """
    if process_count() > 1 and process_index() == 0:
        time.sleep(_LINGER)
    raise error


def processes_text(processes: Iterable[int]) -> str:
    """`process 3`, or `processes 0-2, 4`."""
    numbers = sorted(processes)
    return f"process{'es' * (len(numbers) > 1)} {ranges_text(numbers)}"


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-2, 4` for ascending numbers."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("-".join(map(str, bounds)) for bounds in ranges)


def _by_service(client: Any, message: bytes, name: str, timeout: float) -> list[bytes]:
    try:
        return _Exchange(client, name).run(message, timeout)
    except jax.errors.JaxRuntimeError as error:
        if "UNAVAILABLE" not in str(error):
            raise
        raise ProcessMismatchError(
            f"Process 0 ended, or can't be reached any more, while {processes_text([process_index()])} was in {name}: "
            f"JAX's coordination service, which lives in process 0, does not answer.\nLook at the log of process 0."
        ) from error


class _Exchange:
    """One exchange through JAX's coordination service, which lives in the first process."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.me = process_index()
        # The service counts the exchanges, not this module: a run that joins another service starts from 1.
        self.turn = int(client.key_value_increment(f"{_FOLDER}/turn of {self.me}", 1))
        self.folder = f"{_FOLDER}/{self.turn}"

    def run(self, message: bytes, timeout: float) -> list[bytes]:
        """The messages of all processes, once each of them has read them all."""
        self.client.key_value_set_bytes(f"{self.folder}/message/{self.me}", message)
        problem = self.wait(timeout)
        messages = self.messages()
        absent = [] if problem is None else self.absent(messages)
        if self.me not in absent:  # else the others have stopped waiting
            self.meet("read", {*range(process_count())}.difference(absent))
        if problem is not None:
            raise_in_all(self.error(absent, timeout, problem))
        if self.me == 0:  # every process has read the exchange before this one
            self.client.key_value_delete(f"{_FOLDER}/{self.turn - 1}/")
        return [messages[process] for process in range(process_count())]

    def wait(self, timeout: float) -> Exception | None:
        """Wait until all processes have come; the service's error where some do not. It is the same for each."""
        try:
            self.client.wait_at_barrier(f"{self.folder}/come", _milliseconds(timeout))
        except jax.errors.JaxRuntimeError as error:
            return error
        return None

    def messages(self) -> dict[int, bytes]:
        """What has been passed up to now, by process."""
        entries = self.client.key_value_dir_get_bytes(f"{self.folder}/message/")
        return {int(key.rpartition("/")[2]): value for key, value in entries}

    def absent(self, messages: dict[int, bytes]) -> list[int]:
        """The processes that did not come in time: what the first process to find out says, in all of them."""
        key = f"{self.folder}/absent"
        mine = [process for process in range(process_count()) if process not in messages]
        try:
            self.client.key_value_set(key, json.dumps(mine))
        except jax.errors.JaxRuntimeError:  # another process was first
            agreed: list[int] = json.loads(self.client.blocking_key_value_get(key, _milliseconds(_READING)))
            return agreed
        return mine

    def meet(self, place: str, processes: Iterable[int]) -> None:
        """Wait for some processes, for a short time."""
        try:
            self.client.wait_at_barrier(f"{self.folder}/{place}", _milliseconds(_READING), sorted(processes))
        except jax.errors.JaxRuntimeError:  # one has ended since; the others go on, with what they have read
            return

    def error(self, absent: list[int], timeout: float, problem: Exception) -> ProcessMismatchError:
        """The same error for each process that came, in time or late."""
        present = [process for process in range(process_count()) if process not in absent]
        if not absent:
            reason = str(problem).partition("\n")[0]
            return ProcessMismatchError(f"The processes could not meet for {self.name}: {reason}")
        late = processes_text(absent)
        return ProcessMismatchError(
            f"{late[0].upper()}{late[1:]} did not reach {self.name} within {timeout:g} s "
            f"({processes_text(present)} did).\n"
            f"Look at the log of {late}: it may have ended, may wait for something else, or may run another branch of "
            f"the program. If it is only slow, allow more time in every process with timeout_seconds=."
        )


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _indices(values: Iterable[str], value: str) -> list[int]:
    return [index for index, other in enumerate(values) if other == value]


def _allgather(data: bytes) -> list[bytes]:
    """The data of each process, by a collective of their devices."""
    packed = np.frombuffer(data, np.uint8)
    sizes = process_allgather(np.asarray(len(packed), np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(packed)] = packed
    rows = process_allgather(padded)
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


# Young. Without `multihost_utils`, which is experimental, the trees and programs of several processes could not be
# compared, and checkpoints of arrays that are spread over them could not have digests.


def process_allgather(array: Any, *, tiled: bool = False) -> Any:
    """The array of each process, stacked in their order; `tiled`, one array of the parts that they hold.

    All processes have to call it.
    """
    from jax.experimental import multihost_utils

    gather: Any = multihost_utils.process_allgather
    return np.asarray(gather(array, tiled=tiled))


def of_all_processes(data: bytes) -> list[bytes]:
    """The bytes that each process gives, in their order. All of them have to call it."""
    return [zlib.decompress(packed) for packed in _allgather(zlib.compress(data))]


def preemption_agreed(step: int) -> bool:
    """Whether some process was told to leave and this is the step at which all do. All call it in each step.

    Without it, a run of several processes that is told to leave fails at its next step, and saves nothing more.
    """
    from jax.experimental import multihost_utils

    return bool(multihost_utils.reached_preemption_sync_point(step))


# Young. `import treewright.sharding` fails in a JAX without this one.

# A setting for a block that `jit` takes into account: a function that reads it is traced again where it differs.
part_of_jit_key: Any = untyped_jax.make_user_context


def mesh_of_old_context() -> Any:
    """The mesh of a block `with mesh:`; None outside of such blocks.

    Without it, `constrain` does nothing in such a block and does not warn.
    """
    from jax._src import mesh

    resources = getattr(getattr(mesh, "thread_resources", None), "env", None)
    physical = getattr(resources, "physical_mesh", None)
    return None if physical is None or physical.empty else physical


def coordination_client() -> Any:
    """The client of the service through which the processes of a job have found each other; None if it has none.

    Without it, processes that compare something wait for each other in a collective of their devices: with the time
    limit of their network, and without the names of those that have not come.
    """
    from jax._src import distributed

    return getattr(getattr(distributed, "global_state", None), "client", None)


def kept_arguments(compiled: Any, count: int) -> tuple[int, ...]:
    """Which leaves of its arguments a compiled program takes: `jit` leaves out those that it does not use.

    Without it, the donated arguments of a function that does not use all of its arguments may be told wrongly.
    """
    kept = getattr(getattr(compiled, "_executable", None), "_kept_var_idx", None)
    return tuple(range(count)) if kept is None else tuple(sorted(kept))


def output_shardings(compiled: Any) -> list[Any]:
    """The shardings of the outputs of a compiled program: of its results, and after them of what refs hold then.

    Without it, `program_report` fails for functions that are given refs: JAX's own `output_shardings` does too.
    """
    try:
        return list(untyped_jax.tree.leaves(compiled.output_shardings))
    except ValueError:
        return list(compiled._executable._out_shardings)


def equation_setting(equation: Any) -> tuple[Any, ...]:
    """The settings under which an equation of a jaxpr was traced, to be compared.

    Without it, two equal equations that were traced under other settings would be compiled as one.
    """
    context = equation.ctx
    names = ("compute_type", "threefry_partitionable", "xla_metadata", "cur_abstract_mesh")
    return tuple(str(getattr(context, name, None)) for name in names)


def some_equations(jaxpr: Any, equations: Any, inputs: Any, outputs: Any) -> Callable[..., list[Any]]:
    """Some equations of a closed jaxpr as a function of some of its variables that gives others.

    All public, and young. Without `replace` and `eval_jaxpr`, `sharded_init` fails.
    """
    part = jaxpr.jaxpr.replace(eqns=list(equations), invars=list(inputs), outvars=list(outputs))
    return lambda *values: untyped_jax.core.eval_jaxpr(part, jaxpr.consts, *values)
