"""`edit`: many assignments in a row, on a draft that becomes a node when the block ends."""

import contextlib
import copy
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never, TypeVar, overload

from treewright._core import (
    PAIR,
    Module,
    NodeSpec,
    Unfinished,
    check,
    flat_form,
    is_cached_property,
    is_node,
    of_earlier_class,
    spec_of,
)
from treewright._core.jax_private import Key
from treewright._core.text import with_close_matches
from treewright._trees.level import all_entries, level_of, with_changes
from treewright._trees.sizes import LEAVES
from treewright.errors import NodeInitError

M = TypeVar("M", bound=Module)

_store = object.__setattr__


@overload
def edit(node: M, /) -> contextlib.AbstractContextManager[M]: ...
@overload
def edit(node: object, /) -> contextlib.AbstractContextManager[Any]: ...
def edit(node: Any, /) -> contextlib.AbstractContextManager[Any]:
    """A draft of `node` that takes assignments to its fields and theirs, and is a finished node when the block ends.

    `draft.layers[0].bias = bias` and `draft.table["x"] = 1` work as they do on any Python object, at any depth, through
    nodes, lists and dicts; entries of tuples are drafts too, and a tuple itself is assigned as a whole. `node` is not
    touched. At the end `__check_init__` of every changed node runs, and what has not changed is shared with `node`.
    An assignment to a static changes the treedef, so jitted functions trace again. A draft can't be flattened, so call
    JAX after the block. To change one place, `at` is shorter and cheaper: a draft
    copies the lists and dicts that it goes through.

    Type checkers take the draft of a `Module` for an instance of its class, and check what is assigned. The draft of an
    instance of a class with `@pytree_dataclass`, which is frozen for them, is `Any`.

    If the block or a check raises, the draft is equal to `node` and frozen.

    Raises:
        TypeError: If `node` is not a node; at the end of the block, if a name that is not a field was assigned to, or a
            field was deleted.
        StaticFieldError: At the end, if a static was given a value that can't be one.

    Examples:
        >>> class Layer(Module):
        ...     kernel: float
        ...     bias: float | None = None
        >>> class Model(Module):
        ...     layers: tuple[Layer, ...]
        ...     name: str = static()
        >>> model = Model((Layer(1.0), Layer(2.0)), name="small")
        >>> with edit(model) as draft:
        ...     draft.name = "smaller"
        ...     for layer in draft.layers:
        ...         layer.kernel /= 2
        >>> draft
        Model(
            layers=(Layer(kernel=0.5, bias=None), Layer(kernel=1.0, bias=None)),
            name='smaller',
        )
        >>> model.name
        'small'
    """
    if not is_node(node):
        raise TypeError(
            f"edit() takes an instance of a Module or of a class with @pytree_dataclass, got {type(node).__name__!r}."
        )
    return _Editing(node)


class _Editing:
    """The context manager that `edit` returns. It is no draft yet, so it takes no assignment."""

    __slots__ = ("_drafts", "_node")

    def __init__(self, node: Any) -> None:
        _store(self, "_node", node)

    def __enter__(self) -> Any:
        drafts = _Drafts()
        _store(self, "_drafts", drafts)
        return drafts.draft_of(self._node)

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self._drafts.finish()
        else:
            self._drafts.close({})

    def __getattr__(self, name: str) -> Never:
        self.__setattr__(name, None)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(
            f"edit() of a {type(self._node).__qualname__} is not a draft yet, and has no {name}. The draft is in "
            f"the block: with edit(node) as draft: draft.{name} = ...",
            name=None,
            obj=None,
        )


class _OpenDraft(Unfinished):
    """The state of the drafts of a class while they take assignments."""

    __slots__ = ("fill",)

    def __init__(self, cls: type[Any], fill: Callable[[Any], None]) -> None:
        super().__init__(cls)
        self.fill = fill

    def values_of(self, node: Any) -> dict[str, Any]:
        """The values of the draft, which are those of the original until they are read or assigned to."""
        self.fill(node)
        values: dict[str, Any] = node.__dict__
        return values

    def __repr__(self) -> str:
        return f"a draft of a {self.cls.__qualname__}: it can be used in full when its edit() block ends"


_BEING_FINISHED: Any = object()


class _Drafts:
    """The drafts of one block: nodes that are open, and copies of the containers on the way to them."""

    def __init__(self) -> None:
        # By the id of a draft or copy: itself, its original, and the flat form of that; None for a container.
        self._originals: dict[int, tuple[Any, Any, Any]] = {}
        self._unfilled: dict[int, tuple[Any, Any, Any]] = {}  # drafts whose fields nobody has read or assigned
        self._states: dict[type[Any], _OpenDraft] = {}
        self._results: dict[int, Any] = {}
        self._forms: dict[int, Any] = {}  # the flat forms of changed drafts, inner ones first

    def draft_of(self, value: Any) -> Any:
        """A draft of a node, a copy of a list or dict, a container with drafts inside; any other value itself."""
        cls = type(value)
        if hasattr(cls, "__node_spec__"):
            node = object.__new__(cls)
            if cls not in self._states:
                self._states[cls] = _OpenDraft(cls, self._fill)
            _store(node, PAIR, self._states[cls])
            self._unfilled[id(node)] = (node, value, flat_form(value))
            return node
        if isinstance(value, LEAVES):
            return value
        if cls in {list, tuple}:
            draft = cls(map(self.draft_of, value))
            changed = cls is list or not _all_same(draft, value)
        else:
            changes = {key: new for key, old in _entries(value) if (new := self.draft_of(old)) is not old}
            changed = bool(changes) or isinstance(value, dict)
            draft = with_changes(value, changes) if changes else copy.copy(value) if changed else value
        if not changed:
            return value
        self._originals[id(draft)] = (draft, value, None)
        return draft

    def _fill(self, draft: Any) -> None:
        if id(draft) in self._unfilled:
            entry = self._originals[id(draft)] = self._unfilled.pop(id(draft))
            for field in spec_of(draft).fields:
                old = field.value_in(entry[2])
                draft.__dict__[field.name] = old if field.is_static else self.draft_of(old)

    def finish(self) -> None:
        """Make every draft a node: all of them, or none where something is wrong with one."""
        try:
            for draft, _, _ in list(self._originals.values()):  # the root first
                self._result(draft)
            self.close(self._forms)
            for key in self._forms:
                check(self._originals[key][0])
        except BaseException:
            self.close({})
            raise

    def close(self, forms: Mapping[int, Any]) -> None:
        """Give each draft its flat form of these, or else that of its original."""
        for key, (draft, _, form) in self._originals.items():
            if form is not None:
                draft.__dict__.clear()
                _store(draft, PAIR, forms.get(key, form))
        for draft, _, form in self._unfilled.values():
            _store(draft, PAIR, form)

    def _result(self, value: Any) -> Any:
        """What stands for a value of a draft in the finished tree: the original, where nothing has changed."""
        key = id(value)
        if key in self._unfilled:
            return self._unfilled[key][1]
        if key not in self._originals:
            return value if isinstance(value, LEAVES) or is_node(value) else self._container(value, value)
        result = self._results.get(key)
        if result is _BEING_FINISHED:
            name = type(value).__qualname__
            raise NodeInitError(
                f"A draft of a {name} was put inside itself, so the {name} would contain itself without end."
            )
        if result is None:
            self._results[key] = _BEING_FINISHED
            _, original, form = self._originals[key]
            result = self._node(value, original, form) if form is not None else self._container(value, original)
            self._results[key] = result
        return result

    def _node(self, draft: Any, original: Any, form: Any) -> Any:
        spec, waiting, (old_children, statics) = spec_of(draft), draft.__dict__, form
        _refuse_wrong_names(spec, waiting)
        children = tuple(self._result(waiting[field.name]) for field in spec.children)
        values = tuple(waiting[field.name] for field in spec.statics)
        if not _all_same(values, statics.values):
            statics = spec.table.find(values)
        elif _all_same(children, old_children):
            return original
        self._forms[id(draft)] = (children, statics)
        return draft

    def _container(self, value: Any, original: Any) -> Any:
        """A list, tuple, dict or the like, whose entries may be drafts; `original` if it has the same entries."""
        entries = _entries(value)
        results = {key: self._result(entry) for key, entry in entries}
        old = dict(_entries(original))
        if list(old) == list(results) and _all_same(results.values(), old.values()):
            return original
        changes = {key: results[key] for key, entry in entries if results[key] is not entry}
        return with_changes(value, changes) if changes else value


def _entries(value: Any) -> tuple[tuple[Key, Any], ...]:
    """What is in a container, in its own order; nothing for what is a leaf to JAX."""
    if isinstance(value, dict):
        return all_entries(value) or ()
    level = level_of(value)
    return () if level is None else level.children


def _all_same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(map(operator.is_, left, right))


def _refuse_wrong_names(spec: NodeSpec, waiting: Mapping[str, Any]) -> None:
    names, cls = list(spec.by_name), spec.cls
    deleted = [name for name in names if name not in waiting]
    if deleted:
        raise TypeError(
            f"{', '.join(deleted)} of a draft of a {cls.__qualname__} was deleted. A field always has a value: assign "
            f"one, such as None."
        )
    unknown = [name for name in waiting if name not in {*names, PAIR} and not is_cached_property(cls, name)]
    if unknown:
        raise TypeError(
            f"A draft of a {cls.__qualname__} was assigned to {with_close_matches(unknown, names)}, which is not a "
            f"field. Its fields: {', '.join(names) or 'none'}.{of_earlier_class(cls)}"
        )
