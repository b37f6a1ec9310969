"""`edit`: many assignments in a row, on a draft that becomes a node when the block ends."""

import contextlib
import copy
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Never, TypeVar, cast, overload

from treewright._core.functions import class_of, is_cached_property, of_earlier_class
from treewright._core.instance import LEAVES, PAIR, Pair, Unfinished, check, finished_pair, is_node, with_close_matches
from treewright._core.jax_private import Key
from treewright._core.module import Module
from treewright._core.spec import NodeSpec, spec_of
from treewright._trees.level import all_entries, level_of, with_changes
from treewright.errors import NodeInitError

M = TypeVar("M", bound=Module)

_new: Any = object.__new__
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
    """What `edit` gives: for a `with` statement, and no draft yet, so it takes no assignment."""

    __slots__ = ("_drafts", "_node")

    _drafts: "_Drafts"
    _node: Any

    def __init__(self, node: Any) -> None:
        _store(self, "_node", node)

    def __enter__(self) -> Any:
        drafts = _Drafts()
        _store(self, "_drafts", drafts)
        draft = drafts.draft_of(self._node)
        drafts.touch(draft)  # so that it is the first to be finished, and to refuse what is wrong
        return draft

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self._drafts.finish()
        else:
            self._drafts.give_up()

    def __getattr__(self, name: str) -> Never:
        self.__setattr__(name, None)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(
            f"edit() of a {class_of(self._node).__qualname__} is not a draft yet, and has no {name}. The draft is in "
            f"the block: with edit(node) as draft: draft.{name} = ...",
            name=None,
            obj=None,
        )


class _OpenDraft(Unfinished):
    """What `_node` holds while a draft takes assignments."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"a draft of a {self.cls.__qualname__}: it can be used in full when its edit() block ends"


class _Untouched(_OpenDraft):
    """What `_node` holds in a draft before the first of its fields is read or assigned: then the draft gets them all.

    All untouched drafts of a class share it, and each costs a fifth of one with its fields (benchmarks/trees.py: edit).
    """

    __slots__ = ("touch",)

    def __init__(self, cls: type[Any], touch: Callable[[Any], None]) -> None:
        super().__init__(cls, "nobody has touched it")
        self.touch = touch

    def takes_values(self, node: Any, /) -> bool:
        self.touch(node)
        return True


class _Copied(NamedTuple):
    """A draft with its original and that one's pair; or the copy of a container with its original and None."""

    draft: Any
    original: Any
    pair: Pair | None


class _Drafts:
    """The drafts of one block: nodes that are open, and copies of the containers on the way to them."""

    def __init__(self) -> None:
        # By the id of the draft or copy, which its entry keeps alive.
        self._untouched: dict[int, _Copied] = {}
        self._by_id: dict[int, _Copied] = {}
        self._results: dict[int, Any] = {}
        self._pairs: dict[int, Pair] = {}  # what each draft will hold, inner drafts first
        self._marks: dict[type[Any], _Untouched] = {}

    def draft_of(self, value: Any) -> Any:
        """A draft of a node, a copy of a list or dict, a container with drafts inside; any other value itself."""
        cls = class_of(value)
        if hasattr(cls, "__node_spec__"):
            node = _new(cls)
            self._untouched[id(node)] = _Copied(node, value, finished_pair(value))
            if cls not in self._marks:
                self._marks[cls] = _Untouched(cls, self.touch)
            _store(node, PAIR, self._marks[cls])
            return node
        if isinstance(value, LEAVES):
            return value
        if cls in {list, tuple}:
            draft = cast("Any", cls)(map(self.draft_of, value))
            if cls is tuple and _all_same(draft, value):
                return value
        else:
            changes = {key: new for key, old in _parts(value) if (new := self.draft_of(old)) is not old}
            if not changes and not isinstance(value, dict):
                return value
            draft = with_changes(value, changes) if changes else copy.copy(cast("Any", value))
        self._by_id[id(draft)] = _Copied(draft, value, None)
        return draft

    def touch(self, draft: Any) -> None:
        copied = self._by_id[id(draft)] = self._untouched.pop(id(draft))
        _store(draft, PAIR, _OpenDraft(class_of(draft)))
        for field in spec_of(draft).fields:
            old = field.value_in(cast("Pair", copied.pair))
            draft.__dict__[field.name] = old if field.is_static else self.draft_of(old)

    def finish(self) -> None:
        """Make every draft a node: all of them, or none where something is wrong with one."""
        try:
            for copied in list(self._by_id.values()):  # the root first
                self._result(copied.draft)
            self._close()
            for key in self._pairs:
                if self._results[key] is self._by_id[key].draft:
                    check(self._results[key])
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Make every draft what its original is."""
        self._pairs.clear()
        self._close()

    def _close(self) -> None:
        for key, (draft, _, pair) in self._by_id.items():
            if pair is not None:
                draft.__dict__.clear()
                _store(draft, PAIR, self._pairs.get(key, pair))
        for draft, _, pair in self._untouched.values():
            _store(draft, PAIR, pair)

    def _result(self, value: Any) -> Any:
        """What stands for a value of a draft in the finished tree: the original, where nothing has changed."""
        key = id(value)
        if key in self._untouched:
            return self._untouched[key].original
        copied = self._by_id.get(key)
        if copied is None:
            return value if isinstance(value, LEAVES) or is_node(value) else self._container(value, value)
        result = self._results.get(key)
        if result is _BEING_FINISHED:
            name = class_of(value).__qualname__
            raise NodeInitError(
                f"A draft of a {name} was put inside itself, so the {name} would contain itself without end."
            )
        if result is None:
            self._results[key] = _BEING_FINISHED
            is_container = copied.pair is None
            result = self._container(value, copied.original) if is_container else self._node(copied)
            self._results[key] = result
        return result

    def _node(self, copied: _Copied) -> Any:
        draft, original, pair = copied.draft, copied.original, cast("Pair", copied.pair)
        spec = spec_of(draft)
        waiting: dict[str, Any] = draft.__dict__
        _refuse_wrong_names(spec, waiting)
        children = tuple(self._result(waiting[field.name]) for field in spec.children)
        values = tuple(waiting[field.name] for field in spec.statics)
        statics = pair[1] if _all_same(values, pair[1].values) else spec.table.find(values)
        unchanged = statics is pair[1] and _all_same(children, pair[0])
        self._pairs[id(draft)] = pair if unchanged else (children, statics)
        return original if unchanged else draft

    def _container(self, value: Any, original: Any) -> Any:
        """A list, tuple, dict or the like, whose entries may be drafts; `original` if it has the same entries."""
        cls = class_of(value)
        if cls in {list, tuple}:
            items = cast("Any", cls)(map(self._result, value))
            return next((old for old in (original, value) if len(old) == len(items) and _all_same(items, old)), items)
        entries = _parts(value)
        results = {key: self._result(entry) for key, entry in entries}
        old = dict(_parts(original))
        if list(old) == list(results) and _all_same(results.values(), old.values()):
            return original
        changes = {key: results[key] for key, entry in entries if results[key] is not entry}
        return with_changes(value, changes) if changes else value


_BEING_FINISHED: Any = object()


def _parts(value: Any) -> tuple[tuple[Key, Any], ...]:
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
            f"A draft of a {cls.__qualname__} was assigned to {', '.join(with_close_matches(unknown, names))}, which "
            f"is not a field. Its fields: {', '.join(names) or 'none'}.{of_earlier_class(cls)}"
        )
