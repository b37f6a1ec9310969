"""`at`: changed copies of trees; and what a user points at: by a function, a path's text, a name, or a predicate."""

import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeVar, overload

import jax

from treewright._arguments import cured
from treewright._core import is_node, of_earlier_class
from treewright._core.jax_private import DictKey, GetAttrKey, Key, Path, SequenceKey, path_text
from treewright._core.text import did_you_mean, short_text
from treewright._lines import first_of
from treewright._trees.level import Place, all_entries, walk, with_values
from treewright.errors import MissingPlaceError

T = TypeVar("T")
V = TypeVar("V")

_CURE = "It takes the tree and where; then .get(), .set(value) or .apply(function): at(tree, where).set(value)."
_STEP = re.compile(
    r"""(?P<deep>\*\*)
    | \.?(?P<field>[^\W\d][\w*]*|\*[\w*]*)
    | \[(?P<index>-?\d+|\*)\]
    | \[(?P<quote>['"])(?P<entry>.*?)(?P=quote)\]""",
    re.VERBOSE,
)
_SHOWN = 5  # places of one name that are listed
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BINARY = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_COMPUTATIONS = (
    *_BINARY,
    *(f"r{name}" for name in _BINARY),
    *("neg", "pos", "abs", "invert", "round", "int", "float", "complex", "index", "array"),
)
_ON_PLACES = "A function that says where runs on places, not on values"
_APPLY = "To change what is there: at(tree, where).apply(lambda value: ...)."


@overload
def at(tree: T, where: str | tuple[Any, ...]) -> "At[T, Any]": ...
@overload
def at(tree: T, where: Callable[[T], V]) -> "At[T, V]": ...
@overload
def at(tree: T, where: Callable[[str, Any], bool]) -> "At[T, Any]": ...
@cured(lambda _args, _kwargs: _CURE)
def at(tree: Any, where: str | tuple[Any, ...] | Callable[..., Any]) -> "At[Any, Any]":
    """One place or several in a tree, to `get`, `set` or `apply` a function to: `at(model, lambda m: m.bias).set(b)`.

    The copy shares with the original all that is not on the way to a changed place, so it costs the depth of the path
    and not the size of the tree. Nodes on the way run converters and `__check_init__`, as `replace` does. A place may
    be a child, a buffer, a static, a `None`, or an entry of a list, tuple, named tuple or dict. A changed static
    changes the treedef, so jitted functions trace again.

    Args:
        tree: A node, or any other tree.
        where: The place, in one of four ways. A function over the tree, `lambda m: m.layers[0].bias`; it may return a
            tuple, list or dict of places, and then `set` takes and `get` gives values in the same structure. The text
            of a path, `".layers[0].bias"`, or a name alone, `"bias"`, for the one field or dict entry of that name.
            With `*` or `**` in it, as in `".layers[*].bias"` or `"**.bias"`, a text may lead to many places: `set`
            gives all the same value, `apply` goes one by one, and `get` gives a dict by path. A predicate,
            `lambda path, value: ...`, in the same way, for the topmost places where it is true. A key path, as JAX's
            `tree_leaves_with_path` and `tree_map_with_path` give it.

    Raises:
        MissingPlaceError: If there is no such place; the message says what is there.
        TypeError: If `where` returns anything but places.
        ValueError: If a text is not a path, a name alone leads to several places, or one selected place is inside
            another.

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
    return At(tree, select(tree, where))


class At(Generic[T, V]):
    """Places in a tree, as `at` gives them."""

    __slots__ = ("_selection", "_tree")

    def __init__(self, tree: T, selection: "Selection") -> None:
        self._tree: T = tree
        self._selection: Selection = selection

    if not TYPE_CHECKING:  # checkers would take every name

        def __getattr__(self, name: str) -> Never:
            """Refuse what the `.at[...]` of an array has, and what is misspelt: asked only for what is not here."""
            # Without the two at the end, Python adds a guess of its own.
            raise AttributeError(
                f"at(tree, where) has no {name}{did_you_mean(name, ('get', 'set', 'apply'))}. It has get(), set(value) "
                f"and apply(function), such as .apply(lambda value: value + 1).",
                name=None,
                obj=None,
            )

    def __repr__(self) -> str:
        return f"<at {', '.join(place.name for place in self._selection.places)}>"

    def get(self) -> V:
        """What is there: a value, values in the structure that was asked for, or a dict by path."""
        places, structure = self._selection.places, self._selection.structure
        values: Any
        if self._selection.searched:
            values = {path_text(place.path): place.value for place in places}
        else:
            values = places[0].value if structure is None else structure.unflatten(place.value for place in places)
        there: V = values
        return there

    def set(self, value: V) -> T:
        """The tree with `value` there.

        Raises:
            ValueError: If several places were asked for, and `value` is not of their structure.
        """
        selection = self._selection
        if selection.structure is not None:
            return self._with(_split(selection.structure, value))
        if len(selection.places) > 1:
            return self._with([value] * len(selection.places))
        changed: T = selection.places[0].with_value(value)
        return changed

    def apply(self, function: Callable[[V], V]) -> T:
        """The tree with `function` of what is there in its place; where a pattern was given, of one after the other."""
        if not self._selection.searched:
            return self.set(function(self.get()))
        function_of_each: Any = function
        return self._with([function_of_each(place.value) for place in self._selection.places])

    def _with(self, values: Sequence[Any]) -> T:
        paths = [place.path for place in self._selection.places]
        changed: T = with_values(self._tree, list(zip(paths, values, strict=True)))
        return changed


def _split(structure: Any, value: object) -> Any:
    try:
        return structure.flatten_up_to(value)
    except ValueError as error:
        shown = short_text(structure.unflatten([_Blank()] * structure.num_leaves))  # `(_, _)`, as a user writes it
        raise ValueError(
            f"set() takes a value for each place, in the structure {shown}, got {short_text(value)}."
        ) from error


class _Blank:
    """A place that is to be filled, in a message."""

    def __repr__(self) -> str:
        return "_"


# Places


@dataclasses.dataclass(slots=True, eq=False)
class Selection:
    places: Sequence[Place]
    structure: Any = None  # the treedef of what a function returned; None for a single place
    searched: bool = False  # whether a pattern or a predicate found them: any number

    def __post_init__(self) -> None:
        if len(self.places) > 1:
            _refuse_overlaps(self.places)


def select(tree: Any, where: str | Path | Callable[..., Any]) -> Selection:
    """The places that `where` points at, as `at` describes it."""
    root = Place(tree)
    if isinstance(where, str):
        return _by_name(root, where) if where.isidentifier() else _by_path(root, where)
    if isinstance(where, tuple) and not any(isinstance(key, str | int) for key in where):
        return Selection([functools.reduce(_below, where, root)])
    function: Any = where
    if arguments_of(function) == 2:
        return _searched(_matching(root, function), lambda: _never_true(root))
    return _by_function(root, function)


def arguments_of(function: Any) -> int:
    """How many positional arguments a function has to be given."""
    if isinstance(function, types.FunctionType):  # `inspect` takes as long as a whole update
        return function.__code__.co_argcount - len(function.__defaults__ or ())
    if is_node(function):
        raise TypeError(f"where= is a {type(function).__qualname__}. The tree comes first: at(tree, where).")
    if not callable(function):
        raise TypeError(f"where= takes a function, a path or a predicate, got {short_text(function)}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # attrgetter, itemgetter and others of C
        return 1
    needed = (p for p in parameters if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD})
    return len(list(needed))


def _refuse_overlaps(places: Sequence[Place]) -> None:
    selected: dict[Path, Place] = {}
    for place in places:
        path = place.path
        if path in selected:
            raise ValueError(f"{place.name} is selected twice, and could be given two values. Select it once.")
        selected[path] = place
    for path, place in selected.items():
        above = next((selected[path[:end]] for end in range(len(path)) if path[:end] in selected), None)
        if above is not None:
            raise ValueError(
                f"{place.name} is inside {above.name}, which is selected too: one change would undo the other. "
                f"Select one of them, or make two calls."
            )


# A function over the tree


def _by_function(root: Place, where: Callable[[Any], Any]) -> Selection:
    try:
        result = where(_Recorder(root))
    except TypeError as error:
        if "treewright.place" not in str(error):
            raise
        # NumPy and JAX, which name the class of what they can't take.
        raise TypeError(f"{_ON_PLACES}, so it can't compute with them. {_APPLY}") from error
    if type(result) is _Recorder:
        return Selection([_place_of(result)])
    recorders, structure = jax.tree.flatten(result, is_leaf=lambda value: not isinstance(value, tuple | list | dict))
    if any(type(recorder) is not _Recorder for recorder in recorders):
        raise TypeError(
            f"The function that says where must return a place of the tree, or a tuple, list or dict of places, got "
            f"{short_text(result)}."
        )
    return Selection(list(map(_place_of, recorders)), structure)


def _refusal(what: str) -> Callable[..., Never]:
    def refused(self: Any, *_: Any, **__: Any) -> Never:
        raise TypeError(f"{_ON_PLACES}, so {_place_of(self).name} can't be {what}")

    return refused


class _Recorder:
    """Stands for a place while a function over the tree runs.

    It reads the real tree, so that loops, lengths, `in` and `isinstance` answer as the tree would. What is at the place
    can't be computed with: the function says where, not what.
    """

    # Fields are read as attributes, so no name that a field may have is taken.
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
        raise TypeError(f"{place.name} is {short_text(place.value)}, which has no entries to go through.")

    def __contains__(self, item: object) -> bool:
        return item in _place_of(self).value

    def __repr__(self) -> str:
        return f"<the place {_place_of(self).name}>"

    # Checkers know some of these of every object, and by other types; isinstance() asks for the class.
    locals().update(
        dict.fromkeys(
            ("__bool__", "__call__", *(f"__{name}__" for name in _COMPARISONS)),
            _refusal("compared or called in it. To select by value, use a predicate: lambda path, value: ..."),
        ),
        **dict.fromkeys((f"__{name}__" for name in _COMPUTATIONS), _refusal(f"computed with in it. {_APPLY}")),
        __hash__=None,
        __class__=property(lambda self: type(_place_of(self).value)),
    )


# What is left to say of it for Python and JAX, which name its class.
_Recorder.__module__, _Recorder.__name__, _Recorder.__qualname__ = "treewright", "place", "place"


def _place_of(recorder: Any) -> Place:
    place: Place = recorder._treewright_place
    return place


def _below(place: Place, key: Key) -> Place:
    below = place.child(key)
    if below is None:
        raise _missing_place(place, key)
    return below


def _item_key(value: Any, item: Any) -> Key:
    """The key of `value[item]`; an index may be negative."""
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
    kind = "None" if value is None else type(value).__qualname__
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
        return MissingPlaceError(f"{place.name} is {short_text(value)}, a leaf, and has no {key}.{hint}")
    by_name = {str(place_of(entry)[1]): str(entry) for entry, _ in entries}
    meant = did_you_mean(str(place_of(key)[1]), by_name, show=by_name.__getitem__)
    inner = next((f" Or did you mean {place.key}{key}?" for place in place.entries() if place.child(key)), "")
    names = _listed([str(entry) for entry, _ in entries])
    return MissingPlaceError(f"{where} has no {key}{meant}. It has {names}.{inner}{of_earlier_class(type(value))}")


def _listed(names: Sequence[str], most: int = 12) -> str:
    """Some names with commas, `nothing` for none."""
    return ", ".join(first_of(names, most)) or "nothing"


# A text: a path, or a pattern that leads to many places


def place_of(key: Key) -> tuple[Literal["field", "item"], Any]:
    """What a key names: a field by its name, or an item by its index, its dict key or a foreign key's own text."""
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
        """Whether the step leads to one place at most."""
        return self.kind == "item" or (self.kind == "field" and "*" not in str(self.name))

    def takes(self, key: Key) -> bool:
        """Whether a step that is not literal leads over this key."""
        kind, name = place_of(key)
        if kind == "field":
            return self.kind == "field" and fnmatchcase(name, str(self.name))
        return self.kind == "every item"


def parse(text: str) -> tuple[Step, ...]:
    """The steps of a path's text, or of a pattern's.

    `.name` is a field, `[3]` an item, `['name']` a dict entry; `.*` is any field, `.enc*` any whose name starts so,
    `[*]` any item, and `**` any number of steps: `**.bias` is every field named bias.
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
    """A hint, if the text counts items as flat names do: `layers.0.bias` or `layers.*.bias`."""
    meant = re.sub(r"\.(\d+|\*)(?=[.[]|$)", r"[\1]", text)
    return "" if meant == text else f" Did you mean {meant!r}?"


def _by_name(root: Place, name: str) -> Selection:
    """The one field or dict entry of a name, at any depth."""
    places = [place for place in walk(root, Place.entries) if place.above and place_of(place.key)[1] == name]
    if not places:
        raise MissingPlaceError(_nowhere(root, name))
    if len(places) > 1:
        spellings = {"field": f'"**.{name}"', "item": f"\"**['{name}']\""}
        every = " and ".join(spellings[kind] for kind in dict.fromkeys(place_of(place.key)[0] for place in places))
        paths = [path_text(place.path) for place in places]
        raise ValueError(
            f"{name!r} leads to {len(places)} places in {root.name}: {_listed(paths, _SHOWN)}. To mean all of them, "
            f"write {every}; to mean one, write its path."
        )
    return Selection(places)


def _by_path(root: Place, where: str) -> Selection:
    steps = parse(where)
    if all(step.is_literal for step in steps):
        place = root
        for step in steps:
            place = _below(place, _key(place, step))
        return Selection([place])
    return _searched(_leading(root, steps), lambda: _nowhere(root, where))


def _leading(place: Place, steps: Sequence[Step]) -> Iterator[Place]:
    if not steps:
        yield place
        return
    step, rest = steps[0], steps[1:]
    if step.kind == "deep":
        reached: Iterable[Place | None] = walk(place, Place.entries)
    elif step.is_literal:
        reached = [place.child(_key(place, step))]
    else:
        reached = (entry for entry in place.entries() if step.takes(entry.key))
    for inner in reached:
        if inner is not None:
            yield from _leading(inner, rest)


def _key(place: Place, step: Step) -> Key:
    return GetAttrKey(str(step.name)) if step.kind == "field" else _item_key(place.value, step.name)


def _nowhere(root: Place, where: str) -> str:
    keys = (place.key for place in walk(root, Place.entries) if place.above)
    names = {str(key): str(place_of(key)[1]) for key in keys if not isinstance(key, SequenceKey)}
    again = of_earlier_class(type(root.value))
    meant = did_you_mean(where, names.values()) if where.isidentifier() else ""
    items = _with_items(where)
    return f"{root.name} has no place {where}{meant}. The names in it: {_listed(sorted(names))}.{items}{again}"


# A predicate


def _never_true(root: Place) -> str:
    paths = (path_text(place.path) for place in walk(root) if place.above)
    example = next(paths, None)
    shown = f" It is asked of paths such as {example!r}." if example else ""
    return f"{root.name} has no place where the predicate is true.{shown}"


def _matching(root: Place, predicate: Callable[[str, Any], object]) -> Iterator[Place]:
    """The topmost places where a predicate is true."""
    matches: set[Place] = set()
    for place in walk(root, lambda place: () if place in matches else place.entries()):
        if predicate(path_text(place.path), place.value):
            matches.add(place)
            yield place


def _searched(places: Iterable[Place], otherwise: Callable[[], str]) -> Selection:
    """The topmost of some places."""
    by_path = {place.path: place for place in places}
    topmost = [place for path, place in by_path.items() if not any(path[:end] in by_path for end in range(len(path)))]
    if not topmost:
        raise MissingPlaceError(otherwise())
    return Selection(topmost, searched=True)
