"""Rules: what to write if a leaf does not fit, or is none. Each looks at both sides of a difference.

A rule returns the text for the user, or None if it does not apply; the first that applies is the advice.
"""

import math
from typing import Any

import jax

from treewright.checkpoint.arrays import Form, keeps_kind

# Nodes, statics, and leaves that only one side has

NOT_SAVED = (
    "If a leaf was renamed: renamed={'old.name': 'new.name'}. If it is new: add it in migrate=, or strict=False to "
    "keep the tree's value."
)
NOT_MIGRATED = "With migrate=, each leaf needs a value: let the function add the leaves that were not saved."
NOT_IN_THE_TREE = "If a leaf was removed: strict=False."
STATIC = "Different static: build the tree as it was saved, or on_static='warn' to keep the tree's static."
CLASS = "If a class moved: __checkpoint_name__ = '<the saved name>' in its body, or strict=False."
OPTIMISER = "Different optimiser: load only the parameters, part='params', and initialise its state again."


# A leaf that is saved and wanted in different forms


def _is_data_of(array: Form, key: Form) -> bool:
    return not array.key and (array.dtype, array.shape) == (key.dtype, key.shape)


def key_for_its_data(saved: Form, wanted: Form) -> str | None:
    """A typed key was saved, and the tree has an array of its data."""
    if saved.key and _is_data_of(wanted, saved):
        return "The tree has the data of a key: convert the saved key in migrate= with jax.random.key_data(leaf)."
    return None


def data_for_a_key(saved: Form, wanted: Form) -> str | None:
    """The data of a key were saved as an array, and the tree has the typed key."""
    if wanted.key and _is_data_of(saved, wanted):
        convert = f"jax.random.wrap_key_data(leaf, impl={wanted.key!r})"
        return f"The tree has a key: convert the saved data in migrate= with {convert}."
    return None


def another_key(saved: Form, wanted: Form) -> str | None:
    """The tree has a key that nothing saved can become."""
    if wanted.key and wanted.key != saved.key:
        return f"The tree has a key: create it in migrate= with jax.random.key(seed, impl={wanted.key!r})."
    return None


def key_for_a_number(saved: Form, wanted: Form) -> str | None:
    """A key was saved, and the tree has an array or number that is not its data."""
    is_lone = saved.key and not wanted.key
    return "A key was saved: build the tree with a key in this place." if is_lone else None


def another_shape(saved: Form, wanted: Form) -> str | None:
    """The shapes differ. If the sizes do too, no conversion keeps the values: the tree may have placeholders."""
    if saved.shape == wanted.shape:
        return None
    advice = "Different shape: convert the array in migrate=."
    if math.prod(saved.shape) == math.prod(wanted.shape):
        return advice
    return (
        f"{advice} Or load the saved shapes, with this tree as like=:\n"
        "    values = to_names(load(path))\n"
        "    like = jax.tree.unflatten(jax.tree.structure(tree), [values[name] for name in to_names(tree)])"
    )


def cast_that_loses(saved: Form, wanted: Form) -> str | None:
    """No option allows a cast that drops the fraction or the imaginary part."""
    if keeps_kind(saved.dtype, wanted.dtype):
        return None
    return "Floats are not cast to ints, or complex numbers to real ones: convert the array in migrate=."


FORM = (key_for_its_data, data_for_a_key, another_key, key_for_a_number, another_shape, cast_that_loses)
CAST = "Different dtype, or a number in place of an array: allow_cast=True."  # if no rule applies


# What is no leaf, and the class that contains it


def run_of_a_loop(value: Any, _: type[Any]) -> str | None:
    """A loop compiles a step; its state is the tree."""
    cls = type(value)
    is_ours = cls.__module__.partition(".")[0] == "treewright" and cls.__name__ == "loop"
    return "A loop has the tree as its state: pass run.state" if is_ours else None


def class_for_an_instance(value: Any, _: type[Any]) -> str | None:
    """A class has no leaves."""
    return f"Pass an instance, {value.__qualname__}(...), not the class" if isinstance(value, type) else None


def path_for_a_tree(value: Any, _: type[Any]) -> str | None:
    """The path and the tree were swapped."""
    return "The path comes first, then the tree: save(path, tree)" if isinstance(value, str) else None


def function_for_its_result(value: Any, _: type[Any]) -> str | None:
    """A function that makes the tree is not the tree."""
    if not callable(value):
        return None
    return "Pass the tree that it returns. As like=, an abstract one is enough: like=jax.eval_shape(function)"


def abstract_leaf(value: Any, _: type[Any]) -> str | None:
    """A `jax.ShapeDtypeStruct` has no values."""
    is_abstract = isinstance(value, jax.ShapeDtypeStruct)
    return "It is abstract and has no values: save the tree itself, not that of jax.eval_shape" if is_abstract else None


def leaf_of_equinox(_: Any, parent: type[Any]) -> str | None:
    """The fields of an equinox module have no `static()`."""
    if any(base.__module__.startswith("equinox.") for base in parent.__mro__):
        return f"The equinox module {parent.__qualname__} has it as a leaf: save treewright.adopt(...) of it"
    return None


NO_LEAF = (abstract_leaf, leaf_of_equinox)
OBJECT = "Make it a static, or wrap it in Static"  # if no rule applies
NO_TREE = (run_of_a_loop, class_for_an_instance, path_for_a_tree, function_for_its_result, *NO_LEAF)
