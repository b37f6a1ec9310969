"""Forged files: an arbitrary manifest with a valid digest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xxhash
from safetensors import safe_open
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def document_in(path: Path) -> Any:
    """The manifest of a file as JSON."""
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["treewright"])


def forge(path: Path, change: Callable[[Any], object] | str, *, without: str = "") -> None:
    """Let a function change the manifest of a file in place, or replace its text, and make its digest fit.

    `without` is a key of the metadata to remove.
    """
    with safe_open(path, "np") as file:
        arrays = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = {key: text for key, text in file.metadata().items() if key != without}
    save_file(arrays, path, metadata={**metadata, **_changed(metadata["treewright"], change)})


def forge_step(folder: Path, change: Callable[[Any], object]) -> None:
    """Let a function change the manifest of a step in place, and make its digest fit."""
    forge(folder / "process_0.safetensors", change)


def forge_listing(folder: Path, change: Callable[[Any], object]) -> None:
    """Let a function change in place what Orbax's file of a step has of it, and make its digest fit."""
    path = folder / "_CHECKPOINT_METADATA"
    listing = json.loads(path.read_text())
    listing["custom_metadata"] = _changed(listing["custom_metadata"]["treewright"], change)
    path.write_text(json.dumps(listing))


def _changed(text: str, change: Callable[[Any], object] | str) -> dict[str, str]:
    if isinstance(change, str):
        text = change
    else:
        document = json.loads(text)
        change(document)
        text = json.dumps(document)
    return {"treewright": text, "treewright.digest": xxhash.xxh3_128_hexdigest(text.encode())}
