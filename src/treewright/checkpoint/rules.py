"""Rules: what to write if a leaf does not fit, or is none. Each looks at both sides of a difference.

A rule returns the text for the user, or None if it does not apply; the first that applies is the advice.
"""

import math
from typing import Any

import jax

# A leaf that is saved and wanted in different kinds: texts such as `uint32[2] (key threefry2x32)`


def _key_in(form: str) -> str:
    """The implementation of the key in the text of a form; empty if it is not a key."""
    return form.partition(" (key ")[2].rstrip(")").removesuffix(", ref")


def key_for_its_data(saved: str, wanted: str) -> str | None:
    """A typed key was saved, and the tree has an array of its data."""
    if _key_in(saved) and not _key_in(wanted) and saved.partition(" ")[0] == wanted.partition(" ")[0]:
        return "The tree has the data of a key: convert the saved key in migrate= with jax.random.key_data(leaf)."
    return None


def data_for_a_key(saved: str, wanted: str) -> str | None:
    """The data of a key were saved as an array, and the tree has the typed key."""
    name = _key_in(wanted)
    if name and not _key_in(saved) and saved.partition(" ")[0] == wanted.partition(" ")[0]:
        convert = f"jax.random.wrap_key_data(leaf, impl={name!r})"
        return f"The tree has a key: convert the saved data in migrate= with {convert}."
    return None


def another_key(_: str, wanted: str) -> str | None:
    """The tree has a key that nothing saved can become."""
    name = _key_in(wanted)
    return f"The tree has a key: create it in migrate= with jax.random.key(seed, impl={name!r})." if name else None


def key_for_a_number(saved: str, _: str) -> str | None:
    """A key was saved, and the tree has an array or number that is not its data."""
    return "A key was saved: build the tree with a key in this place." if _key_in(saved) else None


KEY = (key_for_its_data, data_for_a_key, another_key, key_for_a_number)


def shape_of_a_placeholder(saved: tuple[int, ...], wanted: tuple[int, ...]) -> str | None:
    """The sizes differ, so no conversion keeps the values: the tree may be wrong."""
    if math.prod(saved) == math.prod(wanted):
        return None
    return (
        "Different shape: convert the array in migrate=. Or load the saved shapes, with this tree as like=:\n"
        "    values = to_names(load(path))\n"
        "    like = jax.tree.unflatten(jax.tree.structure(tree), [values[name] for name in to_names(tree)])"
    )


SHAPE = (shape_of_a_placeholder,)


# What is no leaf


def run_of_a_loop(value: Any) -> str | None:
    """A loop compiles a step; its state is the tree."""
    cls = type(value)
    is_ours = cls.__module__.partition(".")[0] == "treewright" and cls.__name__ == "loop"
    return "A loop has the tree as its state: pass run.state" if is_ours else None


def class_for_an_instance(value: Any) -> str | None:
    """A class has no leaves."""
    return f"Pass an instance, {value.__qualname__}(...), not the class" if isinstance(value, type) else None


def path_for_a_tree(value: Any) -> str | None:
    """The path and the tree were swapped."""
    return "The path comes first, then the tree: save(path, tree)" if isinstance(value, str) else None


def function_for_its_result(value: Any) -> str | None:
    """A function that makes the tree is not the tree."""
    if not callable(value):
        return None
    return "Pass the tree that it returns. As like=, an abstract one is enough: like=jax.eval_shape(function)"


def abstract_leaf(value: Any) -> str | None:
    """A `jax.ShapeDtypeStruct` has no values."""
    is_abstract = isinstance(value, jax.ShapeDtypeStruct)
    return "It is abstract and has no values: save the tree itself, not that of jax.eval_shape" if is_abstract else None


WHOLE_TREE = (run_of_a_loop, class_for_an_instance, path_for_a_tree, function_for_its_result)  # the tree is no leaf
LEAF = (abstract_leaf,)
