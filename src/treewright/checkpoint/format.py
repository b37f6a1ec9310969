"""Safetensors files: write arrays one piece at a time, and read any of them."""

import contextlib
import json
import math
import os
import stat
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from treewright._base.text import cut_text
from treewright.checkpoint.arrays import DTYPES
from treewright.checkpoint.disk import flush, mode_of, parsing
from treewright.checkpoint.manifest import MAX_BYTES
from treewright.errors import CheckpointDamagedError, CheckpointError

METADATA = "__metadata__"  # safetensors' own key
_ALIGNED = 64  # bytes; XLA copies arrays on a CPU that begin elsewhere
# Our names of safetensors' dtypes.
CODES = MappingProxyType(
    {"BOOL": "bool", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"}
    | {f"{code}{bits}": f"{name}{bits}" for code, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)}
    | {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
)
# Other dtypes are written as bytes, with one more axis; float8 too, because safetensors' numpy reader lacks it.
_CODE_OF = MappingProxyType({name: code for code, name in CODES.items() if not name.startswith("float8")})


def write_safetensors(
    path: Any,
    forms: Mapping[str, tuple[str, Sequence[int]]],
    pieces: Iterable[np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file, and flush it to disk if it is local.

    Args:
        path: The file.
        forms: The dtypes and shapes of the arrays by name. Put wide dtypes first, so that each array is aligned.
        pieces: The values of all arrays in this order, in pieces of any size. They are written one at a time.
        metadata: Texts by name.

    Raises:
        CheckpointError: If the header is larger than readers accept.
        OSError: If it can't be written.
    """
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, (dtype, shape) in forms.items():
        code, size = _CODE_OF.get(dtype), DTYPES[dtype].itemsize
        begin, end = end, end + math.prod(shape) * size
        shown = [*shape] if code else [*shape, size]
        entries[name] = {"dtype": code or "U8", "shape": shown, "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":"), check_circular=False).encode()
    header += b" " * (-(len(header) + 8) % _ALIGNED)
    if len(header) + 8 > MAX_BYTES:
        raise CheckpointError(
            f"The names, statics and items would take {len(header):,} bytes of the file's header, and the limit of "
            f"safetensors is {MAX_BYTES:,}. Stack layers, save parts of the tree, or save large items as leaves."
        )
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for piece in pieces:
            file.write(piece.reshape(-1).view(np.uint8).data)  # releases Python's lock
        file.flush()
        if isinstance(path, Path):
            flush(file.fileno())


class SafetensorsFile:
    """An open safetensors file. Several threads may read it.

    The bytes come from one open file, which no writer can replace, and are aligned as JAX needs them to place an array
    on a CPU without a copy. With safetensors' reader, which copies twice, loading takes 1.3 to 1.7 times as long.

    Attributes:
        metadata: Its texts by name.
        entries: The dtype, shape and place of each array by name, as safetensors has them.
    """

    def __init__(self, file: Any, path: Any) -> None:
        self._file, self._path, self._lock = file, path, threading.Lock()
        with parsing(str(path), "is not a safetensors file, or its header is damaged"):
            self._start = 8 + int.from_bytes(file.read(8), "little")
            if self._start > MAX_BYTES:
                raise ValueError(f"its length is {self._start - 8:,} bytes")
            self.entries: dict[str, Any] = json.loads(file.read(self._start - 8))
            self.metadata: dict[str, str] = dict(self.entries.pop(METADATA, {}))
            self._bounds = {name: entry["data_offsets"] for name, entry in self.entries.items()}
            length = file.seek(0, os.SEEK_END) - self._start
            is_right = all(type(x) is type(y) is int and 0 <= x <= y for x, y in self._bounds.values())
            if not is_right or max((end for _, end in self._bounds.values()), default=0) != length:
                raise ValueError("its entries do not match the length of the file")

    def read(self, name: str, dtype: str, shape: Sequence[int]) -> Any:
        """An array of the file.

        Raises:
            CheckpointDamagedError: If it has none of this name and size.
            OSError: If it can't be read.
        """
        begin, end = self._bounds.get(name, (0, -1))
        if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
            raise CheckpointDamagedError(f"{self._path} is damaged: it has no {cut_text(name, 200)!r} of this size.")
        memory = np.empty(end - begin + _ALIGNED, np.uint8)
        first = -memory.__array_interface__["data"][0] % _ALIGNED
        data = memory[first : first + end - begin]
        self._read_into(data, self._start + begin)
        return data.view(DTYPES[dtype]).reshape(tuple(shape))

    def _read_into(self, data: Any, begin: int) -> None:
        done = 0
        while done < data.size:  # a read of Linux ends after 2 GB
            if isinstance(self._path, Path) and hasattr(os, "preadv"):
                count = os.preadv(self._file.fileno(), [data[done:].data], begin + done)
            else:
                with self._lock:
                    self._file.seek(begin + done)
                    count = self._file.readinto(data[done:].data)
            if not count:
                raise CheckpointDamagedError(f"{self._path} is damaged: it ends too early.")
            done += count


@contextlib.contextmanager
def open_safetensors(path: Any) -> Generator[SafetensorsFile]:
    """Open a safetensors file.

    Raises:
        OSError: If it can't be opened.
        CheckpointDamagedError: If it is not a safetensors file.
        CheckpointError: If it is not a regular file.
    """
    # Reading a pipe would wait for its writer.
    if isinstance(path, Path) and (mode := mode_of(path)) and not stat.S_ISREG(mode):
        raise CheckpointError(
            f"{path} is not a regular file. load() reads files that save() wrote. To restore a step of a run: "
            f"CheckpointManager(folder).restore(like=...)."
        )
    with path.open("rb") as file:
        yield SafetensorsFile(file, path)
