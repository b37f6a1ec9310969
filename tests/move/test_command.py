"""`python -m treewright move`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import contextlib
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from treewright.__main__ import main
from treewright.move import command

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

BEFORE = "from flax import struct\n\n\n@struct.dataclass\nclass A:\n    x: int\n"
AFTER = "from treewright import pytree_dataclass\n\n\n@pytree_dataclass\nclass A:\n    x: int\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def move(*arguments: str) -> int:
    return main(["move", *arguments])


def test_it_prints_a_diff_and_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(BEFORE)

    status = move("a.py")

    assert status == 0
    printed, said = capsys.readouterr()
    assert printed == (
        "--- a.py\n+++ a.py\n@@ -1,6 +1,6 @@\n"
        "-from flax import struct\n+from treewright import pytree_dataclass\n \n \n"
        "-@struct.dataclass\n+@pytree_dataclass\n class A:\n     x: int\n"
    )
    assert said == ""
    assert (folder / "a.py").read_text() == BEFORE


def test_write_changes_the_files_and_keeps_their_permissions_links_and_line_ends(folder: Path) -> None:
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


def test_the_encoding_of_a_file_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"# -*- coding: latin-1 -*-\n# Zürich\n{BEFORE}".rstrip("\n")
    (folder / "a.py").write_bytes(text.encode("latin-1"))

    move("--write", "a.py")

    after = f"# -*- coding: latin-1 -*-\n# Zürich\n{AFTER}".rstrip("\n")
    assert (folder / "a.py").read_bytes() == after.encode("latin-1")
    assert " # Zürich\n" in (printed := capsys.readouterr().out)
    assert printed.endswith("     x: int\n\\ No newline at end of file\n")


def test_folders_are_searched_but_for_hidden_ones_and_environments(folder: Path) -> None:
    for name in ("deep/er", ".hidden", "env"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.py").write_text(BEFORE)
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "notes.txt").write_text(BEFORE)

    move("--write", ".")

    files = [path for path in folder.rglob("*") if path.is_file()]
    changed = {str(path.relative_to(folder)) for path in files if "@pytree" in path.read_text()}
    assert changed == {"deep/er/a.py"}


def test_only_the_library_that_was_named_moves(folder: Path) -> None:
    (folder / "a.py").write_text(BEFORE)

    assert move("--write", "a.py", "--from", "chex") == 0

    assert (folder / "a.py").read_text() == BEFORE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"class A(:\n", "broken.py:1: this does not parse: "),
        (b"# -*- coding: no-such -*-\n", "broken.py: this can't be read as Python: "),
        (b"x = '\xff'\n", "broken.py: this can't be read as Python: "),
    ],
)
def test_nothing_is_changed_if_one_file_does_not_parse(
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


def test_nothing_is_changed_if_one_file_can_not_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.py").write_text(BEFORE)
    (folder / "b.py").write_text(BEFORE)
    from treewright.checkpoint import atomic

    replacing = atomic.replacing

    @contextlib.contextmanager
    def failing(path: Path) -> Generator[int]:
        if path.name == "b.py":
            raise OSError("the disk is full")
        with replacing(path) as descriptor:
            yield descriptor

    monkeypatch.setattr(atomic, "replacing", failing)

    assert move("--write", ".") == 2

    assert [file.read_text() for file in folder.iterdir()] == [BEFORE, BEFORE]
    assert "the disk is full" in capsys.readouterr().err


def test_a_path_that_leads_nowhere_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert move("nowhere") == 2
    assert capsys.readouterr().err == "nowhere is neither a file nor a folder.\nNothing has been changed.\n"


def test_what_can_not_be_decided_makes_the_exit_status_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(
        "import flax.struct\nimport jax\n\n\nclass A(flax.struct.PyTreeNode):\n"
        "    mode: str = flax.struct.field(pytree_node=MODE)\n"
        "    sizes: list[int] = flax.struct.field(pytree_node=False)\n"
    )

    assert move("a.py") == 1

    assert capsys.readouterr().err == (
        "Could not be decided:\n"
        "  a.py:6: A.mode is static or not as a variable says: write static() or field() (docs/moving/flax-struct.md)\n"
        "Means something else now, or was left:\n"
        "  a.py:7: A.sizes is static and freezes what it is given: a list becomes a tuple, a dict a FrozenMapping "
        "(docs/moving/flax-struct.md)\n"
    )


def test_after_write_the_lines_are_those_of_the_new_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(
        "import dataclasses\nimport jax\n\n\n@jax.tree_util.register_dataclass\n@dataclasses.dataclass\nclass A:\n"
        "    x: int\n\n    def __post_init__(self):\n        pass\n\n    def grow(self):\n        self.x += 1\n"
    )

    assert move("a.py") == 1
    assert "a.py:14: assigns to x" in capsys.readouterr().err
    assert move("--write", "a.py") == 1

    lines = (folder / "a.py").read_text().splitlines()
    said = capsys.readouterr().err
    assert f"a.py:{lines.index('        self.x += 1') + 1}: assigns to x" in said
    assert f"a.py:{lines.index('    def __post_init__(self):') + 1}: A.__post_init__ runs" in said


def test_classes_of_other_files_are_known(folder: Path) -> None:
    package = folder / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("from nets.base import Layer\n")
    (package / "base.py").write_text("import equinox as eqx\n\n\nclass Layer(eqx.Module):\n    x: int\n")
    (package / "more.py").write_text("from .base import Layer\n\n\nclass Wide(Layer):\n    width: int\n")
    (package / "other.py").write_text("import elsewhere\n\n\nclass Deep(elsewhere.Layer):\n    depth: int\n")

    move("--write", "nets")

    assert (package / "more.py").read_text() == (
        "from .base import Layer\nfrom treewright import static\n\n\nclass Wide(Layer):\n    width: int = static()\n"
    )
    assert "static" not in (package / "other.py").read_text()


def test_without_libcst_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("treewright.move.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "libcst", None)

    with pytest.raises(ImportError, match=r"treewright move needs libcst. Install it with: pip install libcst"):
        move("a.py")


def test_help_says_what_the_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        move("--help")
    assert "1 if something could not be decided" in " ".join(capsys.readouterr().out.split())
    assert command.__doc__ is not None


def test_a_diff_has_the_lines_that_python_has(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(f"# one\x0c line\n{BEFORE}", newline="")

    move("a.py")

    assert "\n # one\x0c line\n" in capsys.readouterr().out
