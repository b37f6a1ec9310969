"""Python's search for cycles, paused while many objects are made that all stay."""

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """No search for cycles in the block: it would look at the entries of many leaves again and again while they grow.

    Of saving and loading 100,000 leaves it took 3 to 4 seconds in 10, and of tracing the init of 15,000 leaves 4 in 10
    (benchmarks: sharding).
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()
