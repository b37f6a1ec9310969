"""What the processes of one job tell each other while they save together."""

import json
from typing import Any

import jax
import numpy as np


def is_first_process() -> bool:
    """Whether this process does what one of them has to."""
    return jax.process_index() == 0


def gathered(digests: list[dict[str, str]]) -> list[dict[str, str]]:
    """The digests of all blocks of each array, where every process knows those that it holds."""
    if jax.process_count() == 1:
        return digests
    return merged([json.loads(text) for text in all_texts(json.dumps(digests))])


def merged(parts: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    """One dict for each array, from one list of dicts for each process."""
    return [{place: digest for held in of_one for place, digest in held.items()} for of_one in zip(*parts, strict=True)]


def all_texts(text: str) -> list[str]:
    """The texts of all processes, in their order. All of them have to call it."""
    from jax.experimental import multihost_utils

    data = np.frombuffer(text.encode(), np.uint8)
    sizes: Any = np.atleast_1d(multihost_utils.process_allgather(np.asarray(len(data))))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows: Any = np.atleast_2d(multihost_utils.process_allgather(padded))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]
