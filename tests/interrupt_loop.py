"""A process for `test_loop.py`: a loop that is interrupted a hundred times loses no state."""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import sys

import jax
import jax.numpy as jnp

from treewright import loop


class Interrupt(Exception):  # noqa: N818  as KeyboardInterrupt
    """The exception that the signal handler raises."""


def interrupt(*_: object) -> None:
    raise Interrupt


def step(state: list[jax.Array]) -> tuple[list[jax.Array], None]:
    return [leaf + 1 for leaf in state], None


def main() -> None:
    run = loop(step, [jnp.zeros((), jnp.int32) for _ in range(100)])
    run()
    done = 1

    def run_for(delay: float) -> None:
        nonlocal done
        signal.setitimer(signal.ITIMER_REAL, delay)
        while True:
            run()
            done += 1

    signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # JAX's hook in the garbage collector would swallow an interrupt
    for delay in itertools.islice(itertools.cycle(range(100, 800, 13)), 100):
        with contextlib.suppress(Interrupt):
            run_for(delay * 1e-6)
        (now,) = {int(leaf) for leaf in run.state}
        assert now in {done, done + 1}
        done = now
    sys.stdout.write("100 interrupts\n")


if __name__ == "__main__":
    main()
