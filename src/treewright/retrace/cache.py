"""What JAX's persistent compilation cache did for a run, what it would do for the next, and why it missed.

The lowered text of what it kept is kept beside it, in the folder `treewright` of the cache, to be compared with what a
later run compiles under the same name.
"""

import contextlib
import dataclasses
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from treewright.retrace.record import LOWERED
from treewright.retrace.tally import Program, Run

_KEPT = ".json.z"  # what is kept in the cache
_OF_JAX = "-cache"
_CALLBACKS = "calls Python (jax.debug.print, pure_callback and the like), and this JAX keeps no such program"
_UNTOLD = "JAX did not write it, and does not say why: too few bytes, or another process of the job writes"


@dataclasses.dataclass(frozen=True, slots=True)
class Missed:
    """A program that was compiled again, though one of the same name and arguments was in the cache."""

    program: Program
    line: int  # the number of the first line of its lowered text that differs; 0 if the text is the same
    old: str  # that line in the earlier run
    new: str
    cause: str  # where such a difference comes from; empty if that can't be known from the text


@dataclasses.dataclass(frozen=True, slots=True)
class CacheReport:
    """What the cache did. Times are in seconds."""

    folder: str  # where it is; empty if there is none
    why_off: str  # why JAX does not use one; empty if it does
    read: list[Program]
    kept: list[Program]  # what was compiled and written to it
    left_out: dict[str, list[Program]]  # what was compiled and not written, by the reason
    saved: float  # by reading
    next_start: float  # what the next start saves by what is there now
    at_most: float  # what it would save if all were kept that can be
    least: float  # what compiling has to take for a program to be kept
    missed: list[Missed]


def cache_report(run: Run, folder: Path | None) -> CacheReport:
    """What the cache did in a run. `folder` is where the run left the texts of what it compiled."""
    compiled = [program for program in run.programs if program.compiled]
    settings = run.settings
    place = settings.get("jax_compilation_cache_dir") or ""
    least = float(settings.get("jax_persistent_cache_min_compile_time_secs") or 0.0)
    is_on = bool(place and settings.get("jax_enable_compilation_cache", True))
    read = [program for program in compiled if program.cache.get("outcome") == "read"]
    kept = [program for program in compiled if program.cache.get("outcome") == "kept"]
    store = Store(Path(place) if is_on else None)
    fresh = [program for program in compiled if program.cache.get("outcome") not in {"read", "kept"}]
    left_out: dict[str, list[Program]] = {}
    for program in fresh if is_on else ():
        left_out.setdefault(_why_left_out(program, least), []).append(program)
    saved = sum(store.seconds(program) for program in read)
    missed = [] if folder is None else list(store.compared(run, kept, folder))
    next_start = saved + sum(map(_compile_seconds, kept))
    at_most = next_start + sum(_compile_seconds(program) for program in fresh if not program.cache.get("callbacks"))
    why_off = "" if is_on else "no folder is set" if not place else "jax_enable_compilation_cache is off"
    return CacheReport(place, why_off, read, kept, left_out, saved, next_start, at_most, least, missed)


def _why_left_out(program: Program, least: float) -> str:
    if program.cache.get("callbacks"):
        return _CALLBACKS
    return f"compiled in less than {least:g} s" if _compile_seconds(program) < least else _UNTOLD


def _compile_seconds(program: Program) -> float:
    return sum(seconds for kind, _, seconds in program.spans if kind == "compile")


class Store:
    """The texts of earlier runs, in a folder of the cache. Where that is not a local folder, there are none."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache if cache is not None and cache.is_dir() else None
        self._folder = None if self._cache is None else self._cache / "treewright"

    def seconds(self, program: Program) -> float:
        """The seconds that reading a program saved; JAX itself remembers them in whole seconds."""
        known = self._known(str(program.cache.get("key")))
        if known is None:
            return max(0.0, float(program.cache.get("saved", 0.0)))
        return max(0.0, float(known["seconds"]) - _compile_seconds(program))

    def compared(self, run: Run, kept: Iterable[Program], folder: Path) -> Iterator[Missed]:
        """Keep the texts of a run, and compare them with what earlier runs left under the same names."""
        if self._folder is None:
            return
        asked = {str(program.cache.get("key")) for program in run.programs}
        names = {file.name.removesuffix(_KEPT) for file in self._folder.glob(f"*{_KEPT}")}
        for program in kept:
            key = str(program.cache.get("key"))
            left = folder / f"{key}{LOWERED}"
            if not left.exists():
                continue
            text = zlib.decompress(left.read_bytes()).decode()
            about = {"seconds": _compile_seconds(program), "jax": run.jax, "flags": run.flags, "text": text}
            others = [name for name in names - asked if name.rpartition("-")[0] == key.rpartition("-")[0]]
            earlier = [known for known in map(self._known, sorted(others)) if known and _types(known) == _types(about)]
            if earlier:
                closest = min(earlier, key=lambda known: _distance(known["text"], text))
                yield _missed(program, closest, about)
            self._keep(key, about)
        self._forget_what_jax_forgot()

    def _known(self, key: str) -> dict[str, Any] | None:
        if self._folder is None:
            return None
        try:
            known: dict[str, Any] = json.loads(zlib.decompress((self._folder / f"{key}{_KEPT}").read_bytes()))
        except (OSError, ValueError, zlib.error):
            return None
        return known

    def _keep(self, key: str, about: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a cache that may only be read
            assert self._folder is not None
            self._folder.mkdir(exist_ok=True)
            whole = self._folder / f"{key}{_KEPT}"
            part = whole.with_suffix(".part")
            part.write_bytes(zlib.compress(json.dumps(about).encode()))
            part.replace(whole)

    def _forget_what_jax_forgot(self) -> None:
        assert self._cache is not None
        assert self._folder is not None
        there = {file.name.removesuffix(_OF_JAX) for file in self._cache.glob(f"*{_OF_JAX}")}
        with contextlib.suppress(OSError):
            for file in self._folder.glob(f"*{_KEPT}") if there else ():
                if file.name.removesuffix(_KEPT) not in there:
                    file.unlink()


# Where two texts of one program differ

_TENSOR = re.compile(r"tensor<[^>]*>")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{5,}|\d{12,}")
_IN_A_NAME = re.compile(r'@[\w.$]+|"[^"\n]*"')
_DIGITS = re.compile(r"\d+")
_VARIABLE = re.compile(r"%(?!arg)\w+(#\d+)?")
_WORD = re.compile(r"[\w.+-]+")


def _types(about: dict[str, Any]) -> list[str]:
    """The types of the arguments and results of a program."""
    lines = (line for line in about["text"].splitlines() if "@main(" in line)
    return _TENSOR.findall(next(lines, ""))


def _distance(old: str, new: str) -> int:
    a, b = old.splitlines(), new.splitlines()
    return abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))


def _missed(program: Program, old: dict[str, Any], new: dict[str, Any]) -> Missed:
    a, b = old["text"].splitlines(), new["text"].splitlines()
    for number, (left, right) in enumerate(zip(a, b, strict=False), 1):
        if left != right:
            return Missed(program, number, left.strip(), right.strip(), cause_of(a, b, number - 1))
    if len(a) != len(b):
        longer = a if len(a) > len(b) else b
        end = min(len(a), len(b))
        left, right = (longer[end].strip() if lines is longer else "" for lines in (a, b))
        return Missed(program, end + 1, left, right, "")
    for name in ("jax", "flags"):
        if old[name] != new[name]:
            word = "JAX" if name == "jax" else "XLA_FLAGS"
            return Missed(program, 0, old[name], new[name], f"{word}: it is a part of JAX's key")
    return Missed(program, 0, "", "", "the text is the same: its compile options or devices differ")


def cause_of(old: list[str], new: list[str], index: int) -> str:
    """Where the difference of two lowered texts comes from that begins in this line; empty if that can't be known."""
    left, right = old[index], new[index]
    for masked, cause in _CAUSES:
        if masked(left) == masked(right):
            return cause
    if Counter(_VARIABLE.sub("%", line) for line in old) == Counter(_VARIABLE.sub("%", line) for line in new):
        return _ORDER
    if "constant" in left and "constant" in right:
        return "a constant: edited, or worked out anew while tracing, as a time, a random number or a process id is"
    return ""


def _without_digits_in_names(line: str) -> str:
    return _IN_A_NAME.sub(lambda match: _DIGITS.sub("#", match[0]), line)


def _in_any_order(line: str) -> object:
    return Counter(_WORD.findall(line)) if "constant" in line else line


_ORDER = "an order: the same in another order, as that of a set is in each process (PYTHONHASHSEED); sort it"
_CAUSES: tuple[tuple[Callable[[str], object], str], ...] = (
    (
        lambda line: _ADDRESS.sub("0x", line),
        "an address, which is another in each process: an object's without a name of its own, or a Python callback's",
    ),
    (_without_digits_in_names, "a number in a name, as of a counter or a process: name the function without it"),
    (_in_any_order, _ORDER),
)
