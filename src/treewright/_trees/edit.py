"""`edit`: several assignments, on a draft that becomes a node when the block ends."""

import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never, TypeVar, overload

import numpy as np

from treewright._base.functions import earlier_class_hint, is_cached_property
from treewright._base.text import class_name, with_article, with_close_matches
from treewright._core import (
    FLAT_FORM_NAME,
    NodeInfo,
    Unfinished,
    check,
    flat_form,
    info_of,
    is_node,
    is_node_class,
)
from treewright._trees.level import LEAVES, reject_class
from treewright._trees.places import children_of, with_changes
from treewright.errors import NodeInitError
from treewright.module import Module

M = TypeVar("M", bound=Module)

_store = object.__setattr__


@overload
def edit(node: M, /) -> contextlib.AbstractContextManager[M]: ...
@overload
def edit(node: object, /) -> contextlib.AbstractContextManager[Any]: ...
def edit(node: Any, /) -> contextlib.AbstractContextManager[Any]:
    """A mutable draft of `node` inside a `with` block; it becomes a frozen node when the block ends.

    `draft.layers[0].bias = bias` and `draft.table["x"] = 1` work as on any Python object, at any depth, through nodes,
    lists and dicts. Entries of tuples are drafts too, but a tuple itself can only be replaced. `node` does not change.
    At the end, `__check_init__` of every changed node runs; unchanged parts are shared with `node`. Assigning to a
    static changes the treedef, so jitted functions retrace. A draft can't be flattened, so call JAX after the block. To
    change one place, `at` is shorter and cheaper, because a draft copies the lists, dicts and numpy arrays on its way.

    To type checkers, the draft of a `Module` is an instance of its class, and assignments are checked. The draft of an
    instance of a `@pytree_dataclass`, whose fields are frozen to them, is `Any`.

    If the block or a check raises, the draft is equal to `node` and frozen.

    Raises:
        TypeError: If `node` is not a node; at the end of the block, if the block assigned to a name that is not a
            field.
        StaticFieldError: At the end of the block, if the value of a static can't be static.

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
    reject_class("edit", node)
    if not is_node(node):
        raise TypeError(
            f"edit() needs an instance of a Module or of a class with @pytree_dataclass, but got "
            f"{with_article(class_name(node))}."
        )
    return _Editing(node)


class _Editing:
    """The context manager that `edit` returns. It rejects assignments, because the draft is created on entry."""

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
            f"edit() of {with_article(type(self._node).__qualname__)} returns a context manager, not a draft, so it "
            f"has no {name}. The draft exists inside the block: with edit(node) as draft: draft.{name} = ...",
            name=None,
            obj=None,
        )


class _OpenDraft(Unfinished):
    """The state of a draft inside the block."""

    __slots__ = ("fill",)

    def __init__(self, cls: type[Any], fill: Callable[[Any], None]) -> None:
        super().__init__(cls)
        self.fill = fill

    def values_of(self, node: Any) -> dict[str, Any]:
        """The values of the draft; they are copied from the original on first use."""
        self.fill(node)
        values: dict[str, Any] = node.__dict__
        return values

    def __repr__(self) -> str:
        return f"a draft of {with_article(self.cls.__qualname__)}: it becomes a node when its edit() block ends"


_BEING_FINISHED: Any = object()


class _Drafts:
    """The drafts of one block, and the copies of the containers between them."""

    def __init__(self) -> None:
        # By id of a draft or copy: the object, its original, and the original's flat form (None if it is not a node).
        self._originals: dict[int, tuple[Any, Any, Any]] = {}
        self._filled: set[int] = set()  # drafts with an access to their fields
        self._results: dict[int, Any] = {}
        self._forms: dict[int, Any] = {}  # the new flat forms of changed drafts, inner ones first

    def draft_of(self, value: Any) -> Any:
        """A draft of a node, a copy of a list, dict or numpy array, or a container of drafts; else the value itself."""
        cls = type(value)
        if is_node_class(cls):
            draft = object.__new__(cls)
            _store(draft, FLAT_FORM_NAME, _OpenDraft(cls, self._fill))
            self._originals[id(draft)] = (draft, value, flat_form(value))
            return draft
        if isinstance(value, np.ndarray) and value.flags.writeable:  # `draft.mean += 1` changes the array in place
            draft = value.copy()
        else:
            changes = {key: new for key, old in children_of(value) or () if (new := self.draft_of(old)) is not old}
            if not changes and cls is not list and not isinstance(value, dict):
                return value
            draft = with_changes(value, changes)
        self._originals[id(draft)] = (draft, value, None)
        return draft

    def _fill(self, draft: Any) -> None:
        if id(draft) in self._originals and id(draft) not in self._filled:
            self._filled.add(id(draft))
            _, _, form = self._originals[id(draft)]
            for field in info_of(draft).fields:
                old = field.value_in(form)
                draft.__dict__[field.name] = old if field.is_static else self.draft_of(old)

    def finish(self) -> None:
        """Turn every draft into a node; if one is invalid, none of them changes."""
        try:
            for draft, _, _ in list(self._originals.values()):  # root first
                self._result(draft)
            self.close(self._forms)
            for key in self._forms:
                check(self._originals[key][0])
        except BaseException:
            self.close({})
            raise

    def close(self, forms: Mapping[int, Any]) -> None:
        """Close each draft with its new flat form, or with its original's."""
        for key, (draft, _, form) in self._originals.items():
            if form is not None:
                draft.__dict__.clear()
                _store(draft, FLAT_FORM_NAME, forms.get(key, form))

    def _result(self, value: Any) -> Any:
        """The finished value for a value in a draft: the original if nothing changed."""
        key = id(value)
        if key not in self._originals:
            return value if isinstance(value, LEAVES) or is_node(value) else self._container(value, value)
        _, original, form = self._originals[key]
        if form is not None and key not in self._filled:
            return original
        result = self._results.get(key)
        if result is _BEING_FINISHED:
            name = type(value).__qualname__
            raise NodeInitError(
                f"A draft of {with_article(name)} was put inside itself, so the {name} would contain itself."
            )
        if result is None:
            self._results[key] = _BEING_FINISHED
            result = self._node(value, original, form) if form is not None else self._container(value, original)
            self._results[key] = result
        return result

    def _node(self, draft: Any, original: Any, form: Any) -> Any:
        info, pending, (old_children, statics) = info_of(draft), draft.__dict__, form
        _reject_wrong_names(info, pending)
        children = tuple(self._result(pending[field.name]) for field in info.children)
        values = tuple(pending[field.name] for field in info.statics)
        if not _all_same(values, statics.values):
            statics = info.table.intern(values)
        elif _all_same(children, old_children):
            return original
        self._forms[id(draft)] = (children, statics)
        return draft

    def _container(self, value: Any, original: Any) -> Any:
        """The finished list, tuple, dict, numpy array or the like, or `original` if nothing in it changed."""
        if isinstance(original, np.ndarray):
            forms = ((array.dtype, array.shape, array.tobytes()) for array in (value, original))
            return original if len({*forms}) == 1 else value
        results = {key: self._result(entry) for key, entry in children_of(value) or ()}
        old = dict(children_of(original) or ())
        if list(old) == list(results) and _all_same(results.values(), old.values()):
            return original
        return with_changes(value, results)


def _all_same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(map(operator.is_, left, right))


def _reject_wrong_names(info: NodeInfo, pending: Mapping[str, Any]) -> None:
    names, cls = list(info.by_name), info.cls
    unknown = [name for name in pending if name not in {*names, FLAT_FORM_NAME} and not is_cached_property(cls, name)]
    if unknown:
        raise TypeError(
            f"Can't assign to {with_close_matches(unknown, names)} in a draft of {with_article(cls.__qualname__)}. "
            f"The fields are {', '.join(names) or 'none'}.{earlier_class_hint(cls)}"
        )
