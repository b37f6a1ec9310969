"""Changed copies of nodes."""

from typing import Any, TypeVar

from treewright._nodes.node import replaced

T = TypeVar("T")


def replace(node: T, /, **changes: Any) -> T:
    """A copy of `node` with some fields replaced; everything else is shared, not copied.

    Converters and `__check_init__` run, the constructor and `__post_init__` do not. Changing a static changes the
    treedef, so jitted functions trace again.

    Args:
        node: An instance of a node class.
        **changes: New values by field name, statics and `init=False` fields among them.

    Raises:
        TypeError: If a name is not a field; the message lists the close ones. Also if `node` is no node.

    Example:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     activation: str = static(default="relu")
        >>> replace(Layer(1.0), activation="gelu")
        Layer(kernel=1.0, activation='gelu')
    """
    if not hasattr(type(node), "__node_spec__"):
        raise TypeError(
            f"replace() takes an instance of a Module or of a class with @pytree_dataclass, "
            f"got {type(node).__name__!r}."
        )
    copy: T = replaced(node, **changes)
    return copy
