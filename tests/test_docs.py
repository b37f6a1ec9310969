"""Every Python block of README.md and docs/ runs, and prints what the block below it says.

The blocks of one page share their names and run in order. A ```text block holds the output of the Python block directly
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

from tests.conftest import skip_before_jax

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

FENCED = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?P<target>[^)#]+)?(?:#(?P<heading>[^)]+))?\)")
LANGUAGES = {"python", "sh", "text"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    directly_above: str  # what stands between this block and the one before


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in FENCED.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        found.append(Block(match["language"], match["text"], line, page[end : match.start()]))
        end = match.end()
    return found


def unchecked_blocks(page: str) -> Iterator[str]:
    """Blocks that no test would look at, and output of no Python block."""
    before = ""
    for block in blocks_of(page):
        if block.language not in LANGUAGES:
            yield f"line {block.line}: a block in {block.language!r}"
        if block.language == "text" and (before != "python" or block.directly_above.strip()):
            yield f"line {block.line}: output without a Python block directly above"
        before = block.language


def output_of(block: Block, namespace: dict[str, object], filename: str, *, may_raise: bool) -> str:
    """What the block prints, with the last line of a traceback if it raises and may."""
    code = compile("\n" * block.line + block.text, filename, "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(code, namespace)
        except Exception as error:
            if not may_raise:
                raise
            printed.write(traceback.format_exception_only(error)[0])
    return printed.getvalue()


def wrong_output(page: str, filename: str) -> Iterator[str]:
    """Runs the Python blocks of a page as one module; yields what they print and the page does not say."""
    module = types.ModuleType("page")
    # With a loader, without which Python 3.15 warns whenever a traceback passes through the module.
    module.__loader__ = importlib.machinery.SourceFileLoader("page", filename)
    module.__spec__ = importlib.machinery.ModuleSpec("page", module.__loader__)
    sys.modules["page"] = module
    try:
        for block, below in pairwise([*blocks_of(page), Block("", "", 0, "")]):
            if block.language != "python":
                continue
            promises = below.language == "text"
            printed = output_of(block, vars(module), filename, may_raise=promises)
            expected = below.text if promises else ""
            if not doctest.OutputChecker().check_output(expected, printed, FLAGS):
                yield f"{filename}:{block.line} prints\n{printed}where the page says\n{expected or 'nothing'}"
    finally:
        del sys.modules["page"]


def headings(page: str) -> set[str]:
    """The names by which links reach the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path) -> Iterator[str]:
    prose = INLINE.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
    for match in LINK.finditer(prose):
        target, heading = match["target"] or path.name, match["heading"]
        if target.startswith("https://"):
            continue
        linked = path.parent / target
        if not linked.exists():
            yield f"{path}: {target}"
        elif heading is not None and heading not in headings(linked.read_text(encoding="utf-8")):
            yield f"{path}: {target}#{heading}"


def unknown_targets(page: str, makefile: str) -> set[str]:
    """What follows `make` in shell blocks and is no target."""
    shell = [block.text for block in blocks_of(page) if block.language == "sh"]
    named = {name for text in shell for name in re.findall(r"^make (\w+)", text, re.MULTILINE)}
    return named - set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_python_block_prints_what_the_page_says(path: Path) -> None:
    if path.name in {"in-place.md", "inside.md", "sharding.md", "statics.md"}:  # kinds of refs, errors, a PartitionSpec
        skip_before_jax(0, 10, 2)
    for package in ("flax", "orbax"):  # without wheels for the newest Python
        if re.search(rf"^(import|from) {package}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            pytest.importorskip(package)
    assert "\n".join(wrong_output(path.read_text(encoding="utf-8"), str(path))) == ""


@pytest.mark.parametrize("path", [*PAGES, ROOT / "examples" / "README.md"], ids=lambda path: path.name)
def test_every_block_is_checked_every_link_leads_somewhere_and_every_make_target_exists(path: Path) -> None:
    page = path.read_text(encoding="utf-8")

    assert [*(unchecked_blocks(page) if path in PAGES else ())] == []
    assert [*broken_links(path)] == []
    assert not unknown_targets(page, (ROOT / "Makefile").read_text(encoding="utf-8"))
