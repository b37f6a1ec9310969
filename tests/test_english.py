"""Phrases that read as translated, each with the highest count allowed. Counts may only fall."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("src/**/*.py", "src/**/*.pyi", "examples/**/*.py", "benchmarks/**/*.py", "tests/**/*.py")
PAGES = ("docs/**/*.md", "docs/*.py", "examples/*.md", "typings/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
MESSAGES = ("tests/slips/*.txt", "tests/retrace/*.txt")

# A space in a pattern also matches a line break, so `\x20` is written for a space within a line.
HIGHEST = {
    r"\banew\b": 0,
    r'"""What ': 0,
    r"\b(inside|outside) of\b": 2,
    r"(?<!there )\b(is|are) no (?!longer\b|more\b|fewer\b|less\b)\w+": 1,  # "there is no step" is fine
    r"\btells? of\b": 0,
    r"\bhas met\b": 0,
    r"\bor see to this\b": 0,
    r"\bwithout a word\b": 0,
    r"\b(made|make|makes|making) again\b": 0,
    r"\bthat (is|are) there\b": 0,
    r"\S\x20\x20# (of|which|by|else|as) ": 2,
    r"\bwhat (a|an|the|is|it|they|you|jax|was|has|can|this|each|one)\b": 22,
    r"\banother\b": 49,
    r"\bbesides?\b": 1,
    r"\balone\b": 8,
    r"\bof (its|their|your) own\b": 6,
    r"\b(that|those) of\b": 12,
    r"\ball the same\b": 0,
    r"\bat once\b": 0,
    r"\bcom(e|es|ing) (back|out)\b": 1,
    r"\brefus(e|es|ed|ing|al|als)\b": 0,
    r"\b(cures?|cured|remedy|remedies)\b": 2,
    r"\b(is|are|has|have) to be\b": 0,
    r"\b(from|for|by|with|in|on) which\b": 24,
    r"\b(nobody|told|hears? of)\b": 2,
    r"\bof (ours|yours|theirs)\b": 1,
    r"\bdef test_(what|it|where|one|that)_": 0,
}


@functools.cache
def texts() -> dict[str, str]:
    """Each file by its path, without indentation and the `# ` of comment lines; of the changelog, the top section."""
    paths = {path for pattern in (*SOURCES, *PAGES, *MESSAGES) for path in ROOT.glob(pattern)} - {Path(__file__)}
    contents = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(paths)}
    contents["CHANGELOG.md"] = contents["CHANGELOG.md"].partition("\n## Unreleased")[2].partition("\n## ")[0]
    return {name: re.sub(r"\n[ \t]*(?:# )?", "\n", text) for name, text in contents.items()}


def places(pattern: str) -> list[str]:
    """The places of a pattern, as `path:line: match`."""
    compiled = re.compile(pattern.replace(" ", r"[ \n]"), re.IGNORECASE)
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for name, text in texts().items()
        for match in compiled.finditer(text)
    ]


def test_changelog_entries_have_at_most_two_lines() -> None:
    entries = re.findall(r"^- .*(?:\n  .*)*", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert len(entries) > 200
    assert [entry for entry in entries if entry.count("\n") > 1] == []


@pytest.mark.parametrize("pattern", HIGHEST)
def test_a_phrase_is_no_more_frequent_than_before(pattern: str) -> None:
    matches = places(pattern)

    assert len(matches) <= HIGHEST[pattern], "Rewrite the new one:\n" + "\n".join(matches)
    assert len(matches) == HIGHEST[pattern], f"Fewer than before: write {len(matches)} in {Path(__file__).name}"
