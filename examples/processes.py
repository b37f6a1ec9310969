"""Several processes of one program on this machine, joined by `jax.distributed`: a small pod.

`run` starts them and waits; each of them is `joined` before it uses JAX. A process that fails ends them all. `command`
is the command line of an example that splits its work over devices.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import jax

CHECKOUT = Path(__file__).parents[1]
PLACE = "EXAMPLE_PROCESS"  # in the environment of each: coordinator, number of processes, its own number
HEARTBEAT = 10  # seconds without a sign of life until a process counts as dead


class ProcessesFailedError(RuntimeError):
    """A process ended with an error or by a signal, or they took too long. None of them is left."""


class Worker(NamedTuple):
    """A process and the files for its output and errors."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def run(
    command: Sequence[str],
    count: int,
    *,
    devices: int,
    seconds: float,
    started: Callable[[list[int]], object] | None = None,
) -> list[str]:
    """Start `count` processes of a program, each with `devices` CPU devices, and wait; the output of each.

    Args:
        command: The program and its arguments, as for `subprocess`. It runs in the folder of this checkout.
        count: How many processes.
        devices: The devices of each.
        seconds: How long they may take together.
        started: Called with the process ids once all run.

    Raises:
        ProcessesFailedError: If one fails, or time is up. The others are ended first.
    """
    address = f"127.0.0.1:{_free_port()}"
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    with contextlib.ExitStack() as ending:
        workers: list[Worker] = []
        for number in range(count):
            output, errors = (ending.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            environment = {**settings, PLACE: f"{address} {count} {number}"}
            process = subprocess.Popen(  # noqa: S603  the caller chooses the command
                command, cwd=CHECKOUT, env=environment, stdout=output, stderr=errors
            )
            ending.callback(_end, process)
            workers.append(Worker(process, output, errors))
        if started is not None:
            started([worker.process.pid for worker in workers])
        _wait(workers, time.monotonic() + seconds)
        return [_text(worker.output) for worker in workers]


def _wait(workers: Sequence[Worker], deadline: float) -> None:
    while any(worker.process.poll() is None for worker in workers):
        failed = [number for number, worker in enumerate(workers) if worker.process.poll()]
        if failed:
            break
        if time.monotonic() > deadline:
            raise ProcessesFailedError(f"Time is up. {_last_words(workers, range(len(workers)))}")
        time.sleep(0.05)
    failed = [number for number, worker in enumerate(workers) if worker.process.poll()]
    if failed:
        raise ProcessesFailedError(_last_words(workers, failed))


def _last_words(workers: Sequence[Worker], numbers: Sequence[int]) -> str:
    said = []
    for number in numbers:
        code = workers[number].process.poll()
        how = "was running" if code is None else f"ended with code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        lines = _text(workers[number].errors).splitlines()[-15:]
        said.append("\n".join([f"Process {number} {how}. Its last lines:", *(f"  {line}" for line in lines)]))
    return "\n".join(said)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextlib.contextmanager
def joined() -> Generator[None]:
    """Join the other processes if `run` started this one. Call it before any other use of JAX."""
    address, count, number = os.environ.get(PLACE, " 1 0").split(" ")
    if count == "1":
        yield
        return
    sys.excepthook = _fail
    jax.distributed.initialize(
        address,
        int(count),
        int(number),
        initialization_timeout=60,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=2 * HEARTBEAT,
    )
    yield
    shutdown: Callable[[], None] = jax.distributed.shutdown  # It has no annotations.
    shutdown()


def _fail(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Exit immediately. Python would wait minutes for the other processes, which wait for this one."""
    traceback.print_exception(kind, error, where)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(1)


# The command line of an example


def options(description: str | None, layouts: Sequence[str], steps: int) -> argparse.ArgumentParser:
    """The arguments of such an example: layouts, processes, devices and steps."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--layout", choices=layouts, nargs="+", default=layouts, help="how the work is split: one or several, in turn")
    add("--processes", type=int, choices=(1, 2, 4), default=1, help="how many processes")
    add("--devices", type=int, choices=(1, 2, 4, 8), default=8, help="devices, over all processes")
    add("--steps", type=int, default=steps, help="updates of the model")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def command(
    module: str,
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    work: Callable[[str, argparse.Namespace], None],
) -> int:
    """Start the processes of an example and print the output of the first; or, in one of them, do the work.

    Args:
        module: The example, as for `python -m`.
        parser: From `options`.
        argv: The arguments; None for this process's arguments.
        work: The function that each process runs for each layout, in turn.
    """
    settings = parser.parse_args(argv)
    if settings.devices < settings.processes:
        parser.error(f"{settings.processes} processes need as many devices, got {settings.devices}")
    if settings.worker:
        with joined():
            for layout in settings.layout:
                work(layout, settings)
        return 0
    arguments = sys.argv[1:] if argv is None else list(argv)
    devices = settings.devices // settings.processes
    try:
        outputs = run(
            [sys.executable, "-m", module, "--worker", *arguments], settings.processes, devices=devices, seconds=300
        )
    except ProcessesFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(line for line in outputs[0].splitlines() if not line.startswith("[Gloo]")))  # Gloo prints messages.
    return 0
