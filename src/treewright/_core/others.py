"""Other libraries that must be told of a node class: `jax.export`, and flax once a program imports it."""

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

import jax.export

from treewright._core.as_json import StaticCodec
from treewright._core.functions import class_of
from treewright._core.instance import finished_pair, from_pair
from treewright._core.spec import spec_of
from treewright._core.statics import Statics
from treewright.errors import StaticSerializationError

Action = Callable[[Any], None]


def when_imported(name: str, action: Action) -> None:
    """Call `action(module)` now if the module of this name is imported, else right after it has been."""
    waiting = next(
        (finder for finder in sys.meta_path if isinstance(finder, AfterImport) and finder.name == name), None
    )
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
        specs = (finder.find_spec(fullname, path, target) for finder in later)
        spec = next((spec for spec in specs if spec is not None), None)
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


_MADE_AGAIN = itertools.count(2)  # one for all names: to try the numbers of each took 10 ms for the 1,600th


def register_for_export(cls: type[Any], unflatten: Callable[[Any, Iterable[Any]], Any] | None = None) -> None:
    """Give the class a stable name, `module.Class`, under which `jax.export` finds it in another process.

    JAX need not know the class yet: what comes back asks for its statics first, and that is its first use.
    A class that is made again under one name, as by running a notebook cell again, gets a number after the name, which
    says no more than that.
    """

    def rebuilt(statics: Any, children: Iterable[Any]) -> Any:
        return from_pair(cls, (tuple(children), statics)) if unflatten is None else unflatten(statics, children)

    name = serialized_name = f"{cls.__module__}.{cls.__qualname__}"
    while True:
        try:
            jax.export.register_pytree_node_serialization(
                cls,
                serialized_name=serialized_name,
                serialize_auxdata=serialize,
                deserialize_auxdata=lambda data: deserialize(cls, data),
                from_children=cast("Any", rebuilt),
            )
        except ValueError:  # the name is taken
            serialized_name = f"{name}#{next(_MADE_AGAIN)}"
        else:
            return


def register_function_node(cls: type[Any]) -> None:
    """The same for a class of ours whose `aux_data` is a function."""
    jax.export.register_pytree_node_serialization(
        cls,
        serialized_name=f"treewright.{cls.__name__}",
        serialize_auxdata=lambda function: json.dumps(encode(function)).encode(),
        deserialize_auxdata=lambda data: decode(json.loads(bytes(data))),
    )


def serialize(statics: object) -> bytes:
    """The names and values of the statics as JSON."""
    if not isinstance(statics, Statics):
        raise StaticSerializationError(
            f"A subclass of a node, registered by another library, can't be exported with {statics!r}. Put "
            f"@pytree_dataclass in the place of its decorator."
        )
    return json.dumps(StaticCodec().encode_statics(statics)).encode()


def deserialize(cls: type[Any], data: bytes | bytearray) -> Statics:
    """The statics of `cls` from what `serialize` wrote."""
    return StaticCodec().decode_statics(cls, json.loads(bytes(data)))


def encode(value: Any) -> Any:
    """JSON for a static value."""
    return StaticCodec().encode(value)


def decode(encoded: Any) -> Any:
    """The value that `encode` wrote."""
    return StaticCodec().decode(encoded)


def register_for_flax(
    cls: type[Any], children_of: Callable[[Any], dict[str, Any]], rebuilt: Callable[[Any, Iterable[Any]], Any]
) -> None:
    """Let `flax.serialization` make state dicts of instances, and bytes."""

    def register(serialization: Any) -> None:
        def to_state_dict(node: Any) -> dict[str, Any]:
            return {name: serialization.to_state_dict(child) for name, child in children_of(node).items()}

        def from_state_dict(node: Any, state: Any) -> Any:
            children = children_of(node)
            if not isinstance(state, Mapping) or {*cast("Any", state)} != {*children}:
                raise _mismatch(node, children, state, serialization.current_path())
            values = (serialization.from_state_dict(child, state[name], name) for name, child in children.items())
            return rebuilt(node, tuple(values))

        serialization.register_serialization_state(cls, to_state_dict, from_state_dict)

    when_imported("flax.serialization", register)


def _mismatch(node: Any, children: dict[str, Any], state: Any, path: str) -> ValueError:
    cls = class_of(node).__qualname__
    has = ", ".join(children) or "none"
    if not isinstance(state, Mapping):
        held = f"a {class_of(state).__name__}"
    else:
        missing = ", ".join(name for name in children if name not in state)
        unknown = ", ".join(str(name) for name in cast("Any", state) if name not in children)
        held = " and ".join(
            [*[f"nothing for {missing}"] * bool(missing), *[f"{unknown}, no child of {cls}"] * bool(unknown)]
        )
    return ValueError(
        f"{cls} has the children {has}, and the state dict at {path} holds {held}. It was written by another class or "
        f"another version of this one: change the names in the dict, then restore it."
    )


def register_node_for_flax(cls: type[Any]) -> None:
    """The children by field name; statics stay those of the instance that is restored, and no `__init__` runs."""
    register_for_flax(cls, _children_by_name, _with_children)


def _children_by_name(node: Any) -> dict[str, Any]:
    names = (field.name for field in spec_of(node).children)
    return dict(zip(names, finished_pair(node)[0], strict=True))


def _with_children(node: Any, children: Iterable[Any]) -> Any:
    return from_pair(class_of(node), (tuple(children), finished_pair(node)[1]))
