"""An exchange among many processes, simulated: clients of one coordination service, in threads of a few OS processes.

`python benchmarks/many_processes.py 64 256 1024` prints the seconds of the slowest client for each number, the best of
three exchanges. Read how they grow: the machine has a few cores, where a pod has one host for each process or two.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import time
from typing import Any

WORKERS = 4
ROUNDS = 4  # The first is not counted.
WAIT = 300  # seconds


def work(worker: int, count: int, port: int, results: Any, all_done: Any) -> None:
    """Run every fourth client, each in a thread."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jax._src.lib import _jax

    from treewright import _processes

    jaxlib: Any = _jax
    local = threading.local()
    patched: Any = _processes  # each thread simulates a process
    patched.process_count, patched.process_index = (lambda: count), (lambda: local.index)
    patched.coordination_client = lambda: local.client
    kept: list[Any] = []  # otherwise the service and the clients would wait for each other at exit
    if worker == 0:
        kept.append(jaxlib.get_distributed_runtime_service(f"[::]:{port}", count, heartbeat_timeout=600))
    mine = range(worker, count, WORKERS)
    barrier = threading.Barrier(len(mine))
    spent = [[0.0] * ROUNDS for _ in mine]

    def run(place: int, index: int) -> None:
        local.index = index
        local.client = jaxlib.get_distributed_runtime_client(
            f"127.0.0.1:{port}", index, init_timeout=WAIT, heartbeat_timeout=600
        )
        kept.append(local.client)
        local.client.connect()
        barrier.wait()
        for turn in range(ROUNDS):
            start = time.perf_counter()
            _processes.compare({"place": "text" * 16}, name="benchmark", timeout=WAIT)
            spent[place][turn] = time.perf_counter() - start

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(mine)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put([max(turns) for turns in zip(*spent, strict=True)])
    all_done.wait()
    os._exit(0)


def seconds_of(count: int) -> float:
    """The seconds of one exchange among this many simulated processes."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    results, all_done = spawn.Queue(), spawn.Event()
    processes = [spawn.Process(target=work, args=(i, count, port, results, all_done)) for i in range(WORKERS)]
    for process in processes:
        process.start()
    try:
        turns = zip(*(results.get(timeout=2 * WAIT) for _ in processes), strict=True)
        return min([max(turn) for turn in turns][1:])
    finally:
        all_done.set()
        for process in processes:
            process.join(10)
            process.kill()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{argument} processes: {seconds_of(int(argument)):.3f} s", flush=True)
