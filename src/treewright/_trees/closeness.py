"""Equality of trees up to rounding, with an answer that says where they are apart and by how much."""

import dataclasses
from typing import Any

import jax
import numpy as np

from treewright._trees.diff import Difference, differences
from treewright._trees.paths import path_text

_SHOWN = 20  # places that are listed


@dataclasses.dataclass(frozen=True, slots=True)
class Closeness:
    """The answer of `allclose`: true if the trees are close; `str` says where they are not, and by how much.

    Args:
        apart: One line for each place where they are not close.
    """

    apart: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.apart

    def __str__(self) -> str:
        if not self.apart:
            return "close"
        places = "1 place" if len(self.apart) == 1 else f"{len(self.apart)} places"
        more = [f"... and {len(self.apart) - _SHOWN} more"] if len(self.apart) > _SHOWN else []
        return "\n  ".join([f"not close in {places}:", *self.apart[:_SHOWN], *more])

    def __repr__(self) -> str:
        return f"<{self}>"


def allclose(actual: object, expected: object, *, rtol: float = 1e-5, atol: float = 1e-8) -> Closeness:
    """Whether two trees are of one structure, with the same statics and shapes, and with values that are close.

    Close means `abs(actual - expected) <= atol + rtol * abs(expected)`, and NaN is close to NaN. Dtypes may differ;
    `diff` finds those too. What is no number has to be equal.

    Args:
        actual: A node, or any other tree.
        expected: What it should be.
        rtol: The tolerance relative to `expected`.
        atol: The absolute tolerance.

    Returns:
        Something that is true or false, and that says where and by how much: `assert allclose(a, b)` shows it.

    Raises:
        TracedComparisonError: If a value is traced.

    Examples:
        >>> bool(allclose({"w": jnp.ones(3)}, {"w": jnp.ones(3) + 1e-7}))
        True
        >>> print(allclose({"w": jnp.ones(3), "n": 1}, {"w": jnp.ones(3).at[1].set(1.5), "n": 1}))
        not close in 1 place:
          ['w']: 1 of 3 elements are apart, most at [1]: 1.0 and 1.5, by 0.5
    """
    lines = (_line(found, rtol, atol) for found in differences(actual, expected, values=True))
    return Closeness(tuple(line for line in lines if line))


def _line(found: Difference, rtol: float, atol: float) -> str:
    if found.kind not in {"value", "dtype", "weak_type", "sharding", "placement"}:
        return str(found)
    if not _numeric(found.left) or not _numeric(found.right):
        return str(found)
    wide = np.complex128 if np.iscomplexobj(found.left) or np.iscomplexobj(found.right) else np.float64
    a, b = (np.asarray(value).astype(wide) for value in (found.left, found.right))
    apart = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if not apart.any():
        return ""
    with np.errstate(invalid="ignore"):
        distance = np.where(apart, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf), -1.0)
    worst = np.unravel_index(int(distance.argmax()), distance.shape)
    name = path_text(found.path) or "the whole tree"
    where = f" at [{', '.join(map(str, worst))}]" if worst else ""
    values = f"{a[worst]} and {b[worst]}, by {np.abs(a[worst] - b[worst]):.3g}"
    return f"{name}: {np.count_nonzero(apart)} of {a.size} elements are apart, most{where}: {values}"


def _numeric(leaf: Any) -> bool:
    if isinstance(leaf, bool | int | float | complex):
        return True
    dtype: Any = getattr(leaf, "dtype", None)
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
    return is_array and (jax.numpy.issubdtype(dtype, np.number) or dtype == np.bool_)
