"""Existing dataclasses, and classes below bases with other state than fields, under `@pytree_dataclass`."""

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import jax
import pytest

from treewright import pytree_dataclass, static
from treewright.errors import NodeDefinitionError

MARKS: dict[str, Callable[[], Any]] = {
    "of JAX and equinox": lambda: dataclasses.field(default=True, metadata={"static": True}),
    "of flax": lambda: dataclasses.field(default=True, metadata={"pytree_node": False}),
    "of jax_dataclasses": lambda: dataclasses.field(default=True, metadata={"__jax_dataclasses_static_field__": True}),
    "ours": lambda: static(default=True),
}


def quantised(mark: str, **options: Any) -> Any:
    """A dataclass with a child and a static."""

    @dataclasses.dataclass(**options)
    class Quantised:
        whole: Any
        late: bool = MARKS[mark]()

    return Quantised


def is_registered(cls: Any) -> bool:
    """Whether a class is registered with JAX; before 0.10 this needs an instance."""
    return bool(getattr(jax.tree_util, "is_tree_node", lambda _: False)(cls))


# Under the decorator


@pytest.mark.parametrize("mark", MARKS)
def test_an_existing_dataclass_is_rejected(mark: str) -> None:
    for cls in (quantised(mark), quantised(mark, frozen=True)):
        with pytest.raises(NodeDefinitionError, match=r"Quantised is already a dataclass, .* Remove the extra"):
            pytree_dataclass(cls)


@pytest.mark.parametrize("mark", MARKS)
def test_statics_marked_for_other_libraries_are_honoured(mark: str) -> None:
    cls = pytree_dataclass(type("Marked", (), {"__annotations__": {"w": Any, "late": bool}, "late": MARKS[mark]()}))

    assert jax.tree.leaves(cls(1.0)) == [1.0]


@pytest.mark.parametrize("base", [Exception, dict, list, tuple, float, str, set, type, types.SimpleNamespace])
def test_a_base_with_state_outside_fields_is_rejected(base: type[Any]) -> None:
    cls: Any = dataclasses.make_dataclass("Theirs", [("x", Any)], bases=(base,))
    pattern = f"Theirs is a subclass of {base.__name__}, so it can't be a node: .* would be lost"

    with pytest.raises(NodeDefinitionError, match=pattern):
        pytree_dataclass(cls)
    assert not is_registered(cls)
