"""A constructor that raises: what is left of the node, and what it says."""

import gc
import weakref
from typing import Any

import jax
import pytest

from treewright import Module, pytree_dataclass
from treewright.errors import UnfinishedNodeError


def test_a_constructor_that_raises_leaves_nothing_mutable_and_says_so() -> None:
    leaked: list[Any] = []

    class Net(Module):
        w: Any

        def __init__(self, wrong: bool) -> None:
            self.w = 1.0
            if wrong:
                leaked.append(self)
                raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        Net(wrong=True)
    (net,) = leaked
    said = r"unfinished .*Net: its __init__ raised RuntimeError\(no luck\)"
    with pytest.raises(UnfinishedNodeError, match=said):
        _ = net.w
    with pytest.raises(UnfinishedNodeError, match=said):
        net.w = 2.0
    with pytest.raises(UnfinishedNodeError, match=said):
        net.tree_flatten()
    with pytest.raises(ValueError, match=said):
        jax.tree.leaves(net)
    with pytest.raises(UnfinishedNodeError, match=said):
        net.__init__(wrong=False)
    assert Net(wrong=False).w == 1.0


@pytest.mark.parametrize("where", ["__check_init__", "__post_init__"])
def test_a_check_or_post_init_that_raises_abandons_the_node(where: str) -> None:
    leaked: list[Any] = []

    def refuse(self: Any) -> None:
        leaked.append(self)
        raise ValueError("negative")

    cls: Any = pytree_dataclass(type("Node", (), {"__annotations__": {"x": Any}, where: refuse}))
    with pytest.raises(ValueError, match="negative"):
        cls(1.0)
    with pytest.raises(UnfinishedNodeError, match=r"its __init__ raised ValueError\(negative\)"):
        _ = leaked[0].x
    assert vars(leaked[0]).keys() <= {"_node"}


def test_a_failed_construction_is_freed_without_the_garbage_collector() -> None:
    references: list[weakref.ref[Any]] = []

    class Net(Module):
        w: Any

        def __init__(self) -> None:
            references.append(weakref.ref(self))
            raise RuntimeError("no luck")

    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="no luck"):
            Net()
        assert references[0]() is None
    finally:
        gc.enable()
