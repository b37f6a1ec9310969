"""Texts that tests expect: without the parts that vary, and rewritten by `UPDATE_SNAPSHOTS=1`.

A run that rewrites a text fails, so nobody takes it for a check, and the text has been made twice before.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import jax
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

# What varies between runs, machines, or versions of Python and JAX, and what is written in its place.
VARYING = [
    (re.compile(pattern, re.MULTILINE | re.DOTALL), fixed)
    for pattern, fixed in {
        r"\b\d+(\.\d+)?(e[+-]?\d+)? s\b": "... s",
        r"\b0x[0-9a-f]+": "0x...",
        # Line numbers in the tables of programs, and in libraries; those in the test's own program are fixed.
        r"\b((programs|code_bases|_\w+)\.(py|txt)):\d+": r"\1",
        r"\bcannot use '[\w.]+' as a dict key \((.*)\)": r"\1",  # from Python 3.14 on
        r" and no __dict__ for setting new attributes": "",  # from Python 3.14 on
        r"\. Did you mean '\w+'\?$": "",  # Python's guess, from 3.13 on
        r"\bcollections\.abc\.Callable\[\[jax\.Array\], jax\.Array\]": "...",  # the form since Python 3.14
        r"(?<=/en/latest/)\d+/": "",  # in links of JAX 0.12
        r"\b(TFRT_CPU_|(cuda|rocm|tpu):)(\d)": r"cpu:\3",  # before JAX 0.10, and on other devices
        r"\bP(artitionSpec)?\(('\w+')?,?\)": r"P(\2)",
        r"\bParam\([^\n]*": "Param",
    }.items()
]
# Key paths of JAX 0.12 are plain names in older versions.
KEY_PATHS = re.compile(r"^ {4}(\['\w+'\] ?)+$", re.MULTILINE)


def without_varying_parts(text: str, folder: Path | None = None) -> str:
    """A text that is the same in each run: no seconds, addresses, line numbers, or name of a temporary folder."""
    if folder is not None:
        text = text.replace(str(folder), "FOLDER")
    for varying, fixed in VARYING:
        text = varying.sub(fixed, text)
    return KEY_PATHS.sub(lambda line: re.sub(r"\['|'\]", "", line[0]), text)


def compare_with_snapshot(make: Callable[[], str], expected: str, rewrite: Callable[[str], object]) -> None:
    """Fail if `make()` differs from the expected text; with `UPDATE_SNAPSHOTS`, also rewrite the text.

    Args:
        make: Makes the text. It must be the same in a second call, or nothing is rewritten.
        expected: The text in the repository.
        rewrite: Writes a new text into the repository.
    """
    text = make()
    if text == expected:
        return
    if not os.environ.get("UPDATE_SNAPSHOTS"):
        fail("differs; with -n 0, UPDATE_SNAPSHOTS=1 rewrites it", expected, text)
    if "PYTEST_XDIST_WORKER" in os.environ:
        fail("not rewritten, because processes would overwrite each other's rows: add -n 0", expected, text)
    # A second run must not share the traces of the first one.
    jax.clear_caches()  # type: ignore[no-untyped-call]
    again = make()
    if again != text:
        fail(f"not rewritten, because two runs differ: add what varies to {Path(__file__).name}", text, again)
    rewrite(text)
    fail("rewritten, review the diff", expected, text)


def fail(reason: str, before: str, after: str) -> NoReturn:
    difference = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    pytest.fail("\n".join([reason, *difference]), pytrace=False)
