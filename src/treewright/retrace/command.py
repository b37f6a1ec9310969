"""`python -m treewright retraces PROGRAM`: run a program in this process, and report what JAX compiled in it.

Nothing here imports jax: a program sets its environment before it does that.
"""

import argparse
import atexit
import importlib.machinery
import importlib.util
import io
import json
import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treewright.retrace.record import Record

_TOO_MANY = 3  # the exit status
_USAGE = """python -m treewright retraces [options] script.py ARGS ...
       python -m treewright retraces [options] -m MODULE ARGS ..."""
_OPTIONS = ("--json", "--trace", "--max-retraces")  # each with a value


def main(arguments: list[str]) -> int:
    """Run the program and return its exit status; the report follows at the very end of the process."""
    options, program = _parse(arguments)
    recording = Recording(program)
    atexit.register(recording.finish, os.getpid(), options)  # the first to be registered, so the last to run
    _hide_frames_of_ours()
    try:
        _run(program)
    except SystemExit as end:
        if end.code not in {None, 0}:
            raise
    retraces = recording.count()
    if options.max_retraces is not None and retraces > options.max_retraces:
        noun = "retrace" if retraces == 1 else "retraces"
        sys.stderr.write(f"{retraces} {noun}, and --max-retraces allows {options.max_retraces}\n")
        return _TOO_MANY
    return 0


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the program with its arguments."""
    parser = argparse.ArgumentParser(prog="python -m treewright retraces", usage=_USAGE, allow_abbrev=False)
    parser.description = (
        "Run a program, and report on standard error what JAX traced and compiled in it, for how long, and what was "
        "traced again for which reason. The exit status is the program's. For pytest, there is `pytest --retraces` too."
    )
    parser.add_argument("--json", type=_file, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--trace", type=_file, metavar="FILE", help="write a timeline in Chrome's trace format")
    limit = "exit with 3 if there are more retraces and recompiles, and the program itself succeeds"
    parser.add_argument("--max-retraces", type=int, metavar="N", help=limit)
    end = 0
    while end < len(arguments) and arguments[end].startswith("-") and arguments[end] != "-m":
        end += 2 if arguments[end] in _OPTIONS else 1
    options, program = parser.parse_args(arguments[:end]), arguments[end:]
    if not program or program == ["-m"]:
        parser.error("no program to run")
    if program[0] != "-m" and not Path(program[0]).exists():
        parser.error(f"there is no file {program[0]!r}; an installed module runs with -m {program[0]}")
    return options, program


def _file(text: str) -> Path:
    """A file that can be written, in full, since a program may change its folder."""
    path = Path(text).absolute()
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


# The program


def _run(program: list[str]) -> None:
    """Run a program as `python` does: with its own `sys.argv`, `sys.path` and `__main__`."""
    if program[0] == "-m":
        sys.argv[:] = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = program
    path = Path(program[0])
    if path.is_dir() or path.suffix in {".zip", ".pyz"}:
        sys.path[0] = program[0]
        runpy.run_path(program[0], run_name="__main__")
        return
    file = str(path.absolute())
    sys.path[0] = str(path.absolute().parent)
    module = types.ModuleType("__main__")
    ours = vars(sys.modules["__main__"])
    vars(module).update({name: {} for name in ("__annotations__",) if name in ours}, __file__=file)
    vars(module).update(__builtins__=ours["__builtins__"], __cached__=None)
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    sys.modules["__main__"] = module  # for good, as threads and pickles of the program expect
    exec(code, module.__dict__)  # noqa: S102  it is the user's


def _hide_frames_of_ours() -> None:
    """Let tracebacks begin with the program's own frames."""
    show = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
        hidden = {__file__, runpy.__file__, "<frozen runpy>", sys.modules["treewright.__main__"].__file__}
        while frames is not None and frames.tb_frame.f_code.co_filename in hidden:
            frames = frames.tb_next
        show(kind, error.with_traceback(frames), frames)

    sys.modules.setdefault("treewright.__main__", sys.modules["__main__"])
    sys.excepthook = shown


# The record


class Recording:
    """Records what JAX does, from the moment that jax was imported."""

    def __init__(self, program: list[str]) -> None:
        self._program = program
        self._began = time.monotonic()
        self._record: Record | None = None
        if "jax" in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, _AwaitedImport("jax", self._begin))

    def _begin(self) -> None:
        from treewright.retrace.record import Record

        self._record = Record()

    def count(self) -> int:
        """How many retraces and recompiles there were so far."""
        return 0 if self._record is None else len(self._record.end().reports)

    def text(self) -> str:
        """The report."""
        seconds = time.monotonic() - self._began
        if self._record is None:
            return f"treewright retraces: {' '.join(self._program)} ran for {seconds:.2g} s and did not import jax."
        return self._record.end().text(self._program, seconds)

    def finish(self, process: int, options: argparse.Namespace) -> None:
        """Print the report and write the files; not in a process that the program forked."""
        if os.getpid() != process:
            return
        sys.stderr.write(f"\n{self.text()}\n")
        record = self._record
        if options.json is not None:
            data = {} if record is None else record.as_json(self._program, time.monotonic() - self._began)
            options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        if options.trace is not None:
            events = [] if record is None else record.timeline()
            options.trace.write_text(json.dumps({"traceEvents": events}) + "\n", encoding="utf-8")


class _AwaitedImport:
    """Calls a function as soon as a module has been imported, whoever imports it and whatever finds it."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with a loader that tells when it is done."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = getattr(spec, "loader", None)
        execute: Callable[[types.ModuleType], object] | None = getattr(loader, "exec_module", None)
        if execute is not None:  # as every loader of today has it

            def exec_module(module: types.ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self._then()

            loader.exec_module = exec_module
        return spec
