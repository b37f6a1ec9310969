"""Which values can change in place, so that a compiled program could be stale."""

import argparse
import collections.abc
import random
import types
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from typing import Any

import jax
import numpy as np

from treewright._base.functions import FrozenValue, instance_attributes, is_installed, is_standard_class, slots_of
from treewright._base.jax_private import jax_trees

GENERATORS: tuple[type[Any], ...] = (
    collections.abc.Iterator,  # open files among them
    *(random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState),
)
MUTABLE: tuple[type[Any], ...] = (
    *(list, dict, set, bytearray, MutableMapping, MutableSequence, MutableSet, collections.abc.MappingView),
    *(types.SimpleNamespace, argparse.Namespace),
    *(np.ndarray, np.void, jax.Array, jax.Ref),  # a row of a structured array is a view of it
    *GENERATORS,
)


def has_arrays(value: Any) -> bool:
    """Whether an object is a pytree with arrays among its leaves, but not a mapping."""
    try:
        if jax_trees.default_registry.flatten_one_level(value) is None or isinstance(value, Mapping):
            return False
        leaves = jax_trees.tree_leaves(value)
        return any(isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, FrozenValue) for leaf in leaves)
    except Exception:  # noqa: BLE001  a user's flatten function, with an unfinished object
        return False


def is_doubtful(value: Any, holder: str) -> bool:
    """Whether a user may not know that an object is a constant: it can be assigned, or a user's function captured it.

    Of what a function captured, containers can change in place, and JAX arrays look like parameters.
    """
    if not isinstance(value, MUTABLE):
        return is_assignable(value)
    is_frozen = isinstance(value, np.ndarray) and not value.flags.writeable
    return holder == "user" and not is_frozen and not isinstance(value, jax.Ref)


def is_assignable(value: Any) -> bool:
    """Whether public attributes of an object can be assigned, and users can edit its class."""
    cls: Any = type(value)
    if cls.__setattr__ is not object.__setattr__ or is_standard_class(cls) or is_installed(cls.__module__):
        return False
    return any(not name.startswith("_") for name in (*instance_attributes(value), *_settable_names(cls)))


def _settable_names(cls: type[Any]) -> Iterator[str]:
    """The slots and properties of a class that can be assigned, and its values that an instance can replace."""
    yield from slots_of(cls)
    for base in cls.__mro__:
        for name, member in () if is_standard_class(base) else vars(base).items():
            is_value = cls.__dictoffset__ != 0 and not callable(member) and not hasattr(type(member), "__get__")
            if is_value or getattr(member, "fset", None) is not None:
                yield name
