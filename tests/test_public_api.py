"""The public interface as a text file, so that a change of it is reviewed as a diff.

`UPDATE_SNAPSHOTS=1 pytest tests/test_public_api.py` rewrites the file.
"""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path
from typing import Any

import numpy as np

from tests.expected_text import compare_with_snapshot
from tests.public_names import public_names

SNAPSHOT = Path(__file__).parent / "snapshots" / "public_api.txt"


def interface_of(name: str, value: Any) -> list[str]:
    if typing.get_origin(value) is not None:
        return [f"{name} (an annotation)"]  # Python's display of the rest differs between releases
    if isinstance(value, type) and issubclass(value, Exception):
        return [f"{name}({value.__base__.__name__})"]  # type: ignore[union-attr]
    if not str(getattr(value, "__module__", "")).startswith("treewright"):
        return [f"{name} (of JAX's)"]  # its parameters differ between releases
    lines = [f"{name}{_parameters(value)}"]
    if isinstance(value, type):
        inherited = {name for base in (np.ndarray, dict) if issubclass(value, base) for name in dir(base)}
        members = sorted({member for member in dir(value) if not member.startswith("_")} - inherited)
        lines += [f"  {name}.{member}{_parameters(getattr(value, member, None))}" for member in members]
    return lines


def _parameters(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return re.sub(r"<dataclasses\._MISSING_TYPE[^>]*>", "MISSING", str(inspect.Signature(parameters)))


def interface() -> str:
    lines = [line for name, value in public_names().items() for line in interface_of(name, value)]
    return "".join(f"{line.replace('treewright.', '')}\n" for line in lines)


def test_the_public_api_matches_the_snapshot() -> None:
    compare_with_snapshot(interface, SNAPSHOT.read_text(encoding="utf-8"), SNAPSHOT.write_text)
