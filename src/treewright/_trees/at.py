"""`at`: select places by function, path, name or predicate, and return a changed copy of the tree."""

import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Never, TypeVar, overload

import jax

from treewright._base.functions import earlier_class_hint
from treewright._base.jax_private import DictKey, GetAttrKey, Key, Path, SequenceKey, path_text
from treewright._base.lines import first_lines
from treewright._base.text import Verbatim, class_name, did_you_mean, short_text, with_article
from treewright._core import is_node
from treewright._trees.level import Place, all_entries, reject_class, walk, with_values
from treewright.errors import MissingPlaceError

T = TypeVar("T")
V = TypeVar("V")

_STEP = re.compile(
    r"""(?P<deep>\*\*)
    | \.?(?P<field>[^\W\d][\w*]*|\*[\w*]*)
    | \[(?P<index>-?\d+|\*)\]
    | \[(?P<quote>['"])(?P<entry>.*?)(?P=quote)\]""",
    re.VERBOSE,
)
_MAX_SHOWN = 5  # places of one name that a message lists


@overload
def at(tree: T, where: str | tuple[Any, ...]) -> "At[T, Any]": ...
@overload
def at(tree: T, where: Callable[[T], V]) -> "At[T, V]": ...
@overload
def at(tree: T, where: Callable[[str, Any], bool]) -> "At[T, Any]": ...
def at(tree: Any, where: str | tuple[Any, ...] | Callable[..., Any]) -> "At[Any, Any]":
    """Select places in a tree to `get`, `set` or `apply` a function to: `at(model, lambda m: m.bias).set(b)`.

    The copy shares all unchanged parts with the original, so the cost depends on the depth of the changed paths, not on
    the size of the tree. The nodes on these paths run converters and `__check_init__`, as in `replace`. A place is a
    child, a buffer, a static, a `None`, or an entry of a list, tuple, named tuple or dict. A changed static changes the
    treedef, so jitted functions retrace. The new value may have any shape and dtype: `set` does not compare it with the
    old one.

    Args:
        tree: A node, or any other tree.
        where: The place, in one of four forms. A function of the tree, `lambda m: m.layers[0].bias`; it may return a
            tuple, list or dict of places, and then `set` accepts and `get` returns values in the same structure. The
            text of a path, `".layers[0].bias"`, or a bare name, `"bias"`, for the only field or dict entry with that
            name. A text with `*` or `**`, such as `".layers[*].bias"` or `"**.bias"`, may match many places: `get`
            returns a dict by path, `set` accepts such a dict or one value for all, and `apply` calls its function for
            each place. A predicate, `lambda path, value: ...`, selects the topmost places where it is true and behaves
            like such a text. A key path, as returned by JAX's `tree_leaves_with_path` and `tree_map_with_path`.

    Raises:
        MissingPlaceError: If the place does not exist; the message lists the places that do.
        TypeError: If `tree` is a class, or `where` returns anything but places.
        ValueError: If a text is not a path, a bare name matches several places, or one selected place contains another.

    Examples:
        >>> class Layer(Module):
        ...     kernel: float
        ...     bias: float
        >>> class Model(Module):
        ...     layers: tuple[Layer, ...]
        >>> model = Model((Layer(1.0, 2.0), Layer(3.0, 4.0)))
        >>> at(model, lambda m: m.layers[0].bias).set(0.0)
        Model(layers=(Layer(kernel=1.0, bias=0.0), Layer(kernel=3.0, bias=4.0)))
        >>> at(model, "**.bias").apply(lambda bias: -bias)
        Model(layers=(Layer(kernel=1.0, bias=-2.0), Layer(kernel=3.0, bias=-4.0)))
        >>> at(model, ".layers[*].kernel").get()
        {'.layers[0].kernel': 1.0, '.layers[1].kernel': 3.0}
    """
    reject_class("at", tree)
    return At(tree, select(tree, where))


class At(Generic[T, V]):
    """The selected places of a tree, returned by `at`."""

    __slots__ = ("_selection", "_tree")

    def __init__(self, tree: T, selection: "Selection") -> None:
        self._tree: T = tree
        self._selection: Selection = selection

    if not TYPE_CHECKING:  # type checkers would accept every name

        def __getattr__(self, name: str) -> Never:
            """Reject misspelt names and the methods of an array's `.at[...]`."""
            # Without name= and obj=, Python adds its own suggestion.
            raise AttributeError(
                f"at(tree, where) has no {name}{did_you_mean(name, ('get', 'set', 'apply'))}. It has get(), set(value) "
                f"and apply(function), such as .apply(lambda value: value + 1).",
                name=None,
                obj=None,
            )

    def __repr__(self) -> str:
        return f"<at {', '.join(place.name for place in self._selection.places)}>"

    def get(self) -> V:
        """The value; several values in the structure that the function returned, or in a dict by path."""
        places, structure = self._selection.places, self._selection.structure
        values: Any
        if self._selection.is_search:
            values = {path_text(place.path): place.value for place in places}
        else:
            values = places[0].value if structure is None else structure.unflatten(place.value for place in places)
        selected: V = values
        return selected

    def set(self, value: V) -> T:
        """The tree with `value` at the place. With a pattern or a predicate: at each place, or from a dict by path.

        Raises:
            ValueError: If `value` does not have the structure of the places, or is a dict by path of different places,
                or a list with a value for each place of a pattern.
        """
        selection = self._selection
        if selection.is_search:
            return self._with(_values_for(selection.places, value))
        if selection.structure is None:
            changed: T = selection.places[0].with_value(value)
            return changed
        try:
            values = selection.structure.flatten_up_to(value)
        except ValueError as error:
            shown = short_text(selection.structure.unflatten([Verbatim("_")] * len(selection.places)))  # such as (_, _)
            raise ValueError(
                f"set() needs a value for each place, in the structure {shown}, but got {short_text(value)}."
            ) from error
        return self._with(values)

    def apply(self, function: Callable[[V], V]) -> T:
        """The tree with `function` applied to the value; with a pattern or a predicate, to each value separately."""
        if not self._selection.is_search:
            return self.set(function(self.get()))
        function_of_each: Any = function
        return self._with([function_of_each(place.value) for place in self._selection.places])

    def _with(self, values: Sequence[Any]) -> T:
        paths = [place.path for place in self._selection.places]
        changed: T = with_values(self._tree, list(zip(paths, values, strict=True)))
        return changed


def _values_for(places: Sequence[Place], value: Any) -> list[Any]:
    """One value for each place: the same for all, or the values of a dict by path."""
    paths = [path_text(place.path) for place in places]
    is_list = type(value) in {list, tuple} and not any(isinstance(place.value, list | tuple) for place in places)
    if is_list and len(value) == len(places) > 1:
        raise ValueError(
            f"set() would put the {type(value).__name__} of {len(value)} into each of the {len(places)} places. To set "
            f"each place to one of the values, pass a dict by path: places.set(dict(zip(places.get(), values)))."
        )
    if not (isinstance(value, dict) and any(isinstance(key, str) and not key.isidentifier() for key in value)):
        return [value] * len(paths)
    if value.keys() != {*paths}:
        wrong = [f"{path!r} is missing" for path in paths if path not in value]
        wrong += [f"{path!r} is not selected" for path in value if path not in paths]
        raise ValueError(
            f"set() needs a value for each selected place in a dict by path, as get() returns it, but "
            f"{_listed(wrong, _MAX_SHOWN)}."
        )
    return [value[path] for path in paths]


# Places


class Selection(NamedTuple):
    places: Sequence[Place]
    structure: Any = None  # the treedef of the function's result; None for a single place
    is_search: bool = False  # True for a pattern or a predicate, which may match any number of places


def select(tree: Any, where: str | Path | Callable[..., Any]) -> Selection:
    """The places that `where` selects; `at` describes its four forms."""
    root = Place(tree)
    if isinstance(where, str):
        return _by_name(root, where) if where.isidentifier() else _by_path(root, where)
    if isinstance(where, tuple) and not any(isinstance(key, str | int) for key in where):
        return Selection([functools.reduce(_below, where, root)])
    function: Any = where
    if arguments_of(function) == 2:
        return _topmost(_matching(root, function), lambda: _no_match_for_predicate(root))
    return _by_function(root, function)


def arguments_of(function: Any) -> int:
    """The number of required positional arguments of a function."""
    if isinstance(function, types.FunctionType):  # `inspect` takes as long as a whole update
        return function.__code__.co_argcount - len(function.__defaults__ or ())
    if is_node(function):
        raise TypeError(f"where= is {with_article(type(function).__qualname__)}. Pass the tree first: at(tree, where).")
    if not callable(function):
        raise TypeError(f"where= must be a function, a path or a predicate, but got {short_text(function)}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # attrgetter, itemgetter and other C functions
        return 1
    needed = (p for p in parameters if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD})
    return len(list(needed))


def _reject_overlaps(places: Sequence[Place]) -> None:
    selected: dict[Path, Place] = {}
    for place in places:
        path = place.path
        if path in selected:
            raise ValueError(f"{place.name} is selected twice, so it could get two values. Select it once.")
        selected[path] = place
    for path, place in selected.items():
        parent = next((selected[path[:end]] for end in range(len(path)) if path[:end] in selected), None)
        if parent is not None:
            raise ValueError(
                f"{place.name} is inside {parent.name}, which is also selected: one change would undo the other. "
                f"Select one of them, or make two calls."
            )


# A function over the tree


def _by_function(root: Place, where: Callable[[Any], Any]) -> Selection:
    try:
        result = where(_Recorder(root))
    except TypeError as error:
        if "treewright.place" not in str(error):  # Python, NumPy and JAX name the class in such errors
            raise
        raise TypeError(
            "The where function selects places, so it can't compute with or compare their values. To change values: "
            "at(tree, where).apply(lambda value: ...). To select by value, use a predicate: lambda path, value: ..."
        ) from error
    if type(result) is _Recorder:
        return Selection([_place_of(result)])
    recorders, structure = jax.tree.flatten(result, is_leaf=lambda value: not isinstance(value, tuple | list | dict))
    if any(type(recorder) is not _Recorder for recorder in recorders):
        raise TypeError(
            f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
            f"{short_text(result)}."
        )
    places = list(map(_place_of, recorders))
    if root in places:  # the only leaf that `jax.tree.leaves` finds
        raise TypeError(
            f"The where function returned the whole tree inside a {type(result).__name__}. The functions of jax.tree "
            f"can't see its leaves; to select leaves, use a predicate: lambda path, value: ..."
        )
    _reject_overlaps(places)
    return Selection(places, structure)


class _Recorder:
    """A place in the tree, for the function that selects places.

    It reads the real tree, so loops, `len`, `in` and `isinstance` work as on the tree. Computing with the value at the
    place is an error.
    """

    # Fields are read as attributes, so this class has no attribute with a name that a field may have.
    __slots__ = ("_treewright_place",)

    def __init__(self, place: Place) -> None:
        self._treewright_place = place

    def __getattr__(self, name: str) -> Any:
        place = _place_of(self)
        if isinstance(place.value, dict) and name in {"keys", "values", "items"}:
            return getattr({entry.key.key: _Recorder(entry) for entry in place.entries()}, name)
        return _Recorder(_below(place, GetAttrKey(name)))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[index] for index in range(*item.indices(len(self)))]
        place = _place_of(self)
        return _Recorder(_below(place, _item_key(place.value, item)))

    def __len__(self) -> int:
        return len(_place_of(self).value)

    def __iter__(self) -> Iterator[Any]:
        place = _place_of(self)
        if isinstance(place.value, dict):
            return iter(self.keys())
        if isinstance(place.value, list | tuple):
            return map(_Recorder, place.entries())
        raise TypeError(f"{place.name} is {short_text(place.value)}, which can't be iterated over.")

    def __contains__(self, item: object) -> bool:
        return item in _place_of(self).value

    def __repr__(self) -> str:
        return f"<the place {_place_of(self).name}>"

    def _reject(self, *_: object, **__: object) -> Never:
        raise TypeError(f"treewright.place {_place_of(self).name} has no value")

    # Checkers know these names on `object`, with different types. isinstance() reads __class__.
    locals().update(
        dict.fromkeys(("__bool__", "__eq__", "__ne__", "__array__"), _reject),
        __hash__=None,
        __class__=property(lambda self: type(_place_of(self).value)),
    )


_Recorder.__module__, _Recorder.__qualname__ = "treewright", "place"
_Recorder.__name__ = "treewright.place"  # appears in error messages from Python, NumPy and JAX


def _place_of(recorder: Any) -> Place:
    place: Place = recorder._treewright_place
    return place


def _below(place: Place, key: Key) -> Place:
    below = place.child(key)
    if below is None:
        raise _missing_place(place, key)
    return below


def _item_key(value: Any, item: Any) -> Key:
    """The key for `value[item]`; an index may be negative."""
    if not issubclass(type(value), (list, tuple)) or not hasattr(item, "__index__"):
        keys = (key for key, _ in all_entries(value) or ())
        return next((key for key in keys if place_of(key) == ("item", item)), DictKey(item))
    index: int = item.__index__()
    if -len(value) <= index < 0:
        index += len(value)
    names: Any = getattr(value, "_fields", None)
    return GetAttrKey(names[index]) if names and 0 <= index < len(names) else SequenceKey(index)


def _missing_place(place: Place, key: Key) -> MissingPlaceError:
    value: Any = place.value
    kind = "None" if value is None else class_name(value)
    where = place.name if place.name == kind else f"{place.name} ({kind})"
    if type(value) in {list, tuple} and value:
        return MissingPlaceError(f"{where} has no {key}. It has [0] to [{len(value) - 1}].")
    entries = all_entries(value)
    if entries is None:
        hint = ""
        if hasattr(value, "at") and not isinstance(key, GetAttrKey):
            hint = " To change a part of an array, use .apply(lambda array: array.at[...].set(...))."
        elif hasattr(value, "at") and hasattr(value, str(place_of(key)[1])):
            hint = " Places are not values: to compute with the array, use .apply(lambda array: ...)."
        return MissingPlaceError(f"{place.name} is a leaf, {short_text(value)}, without a place {key} below it.{hint}")
    by_name = {str(place_of(entry)[1]): str(entry) for entry, _ in entries}
    meant = did_you_mean(str(place_of(key)[1]), by_name, show=by_name.__getitem__)
    inner = next((f" Or did you mean {place.key}{key}?" for place in place.entries() if place.child(key)), "")
    names = _listed([str(entry) for entry, _ in entries])
    return MissingPlaceError(f"{where} has no {key}{meant}. It has {names}.{inner}{earlier_class_hint(type(value))}")


def _listed(names: Sequence[str], most: int = 12) -> str:
    """The first names, separated by commas; `nothing` if there are none."""
    return ", ".join(first_lines(names, most)) or "nothing"


# A text: a path, or a pattern that matches many places


def place_of(key: Key) -> tuple[Literal["field", "item"], Any]:
    """The kind and name of a key: a field's name, an index, a dict key, or the text of a foreign key."""
    if isinstance(key, GetAttrKey):
        return "field", key.name
    if isinstance(key, SequenceKey):
        return "item", key.idx
    return "item", key.key if hasattr(key, "key") else str(key)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a pattern. `name` is a field's name or glob, an index, or a dict key."""

    kind: Literal["field", "item", "every item", "deep"]
    name: str | int

    @property
    def is_literal(self) -> bool:
        """Whether the step matches at most one place."""
        return self.kind == "item" or (self.kind == "field" and "*" not in str(self.name))

    def matches(self, key: Key) -> bool:
        """Whether a step with a wildcard matches this key."""
        kind, name = place_of(key)
        if kind == "field":
            return self.kind == "field" and fnmatchcase(name, str(self.name))
        return self.kind == "every item"


def parse(text: str) -> tuple[Step, ...]:
    """The steps of a path or pattern.

    `.name` is a field, `[3]` an item, `['name']` a dict entry; `.*` matches any field, `.enc*` any field whose name
    begins with `enc`, `[*]` any item, and `**` any number of steps: `**.bias` matches every field named bias.
    """
    steps: list[Step] = []
    end = 0
    while end < len(text):
        match = _STEP.match(text, end)
        if match is None or (match["field"] and end and text[end] != "."):
            raise ValueError(
                f"{text!r} is not a path: {text[end:]!r} is not a step. A step is .name, [0], ['name'], .*, [*] or **, "
                f'as in ".layers[*].kernel" or "**.bias".{_with_items(text)}'
            )
        if match["deep"] or match["field"]:
            steps.append(Step("deep" if match["deep"] else "field", match[0].lstrip(".")))
        else:
            index = match["index"]
            every = index == "*"
            steps.append(Step("every item" if every else "item", int(index) if index and not every else match["entry"]))
        end = match.end()
    return tuple(steps)


def _with_items(text: str) -> str:
    """A hint if the text has indices as in flat names: `layers.0.bias` or `layers.*.bias`."""
    meant = re.sub(r"\.(\d+|\*)(?=[.[]|$)", r"[\1]", text)
    return "" if meant == text else f" Did you mean {meant!r}?"


def _by_name(root: Place, name: str) -> Selection:
    """The only field or dict entry with a name, at any depth."""
    places = [place for place in walk(root, Place.entries) if place.parent and place_of(place.key)[1] == name]
    if not places:
        raise MissingPlaceError(_no_match(root, name))
    if len(places) > 1:
        spellings = {"field": f'"**.{name}"', "item": f"\"**['{name}']\""}
        every = " and ".join(spellings[kind] for kind in dict.fromkeys(place_of(place.key)[0] for place in places))
        paths = [path_text(place.path) for place in places]
        raise ValueError(
            f"{name!r} matches {len(places)} places in {root.name}: {_listed(paths, _MAX_SHOWN)}. To select all of "
            f"them, write {every}; to select one, write its path."
        )
    return Selection(places)


def _by_path(root: Place, where: str) -> Selection:
    steps = parse(where)
    if all(step.is_literal for step in steps):
        place = root
        for step in steps:
            place = _below(place, _key(place, step))
        return Selection([place])
    return _topmost(_expand(root, steps), lambda: _no_match(root, where))


def _expand(place: Place, steps: Sequence[Step]) -> Iterator[Place]:
    if not steps:
        yield place
        return
    step, rest = steps[0], steps[1:]
    if step.kind == "deep":
        reached: Iterable[Place | None] = walk(place, Place.entries)
    elif step.is_literal:
        reached = [place.child(_key(place, step))]
    else:
        reached = (entry for entry in place.entries() if step.matches(entry.key))
    for inner in reached:
        if inner is not None:
            yield from _expand(inner, rest)


def _key(place: Place, step: Step) -> Key:
    return GetAttrKey(str(step.name)) if step.kind == "field" else _item_key(place.value, step.name)


def _no_match(root: Place, where: str) -> str:
    keys = (place.key for place in walk(root, Place.entries) if place.parent)
    names = {str(key): str(place_of(key)[1]) for key in keys if not isinstance(key, SequenceKey)}
    again = earlier_class_hint(type(root.value))
    meant = did_you_mean(where, names.values()) if where.isidentifier() else ""
    items = _with_items(where)
    return f"Nothing in {root.name} matches {where}{meant}. It has {_listed(sorted(names))}.{items}{again}"


# A predicate


def _no_match_for_predicate(root: Place) -> str:
    paths = (path_text(place.path) for place in walk(root) if place.parent)
    example = next(paths, None)
    hint = f" It is called with paths such as {example!r}." if example else ""
    return f"The predicate is true nowhere in {root.name}.{hint}"


def _matching(place: Place, predicate: Callable[[str, Any], object]) -> Iterator[Place]:
    """The topmost places where a predicate is true. It is not called for places inside them."""
    try:
        is_selected = predicate(path_text(place.path), place.value)
    except Exception as error:
        error.add_note(f"The predicate was called with {place.name}. at() also calls it with nodes and containers.")
        raise
    if is_selected:
        yield place
    else:
        for entry in place.entries():
            yield from _matching(entry, predicate)


def _topmost(places: Iterable[Place], no_match: Callable[[], str]) -> Selection:
    """The places that no other of them contains."""
    by_path = {place.path: place for place in places}
    topmost = [place for path, place in by_path.items() if not any(path[:end] in by_path for end in range(len(path)))]
    if not topmost:
        raise MissingPlaceError(no_match())
    return Selection(topmost, is_search=True)
