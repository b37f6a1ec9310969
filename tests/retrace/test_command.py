"""`python -m treewright retraces`: what it says of a program, and that the program does not notice."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import pytest

from treewright import __main__
from treewright.retrace import command, inject

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).parents[2] / "src"
RETRACES = ("-m", "treewright", "retraces")

# What a program can tell about itself, and two ways to end.
ABOUT = """
import atexit, json, os, signal, sys
atexit.register(lambda: print("atexit", flush=True))
import __main__

def about():
    spec = __main__.__spec__
    return [
        sys.argv, sys.orig_argv[1:], sys.path, sys.flags, sys.warnoptions, __name__, __file__, spec and spec.name,
        sorted(name for name in vars(__main__)), os.environ.get("PYTHONPATH"), sorted(os.environ), sys.stdin.read(),
        [str(type(finder)) for finder in sys.meta_path if "AwaitedImport" not in str(type(finder))],
        [name for name in sys.path_importer_cache if "treewright-" in name], len(os.listdir("/proc/self/fd")),
        [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "sitecustomize" in sys.modules, sys.getrecursionlimit(), sys.excepthook is sys.__excepthook__,
    ]

if __name__ == "__main__":
    for each in about():
        print(each)
"""
ENDINGS = {
    "at its end": "",
    "by an exception": "def f():\n    raise ValueError('no')\nf()",
    "by a text": "sys.exit('bye')",
    "by a number": "sys.exit(5)",
    "at once": "os._exit(7)",
    "by a signal": "sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGKILL)",
    "by an interrupt": "sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGINT)",
    "in a syntax error": "x = = 1",
}
CHILDREN = """
import multiprocessing, os, sys

def child(queue):
    queue.put([__name__, sys.path[0], sorted(os.environ), sorted(n for n in sys.modules if "treewright" in n)])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""


def run(*arguments: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **options.pop("environment", {})}
    options = {"input": "some input", "capture_output": True, "text": True, **options}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=False, **options)


def both(*arguments: str, folder: Path) -> tuple[Any, Any]:
    """What a program prints, says and returns, by itself and under the command, without the report."""
    alone, watched = (run(*before, *arguments, folder=folder) for before in ((), RETRACES))
    said, _, report = watched.stderr.rpartition("\ntreewright retraces: ")
    assert "traced and compiled nothing in it" in report
    return (alone.returncode, alone.stdout, alone.stderr), (watched.returncode, watched.stdout, said)


# The program does not notice


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_runs_and_ends_as_it_does_by_itself(ending: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ABOUT + ENDINGS[ending] + "\n")

    alone, watched = both("program.py", "--html", "an argument", folder=tmp_path)

    assert watched == alone


def test_a_module_a_folder_and_an_installed_program_run_as_they_do_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(ABOUT)
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")

    for program in (("-m", "package", "-m", "x"), ("package", "x")):
        alone, watched = both(*program, folder=tmp_path)
        assert watched == alone
    pytest_options = ("-q", "-p", "no:treewright", "-p", "no:cacheprovider")
    assert "1 passed" in run(*RETRACES, "pytest", *pytest_options, folder=tmp_path).stdout


def test_processes_that_the_program_starts_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CHILDREN)

    alone, watched = both("program.py", folder=tmp_path)

    assert "__mp_main__" in alone[1]
    assert watched == alone


def test_the_options_of_python_are_those_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(sys.flags, sys.warnoptions)\n")
    options = ("-X", "dev", "-W", "error", "-O")

    alone = run(*options, "program.py", folder=tmp_path)
    watched = run(*options, *RETRACES, "program.py", folder=tmp_path)

    assert watched.stdout == alone.stdout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_program_and_the_report_comes_all_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [sys.executable, *RETRACES, "program.py"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=30)

    assert process.returncode == -getattr(signal, name)
    assert said.count("KeyboardInterrupt") == (name == "SIGINT")
    assert "treewright retraces: program.py ran for" in said


def test_a_sitecustomize_of_the_user_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    (tmp_path / "program.py").write_text("import sys\nprint(sys.modules['sitecustomize'].__file__)\n")
    environment = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{tmp_path}"}

    watched = run(*RETRACES, "program.py", folder=tmp_path, environment=environment)

    assert watched.stdout.splitlines()[-2:] == ["mine", str(tmp_path / "sitecustomize.py")]


# What it says

PROGRAM = """
import os
import signal
import sys

os.environ["JAX_ENABLE_X64"] = "1"  # read when jax is imported, so nothing may import it before
import jax
import jax.numpy as jnp
import numpy as np
import treewright


@jax.jit
def step(x):
    return x * 2


@jax.jit
@treewright.traced
def told(x):
    return x + 1


@jax.jit
def unordered(values):
    total = 0.0
    for name in {"ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew"}:
        total = jnp.sin(total + values[name])
    return total


@jax.jit
def printing(x):
    jax.debug.print("{x}", x=x)
    return x


def main():
    for size in (2, 3, 4):
        step(np.ones(size))
    told(np.ones(2))
    told(np.ones(3))
    unordered({name: np.float32(1) for name in ("ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew")})
    printing(np.ones(2))
    print("x64", jnp.ones(2).dtype, flush=True)
    if os.fork() == 0:
        signal.alarm(20)  # a lock that another thread held at the fork is never given back
        step.lower(np.ones(17))
        os._exit(0)
    os.wait()


main()
raise SystemExit(int(sys.argv[1]))
"""


def line_of(text: str) -> int:
    """The number of the first line of the program that holds this."""
    return 1 + next(number for number, line in enumerate(PROGRAM.splitlines()) if text in line)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[subprocess.CompletedProcess[str], dict[str, Any]]]:
    """Two runs of a program with one persistent cache, and with other hash seeds."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(PROGRAM)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    found: list[tuple[subprocess.CompletedProcess[str], dict[str, Any]]] = []
    for seed, status in (("1", "0"), ("2", "4")):
        files = ("--json", "out.json", "--html", "out.html", "--max-retraces", "1", "--live")
        environment = {**cache, "PYTHONHASHSEED": seed}
        done = run(*RETRACES, *files, "train.py", status, folder=folder, environment=environment)
        assert (folder / "out.html").read_text().startswith("<!doctype html>")
        found.append((done, json.loads((folder / "out.json").read_text())))
    return found


def test_the_report_says_what_was_compiled_again_and_why(runs: Any) -> None:
    done, report = runs[0]

    assert "x64 float64" in done.stdout  # the program's environment came before jax
    text = done.stderr[done.stderr.rindex("treewright retraces: ") :]
    assert text.startswith("treewright retraces: train.py 0 ran for ")
    assert re.search(r"^step \(train.py:13\) +3 +3 ", text, re.MULTILINE)
    assert re.search(r"^\d\. step \(train.py:13\): 2 times, ", text, re.MULTILINE)
    assert "x: float64[2] -> float64[3]; axis 0: 2 -> 3\n" in text
    assert "the last time: x: float64[3] -> float64[4]; axis 0: 3 -> 4\n" in text
    assert f"at train.py:{line_of('step(np.ones(size))')} in main\n" in text
    assert "cure: pad to one size, or to a few\n" in text
    assert (report["command"], report["status"], report["retraces"]) == (["train.py", "0"], 0, 3)
    assert not [note for note in report["notes"] if note]
    assert {row["function"] for row in report["functions"]} >= {"step", "told", "unordered", "printing"}
    assert "float64[17]" not in json.dumps(report)  # what a forked process compiles is not this program's


def test_each_retrace_is_printed_as_it_happens(runs: Any) -> None:
    done, _ = runs[0]

    # What the program prints itself, it prints as ever; the rest is printed beside it, while it runs.
    live = done.stderr[: done.stderr.rindex("treewright retraces: ")]
    assert live.count("step retraced") == 2
    assert live.count("told retraced") == 2


def test_too_many_retraces_are_status_3_and_a_failure_of_the_program_is_its_own(runs: Any) -> None:
    (first, _), (second, report) = runs

    assert first.returncode == 3
    assert "3 retraces, and --max-retraces allows 1\n" in first.stderr
    assert (second.returncode, report["status"]) == (4, 4)


def test_what_the_cache_read_missed_and_did_not_keep_is_told(runs: Any) -> None:
    (first, before), (second, after) = runs

    assert "  read: nothing\n" in first.stderr
    assert before["cache"]["missed"] == []
    callbacks = [keys for reason, keys in before["cache"]["left_out"].items() if "calls Python" in reason]
    assert [len(keys) for keys in callbacks] == ([1] if jax.__version_info__ < (0, 11) else [])
    kept = set(before["cache"]["kept"])
    assert set(after["cache"]["read"]) < kept
    assert after["cache"]["saved"] > 0
    (missed,) = after["cache"]["missed"]
    assert missed["function"] == "unordered"
    assert missed["line"] > 0
    assert missed["old"] != missed["new"]
    assert "PYTHONHASHSEED" in missed["cause"]
    assert (
        f"unordered (train.py:{line_of('def unordered') - 1}) was kept by an earlier run, and missed" in second.stderr
    )


# The command line


def refused(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        command.main(list(arguments))
    assert caught.value.code == 2
    return capsys.readouterr().err.partition("error: ")[2].strip()


def test_wrong_arguments_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "a-tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "a-tool").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert refused(capsys=capsys) == "no program to run"
    assert refused("--live", "-m", capsys=capsys) == "no program to run"
    assert refused("x.py", capsys=capsys) == "there is no file 'x.py', and no program of that name is installed"
    (tmp_path / "bin" / "a-program").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "bin" / "a-program").chmod(0o755)
    assert command._parsed(["a-program"])[1] == [f"{tmp_path}/bin/a-program"]
    assert refused("a-tool", capsys=capsys) == f"{tmp_path}/bin/a-tool is not a program of Python"
    assert "there is no folder" in refused("--html", "no/page.html", "x.py", capsys=capsys)
    assert "expected one argument" in refused("--json", capsys=capsys)
    assert "--max-retrace" in refused("--max-retrace", "1", "x.py", capsys=capsys)
    monkeypatch.setattr(sys, "flags", types.SimpleNamespace(isolated=1, ignore_environment=1, no_site=0))
    assert refused("x.py", capsys=capsys).startswith("Python runs with -I, -E or -S here")


def test_a_run_in_this_process_gives_the_report_the_files_and_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "treewright", "retraces"])
    monkeypatch.setattr(sys, "argv", ["treewright", "retraces"])
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    program = tmp_path / "program.py"
    lines = (
        {"kind": "settings", "settings": {}},
        {"kind": "trace", "function": "f", "file": "a.py", "line": 3, "operation": False, "at": 0.0, "seconds": 0.5}
        | {"self": 0.5, "place": "a.py:9", "thread": "T", "ours": 0.0}
        | {"retrace": {"event": "trace", "number": 2, "text": "f retraced", "reasons": []}},
    )
    folder = "json.loads(os.environ['THE_FOLDER'])['folder']"
    program.write_text(
        f"import json, os, sys\nwith open({folder} + '/{inject.NAME}', 'w') as file:\n"
        f"    file.writelines(json.dumps(line) + '\\n' for line in {lines!r})\nsys.exit(int(sys.argv[1]))\n"
    )
    prepare = inject.prepare

    def prepared(folder: Path, environment: dict[str, str]) -> dict[str, str]:
        made = prepare(folder, environment)
        return {**made, "THE_FOLDER": made[inject.VARIABLE]}

    monkeypatch.setattr(inject, "prepare", prepared)
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    options = ["--live", "--html", str(page), "--json", str(data), "--max-retraces"]

    monkeypatch.setattr(command, "_MOMENT", 0.001)
    assert __main__.main(["retraces", *options, "0", str(program), "0"]) == 3
    assert command.main([*options, "1", str(program), "0"]) == 0
    assert command.main([str(program), "0"]) == 0
    assert command.main(["-m", "colorsys"]) == 0
    assert command.main([*options, "0", str(program), "6"]) == 6
    assert "f retraced\n" in capsys.readouterr().err
    assert json.loads(data.read_text())["retraces"] == 1
    assert page.read_text().startswith("<!doctype html>")


def test_the_signal_that_ended_the_program_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    monkeypatch.setattr("resource.setrlimit", lambda *arguments: sent.append(arguments))
    handler = signal.getsignal(signal.SIGUSR1)
    try:
        assert command._status(-signal.SIGUSR1) == 128 + signal.SIGUSR1
    finally:
        signal.signal(signal.SIGUSR1, handler)

    assert sent[-1] == (os.getpid(), signal.SIGUSR1)


def test_what_the_keyboard_sends_is_not_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def __init__(self) -> None:
            self.sent: list[int] = []

        def send_signal(self, number: int) -> None:
            self.sent.append(number)

    process: Any = Process()
    before = signal.getsignal(signal.SIGINT)
    for at_a_terminal, expected in ((True, [signal.SIGTERM]), (False, [signal.SIGINT, signal.SIGTERM])):
        process.sent = []
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda answer=at_a_terminal: answer))
        with command._forwarding() as forward_to:
            forward_to(process)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        assert process.sent == expected
    assert signal.getsignal(signal.SIGINT) is before


def test_commands_are_listed_and_a_wrong_one_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert __main__.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in __main__.COMMANDS)

    assert __main__.main(["retrace"]) == 2
    assert capsys.readouterr().err == f"There is no command 'retrace' (did you mean retraces?).\n{listed}"
    with pytest.raises(SystemExit):
        __main__.main(["retraces", "--help"])
    assert "--max-retraces N" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["treewright"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(__main__.__file__), run_name="__main__")
    assert caught.value.code == 0


# The beginning of a program


def test_the_environment_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if name != "jax"})
    for earlier in (None, "/a:/b"):
        environment = {"A": "b"} | ({} if earlier is None else {"PYTHONPATH": earlier})
        prepared = inject.prepare(tmp_path, environment)
        monkeypatch.setattr(os, "environ", dict(prepared))

        inject.begin()

        assert os.environ == environment
        assert prepared["PYTHONPATH"].partition(os.pathsep)[0] == str(tmp_path)
    assert isinstance(sys.meta_path[0], inject.AwaitedImport)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """Waits for the import of a module whose code is given, imports it, and tells how often it was told."""

    def waiting_for(code: str) -> list[str]:
        told: list[str] = []
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "awaited", raising=False)
        finder = inject.AwaitedImport("awaited", lambda: told.append("imported"))
        sys.meta_path.insert(0, finder)
        assert finder.find_spec("another") is None
        with pytest.raises(ModuleNotFoundError):
            __import__("awaited")
        (tmp_path / "awaited.py").write_text(code)
        try:
            __import__("awaited")
        finally:
            told += ["waits"] * (finder in sys.meta_path)
        return told

    return waiting_for


def test_what_is_awaited_is_told_when_it_has_been_imported(waiting: Any) -> None:
    assert waiting("import colorsys\n") == ["imported"]
    assert isinstance(sys.modules["awaited"].__loader__, importlib.machinery.SourceFileLoader)
    assert "exec_module" not in vars(sys.modules["awaited"].__loader__)


def test_an_import_that_fails_is_not_told(waiting: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        waiting("1 / 0\n")


def test_recording_begins_once_and_not_in_a_process_that_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    at_fork: list[Any] = []
    monkeypatch.setattr("treewright.retrace.recorder.EventRecorder.start", lambda recorder: begun.append(recorder))
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: at_fork.append(after_in_child))
    first = inject.FirstTrace(tmp_path)

    first("event", 1.0)
    first("event", 1.0)

    assert len(begun) == 1
    begun[0].warn("in the program")
    at_fork[0]()
    begun[0].warn("in the forked process")
    assert (tmp_path / inject.NAME).read_text().count("\n") == 1
    monkeypatch.delattr(os, "register_at_fork")  # where nothing can be forked
    inject.FirstTrace(tmp_path)("event", 1.0)
    assert len(begun) == 2


def test_what_fails_when_recording_begins_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("treewright.retrace.recorder.EventRecorder.start", broken)
    monkeypatch.setattr(os, "environ", {inject.VARIABLE: json.dumps({"folder": str(tmp_path), "PYTHONPATH": "x"})})
    registered: list[Any] = []
    monkeypatch.setattr("jax.monitoring.register_event_duration_secs_listener", registered.append)

    inject.begin()
    registered[0]("event", 1.0)
    registered[0]("event", 1.0)

    (line,) = (tmp_path / inject.NAME).read_text().splitlines()
    assert json.loads(line)["text"] == "Nothing was seen: ZeroDivisionError: no"
