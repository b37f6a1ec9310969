"""What a newcomer types, and what is said: a table of slips in `tests/slips`, each with the whole message.

A row is a few lines of code; `UPDATE_SNAPSHOTS=1 pytest tests/test_slips.py` writes below it, after `=>`, what is said.
Rows are separated by an empty line. Each `=>` begins a line of the message, and long lines are wrapped below it.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import linecache
import os
import pkgutil
import re
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import treewright
from tests.conftest import skip_before_jax
from treewright import errors

TABLES = sorted((Path(__file__).parent / "slips").glob("*.txt"))
PACKAGE = Path(inspect.getfile(treewright)).parent
SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTH = 110

PRELUDE = """
import dataclasses, functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple
import flax, jax, jax.numpy as jnp, numpy as np, optax
import treewright
from treewright import *
from treewright import checkpoint, sharding
from treewright.testing import assert_trees_close

class Dense(Module):
    kernel: jax.Array
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array] = static(default=jax.nn.relu)

    def __call__(self, x):
        return self.activation(self.kernel @ x + self.bias)

class Net(Module):
    layers: tuple[Dense, ...]
    rate: float = 0.1
    width: int = static(default=64)

@pytree_dataclass
class Point:
    x: float
    y: float

dense = Dense(jnp.ones((2, 3)), jnp.zeros(2))
net = Net((dense, dense))
x = jnp.ones(3)
tx = optax.sgd(0.1)
state = TrainState.create(params=dense, tx=tx)
mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"))

def loss(dense, x):
    return dense(x).sum()
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: what is typed, and what is said."""

    code: str
    said: str

    def __str__(self) -> str:
        return f"{self.code}\n{self.said}"


def rows_of(table: Path) -> list[Row]:
    """The rows; a comment, which begins with `#`, is one without anything said."""
    rows: list[Row] = []
    for block in table.read_text(encoding="utf-8").strip().split("\n\n"):
        code, arrow, said = block.partition("\n=>")
        rows.append(Row(code, "=>" + said if arrow else ""))
    return rows


def is_comment(row: Row) -> bool:
    return row.code.startswith("#")


class Said(Exception):
    """Stands for what was said without an error."""


def run(code: str, folder: Path) -> tuple[str, BaseException | None]:
    """All that the code says: what it prints, its warnings, its error; and the error."""
    name = "slips"
    filename = f"<slip {hash(code)}>"
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    module = types.ModuleType(name)
    exec(prelude(), vars(module))  # noqa: S102
    vars(module)["FOLDER"] = folder
    printed, error = io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        patch.setitem(sys.modules, name, module)
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, filename, "exec"), vars(module))  # noqa: S102
        except Exception as raised:  # noqa: BLE001  whatever a slip raises is what is said
            error = raised
    said = [printed.getvalue().rstrip()] if printed.getvalue() else []
    said += [f"{one.category.__name__}: {one.message}" for one in caught]
    if error is not None:
        said += ["\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])]
    text = "\n".join(said).replace(str(folder), "FOLDER").replace(f"{name}.", "")
    return re.sub(r"0x[0-9a-f]+", "0x...", text), error


def prelude() -> types.CodeType:
    return compile(PRELUDE, "<prelude>", "exec")


def laid_out(text: str) -> str:
    """What is said, as it stands in a table."""
    lines = [
        textwrap.wrap(line, WIDTH, break_on_hyphens=False, break_long_words=False, drop_whitespace=True) or [""]
        for line in text.splitlines()
    ]
    return "\n".join(
        f"{'=>' if first else '  '} {part}".rstrip() for line in lines for first, part in zip([True] + [False] * len(line), line, strict=False)
    )
if __name__ == "__main__":
    import tempfile, time
    for t in sys.argv[1:]:
        p = Path(__file__).parent/"slips"/t
        out=[]
        b=time.process_time()
        for r in rows_of(p):
            if is_comment(r): out.append(r.code); continue
            with tempfile.TemporaryDirectory() as d:
                t0=time.process_time()
                s,e = run(r.code, Path(d))
                t1=time.process_time()-t0
            out.append(f"{r.code}\n{laid_out(s)}" + (f"   !!{t1:.2f}" if t1>.1 else ""))
        print("\n\n".join(out))
        print(t, time.process_time()-b, file=sys.stderr)
