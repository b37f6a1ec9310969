"""What each process says, brought together: with a time limit, the names of those that have not come, and versions."""

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import sys
import time
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import jax

from treewright._jax import process_count, process_index
from treewright._jax_processes import coordination_client, of_all_processes
from treewright.errors import ProcessMismatchError
from treewright.sharding.folding import ranges_text

_FOLDER = "treewright/processes"  # of our keys in JAX's coordination service
_SHOWN = 8  # groups of processes whose texts are exchanged
_ALWAYS = ("jax", "jaxlib", "numpy", "treewright")


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes that say the same.

    Attributes:
        processes: Their numbers.
        texts: What they say, by place; None beyond the first few groups.
    """

    processes: tuple[int, ...]
    texts: Mapping[str, str] | None


def groups_of_processes(texts: Mapping[str, str], check: str, timeout_seconds: float) -> list[ProcessGroup]:
    """The processes in groups that say the same, by their lowest number. All processes have to call it.

    Two exchanges, however many processes there are: a digest of each, and where these differ, one text of each group.

    Args:
        texts: What this process says, by place.
        check: The name of the check, for the message.
        timeout_seconds: How long to wait for the other processes.

    Raises:
        ProcessMismatchError: If some have not come in time; the message names them.
    """
    mine = json.dumps(texts).encode()
    digests = _of_all(hashlib.sha256(mine).digest(), check, timeout_seconds)
    members: dict[bytes, list[int]] = {}
    for process, digest in enumerate(digests):
        members.setdefault(digest, []).append(process)
    if len(members) == 1:
        return [ProcessGroup(tuple(range(len(digests))), texts)]
    speakers = [processes[0] for processes in members.values()][:_SHOWN]
    said = _of_all(zlib.compress(mine) if process_index() in speakers else b"", check, timeout_seconds)
    return [
        ProcessGroup(tuple(processes), json.loads(zlib.decompress(said[processes[0]])) if said[processes[0]] else None)
        for processes in members.values()
    ]


def _of_all(mine: bytes, check: str, timeout_seconds: float) -> list[bytes]:
    """The bytes of each process, in their order."""
    client = coordination_client()
    if client is None:
        return of_all_processes(mine)
    # The service counts the turns, and not this module: a run that joins another service begins anew.
    me, count = process_index(), process_count()
    turn = client.key_value_increment(f"{_FOLDER}/turn of {me}", 1)
    folder = f"{_FOLDER}/{turn}/"
    client.key_value_set_bytes(f"{folder}{me}", mine)
    began = time.monotonic()
    try:
        client.wait_at_barrier(f"{folder}all", max(1, int(timeout_seconds * 1000)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        waited = time.monotonic() - began
        come = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get_bytes(folder)}
        raise ProcessMismatchError(_message(me, {*range(count)} - come, check, timeout_seconds, waited)) from error
    said: dict[int, bytes] = {
        int(key.rpartition("/")[2]): value for key, value in client.key_value_dir_get_bytes(folder)
    }
    if me == 0:  # all have read what the turn before has left
        client.key_value_delete(f"{_FOLDER}/{turn - 1}/")
    return [said[process] for process in range(count)]


def _message(me: int, absent: Collection[int], check: str, timeout_seconds: float, waited: float) -> str:
    if absent or waited >= timeout_seconds / 2:
        who = processes_text(sorted(absent)) if absent else "another process"
        verb = "have" if len(absent) > 1 else "has"
        return (
            f"{who[0].upper()}{who[1:]} {verb} not come to {check} after {timeout_seconds:g} s; "
            f"{processes_text([me])} has.\n"
            f"Look at the log of {who}: it may have ended, may wait for something else, or may take another way "
            f"through the program. If it is slow to start, give more time with timeout_seconds=."
        )
    return (
        f"{processes_text([me]).capitalize()} has come to {check} when others had stopped waiting for it, after at "
        f"most {timeout_seconds:g} s.\nIf it is slow to start, give more time with timeout_seconds= in every process."
    )


def processes_text(processes: Collection[int]) -> str:
    """`process 3`, or `processes 0-2, 4`."""
    return f"process{'es' * (len(processes) > 1)} {ranges_text(processes)}"


def versions(modules: Collection[str]) -> dict[str, str]:
    """The versions of Python, of JAX, and of the packages of some modules, each by a place of its own."""
    packages = sorted({*_ALWAYS, *(module.partition(".")[0] for module in modules)} - sys.stdlib_module_names)
    known = {package: _version(package) for package in packages}
    python = ".".join(platform.python_version_tuple()[:2])  # whose last part changes no program
    return {f"version of {name}": version for name, version in {"Python": python, **known}.items() if version}


def _version(package: str) -> str | None:
    told: Any = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(told, str):
        return told
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # a module of the user's own, or none
        return None
