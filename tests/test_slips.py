"""Common mistakes and their full error messages: the tables in `tests/slips`.

A row is a few lines of code; `UPDATE_SNAPSHOTS=1 pytest tests/test_slips.py` writes the message below it, after `=>`.
Rows are separated by an empty line. Each `=>` begins a line of the message, and long lines are wrapped below it.

If a message shows a line to write, its row has the corrected program, after `fixed:`. The program contains that line
(dots in the message stand for anything), prints nothing, and asserts the user's intention in its last line.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import linecache
import pkgutil
import re
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import treewright
from tests.conftest import skip_before_jax, skip_below_devices
from tests.expected_text import compare_with_snapshot, without_varying_parts
from treewright import errors

TABLES = sorted((Path(__file__).parent / "slips").glob("*.txt"))
PACKAGE = Path(inspect.getfile(treewright)).parent
WIDTH = 110

PRELUDE = """
import dataclasses, functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple
import jax, jax.numpy as jnp, numpy as np, optax
import treewright
from treewright import *
from treewright import checkpoint, sharding
from treewright.testing import assert_trees_close

class Dense(Module):
    kernel: jax.Array
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array] = static(default=jax.nn.relu)

    def __call__(self, x):
        return self.activation(self.kernel @ x + self.bias)

class Net(Module):
    layers: tuple[Dense, ...]
    rate: float = 0.1
    width: int = static(default=64)

@pytree_dataclass
class Point:
    x: float
    y: float

dense = Dense(jnp.ones((2, 3)), jnp.zeros(2))
net = Net((dense, dense))
x = jnp.ones(3)
tx = optax.sgd(0.1)
state = TrainState.create(params=dense, tx=tx)
mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"))

def loss(dense, x):
    return dense(x).sum()
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: the code, the message, and the corrected program."""

    code: str
    message: str
    fixed: str = ""

    def __str__(self) -> str:
        return f"{self.code}\n{self.message}"


def rows_of(table: Path) -> list[Row]:
    """The rows; a comment, which begins with `#`, is a row without a message."""
    rows: list[Row] = []
    for block in table.read_text(encoding="utf-8").strip().split("\n\n"):
        slip, _, fixed = block.partition("\nfixed:\n")
        code, arrow, message = slip.partition("\n=>")
        rows.append(Row(code, f"=>{message}" if arrow else "", fixed))
    return rows


# A sentence with a fix begins with one of these verbs, and contains a call or an assignment.
IMPERATIVE = re.compile(
    r"\b(Write|Use|Call|Pass|Declare|Make|Give|Drop|Add|Take|Adopt|Convert|Average|Jit|Assign|Wrap|Define)\b"
    r"[^.]*?(\w\(|=)"
)


def shown_lines(message: str) -> list[str]:
    """The lines of Python in a message that are on separate lines."""
    lines: list[str] = []
    for line in re.sub(r"\n   (?! )", " ", message).splitlines():
        code = line.removeprefix("=>   ").partition(", or ")[0].removeprefix("Write ")
        with contextlib.suppress(SyntaxError):
            statements = ast.parse(code).body if line.startswith("=>   ") else []
            if statements and not isinstance(getattr(statements[0], "value", None), ast.Name | ast.Attribute):
                lines.append(code)
    return lines


def contains_line(program: str, line: str) -> bool:
    """Whether a program has a line; its dots stand for anything."""
    pattern = re.escape(re.sub(r"\s", "", line)).replace(r"\.\.\.", ".+")
    return re.search(pattern, re.sub(r"\s", "", program)) is not None


@functools.cache
def names_of_the_prelude() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "slips"}
    exec(compile(PRELUDE, "<prelude>", "exec"), names)
    return names


def run(code: str, folder: Path) -> tuple[str, BaseException | None]:
    """All output of the code: printed, warned and raised; and the exception."""
    linecache.cache["<slip>"] = (len(code), None, code.splitlines(keepends=True), "<slip>")
    module = types.ModuleType("slips")
    printed, error = io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        patch.setitem(sys.modules, "slips", module)
        vars(module).update(names_of_the_prelude(), FOLDER=folder)
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<slip>", "exec"), vars(module))
        except Exception as raised:  # noqa: BLE001  any exception is the message
            error = raised
    lines = [printed.getvalue().rstrip()] if printed.getvalue() else []
    lines += [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    if error is not None:
        lines += [f"{type(error).__name__}: {error}", *(note for note in notes_of(error) if not note.startswith("---"))]
    return without_varying_parts("\n".join(lines), folder).replace("slips.", ""), error


def notes_of(error: BaseException) -> list[str]:
    notes: list[str] = getattr(error, "__notes__", [])
    return [note for note in notes if not note.startswith("when serializing ")]  # Python's, from 3.14 on


def table_text(text: str) -> str:
    """The message as in a table."""
    lines = [textwrap.wrap(line, WIDTH, break_on_hyphens=False) or [""] for line in text.splitlines()]
    return "\n".join("\n   ".join(["=> " + line[0], *line[1:]]).rstrip() for line in lines)


def skip_without(table: Path) -> None:
    """Skip a table whose package or devices are not here."""
    if table.stem == "steps":
        pytest.importorskip("orbax.checkpoint")
    if table.stem == "sharding":
        skip_below_devices(4)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_each_mistake_produces_the_message_in_the_table(table: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_before_jax(0, 10, 2)
    skip_without(table)
    rows = rows_of(table)

    def with_messages() -> str:
        return "\n\n".join(with_message(row, tmp_path_factory.mktemp("slip")) for row in rows) + "\n"

    compare_with_snapshot(with_messages, table.read_text(encoding="utf-8"), table.write_text)


def with_message(row: Row, folder: Path) -> str:
    """The row as text, with the message that its code produces now."""
    if row.code.startswith("#"):
        return row.code
    message, error = run(row.code, folder)
    assert message, f"no message for\n{row.code}"
    assert error is None or raised_on_purpose(error), f"crashed inside Treewright:\n{row.code}\n{message}"
    return f"{row.code}\n{table_text(message)}" + (f"\nfixed:\n{row.fixed}" if row.fixed else "")


FIXED = [(table, row) for table in TABLES for row in rows_of(table) if shown_lines(row.message) or row.fixed]


@pytest.mark.parametrize(
    ("table", "row"), FIXED, ids=[f"{table.stem}: {row.code.splitlines()[-1]}"[:60] for table, row in FIXED]
)
def test_the_line_in_a_message_fixes_the_mistake(table: Path, row: Row, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    skip_without(table)
    assert row.fixed, f"{table.name}: this message shows a line, so its row needs a corrected program\n{row}"
    missing = [line for line in shown_lines(row.message) if not contains_line(row.fixed, line)]
    assert not missing, f"the corrected program lacks the line in the message, {missing}"
    assert isinstance(ast.parse(row.fixed).body[-1], ast.Assert), "its last line must assert the intended result"

    message, error = run(row.fixed, tmp_path)

    assert (message, error) == ("", None)


def test_a_message_with_a_fix_has_a_corrected_program() -> None:
    rows = [(table.stem, row) for table in TABLES for row in rows_of(table)]

    without = [
        f"{stem}: {row}" for stem, row in rows if IMPERATIVE.search(row.message.replace("\n   ", " ")) and not row.fixed
    ]

    assert not without, "\n\n".join(without)


def raised_on_purpose(error: BaseException) -> bool:
    """Whether the last line that ran is in the user's code, or is a `raise`."""
    if isinstance(error, TypeError) and re.search(r"\(\) (takes|missing|got an unexpected)", str(error)):
        return True  # a user's function, which Treewright called correctly
    if type(error).__module__ == errors.__name__:
        return True  # our frames are left out of errors that pass through jit
    if any(note.startswith("Raised by the ") for note in notes_of(error)):
        return True  # a user's converter or default factory, which the note names
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if not Path(frame.filename).is_relative_to(PACKAGE):
        return True
    return linecache.getline(frame.filename, frame.lineno or 0).strip().startswith("raise")


def test_the_tables_contain_enough_mistakes() -> None:
    rows = [row.code for table in TABLES for row in rows_of(table) if not row.code.startswith("#")]

    assert len(rows) >= 115
    assert len(set(rows)) == len(rows)


# No internal name in any message


def internal_names() -> set[str]:
    """The private modules of the package, and its classes that are not public under their own names."""
    modules = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "treewright.")]
    names = {f"treewright.{part}" for name in modules for part in [name.split(".")[1]] if part.startswith("_")}
    for name in modules:
        if not name.endswith("__main__"):
            classes = inspect.getmembers(importlib.import_module(name), inspect.isclass)
            names |= {cls.__name__ for _, cls in classes if cls.__module__ == name}
    public = {name for module in PUBLIC for name in dir(importlib.import_module(module))}
    # A class of one plain word, such as `Place` or `Call`, looks like the word.
    telling = re.compile(r"_\w+|[A-Z][a-z]+([A-Z]\w*)+|treewright\.\w+")
    foreign = {"ArrayImpl", "a JitTracer", "a DynamicJaxprTracer", "PyTreeDef("}
    return {name for name in names - public if telling.fullmatch(name)} | foreign | {"Recorder"}


PUBLIC = ("treewright", "treewright.errors", "treewright.checkpoint", "treewright.sharding", "treewright.testing")
MESSAGES = [*TABLES, *(Path(__file__).parent / "snapshots").glob("*messages.txt")]


def mentioned_names(text: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if re.search(rf"(?<!\w){re.escape(name)}", text))


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_messages_mention_no_internal_names(path: Path) -> None:
    # Messages that come only from Python or JAX are not ours, for example about a called array.
    message = [line for line in path.read_text(encoding="utf-8").splitlines() if "jaxlib._jax." not in line]

    assert mentioned_names("\n".join(message), internal_names()) == []
