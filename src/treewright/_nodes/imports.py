"""Something to do with a library as soon as the program imports it, and nothing if it never does."""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], None]


def when_imported(name: str, action: Action) -> None:
    """Call `action(module)` now if the module of this name is imported, else right after it has been."""
    waiting = next((one for one in sys.meta_path if isinstance(one, AfterImport) and one.name == name), None)
    if waiting is None and name not in sys.modules:
        waiting = AfterImport(name)
        sys.meta_path.insert(0, waiting)
    if waiting is None or not waiting.add(action):
        action(sys.modules[name])


class AfterImport(MetaPathFinder):
    """Waits on `sys.meta_path` for one module, finds it as the other finders do, acts, and goes.

    What it costs until then is one comparison of names for each module that the program imports.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._actions: list[Action] | None = []
        self._lock = threading.RLock()

    def add(self, action: Action) -> bool:
        """Keep the action for later; False if the module has been imported meanwhile."""
        with self._lock:
            if self._actions is None:
                return False
            self._actions.append(action)
            return True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """As the finders after this one; the loader acts when the module has been executed."""
        if fullname != self.name:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in later)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == self.name:  # a loader may be that of several modules
                loader.exec_module = execute
                self._act(module)

        loader.exec_module = exec_module

    def _act(self, module: ModuleType) -> None:
        with self._lock:
            actions, self._actions = self._actions or [], None
        sys.meta_path.remove(self)
        for action in actions:
            action(module)
