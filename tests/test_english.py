"""Words and phrases that are never right in our text: docs, docstrings, comments, messages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("src/**/*.py", "src/**/*.pyi", "examples/**/*.py", "benchmarks/**/*.py", "tests/**/*.py")
PAGES = (
    *("docs/**/*.md", "docs/*.py", "examples/*.md", "typings/*.md", "changes/*.md", "tests/*.md"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
MESSAGES = ("tests/slips/*.txt", "tests/retrace/*.txt")

# A space in a pattern also matches a line break.
NEVER_RIGHT = (
    r"\banew\b",
    r'"""What ',
    r"\btells? of\b",
    r"\bhas met\b",
    r"\bor see to this\b",
    r"\bwithout a word\b",
    r"\b(made|make|makes|making) again\b",
    r"\bthat (is|are) there\b",
    r"\ball the same\b",
    r"\bat once\b",
    r"\brefus(e|es|ed|ing|al|als)\b",
    r"\b(is|are|has|have) to be\b",
    r"\bdef test_(what|it|where|one|that)_",
)


def phrases_in(text: str) -> list[str]:
    """The phrases in a text, as `line: phrase`. Indentation and the `# ` of comment lines don't count."""
    text = re.sub(r"\n[ \t]*(?:# )?", "\n", text)
    return [
        f"{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for pattern in NEVER_RIGHT
        for match in re.finditer(pattern.replace(" ", r"[ \n]"), text, re.IGNORECASE)
    ]


def test_no_text_has_a_phrase_that_is_never_right() -> None:
    paths = {path for pattern in (*SOURCES, *PAGES, *MESSAGES) for path in ROOT.glob(pattern)} - {Path(__file__)}
    places = [
        f"{path.relative_to(ROOT)}:{phrase}"
        for path in sorted(paths)
        for phrase in phrases_in(path.read_text(encoding="utf-8"))
    ]

    assert places == [], "Rewrite:\n" + "\n".join(places)


def test_a_phrase_is_found_across_lines_of_a_comment() -> None:
    assert phrases_in("x = 1\n    # the values that\n    # are there\n") == ["2: that\nare there"]
