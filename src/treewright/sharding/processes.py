"""Check that all processes of a run hold the same tree, by a text for each place of it."""

import platform
import sys
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from treewright._core import is_node, spec_of
from treewright._core.jax_private import path_text
from treewright._core.text import shape_text
from treewright._json import modules_in, portable_text
from treewright._processes import TIMEOUT, compare, process_count
from treewright._trees.level import Place, walk
from treewright.sharding.specs import ROOT

_ALWAYS = ("jax", "jaxlib", "numpy", "treewright")


def assert_same_on_all_processes(tree: object, *, values: bool = False, timeout_seconds: float = TIMEOUT) -> None:
    """Return if all processes hold the same tree, and raise in every process if not.

    Classes, statics, containers, shapes, dtypes and shardings are compared, and the versions of Python, JAX and the
    packages whose functions and classes are in the tree. Statics that `static(local=True)` declares are left out. Call
    it in every process before the first step: a static that differs is silent, or lets a collective wait without end.
    An abstract tree will do, from `jax.eval_shape` or `abstract_state`.

    Functions are compared by their code and what they captured, but those of libraries by their names, and libraries
    by their versions; objects of other classes by their attributes and their `repr`. Lowered programs are compared by
    their text, which finds differences that no other tree shows: a global or environment variable, the order of a set.

    Args:
        tree: Any pytree. `jax.jit(step).lower(...)` is a leaf like others; compile it afterwards, so that nothing is
            traced twice.
        values: Whether to compare the numbers too, of arrays of which each process has all. An array may say that it is
            replicated and yet hold other numbers in each process, if each has made its own. They are copied to the host
            for that.
        timeout_seconds: How long to wait for the other processes.

    Raises:
        ProcessMismatchError: If two processes differ. The message has each place, and the value of each process there;
            of programs the first line that differs. Or if some process does not come in time; the message has its
            number.

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
    """A text for each place of a tree, and the versions of the libraries that it is made of.

    The classes of nodes and containers, the statics that are not local, the shapes and dtypes of leaves; with `values`
    a digest of each array that this process holds whole.
    """
    texts: dict[str, str] = {}
    modules = set[str]()
    for place in walk(Place(tree)):
        path, value = path_text(place.path), place.value
        if place.level is None:
            texts[path or ROOT] = f"{_leaf_text(value)}{_numbers_text(value) if values else ''}"
            continue
        cls = type(value)
        modules.add(cls.__module__)
        texts[path or ROOT] = (
            "None" if value is None else f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
        )
        if is_node(value):
            for field, (key, static) in zip(spec_of(value).statics, place.level.statics, strict=True):
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
    """A digest of the numbers of an array, if this process has all of it."""
    if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
        leaf = leaf.addressable_data(0)
    return "".join(portable_text(leaf).partition("#")[1:]) if isinstance(leaf, jax.Array | np.ndarray) else ""


def _versions(modules: Iterable[str]) -> dict[str, str]:
    """The versions of Python, of JAX, and of the packages of some modules that say theirs."""
    packages = sorted({*_ALWAYS, *(module.partition(".")[0] for module in modules)})
    known = {package: getattr(sys.modules.get(package), "__version__", None) for package in packages}
    python = ".".join(platform.python_version_tuple()[:2])  # whose last part changes no program
    return {f"version of {name}": version for name, version in {"Python": python, **known}.items() if version}
