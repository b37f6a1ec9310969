"""Hierarchies that mix nodes with classes of other libraries, in both directions: the table in docs/moving/index.md."""

# Not `annotations` from `__future__`: jax_dataclasses evaluates them anew.
import copy
import dataclasses
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax_dataclasses as jdc
import pytest

from tests.conftest import count_traces, package_or_absent
from treewright import Module, diff, pytree_dataclass, static
from treewright._core.instance import replaced
from treewright._core.jax_private import is_tree_node
from treewright.errors import NodeDefinitionError, StaticSerializationError

struct: Any = package_or_absent("flax", "flax.struct").struct
PAGE = Path(__file__).parents[2] / "docs" / "moving" / "index.md"


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


# How each makes a class, and how it marks a static. A name in quotes of the first column is a base.
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


def made(name: str, *bases: type[Any], mark: dict[str, Any] | None = None) -> type[Any]:
    return types.new_class(name, bases, exec_body=body(mark))


def theirs_on(row: str, base: type[Any]) -> Any:
    """A class that another library makes on a base of ours."""
    if row in DECORATORS:
        return DECORATORS[row][0](made("Mixed", base))
    return made("Mixed", base, BASES[row]())


def their_base(row: str) -> type[Any]:
    if row in DECORATORS:
        decorator, mark = DECORATORS[row]
        return decorator(made("Base", mark=mark))  # type: ignore[no-any-return]
    mark = {"static": True, "pytree_node": False}
    return made("Base", BASES[row](), mark=mark)


COLUMNS: dict[str, Callable[[str], Any]] = {
    "it, on a decorated class": lambda row: theirs_on(row, Decorated),
    "it, on a `Module`": lambda row: theirs_on(row, OfModule),
    "`@pytree_dataclass` on it": lambda row: pytree_dataclass(made("Mixed", their_base(row))),
    "it, then `Module`, as bases": lambda row: made("Mixed", their_base(row), Module),
    "it, then a decorated class, as bases": lambda row: made("Mixed", their_base(row), Empty),
}


def kind_of(make: Callable[[], Any]) -> str:
    """What the page calls it: everything that a class must do is tried."""
    try:
        cls = make()
        mixed = cls(x=jnp.ones(2), y=2.0)
    except NodeDefinitionError as error:
        assert "Mixed" in str(error)  # noqa: PT017  some cells do not raise
        return "refused"
    leaves, treedef = jax.tree.flatten(mixed)
    again = jax.tree.unflatten(treedef, leaves)
    total = jax.jit(counted := count_traces(lambda mixed: mixed.x.sum() + mixed.y))

    assert [leaf is not mixed for leaf in leaves] == [True, True]
    assert (type(again), again.mode, again.y) == (cls, "m", 2.0)
    assert [total(mixed), total(again), total(cls(x=jnp.zeros(2), y=1.0))] == [4.0, 4.0, 1.0]
    assert counted.count == 1
    assert total(cls(x=jnp.ones(2), y=2.0, mode="z")) == 4.0
    assert counted.count == 2
    replacing = [dataclasses.replace, getattr(cls, "replace", None) or dataclasses.replace]
    assert [change(mixed, y=3.0).y for change in replacing] == [3.0, 3.0]
    assert [copied(mixed).y for copied in (copy.copy, copy.deepcopy)] == [2.0, 2.0]
    assert [part.kind for part in diff(mixed, dataclasses.replace(mixed, mode="z"))] == ["static"]
    assert repr(mixed).endswith(")")
    unanswered = {name for name in dir(cls) if not hasattr(cls, name)}
    assert unanswered <= {"__node_spec__", "__abstractmethods__"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed.y = 1.0
    if hasattr(cls, "double"):
        assert mixed.double().tolist() == [2.0, 2.0]
    return "a node" if hasattr(cls, "__node_spec__") else "theirs"


def table() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").partition("## Hierarchies")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_table_has_all_rows_and_columns() -> None:
    head, *rows = table()

    assert head[1:] == list(COLUMNS)
    assert [row[0] for row in rows] == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_each_cell_of_the_table_is_what_happens(row: str) -> None:
    head, *rows = table()
    said = next(cells for cells in rows if cells[0] == row)

    assert [row, *(kind_of(lambda column=column: COLUMNS[column](row)) for column in head[1:])] == said  # type: ignore[misc]


# What the table does not tell


@pytest.mark.parametrize("row", [row for row in ROWS if row != "`equinox.Module`"])
def test_on_a_base_without_fields_it_is_what_it_would_be_alone(row: str) -> None:
    mixed: Any = theirs_on(row, Empty)(y=jnp.ones(2))

    assert mixed.doubled().y.tolist() == [2.0, 2.0]
    assert hasattr(type(mixed), "__node_spec__") is (row == "`dataclasses.dataclass`")
    assert copy.copy(mixed).y is mixed.y
    assert copy.deepcopy(mixed).y.tolist() == [1.0, 1.0]


class _OfChex(Empty):
    y: Any


_OfChex.__name__ = _OfChex.__qualname__ = "OfChex"
OfChex: Any = chex.dataclass(frozen=True)(_OfChex)


class _Registered(Decorated):
    y: Any = 0.0
    x: Any = 0.0


_Registered.__name__ = _Registered.__qualname__ = "Registered"
Registered: Any = registered(_Registered)


def test_instances_of_theirs_are_pickled_as_theirs() -> None:
    for before in (OfChex(y=1.0), Registered(1.0, "z", 2.0)):
        back = pickle.loads(pickle.dumps(before))

        assert type(back) is type(before)
        assert jax.tree.structure(back) == jax.tree.structure(before)
        assert vars(back) == vars(before)
        assert not hasattr(back, "tree_flatten")


def test_chex_has_its_mapping_methods_on_a_base_of_ours() -> None:
    assert dict(OfChex(y=1.0)) == {"y": 1.0}


@pytest.mark.parametrize("module", ["__main__", __name__])
def test_chex_on_statics_is_refused_since_it_would_make_them_children(module: str) -> None:
    cls: Any = types.new_class("OfChex", (Decorated,), exec_body=lambda body: body.update(__module__=module))

    with pytest.raises(
        NodeDefinitionError, match=r"OfChex is made by chex, which has no statics, so mode would become"
    ):
        chex.dataclass(frozen=True)(cls)(x=1.0)


def test_chex_registers_a_class_of_a_script_with_its_first_instance() -> None:
    cls: Any = types.new_class("OfChex", (Empty,), exec_body=lambda body: body.update(__module__="__main__"))

    mixed = chex.dataclass(frozen=True)(cls)()
    assert not hasattr(type(mixed), "__node_spec__")
    assert jax.tree.leaves(mixed) == []


def test_a_class_that_is_not_frozen_can_not_follow_on_one_that_is() -> None:
    for decorator in (dataclasses.dataclass, chex.dataclass):
        with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
            decorator(made("Mixed", Decorated))
    assert jax.tree.leaves(Decorated(1.0)) == [1.0]


def test_a_class_with_an_init_of_its_own_calls_that_of_the_node() -> None:
    class Own(Decorated):
        def __init__(self, x: Any, mode: str = "z") -> None:
            super().__init__(x + 1, mode)

    make: Any = Own
    jax.tree_util.register_dataclass(make)
    own = make(1.0)

    assert (jax.tree.leaves(own), own.mode) == ([2.0], "z")
    assert jax.tree.map(lambda x: x, own).x == 3.0  # JAX calls the constructor
    assert not hasattr(Own, "__node_spec__")


def test_a_class_that_flattens_itself_is_registered_by_itself() -> None:
    @jax.tree_util.register_pytree_node_class
    class Own(Decorated):
        def tree_flatten(self) -> tuple[Any, ...]:
            return (self.x,), self.mode

        @classmethod
        def tree_unflatten(cls, aux_data: Any, children: Any) -> Any:
            make: Any = cls
            return make(*children, aux_data)

    assert jax.tree.map(lambda x: x + 1, Own(1.0, "z")).x == 2.0
    assert copy.copy(Own(1.0)).double() == 2.0


def test_an_undecorated_subclass_of_theirs_is_a_node_again() -> None:
    class Below(Registered):  # type: ignore[misc]
        z: Any = 5.0

    make: Any = Below
    below = make(1.0, "z", 2.0)
    assert hasattr(Below, "__node_spec__")
    assert jax.tree.leaves(below) == [1.0, 2.0, 5.0]
    assert (below.mode, copy.copy(below), hash(below)) == ("z", below, hash(make(1.0, "z", 2.0)))


def test_bases_of_theirs_with_ours_behind_them_need_no_init_subclass() -> None:
    class Written(made("Theirs", Registering, mark={"static": True}), Empty):  # type: ignore[misc]  # as brax's
        link: Any = 0.0

    Contact: Any = Written  # noqa: N806  to checkers it has no fields
    contact = Contact(x=jnp.ones(2), link=1.0)

    assert diff(contact, contact.doubled()) != []
    assert not hasattr(Contact, "__node_spec__")
    assert copy.copy(contact).link == 1.0


def test_a_base_that_drops_init_subclass_and_registers_nothing_leaves_a_node() -> None:
    class Forgetful:
        def __init_subclass__(cls) -> None:
            pass

    class Below(Forgetful, Decorated):
        pass

    assert jax.tree.leaves(Below(1.0)) == [1.0]


def test_what_another_library_registered_is_named_by_the_base_that_did() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Alone:
        x: Any

    with pytest.raises(
        NodeDefinitionError, match=r"Alone is registered .*: another decorator, or a call, has registered"
    ):
        pytree_dataclass(Alone)
    assert jax.tree.leaves(Alone(1.0)) == [1.0]

    theirs = made("Theirs", Registering, mark={"static": True})
    with pytest.raises(NodeDefinitionError, match=r"Registering, of which it is a subclass, registers every subclass"):
        pytree_dataclass(theirs)
    assert jax.tree.leaves(theirs(1.0)) == [1.0]


def test_a_second_dataclass_decorator_above_ours_is_refused() -> None:
    for base, decorator in [(Module, dataclasses.dataclass), (OfModule, struct.dataclass)]:
        cls = types.new_class("Mixed", (base,), {"kw_only": True}, body(None))
        with pytest.raises(
            NodeDefinitionError, match=r"Mixed is a node and a dataclass already, .* Drop that decorator"
        ):
            decorator(cls)


def test_equinox_is_refused_before_anything_is_registered() -> None:
    seen: list[type[Any]] = []

    class Watching(eqx.Module):
        def __init_subclass__(cls) -> None:
            seen.append(cls)
            super().__init_subclass__()

    with pytest.raises(NodeDefinitionError, match=r"Mixed has bases of Treewright and of equinox"):
        made("Mixed", Watching, Module)
    assert [is_tree_node(cls) for cls in seen] == [False]


def test_an_export_of_theirs_says_why_it_is_not_written() -> None:
    with pytest.raises(StaticSerializationError, match=r"registered by another library, can't be exported with"):
        jax.export.export(jax.jit(lambda mixed: mixed.x))(Registered(jnp.ones(2))).serialize()


@pytest.mark.parametrize(
    "first",
    [copy.copy, copy.deepcopy, lambda mixed: replaced(mixed, y=2.0), lambda mixed: _rebuilt(*mixed.__reduce__())],
)
def test_a_class_that_no_tool_has_seen_is_theirs_from_the_first_use_on(first: Callable[[Any], Any]) -> None:
    mixed: Any = made("Mixed", Registering, Empty)(y=2.0)

    assert first(mixed) == mixed
    assert not hasattr(type(mixed), "__node_spec__")


def _rebuilt(make: Callable[..., Any], arguments: tuple[Any, ...], state: dict[str, Any], *_: None) -> Any:
    mixed = make(*arguments)
    vars(mixed).update(state)
    return mixed
