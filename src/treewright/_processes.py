"""Agreement between the processes of a job: one process decides for all."""

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import jax

from treewright._base.jax_private import coordination_client, untyped_jax
from treewright._reports import common_prefix, excerpts
from treewright.errors import CheckpointDamagedError, CheckpointError, ProcessMismatchError

TIMEOUT = 60.0  # seconds; JAX terminates a job after 100 s without a heartbeat of a process
_ANSWER_TIMEOUT_MS = 60_000  # for process 0 to answer
_LINGER_S = 1.0  # process 0, which runs the service, raises this much later
_FOLDER = "treewright"  # prefix of our keys in JAX's coordination service
_MAX_GROUPS = 8  # groups of processes with equal texts, shown in a message
_MAX_PATHS = 20  # shown in one message
_MAX_WIDTH = 90  # characters of a text in a message
_FIX = (
    "All processes must have the same tree. If no program depends on a static, declare it static(local=True) to let it "
    "differ. Programs differ if they read something that differs: a global or environment variable, the order of a set."
)


def process_count() -> int:
    """The number of processes in the job."""
    return int(untyped_jax.process_count())


def process_index() -> int:
    """The index of this process, from 0."""
    return int(untyped_jax.process_index())


def agree(
    mine: Any, decide: Callable[[list[Any]], Any], *, name: str, timeout: float = TIMEOUT, channel: str = "exchange"
) -> Any:
    """Send a value from each process to process 0, and return its decision in all of them. All values are JSON.

    Every process must call this, from one thread, in the same order as other exchanges. The cost grows linearly with
    the number of processes. No device computes anything. In a single process, `decide` is just called.

    Args:
        mine: The value of this process.
        decide: Called in process 0 with the values, in the order of processes.
        name: Name of the exchange in messages, such as `save of step 3`. Must be equal in all processes.
        timeout: Seconds to wait for the others.
        channel: Exchanges in one channel are ordered. Each thread needs its own channel.

    Raises:
        ProcessMismatchError: In every process, with the same message: if `decide` raises it, if a process is late, or
            if the names differ.
    """
    if process_count() == 1:
        return decide([mine])
    client, packed = coordination_client(), zlib.compress(json.dumps([name, mine]).encode())
    if client is None:
        raise ProcessMismatchError(
            f"{name} compares processes through JAX's coordination service, but this job has none. Call "
            f"jax.distributed.initialize() in every process first."
        )
    problem, decision = _by_service(client, packed, decide, name=name, timeout=timeout, channel=channel)
    if problem:
        raise_in_all(ProcessMismatchError(problem))
    return decision


def _decision(messages: Iterable[bytes], decide: Callable[[list[Any]], Any]) -> tuple[str, Any]:
    """The problem with the messages, or the decision."""
    names, values = zip(*(json.loads(zlib.decompress(message)) for message in messages), strict=True)
    paths = [f"  {processes_text(group)}: {name}\n" for name, group in _groups(names).items()]
    if len(paths) > 1:
        return (
            f"The processes are at different points of the program:\n{''.join(paths)}"
            f"Make the same checks, saves and restores in every process, in the same order."
        ), None
    try:
        return "", decide(list(values))
    except ProcessMismatchError as error:
        return str(error), None


def run_on_all_processes(
    name: str,
    work: Callable[[], Any],
    timeout: float,
    *,
    on_first: bool = False,
    same: Callable[[Any], Mapping[str, str]] | None = None,
    channel: str = "exchange",
) -> Any:
    """Run `work` in every process, or only in the first, and return its result, with one exchange.

    If it fails anywhere, every process raises: its own error, or one that names the failed process. The error is a
    CheckpointDamagedError only if all failures are.

    Args:
        name: Name of the work in messages.
        work: The function to run.
        timeout: Seconds to wait for the other processes.
        on_first: Run only in process 0 and share its result, which must be JSON.
        same: Texts of a result, by path, that must be equal in all processes.
        channel: As for `agree`.
    """
    value: Any = None
    error: Exception | None = None
    texts: Mapping[str, str] = {}
    try:
        if not on_first or process_index() == 0:
            value = work()
        if same is not None and process_count() > 1:
            texts = same(value)
    except Exception as caught:  # noqa: BLE001  raised below, after the exchange
        error = caught
    is_damage = isinstance(error, CheckpointDamagedError)
    shown = None if error is None else f"{type(error).__name__}: {error}"
    digest = hashlib.sha256(json.dumps(dict(texts)).encode()).hexdigest()
    outcome = [is_damage, shown, value if on_first else None, digest]
    failure, first, representatives = agree(outcome, _outcome, name=name, timeout=timeout, channel=channel)
    if failure:
        damaged, shown, index = failure
        if error is not None and is_damage == damaged:
            raise_in_all(error)
        kind = CheckpointDamagedError if damaged else CheckpointError
        raise_in_all(kind(f"In process {index}, {name} failed: {shown}"))
    if len(representatives) > 1:  # Only these send their texts.
        sent = dict(texts) if process_index() in representatives else None
        agree([digest, sent], _raise_groups, name=f"the comparison in {name}", timeout=timeout)
    return first if on_first else value


def _outcome(outcomes: Sequence[Any]) -> tuple[Any, Any, list[int]]:
    """The failure to raise, if any; the result of process 0; a process of each group with equal texts that is shown."""
    failures = [(damaged, shown, index) for index, (damaged, shown, *_) in enumerate(outcomes) if shown is not None]
    groups = _groups(digest for *_, digest in outcomes).values()
    return min(failures, default=None), outcomes[0][2], [group[0] for group in groups][:_MAX_GROUPS]


def raise_in_all(error: Exception) -> NoReturn:
    """Raise an error that all processes raise after an exchange; process 0 raises it last.

    Process 0 runs JAX's coordination service. When it ends, JAX aborts the others, which may not have raised yet:
    without the delay, this happened in about half of all runs that end by `os._exit`.
    """
    if process_count() > 1 and process_index() == 0:
        time.sleep(_LINGER_S)
    raise error


def compare(texts: Mapping[str, str], *, name: str, timeout: float = TIMEOUT) -> None:
    """Raise in all processes if their texts differ. All processes must call this.

    Args:
        texts: Texts of this process by path. Paths that begin with `version of` are shown first.
        name: As for `agree`.
        timeout: As for `agree`.

    Raises:
        ProcessMismatchError: In every process, with the same message: each path with different texts, and the texts.
    """
    run_on_all_processes(name, lambda: texts, timeout, same=dict)


def _raise_groups(messages: Sequence[tuple[str, Any]]) -> None:
    groups = list(_groups(digest for digest, _ in messages).values())
    known = [sent for _, sent in messages if sent is not None]
    raise ProcessMismatchError("\n".join(_difference_lines(groups, known)))


def _difference_lines(groups: Sequence[Sequence[int]], known: Sequence[Mapping[str, str]]) -> list[str]:
    """The message for groups of processes with equal texts; `known` has the texts of the first groups."""
    rows: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for texts in known for path in texts):
        row = [texts.get(path, "nothing") for texts in known]
        # If only some processes list a version, only their trees use the package.
        if len({*row}) > 1 and not (path.startswith("version of ") and "nothing" in row):
            rows[path] = row
    shown = sorted(rows, key=lambda path: not path.startswith("version of "))
    are_programs = bool(shown) and all("\n" in text for path in shown for text in rows[path])
    lines = [f"The processes have different {'programs' if are_programs else 'trees'}:"]
    for path in shown[:_MAX_PATHS]:
        processes: dict[str, list[int]] = {}
        for group, text in zip(groups, rows[path], strict=False):
            processes.setdefault(text, []).extend(group)
        number, texts = _excerpts([*processes])
        excerpts = zip(processes.values(), texts, strict=True)
        at = f", line {number}" if any("\n" in text for text in processes) else ""
        lines += [f"  {path}{at}", *(f"    {processes_text(numbers)}: {excerpt}" for numbers, excerpt in excerpts)]
    if len(shown) > _MAX_PATHS:
        lines.append(f"  and {len(shown) - _MAX_PATHS} more paths")
    if groups[_MAX_GROUPS:]:
        others = processes_text(process for group in groups[_MAX_GROUPS:] for process in group)
        lines.append(f"  P{others[1:]}: further different values")
    return [*lines, _FIX]


def _excerpts(texts: Sequence[str]) -> tuple[int, list[str]]:
    """The number of the first different line and its texts; long lines start shortly before the difference."""
    same = common_prefix(texts)
    lines = [text[same.rfind("\n") + 1 :].partition("\n")[0].strip() for text in texts]
    return same.count("\n") + 1, excerpts(lines, _MAX_WIDTH)


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


def _by_service(
    client: Any, message: bytes, decide: Callable[[list[Any]], Any], *, name: str, timeout: float, channel: str
) -> tuple[str, Any]:
    """The problem and the decision, exchanged through JAX's coordination service in process 0."""
    me = process_index()
    try:
        # The service counts the exchanges, so that a new service starts from 1.
        turn = client.key_value_increment(f"{_FOLDER}/{channel}/turn of {me}", 1)
        folder = f"{_FOLDER}/{channel}/{turn}"
        client.key_value_set_bytes(f"{folder}/message/{me}", message)
        failure = None  # equal in all processes if some do not arrive
        try:
            client.wait_at_barrier(f"{folder}/come", max(1, int(timeout * 1000)))
        except jax.errors.JaxRuntimeError as error:
            failure = error
        # Process 0 may be late itself, so the first process to increment this counter reports the late ones.
        if me == 0 if failure is None else client.key_value_increment(f"{folder}/late", 1) == 1:
            entries = client.key_value_dir_get_bytes(f"{folder}/message/")
            messages = {int(key.rpartition("/")[2]): value for key, value in entries}
            if failure is None:
                answer = _decision((messages[process] for process in range(process_count())), decide)
                client.key_value_delete(f"{_FOLDER}/{channel}/{turn - 1}/")  # read by all
            else:
                answer = (_late_text(name, timeout, messages, failure), None)
            client.key_value_set_bytes(f"{folder}/answer", zlib.compress(json.dumps(answer).encode()))
        packed = client.blocking_key_value_get_bytes(f"{folder}/answer", _ANSWER_TIMEOUT_MS)
    except jax.errors.JaxRuntimeError as error:
        raise ProcessMismatchError(
            f"Process 0 ended, failed or is unreachable, while {processes_text([me])} was in {name}: JAX's "
            f"coordination service in process 0 does not answer.\nLook at the log of process 0."
        ) from error
    problem, decision = json.loads(zlib.decompress(packed))
    return problem, decision


def _late_text(name: str, timeout: float, present: Collection[int], failure: Exception) -> str:
    """The message for the processes that arrived."""
    absent = [process for process in range(process_count()) if process not in present]
    if not absent:
        return f"The processes could not synchronise for {name}: {str(failure).partition(chr(10))[0]}"
    late = processes_text(absent)
    return (
        f"{late[0].upper()}{late[1:]} did not reach {name} within {timeout:g} s ({processes_text(present)} did).\n"
        f"Look at the log of {late}: it may have ended, be waiting for something else, or run a different branch of "
        f"the program. If it is only slow, increase timeout_seconds= in every process."
    )


def _groups(values: Iterable[str]) -> dict[str, list[int]]:
    """The processes grouped by value."""
    groups: dict[str, list[int]] = {}
    for process, value in enumerate(values):
        groups.setdefault(value, []).append(process)
    return groups
