"""What has been traced and compiled: the last signatures of each function, and counts for each definition."""

import collections
import dataclasses
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

from treewright._trees.diff import Difference
from treewright._values import reach
from treewright._values.reach import class_of, innermost
from treewright._values.snapshot import Remembered, remembered
from treewright._values.why import Cause, why
from treewright.retrace.call import Signature, call_differences, is_placement

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_SIGNATURES = 32  # of one function
_COMPARED = 8  # of the signatures, newest first, with which a new one is compared


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A signature that has been traced, and whether a program has been compiled for it."""

    signature: Signature
    number: int
    compiled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """How a call differs from the closest earlier one of its function.

    `entry` is that one, None if there is none. Where there is none, but an earlier function of the same definition has
    been traced, that is the one difference.
    """

    differences: tuple[Difference, ...] = ()
    entry: Entry | None = None

    @property
    def shares_trace(self) -> bool:
        """Whether `jit` takes the trace of the earlier call for this one as well."""
        return self.entry is not None and all(map(is_placement, self.differences))

    @property
    def of_trace(self) -> tuple[Difference, ...]:
        """The differences for which `jit` traces again."""
        return tuple(difference for difference in self.differences if not is_placement(difference))


class Definition:
    """All functions that one `def` or `lambda` has made: `jit` keeps programs for each of them apart."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.traces: int = 0
        self.compiles: int = 0
        self.last: Remembered | None = None  # the function that was traced last


class History:
    """The signatures with which one function has been traced, the newest last."""

    def __init__(self, function: Any, definition: Definition) -> None:
        self.definition: Definition = definition
        self.entries: collections.deque[Entry] = collections.deque(maxlen=_SIGNATURES)
        self.traces: int = 0
        self._function = weakref.ref(function)

    def is_of(self, function: Any) -> bool:
        """Whether this is the history of the very function; a method may have been looked up again."""
        known = self._function()
        return known is function or (isinstance(function, types.MethodType) and known == function)

    @property
    def newest(self) -> Signature | None:
        """The last signature, to share with the next one what has not changed."""
        return self.entries[-1].signature if self.entries else None

    def compare(self, signature: Signature) -> Finding:
        """How a call differs from the earlier one with the fewest differences; nothing is recorded."""
        with self.definition.lock:
            recent = list(self.entries)[-_COMPARED:]
        findings = [Finding(tuple(call_differences(entry.signature, signature)), entry) for entry in reversed(recent)]
        if findings:
            return min(findings, key=lambda finding: len(finding.differences))
        last, this = self.definition.last, described(self._function())
        if last is None:
            return Finding()
        anew = Cause("function made anew", "the same function, decorated and jitted anew")
        reason = anew if last == this else why(last, this)
        return Finding((Difference(("the function itself",), last, this, "function", reason),))

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
            self.entries.append(entry)
        return entry

    def succeeded(self) -> None:
        """Remember the function as the last of its definition that was traced."""
        with self.definition.lock:
            self.definition.last = described(self._function())

    def forget(self, entry: Entry | None) -> None:
        """Take back a trace that has failed, if it was remembered and still is."""
        with self.definition.lock:
            kept = [other for other in self.entries if other is not entry]
            self.entries.clear()
            self.entries.extend(kept)


class Histories:
    """The histories of functions and definitions, each of which dies with what it is of."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._definitions: weakref.WeakKeyDictionary[Any, dict[str, Definition]] = weakref.WeakKeyDictionary()
        self._functions: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()

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
            if function not in self._functions:
                self._functions[function] = self.new(function)
            return self._functions[function]


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


def described(function: Any) -> Remembered:
    """What to keep of a function that is traced, to say later how another one of its definition differs."""
    inner = innermost(function)
    if getattr(function, "__self__", None) is not None:
        return Remembered(function)
    if isinstance(inner, types.FunctionType):
        held = {name: remembered(value) for name, value in reach.held_by(inner).items()}
        return Remembered(inner, code=reach.code_of(inner), held=held)
    return Remembered(inner)
