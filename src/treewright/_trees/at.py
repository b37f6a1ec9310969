"""`at`: select places in a tree, and return a changed copy of it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, overload

from treewright._base.text import Verbatim, did_you_mean, short_text
from treewright._trees.level import reject_class
from treewright._trees.pattern import listed
from treewright._trees.places import Place, with_values
from treewright._trees.selection import Selection
from treewright._trees.where import select

T = TypeVar("T")
V = TypeVar("V")


# No overload for a mask: checkers would accept anything as `where: T`, with `object` or a union as `T`.
@overload
def at(tree: T, where: str | type[Any]) -> "At[T, Any]": ...
@overload
def at(tree: T, where: Callable[[T], V]) -> "At[T, V]": ...
@overload
def at(tree: T, where: Callable[[str, Any], bool]) -> "At[T, Any]": ...
def at(tree: Any, where: str | type[Any] | Callable[..., Any]) -> "At[Any, Any]":
    """Select places in a tree to `get`, `set` or `apply` a function to: `at(model, lambda m: m.bias).set(b)`.

    The copy shares all unchanged parts with the original, so the cost depends on the depth of the changed paths, not on
    the size of the tree. The nodes on these paths run converters and `__check_init__`, as in `replace`. A place is a
    child, a buffer, a static, a `None`, or an entry of a list, tuple, named tuple or dict. A changed static changes the
    treedef, so jitted functions retrace. The new value may have any shape and dtype: `set` does not compare it with the
    old one.

    Args:
        tree: A node, or any other tree.
        where: The places, in one of five forms. A function of the tree, `lambda m: m.layers[0].bias`, selects the
            objects that it returns: one, or several in a tuple, list or dict, and then `set` accepts and `get` returns
            values in the same structure. It is called several times, with copies of the tree.
            The text of a path, `".layers[0].bias"`, selects one place. The other forms may select many: `get` returns
            a dict by path, `set` accepts such a dict or one value for all, and `apply` calls its function for each
            place. They are: a text with `*` or `**`, such as `".layers[*].bias"` or `"**.bias"`; a predicate,
            `lambda path, value: ...`, for the topmost places where it is true; a class, for its topmost instances; a
            mask, a tree of bools like `tree` or a prefix of it, for leaves.

    Raises:
        MissingPlaceError: If nothing is selected; the message lists the places that exist.
        TypeError: If `tree` is a class, the function returns anything but places, or the predicate anything but a bool.
        ValueError: If a text is not a path, one selected place contains another, or the function returns an object that
            is in several places, and it is not certain which is meant.

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

    # No `add` or `multiply` as in an array's `.at[...]`: `.apply(lambda value: value + 1)` is as short, and any two
    # functions would be a beginning of all of `jax.numpy`.
    __slots__ = ("_selection", "_tree")

    def __init__(self, tree: T, selection: Selection) -> None:
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
        selection = self._selection
        values: Any
        if selection.is_search:
            values = {place.text: place.value for place in selection.places}
        else:
            values = selection.structure.unflatten(place.value for place in selection.places)
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
        try:
            values = selection.structure.flatten_up_to(value)
        except ValueError as error:
            shown = short_text(selection.structure.unflatten([Verbatim("_")] * len(selection.places)))  # such as (_, _)
            raise ValueError(
                f"set() needs a value for each place, in the structure {shown}, but got {short_text(value)}."
            ) from error
        return self._with(values)

    def apply(self, function: Callable[[V], V]) -> T:
        """The tree with `function` applied to the value; if `where` may select many places, to each value separately.

        Raises:
            TypeError: If the function returns None for every place; to store None there is `set(None)`.
        """
        each: Any = function
        places, is_search = self._selection.places, self._selection.is_search
        values = [each(place.value) for place in places] if is_search else [function(self.get())]
        if all(value is None for value in values) and any(place.value is not None for place in places):
            raise TypeError(
                "apply()'s function returned None for every place. Does it lack a return? To store None: .set(None)."
            )
        return self._with(values) if is_search else self.set(values[0])

    def _with(self, values: Sequence[Any]) -> T:
        changed: T = with_values(self._tree, self._selection.places, values)
        return changed


def _values_for(places: Sequence[Place], value: Any) -> list[Any]:
    """One value for each place: the same for all, or the values of a dict by path."""
    paths = [place.text for place in places]
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
            f"set() needs a value for each selected place in a dict by path, as get() returns it, but {listed(wrong)}."
        )
    return [value[path] for path in paths]
