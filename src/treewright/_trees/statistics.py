"""What the numbers in arrays are like: mean, deviation, range, and how many are not finite."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._jax import untyped_jax

_KINDS = (jnp.floating, jnp.integer, jnp.bool)
_ARRAYS: Any = (jax.Array, np.ndarray)
_SMALL = 2**18  # numbers that are fetched sooner than a program is compiled for their shape


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """What the numbers in one array, or in several together, are like.

    Args:
        finite: How many of them are finite. The other numbers here are about these.
        mean: Their mean; NaN if there are none.
        std: Their standard deviation.
        low: The lowest.
        high: The highest.
        not_finite: How many are NaN or infinite.
    """

    finite: int
    mean: float
    std: float
    low: float
    high: float
    not_finite: int


def statistics_of(leaves: Sequence[Any]) -> list[Statistics | None]:
    """The statistics of each leaf; None for what holds no real numbers, and for what can't be read here.

    Small arrays are fetched, large ones are reduced where they are, and what is left of them is fetched: all in one go.
    An array of which other processes hold a part is left out, since a program over it has to run in all of them.
    """
    places = [place for place, leaf in enumerate(leaves) if _can_be_read(leaf)]
    with jax.ensure_compile_time_eval():  # under jit, too
        fetched: list[Any] = jax.device_get(
            [leaf if leaf.size <= _SMALL else _on_device(leaf) for leaf in map(leaves.__getitem__, places)]
        )
    found: list[Statistics | None] = [None] * len(leaves)
    values: Any
    for place, values in zip(places, fetched, strict=True):
        with np.errstate(all="ignore"):  # where nothing is finite
            reduced: Any = _reduced(values.astype(np.float64), np) if hasattr(values, "astype") else values
        mean, std, low, high, bad = reduced
        finite = leaves[place].size - int(bad)
        found[place] = Statistics(finite, float(mean), float(std), float(low), float(high), int(bad))
    return found


def _can_be_read(leaf: Any) -> bool:
    if isinstance(leaf, Tracer) or not isinstance(leaf, _ARRAYS) or not leaf.size:
        return False
    if not any(jnp.issubdtype(leaf.dtype, kind) for kind in _KINDS):
        return False
    return isinstance(leaf, np.ndarray) or (leaf.is_fully_addressable and not leaf.is_deleted())


def _reduced(numbers: Any, numpy: Any) -> tuple[Any, ...]:
    """Mean, deviation, lowest and highest of what is finite, and the number of what is not: by numpy or by JAX's."""
    finite = numpy.isfinite(numbers)
    bad = numpy.sum(~finite)
    count = numbers.size - bad
    mean = numpy.sum(numbers, where=finite) / count
    std = numpy.sqrt(numpy.sum(numpy.square(numbers - mean), where=finite) / count)
    low = numpy.min(numbers, where=finite, initial=numpy.inf)
    high = numpy.max(numbers, where=finite, initial=-numpy.inf)
    return mean, std, low, high, bad


@untyped_jax.jit  # type: ignore[untyped-decorator]
def _on_device(array: Any) -> tuple[Any, ...]:
    return _reduced(array.astype(jnp.float64 if array.dtype.itemsize > 4 else jnp.float32), jnp)


def together(parts: Iterable[Statistics | None]) -> Statistics | None:
    """The statistics of several arrays as if they were one; None if there are none."""
    every = [part for part in parts if part is not None]
    if not every:
        return None
    some = [part for part in every if part.finite] or every
    total = sum(part.finite for part in some)
    mean = sum(part.finite * part.mean for part in some) / total if total else math.nan
    squares = sum(part.finite * (part.std**2 + (part.mean - mean) ** 2) for part in some)
    return Statistics(
        total,
        mean,
        math.sqrt(squares / total) if total else math.nan,
        min(part.low for part in some),
        max(part.high for part in some),
        sum(part.not_finite for part in every),
    )
