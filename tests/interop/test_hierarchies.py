"""Hierarchies of nodes and other libraries' classes, in both orders: the table in docs/migrating/index.md."""

# Not `annotations` from `__future__`: jax_dataclasses evaluates them again.
import copy
import dataclasses
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax_dataclasses as jdc
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, diff, pytree_dataclass, static
from treewright.errors import NodeDefinitionError

pytestmark = pytest.mark.slow

struct: Any = importorskip("flax", "flax.struct").struct
PAGE = Path(__file__).parents[2] / "docs" / "migrating" / "index.md"


@pytree_dataclass
class Decorated:
    x: Any
    mode: str = static(default="m")

    def double(self) -> Any:
        return self.x * 2


class OfModule(Module):
    x: Any
    mode: str = static(default="m")

    def double(self) -> Any:
        return self.x * 2


@pytree_dataclass
class Empty:
    """As brax's `Base`: methods, and no fields."""

    def doubled(self) -> Any:
        return jax.tree.map(lambda leaf: leaf * 2, self)


class Registering:
    """As mjx's `PyTreeNode`: it registers every subclass, and does not pass `__init_subclass__` on."""

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def registered(cls: Any) -> Any:
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


# The decorator of each library, and its mark for a static. A name in backquotes in the first column is a base.
DECORATORS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "`dataclasses.dataclass`": (dataclasses.dataclass(frozen=True), {"static": True}),
    "`flax.struct.dataclass`": (lambda cls: struct.dataclass(cls), {"pytree_node": False}),
    "`chex.dataclass`": (chex.dataclass(frozen=True), {"static": True}),
    "`jax_dataclasses.pytree_dataclass`": (jdc.pytree_dataclass, {"__jax_dataclasses_static_field__": True}),
    "`register_dataclass`": (registered, {"static": True}),
}
BASES: dict[str, Callable[[], type[Any]]] = {
    "`flax.struct.PyTreeNode`": lambda: struct.PyTreeNode,
    "`equinox.Module`": lambda: eqx.Module,
    "a base that registers in `__init_subclass__`": lambda: Registering,
}
ROWS = [*DECORATORS, *BASES]


def body(mark: dict[str, Any] | None) -> Callable[[dict[str, Any]], None]:
    """The body of a class with a child, and a static for the base of others."""

    def write(namespace: dict[str, Any]) -> None:
        if mark is None:
            namespace.update({"__annotations__": {"y": Any}, "y": 0.0})
        else:
            fields = {"x": Any, "mode": str}
            namespace.update({"__annotations__": fields, "mode": dataclasses.field(default="m", metadata=mark)})

    return write


def new_class(name: str, *bases: type[Any], mark: dict[str, Any] | None = None) -> type[Any]:
    return types.new_class(name, bases, exec_body=body(mark))


def class_of_the_library(row: str, base: type[Any]) -> Any:
    """A class of the other library below one of our classes."""
    if row in DECORATORS:
        return DECORATORS[row][0](new_class("Mixed", base))
    return new_class("Mixed", base, BASES[row]())


def base_of_the_library(row: str) -> type[Any]:
    if row in DECORATORS:
        decorator, mark = DECORATORS[row]
        return decorator(new_class("Base", mark=mark))  # type: ignore[no-any-return]
    mark = {"static": True, "pytree_node": False}
    return new_class("Base", BASES[row](), mark=mark)


COLUMNS: dict[str, Callable[[str], Any]] = {
    "it, on a decorated class": lambda row: class_of_the_library(row, Decorated),
    "it, on a `Module`": lambda row: class_of_the_library(row, OfModule),
    "`@pytree_dataclass` on it": lambda row: pytree_dataclass(new_class("Mixed", base_of_the_library(row))),
    "it, then `Module`, as bases": lambda row: new_class("Mixed", base_of_the_library(row), Module),
    "it, then a decorated class, as bases": lambda row: pytree_dataclass(
        new_class("Mixed", base_of_the_library(row), Empty)
    ),
}
# Raised by us, or by dataclasses, before the first instance exists.
ERRORS = (
    r"Mixed is a subclass of the node class \w+ but not (decorated|a node class itself)",
    r"Mixed is a node class, but equinox's \w+ registers each subclass as a different kind of pytree",
    r"Mixed is already registered with JAX",
    r"Mixed is already a dataclass",
    r"Mixed is a node class or has one as base, so it is already a dataclass",
    r"cannot inherit non-frozen dataclass from a frozen one",
    r"cannot inherit frozen dataclass from a non-frozen one",  # from Python 3.13 on
)


def outcome(make: Callable[[], Any]) -> str:
    """The cell of the page, after all operations on the class were tried."""
    try:
        cls = make()
        mixed = cls(x=jnp.ones(2), y=2.0)
        leaves, treedef = jax.tree.flatten(mixed)
        repr(copy.copy(mixed))
    except (TypeError, ValueError, AttributeError) as error:
        assert any(re.search(pattern, str(error)) for pattern in ERRORS), error  # noqa: PT017  some do not raise
        return "rejected"
    rebuilt = jax.tree.unflatten(treedef, leaves)
    total = jax.jit(counted := count_traces(lambda mixed: mixed.x.sum() + mixed.y))

    assert [leaf is not mixed for leaf in leaves] == [True, True]
    assert (type(rebuilt), rebuilt.mode, rebuilt.y) == (cls, "m", 2.0)
    assert [total(mixed), total(rebuilt), total(cls(x=jnp.zeros(2), y=1.0))] == [4.0, 4.0, 1.0]
    assert counted.count == 1
    assert total(cls(x=jnp.ones(2), y=2.0, mode="z")) == 4.0
    assert counted.count == 2
    assert [change(mixed, y=3.0).y for change in (dataclasses.replace, cls.replace)] == [3.0, 3.0]
    assert [copied(mixed).y for copied in (copy.copy, copy.deepcopy)] == [2.0, 2.0]
    assert [part.kind for part in diff(mixed, dataclasses.replace(mixed, mode="z"))] == ["static"]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'y'"):
        mixed.y = 1.0
    assert hasattr(cls, "__node_info__")
    return "a node"


def table() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").partition("## Hierarchies")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [[name, *others] for names, *others in cells for name in names.split(", ")]


def test_the_table_has_all_rows_and_columns() -> None:
    head, *rows = table()

    assert head[1:] == list(COLUMNS)
    assert [row[0] for row in rows] == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_each_cell_of_the_table_matches_behaviour(row: str) -> None:
    head, *rows = table()
    expected = next(cells for cells in rows if cells[0] == row)

    assert [row, *(outcome(lambda column=column: COLUMNS[column](row)) for column in head[1:])] == expected  # type: ignore[misc]


def test_the_error_names_the_base_registered_by_a_different_library() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Alone:
        x: Any

    with pytest.raises(NodeDefinitionError, match=r"Alone is already a dataclass, .* Remove the extra decorator"):
        pytree_dataclass(Alone)
    assert jax.tree.leaves(Alone(1.0)) == [1.0]

    theirs = new_class("Theirs", Registering, mark={"static": True})
    with pytest.raises(NodeDefinitionError, match=r"Theirs is already a dataclass, .* a base class's"):
        pytree_dataclass(theirs)
    assert jax.tree.leaves(theirs(1.0)) == [1.0]

    plain = types.new_class("Plain")
    jax.tree_util.register_pytree_node(plain, lambda _: ((), None), lambda *_: plain())
    with pytest.raises(NodeDefinitionError, match=r"Plain is already registered with JAX, by another decorator"):
        pytree_dataclass(plain)
