"""`sharded_init` and `abstract_state`: the values of one device, in parts; statics by identity; Explicit meshes."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from tests.conftest import count_traces
from treewright import Module, TrainState, field, replace, static
from treewright.errors import ShardingError, ShardingWarning
from treewright.sharding import Rules, abstract_state, init, sharded_init, sharding_report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RULES: Rules = {"in": "fsdp", "out": "tensor"}


P: Any = PartitionSpec  # whose constructor has no annotations


class Linear(Module):
    kernel: jax.Array = field(sharding=("in", "out"))
    bias: jax.Array = field(sharding=("out",))

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)


class Net(Module):
    layers: list[Linear]
    key: jax.Array
    act: Any = static(default=None)

    def __init__(self, sizes: Sequence[int], key: jax.Array, act: str = "relu") -> None:
        keys = jax.random.split(key, len(sizes))
        self.layers = [Linear(*pair) for pair in zip(sizes, sizes[1:], keys, strict=False)]
        self.key = keys[-1]
        self.act = act


def allclose(left: Any, right: Any) -> bool:
    """Up to the rounding of another program: JAX 0.12 differs in the last bit."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs
    )


def mesh_of(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(kind, kind))


def test_the_values_are_those_of_one_device_and_lie_in_parts() -> None:
    mesh = mesh_of()

    made = sharded_init(Net, [8, 16, 4], jax.random.key(1), "gelu", mesh=mesh, rules=RULES)

    alone = jax.jit(lambda key: Net([8, 16, 4], key, "gelu"))(jax.random.key(1))
    assert allclose(made.layers, alone.layers)
    assert (jax.random.key_data(made.key) == jax.random.key_data(alone.key)).all()
    assert made.act == "gelu"
    assert made.layers[0].kernel.sharding == NamedSharding(mesh, P("fsdp", "tensor"))
    assert made.layers[0].kernel.addressable_shards[0].data.shape == (4, 8)


def test_statics_that_compare_by_identity_pass() -> None:
    class Learner(Module):
        linear: Linear
        tx: Any = static()
        state: Any

    def make(key: jax.Array) -> Learner:
        linear, tx = Linear(4, 4, key), optax.adam(1e-3)
        return Learner(linear, tx, tx.init(linear))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    made = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)

    assert made.state[0].mu.kernel.sharding.spec == P("fsdp", "tensor")
    updates, _ = made.tx.update(made.linear, made.state)
    assert jax.tree.structure(updates) == jax.tree.structure(made.linear)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_set", [True, False])
def test_any_mesh_is_taken_whatever_mesh_is_set(kind: AxisType, is_set: bool) -> None:
    mesh = mesh_of(kind)

    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        key = jax.random.key(0)
        made = sharded_init(lambda key: Linear(4, 8, key), key, mesh=mesh, rules=RULES)
        like = abstract_state(lambda key: Linear(4, 8, key), key, mesh=mesh, rules=RULES)

    assert made.kernel.sharding == like.kernel.sharding == NamedSharding(mesh, P("fsdp", "tensor"))
    assert allclose(made, jax.jit(Linear, static_argnums=(0, 1))(4, 8, jax.random.key(0)))


def test_numpy_arrays_among_the_arguments_are_traced() -> None:
    made = sharded_init(lambda table: {"w": table * 2}, np.ones(4, np.float32), mesh=mesh_of(), rules={})

    assert made["w"].tolist() == [2.0] * 4


def test_arguments_on_a_mesh_are_taken_where_they_are() -> None:
    mesh = mesh_of(AxisType.Explicit)
    table = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, P("fsdp")))

    made = sharded_init(lambda table: {"twice": table * 2}, table, mesh=mesh, rules={})

    assert made["twice"].tolist() == [[2.0] * 4] * 4


@pytest.mark.parametrize("enabled", [True, False])
def test_no_search_for_cycles_runs_while_an_init_is_traced_and_it_is_as_it_was_afterwards(enabled: bool) -> None:
    was, during = gc.isenabled(), list[bool]()

    def make(problem: str | None) -> Linear:
        during.append(gc.isenabled())
        if problem is not None:
            raise ValueError(problem)
        return Linear(4, 8, jax.random.key(0))

    try:
        (gc.enable if enabled else gc.disable)()
        abstract_state(make, None, mesh=mesh_of(), rules=RULES)
        with pytest.raises(ValueError, match="no such file"):
            abstract_state(make, "no such file", mesh=mesh_of(), rules=RULES)
        assert gc.isenabled() == enabled
        assert during == [False, False]
    finally:
        (gc.enable if was else gc.disable)()


def test_the_abstract_state_is_what_the_live_one_would_be() -> None:
    mesh = mesh_of()

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=Net([8, 4], key), tx=optax.adamw(1e-3))

    like = abstract_state(make, jax.random.key(0), mesh=mesh, rules=RULES)
    made = sharded_init(make, jax.random.key(0), mesh=mesh, rules=RULES)

    assert jax.tree.structure(like) == jax.tree.structure(made)
    for abstract, live in zip(jax.tree.leaves(like), jax.tree.leaves(made), strict=True):
        assert isinstance(abstract, jax.ShapeDtypeStruct)
        assert (abstract.shape, abstract.dtype) == (live.shape, live.dtype)
        assert abstract.weak_type == getattr(live, "weak_type", False)
        assert live.sharding.is_equivalent_to(abstract.sharding, live.ndim)


def test_what_does_not_fit_is_known_before_anything_is_made() -> None:
    def make(key: jax.Array) -> Linear:
        return Linear(3, 4, key)

    with pytest.raises(ShardingError, match=r"\.kernel, f32\[3,4\]\(abstract\): axis 0 \('in', length 3\) does not"):
        sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)
    made = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES, on_misfit="replicate")
    assert made.kernel.sharding == NamedSharding(mesh_of(), P(None, "tensor"))


@pytest.mark.parametrize("make", [sharded_init, abstract_state])
def test_what_is_neither_an_array_nor_a_number_is_refused_by_its_place(make: Any) -> None:
    nothing: Any = "none"
    with pytest.raises(TypeError, match=r"^dict\['model'\]\.bias is 'none', and the leaves of what is made are arrays"):
        make(
            lambda key: {"model": replace(Linear(4, 4, key), bias=nothing)}, jax.random.key(0), mesh=mesh_of(), rules={}
        )


def programs_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are compiled from now on for an init."""
    compiled: list[Any] = []
    lowered = init._lowered

    def recorded(*args: Any) -> Any:
        program = lowered(*args)

        class Recorded:
            def as_text(self) -> str:
                return str(program.as_text())

            def compile(self) -> Any:
                compiled.append(program.compile())
                return compiled[-1]

        return Recorded()

    monkeypatch.setattr(init, "_lowered", recorded)
    return compiled


def test_an_init_is_traced_once_and_equal_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = programs_of(monkeypatch)

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=Net([256] * 9, key), tx=optax.adamw(1e-3))

    state = sharded_init(counted := count_traces(make), jax.random.key(0), mesh=mesh_of(), rules=RULES)

    assert counted.count == 1
    assert len(programs) == 3  # what is small; the kernels; the moments
    alone = jax.jit(make)(jax.random.key(0))
    assert allclose(state.params.layers, alone.params.layers)
    assert allclose(state.opt_state[0].nu.layers, alone.opt_state[0].nu.layers)


def test_arrays_that_are_made_of_each_other_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = programs_of(monkeypatch)
    table = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)

    def make(key: jax.Array, given: jax.Array) -> dict[str, Any]:
        first, second = (jax.random.normal(one, (256, 256)) for one in jax.random.split(key))
        norm = jnp.sqrt(jnp.sum(first**2) + jnp.sum(second**2))
        jax.debug.callback(lambda _: None, norm)
        jnp.cos(norm)  # of which nothing is made
        return {
            "a": Linear3(first / norm),
            "b": Linear3(second / norm),
            "norm": norm,
            "same": Linear3(first / norm),
            "given": Linear3(given),
            "table": Linear3(jnp.asarray(table) + 1),
            "one": 1,
            "twice": Linear3(given * 2),
        }

    key = jax.random.key(0)
    with pytest.warns(ShardingWarning, match=r"part:\n  \['table'\]\.kernel, .*\nRandom"):  # which is captured
        made = sharded_init(make, key, jnp.asarray(table), mesh=mesh_of(), rules=RULES)

    assert len(programs) == 4  # the argument itself and 1; a, b and same; table; twice
    assert allclose(made, jax.jit(make)(key, jnp.asarray(table)))
    assert made["twice"].kernel.sharding.spec == P("fsdp", "tensor")


class Linear3(Module):
    kernel: Any = field(sharding=("in", "out"))


def test_arguments_by_name_reach_the_function() -> None:
    made = sharded_init(Net, sizes=[8, 4], key=jax.random.key(1), act="gelu", mesh=mesh_of(), rules=RULES)
    like = abstract_state(Net, [8, 4], key=jax.random.key(1), act="gelu", mesh=mesh_of(), rules=RULES)

    assert made.act == like.act == "gelu"
    assert allclose(made.layers, jax.jit(lambda key: Net([8, 4], key))(jax.random.key(1)).layers)


@pytest.mark.parametrize("kind", [None, AxisType.Auto, AxisType.Explicit])
def test_a_plan_needs_no_devices_and_an_init_does(kind: AxisType | None) -> None:
    pod = AbstractMesh((64, 16), ("fsdp", "tensor"))
    rules: Rules = {**RULES, "out": ("tensor",)}

    with jax.set_mesh(mesh_of(kind)) if kind else contextlib.nullcontext():
        like = abstract_state(Net, [1024, 4096], key=jax.random.key(0), mesh=pod, rules=rules)

    assert like.layers[0].kernel.sharding == NamedSharding(pod, P("fsdp", "tensor"))
    with pytest.raises(TypeError, match=r"sharded_init makes arrays, and AbstractMesh.* has no devices to hold them"):
        sharded_init(Net, [8, 4], key=jax.random.key(0), mesh=pod, rules=rules)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Made(Module):
    kernel: Any = field(sharding=("in", "out"))

    def __init__(self, initialiser: Any, key: jax.Array) -> None:
        self.kernel = initialiser(key, (256, 512))


@pytest.mark.parametrize(
    ("initialiser", "key"),
    [
        (jax.random.normal, jax.random.key(0, impl="rbg")),
        (jax.nn.initializers.orthogonal(), jax.random.key(0)),
        (lambda key, shape: jax.random.permutation(key, 256 * 512).reshape(shape) * 1.0, jax.random.key(0)),
    ],
)
def test_what_each_device_computes_whole_is_a_warning(initialiser: Any, key: jax.Array) -> None:
    with pytest.warns(
        ShardingWarning, match=r"all of these arrays.*\n  \.kernel, f32\[256,512\].* keeps 1/4\n"
    ) as caught:
        sharded_init(Made, initialiser, key, mesh=mesh_of(), rules=RULES)

    assert caught[0].filename == __file__


@pytest.mark.parametrize("initialiser", [jax.nn.initializers.lecun_normal(), jax.nn.initializers.truncated_normal()])
def test_what_is_computed_in_parts_is_none(initialiser: Any) -> None:
    sharded_init(Made, initialiser, jax.random.key(0), mesh=mesh_of(), rules=RULES)


def test_settings_of_equations_are_compared_with_their_type_and_by_identity_where_they_must() -> None:
    unhashable: dict[str, int] = {}

    assert init._comparable([1, (2, None)]) == init._comparable([1, (2, None)])
    assert init._comparable((1, 2)) != init._comparable((1.0, 2))
    assert init._comparable([1]) != init._comparable((1,))
    assert init._comparable(unhashable) == init._comparable(unhashable) != init._comparable({})


def test_the_names_of_arguments_are_those_of_the_function() -> None:
    array = jnp.ones(2)

    def names(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
        leaves, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        return [init._argument_name(fn, path) for path, leaf in leaves if leaf is array]

    assert names(Net, [1], array, act={"x": array}) == ["key", "act['x']"]
    assert names(dict, [array]) == ["args[0][0]"]
    assert names(type, array) == ["args[0]"]  # which has no signature
    assert names(lambda *all: all, array, array) == ["all", "args[1]"]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_no_device_makes_more_than_its_part(kind: AxisType, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, programs = mesh_of(kind), programs_of(monkeypatch)

    with jax.set_mesh(mesh):
        made = sharded_init(lambda key: Linear(512, 512, key), jax.random.key(0), mesh=mesh, rules=RULES)

    memory = programs[-1].memory_analysis()
    part = sharding_report(made, mesh, RULES).device_nbytes
    assert memory.output_size_in_bytes < 1.1 * part
    assert memory.temp_size_in_bytes < 4 * part  # random bits, a counter and what they become; whole, it were 16
