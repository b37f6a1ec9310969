"""What `TrainState` trains: Python values in fields of each kind, callable parameters, layers of other libraries."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import importorskip
from treewright import Adopted, Module, Static, TrainState, adopt, at, buffer, field, static
from treewright.errors import ChildWarning

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

flax: Any = importorskip("flax", "flax.struct", "flax.nnx")
nnx: Any = flax.nnx

SPECIFIERS: dict[str, Callable[[], Any] | None] = {"plain": None, "static": static, "buffer": buffer, "field": field}
VALUES: dict[str, Any] = {
    "float": 0.5,
    "number of numpy": np.float64(0.5),
    "complex": 0.5j,
    "int": 3,
    "bool": True,
    "str": "relu",
    "function": jnp.tanh,
    "None": None,
    "tuple of floats": (0.5, 0.25),
    "numpy array": np.ones(2, np.float32),
    "array": jnp.ones(2),
}
# T: trained without a word; W: trained, with a warning; K: kept as it is; N: kept, with a warning that it is no leaf;
# R: refused.
OUTCOMES = {
    "float": "WKKT",
    "number of numpy": "WKKT",
    "complex": "WKKT",
    "int": "RKKR",
    "bool": "RKKR",
    "str": "RKNR",
    "function": "RKNR",
    "None": "KKKK",
    "tuple of floats": "WKKT",
    "numpy array": "TRKT",
    "array": "TRKT",
}
ROWS = [
    (value, kind, outcome) for value, row in OUTCOMES.items() for kind, outcome in zip(SPECIFIERS, row, strict=True)
]


@pytest.mark.parametrize(("value", "kind", "outcome"), ROWS)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_each_python_value_is_trained_warned_of_or_refused(value: str, kind: str, outcome: str) -> None:
    specifier = SPECIFIERS[kind]
    namespace: dict[str, Any] = {"__annotations__": {"w": Any, "x": Any}, "__module__": __name__}
    if specifier is not None:
        namespace["x"] = specifier()
    model: Any = type("Model", (Module,), namespace)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ChildWarning)
        got = outcome_of(lambda: model(jnp.ones(2), VALUES[value]), VALUES[value])
    trained = [str(each.message) for each in caught if "the optimiser trains it" in str(each.message)]
    assert got == {"W": "T", "N": "K"}.get(outcome, outcome)
    assert bool(trained) is (outcome == "W")


def outcome_of(make: Callable[[], Any], before: Any) -> str:
    try:
        state = TrainState.create(params=make(), tx=optax.sgd(0.1))
        grads = jax.tree.map(
            lambda leaf: leaf if callable(leaf) or isinstance(leaf, str) else jnp.ones_like(leaf), state.params
        )
        after: Any = state.apply_gradients(grads=grads).params
    except (TypeError, ValueError):
        return "R"
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), jax.tree.leaves(before), jax.tree.leaves(after.x))
    return "T" if any(changed) else "K"


def test_a_trained_number_is_told_once_for_each_field() -> None:
    class Norm(Module):
        scale: jax.Array
        eps: float = 1e-5

    class Net(Module):
        norms: tuple[Norm, ...]

    net = Net((Norm(jnp.ones(2)), Norm(jnp.ones(2))))
    with pytest.warns(ChildWarning, match=r"^params\.norms\[0\]\.eps is a float, 1e-05, so") as caught:
        TrainState.create(params=net, tx=optax.sgd(0.1))
    with warnings.catch_warnings(action="error"):
        TrainState.create(params=net, tx=optax.sgd(0.1))
    assert len(caught) == 1
    assert "\n  eps: float = buffer(default=1e-05)\n" in str(caught[0].message)


@pytest.mark.parametrize("params", [{"w": 1.0}, [0.5, jnp.ones(2)], (Static(0.5), jnp.ones(2))], ids=repr)
def test_numbers_outside_of_fields_are_data(params: Any) -> None:
    with warnings.catch_warnings(action="error"):
        TrainState.create(params=params, tx=optax.sgd(0.1))


def test_a_number_below_a_buffer_is_not_trained() -> None:
    class Norm(Module):
        scale: jax.Array
        eps: float = 1e-5

    class Averaged(Module):
        model: jax.Array
        average: Norm = buffer()

    with warnings.catch_warnings(action="error"):
        TrainState.create(params=Averaged(jnp.ones(2), Norm(jnp.ones(2))), tx=optax.sgd(0.1))


def test_containers_that_jax_can_not_flatten_are_accepted_as_children() -> None:
    class Net(Module):
        table: Any

    loop: list[Any] = []
    loop.append(loop)
    for value in ({1: jnp.ones(2), "a": jnp.ones(2)}, loop):
        with warnings.catch_warnings(action="error"):
            assert Net(value).table is value


def test_inference_mode_skips_adopted_layers_without_a_mode() -> None:
    model = (adopt(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))), eqx.nn.Dropout(0.5))
    assert eqx.nn.inference_mode(model)[1].inference


# Callable parameters


class InEquinox(eqx.Module):
    w: jax.Array
    number: float | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.w


class InFlax:
    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.w


IN_FLAX: Any = flax.struct.dataclass(InFlax)


class Registered:
    def __init__(self, w: Any) -> None:
        self.w = w

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(x * self.w)


jax.tree_util.register_dataclass(Registered, ["w"], [])
CALLABLE: dict[str, Callable[[], Any]] = {
    "module of equinox": lambda: InEquinox(jnp.ones(3)),
    "layer of equinox": lambda: eqx.nn.Linear(3, 2, key=jax.random.key(0)),
    "flax.struct": lambda: IN_FLAX(jnp.ones(3)),
    "register_dataclass": lambda: Registered(jnp.ones(3)),
    "layer of nnx": lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)),
    "adopted": lambda: adopt(eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))),
}


@pytest.mark.parametrize("make", CALLABLE.values(), ids=CALLABLE)
def test_parameters_may_be_any_callable_pytree(make: Callable[[], Any]) -> None:
    x = jnp.array([1.0, 2.0, 3.0])

    def loss(model: Any) -> Any:
        return (model(x) ** 2).mean()

    state = TrainState.create(params=make(), tx=optax.sgd(0.01))
    step = jax.jit(lambda state: state.apply_gradients(grads=jax.grad(loss)(state.params)))
    before = loss(state.params)
    for _ in range(3):
        state = step(state)
    assert loss(state.params) < before


@pytest.mark.parametrize("grads", [lambda params: None, {"w": jax.grad(lambda w: w)}], ids=["all", "a leaf"])
def test_a_function_among_the_gradients_is_refused(grads: Any) -> None:
    state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.1))
    with pytest.raises(
        ValueError, match=r"apply_gradients: grads (is|contains) the function .*\. Call it: grads = jax"
    ):
        state.apply_gradients(grads=grads)


@pytest.mark.parametrize(
    ("tx", "is_right"),
    [
        (optax.masked(optax.sgd(0.1), {"w": False, "f": False}), False),
        (optax.masked(optax.sgd(0.1), {"w": False, "f": True}), False),
        (optax.chain(optax.masked(optax.scale(2.0), {"w": False, "f": False})), False),
        (optax.masked(optax.sgd(0.1), True), True),
        (optax.identity(), True),
        (optax.chain(optax.identity(), optax.identity()), True),
        (optax.partition({True: optax.sgd(0.1), False: optax.set_to_zero()}, {"w": False, "f": True}), True),
    ],
)
@pytest.mark.parametrize("jit", [lambda function: function, jax.jit], ids=["eager", "jit"])
def test_gradients_that_pass_unchanged_are_refused_if_a_mask_is_the_cause(jit: Any, tx: Any, is_right: bool) -> None:
    ones = {"w": jnp.ones(2), "f": jnp.ones(2)}
    state = TrainState.create(params=ones, tx=tx)
    step = jit(lambda state: state.apply_gradients(grads=ones))
    if is_right:
        step(state)
        return
    with pytest.raises(ValueError, match=r"returned the gradients of params\['(f|w)'\].* unchanged"):
        step(state)


# Layers of other libraries


def rngs() -> Any:
    return nnx.Rngs(0)


# Each with the end of its warning, if it has one.
LAYERS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "nnx.Linear": (lambda: nnx.Linear(2, 2, rngs=rngs()), None),
    "nnx.BatchNorm": (lambda: nnx.BatchNorm(2, rngs=rngs()), "call_and_update"),
    "nnx.Dropout": (lambda: nnx.Dropout(0.5, rngs=rngs()), "call_and_update"),
    "nnx.Sequential": (
        lambda: nnx.Sequential(nnx.Linear(2, 2, rngs=rngs()), nnx.BatchNorm(2, rngs=rngs())),
        "call_and",
    ),
    "eqx.nn.Linear": (lambda: eqx.nn.Linear(2, 2, key=jax.random.key(0)), None),
    "a number in equinox": (lambda: InEquinox(jnp.ones(3), 2.0), None),
    "eqx.nn.Dropout": (lambda: eqx.nn.Dropout(0.5), r"adopt\(\.\.\.\)"),
    "eqx.nn.MLP": (lambda: eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), r"adopt\(\.\.\.\)"),
    "linen.Dense": (lambda: importorskip("flax", "flax.linen").linen.Dense(2), r"adopt\(\.\.\.\)"),
}


class Pair(NamedTuple):
    layer: Any
    rate: float


PLACES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda layer: layer,
    "list": lambda layer: [layer],
    "ordered dict of named tuples": lambda layer: OrderedDict(a=Pair(layer, 1.0)),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("make", "warning"), LAYERS.values(), ids=LAYERS)
def test_a_layer_that_needs_adopt_warns_wherever_it_is(
    make: Callable[[], Any], warning: str | None, place: Callable[[Any], Any]
) -> None:
    class Net(Module):
        layer: Any

    if warning is None:
        with warnings.catch_warnings(action="error"):
            Net(place(make()))
    else:
        with pytest.warns(ChildWarning, match=f"^{Net.__qualname__}.layer is a child but holds (?s:.*){warning}"):
            Net(place(make()))
    with warnings.catch_warnings(action="error"):
        Net(place(adopt(make())))


def test_the_statistics_of_an_adopted_layer_are_not_trained() -> None:
    norm = nnx.BatchNorm(3, rngs=rngs(), use_running_average=True)
    model = adopt(nnx.Sequential(nnx.Linear(3, 3, rngs=rngs()), norm))
    state = TrainState.create(params=model, tx=optax.adamw(0.1, weight_decay=0.5))

    def loss(model: Any) -> Any:
        return (model(jnp.ones((2, 3))) ** 2).sum()

    state = state.apply_gradients(grads=jax.grad(loss)(state.params))
    trained = state.params.tree.layers[1]
    assert trained.mean[...].tolist() == [0.0, 0.0, 0.0]
    assert trained.var[...].tolist() == [1.0, 1.0, 1.0]
    assert trained.scale[...].tolist() != [1.0, 1.0, 1.0]


# Static


def test_a_static_compares_as_its_value() -> None:
    mode: Any = Static("train")

    assert mode == "train"
    assert "train" == mode  # noqa: SIM300  the other side's == is asked first
    assert mode != "eval"
    assert mode in ("eval", "train")
    assert {"train": 1}[mode] == 1
    assert mode == Static("train")
    assert Static(1) != Static(True)
    match mode:
        case "train":
            pass
        case _:
            pytest.fail("it does not match")
    assert (
        jax.jit(lambda config: config["x"] * (10 if config["mode"] == "train" else 1))({"x": 2.0, "mode": mode}) == 20
    )


class Settings(Module):
    mode: Any = field()
    modes: Any = field(default=())


def test_a_node_with_a_static_differs_from_one_with_its_value() -> None:
    # Otherwise a node as a static argument of jit would get the program of the other.
    assert Settings(Static("train")) != Settings("train")
    assert Settings(None, [Static(2.0)]) != Settings(None, [2.0])
    assert Settings(Static(1)) != Settings(Static(True))
    assert Settings(Static("train")) == Settings(Static("train"))

    jitted = jax.jit(lambda settings: isinstance(settings.mode, Static), static_argnums=0)
    assert [bool(jitted(Settings(mode))) for mode in (Static("train"), "train")] == [True, False]


def test_inference_mode_of_a_model_with_adopted_layers_says_what_to_write() -> None:
    model = Settings({"dropout": adopt(eqx.nn.Dropout(0.5)), "scale": jnp.ones(2)})

    with pytest.raises(TypeError, match=r"adopted layer, because its flags are statics.*model = at\(model, Adopted\)"):
        eqx.nn.inference_mode(model)
    model = at(model, Adopted).apply(lambda layer: adopt(eqx.nn.inference_mode(layer.tree)))
    assert model.mode["dropout"].inference
    assert model.mode["dropout"](jnp.ones(2)).tolist() == [1.0, 1.0]
