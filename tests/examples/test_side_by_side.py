"""The tutorials' programs beside those of other libraries: their lines are counted, and the others do what ours do."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

side_by_side: Any = importlib.import_module("examples.side_by_side.__main__")

PAGE = '''
# A page

```python
"""A docstring."""
import math

# A comment.
x = (
    1,
)
print(x)
```

<!-- aside -->

```python
y = 1
```

```text
1
```
'''


def test_code_is_counted_without_docstrings_comments_prints_and_asides() -> None:
    program = side_by_side.program_of(PAGE)

    assert "y = 1" not in program
    assert side_by_side.count(program) == 4


@pytest.mark.parametrize("page", [*side_by_side.PEERS, "index"])
def test_a_page_shows_the_lines_as_they_are_counted(page: str) -> None:
    rows = side_by_side.PEERS if page == "index" else [page]

    assert side_by_side.table(*rows) in (side_by_side.TUTORIALS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.parametrize("tutorial", side_by_side.PEERS)
def test_the_program_of_the_other_library_reaches_what_ours_does(tutorial: str) -> None:
    pytest.importorskip(side_by_side.PEERS[tutorial])
    command = [sys.executable, str(side_by_side.peer_of(tutorial))]

    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout

    expected = {
        "first-model": "0.9",
        "language-model": "after:  2.",
        "reinforcement-learning": "above 70 at the end: True",
        "lora": "of the same class and structure: True",
    }
    assert expected[tutorial] in printed
