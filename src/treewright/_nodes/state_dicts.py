"""State dicts for `flax.serialization`, which knows a class only once it has been told of it.

flax is never imported here: it is told when the program imports it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from treewright._nodes.classes import class_of
from treewright._nodes.imports import when_imported
from treewright._nodes.node import finished_pair, from_pair
from treewright._nodes.spec import spec_of


def register_for_flax(
    cls: type[Any], children_of: Callable[[Any], dict[str, Any]], rebuilt: Callable[[Any, Iterable[Any]], Any]
) -> None:
    """Let `flax.serialization` make state dicts of instances, and bytes.

    Args:
        cls: A class that is a pytree.
        children_of: Gives the children of an instance by name.
        rebuilt: Gives an instance like the first argument with other children.
    """

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
        found = f"a {class_of(state).__name__}"
    else:
        missing = ", ".join(name for name in children if name not in state)
        unknown = ", ".join(str(name) for name in cast("Any", state) if name not in children)
        found = " and ".join(
            [*[f"nothing for {missing}"] * bool(missing), *[f"{unknown}, no child of {cls}"] * bool(unknown)]
        )
    return ValueError(
        f"{cls} has the children {has}, and the state dict at {path} holds {found}. It was written by another class or "
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
