"""`at`: changed copies of trees, one place or several at a time."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, overload

from treewright._jax import path_text
from treewright._trees.level import with_values
from treewright._trees.where import Selection, select
from treewright._values.cures import cured
from treewright._values.text import Verbatim, did_you_mean, first_text

T = TypeVar("T")
V = TypeVar("V")

_CURE = "It takes the tree and where; then .get(), .set(value) or .apply(function): at(tree, where).set(value)."


@overload
def at(tree: T, where: str) -> "At[T, Any]": ...
@overload
def at(tree: T, where: Callable[[T], V]) -> "At[T, V]": ...
@overload
def at(tree: T, where: Callable[[str, Any], bool]) -> "At[T, Any]": ...
@cured(lambda _args, _kwargs: _CURE)
def at(tree: Any, where: str | Callable[..., Any]) -> "At[Any, Any]":
    """One place or several in a tree, to `get`, `set` or `apply` a function to: `at(model, lambda m: m.bias).set(b)`.

    The copy shares with the original all that is not on the way to a changed place, so it costs the depth of the path
    and not the size of the tree. Nodes on the way run converters and `__check_init__`, as `replace` does. A place may
    be a child, a buffer, a static, a `None`, or an entry of a list, tuple, named tuple or dict. A changed static
    changes the treedef, so jitted functions trace again.

    Args:
        tree: A node, or any other tree.
        where: The place, in one of three ways. A function over the tree, `lambda m: m.layers[0].bias`; it may return a
            tuple, list or dict of places, and then `set` takes and `get` gives values in the same structure. The text
            of a path, `".layers[0].bias"`, or a name alone, `"bias"`, for the one field or dict entry of that name.
            With `*` or `**` in it, as in `".layers[*].bias"` or `"**.bias"`, a text may lead to many places: `set`
            gives all the same value, `apply` goes one by one, and `get` gives a dict by path. A predicate,
            `lambda path, value: ...`, in the same way, for the topmost places where it is true.

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

    def __init__(self, tree: T, selection: Selection) -> None:
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
        raise ValueError(
            f"set() takes a value for each place, in the structure {_shape_of(structure)}, got {first_text(value)}."
        ) from error


def _shape_of(structure: Any) -> str:
    """The structure as a user writes it, with `_` for each value: `(_, _)`."""
    return first_text(structure.unflatten([Verbatim("_")] * structure.num_leaves))
