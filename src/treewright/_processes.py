"""Exchange and compare text between the processes of a run; and what this needs of JAX that is private or recent."""

import hashlib
import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from treewright._core.jax_private import untyped_jax
from treewright._core.text import common_start
from treewright.errors import ProcessMismatchError

TIMEOUT = 60.0  # seconds; below the 100 s after which JAX itself ends a run with a process that gives no sign of life
_READING = 10.0  # seconds for every process to read what the others passed
_LINGER = 1.0  # seconds for the other processes to raise before the one with the service does
_FOLDER = "treewright"  # of our keys in JAX's coordination service
_GROUPS = 8  # groups of processes with the same texts, of which a message shows one each
_SHOWN = 20  # differences in one message
_WIDTH = 90  # characters of a text in a message
_CURE = (
    "Give every process the same. A static that may differ, since no program depends on it, is declared "
    "static(local=True). A program differs where it reads something that does: a global or environment variable, the "
    "order of a set."
)


def process_count() -> int:
    """How many processes the job has."""
    return int(untyped_jax.process_count())


def process_index() -> int:
    """Which of the processes this one is, from 0."""
    return int(untyped_jax.process_index())


def exchange(text: str, *, name: str, timeout: float = TIMEOUT, channel: str = "exchange") -> list[str]:
    """The texts that all processes passed, in the order of processes: the same list in each of them.

    Every process has to call it, from one thread, in the same order as its other exchanges. No device computes
    anything. One process alone gets `[text]` at once.

    Args:
        text: What this process passes.
        name: What the exchange is for, as messages call it: `save of step 3`. The same in all processes.
        timeout: Seconds to wait for the others.
        channel: Exchanges of one channel keep their order; another thread uses another one.

    Raises:
        ProcessMismatchError: In every process, with the same message: if some process does not come in time, or if
            the names differ.
    """
    if process_count() == 1:
        return [text]
    packed = zlib.compress(json.dumps([name, text]).encode())
    client = coordination_client()
    messages = _allgather(packed) if client is None else _by_service(client, packed, name, timeout, channel)
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


def compare(texts: Mapping[str, str], *, name: str, timeout: float = TIMEOUT) -> None:
    """Raise an error in all processes, which have to call this, if their texts differ at some place.

    Two exchanges, however many processes there are: a digest of each, and if these differ, one text of each group.

    Args:
        texts: What this process holds, by place. A place that begins with `version of` is shown first.
        name: As for `exchange`.
        timeout: As for `exchange`.

    Raises:
        ProcessMismatchError: In every process, with the same message: each place that differs, and the texts there.
    """
    mine = json.dumps(dict(texts))
    digests = exchange(hashlib.sha256(mine.encode()).hexdigest(), name=name, timeout=timeout)
    groups = [_indices(digests, digest) for digest in dict.fromkeys(digests)]
    if len(groups) > 1:
        speakers = [processes[0] for processes in groups[:_GROUPS]]
        spoken = mine if process_index() in speakers else ""
        whole = exchange(spoken, name=f"the comparison in {name}", timeout=timeout)
        known: list[dict[str, str]] = [json.loads(whole[process]) for process in speakers]
        raise_in_all(ProcessMismatchError("\n".join(_difference_lines(groups, known))))


def _difference_lines(groups: Sequence[Sequence[int]], known: Sequence[Mapping[str, str]]) -> list[str]:
    """The message for groups of processes that hold the same; `known` has the texts of the first of these groups."""
    places = dict.fromkeys(place for texts in known for place in texts)
    rows = {place: [texts.get(place, "nothing") for texts in known] for place in places}
    rows = {place: texts for place, texts in rows.items() if len({*texts}) > 1}
    # A version that only some processes have is that of a package that only their trees use.
    versions = [place for place in rows if place.startswith("version of ")]
    first = [place for place in versions if all(place in texts for texts in known)]
    shown = [*first, *(place for place in rows if place not in versions)]
    lines = ["The processes hold different trees:"]
    for place in shown[:_SHOWN]:
        processes: dict[str, list[int]] = {}
        for group, text in zip(groups, rows[place], strict=False):
            processes.setdefault(text, []).extend(group)
        excerpts = zip(processes.values(), _excerpts([*processes]), strict=True)
        lines += [f"  {place}", *(f"    {processes_text(numbers)}: {excerpt}" for numbers, excerpt in excerpts)]
    if len(shown) > _SHOWN:
        lines.append(f"  and {len(shown) - _SHOWN} places more")
    if groups[_GROUPS:]:
        others = processes_text(process for group in groups[_GROUPS:] for process in group)
        lines.append(f"  P{others[1:]}: still other values")
    return [*lines, _CURE]


def _excerpts(texts: Sequence[str]) -> list[str]:
    """Texts that differ; long ones from a little before the difference, and of several lines the first that differs."""
    same = common_start(texts)
    line = same.rfind("\n") + 1
    is_far = len(same) - line > _WIDTH // 2
    start = 0 if max(map(len, texts)) <= _WIDTH else len(same) - _WIDTH // 3 if is_far else line
    shown = [text[start:].partition("\n")[0].strip() for text in texts]
    cut = [text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..." for text in shown]
    return [f"...{text}" if start > line else text for text in cut]


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


def _by_service(client: Any, message: bytes, name: str, timeout: float, channel: str) -> list[bytes]:
    try:
        return _Exchange(client, name, channel).run(message, timeout)
    except jax.errors.JaxRuntimeError as error:
        if "UNAVAILABLE" not in str(error):
            raise
        raise ProcessMismatchError(
            f"Process 0 ended, or can't be reached any more, while {processes_text([process_index()])} was in {name}: "
            f"JAX's coordination service, which lives in process 0, does not answer.\nLook at the log of process 0."
        ) from error


class _Exchange:
    """One exchange through JAX's coordination service, which lives in the first process."""

    def __init__(self, client: Any, name: str, channel: str) -> None:
        self.client = client
        self.name = name
        self.me = process_index()
        # The service counts the exchanges, not this module: a run that joins another service starts from 1.
        self.channel = f"{_FOLDER}/{channel}"
        self.turn = int(client.key_value_increment(f"{self.channel}/turn of {self.me}", 1))
        self.folder = f"{self.channel}/{self.turn}"

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
            self.client.key_value_delete(f"{self.channel}/{self.turn - 1}/")
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


# Recent. Without `multihost_utils`, which is experimental, nothing is lost where JAX's coordination service is found.


def process_allgather(array: Any) -> Any:
    """The array of each process, stacked in their order. All processes have to call it."""
    from jax.experimental import multihost_utils

    gather: Any = multihost_utils.process_allgather
    return np.asarray(gather(array))


# Recent. `import treewright.sharding` fails in a JAX without this one.

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
