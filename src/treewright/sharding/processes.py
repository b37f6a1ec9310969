"""`assert_same_on_all_processes`: compare the trees of all processes by a text for each path."""

import platform
import sys
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from treewright._base.jax_private import path_text
from treewright._base.text import shape_text
from treewright._core import info_of, is_node
from treewright._json import modules_in, portable_text
from treewright._processes import TIMEOUT, compare, process_count
from treewright._trees.places import Place, walk
from treewright.sharding.text import ROOT

_ALWAYS = ("jax", "jaxlib", "numpy", "treewright")


def assert_same_on_all_processes(tree: object, *, values: bool = False, timeout_seconds: float = TIMEOUT) -> None:
    """Check that all processes have the same tree; if not, raise in every process.

    Compares classes, statics, containers, shapes, dtypes and shardings, and the versions of Python, JAX and the
    packages whose functions and classes are in the tree. Statics declared `static(local=True)` are ignored. Call it in
    every process before the first step: otherwise a different static goes unnoticed, or makes a collective operation
    hang. Abstract trees from `jax.eval_shape` or `abstract_state` also work.

    Functions are compared by code and captured values, libraries' functions by name and the library's version; other
    objects by attributes and `repr`. Lowered programs are compared by their text, which reveals differences that the
    tree does not show: a global or environment variable, the order of a set.

    Args:
        tree: Any pytree. `jax.jit(step).lower(...)` can be a leaf; compile it afterwards, to trace only once.
        values: Whether to also compare the numbers in arrays that each process has completely. Arrays that are marked
            as replicated may differ if each process created its own. The arrays are copied to the host.
        timeout_seconds: How long to wait for the other processes.

    Raises:
        ProcessMismatchError: If processes differ. The message has each path with the values of the processes, and for
            programs the first different line. Also if a process is late; the message has its number.

    Examples:
        >>> from treewright.sharding import assert_same_on_all_processes
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        ...     log_name: str = static(default="", local=True)
        >>> layer = Layer(jnp.ones(2), log_name=f"process {jax.process_index()}")
        >>> lowered = jax.jit(lambda layer: layer.kernel * 2).lower(layer)
        >>> assert_same_on_all_processes((layer, lowered))
    """
    if process_count() > 1:
        texts = tree_texts(tree, values=values)
        compare(texts, name="assert_same_on_all_processes", timeout=timeout_seconds)


def tree_texts(tree: object, *, values: bool = False) -> dict[str, str]:
    """Texts for the paths of a tree, and the versions of the libraries whose classes and functions it contains.

    They show the classes of nodes and containers, statics that are not local, and shapes and dtypes of leaves; with
    `values` also a digest of each array that this process has completely.
    """
    texts: dict[str, str] = {}
    modules = set[str]()
    for place in walk(Place(tree)):
        path, value = path_text(place.path), place.value
        if place.level is None:
            root = "the program" if isinstance(value, jax.stages.Lowered) else ROOT
            texts[path or root] = f"{_leaf_text(value)}{_numbers_text(value) if values else ''}"
            continue
        cls = type(value)
        modules.add(cls.__module__)
        texts[path or ROOT] = (
            "None" if value is None else f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
        )
        if is_node(value):
            for field, (key, static) in zip(info_of(value).statics, place.level.statics, strict=True):
                if not field.local:
                    texts[f"{path}{key} (static)"] = portable_text(static)
                    modules |= modules_in(static)
    return texts | _versions(modules)


def _leaf_text(leaf: Any) -> str:
    if isinstance(leaf, jax.stages.Lowered):
        return str(leaf.as_text())
    dtype, shape = getattr(leaf, "dtype", None), getattr(leaf, "shape", None)
    if dtype is None or not isinstance(shape, tuple):
        return portable_text(leaf)
    weak = " (weakly typed)" if getattr(leaf, "weak_type", False) else ""
    sharding = getattr(leaf, "sharding", None)
    split = f" split by {sharding.spec} on {dict(sharding.mesh.shape)}" if isinstance(sharding, NamedSharding) else ""
    return f"{shape_text(dtype, shape)}{weak}{split}"


def _numbers_text(leaf: Any) -> str:
    """A digest of the numbers of an array, if this process has all of them."""
    if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
        leaf = leaf.addressable_data(0)
    return "".join(portable_text(leaf).partition("#")[1:]) if isinstance(leaf, jax.Array | np.ndarray) else ""


def _versions(modules: Iterable[str]) -> dict[str, str]:
    """The versions of Python, of JAX, and of the modules' packages that have a `__version__`."""
    packages = sorted({*_ALWAYS, *(module.partition(".")[0] for module in modules)})
    known = {package: getattr(sys.modules.get(package), "__version__", None) for package in packages}
    python = ".".join(platform.python_version_tuple()[:2])  # the last part does not affect programs
    return {f"version of {name}": version for name, version in {"Python": python, **known}.items() if version}
