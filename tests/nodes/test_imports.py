"""Something to do after an import: now, later, once, and nothing is left behind."""

from __future__ import annotations

import importlib
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from treewright._core.others import AfterImport, when_imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "imported_later"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop(NAME, None)
    sys.meta_path[:] = [one for one in sys.meta_path if not (isinstance(one, AfterImport) and one.name == NAME)]


def waiting() -> list[AfterImport]:
    return [one for one in sys.meta_path if isinstance(one, AfterImport) and one.name == NAME]


def test_actions_run_in_order_after_the_module_has_been_executed(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("value = 1\n")
    seen: list[tuple[str, int]] = []
    when_imported(NAME, lambda module: seen.append(("first", module.value)))
    when_imported(NAME, lambda module: seen.append(("second", module.value)))
    assert seen == []
    assert len(waiting()) == 1

    importlib.import_module(NAME)

    assert seen == [("first", 1), ("second", 1)]
    assert waiting() == []


def test_an_action_runs_at_once_where_the_module_is_imported_already(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("value = 2\n")
    importlib.import_module(NAME)
    seen: list[int] = []

    when_imported(NAME, lambda module: seen.append(module.value))

    assert seen == [2]
    assert waiting() == []


def test_an_action_from_inside_an_action_runs_too(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("value = 3\n")
    seen: list[str] = []
    finder = AfterImport(NAME)
    sys.meta_path.insert(0, finder)
    when_imported(NAME, lambda _: seen.append(str(finder.add(lambda _: None))))

    importlib.import_module(NAME)

    assert seen == ["False"]


def test_one_that_finds_out_too_late_acts_at_once(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("value = 4\n")
    seen: list[int] = []
    finder = AfterImport(NAME)
    sys.meta_path.insert(0, finder)
    importlib.import_module(NAME)
    sys.meta_path.insert(0, finder)  # as another thread would still see it

    when_imported(NAME, lambda module: seen.append(module.value))

    assert seen == [4]


def test_a_module_that_fails_to_import_or_is_not_there_is_waited_for_again(folder: Path) -> None:
    seen: list[int] = []
    when_imported(NAME, lambda module: seen.append(module.value))
    with pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)

    source = folder / f"{NAME}.py"
    source.write_text("raise RuntimeError('broken')\n")
    importlib.invalidate_caches()
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module(NAME)
    assert seen == []

    source.write_text("value = 5  # and another length\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == [5]


def test_two_that_wait_for_one_module_both_act(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("value = 6\n")
    seen: list[int] = []
    finders = [AfterImport(NAME), AfterImport(NAME)]  # as two threads would put them
    sys.meta_path[:0] = finders
    for finder in finders:
        finder.add(lambda module: seen.append(module.value))

    importlib.import_module(NAME)

    assert seen == [6, 6]
    assert waiting() == []


def test_a_loader_that_serves_several_modules_acts_for_its_own_only(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr(f"{NAME}.py", "import zipped_neighbour\nvalue = 7\n")
        archive.writestr("zipped_neighbour.py", "")
    monkeypatch.syspath_prepend(tmp_path / "both.zip")
    seen: list[int] = []
    when_imported(NAME, lambda module: seen.append(module.value))

    importlib.import_module(NAME)

    assert seen == [7]
    sys.modules.pop("zipped_neighbour")


def test_a_namespace_package_has_nothing_to_execute(folder: Path) -> None:
    (folder / NAME).mkdir()
    when_imported(NAME, lambda _: None)

    importlib.import_module(NAME)

    assert sys.modules[NAME].__file__ is None
