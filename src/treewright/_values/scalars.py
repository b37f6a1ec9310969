"""The value of a scalar, for a person who looks at it: read only where that takes no time, and computes nothing."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_ARRAYS: Any = (jax.Array, np.ndarray)
PATIENCE = 1.0  # seconds that one look waits in all for what a device still computes


def scalar_of(value: Any, until: float) -> Any | None:
    """The number or bool in an array of rank 0; None for another value, or where it can't be had.

    It can't be had of a tracer, of an array that was deleted or donated, of one that other processes hold, of one that
    no device has computed by the time `until`, on the clock of `time.monotonic`, and of one whose computation failed.
    """
    if isinstance(value, Tracer) or not isinstance(value, _ARRAYS) or value.shape != ():
        return None
    if not (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool):  # keys, times, texts
        return None
    if isinstance(value, jax.Array) and not _is_here(value, until):
        return None
    try:
        return jax.device_get(value)[()]  # explicit, so that a transfer guard lets it through
    except RuntimeError:  # its computation failed, which is said where it is used
        return None


def _is_here(value: Any, until: float) -> bool:
    if value.is_deleted() or not (value.is_fully_addressable or value.is_fully_replicated):
        return False
    while not value.is_ready():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
