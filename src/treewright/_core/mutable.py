"""Which values can change in place, so that a compiled program could be stale."""

import argparse
import collections.abc
import random
import types
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from typing import Any

import jax
import numpy as np

from treewright._base.functions import FrozenValue
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
