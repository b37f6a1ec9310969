"""The record of a run: a line of JSON for each thing that happens, written by the program, read by the command."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LOWERED = ".mlir.z"  # of the files beside the record with the lowered texts of programs


class Record:
    """A file that lines are added to. Each is there in full at once, so that a program may die at any moment."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.began: float = time.thread_time()
        self._is_closed = False

    def close(self) -> None:
        """Add nothing more."""
        self._is_closed = True

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        # Opened for each line: a program may close all files that it does not know, and use their numbers anew.
        if self._is_closed:
            return
        with contextlib.suppress(OSError), self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(line, default=str).encode() + b"\n")


class RecordReader:
    """Reads the lines of a record, as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The lines that have been added since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._place += len(whole) + len(newline)
        for line in whole.splitlines():
            yield json.loads(line)
