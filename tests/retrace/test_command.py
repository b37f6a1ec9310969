"""`python -m treewright retraces`: reports on programs, which run as under python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src"
RETRACES = ("-m", "treewright", "retraces")
# Facts that a program prints about itself
ABOUT = """
import atexit, os, signal, sys
atexit.register(lambda: print("atexit", flush=True))
import __main__
spec = __main__.__spec__
for each in [
    sys.argv, sys.path, sys.flags, sys.warnoptions, __name__, __file__, spec and spec.name, sys.modules["__main__"] is
    __main__, sorted(vars(__main__).keys() - {"__annotations__", "__cached__"}), sorted(os.environ),
    sys.stdin.read(), [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
    "jax" in sys.modules,
]:
    print(each)
"""
ENDINGS = {
    "at its end": "",
    "by an exception": "def f():\n    raise ValueError('no')\nf()",
    "by a text": "sys.exit('bye')",
    "by a number": "sys.exit(5)",
    "immediately": "sys.stdout.flush()\nos._exit(7)",
    "by a signal": "sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGKILL)",
    "by an interrupt": "sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGINT)",
    "in a syntax error": "x = = 1",
}
COMPILING = """
import os
os.environ["JAX_ENABLE_X64"] = "1"  # before jax is imported
import jax, jax.numpy as jnp

@jax.jit
def step(x, rate):
    return x * rate

def main():
    for size in (32, 31, 32):
        step(jnp.ones(size), 1.0)
    double = [jnp.ones(3) * 2, jnp.ones(4) + 1]

main()
os.chdir("/")
"""


def run(*arguments: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **options.pop("environment", {})}
    options = {"input": "some input", "capture_output": True, "text": True, **options}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=False, **options)


def run_with_and_without(*arguments: str, folder: Path) -> tuple[Any, ...]:
    """The output and exit status of a program, by itself and under the command, without the report."""
    plain, watched = (run(*before, *arguments, folder=folder) for before in ((), RETRACES))
    stderr = watched.stderr.partition("\ntreewright retraces: ")[0]
    return tuple((ended.returncode, ended.stdout, text) for ended, text in ((plain, plain.stderr), (watched, stderr)))


def program(folder: Path, text: str = COMPILING) -> str:
    (folder / "program.py").write_text(text)
    return "program.py"


# The program runs as without the command


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_command_runs_a_program_like_python(ending: str, tmp_path: Path) -> None:
    plain, watched = run_with_and_without(
        program(tmp_path, f"{ABOUT}{ENDINGS[ending]}\n"), "--json", "x y", folder=tmp_path
    )

    assert watched == plain


@pytest.mark.parametrize("command", ["-m package", "{}/package", "{}/app.pyz", "{}/app"])
def test_the_command_runs_modules_folders_and_zip_files_like_python(command: str, tmp_path: Path) -> None:
    once = ABOUT.replace("sys.path,", "list(dict.fromkeys(sys.path)),")  # a folder or zip file is twice in it
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(ABOUT if command.startswith("-m") else once)
    for name in ("app.pyz", "app"):
        zipapp.create_archive(tmp_path / "package", tmp_path / name)

    plain, watched = run_with_and_without(*command.format(tmp_path).split(), "-m", "x", folder=tmp_path)

    assert plain[0] == 0, plain
    assert watched == plain


@pytest.mark.parametrize("command", ["-m package", "package"])
@pytest.mark.parametrize("error", ["KeyError('mine')", "KeyboardInterrupt()"])
def test_a_traceback_begins_with_the_frames_of_the_program(error: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(f"def f():\n    raise {error}\nf()\n")

    plain, watched = (run(*before, *command.split(), folder=tmp_path) for before in ((), RETRACES))

    lines = watched.stderr.partition("Traceback (most recent call last):\n")[2].splitlines()
    assert lines[0].endswith('__main__.py", line 3, in <module>')
    assert watched.returncode == plain.returncode
    assert plain.stderr.splitlines()[-1] in lines


def test_an_error_of_the_program_leaves_the_text_of_later_errors(tmp_path: Path) -> None:
    program(tmp_path, "raise KeyError('mine')\n")
    text = (
        "import contextlib\n"
        "from treewright.__main__ import main\n"
        "with contextlib.suppress(KeyError):\n"
        "    main(['retraces', 'program.py'])\n"
        "raise ValueError('later')\n"
    )
    (tmp_path / "caller.py").write_text(text)

    ended = run("caller.py", folder=tmp_path)

    lines = ended.stderr.splitlines()
    assert lines[1].endswith('caller.py", line 5, in <module>')
    assert lines[3] == "ValueError: later"


def test_child_processes_of_the_program_are_unaffected(tmp_path: Path) -> None:
    text = """
import multiprocessing, os, pickle, sys

class Mine: ...

def child(queue):
    queue.put([__name__, sys.path[0], sorted(n for n in sys.modules if "treewright" in n), Mine.__module__])

if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""

    plain, watched = run_with_and_without(program(tmp_path, text), folder=tmp_path)

    assert "__mp_main__" in plain[1]
    assert watched == plain


def test_inherited_file_descriptors_stay_open(tmp_path: Path) -> None:
    name = program(tmp_path, "import os, sys\nprint(os.read(int(sys.argv[1]), 10))\n")
    reading, writing = os.pipe()
    os.write(writing, b"inherited")

    watched = run(*RETRACES, name, str(reading), folder=tmp_path, pass_fds=[reading])
    for descriptor in (reading, writing):
        os.close(descriptor)

    assert watched.stdout == "b'inherited'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "file 'missing.py' not found; to run a package or an installed module, use -m missing.py"),
        ([], "no program to run"),
        (["--max-retraces", "-1", "x"], "argument --max-retraces: '-1' is not a number of retraces, such as 0"),
        (["--html", "x"], "unrecognized arguments: --html"),
    ],
)
def test_the_command_rejects_invalid_arguments(arguments: Sequence[str], message: str, tmp_path: Path) -> None:
    ended = run(*RETRACES, *arguments, folder=tmp_path)

    assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr


# The report


def test_the_command_reports_functions_retraces_and_lines_outside_jit(tmp_path: Path) -> None:
    ended = run(*RETRACES, "--max-retraces", "0", program(tmp_path), folder=tmp_path)

    text = ended.stderr
    lines = text.splitlines()
    assert "\ntreewright retraces: program.py ran for " in text
    assert "function                traces  compilations  tracing  compiling" in lines
    assert any(line.startswith("step (program.py:6)          2             2") for line in lines)
    assert any(line.startswith("operations outside jit") for line in lines)
    assert "Retraces and recompiles: 1, " in text
    assert "step retraced (2nd trace, " in text
    assert "called from program.py:12 in main\n    x: float64[32] -> float64[31]\n" in text
    assert "    program.py:13 in main: 4 programs (broadcast_in_dim 2 times, multiply, add)" in text
    assert (ended.returncode, "1 retrace, but --max-retraces allows 0" in text) == (3, True)


def test_the_exit_status_of_the_program_comes_first(tmp_path: Path) -> None:
    name = program(tmp_path, f"{COMPILING}\nraise SystemExit(4)\n")

    ended = run(*RETRACES, "--max-retraces", "0", name, folder=tmp_path)

    assert (ended.returncode, "--max-retraces allows" in ended.stderr) == (4, False)


def test_an_operation_of_a_library_is_reported_at_the_users_line(tmp_path: Path) -> None:
    calling = "import optax, jax.numpy as jnp\ndef main():\n    optax.tree.norm({'w': jnp.ones(3)})\nmain()\n"

    ended = run(*RETRACES, program(tmp_path, calling), folder=tmp_path)

    [line] = [line for line in ended.stderr.splitlines() if "program.py:3" in line]
    assert re.match(r"    program\.py:3 in main \(at _tree_math\.py:\d+ in _square, .*\): \d+ programs \(add 2", line)


def test_a_program_without_jax_is_reported_as_such(tmp_path: Path) -> None:
    ended = run(*RETRACES, program(tmp_path, "print(1)"), folder=tmp_path)

    assert ended.stdout == "1\n"
    assert "program.py ran for " in ended.stderr
    assert ended.stderr.endswith("and did not import jax.\n")


# pytest

TESTS = """
import jax, jax.numpy as jnp, pytest

@jax.jit
def step(x):
    return 2 * x

@pytest.mark.max_traces(2)
def test_it():
    for size in (2, 3):
        step(jnp.ones(size))
"""


def test_the_command_reports_a_pytest_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    plugin = ("-p", "treewright.testing.plugin", "--disable-plugin-autoload", "-p", "no:cacheprovider")

    ended = run(*RETRACES, "-m", "pytest", "-q", *plugin, folder=tmp_path, timeout=120)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    output = ended.stdout + ended.stderr
    assert "1 passed" in output
    assert output.count("step retraced (2nd trace, ") == 1
    assert "x: float32[2] -> float32[3]" in output


def test_the_command_sees_jax_after_a_search_for_it(tmp_path: Path) -> None:
    searching = f"import importlib.util\nfor _ in range(2):\n    importlib.util.find_spec('jax')\n{COMPILING}"

    ended = run(*RETRACES, "--max-retraces", "0", program(tmp_path, searching), folder=tmp_path)

    assert "Retraces and recompiles: 1" in ended.stderr
    assert ended.returncode == 3
