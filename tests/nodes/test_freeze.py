"""`freeze`: the immutable forms of lists, dicts, sets and numpy arrays."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import datetime as dt
import functools
import math
import operator
import pickle
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import omegaconf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import count_traces, trace_counts
from treewright import FrozenArray, FrozenMapping, freeze, pytree_dataclass, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable


class Point(NamedTuple):
    x: Any
    y: Any = 0


@pytree_dataclass
class Layer:
    x: Any
    setting: Any = static(converter=freeze)


class Size(NamedTuple):
    sizes: Any


@dataclasses.dataclass(frozen=True)
class Config:
    sizes: Any
    rate: float = 0.1
    count: int = dataclasses.field(init=False, default=3)


NESTED = {"sizes": [64, [32]], "names": {"a"}, "point": Point([1], {"b": bytearray(b"c")}), "rate": 0.5}


def test_freeze_is_recursive() -> None:
    frozen = freeze(NESTED)

    assert type(frozen) is FrozenMapping
    assert dict(frozen) == {
        "sizes": (64, (32,)),
        "names": frozenset({"a"}),
        "point": Point((1,), FrozenMapping({"b": b"c"})),
        "rate": 0.5,
    }
    assert type(frozen["point"]) is Point
    assert hash(frozen) == hash(freeze(copy.deepcopy(NESTED)))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1], tuple),
        ((1, [2]), tuple),
        ({1: 2}, FrozenMapping),
        (collections.OrderedDict(a=1), FrozenMapping),
        (collections.defaultdict(list, a=[1]), FrozenMapping),
        ({1}, frozenset),
        (frozenset({1}), frozenset),
        (bytearray(b"a"), bytes),
        (np.ones(2), FrozenArray),
    ],
)
def test_each_mutable_type_has_one_frozen_type(value: Any, kind: type) -> None:
    assert type(freeze(value)) is kind
    assert isinstance(hash(freeze(value)), int)


@pytest.mark.parametrize(
    "value", [None, 1, 1.5, "ab", b"ab", range(3), len, int, object(), (1, ("a",)), Config((1, 2))]
)
def test_freeze_returns_other_values_unchanged(value: Any) -> None:
    assert freeze(value) is value


@pytest.mark.parametrize(
    "value", [jnp.ones(2), [{"a": jnp.ones(2)}], Layer(jnp.ones(2), 1)], ids=["array", "deep", "node"]
)
def test_freeze_rejects_nodes_with_arrays(value: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^freeze is for settings, but .* is a (JAX array|node)(?s:.*)remove static\(\)"
    ):
        freeze(value)


class Attributes(dict[str, Any]):
    """A config whose items are attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


CONFIGS: dict[str, Callable[[], Any]] = {
    "argparse.Namespace": lambda: argparse.Namespace(sizes=[1, 2]),
    "types.SimpleNamespace": lambda: types.SimpleNamespace(sizes=[1, 2]),
    "mapping with attributes": lambda: Attributes(sizes=[1, 2]),
    "OmegaConf": lambda: omegaconf.OmegaConf.create({"sizes": [1, 2]}),
    "frozen dataclass": lambda: Config([1, 2]),
    "named tuple": lambda: Size([1, 2]),
}


@pytest.mark.parametrize("make", CONFIGS.values(), ids=CONFIGS)
def test_frozen_config_objects_keep_their_attributes(make: Callable[[], Any]) -> None:
    frozen = freeze(make())

    assert frozen.sizes == (1, 2)
    assert trace_counts(Layer, *(freeze(make()) for _ in range(2))) == [1, 1]


def test_a_missing_attribute_lists_the_items_of_a_frozen_mapping() -> None:
    with pytest.raises(
        AttributeError, match=r"^This FrozenMapping has no 'size', and is immutable\. Its items: sizes\.$"
    ):
        _ = freeze(argparse.Namespace(sizes=[1])).size


def test_the_items_of_a_frozen_mapping_are_read_only() -> None:
    frozen: Any = freeze({"sizes": [1]})

    with pytest.raises(TypeError, match="does not support item assignment"):
        frozen._items["rate"] = 1
    assert frozen == copy.deepcopy(frozen) == pickle.loads(pickle.dumps(frozen)) == {"sizes": (1,)}


def test_freeze_rejects_object_arrays() -> None:
    for array in (np.array([[], None], dtype=object), np.zeros(2, [("number", int), ("item", object)])):
        with pytest.raises(
            TypeError, match=r"^freeze can't freeze an array, .*Use treewright\.freeze\(array\.tolist\(\)\)"
        ):
            freeze(array)
        assert isinstance(hash(freeze(array.tolist())), int)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda values: st.one_of(st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=3)),
    max_leaves=8,
)


@given(JSON)
def test_frozen_values_are_hashable_and_freeze_to_themselves(value: Any) -> None:
    frozen = freeze(value)

    assert hash(frozen) == hash(freeze(frozen))
    assert repr(freeze(frozen)) == repr(frozen)


@example(math.nan, "int8")
@given(JSON, st.sampled_from(["float32", "int8", "bool"]))
def test_frozen_values_answer_equality_with_one_bool(value: Any, dtype: str) -> None:
    def make() -> Any:
        return freeze({"value": value, "table": np.array([1.0, 0.0], dtype), "empty": np.ones((0, 2))})

    assert make() == make()
    assert (make() != make()) is False
    assert len({make(), make(), (make().table, 1), (make().table, 1)}) == 2
    assert make().table != freeze(np.array([1.0, 1.0], dtype))
    assert make().table != freeze(np.array([1.0, 0.0], "float64"))


def test_a_frozen_array_compares_elementwise_with_data_that_is_not_frozen() -> None:
    table = freeze(np.array([1.0, 2.0]))

    others: list[Any] = [1.0, np.float32(1.0), (1.0, 1.0), [1.0, 1.0], np.ones(2), jnp.ones(2)]
    for other in others:
        assert (table == other).tolist() == [True, False]
        assert (other == table).tolist() == [True, False]
        assert (table != other).tolist() == [False, True]
    names, days = freeze(np.array(["a", "b"])), freeze(np.array(["2026-01-01"], "M8[D]"))
    assert (names == "a").tolist() == [True, False]
    assert (days == dt.date(2026, 1, 1)).tolist() == [True]
    assert np.equal(table, table).tolist() == [True, True]
    assert (table == table).all()
    assert (table[:, None] == table[None, :]).tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("other", [None, "s", {"t": 1.0}, jax.nn.relu, (1.0, 2.0), 1.0])
def test_a_frozen_array_is_compared_with_other_settings(other: Any) -> None:
    table = np.array([1.0, 2.0])
    jitted: Any = jax.jit(lambda x, settings: x, static_argnums=1)

    assert [jitted(1.0, freeze(settings)) for settings in ({"t": table}, {"t": other}, {"t": table})] == [1.0] * 3
    if not isinstance(other, float | tuple):
        assert (freeze(table) == other) is (other == freeze(table)) is False


@pytest.mark.parametrize("value", [np.ones(2), {"table": np.ones(2)}, [np.ones(2), 1]])
def test_frozen_values_are_keys_of_caches_and_static_arguments(value: Any) -> None:
    double, cached = count_traces(lambda x, settings: 2 * x), functools.lru_cache(lambda settings: 1)
    jitted = jax.jit(double, static_argnums=1)

    results = [jitted(1.0, freeze(value)), jitted(1.0, freeze(value))]

    assert results == [2.0, 2.0]
    assert double.count == 1
    assert cached(freeze(value)) == cached(freeze(value))
    assert cached.cache_info().misses == 1


# As a converter


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        ([1, [2]], [1, [2.0]]),
        ({"a": [1]}, {"a": [True]}),
        ({"a", "b"}, {"a"}),
        (bytearray(b"a"), bytearray(b"b")),
        (np.array([0.0, np.nan]), np.array([-0.0, np.nan])),
        (NESTED, {**NESTED, "names": {"b"}}),
        ({"a": {"b": np.ones(2)}}, {"a": {"b": np.zeros(2)}}),
    ],
)
def test_freeze_as_a_converter_compares_statics_by_content(value: Any, changed: Any) -> None:
    settings = (value, copy.deepcopy(value), changed, copy.deepcopy(value))

    assert trace_counts(Layer, *settings) == [1, 1, 2, 2]


# FrozenMapping


def test_a_frozen_mapping_equals_mappings_with_the_same_items_in_any_order() -> None:
    one, other = freeze({"a": 1, "b": 2}), freeze({"b": 2, "a": 1})

    assert one == other == {"a": 1, "b": 2}
    assert hash(one) == hash(other)
    assert one != freeze({"a": 1})
    pairs: object = [("a", 1), ("b", 2)]
    assert one != pairs


@pytest.mark.parametrize(
    "change",
    [
        lambda frozen: frozen.__setitem__("a", 2),
        lambda frozen: frozen.__delitem__("a"),
        lambda frozen: frozen.update(a=2),
        lambda frozen: frozen.pop("a"),
        lambda frozen: frozen.clear(),
        lambda frozen: setattr(frozen, "_items", {}),
        lambda frozen: delattr(frozen, "_items"),
        lambda frozen: setattr(frozen, "other", 1),
    ],
    ids=["setitem", "delitem", "update", "pop", "clear", "setattr", "delattr", "new attribute"],
)
def test_a_frozen_mapping_cannot_change(change: Callable[[Any], Any]) -> None:
    frozen = freeze({"a": 1})

    with pytest.raises(AttributeError, match=r"FrozenMapping"):
        change(frozen)
    assert dict(frozen) == {"a": 1}


def test_a_frozen_mapping_of_mutable_values_is_not_a_static() -> None:
    @pytree_dataclass
    class Example:
        setting: Any = static()

    with pytest.raises(StaticFieldError, match=r"Example\.setting is static but holds a list, \[1\]"):
        Example(FrozenMapping({"a": [1]}))
    assert Layer(1, FrozenMapping({"a": [1]})).setting == {"a": (1,)}


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol))  # type: ignore[misc]
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_of_frozen_values_are_equal_statics(duplicate: Callable[[Any], Any]) -> None:
    frozen = freeze({"a": [1], "b": np.arange(3.0)})
    result = duplicate(frozen)

    assert (type(result), type(result["b"])) == (FrozenMapping, FrozenArray)
    assert hash(result) == hash(frozen)
    assert jax.tree.structure(Layer(1, result)) == jax.tree.structure(Layer(1, frozen))
    with pytest.raises(ValueError, match="read-only"):
        result["b"][0] = 1


# FrozenArray


ARRAYS: dict[str, Any] = {
    "vector": np.arange(3.0),
    "transposed": np.arange(6).reshape(2, 3).T,
    "strided": np.arange(6)[::2],
    "scalar": np.array(1.5),
    "empty": np.ones((0, 3)),
    "structured": np.zeros(2, [("a", np.float32), ("b", np.int8)]),
    "other byte order": np.arange(3, dtype=">i4"),
    "bfloat16": np.ones(2, jnp.bfloat16),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_frozen_array_equals_the_original(array: Any) -> None:
    frozen = freeze(array)

    assert isinstance(frozen, FrozenArray)
    assert (frozen.dtype, frozen.shape) == (array.dtype, array.shape)
    assert frozen.tolist() == array.tolist()
    assert hash(frozen) == hash(freeze(array.copy()))


@pytest.mark.parametrize("duplicate", [freeze, *COPIES.values()], ids=["freeze", *COPIES])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_frozen_array_cannot_be_made_writeable(array: Any, duplicate: Callable[[Any], Any]) -> None:
    frozen = duplicate(freeze(array))

    assert hash(frozen) == hash(freeze(array))
    with pytest.raises(ValueError, match="read-only"):
        frozen[...] = frozen
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
        frozen.setflags(write=True)
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
        frozen.flags.writeable = True
    with pytest.raises(ValueError, match=r"cannot set WRITEABLE flag to True"):
        frozen.view(np.ndarray).setflags(write=True)


WRITES: dict[str, Callable[[Any], object]] = {
    "putting": lambda array: np.put(array, [0], [7]),
    "out=": lambda array: np.add(array, 1, out=array),
    "in place": lambda array: array.__iadd__(1),
    "shape": lambda array: setattr(array, "shape", (3, 1)),
    "dtype": lambda array: setattr(array, "dtype", np.int64),
    "a new attribute": lambda array: setattr(array, "name", "table"),
    "a state": lambda array: array.__setstate__((1, (1,), np.dtype("f8"), False, b"\0" * 8)),
    "a view's flags": lambda array: array[1:].setflags(write=True),
    "a different dtype's flags": lambda array: array.view(np.int64).setflags(write=True),
    "flags of np.frombuffer": lambda array: np.frombuffer(array).setflags(write=True),
    "flags of as_strided": lambda array: np.lib.stride_tricks.as_strided(array, (2,)).setflags(write=True),
    "the memory": lambda array: memoryview(array).__setitem__(slice(0, 1), array[1:2]),
    "the base": lambda array: operator.setitem(array.base, 0, 7),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_numpy_operations_cannot_change_a_frozen_array(write: Callable[[Any], object]) -> None:
    frozen = freeze(np.array([3.0, 1.0, 2.0]))

    with pytest.raises(
        (ValueError, TypeError, AttributeError),
        match=r"read-only|WRITEABLE|can't (change|set)|does not own its data|cannot modify|not support item assignment",
    ):
        write(frozen)

    assert hash(frozen) == hash(freeze(np.array([3.0, 1.0, 2.0])))
    assert isinstance(frozen, FrozenArray)


def unfrozen(shape: tuple[int, ...]) -> Any:
    make: Any = np.ndarray.__new__
    return make(FrozenArray, shape)


RESULTS: dict[str, Callable[[Any], Any]] = {
    "a copy": lambda array: array.copy(),
    "a sum": lambda array: array + 1,
    "np.array": lambda array: np.array(array, subok=True),
    "a view of one that can change": lambda _: np.zeros(3).view(FrozenArray),
    "a view of one that can't just now": lambda _: read_only(np.zeros(3)).view(FrozenArray),
    "numpy's own constructor": lambda _: unfrozen((3,)),
    "a copy of a result": lambda array: copy.copy(array * 2),
}


def read_only(array: Any) -> Any:
    view = array[:]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("compute", RESULTS.values(), ids=RESULTS)
def test_writeable_results_are_not_frozen_arrays(compute: Callable[[Any], Any]) -> None:
    result = compute(freeze(np.arange(3.0)))

    assert isinstance(result, np.ndarray)
    assert not isinstance(result, FrozenArray)
    assert isinstance(freeze(result), FrozenArray)
    assert type(pickle.loads(pickle.dumps(result))) is np.ndarray
    assert repr(result).startswith("array(")


def test_frozen_arrays_come_only_from_freeze() -> None:
    with pytest.raises(TypeError, match=r"^FrozenArray can't be called\. Use treewright\.freeze\(array\)\.$"):
        FrozenArray((2,))


def test_a_frozen_array_is_a_constant_of_the_compiled_program() -> None:
    @jax.jit
    def apply(layer: Layer) -> Any:
        return layer.x * layer.setting + jnp.asarray(layer.setting).sum()

    values = np.arange(3.0, dtype=np.float32)

    np.testing.assert_allclose(apply(Layer(jnp.full(3, 2.0), values)), values * 2 + 3)
    np.testing.assert_allclose(apply(Layer(jnp.full(3, 2.0), values + 1)), (values + 1) * 2 + 6)


def test_results_of_computations_must_be_frozen_again() -> None:
    @pytree_dataclass
    class Example:
        setting: Any = static()

    result = freeze(np.ones(2)) * 2

    with pytest.raises(TypeError, match="unhashable type"):
        hash(result)
    with pytest.raises(StaticFieldError, match=r"Example\.setting is static but holds an array, f64\[2\]"):
        Example(result)
    assert Example(freeze(result)).setting.tolist() == [2.0, 2.0]


def test_freeze_rejects_array_subclasses_with_extra_state() -> None:
    masked: Any = np.ma.masked_array([1, 2], mask=[True, False])
    record: Any = np.rec.array([(1,)], dtype=[("a", int)])

    for array in (masked, record):
        with pytest.raises(TypeError, match=r"^freeze can't freeze a (MaskedArray|recarray), .*\)\.$"):
            freeze(array)
    assert freeze(np.asarray(record))["a"].tolist() == [1]


def test_a_large_frozen_array_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table, copies = freeze(np.arange(1000.0)), count_traces(FrozenArray.tobytes)
    monkeypatch.setattr(FrozenArray, "tobytes", copies)

    nodes = [Layer(1, table) for _ in range(3)]

    assert copies.count == 0
    assert len({hash(node.setting) for node in nodes}) == 1


def test_a_mapping_without_items_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="_items"):
        getattr(FrozenMapping.__new__(FrozenMapping), "x")  # noqa: B009  untyped
