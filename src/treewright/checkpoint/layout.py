"""The layout of a safetensors file: eight bytes of length, a header in JSON, and the arrays one after the other.

Not by the package safetensors, which maps a file into memory: there, a disk that fails ends the process and raises
nothing. Tests hold that it reads what is written here, and the other way round.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    text = json.dumps({RESERVED: metadata, **dict(_tensors_of(ordered))}, separators=(",", ":")).encode()
    if len(text) > LONGEST:
        raise CheckpointError(
            f"The header of this tree would have {len(text)} bytes, and that of a safetensors file has {LONGEST} at "
            f"most. CheckpointManager saves trees of any size."
        )
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH, "little") + text


def _tensors_of(ordered: Iterable[Leaf]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a header says of arrays in this order, by name: dtype code, shape, and where they lie."""
    stored: dict[Form, tuple[str, list[int], int]] = {}
    end = 0
    for leaf in ordered:
        code, shape, size = stored.get(leaf.form) or stored.setdefault(leaf.form, _stored_as(leaf.form))
        yield leaf.name, {"dtype": code, "shape": shape, "data_offsets": [end, end := end + size]}


def _stored_as(form: Form) -> tuple[str, list[int], int]:
    """The dtype code and the shape under which a header has an array, and its bytes."""
    code, width = _CODES.get(form.dtype), DTYPES[form.dtype].itemsize
    return ("U8", [*form.shape, width], form.nbytes) if code is None else (code, [*form.shape], form.nbytes)


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


def contents(header: bytes, size: int) -> tuple[Manifest, dict[str, list[int]]]:
    """The manifest in a header, and where the array of each leaf begins and ends after it, by name, as they lie there.

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
    with contextlib.suppress(ArithmeticError, LookupError, TypeError):  # of an entry that the comparison refuses
        kept.sort(key=lambda leaf: sum(tensors[leaf.name]["data_offsets"]))  # empty ones lie where others begin or end
    spans: dict[str, list[int]] = {}
    for name, tensor in _tensors_of(kept):
        if tensors.get(name) == tensor:
            spans[name] = tensor["data_offsets"]
    if not len(spans) == len(tensors) == len(kept) or size != max((end for _, end in spans.values()), default=0):
        raise CheckpointDamagedError(
            "its header and its manifest list different tensors, or the file has too many or too few bytes."
        )
    spans |= {leaf.name: spans[name_of(leaf.tied)] for leaf in manifest.leaves if leaf.tied is not None}
    return manifest, spans
