"""Whether all processes hold the same tree: as texts that are the same in each, compared."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from treewright._jax import of_all_processes, path_text, process_allgather, process_count
from treewright._nodes.spec import spec_of
from treewright._trees.level import Place, is_node, walk
from treewright._values.reach import class_of
from treewright._values.text import excerpts, first_difference, full_name, portable_text, shape_text
from treewright.errors import ProcessMismatchError


def described(tree: object) -> dict[str, str]:
    """What stands at each place of a tree: classes of nodes and containers, statics, shapes and dtypes of leaves.

    Not the values of arrays, and no statics that are local to a process.
    """
    texts: dict[str, str] = {}
    for place in walk(Place(tree)):
        path, value = path_text(place.path), place.value
        if place.level is None:
            texts[path or "the tree itself"] = _leaf_text(value)
            continue
        texts[path or "the tree itself"] = "None" if value is None else full_name(class_of(value))
        if is_node(value):
            for field, (key, static) in zip(spec_of(value).statics, place.level.statics, strict=True):
                if not field.local:
                    texts[f"{path}{key} (static)"] = portable_text(static, exact=True)
    return texts


def _leaf_text(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    shape: Any = getattr(leaf, "shape", None)
    if dtype is None or not isinstance(shape, _TUPLE):
        return portable_text(leaf, exact=True)
    weak = " (weakly typed)" if getattr(leaf, "weak_type", False) else ""
    sharding = getattr(leaf, "sharding", None)
    split = ""
    if isinstance(sharding, NamedSharding):
        sizes: Mapping[str, int] = sharding.mesh.shape
        split = f" split by {sharding.spec} on {dict(sizes)}"
    return f"{shape_text(dtype, shape)}{weak}{split}"


_TUPLE: Any = tuple
_SHOWN = 20  # differences in one message
_WIDTH = 90  # characters of a value
_ABSENT = "nothing"


def assert_same_on_all_processes(tree: object) -> None:
    """Return if all processes hold the same tree but for the values of arrays, and raise in every process if not.

    Classes, statics, containers, shapes, dtypes and shardings are compared. Statics that `static(local=True)` declares
    are left out. Call it in every process before the first step: a different static is else silent, or lets a
    collective wait without end. An abstract tree will do, from `jax.eval_shape` or `abstract_state`.

    Functions that can't be imported are compared by their code and what they captured, objects of other classes by
    their `repr`.

    Args:
        tree: Any pytree.

    Raises:
        ProcessMismatchError: If two processes differ. The message has each place, and what each process has there.

    Examples:
        >>> from treewright.sharding import assert_same_on_all_processes
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        ...     log_name: str = static(default="", local=True)
        >>> assert_same_on_all_processes(Layer(jnp.ones(2), log_name=f"process {jax.process_index()}"))
    """
    if process_count() == 1:
        return
    mine = described(tree)
    everyones = _everyones(json.dumps(mine).encode())
    if everyones is None:
        return
    trees: list[Mapping[str, str]] = [json.loads(one) for one in everyones]
    places = list(dict.fromkeys(place for one in trees for place in one))
    differing = {place: [one.get(place, _ABSENT) for one in trees] for place in places}
    raise ProcessMismatchError(
        _message(
            "The processes hold different trees:",
            [(place, values) for place, values in differing.items() if len({*values}) > 1],
            "Give every process the same. A static that may differ, since no program depends on it, is declared "
            "static(local=True).",
        )
    )


def assert_same_program_on_all_processes(lowered: jax.stages.Lowered) -> None:
    """Return if all processes have lowered the same program, and raise in every process if not.

    This finds what no tree shows: a global variable, an environment variable, the order of a set. Programs that differ
    would wait for each other's collectives, or compute something that no process meant.

    Args:
        lowered: What `jax.jit(step).lower(...)` gives. It can be compiled afterwards, so nothing is traced twice.

    Raises:
        ProcessMismatchError: If two processes differ. The message has the first line of the program that does, and how
            it reads in each process.

    Examples:
        >>> from treewright.sharding import assert_same_program_on_all_processes
        >>> lowered = jax.jit(lambda x: x * 2).lower(jnp.ones(2))
        >>> assert_same_program_on_all_processes(lowered)
        >>> step = lowered.compile()
        >>> step(jnp.ones(2)).tolist()
        [2.0, 2.0]
    """
    if process_count() == 1:
        return
    lines = lowered.as_text().splitlines()
    digests = [hashlib.sha256(line.encode()).digest()[:8] for line in lines]
    everyones = _everyones(b"".join(digests))
    if everyones is None:
        return
    first = first_difference(everyones) // 8
    line = lines[first].strip() if first < len(lines) else "the end of the program"
    values = [one.decode() for one in of_all_processes(line.encode())]
    raise ProcessMismatchError(
        _message(
            "The processes have lowered different programs:",
            [(f"line {first + 1}", values)],
            "Something that the function reads differs: a global or environment variable, the order of a set, the "
            "version of a library, a static(local=True) that the program does depend on.",
        )
    )


def _everyones(mine: bytes) -> list[bytes] | None:
    """What each process has, in order; None if all have the same."""
    digest = np.frombuffer(hashlib.sha256(mine).digest(), np.uint8)
    digests = process_allgather(digest)
    return None if (digests == digests[0]).all() else of_all_processes(mine)


def _message(title: str, differing: Sequence[tuple[str, Sequence[str]]], cure: str) -> str:
    lines = [title]
    for place, values in differing[:_SHOWN]:
        shown = dict(zip(values, excerpts(values, _WIDTH), strict=True))
        lines.append(f"  {place}")
        lines += [f"    {_names(_holders(values, value))}: {shown[value]}" for value in dict.fromkeys(values)]
    if len(differing) > _SHOWN:
        lines.append(f"  and {len(differing) - _SHOWN} places more")
    return "\n".join([*lines, cure])


def _holders(values: Sequence[str], value: str) -> list[int]:
    return [process for process, one in enumerate(values) if one == value]


def _names(processes: Iterable[int]) -> str:
    """`process 3`, or `processes 0-2, 4`."""
    ranges: list[list[int]] = []
    for process in processes:
        if ranges and ranges[-1][-1] == process - 1:
            ranges[-1][1:] = [process]
        else:
            ranges.append([process])
    plural = "es" if len(ranges) > 1 or len(ranges[0]) > 1 else ""
    return f"process{plural} {', '.join('-'.join(map(str, one)) for one in ranges)}"
