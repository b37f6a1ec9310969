"""For mkdocs: pages from outside docs/, links from names in guides to the reference, and text that search skips."""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mistakes
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

# Files outside docs/ that are pages of the site, by the page's place in it.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
}
PROGRAMS = {
    str(path.relative_to(ROOT)): str(path.relative_to(ROOT).with_suffix(".md"))
    for path in sorted((ROOT / "examples").glob("**/*.py"))
}
SHOWN = "---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# {name}\n\n```python\n{code}```\n"

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<heading>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/, each example's source, and the pages of every mistake."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for source, page in PROGRAMS.items():
        code = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=SHOWN.format(name=Path(source).name, code=code)))
    for page, content in mistakes.pages():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Point links between files of the repository at pages of the site; a file that is no page is not linked.

    The words of `searches` in mkdocs.yml become the page's tags, which only the search looks at.

    If an image has a dark twin, as `x.png` and `x-dark.png`, the page shows the one that fits.
    """
    here = page.file.src_uri
    if words := config["extra"]["searches"].get(here):
        page.meta["tags"] = words.split()
    home = {**{page: source for source, page in PAGES.items()}, **{page: source for source, page in PROGRAMS.items()}}
    source = home.get(here, f"docs/{here}")

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = PAGES.get(path) or PROGRAMS.get(path) or (path[len("docs/") :] if path.startswith("docs/") else None)
        if place is None:
            return match["text"]
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        dark = relative.replace(".png", "-dark.png")
        if match["image"] and (ROOT / "docs" / place.replace(".png", "-dark.png")).exists() and dark != relative:
            return f"![{match['text']}]({relative}#only-light)![{match['text']}]({dark}#only-dark)"
        return f"{match['image']}[{match['text']}]({relative}{match['heading'] or ''})"

    return "".join(text if fenced else LINK.sub(link, text) for fenced, text in pieces(markdown))


def pieces(markdown: str) -> Iterator[tuple[bool, str]]:
    """The text of a page in parts, each with whether it is a fenced block."""
    end = 0
    for block in FENCED.finditer(markdown):
        yield False, markdown[end : block.start()]
        yield True, block[0]
        end = block.end()
    yield False, markdown[end:]


# Names in guides link to the reference


def public(module: str) -> list[str]:
    """`__all__` of a module, read from its source."""
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(statement.value)
            return names
    return []


SUBMODULES = ("checkpoint", "errors", "sharding", "testing", "typed")
REFERENCE = {
    **{f"typed.{name}": f"treewright.typed.{name}" for name in public("treewright.typed")},
    **{
        spelling: f"treewright.{module}.{name}"
        for module in SUBMODULES[:-1]
        for name in public(f"treewright.{module}")
        for spelling in (name, f"{module}.{name}")
    },
    **{name: f"treewright.{name}" for name in public("treewright") if name not in SUBMODULES},
}
CODE = re.compile(
    r"(?P<kept><(?P<tag>pre|a|h[1-6])\b.*?</(?P=tag)>)|(?P<section><h2\b)|<code>(?P<code>[^<\n]+)</code>", re.DOTALL
)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
NAME = re.compile(r"@?(?:treewright\.)?(?P<name>(?:[a-z]+\.)?[A-Za-z_]+)(?:\.[a-z_]+)?(?:\(.*\))?")


PRINTED = re.compile(
    r'(?P<start><div class="language-text highlight">.*?<code>)(?P<text>.*?)(?P<end></code>)', re.DOTALL
)


def lines_of_output(match: re.Match[str]) -> str:
    """Printed text with an element for each line, whose continuation `site.css` indents by four more characters."""
    lines = match["text"].splitlines(keepends=True)
    indents = (len(line) - len(line.lstrip(" ")) + 4 for line in lines)
    marked = (
        f'<span class="tw-line" style="--tw-hang: {n}ch">{line}</span>' for n, line in zip(indents, lines, strict=True)
    )
    return match["start"] + "".join(marked) + match["end"]


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Link the first mention of each public name in each section, and leave long tables of figures out of search."""
    html = PRINTED.sub(lines_of_output, html)
    html = TABLE.sub(lambda m: m[0].replace("<table", "<table data-search-exclude", m[0].count("<tr>") > 30), html)
    if page.file.src_uri.startswith("reference/") and page.file.name != "index":
        return html
    linked: set[str] = set()

    def link(match: re.Match[str]) -> str:
        if match["kept"] or match["section"]:
            if match[0].startswith("<h2"):
                linked.clear()
            return match[0]
        named = NAME.fullmatch(match["code"])
        name = named and next((n for n in (named["name"], named["name"].partition(".")[0]) if n in REFERENCE), None)
        if name is None or name in linked:
            return match[0]
        linked.add(name)
        if name.startswith("typed."):  # JAX's own functions, listed by hand
            types = posixpath.relpath("reference/types.html", posixpath.dirname(page.file.src_uri) or ".")
            return f'<a href="{types}#{REFERENCE[name]}">{match[0]}</a>'
        return f'<autoref identifier="{REFERENCE[name]}" optional>{match[0]}</autoref>'

    return CODE.sub(link, html)
