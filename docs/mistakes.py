"""The pages of every mistake, from the tables of `tests/slips`: wrong program, whole message, right program."""

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
FOLDER = "reference/mistakes"
MOST = 60  # entries of a page; a table with more continues on another one, at a heading if it can
WIDTH = 60  # of a heading
INDEX = """# Every mistake

Each program on these pages is a mistake, with the whole message and, where the message has a line to write, the right
program. The tests of the package run them all. To find one, search this site for words
of its message in quotation marks.

To turn off a warning, filter its category and the start of its message:
`warnings.filterwarnings("ignore", category=treewright.errors.ChildWarning, message=r"Net\\.name ")`.

"""


def pages() -> Iterator[tuple[str, str]]:
    """The place of each page in the site, and its Markdown; the index comes last."""
    links = []
    for table in sorted((TESTS / "slips").glob("*.txt")):
        for number, groups in enumerate(_pages_of(table), 1):
            suffix = "" if number == 1 else f"-{number}"
            headings = ", ".join(heading.rstrip(".") for heading, _ in groups)
            title = f"Mistakes: {table.stem}" + ("" if number == 1 else f" ({headings[0].lower()}{headings[1:]})")
            names = _names([row for _, rows in groups for row in rows])
            entries = [
                text
                for heading, rows in groups
                for text in (f"## {heading.rstrip('.')}\n", *[_entry(names[row], row) for row in rows])
            ]
            head = f"---\nhide: [toc]\n---\n\n# {title}\n\n[All pages](index.md)\n"
            yield f"{FOLDER}/{table.stem}{suffix}.md", "\n".join([head, *entries])
            links.append(f"- [{title}]({table.stem}{suffix}.md)" + (f": {headings}" if number == 1 else ""))
    prelude = (TESTS / "test_slips.py").read_text(encoding="utf-8").partition('PRELUDE = """')[2].partition('"""')[0]
    yield f"{FOLDER}/index.md", "\n".join([INDEX, *links, "\nAll programs begin with:\n", _fenced(prelude, "python")])


Group = tuple[str, list[str]]


def _pages_of(table: Path) -> list[list[Group]]:
    """The headings of a table with their rows, page by page."""
    groups: list[Group] = []
    for block in table.read_text(encoding="utf-8").strip().split("\n\n"):
        if "\n=>" in block:
            groups[-1][1].append(block)
        else:
            groups.append((block.removeprefix("# "), []))
    pages: list[list[Group]] = [[]]
    for heading, rows in groups:
        for start in range(0, len(rows), MOST):
            part = rows[start : start + MOST]
            if pages[-1] and sum(len(each) for _, each in pages[-1]) + len(part) > MOST:
                pages.append([])
            pages[-1].append((heading, part))
    return pages


def _parts(row: str) -> tuple[str, str, str]:
    """The wrong program, the message without the breaks of its lines, and the right program."""
    slip, _, fixed = row.partition("\nfixed:\n")
    code, _, wrapped = slip.partition("\n=>")
    message = re.sub(r"\n   (?! )", " ", wrapped).replace("\n=>", "\n").replace("\n ", "\n").strip()
    return code, message, fixed


def _names(rows: list[str]) -> dict[str, str]:
    """The heading of each mistake of a page: the first words of its message, and of its program where these repeat."""
    starts = [_start(_parts(row)[1].splitlines()[0]) for row in rows]
    ends = [f"` in `{_start(_parts(row)[0].splitlines()[-1])}" for row in rows]
    names = {row: start + end * (starts.count(start) > 1) for row, start, end in zip(rows, starts, ends, strict=True)}
    numbers = {row: [*names.values()][: [*names].index(row) + 1].count(name) for row, name in names.items()}
    return {row: f"`{name}`" if numbers[row] == 1 else f"`{name}` ({numbers[row]})" for row, name in names.items()}


def _start(line: str) -> str:
    line = re.sub(r"[`\s]+", " ", line).strip()
    return line if len(line) <= WIDTH else line[:WIDTH].rpartition(" ")[0] + " ..."


def _entry(name: str, row: str) -> str:
    code, message, fixed = _parts(row)
    parts = [f"### {name}\n", _fenced(code, "python"), _fenced(message, "text")]
    return "\n".join([*parts, "Instead:\n", _fenced(fixed, "python")] if fixed else parts)


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.strip()}\n```\n"
