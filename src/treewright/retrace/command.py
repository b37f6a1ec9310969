"""`python -m treewright retraces PROGRAM`: any program as it is, and at its end what its compilations cost and why."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from treewright.retrace import inject
from treewright.retrace.cache import cache_report
from treewright.retrace.record import RecordReader
from treewright.retrace.tally import Run, summed_up
from treewright.retrace.words import as_json, counted, report_text

_USAGE = """python -m treewright retraces [options] script.py ARGS ...
       python -m treewright retraces [options] -m MODULE ARGS ...
       python -m treewright retraces [options] pytest ARGS ..."""
_TOO_MANY = 3
_OPTIONS_WITH_VALUES = frozenset({"--html", "--json", "--max-retraces"})
# What a process may be sent, where the system has it.
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_FROM_THE_KEYBOARD = ("SIGINT", "SIGQUIT")
_MOMENT = 0.1  # seconds between two looks at a program that runs


def main(arguments: list[str]) -> int:
    """Run the program, report on it, and return its exit status."""
    options, program = _parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="treewright-") as name:
        folder = Path(name)
        run = _run(program, folder, live=options.live)
        cache = cache_report(run, folder)
    sys.stderr.write(f"{report_text(run, cache)}\n")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(run, cache), indent=1) + "\n", encoding="utf-8")
    if options.html is not None:
        from treewright.retrace.page import page

        options.html.write_text(page(run, cache), encoding="utf-8")
    if run.status:
        return _status(run.status)
    if options.max_retraces is not None and run.retraces > options.max_retraces:
        sys.stderr.write(f"{counted(run.retraces, 'retrace')}, and --max-retraces allows {options.max_retraces}\n")
        return _TOO_MANY
    return 0


# The command line


def _parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command that Python is to be started with."""
    parser = argparse.ArgumentParser(prog="python -m treewright retraces", usage=_USAGE, allow_abbrev=False)
    parser.description = (
        "Run a program as it is, and say at its end what JAX traced and compiled, for how long, and what was compiled "
        "again for which reason. The report goes to standard error; the exit status is the program's."
    )
    add = parser.add_argument
    add("--html", type=_file, metavar="FILE", help="write a page with a timeline of the run")
    add("--json", type=_file, metavar="FILE", help="write all of it as JSON")
    add("--live", action="store_true", help="print each retrace and recompile as it happens, too")
    limit = "exit with 3 if there are more retraces and recompiles, and the program itself succeeds"
    add("--max-retraces", type=int, metavar="N", help=limit)
    end = _end_of_options(arguments)
    options = parser.parse_args(arguments[:end])
    program = arguments[end:]
    if not program or program == ["-m"]:
        parser.error("no program to run")
    if sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site:
        parser.error("Python runs with -I, -E or -S here, and starts a program in which nothing can be watched")
    if program[0] != "-m" and not Path(program[0]).exists():
        program[0] = _installed(program[0], parser)
    return options, program


def _end_of_options(arguments: Sequence[str]) -> int:
    """Where our options end and the program begins."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-m":
        index += 2 if arguments[index] in _OPTIONS_WITH_VALUES else 1
    return min(index, len(arguments))


def _file(text: str) -> Path:
    """A file that can be written, in full, since a program may change its folder."""
    path = Path(text).absolute()
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def _installed(name: str, parser: argparse.ArgumentParser) -> str:
    """The file of an installed program, such as pytest."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=places)
    if found is None:
        parser.error(f"there is no file {name!r}, and no program of that name is installed")
    with Path(found).open("rb") as file:
        if b"python" not in file.read(200):
            parser.error(f"{found} is not a program of Python")
    return found


def _python() -> list[str]:
    """Python as it was started here, with its options."""
    ours = len(sys.argv) - 1
    options = sys.orig_argv[1 : len(sys.orig_argv) - ours]
    while options and options[-1] in {"-m", "treewright", "-mtreewright"}:
        options.pop()
    return [sys.executable, *options]


# The program


def _run(program: list[str], folder: Path, *, live: bool) -> Run:
    """Run the program to its end, whatever that is, and sum up what it left."""
    environment = inject.prepare(folder, dict(os.environ))
    record = folder / inject.NAME
    with _forwarding() as forward_to:
        began = time.monotonic()
        process = subprocess.Popen([*_python(), *program], env=environment)  # noqa: S603  it is the user's
        forward_to(process)
        with _printing(record) if live else contextlib.nullcontext():
            status = process.wait()
        ended = time.monotonic()
    return summed_up(RecordReader(record).new_lines(), command=program, status=status, began=began, ended=ended)


@contextlib.contextmanager
def _forwarding() -> Generator[Callable[["subprocess.Popen[bytes]"], None]]:
    """What is sent to this process goes to the program. What the keyboard sends, the terminal sends to both."""
    processes: list[subprocess.Popen[bytes]] = []
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty()

    def forward(number: int, _: types.FrameType | None) -> None:
        if not (at_a_terminal and signal.Signals(number).name in _FROM_THE_KEYBOARD):
            for process in processes:
                process.send_signal(number)

    numbers = [number for name in _FORWARDED if (number := getattr(signal, name, None)) is not None]
    # What is ignored here is ignored in the program, as under nohup, and stays so.
    earlier = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in earlier:
        signal.signal(number, forward)
    try:
        yield processes.append
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _printing(record: Path) -> Generator[None]:
    """Print each retrace as the program writes it down."""
    reader, ended = RecordReader(record), threading.Event()

    def print_new() -> None:
        for line in reader.new_lines():
            if "retrace" in line:
                sys.stderr.write(f"{line['retrace']['text']}\n")

    def watch() -> None:
        while not ended.wait(_MOMENT):
            print_new()
        print_new()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _status(status: int) -> int:
    """The exit status of the program; a signal that ended it ends this process, too."""
    if status > 0:
        return status
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
    with contextlib.suppress(OSError):  # nothing can be set for SIGKILL
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status
