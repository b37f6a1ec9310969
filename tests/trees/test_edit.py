"""`edit`: assignments on a draft that becomes a node when the block ends, or is restored after an error."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from treewright import Module, buffer, edit, field, pytree_dataclass, static
from treewright.errors import NodeInitError, StaticFieldError, UnfinishedNodeError

ran: list[str] = []


def record(value: Any) -> Any:
    ran.append("convert")
    return value


class Layer(Module):
    kernel: Any = field(converter=record)
    bias: Any = None
    mean: Any = buffer(default=0.0)
    activation: str = static(default="relu")

    def __check_init__(self) -> None:
        ran.append(f"check {self.kernel}")
        if isinstance(self.kernel, float) and self.kernel < 0:
            raise ValueError(f"kernel is {self.kernel}")

    @functools.cached_property
    def doubled(self) -> Any:
        return 2 * self.kernel


class Pair(NamedTuple):
    left: Any
    right: Any


@pytree_dataclass
class Net:
    layers: Any
    table: Any = field(default_factory=dict)
    name: str = static(default="net")


def small_net() -> Any:
    return Net([Layer(1.0), Layer(2.0)], {"b": Pair(Layer(3.0), 4.0), "a": (Layer(5.0), [6.0])})


def test_edit_returns_a_changed_copy() -> None:
    net = small_net()
    with edit(net) as draft:
        draft.name = "other"
        draft.layers[0].kernel += 9.0
        draft.layers[1].activation = "gelu"
        draft.layers[1].mean = 7.0
        draft.layers.append(Layer(8.0))
        draft.table["b"].left.bias = 1.0
        draft.table["a"][1][0] = 2.0
        draft.table["new"] = draft.layers[0].kernel

    assert net == small_net()
    assert type(draft) is Net
    assert draft == Net(
        [Layer(10.0), Layer(2.0, mean=7.0, activation="gelu"), Layer(8.0)],
        {"b": Pair(Layer(3.0, 1.0), 4.0), "a": (Layer(5.0), [2.0]), "new": 10.0},
        "other",
    )
    assert list(draft.table) == ["b", "a", "new"]
    assert jax.tree.leaves(jax.tree.map(lambda leaf: leaf, draft)) == jax.tree.leaves(draft)


def test_an_exception_restores_and_freezes_the_draft() -> None:
    net = small_net()
    draft: Any = None
    layer: Any = None

    def attempt() -> None:
        nonlocal draft, layer
        with edit(net) as draft:
            layer = draft.layers[0]
            layer.bias = 3.0
            draft.name = "other"
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        attempt()
    assert draft == net == small_net()
    assert layer == Layer(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"^cannot assign to field 'bias' of a Layer"):
        layer.bias = 3.0


def test_edit_shares_unchanged_parts_with_the_original() -> None:
    net = small_net()
    with edit(net) as draft:
        draft.layers[0].bias = 3.0
        untouched = draft.layers[1]

    assert draft.layers[1] is net.layers[1]
    assert untouched == net.layers[1]
    assert draft.layers[0].kernel is net.layers[0].kernel
    assert draft.table is net.table
    with edit(net) as draft:
        draft.layers[0].bias = draft.layers[0].bias
    assert draft.layers is net.layers
    assert draft.tree_flatten()[1] is net.tree_flatten()[1]


def test_edit_runs_converters_on_assignment_and_checks_at_the_end() -> None:
    @pytree_dataclass
    class Outer:
        inner: Layer
        size: Any = field(default=0, converter=int)

        def __check_init__(self) -> None:
            ran.append("check outer")

    node: Any = Outer(Layer(1.0))
    ran.clear()
    with edit(node) as draft:
        draft.inner.kernel = 2.0
        draft.size = 3.7
        assert draft.size == 3
        assert ran == ["convert"]
        draft.inner.kernel = 4.0

    assert ran == ["convert", "convert", "check 4.0", "check outer"]


def test_a_failing_check_undoes_the_edit() -> None:
    net = small_net()
    with pytest.raises(ValueError, match=r"^kernel is -1\.0$"), edit(net) as draft:  # noqa: PT012
        draft.name = "other"
        draft.layers[0].kernel = -1.0

    assert draft == net


def test_nodes_can_be_moved_swapped_removed_and_put_into_new_containers() -> None:
    net = small_net()
    with edit(net) as draft:
        draft.layers[0], draft.layers[1] = draft.layers[1], draft.layers[0]
        removed = draft.layers.pop()
        removed.bias = 9.0
        draft.table = OrderedDict(x=(draft.layers[0], {"y": removed}), z=[1])

    assert draft.layers == [Layer(2.0)]
    assert draft.layers[0] is net.layers[1]
    assert draft.table == OrderedDict(x=(Layer(2.0), {"y": Layer(1.0, 9.0)}), z=[1])
    assert type(draft.table) is OrderedDict
    assert removed == Layer(1.0, 9.0)


def test_a_shared_node_becomes_two_drafts() -> None:
    layer = Layer(1.0)
    with edit(Net([layer, layer])) as draft:
        draft.layers[0].bias = 3.0

    assert [layer.bias for layer in draft.layers] == [3.0, None]
    assert draft.layers[1] is layer


def test_drafts_are_marked_in_repr_and_errors() -> None:
    with edit(Layer(1.0)) as draft:
        with pytest.raises(UnfinishedNodeError, match=r"^This is a draft of a Layer: it becomes a node when its edit"):
            draft.tree_flatten()
        with pytest.raises(UnfinishedNodeError, match=r"^This is a draft of a Layer"), edit(draft):
            pass
        with pytest.raises(Exception, match="a draft of a Layer"):
            jax.tree.leaves(draft)


# Rejected edits


def test_edit_cannot_delete_fields() -> None:
    with (
        edit(Layer(1.0)) as draft,
        pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot delete Layer\.bias: "),
    ):
        del draft.bias


def test_edit_checks_statics_at_the_end() -> None:
    with (
        pytest.raises(StaticFieldError, match=r"^Layer\.activation is static but holds a list"),
        edit(Layer(1.0)) as draft,
    ):
        draft.activation = ["relu"]  # type: ignore[assignment]

    assert draft.activation == "relu"


def test_edit_rejects_a_node_inside_itself() -> None:
    inside_itself = r"^A draft of a Net was put inside itself, so the Net would contain itself\.$"
    with pytest.raises(NodeInitError, match=inside_itself), edit(small_net()) as draft:
        draft.layers[0].bias = (draft,)


def test_the_last_entry_of_a_dict_can_be_deleted() -> None:
    class Table(Module):
        entries: dict[str, Any]

    table = Table({"a": 1.0, "b": 2.0})
    with edit(table) as draft:
        del draft.entries["b"]
    assert (draft.entries, table.entries) == ({"a": 1.0}, {"a": 1.0, "b": 2.0})


def test_a_draft_copies_numpy_arrays_that_can_change_and_shares_what_is_no_container() -> None:
    class Statistics(Module):
        mean: Any
        rate: Any = np.float32(0.5)
        layer: Any = static(default=Layer(1.0))

    fixed, free, unchanged = np.ones(2), np.ones(2), np.ones(2)
    fixed.flags.writeable = False
    node = Statistics([fixed, free, unchanged])
    with edit(node) as draft:
        assert draft.mean[0] is fixed
        draft.mean[1] += 1.0
        assert draft.mean[2] is not unchanged
    assert draft.mean[2] is unchanged
    assert (draft.mean[1].tolist(), free.tolist()) == ([2.0, 2.0], [1.0, 1.0])
    assert draft.rate is node.rate
    assert draft.layer is node.layer


def test_reading_a_cached_property_of_a_draft_assigns_nothing() -> None:
    class Layer(Module):
        kernel: Any

        @functools.cached_property
        def double(self) -> Any:
            return 2 * self.kernel

    with edit(Layer(1.0)) as draft:
        assert draft.double == 2.0
        draft.kernel = 3.0
    assert draft.double == 6.0
