"""Every Python block of README.md and docs/ runs, and prints the block below it.

The blocks of one page share their names and run in order. A ```text block is the output of the Python block directly
above it; if that raises, its last line is `ErrorName: message`. `...` stands for anything, line breaks are free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import importlib.machinery
import io
import re
import sys
import traceback
import types
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import skip_before_jax, skip_below_devices
from tests.expected_text import without_varying_parts
from treewright import RetraceReport, explain_retraces

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

FENCED = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)
INCLUDED = re.compile(r'^--8<-- "(?P<file>[^":]+\.py)"$', re.MULTILINE)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?P<target>[^)#]+)?(?:#(?P<heading>[^)]+))?\)")
LANGUAGES = {"python", "sh", "text"}
# `make exhaustive` installs them, so `make test` leaves out the blocks that need them.
EXHAUSTIVE = re.compile(r"^(import|from) (blackjax|numpyro)\b", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    title: str | None
    directly_above: str  # the text between this block and the one before


def text_of(path: Path) -> str:
    """A page, with the programs that it includes."""
    text = path.read_text(encoding="utf-8")
    return INCLUDED.sub(lambda match: (ROOT / match["file"]).read_text(encoding="utf-8").rstrip(), text)


def blocks_of(page: str) -> list[Block]:
    blocks: list[Block] = []
    end = 0
    for match in FENCED.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        blocks.append(Block(match["language"], match["text"], line, match["title"], page[end : match.start()]))
        end = match.end()
    return blocks


def unchecked_blocks(page: str) -> Iterator[str]:
    """Blocks that no test would check, and output without a Python block."""
    before = ""
    for block in blocks_of(page):
        if block.language not in LANGUAGES:
            yield f"line {block.line}: a block in {block.language!r}"
        if block.language == "text" and (before != "python" or block.directly_above.strip()):
            yield f"line {block.line}: output without a Python block directly above"
        before = block.language


def output_of(block: Block, namespace: dict[str, object], filename: str, *, may_raise: bool) -> str:
    """The output of the block, with the last line of a traceback if it may raise and does."""
    text = block.text if block.title else "\n" * block.line + block.text
    code = compile(text, block.title or filename, "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(code, namespace)
        except Exception as error:
            if not may_raise:
                raise
            printed.write(traceback.format_exception_only(error)[0])
    return printed.getvalue()


def same_output(expected: str, printed: str) -> bool:
    expected, printed = without_varying_parts(expected), without_varying_parts(printed)
    return doctest.OutputChecker().check_output(expected, printed, FLAGS)


def wrong_output(page: str, filename: str, *, exhaustive: bool = False) -> Iterator[str]:
    """Runs the Python blocks of a page as one module; yields output that the page does not show."""
    module = types.ModuleType("page")
    # With a loader, because Python 3.15 warns if a traceback passes through a module without one.
    module.__loader__ = importlib.machinery.SourceFileLoader("page", filename)
    module.__spec__ = importlib.machinery.ModuleSpec("page", module.__loader__)
    sys.modules["page"] = module
    try:
        for block, following in pairwise([*blocks_of(page), Block("", "", 0, None, "")]):
            if block.language != "python" or (EXHAUSTIVE.search(block.text) and not exhaustive):
                continue
            has_output = following.language == "text"
            printed = output_of(block, vars(module), filename, may_raise=has_output)
            expected = following.text if has_output else ""
            if not same_output(expected, printed):
                yield f"{filename}:{block.line} prints\n{printed}but the page shows\n{expected or 'nothing'}"
    finally:
        del sys.modules["page"]


def headings(page: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path) -> Iterator[str]:
    prose = INLINE.sub("", FENCED.sub("", text_of(path)))
    for match in LINK.finditer(prose):
        target, heading = match["target"] or path.name, match["heading"]
        if target.startswith("https://"):
            continue
        linked = path.parent / target
        if not linked.exists():
            yield f"{path}: {target}"
        elif heading is not None and heading not in headings(text_of(linked)):
            yield f"{path}: {target}#{heading}"


def unknown_targets(page: str, makefile: str) -> set[str]:
    """Words after `make` in shell blocks that are not targets."""
    shell = [block.text for block in blocks_of(page) if block.language == "sh"]
    named = {name for text in shell for name in re.findall(r"^make (\w+)", text, re.MULTILINE)}
    return named - set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_python_block_prints_the_output_on_the_page(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if path.name in {"internals.md", "sharding.md", "statics.md"}:  # errors, a PartitionSpec
        skip_before_jax(0, 10, 2)
    if re.search(r"make_mesh\(\(\d", text_of(path)):
        skip_below_devices(4)
    for package in ("flax", "orbax"):  # without wheels for the newest Python
        if re.search(rf"^(import|from) {package}\b", text_of(path), re.MULTILINE):
            pytest.importorskip(package)
    reports: list[RetraceReport] = []
    with explain_retraces(on_report=reports.append):
        assert "\n".join(wrong_output(text_of(path), str(path))) == ""

    # A page that changes a state must not show a number without a dtype, which compiles the step a second time.
    assert [str(report) for report in reports if "weakly typed" in str(report)] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", [path for path in PAGES if EXHAUSTIVE.search(text_of(path))])
def test_blocks_with_exhaustive_libraries_print_the_output_on_the_page(path: Path) -> None:
    assert "\n".join(wrong_output(text_of(path), str(path), exhaustive=True)) == ""


@pytest.mark.parametrize("path", [*PAGES, ROOT / "examples" / "README.md"], ids=lambda path: path.name)
def test_all_blocks_links_and_make_targets_are_valid(path: Path) -> None:
    page = text_of(path)

    assert [*(unchecked_blocks(page) if path in PAGES else ())] == []
    assert [*broken_links(path)] == []
    assert not unknown_targets(page, (ROOT / "Makefile").read_text(encoding="utf-8"))
