"""What the compilations of a run cost, and which of them could be saved: the record of a run, summed up.

Nothing here imports jax: the command stands beside the program, and costs it nothing.
"""

import dataclasses
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

OPERATIONS = "operations outside of jit"
_TOGETHER = "jit the function around the line: its operations become one program"
_GROWING = "keep the shapes the same, use numpy there, or jit the function around the line"
_NAMED = 4
_MANY = 4  # shapes of one operation: as many may be those of the layers of a model
_INDEX = re.compile(r"\[[^\]]*\]")


@dataclasses.dataclass(slots=True)
class Program:
    """One program of the run: a trace, what was lowered and compiled for it, and why it was needed."""

    function: str  # its name; of an operation outside of jit, the operation's
    where: str  # where that is defined, as `train.py:12`; empty if nobody knows
    place: str  # the line that needed the program, as `train.py:69 in main`
    operation: bool  # whether it is an operation outside of jit
    operands: str = ""  # of an operation, what it was compiled for
    # `(kind, began, seconds)` of each event, in seconds after the start of the run
    spans: list[tuple[str, float, float]] = dataclasses.field(default_factory=list[tuple[str, float, float]])
    tracing: float = 0.0  # seconds
    compiling: float = 0.0  # seconds of lowering and compiling, or of reading from the persistent cache
    traced: bool = False
    compiled: bool = False
    retrace: dict[str, Any] | None = None  # the report, if something like it had been traced or compiled before
    cache: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # what the persistent cache did about it
    avoidable: bool = False

    @property
    def seconds(self) -> float:
        """All that it took."""
        return self.tracing + self.compiling

    @property
    def row(self) -> tuple[str, str]:
        """The function and the place by which the table calls it."""
        return (OPERATIONS, "") if self.operation else (self.function, self.where)


@dataclasses.dataclass(frozen=True, slots=True)
class TableRow:
    """One function in the table."""

    function: str
    where: str
    traces: int
    compilations: int
    tracing: float
    compiling: float

    @property
    def seconds(self) -> float:
        """All that they took."""
        return self.tracing + self.compiling


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Programs of one function that were needed for one reason."""

    programs: tuple[Program, ...]
    reasons: tuple[Mapping[str, str], ...]
    avoidable: bool

    @property
    def first(self) -> Program:
        """The first of them."""
        return self.programs[0]

    @property
    def last(self) -> Program:
        """The last of them."""
        return self.programs[-1]

    @property
    def last_reasons(self) -> tuple[Mapping[str, str], ...]:
        """The reasons of the last one, where they read otherwise than those of the first."""
        reasons = () if self.last.retrace is None else tuple(self.last.retrace["reasons"])
        return () if [_change(one) for one in reasons] == [_change(one) for one in self.reasons] else reasons

    @property
    def seconds(self) -> float:
        """What they took in all."""
        return sum(program.seconds for program in self.programs)


@dataclasses.dataclass(slots=True)
class Run:
    """A run of a program, as far as JAX compiled for it."""

    command: list[str]  # the program and its arguments
    status: int  # what its process returned; negative for the signal that ended it
    seconds: float
    programs: list[Program]
    notes: list[str]  # what could not be seen
    settings: dict[str, Any]  # those of the persistent cache, as they were last
    jax: str = ""  # the version; empty if the program traced nothing
    ours: float = 0.0  # CPU seconds that went into watching
    flags: str = ""  # `XLA_FLAGS`

    def rows(self) -> list[TableRow]:
        """The table by function: the costliest first."""
        of_rows: dict[tuple[str, str], list[Program]] = {}
        for program in self.programs:
            of_rows.setdefault(program.row, []).append(program)
        columns = [operator.attrgetter(name) for name in ("traced", "compiled", "tracing", "compiling")]
        rows = [TableRow(*row, *(sum(map(of, programs)) for of in columns)) for row, programs in of_rows.items()]
        return sorted(rows, key=lambda row: -row.seconds)

    def groups(self) -> list[Group]:
        """What was traced or compiled again, by function and reason: the avoidable first, and the costliest."""
        by_reason: dict[Any, list[Program]] = {}
        for program in self.programs:
            if program.retrace is not None:
                by_reason.setdefault(_reason_key(program), []).append(program)
        groups = [
            Group(tuple(programs), tuple((programs[0].retrace or {})["reasons"]), programs[0].avoidable)
            for programs in by_reason.values()
        ]
        return sorted(groups, key=lambda group: (not group.avoidable, -group.seconds))

    def operations(self) -> list[Group]:
        """The lines for which more than one operation outside of jit was compiled, the costliest first."""
        groups = [Group(tuple(line), _reasons_of_line(line), avoidable=True) for line in _operations(self.programs)]
        return sorted(groups, key=lambda group: -group.seconds)

    @property
    def retraces(self) -> int:
        """How often something was traced or compiled again, but for what a library makes anew each time."""
        reports = (program.retrace for program in self.programs if program.retrace is not None)
        return sum(not report.get("inevitable") for report in reports)

    @property
    def compiling(self) -> float:
        """Seconds that tracing and compiling took."""
        return sum(program.seconds for program in self.programs)

    @property
    def saveable(self) -> float:
        """Seconds that what could be avoided took."""
        return sum(program.seconds for program in self.programs if program.avoidable)


def summed_up(
    lines: Iterable[Mapping[str, Any]], *, command: list[str], status: int, began: float, ended: float
) -> Run:
    """A run from its record; `began` and `ended` are times of the clock that the record was written by."""
    run = Run(command, status, ended - began, [], [], {})
    open_programs: dict[tuple[str, str], Program] = {}
    for line in lines:
        match line["kind"]:
            case "jax":
                run.jax, run.flags = line["jax"], line["XLA_FLAGS"]
            case "note":
                run.notes += [line["text"]] * (line["text"] not in run.notes)
            case "settings":
                run.settings = line["settings"]
            case _:
                _add_event(run, open_programs, line, began)
        run.ours += line.get("ours", 0.0)
    for programs in _operations(run.programs):  # the line needs one program, which takes as long as one of these
        costliest = max(programs, key=lambda program: program.seconds)
        for program in programs:
            program.avoidable = program is not costliest
    return run


def _add_event(run: Run, open_programs: dict[tuple[str, str], Program], line: Mapping[str, Any], began: float) -> None:
    key = (line["thread"], line["function"])
    program = open_programs.get(key)
    if program is None or line["kind"] == "trace" or program.compiled:
        where = f"{_base(line['file'])}:{line['line']}" if line["file"] and line["line"] else ""
        program = Program(line["function"], where, line["place"], line["operation"])
        open_programs[key] = program
        run.programs.append(program)
    program.operands = program.operands or line.get("operands", "")
    program.spans.append((line["kind"], line["at"] - line["seconds"] - began, line["seconds"]))
    if line["kind"] == "trace":
        program.tracing += line["self"]
        program.traced = True
    else:
        program.compiling += line["self"]
        program.compiled = program.compiled or line["kind"] == "compile"
    program.cache = line.get("cache") or program.cache
    if "retrace" in line:
        program.retrace = line["retrace"]
        program.avoidable = all(reason["cure"] for reason in line["retrace"]["reasons"])


def _operations(programs: Iterable[Program]) -> list[list[Program]]:
    """The operations that were compiled outside of jit, by the line, where one line needed several."""
    of_lines: dict[str, list[Program]] = {}
    for program in programs:
        if program.operation and program.compiled and program.place:
            of_lines.setdefault(program.place, []).append(program)
    return [line for line in of_lines.values() if len(line) > 1]


def _reasons_of_line(line: list[Program]) -> tuple[dict[str, str], ...]:
    """Which operations, and which of them was compiled for the most shapes, if that is what made them many."""
    counts = Counter(program.function for program in line).most_common()
    names = ", ".join(f"{name} {count} times" if count > 1 else name for name, count in counts[:_NAMED])
    which = {"path": "", "kind": "operation", "change": names + (", ..." if counts[_NAMED:] else ""), "reason": ""}
    most = [program.operands for program in line if program.function == counts[0][0]]
    if len(set(most)) < _MANY or len(most) < len(line) / 2:
        return ({**which, "cure": _TOGETHER},)
    shapes = f"of {most[0]} at first, and of {most[-1]} at last"
    return (which | {"cure": ""}, {**which, "path": counts[0][0], "change": shapes, "cure": _GROWING})


def _reason_key(program: Program) -> Any:
    retrace = program.retrace or {}
    reasons = ((_INDEX.sub("[*]", one["path"]), one["kind"], one["cure"]) for one in retrace["reasons"])
    return (*program.row, retrace["event"], frozenset(reasons))


def _change(reason: Mapping[str, str]) -> tuple[str, str]:
    return reason["path"], reason["change"]


def _base(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2]
