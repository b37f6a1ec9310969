"""`python -m treewright retraces PROGRAM`: run a program in this process, and report JAX's traces and compilations.

This module does not import jax, because programs may set environment variables before they import it.
"""

import argparse
import atexit
import collections
import dataclasses
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treewright._reports import counted, first_lines, first_names, table

if TYPE_CHECKING:
    from treewright.retrace.jax_private import Event
    from treewright.retrace.report import RetraceReport

_TOO_MANY = 3  # the exit status
_OUTSIDE = "operations outside jit"
_MAX_ROWS, _MAX_REPORTS, _MAX_LINES = 15, 20, 5  # printed functions, retraces, and lines outside jit


def main(arguments: list[str]) -> int:
    """Run the program and return its exit status; the report is printed at the end of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m treewright retraces",
        usage="python -m treewright retraces [options] [-m] PROGRAM ARGS ...",
        description="Run a script, or a module with -m, and report on standard error what JAX traced and compiled in "
        "it, how long that took, and why functions were retraced. The exit status is the program's.",
        allow_abbrev=False,
    )
    limit = "exit with status 3 if there are more retraces and recompiles, and the program succeeds"
    parser.add_argument("--max-retraces", type=_limit, metavar="N", help=limit)
    parser.add_argument("-m", dest="is_module", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    program: list[str] = options.program
    if not program:
        parser.error("no program to run")
    if not (options.is_module or Path(program[0]).exists()):
        parser.error(f"file {program[0]!r} not found; to run a package or an installed module, use -m {program[0]}")

    recorder = ProgramRecorder(["-m", *program] if options.is_module else program)
    atexit.register(recorder.finish, os.getpid())  # registered first, so run last
    try:
        _run(program, is_module=options.is_module)
    except SystemExit as end:
        if end.code not in {None, 0}:
            raise
    except BaseException as error:
        _print_without_runners(error)
        raise
    retraces = recorder.count()
    if options.max_retraces is None or retraces <= options.max_retraces:
        return 0
    sys.stderr.write(f"{counted(retraces, 'retrace')}, but --max-retraces allows {options.max_retraces}\n")
    return _TOO_MANY


def _limit(text: str) -> int:
    """A number of retraces."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of retraces, such as 0")
    return int(text)


# The program


def _run(program: list[str], *, is_module: bool) -> None:
    """Run a program as `python` does: with `sys.argv`, `sys.path` and `__main__` set for it."""
    sys.argv[:] = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    file = str(Path(program[0]).absolute())
    if pkgutil.get_importer(file) is not None:  # a folder or zip file with a __main__.py
        sys.path[0] = file
        runpy.run_path(program[0], run_name="__main__")
        return
    sys.path[0] = str(Path(file).parent)
    module = types.ModuleType("__main__")
    module.__file__ = file
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    sys.modules["__main__"] = module  # not restored: threads and pickles of the program use it
    exec(code, vars(module))  # noqa: S102  the user's program


def _print_without_runners(error: BaseException) -> None:
    """Let Python print this error, if it ends the process, from the program's first frame on."""
    frames, hook, runners = error.__traceback__, sys.excepthook, {__name__, "runpy", "importlib._bootstrap"}
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in runners:
        frames = frames.tb_next

    def print_error(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> None:
        trace = frames if raised is error else trace  # the caller of `main` may catch the error, and raise another
        hook(kind, raised.with_traceback(trace), trace)

    sys.excepthook = print_error


def _after_import_of_jax(begin: Callable[[], object]) -> None:
    """Call a function as soon as jax has been imported, by any importer and any finder."""
    if "jax" in sys.modules:
        begin()
        return

    def find_spec(name: str, *place: Any) -> importlib.machinery.ModuleSpec | None:
        if name != "jax":
            return None
        specs = (other.find_spec(name, *place) for other in sys.meta_path if other is not finder)
        spec = next((each for each in specs if each is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                if finder in sys.meta_path:  # a program may search for jax long before it imports it
                    sys.meta_path.remove(finder)
                    begin()

            loader.exec_module = exec_module
        return spec

    finder: Any = types.SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)


# The record


@dataclasses.dataclass(slots=True)
class _Row:
    """What JAX did for one function, or for one of the user's lines outside jit."""

    traces: int = 0
    tracing: float = 0.0
    compiling: float = 0.0
    programs: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter[str])
    of_library: dict[str, None] = dataclasses.field(default_factory=dict[str, None])  # the lines that it reached

    @property
    def seconds(self) -> float:
        return self.tracing + self.compiling

    def add(self, kind: str, function: str, seconds: float) -> None:
        if kind == "trace":
            self.traces += 1
            self.tracing += seconds
        else:
            self.compiling += seconds
            self.programs[function] += kind == "compile"


class ProgramRecorder:
    """Records JAX's traces and compilations, from the import of jax on."""

    def __init__(self, program: list[str]) -> None:
        self._program = program
        self._began = time.monotonic()
        self._reports: list[RetraceReport] = []
        self._functions: dict[str, _Row] = collections.defaultdict(_Row)
        self._lines: dict[str, _Row] = collections.defaultdict(_Row)  # outside jit
        # The thread, begin and own seconds of events that a later one may contain.
        self._last: collections.deque[tuple[int, float, float]] = collections.deque(maxlen=64)
        self._flush: Callable[[], object] | None = None  # set once jax is imported
        _after_import_of_jax(self._begin)

    def _begin(self) -> None:
        from treewright.retrace.jax_private import OBSERVER
        from treewright.retrace.watch import RetraceTracker

        tracker = RetraceTracker(on_report=self._reports.append)
        self._flush = tracker.flush
        OBSERVER.add(self, self._on_event)
        OBSERVER.add(tracker, tracker.on_event)

    def _on_event(self, event: "Event") -> None:
        function, definition = event.definition
        if definition is None:
            function = function.removeprefix("jit(").removeprefix("jit_").removesuffix(")")
        place = f" ({Path(definition[1]).name}:{definition[0].co_firstlineno})" if isinstance(definition, tuple) else ""
        rows = [self._functions[_OUTSIDE if event.is_operation else f"{function}{place}"]]
        if event.is_operation:
            line, _, of_library = event.caller.removesuffix(")").partition(" (at ")
            rows.append(self._lines[line])
            rows[-1].of_library[of_library] = None
        began = time.monotonic() - event.seconds
        inner = [seconds for thread, start, seconds in self._last if thread == event.thread and start >= began]
        seconds = max(event.seconds - sum(inner), 0.0)
        self._last.append((event.thread, began, seconds))
        for row in rows:
            row.add(event.kind, function, seconds)

    def count(self) -> int:
        """The number of retraces and recompiles so far."""
        if self._flush is not None:
            self._flush()
        return len(self._reports)

    def finish(self, process: int) -> None:
        """Print the report, unless this is a process that the program forked."""
        if os.getpid() == process:
            sys.stderr.write(f"\n{self.text()}\n")

    def text(self) -> str:
        """The report as text."""
        retraces, seconds = self.count(), time.monotonic() - self._began
        ran = f"treewright retraces: {' '.join(self._program)} ran for {seconds:,.2f} s"
        if self._flush is None:
            return f"{ran} and did not import jax."
        if not self._functions:
            return f"{ran}; JAX traced and compiled nothing in it."
        spent = sum(row.seconds for row in self._functions.values())
        lines = [f"{ran}, {spent:,.2f} s of it ({spent / seconds:.0%}) tracing and compiling.", "", *self._table(), ""]
        if retraces:
            seconds = sum(report.seconds or 0.0 for report in self._reports)
            lines.append(f"Retraces and recompiles: {retraces}, {seconds:,.2f} s.")
            lines += first_lines(list(map(str, self._reports)), _MAX_REPORTS, more="more")
        else:
            lines.append("No retraces or recompiles.")
        return "\n".join([*lines, *self._lines_outside()])

    def _table(self) -> list[str]:
        cells = [["function", "traces", "compilations", "tracing", "compiling"]]
        for name, row in _longest_first(self._functions):
            counts = [str(row.traces), str(row.programs.total())]
            cells.append([name, *counts, f"{row.tracing:,.2f} s", f"{row.compiling:,.2f} s"])
        return first_lines(table(cells, right=cells[0][1:]), _MAX_ROWS, more="more functions")

    def _lines_outside(self) -> Iterator[str]:
        several = [(line, row) for line, row in _longest_first(self._lines) if row.programs.total() > 1]
        if several:
            yield "\nLines outside jit that compile each operation separately; a jitted function would be one program:"
        for line, row in several[:_MAX_LINES]:
            most = [f"{name} {count} times" if count > 1 else name for name, count in row.programs.most_common(3)]
            of_library = first_names(filter(None, row.of_library), 2)
            at = f" (at {of_library})" if of_library else ""
            yield f"    {line}{at}: {row.programs.total()} programs ({', '.join(most)}), {row.seconds:,.2f} s"


def _longest_first(rows: dict[str, _Row]) -> list[tuple[str, _Row]]:
    return sorted(rows.items(), key=lambda named: -named[1].seconds)
