"""The beginning of a program that `python -m treewright retraces` runs: it waits for jax, and leaves all as it was.

Python runs `sitecustomize` before the program, in the very process that it would start anyway; so `__main__`,
`sys.argv`, tracebacks, signals and the exit status are the program's own. jax may not be imported here: a program sets
its environment before it does that.
"""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "TREEWRIGHT_RETRACES"  # in the environment of the program, until it begins
NAME = "record.jsonl"
STARTUP = f"""
import json, os, sys
here = json.loads(os.environ["{VARIABLE}"])
sys.path.remove(here["folder"])
sys.path.insert(0, here["package"])
from treewright.retrace import inject
sys.path.remove(here["package"])
inject.begin()
del sys.modules["sitecustomize"]
import sitecustomize
"""


def prepare(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment in which Python writes down in this folder what JAX does in a program."""
    (folder / "sitecustomize.py").write_text(STARTUP, encoding="utf-8")
    earlier = environment.get("PYTHONPATH")
    settings = {"folder": str(folder), "PYTHONPATH": earlier, "package": str(Path(__file__).parents[2])}
    paths = [str(folder), *filter(None, [earlier])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: json.dumps(settings)}


def begin() -> None:
    """Take back what `prepare` did to the environment, and record from the first trace on."""
    settings = json.loads(os.environ.pop(VARIABLE))
    if settings["PYTHONPATH"] is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = settings["PYTHONPATH"]
    sys.path_importer_cache.pop(settings["folder"], None)
    folder = Path(settings["folder"])
    if "jax" in sys.modules:  # by a .pth file, say
        FirstTrace(folder).wait()
    else:
        sys.meta_path.insert(0, AwaitedImport("jax", FirstTrace(folder).wait))


class AwaitedImport:
    """Calls a function as soon as a module has been imported, whoever imports it and whatever finds it."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with a loader that tells when it is done."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        loader: Any = getattr(spec, "loader", None)
        execute: Any = getattr(loader, "exec_module", None)
        if execute is not None:  # as every loader of today has it

            def exec_module(module: types.ModuleType) -> None:
                del loader.exec_module
                execute(module)
                sys.meta_path.remove(self)
                self._then()

            loader.exec_module = exec_module
        return spec


class FirstTrace:
    """Begins to record at the first event of JAX: not before, since a watch looks at JAX in a thread of its own.

    While jax is imported, such a thread would wait for the import, and the import for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Ask JAX to tell of the first event."""
        with contextlib.suppress(Exception):  # the program must go on; that nothing was seen is said at the end
            import jax.monitoring

            jax.monitoring.register_event_duration_secs_listener(self)

    def __call__(self, *_: object, **__: object) -> None:
        """What JAX calls at each event; all but the first change nothing."""
        # JAX tells the listeners that are added meanwhile of the same event. This one stays: a list that becomes
        # shorter while JAX walks through it makes it pass one over.
        if not self._lock.acquire(blocking=False):
            return
        from treewright.retrace.record import Record

        record = Record(self._folder / NAME)  # before the import of the recorder, which counts as watching
        try:
            from treewright.retrace.recorder import EventRecorder

            EventRecorder(record).start()
        except Exception as error:  # noqa: BLE001  whatever fails here, the program must go on
            record.write({"kind": "note", "text": f"Nothing was seen: {type(error).__name__}: {error}"})
            return
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=record.close)
