"""`Static`: a static value inside a list, a tuple or a dict."""

from typing import Generic

from treewright._nodes.dataclass import pytree_dataclass
from treewright._nodes.fields import static
from treewright._nodes.static_types import S


@pytree_dataclass
class Static(Generic[S]):
    """A node without leaves that holds one static value, for places that have no field to mark.

    Attributes:
        value: Anything that a static field can hold.

    Raises:
        StaticFieldError: If the value can't be static.

    Examples:
        >>> settings = {"scale": 2.0, "mode": Static("train")}
        >>> jax.tree.leaves(settings)
        [2.0]
        >>> settings["mode"].value
        'train'
    """

    value: S = static()
