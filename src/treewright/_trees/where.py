"""`where=`: the places of a tree that a path, a function, a predicate, a class or a mask selects.

`at`, `partition`, `spec_like` and `adopt` all read it here, so they accept the same and raise the same errors.
"""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from treewright._base.functions import earlier_class_hint
from treewright._base.jax_private import SequenceKey, jax_trees
from treewright._base.text import short_text, with_article
from treewright._core import is_node, note
from treewright._reports import counted
from treewright._trees.level import is_none
from treewright._trees.pattern import key_of, listed, matching, missing_place, parse, with_items
from treewright._trees.places import Place, note_redefined_classes, walk
from treewright._trees.selection import HOW_CALLED, Selection, select_by_function
from treewright.errors import MissingPlaceError

_BOOLS = frozenset({bool, np.bool_})
_FORMS = "where= must be a path, a function, a predicate, a class or a mask (a tree of bools), but got "


def select(tree: Any, where: Any) -> Selection:
    """The places that `where` selects, at least one.

    Raises:
        MissingPlaceError: If there is none.
    """
    root = Place(tree)
    selected = _selected(root, where)
    if isinstance(selected, Selection):
        return selected
    leaves = (place for place in walk(root) if place.level is None)
    places = [place for place, is_chosen in zip(leaves, selected, strict=True) if is_chosen]
    return _search(places, lambda: f"The mask is True for no leaf of {root.name}.")


def chosen_leaves(tree: Any, where: Any) -> list[bool]:
    """For each leaf, whether `where` selects it: it is below a selected place, or the mask is true for it.

    Raises:
        ValueError: If there is nothing below a place, and `where` selects it by name or selects no other.
    """
    selected = _selected(Place(tree), where)
    if not isinstance(selected, Selection):
        return selected
    by_path = {place.path: place for place in selected.places}
    lengths = sorted({len(path) for path in by_path})
    above = [
        next((by_path[path[:length]] for length in lengths if path[:length] in by_path), None)
        for path, _ in jax_trees.tree_leaves_with_path(tree)
    ]
    reached = {id(place) for place in above}
    without = [place for place in selected.places if id(place) not in reached]
    if without and not (selected.is_search and any(above)):
        raise ValueError(_without_leaves(without))
    return [place is not None for place in above]


def _without_leaves(places: Sequence[Place]) -> str:
    names, place = listed([place.name for place in places]), places[0]
    if any(map(_is_static, place.ancestors)):
        return f"No leaf at {names}: a static has no leaves and no settings. To change it: at(tree, where).set(value)."
    return f"No leaf at {names}{': None is not a leaf' if place.value is None else ''}."


def _selected(root: Place, where: Any) -> Selection | list[bool]:
    """The places, or for a mask whether each leaf is selected."""
    if isinstance(where, str):
        return _by_path(root, where)
    if isinstance(where, type):
        found = _matching(root, lambda place: isinstance(place.value, where))
        return _search(found, lambda: f"{root.name} contains no {where.__qualname__}.")
    if not _is_function(where):
        return _by_mask(root, where)
    count = arguments_of(where)
    if count == 2:
        return _search(_matching(root, _test_of(where)), lambda: _no_match_for_predicate(root))
    if count != 1:
        raise TypeError(f"{_FORMS}{short_text(where)} with {counted(count, 'argument')}. {HOW_CALLED}")
    return select_by_function(where, root, lambda result: _as_mask(result, root.value))


def _is_function(where: Any) -> bool:
    """Whether `where` is called. A mask of a class with `__call__` is not, nor is a tree in its place."""
    if isinstance(where, types.FunctionType):
        return True
    is_mask = is_node(where) or any(type(leaf) in _BOOLS for leaf in jax.tree.leaves(where))
    return callable(where) and not is_mask


def arguments_of(function: Any) -> int:
    """The number of required positional arguments of a function; 1 if there is none, but it accepts one."""
    if isinstance(function, types.FunctionType):  # `inspect` takes as long as a whole update
        code = function.__code__
        required = code.co_argcount - len(function.__defaults__ or ())
        return required or bool(code.co_argcount or code.co_flags & inspect.CO_VARARGS)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # attrgetter, itemgetter and other C functions
        return 1
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL}]
    return sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in positional) or bool(positional)


def _is_static(place: Place) -> bool:
    """Whether a value is a static of its parent."""
    parent = place.parent
    return parent is not None and all(place.key != child.key for child in parent.children())


def _search(places: Iterable[Place], no_match: Callable[[], str]) -> Selection:
    """The places of a search, at least one."""
    found = list(places)
    if not found:
        raise MissingPlaceError(no_match())
    return Selection(found, is_search=True)


# A mask


def _by_mask(root: Place, mask: Any) -> list[bool]:
    """The settings of a mask for each leaf."""
    leaves = jax.tree.leaves(mask)
    if mask is None or (leaves and not any(type(leaf) in _BOOLS for leaf in leaves)):
        if is_node(mask) and not is_node(root.value):
            raise TypeError(f"where= is {with_article(type(mask).__qualname__)}. Pass the tree first: at(tree, where).")
        raise TypeError(f"{_FORMS}{short_text(mask)}.")
    settings = broadcast("where=", mask, root.value)
    wrong = [setting for setting in settings if type(setting) not in _BOOLS]
    if wrong:
        raise TypeError(f"A mask needs True or False for each leaf, got {short_text(wrong[0])}.")
    return settings


def _as_mask(result: Any, tree: Any) -> list[bool] | None:
    """The settings of a mask that a function returned for the tree, as `trainable` does; None for any other object."""
    settings, treedef = jax_trees.tree_flatten(result)
    is_like_tree = type(result) is type(tree) or treedef == jax_trees.tree_structure(tree)
    if not is_like_tree or any(type(setting) not in _BOOLS for setting in settings):
        return None
    return broadcast("where=", result, tree)


def broadcast(argument: str, prefix: Any, tree: object) -> list[Any]:
    """The settings of a prefix, repeated for each leaf of the tree."""
    settings: list[Any]
    settings, treedef = jax_trees.tree_flatten(prefix)
    if treedef == jax_trees.tree_structure(tree):  # the walk below takes longer than the rest of `partition`
        return settings
    settings = []

    def add(setting: Any, part: Any) -> None:
        settings.extend([setting] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(add, prefix, tree, is_leaf=is_none)
    except ValueError as error:
        rejection = ValueError(f"{argument} is not a prefix of the tree. {jax_error_text(error)}")
        note_redefined_classes(rejection, prefix, tree)
        raise rejection from error
    return settings


def jax_error_text(error: ValueError) -> str:
    """JAX's message about two different trees, without `tree_map` as the name of the first."""
    return re.sub(
        r"(pytree )?tree_map(?:_with_path)? tree", lambda found: "pytree" if found[1] else "the tree", str(error)
    )


def _by_path(root: Place, where: str) -> Selection:
    steps = parse(str(where))  # a subclass may lack a hash
    if not all(step.is_literal for step in steps):
        return _search(matching(root, steps), lambda: _no_match(root, where))
    place = root
    for step in steps:
        key = key_of(place, step)
        entry = place.child(key)
        if entry is None:
            raise missing_place(place, key)
        place = entry
    return Selection([place])


def _no_match(root: Place, where: str) -> str:
    keys = (place.key for place in walk(root, Place.entries) if place.parent)
    names = {str(key) for key in keys if not isinstance(key, SequenceKey)}
    again = earlier_class_hint(type(root.value))
    return f"Nothing in {root.name} matches {where}. It has {listed(sorted(names))}.{with_items(where)}{again}"


# A predicate


def _no_match_for_predicate(root: Place) -> str:
    paths = (place.text for place in walk(root) if place.parent)
    example = next(paths, None)
    hint = f" It is called with paths such as {example!r}." if example else ""
    return f"The predicate is true nowhere in {root.name}.{hint}"


def _test_of(predicate: Callable[[str, Any], object]) -> Callable[[Place], bool]:
    def is_selected(place: Place) -> bool:
        try:
            result = predicate(place.text, place.value)
        except Exception as error:
            note([_argument_of_predicate], error, place)
            raise
        return _is_true(result, place)

    return is_selected


def _argument_of_predicate(error: BaseException, place: Place) -> str:  # noqa: ARG001  a rule's form
    return (
        f"The predicate was called with {place.name}. It is called with nodes, containers and statics too, so check "
        f"the class first: isinstance(value, jax.Array) and ..."
    )


def _is_true(result: Any, place: Place) -> bool:
    """The result of a predicate, which must be a bool: `path.find("bias")` is -1, and true, where it finds nothing."""
    if result is True or result is False:
        return result
    if getattr(result, "dtype", None) == np.dtype(bool) and np.ndim(result) == 0:
        return bool(result)
    lacks = "Does it lack a return?" if result is None else "Write a comparison, or bool(...)."
    raise TypeError(
        f"The predicate must return True or False, but returned {short_text(result)} for {place.name}. {lacks}"
    )


def _matching(place: Place, is_selected: Callable[[Place], bool]) -> Iterator[Place]:
    """The topmost places where a test is true. It is not called for places inside them."""
    if is_selected(place):
        yield place
    else:
        for entry in place.entries():
            yield from _matching(entry, is_selected)
