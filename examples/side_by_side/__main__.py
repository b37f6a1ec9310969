"""Lines of code of each tutorial's program, here and in another library: `python -m examples.side_by_side`.

Ours is the code on the tutorial's page, except blocks below `<!-- aside -->`. Not counted are blank lines, comments,
docstrings and statements that only print.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TUTORIALS = HERE.parents[1] / "docs" / "tutorials"
PEERS = {
    "first-model": "equinox",
    "language-model": "equinox",
    "reinforcement-learning": "flax",
    "lora": "equinox",
}
# Classes in our programs that the other library provides.
BROUGHT = {"first-model": {"Linear", "MLP"}, "lora": {"Linear", "Net"}, "reinforcement-learning": {"Network"}}

BLOCK = re.compile(r"(?P<aside><!-- aside -->\n\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def program_of(page: str) -> str:
    """The Python blocks of a page, one after the other, without asides."""
    return "".join(match["code"] for match in BLOCK.finditer(page) if not match["aside"])


def peer_of(tutorial: str) -> Path:
    """The file of the same program in another library."""
    return HERE / f"{tutorial.replace('-', '_')}_{PEERS[tutorial]}.py"


def left_out(tree: ast.AST) -> Iterator[ast.stmt]:
    """Docstrings, and statements that only print."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
                yield node


def count(program: str) -> int:
    """Lines of code."""
    passed = left_out(ast.parse(program))
    skipped = {line for node in passed for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(program.splitlines(), 1)
    return sum(bool(text.strip()) and not text.strip().startswith("#") for n, text in lines if n not in skipped)


def counts(tutorial: str) -> tuple[int, int, int]:
    """Lines of code here, the number of them in layers that the other library provides, and lines there."""
    ours = program_of((TUTORIALS / f"{tutorial}.md").read_text(encoding="utf-8"))
    classes = [node for node in ast.parse(ours).body if isinstance(node, ast.ClassDef)]
    brought = [node for node in classes if node.name in BROUGHT.get(tutorial, ())]
    layers = sum(count(ast.unparse(node)) for node in brought)
    return count(ours), layers, count(peer_of(tutorial).read_text(encoding="utf-8"))


def table() -> str:
    """The lines of code of the tutorials, as their first page shows them."""
    rows = [(name, *counts(name), PEERS[name]) for name in PEERS]
    lines = [f"| {name} | {ours} | {layers} | {theirs}, {library} |" for name, ours, layers, theirs, library in rows]
    head = "| program | treewright | of these, layers that the other provides | the other |"
    return "\n".join([head, "|---|---:|---:|---:|", *lines])


if __name__ == "__main__":
    if "--write" in sys.argv:
        page = TUTORIALS / "index.md"
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r"\| program \|.*(\n\|.*)*", table(), text), encoding="utf-8")
    print(table())
