"""Manifests as documents: taken from what is saved, and changed as by an attacker."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from treewright.checkpoint import Manifest, read_manifest, save
from treewright.checkpoint.digests import digest_of
from treewright.checkpoint.manifest import DIGEST, TEXT

if TYPE_CHECKING:
    from pathlib import Path


def manifest_of(tree: Any, folder: Path) -> Manifest:
    save(folder / "tree.safetensors", tree)
    return read_manifest(folder / "tree.safetensors")


def document_of(tree: Any, folder: Path) -> Any:
    return manifest_of(tree, folder).to_json()


def signed(text: str) -> dict[str, str]:
    """The metadata of a file with this text in place of its manifest, and the digest that it has: an attacker's."""
    return {TEXT: text, DIGEST: digest_of(text.encode(errors="surrogatepass"))}


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with one entry changed."""
    content = copy.deepcopy(document)
    inside = content
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return content
