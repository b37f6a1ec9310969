"""`python -m treewright move`: output, written files, and rejected arguments."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treewright.__main__ import main
from treewright.move.program import Program
from treewright.move.source import Source

pytestmark = pytest.mark.slow

BEFORE = "from flax import struct\n\n\n@struct.dataclass\nclass A:\n    x: int\n"
AFTER = "from treewright import pytree_dataclass\n\n\n@pytree_dataclass\nclass A:\n    x: int\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def move(*arguments: str) -> int:
    return main(["move", *arguments])


def test_move_prints_a_diff_and_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(BEFORE)

    status = move("a.py")

    assert status == 0
    printed, said = capsys.readouterr()
    assert printed == (
        "--- a.py\n+++ a.py\n@@ -1,6 +1,6 @@\n"
        "-from flax import struct\n+from treewright import pytree_dataclass\n \n \n"
        "-@struct.dataclass\n+@pytree_dataclass\n class A:\n     x: int\n"
    )
    assert said == "Nothing has been changed. --write changes 1 file.\n"
    assert (folder / "a.py").read_text() == BEFORE


def test_write_changes_the_files_and_keeps_their_permissions_links_and_line_ends(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "src").mkdir()
    file = folder / "src" / "a.py"
    file.write_bytes(BEFORE.replace("\n", "\r\n").encode())
    file.chmod(0o755)
    (folder / "link.py").symlink_to(file)

    status = move("--write", "link.py", "src/a.py")

    assert status == 0
    assert file.read_bytes() == AFTER.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
    assert (folder / "link.py").is_symlink()
    assert list((folder / "src").iterdir()) == [file]
    assert capsys.readouterr().err == "Changed 1 file.\n"


def test_write_keeps_the_encoding_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"# -*- coding: latin-1 -*-\n# Zürich\n{BEFORE}".rstrip("\n")
    (folder / "a.py").write_bytes(text.encode("latin-1"))

    move("--write", "a.py")

    after = f"# -*- coding: latin-1 -*-\n# Zürich\n{AFTER}".rstrip("\n")
    assert (folder / "a.py").read_bytes() == after.encode("latin-1")
    assert " # Zürich\n" in (printed := capsys.readouterr().out)
    assert printed.endswith("     x: int\n\\ No newline at end of file\n")


def test_move_skips_hidden_folders_and_environments(folder: Path) -> None:
    for name in ("deep/er", ".hidden", "env"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.py").write_text(BEFORE)
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "notes.txt").write_text(BEFORE)

    move("--write", ".")

    files = [path for path in folder.rglob("*") if path.is_file()]
    changed = {str(path.relative_to(folder)) for path in files if "@pytree" in path.read_text()}
    assert changed == {"deep/er/a.py"}


def test_move_skips_links_that_lead_to_nothing(folder: Path) -> None:
    (folder / "a.py").write_text(BEFORE)
    (folder / ".#a.py").symlink_to("user@host.1")  # the lock of an editor
    (folder / "loop.py").symlink_to("loop.py")

    assert move("--write", ".") == 0

    assert (folder / "a.py").read_text() == AFTER


def test_move_reports_no_serialization_without_nodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text("from flax.serialization import to_bytes\nto_bytes({})\n")

    assert move("a.py") == 0

    assert capsys.readouterr().err == "Nothing has been changed. --write changes 0 files.\n"


def test_move_rewrites_only_the_named_library(folder: Path) -> None:
    (folder / "a.py").write_text(BEFORE)

    assert move("--write", "a.py", "--from", "chex") == 0

    assert (folder / "a.py").read_text() == BEFORE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"class A(:\n", "broken.py:1: this does not parse: "),
        (b"# -*- coding: no-such -*-\nimport flax\n", "broken.py: this can't be read as Python: "),
        (b"import flax\nx = '\xff'\n", "broken.py: this can't be read as Python: "),
    ],
)
def test_write_changes_nothing_if_a_file_does_not_parse(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    (folder / "a.py").write_text(BEFORE)
    (folder / "broken.py").write_bytes(content)

    status = move("--write", ".")

    assert status == 2
    assert (folder / "a.py").read_text() == BEFORE
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.endswith("\nNothing has been changed.\n")


def test_write_changes_nothing_if_the_disk_is_full(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (folder / f"{name}.py").write_text(BEFORE)
    write = Path.write_bytes

    def failing(self: Path, content: bytes) -> int:
        if self.name.startswith(".c.py"):
            raise OSError("the disk is full")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", failing)

    assert move("--write", ".") == 2

    assert {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys(["a.py", "b.py", "c.py"], BEFORE)
    assert capsys.readouterr().err == "the disk is full\nNothing has been changed.\n"


def test_write_names_the_files_that_were_changed_before_one_cannot_be_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (folder / f"{name}.py").write_text(BEFORE)
    rename = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if target.name == "b.py":
            raise OSError("b.py can't be replaced")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", failing)

    assert move("--write", ".") == 2

    assert {file.name: file.read_text() for file in folder.iterdir()} == {"a.py": AFTER, "b.py": BEFORE}
    error = capsys.readouterr().err
    assert error == f"b.py can't be replaced\nOnly these files have been changed:\n{folder / 'a.py'}\n"


def test_write_changes_nothing_if_a_rewritten_file_does_not_parse(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.py").write_text(BEFORE)
    monkeypatch.setattr(Source, "rewritten", lambda *_: b"class A(:")

    assert move("--write", ".") == 2

    assert (folder / "a.py").read_text() == BEFORE
    assert capsys.readouterr().err == (
        "a.py: a bug in this command: the rewritten file would not parse.\nNothing has been changed.\n"
    )


def test_move_imports_no_checkpoint_code(folder: Path) -> None:
    (folder / "a.py").write_text(BEFORE)
    program = (
        "import sys; sys.modules['fcntl'] = None\n"
        "from treewright.__main__ import main\n"
        "assert main(['move', '--write', 'a.py']) == 0\n"
        "assert not [name for name in sys.modules if name.startswith('treewright.checkpoint')]"
    )

    subprocess.run([sys.executable, "-c", program], check=True)

    assert (folder / "a.py").read_text() == AFTER


def test_move_rejects_a_missing_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert move("nowhere") == 2
    assert capsys.readouterr().err == "nowhere is neither a file nor a folder.\nNothing has been changed.\n"


def test_write_reports_line_numbers_of_the_new_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(
        "from dataclasses import field\nif 1:\n    from flax import struct\n\n\n@struct.dataclass\nclass A:\n"
        "    x: int = struct.field(pytree_node=False)\n\n    def __post_init__(self):\n        pass\n"
    )

    move("a.py")
    assert "a.py:10: A.__post_init__ runs" in capsys.readouterr().err
    move("--write", "a.py")

    lines = (folder / "a.py").read_text().splitlines()
    line = lines.index("    def __post_init__(self):") + 1
    assert line != 10
    assert f"a.py:{line}: A.__post_init__ runs" in capsys.readouterr().err


def test_move_names_notebooks_that_it_skips(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.ipynb").write_text('{"cells": [{"source": ["from flax import struct"]}]}')
    (folder / "b.ipynb").write_text('{"cells": [{"source": ["import jax"]}]}')

    status = move(".")

    assert status == 1
    assert capsys.readouterr().err == (
        "a.ipynb was skipped, since it is a notebook: export it as a .py file, and move that\n"
        "Nothing has been changed. --write changes 0 files.\n"
    )


def test_move_reports_the_lines_of_many_similar_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "@chex.dataclass\nclass A{0}:\n    x: int\n\n\n"
    (folder / "a.py").write_text("import chex\n\n\n" + "".join(body.format(number) for number in range(300)))

    move("--write", "a.py")

    report = capsys.readouterr().err
    lines = (folder / "a.py").read_text().splitlines()
    numbers = [int(line.split(":")[1]) for line in report.splitlines() if "A2" in line]
    assert all("class A" in lines[number - 1] for number in numbers)
    assert len(numbers) == 111


def test_move_follows_each_variable_and_each_base_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth, steps = 40, 0
    variables = [f"v{each} = (v{each + 1}, v{each + 1})" for each in reversed(range(depth))]
    classes = [f"class {name}{each}(A{each - 1}, B{each - 1}): pass" for each in range(1, depth) for name in "AB"]
    lines = ["from flax import struct", f"v{depth} = [1]", *variables]
    lines += ["class A0(struct.PyTreeNode):", "    x: tuple = struct.field(pytree_node=False, default=v0)"]
    lines += ["class B0(struct.PyTreeNode): pass", *classes, f"A{depth - 1}.x"]
    (folder / "a.py").write_text("\n".join([*lines, ""]))
    names_of, above = Program.names_of, Program.above

    def counted(function: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            return function(*args)

        return call

    monkeypatch.setattr(Program, "names_of", counted(names_of))
    monkeypatch.setattr(Program, "above", counted(above))

    move("--write", "a.py")

    assert "static(default=v0, converter=freeze)" in (folder / "a.py").read_text()
    assert steps < 200 * depth


def test_move_without_libcst_prints_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)

    assert move("a.py") == 2

    assert capsys.readouterr().err == (
        "treewright move needs libcst. Install it with: pip install libcst\n"
        "In a checkout of Treewright, this installs everything for it: pip install '.[move]'\n"
    )
