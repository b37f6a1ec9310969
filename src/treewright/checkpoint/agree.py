"""The processes of a job in agreement: one result in all of them, or an error in each, within a bounded time."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax

from treewright._core.jax_private import process_count
from treewright._core.text import cut_text, first_of, short_text
from treewright._processes import exchange, processes_text, raise_in_all
from treewright.checkpoint.arrays import WHOLE, digest_of
from treewright.checkpoint.manifest import join_name
from treewright.checkpoint.tree import Parts
from treewright.errors import CheckpointDamagedError, CheckpointError


class Outcome(NamedTuple):
    """The result of some work in one process: a value, what has to be the same in all of them, and a text for all."""

    value: Any = None
    same: Mapping[str, str] = {}  # by path
    text: str = ""


def in_all(name: str, work: Callable[[], Outcome], timeout: float) -> tuple[Any, list[str]]:
    """The value in this process, and the texts of all of them, once the work is done in each.

    Raises:
        Exception: In every process, if the work failed in one. One that failed raises its own error, the others say
            which did; it is damage only if it is in all of them that failed.
        CheckpointError: In every process, if their results are not the same, by path.
    """
    error: Exception | None = None
    outcome = Outcome()
    try:
        outcome = work()
    except Exception as caught:  # raised below, once the others know of it
        if process_count() == 1:
            raise
        error = caught
    if process_count() == 1:
        return outcome.value, [outcome.text]
    result = {
        "error": None if error is None else f"{type(error).__name__}: {error}",
        "damaged": isinstance(error, CheckpointDamagedError),
        "digest": digest_of(json.dumps(outcome.same).encode()),
        "text": outcome.text,
    }
    every = [json.loads(text) for text in exchange(json.dumps(result), name=name, timeout=timeout)]
    failed = [index for index, other in enumerate(every) if other["error"] is not None]
    if failed:
        only_damage = all(every[index]["damaged"] for index in failed)
        if error is not None and result["damaged"] == only_damage:
            raise_in_all(error)
        index = next(index for index in failed if every[index]["damaged"] == only_damage)
        kind = CheckpointDamagedError if only_damage else CheckpointError
        raise_in_all(kind(f"In process {index}, {name} failed: {every[index]['error']}"))
    if len({other["digest"] for other in every}) > 1:
        _raise_differences(name, outcome.same, timeout)
    return outcome.value, [other["text"] for other in every]


def of_first(name: str, find: Callable[[], Any], timeout: float) -> Any:
    """What the first process finds, in all of them; JSON."""

    def work() -> Outcome:
        value = find()
        return Outcome(value, text=json.dumps(value) if process_count() > 1 else "")

    value, texts = in_all(name, work, timeout)
    return json.loads(texts[0]) if process_count() > 1 else value


def _raise_differences(name: str, same: Mapping[str, str], timeout: float) -> NoReturn:
    every = [
        json.loads(text) for text in exchange(json.dumps(same), name=f"the differences in {name}", timeout=timeout)
    ]
    lines: list[str] = []
    for path in dict.fromkeys(path for one in every for path in one):
        values = [one.get(path, "nothing") for one in every]
        if len({*values}) > 1:
            groups = {value: [i for i, other in enumerate(values) if other == value] for value in values}
            each = (f"{cut_text(value, 80)} in {processes_text(where)}" for value, where in groups.items())
            lines.append(f"{path}: {'; '.join(each)}")
    raise_in_all(CheckpointError("\n  ".join(["The processes do not save the same:", *first_of(lines)])))


def entries_of(parts: Parts) -> dict[str, str]:
    """What has to be the same of a tree in all processes, by path. Statics that are local to a process are left out."""
    entries: dict[str, str] = {}
    for branch in parts.manifest.branches:
        entries[f"{branch.path or 'the tree'} (class)"] = f"{branch.cls or branch.kind}: {', '.join(branch.children)}"
        entries |= {
            f"{branch.path}.{name}": json.dumps(static)
            for name, static in branch.statics.items()
            if join_name(branch.name, name) not in parts.local
        }
    for leaf in parts.manifest.leaves:
        value = parts.values[leaf.name]
        shown = "" if isinstance(value, jax.Array) else f" {short_text(value)} #{leaf.digests.get(WHOLE, '')[:12]}"
        entries[leaf.path] = f"{leaf.form}{shown}{f' is {leaf.tied}' if leaf.tied else ''}"
    return entries
