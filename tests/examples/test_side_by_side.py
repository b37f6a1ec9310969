"""The tutorials' programs and the same in other libraries: equal results, and counted lines."""

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


def test_line_counts_exclude_docstrings_comments_and_prints() -> None:
    program = side_by_side.program_of(PAGE)

    assert "y = 1" not in program
    assert side_by_side.count(program) == 4


def test_the_tutorials_show_the_lines_as_they_are_counted() -> None:
    assert side_by_side.table() in (side_by_side.TUTORIALS / "index.md").read_text(encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.parametrize("tutorial", side_by_side.PEERS)
def test_programs_of_other_libraries_match_ours(tutorial: str) -> None:
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
