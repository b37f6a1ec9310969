"""Public names: each public name under its public module."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import treewright

MODULES = [name for name in treewright.__all__ if inspect.ismodule(getattr(treewright, name))]


def names_in(module: Any) -> list[str]:
    """The public names of a module: its `__all__`, or else the classes and functions that are defined in it."""
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return sorted(getattr(module, "__all__", own))


def public_names() -> dict[str, Any]:
    """All public values but the modules themselves, by dotted name: `treewright.at`, `treewright.typed.jit`."""
    modules = [importlib.import_module(name) for name in ("treewright", *(f"treewright.{name}" for name in MODULES))]
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in names_in(module)
        if name not in MODULES
    }
