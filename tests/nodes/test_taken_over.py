"""Classes that are dataclasses already: under `@pytree_dataclass`, and as they are by `register_dataclass`."""

import dataclasses
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

import treewright
from tests.conftest import count_traces, importorskip
from treewright import at, checkpoint, diff, pytree_dataclass, register_dataclass, static
from treewright.errors import CheckpointMismatchError, NodeDefinitionError, StaticFieldError

serialization: Any = importorskip("flax", "flax.serialization").serialization

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
    """Whether JAX knows a class; before 0.10 it does not tell without an instance."""
    return bool(getattr(jax.tree_util, "is_tree_node", lambda _: False)(cls))


# Under the decorator


@pytest.mark.parametrize("mark", MARKS)
def test_a_class_that_is_a_dataclass_already_is_refused(mark: str) -> None:
    for theirs in (quantised(mark), quantised(mark, frozen=True)):
        with pytest.raises(NodeDefinitionError, match=r"Quantised is a dataclass already, .* Drop what made it one"):
            pytree_dataclass(theirs)


@pytest.mark.parametrize("mark", MARKS)
def test_a_static_may_have_the_mark_of_another_library(mark: str) -> None:
    cls = pytree_dataclass(type("Marked", (), {"__annotations__": {"w": Any, "late": bool}, "late": MARKS[mark]()}))

    assert jax.tree.leaves(cls(1.0)) == [1.0]


@pytest.mark.parametrize("base", [Exception, dict, list, tuple, float, str, set, type, types.SimpleNamespace])
def test_a_class_whose_instances_hold_more_than_fields_is_refused(base: type[Any]) -> None:
    cls: Any = dataclasses.make_dataclass("Theirs", [("x", Any)], bases=(base,))
    known = f"Theirs is a subclass of {base.__name__}, and can't be a node: .* would be lost"

    for make in (pytree_dataclass, register_dataclass):
        with pytest.raises(NodeDefinitionError, match=known):
            make(cls)
    assert not is_registered(cls)


# As they are


@dataclasses.dataclass(frozen=True)
class Grid:
    values: Any
    spacing: float
    mode: str = dataclasses.field(default="a", metadata={"pytree_node": False})
    area: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.values, jax.Array):
            raise TypeError("values must be an array")
        object.__setattr__(self, "area", self.values * self.spacing)


EARLIER = Grid(jnp.ones(2), 0.5)
BODY = dict(vars(Grid))
assert register_dataclass(Grid, static=["spacing"]) is Grid


def test_the_class_and_its_earlier_instances_stay_what_they_are() -> None:
    changed = {name for name, value in vars(Grid).items() if BODY.get(name) is not value}

    assert changed == {"__node_statics__"}
    assert [leaf.tolist() for leaf in jax.tree.leaves(EARLIER)] == [[1.0, 1.0], [0.5, 0.5]]
    assert vars(jax.tree.map(str, EARLIER)) == {
        "values": "[1. 1.]",
        "spacing": 0.5,
        "mode": "a",
        "area": "[0.5 0.5]",
    }  # no constructor ran
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(EARLIER)]
    assert paths == [".values", ".area"]


def test_its_statics_are_exact_and_those_of_another_class_are_others() -> None:
    identity = jax.jit(counted := count_traces(lambda grid: grid))
    for count, spacing in enumerate([1, True, 1.0, float("nan")], start=1):
        identity(Grid(jnp.ones(2), spacing))
        identity(Grid(jnp.zeros(2), spacing))
        assert counted.count == count

    def other() -> Any:
        return register_dataclass(dataclasses.make_dataclass("Other", ["x", ("s", int, static(default=1))]))

    assert jax.tree.structure(other()(1.0)) != jax.tree.structure(other()(1.0))


def test_a_static_that_can_not_be_one_is_refused_by_field_where_the_instance_is_taken_apart() -> None:
    with pytest.raises(StaticFieldError, match=r"Grid\.spacing is static but holds a list"):
        jax.tree.leaves(_with(spacing=[1.0]))


def _with(**values: Any) -> Any:
    grid = dataclasses.replace(EARLIER)
    for name, value in values.items():
        object.__setattr__(grid, name, value)
    return grid


def test_it_is_copied_compared_saved_exported_and_pickled_with_its_statics(tmp_path: Path) -> None:
    other = Grid(jnp.ones(2), 2.0)
    checkpoint.save(tmp_path / "grid", EARLIER)
    program = jax.export.export(jax.jit(lambda grid: grid))(EARLIER).serialize()
    treedef = jax.tree.structure(EARLIER)

    assert at(EARLIER, "values").set(jnp.zeros(2)).values.tolist() == [0.0, 0.0]
    assert [part.kind for part in diff(EARLIER, other)] == ["static", "value"]
    assert [part.kind for part in diff(treedef, jax.tree.structure(other))] == ["static"]
    assert checkpoint.load(tmp_path / "grid", like=_with(values=jnp.zeros(2))).values.tolist() == [1.0, 1.0]
    with pytest.raises(CheckpointMismatchError, match=r"\.spacing: static 0\.5 saved, 2\.0 in the tree"):
        checkpoint.load(tmp_path / "grid", like=other)
    read: Any = jax.export.deserialize(program)
    assert read.call(EARLIER).mode == "a"
    assert pickle.loads(pickle.dumps(treedef)) == treedef
    assert serialization.from_state_dict(EARLIER, serialization.to_state_dict(other)).area.tolist() == [2.0, 2.0]


def test_slots_are_filled_and_a_class_that_changes_is_read_as_it_is() -> None:
    @dataclasses.dataclass(slots=True)
    class Slotted:
        x: Any
        s: int = 1

    slotted = register_dataclass(Slotted, static=["s"])(1.0)
    slotted.x = 5.0

    assert jax.tree.map(lambda x: x + 1, slotted) == Slotted(6.0)


def test_what_can_not_be_registered_is_refused_and_is_not_registered() -> None:
    cls: Any = dataclasses.make_dataclass("Theirs", ["x", "spacing"])
    below = types.new_class("Below", (cls,))

    with pytest.raises(
        NodeDefinitionError, match=r"Theirs has no field spcing \(did you mean spacing\?\)\. Its fields: x,"
    ):
        register_dataclass(cls, static=["spcing"])
    for wrong in (below, cls(1, 2), int):
        with pytest.raises(
            NodeDefinitionError, match="register_dataclass takes a class that is a dataclass itself, got"
        ):
            register_dataclass(wrong)
    with pytest.raises(NodeDefinitionError, match="Static is registered with JAX already"):
        register_dataclass(treewright.Static)
    assert not is_registered(cls)
    register_dataclass(cls)
    with pytest.raises(NodeDefinitionError, match="Theirs is registered with JAX already"):
        register_dataclass(cls)
