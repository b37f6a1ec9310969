"""What Python does with the expressions: the verdicts asked of checkers have to agree with it."""

import importlib.util
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from _expression import Expression
from _programs import Program


def imported(path: Path) -> ModuleType:
    """The module in the file at `path`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and typing look a class's module up by name
    spec.loader.exec_module(module)
    return module


def disagreements(written: Program, path: Path) -> Iterator[str]:
    """Expressions that Python does not treat as is asked of checkers, one sentence each.

    Right code must run. Wrong code must raise on the line that is asked about, unless the list says why it runs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = imported(path)
        except Exception as error:  # noqa: BLE001 - a broken peer must not stop the others
            yield f"the program does not start: {_short(error)}"
            return
        for one in written.asked:
            found = _outcome(module, one, written.lines[one.name], path)
            if found is not None:
                yield f"{one.name} {found}"


def _outcome(module: ModuleType, one: Expression, lines: frozenset[int], path: Path) -> str | None:
    try:
        getattr(module, one.name.lower())()
    except Exception as error:  # noqa: BLE001 - it is the answer
        if one.asked == "accept":
            return f"is right and raises {_short(error)}"
        where = {frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)}
        return None if one.runs or where & lines else f"raises in lines {where}, not in {set(lines)}: {_short(error)}"
    return "is wrong and runs" if one.asked == "refuse" and not one.runs else None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:150]}"
