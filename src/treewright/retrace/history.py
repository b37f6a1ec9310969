"""What has been traced and compiled: the last signatures of each function, and counts for each definition."""

import collections
import dataclasses
import functools
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

from treewright._core import functions as reach
from treewright._core.functions import class_of, innermost
from treewright._trees.diff import Difference
from treewright._trees.snapshot import Remembered, remembered, remembered_function
from treewright._trees.why import Cause, cause_of_partials, why, why_decorated
from treewright.retrace.call import Signature, call_differences, distance, is_placement
from treewright.retrace.jax_private import inside_of_boundary

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_SIGNATURES = 32  # of one function


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A signature that has been traced, and whether a program has been compiled for it."""

    signature: Signature
    number: int  # 0 if the trace was made before the block that watches
    compiled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """How a call differs from the closest earlier one of its function.

    Where its function has none, that is the last one of another function of the same definition, and that it is another
    function is the first difference.
    """

    differences: tuple[Difference, ...] = ()
    entry: Entry | None = None  # the earlier one; None if there is none
    forgotten: int = 0  # how many of the function's earlier traces are not remembered any more

    @property
    def shares_trace(self) -> bool:
        """Whether `jit` takes the trace of the earlier call for this one as well."""
        return self.entry is not None and all(map(is_placement, self.differences))

    @property
    def of_trace(self) -> tuple[Difference, ...]:
        """The differences for which `jit` traces again."""
        return tuple(difference for difference in self.differences if not is_placement(difference))


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What is kept of a function, and of what wrappers libraries have put around it, the outermost first."""

    function: Any
    decorators: tuple[Remembered, ...]


class Definition:
    """All functions that one `def` or `lambda` has made: `jit` keeps programs for each of them apart."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.traces: int = 0
        self.compiles: int = 0
        self.last: tuple[Described, Entry] | None = None  # the function that was traced last, and how it was called


class History:
    """The signatures with which one function has been traced, the newest last."""

    def __init__(self, function: Any, definition: Definition) -> None:
        self.definition: Definition = definition
        self.entries: collections.deque[Entry] = collections.deque(maxlen=_SIGNATURES)
        self.traces: int = 0
        self.forgotten: int = 0  # signatures
        self._function = weakref.ref(function)

    def is_of(self, function: Any) -> bool:
        """Whether this is the history of the very function; a method may have been looked up again."""
        known = self._function()
        return known is function or (isinstance(function, types.MethodType) and known == function)

    @property
    def newest(self) -> Signature | None:
        """The last signature, to share with the next one what has not changed."""
        return self.entries[-1].signature if self.entries else None

    def compare(self, signature: Signature, *, shares_trace: bool = False) -> Finding:
        """How a call differs from the closest earlier one; if asked, of those whose trace it shares alone."""
        with self.definition.lock:
            entries, last = list(reversed(self.entries)), self.definition.last
        distances = [distance(entry.signature, signature) for entry in entries]
        comparable = [index for index, (of_trace, _) in enumerate(distances) if not (of_trace and shares_trace)]
        if comparable:
            closest = entries[min(comparable, key=distances.__getitem__)]
            return Finding(tuple(call_differences(closest.signature, signature)), closest, self.forgotten)
        if entries or shares_trace or last is None:
            return Finding()
        (before, entry), this = last, described(self._function())
        reason = why_another(before, this)
        difference = Difference(("the function itself",), before.function, this.function, "function", reason)
        return Finding((difference, *call_differences(entry.signature, signature)), entry)

    def begin(self) -> tuple[int, int]:
        """Count a trace: its number among those of the definition, and among those of this function."""
        with self.definition.lock:
            self.definition.traces += 1
            self.traces += 1
            return self.definition.traces, self.traces

    def record(self, signature: Signature, number: int) -> Entry:
        """Remember a trace, so that later ones are compared with it."""
        entry = Entry(signature, number)
        with self.definition.lock:
            self.forgotten += len(self.entries) == self.entries.maxlen
            self.entries.append(entry)
        return entry

    def succeeded(self, entry: Entry) -> None:
        """Remember the function as the last of its definition that was traced, and how it was called."""
        with self.definition.lock:
            self.definition.last = described(self._function()), entry

    def failed(self, entry: Entry | None) -> None:
        """Take back a trace that has failed."""
        with self.definition.lock:
            self.definition.traces -= 1
            self.traces -= 1
            kept = [other for other in self.entries if other is not entry]
            self.entries.clear()
            self.entries.extend(kept)


class Histories:
    """The histories of functions and definitions, each of which dies with what it is of."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._definitions: weakref.WeakKeyDictionary[Any, dict[str, Definition]] = weakref.WeakKeyDictionary()
        self._functions: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()
        self._unhashable: dict[int, History] = {}  # by the ids of functions that live: callable trees of equinox

    def new(self, function: Any) -> History:
        """A history for a function that nobody else asks for."""
        with self._lock:
            code, file = definition_of(function)
            of_files = self._definitions.setdefault(code, {})
            if file not in of_files:
                of_files[file] = Definition(name_of(function))
            return History(function, of_files[file])

    def of(self, function: Any) -> History:
        """The history of a function."""
        with self._lock:
            try:
                if function not in self._functions:
                    self._functions[function] = self.new(function)
                return self._functions[function]
            except TypeError:
                if id(function) not in self._unhashable:
                    self._unhashable[id(function)] = self.new(function)
                    weakref.finalize(function, self._unhashable.pop, id(function)).atexit = False
                return self._unhashable[id(function)]


def definition_of(function: Any) -> tuple[Any, str]:
    """What all functions of one `def` or `lambda` share: their code and its file; or the class of a callable object.

    The file, because code of the same text and line is equal in all files.
    """
    code = reach.innermost_code(function)
    return (class_of(innermost(function)), "") if code is None else (code, reach.file_of(code))


def name_of(function: Any) -> str:
    """The name by which a report calls a function."""
    inner = innermost(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def described(function: Any) -> Described:
    """What to keep of a function that is traced, to say later how another one of its definition differs."""
    if isinstance(function, functools.partial):
        named = {name: remembered(value) for name, value in function.keywords.items()}
        inner = described(function.func)
        return Described(functools.partial(inner.function, *map(remembered, function.args), **named), inner.decorators)
    decorators: list[Remembered] = []
    while hasattr(function, "__wrapped__") and not (_is_of_the_user(function) or hasattr(function, "__self__")):
        decorators.append(_remembered(inside_of_boundary(function)))
        function = function.__wrapped__
    return Described(_remembered(function), tuple(decorators))


def _remembered(function: Any) -> Remembered:
    return remembered_function(function) if isinstance(function, types.FunctionType) else Remembered(function)


def _is_of_the_user(function: Any) -> bool:
    """Whether a wrapper is a function of the user's: that of a library, as `vmap` makes it, says nothing."""
    return isinstance(function, types.FunctionType) and not reach.library_made(function)


def why_another(last: Described, this: Described) -> str:
    """How a function differs from an earlier one of its definition, for which `jit` keeps programs apart."""
    a, b = last.function, this.function
    if a == b:
        anew = Cause("function made anew", "the same function, decorated and jitted anew")
        return why_decorated(last.decorators, this.decorators) or anew
    if class_of(a) is class_of(b) is functools.partial:
        return cause_of_partials(a, b) or why(a.func, b.func)
    return why(a, b)
