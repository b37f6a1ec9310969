"""The layout of a safetensors file: eight bytes of length, a header in JSON, and the arrays one after the other.

Not by the package safetensors, which maps a file into memory: there, a disk that fails ends the process and raises
nothing. Tests hold that it reads what is written here, and the other way round.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from treewright.checkpoint.leaves import DTYPES, Form, Leaf, name_of, untied
from treewright.checkpoint.manifest import LONGEST, TEXT, Manifest, from_metadata, parsed
from treewright.errors import CheckpointDamagedError, CheckpointError

RESERVED = "__metadata__"  # the name that is not an array's
LENGTH = 8  # bytes of the number that says how long the header is

# What safetensors has a name for. Anything else is written as bytes, with one dimension more.
_CODES = MappingProxyType(
    {
        "bool": "BOOL",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
        **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
        "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
    }
)

# How files of other kinds begin.
_OTHERS = (
    (b"PK\x03\x04", "a zip archive, as numpy.savez and torch.save write them"),
    (b"\x93NUMPY", "an array of numpy.save"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"version https://git-lfs", "a pointer of Git LFS, and the file itself has not been fetched: git lfs pull"),
    *((bytes([0x80, protocol]), "a pickle") for protocol in range(2, 6)),
    *((bytes([start]), "a msgpack file, as flax.serialization writes them") for start in (*range(0x81, 0x90), 0xDE)),
)


def in_order(leaves: Iterable[Leaf]) -> list[Leaf]:
    """Leaves in the order in which a file holds them: wide dtypes first, so that each is aligned, and small arrays."""
    leaves = list(leaves)
    keys = {form: (-DTYPES[form.dtype].itemsize, form.nbytes) for form in {leaf.form for leaf in leaves}}
    return sorted(leaves, key=lambda leaf: keys[leaf.form])


def header_of(ordered: Sequence[Leaf], metadata: Mapping[str, str]) -> bytes:
    """All that stands before the arrays.

    Raises:
        CheckpointError: If that is more than a safetensors file may have.
    """
    header: dict[str, Any] = {RESERVED: metadata}
    stored = _stored_as(ordered)
    end = 0
    for leaf in ordered:
        code, shape, size = stored[leaf.form]
        start, end = end, end + size
        header[leaf.name] = {"dtype": code, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > LONGEST:
        raise CheckpointError(
            f"The header of this tree would have {len(text)} bytes, and that of a safetensors file has {LONGEST} at "
            f"most. CheckpointManager saves trees of any size."
        )
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH, "little") + text


def _stored_as(leaves: Iterable[Leaf]) -> dict[Form, tuple[str, list[int], int]]:
    """For each form of these leaves the dtype code and shape under which the header has it, and its bytes."""
    stored: dict[Form, tuple[str, list[int], int]] = {}
    for form in {leaf.form for leaf in leaves}:
        code, width = _CODES.get(form.dtype), DTYPES[form.dtype].itemsize
        stored[form] = ("U8", [*form.shape, width], form.nbytes) if code is None else (code, [*form.shape], form.nbytes)
    return stored


def length_of(head: bytes, size: int) -> int:
    """How many bytes of a file are its header, by what it begins with.

    Args:
        head: The first bytes, as many as there are.
        size: How many bytes the whole file has.

    Raises:
        CheckpointError: If this is a file of another kind.
        CheckpointDamagedError: If there can't be such a header.
    """
    length = int.from_bytes(head[:LENGTH], "little")
    if 2 <= length <= min(size - LENGTH, LONGEST):
        return length
    for start, words in _OTHERS:
        if head.startswith(start):
            raise CheckpointError(f"it is {words}, not a safetensors file.")
    if head and head.isascii() and head.decode().isprintable():
        raise CheckpointError(f"it is a text that begins with {head[:20].decode()!r}.")
    found = "it is empty" if not size else f"it has {size} bytes, too few for what its first bytes announce"
    raise CheckpointDamagedError(f"{found}: it was cut short, or its beginning is damaged.")


def contents(header: bytes, size: int) -> tuple[Manifest, dict[str, tuple[int, int]]]:
    """The manifest in a header, and where each array begins after it and how many bytes it has, by name of its leaf.

    Args:
        header: The header, without its length.
        size: How many bytes of arrays follow it.

    Raises:
        CheckpointError: If there is no manifest, or it is of a newer version.
        CheckpointDamagedError: If header or manifest is not one, or they disagree with each other or with the size.
    """
    tensors = parsed(header, "header")
    metadata: Any = tensors.pop(RESERVED, None)
    if type(metadata) is not dict or TEXT not in metadata:
        raise CheckpointError(
            "it is a safetensors file without a manifest: another program wrote it. "
            "from_names(safetensors.numpy.load_file(path), like=...) puts its tensors into a tree."
        )
    manifest = from_metadata(cast("dict[str, Any]", metadata))
    kept = untied(manifest.leaves)
    stored = _stored_as(kept)
    spans = {leaf.name: _span_of(tensors.get(leaf.name), stored[leaf.form]) for leaf in kept}
    end = 0
    for start, length in sorted(spans.values()):
        end = end + length if start == end else -1
    if end != size or len(tensors) != len(spans):
        raise CheckpointDamagedError(
            "its header and its manifest list different tensors, or the file has too many or too few bytes."
        )
    return manifest, {leaf.name: spans[name_of(leaf.array)] for leaf in manifest.leaves}


def _span_of(tensor: Any, stored: tuple[str, list[int], int]) -> tuple[int, int]:
    """Where an array begins, as its entry says, which has to be that of such an array; else -1. And its bytes."""
    code, shape, size = stored
    try:
        start = tensor["data_offsets"][0]
        if tensor == {"dtype": code, "shape": shape, "data_offsets": [start, start + size]} and type(start) is int:
            return start, size
    except (TypeError, LookupError):  # it is something else
        pass
    return -1, size
