"""Whether all processes hold the same tree: as texts that are the same in each, compared."""

import hashlib
import importlib.metadata
import json
import platform
import sys
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from treewright._core.functions import class_of
from treewright._core.instance import is_node
from treewright._core.jax_private import path_text, process_count, process_index
from treewright._core.portable import full_name, portable_text, portable_text_and_modules
from treewright._core.spec import spec_of
from treewright._core.text import excerpts, first_difference, shape_text
from treewright._processes import coordination_client, of_all_processes
from treewright._trees.level import Place, walk
from treewright.errors import ProcessMismatchError
from treewright.sharding.folding import folded, ranges_text

_FOLDER = "treewright/processes"  # of our keys in JAX's coordination service
_GROUPS = 8  # groups of processes whose texts are exchanged
_ALWAYS = ("jax", "jaxlib", "numpy", "treewright")
TIMEOUT = 300.0  # seconds, as long as JAX itself waits for the processes of a job
_TUPLE: Any = tuple
_ARRAYS: Any = (jax.Array, np.ndarray)
_NAMED: Any = NamedSharding
_SHOWN = 20  # differences in one message
_WIDTH = 90  # characters of a value
_LONG = 2000  # characters of a line of a program, beyond which it counts by a digest
_ABSENT = "nothing"
_VERSION = "version of "
_CHECK = "the check"
_PROGRAM = "the program"
_ROOT = "the tree itself"
_TREES = "The processes hold different trees:"
_PROGRAMS = "The processes have lowered different programs:"
_SAME_TREE = (
    "Give every process the same. A static that may differ, since no program depends on it, is declared "
    "static(local=True)."
)
_SAME_PROGRAM = (
    "Something that the function reads differs: a global or environment variable, the order of a set, the version of a "
    "library, a static(local=True) that the program does depend on."
)


# What each process says, brought together


def compare(check: str, title: str, texts: Mapping[str, str], timeout_seconds: float) -> None:
    """Raise a `ProcessMismatchError` in all processes, which have to call it, if what they say differs at some place.

    Two exchanges, however many processes there are: a digest of each, and where these differ, one text of each group.
    """
    mine = json.dumps({_CHECK: check, **texts}).encode()
    digests = _of_all(hashlib.sha256(mine).digest(), check, timeout_seconds)
    members: dict[bytes, list[int]] = {}
    for process, digest in enumerate(digests):
        members.setdefault(digest, []).append(process)
    if len(members) > 1:
        groups = [*members.values()]
        speakers = [processes[0] for processes in groups[:_GROUPS]]
        said = _of_all(zlib.compress(mine) if process_index() in speakers else b"", check, timeout_seconds)
        known = [json.loads(zlib.decompress(said[process])) for process in speakers]
        raise ProcessMismatchError(_message(title, groups, known))


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

    def said() -> dict[int, bytes]:
        return {int(key.rpartition("/")[2]): value for key, value in client.key_value_dir_get_bytes(folder)}

    began = time.monotonic()
    try:
        client.wait_at_barrier(f"{folder}all", max(1, int(timeout_seconds * 1000)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        waited = time.monotonic() - began
        absent = {*range(count)} - said().keys()
        raise ProcessMismatchError(_late_message(me, absent, check, timeout_seconds, waited)) from error
    by_process = said()
    if me == 0:  # all have read what the turn before has left
        client.key_value_delete(f"{_FOLDER}/{turn - 1}/")
    return [by_process[process] for process in range(count)]


def _late_message(me: int, absent: Collection[int], check: str, timeout_seconds: float, waited: float) -> str:
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
    return {f"{_VERSION}{name}": version for name, version in {"Python": python, **known}.items() if version}


def _version(package: str) -> str | None:
    told: Any = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(told, str):
        return told
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # a module of the user's own, or none
        return None


# Trees and programs as texts, compared


def described(tree: object, modules: set[str] | None = None, *, values: bool = False) -> dict[str, str]:
    """What stands at each place of a tree: classes of nodes and containers, statics, shapes and dtypes of leaves.

    No statics that are local to a process. `modules` gets the modules of the functions and classes in the tree;
    with `values` there is a digest of each array that this process holds whole.
    """
    texts: dict[str, str] = {}
    seen = set[str]() if modules is None else modules
    for place in walk(Place(tree)):
        path, value = path_text(place.path), place.value
        if place.level is None:
            texts[path or _ROOT] = f"{_leaf_text(value)}{_digest(value) if values else ''}"
            continue
        kind = class_of(value)
        seen.add(kind.__module__)
        texts[path or _ROOT] = "None" if value is None else full_name(kind)
        if is_node(value):
            for field, (key, static) in zip(spec_of(value).statics, place.level.statics, strict=True):
                if not field.local:
                    texts[f"{path}{key} (static)"], known = portable_text_and_modules(static)
                    seen |= known
    return texts


def _leaf_text(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    shape: Any = getattr(leaf, "shape", None)
    if dtype is None or not isinstance(shape, _TUPLE):
        return portable_text(leaf, exact=True)
    weak = " (weakly typed)" if getattr(leaf, "weak_type", False) else ""
    sharding: Any = getattr(leaf, "sharding", None)
    split = f" split by {sharding.spec} on {dict(sharding.mesh.shape)}" if isinstance(sharding, _NAMED) else ""
    return f"{shape_text(dtype, shape)}{weak}{split}"


def _digest(leaf: Any) -> str:
    """A digest of what an array holds, where this process has all of it."""
    if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
        leaf = leaf.addressable_data(0)
    if not isinstance(leaf, _ARRAYS):
        return ""
    return f" {''.join(portable_text(leaf, exact=True).partition('#')[1:])}".rstrip()


def assert_same_on_all_processes(tree: object, *, values: bool = False, timeout_seconds: float = TIMEOUT) -> None:
    """Return if all processes hold the same tree, and raise in every process if not.

    Classes, statics, containers, shapes, dtypes and shardings are compared, and the versions of Python, JAX and the
    packages whose functions and classes are in the tree. Statics that `static(local=True)` declares are left out. Call
    it in every process before the first step: a different static is else silent, or lets a collective wait without end.
    An abstract tree will do, from `jax.eval_shape` or `abstract_state`.

    Functions are compared by their code and what they captured, but those of libraries, which have versions; objects of
    other classes by what they hold and by their `repr`.

    Args:
        tree: Any pytree.
        values: Whether to compare the numbers too, of arrays of which each process has all. An array may say that it is
            replicated and yet hold other numbers in each process, if each has made its own. They are copied to the host
            for that.
        timeout_seconds: How long to wait for the other processes.

    Raises:
        ProcessMismatchError: If two processes differ. The message has each place, and what each process has there.
            Or if some process has not come in time; the message has its number.

    Examples:
        >>> from treewright.sharding import assert_same_on_all_processes
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        ...     log_name: str = static(default="", local=True)
        >>> assert_same_on_all_processes(Layer(jnp.ones(2), log_name=f"process {jax.process_index()}"))
    """
    if process_count() > 1:
        modules = set[str]()
        texts = described(tree, modules, values=values)
        compare("assert_same_on_all_processes", _TREES, texts | versions(modules), timeout_seconds)


def assert_same_program_on_all_processes(lowered: jax.stages.Lowered, *, timeout_seconds: float = TIMEOUT) -> None:
    """Return if all processes have lowered the same program, and raise in every process if not.

    This finds what no tree shows: a global variable, an environment variable, the order of a set. Programs that differ
    would wait for each other's collectives, or compute something that no process meant.

    Args:
        lowered: What `jax.jit(step).lower(...)` gives. It can be compiled afterwards, so nothing is traced twice.
        timeout_seconds: How long to wait for the other processes.

    Raises:
        ProcessMismatchError: If two processes differ. The message has the first line of the program that does, and how
            it reads in each process. Or if some process has not come in time; the message has its number.

    Examples:
        >>> from treewright.sharding import assert_same_program_on_all_processes
        >>> lowered = jax.jit(lambda x: x * 2).lower(jnp.ones(2))
        >>> assert_same_program_on_all_processes(lowered)
        >>> step = lowered.compile()
        >>> step(jnp.ones(2)).tolist()
        [2.0, 2.0]
    """
    if process_count() > 1:
        texts = program_texts([lowered]) | versions(())
        compare("assert_same_program_on_all_processes", _PROGRAMS, texts, timeout_seconds)


def program_texts(programs: Sequence[jax.stages.Lowered]) -> dict[str, str]:
    """Lowered programs as one text, by the place that they have in a comparison."""
    lines = [line for program in programs for line in program.as_text().splitlines()]
    return {_PROGRAM: "\n".join(map(_bounded, lines))}


def _bounded(line: str) -> str:
    """A line without most of the numbers of a large array."""
    return line if len(line) <= _LONG else f"{line[:_LONG]}#{hashlib.sha256(line.encode()).hexdigest()[:12]}"


def _message(title: str, groups: Sequence[Sequence[int]], known: Sequence[Mapping[str, str]]) -> str:
    """The message for groups of processes that each say the same; `known` is what the first of these groups say."""
    places = dict.fromkeys(place for texts in known for place in texts)
    differing = {place: tuple(texts.get(place, _ABSENT) for texts in known) for place in places}
    differing = {place: values for place, values in differing.items() if len({*values}) > 1}
    if _CHECK in differing:
        title, cure = "The processes are not at the same check:", "Every process calls the same checks in one order."
        differing = {_CHECK: differing[_CHECK]}
    else:
        cure = _SAME_TREE
        programs = differing.pop(_PROGRAM, None)
        # Versions first. One that only some have is that of a package that only their trees use.
        told = {place: values for place, values in differing.items() if place.startswith(_VERSION)}
        others = {place: values for place, values in differing.items() if place not in told}
        differing = {place: values for place, values in told.items() if _ABSENT not in values} | others
        if not differing and programs is not None:
            title, cure = _PROGRAMS, _SAME_PROGRAM
            lines = [program.splitlines() for program in programs]
            first = first_difference(lines)
            shown = (one[first].strip() if first < len(one) else "the end of the program" for one in lines)
            differing = {f"line {first + 1}": tuple(shown)}
    return "\n".join([title, *_lines(differing, groups), cure])


def _lines(differing: Mapping[str, tuple[str, ...]], groups: Sequence[Sequence[int]]) -> list[str]:
    """Each place that differs, with what stands there and in which processes."""
    rows = list(differing.items())
    lines: list[str] = []
    folds = folded(rows)
    for fold in folds[:_SHOWN]:
        values = rows[fold.members[0]][1]
        shown = dict(zip(values, excerpts(values, _WIDTH), strict=True))
        lines.append(f"  {fold}")
        for value in dict.fromkeys(values):
            same = [group for group, other in zip(groups, values, strict=False) if other == value]
            lines.append(f"    {processes_text(_all_in(same))}: {shown[value]}")
    if len(folds) > _SHOWN:
        lines.append(f"  and {len(folds) - _SHOWN} places more")
    others = _all_in(groups[_GROUPS:])
    if others:
        lines.append(f"  {processes_text(others)}: still other values".replace("p", "P", 1))
    return lines


def _all_in(groups: Sequence[Sequence[int]]) -> list[int]:
    return sorted(process for group in groups for process in group)
