"""optax: equal arguments of a factory result in an equal static, and different arguments in a different one.

The factories are read from optax itself, so that a new release is covered. Each is called with arguments from the
tables below; a factory that needs more fails the first test.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import trace_counts
from treewright import Module, static

optax = pytest.importorskip("optax")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:optax", "ignore::UserWarning:optax"),
]

Maker = Callable[[], Any]


def new_holder() -> Callable[..., Any]:
    """A new class, without statics of other tests in its cache."""

    class Holder(Module):
        tx: Any = static()
        x: Any = None

    return Holder


HOLD = new_holder()


def are_equal(tx: Any, other: Any) -> bool:
    """Whether the two are equal statics; both nodes are alive during the comparison."""
    return bool(jax.tree.structure(HOLD(tx)) == jax.tree.structure(HOLD(other)))


def maker_pairs(build: Callable[[Any], Any], value: Any, changed: Any, names: str) -> dict[str, tuple[Maker, Maker]]:
    """Arguments for parameters of these names, and changed arguments; recreated for each call."""
    return dict.fromkeys(names.split(), (lambda: build(value), lambda: build(changed)))


def either(value: Any, changed: Any, names: str) -> dict[str, tuple[Maker, Maker]]:
    return maker_pairs(lambda argument: argument, value, changed, names)


NUMBERS = {
    **either(0.5, 0.25, "adam_learning_rate beta3 clipping consistent_rms decay decay_rate end_value eta gamma"),
    **either(
        0.5, 0.25, "init_estim_sq_dist init_value l2_norm_clip learning_rate max_delta max_learning_rate max_norm"
    ),
    **either(0.5, 0.25, "momentum noise_multiplier optimism peak_value power slow_step_size step_size threshold value"),
    **either(0.5, 0.25, "weight_decay weight_decay_rate"),
    **either(3, 4, "max_backtracking_steps max_consecutive_errors max_linesearch_steps sync_period warmup_steps"),
    **either(3, 4, "contrib.dpsgd.seed"),
    **either(10, 20, "decay_steps transition_steps"),
    **either((0.9, 0.99), (0.8, 0.99), "betas"),
    **either((3.0, -4.0, 2.0), (3.0, -4.5, 2.0), "ns_coeffs"),
}
CHOICES = {
    **either(jnp.float32, jnp.bfloat16, "accumulator_dtype dtype_momentum mu_dtype param_dtype state_dtype"),
    **either(np.dtype("float32"), np.dtype("float16"), "hyperparam_dtype"),
    **either("linear", "cosine", "interpolate_type"),
    **either("keep", "one", "initial_guess_strategy"),
    **either("norm", "size", "measure_name"),
    **either("hard", "smooth", "mode"),
    **either("frobenius", "aol", "preconditioning"),
    **either("sps", "sps+", "variant"),
    **either(("heuristic", 1e-6), ("heuristic", 1e-3), "init_step"),
    **either(("b1",), (), "static_args"),
    **either(None, 0, "axis"),
}


def axes(kind: str) -> Callable[[Any], Any]:
    return lambda order: {"kernel": getattr(optax.contrib, kind)(*order), "bias": None}


def falling_schedule(steps: int = 10) -> Any:
    return optax.linear_schedule(1.0, 0.0, steps)


CONTAINERS = {
    **maker_pairs(
        lambda kernel: {"kernel": kernel, "bias": False}, True, False, "mask trust_ratio_mask weight_decay_mask"
    ),
    **maker_pairs(lambda kernel: {"kernel": kernel, "bias": True}, True, False, "freeze_mask"),
    **maker_pairs(lambda label: {"kernel": label, "bias": "b"}, "a", "b", "param_labels"),
    **maker_pairs(lambda rate: {"a": optax.adam(0.1), "b": optax.sgd(rate)}, 0.1, 0.2, "transforms"),
    **maker_pairs(lambda scale: {10: scale}, 0.5, 0.25, "boundaries_and_scales"),
    **maker_pairs(lambda step: [step], 10, 20, "boundaries"),
    **maker_pairs(lambda rate: [optax.constant_schedule(rate), falling_schedule()], 0.1, 0.2, "schedules"),
    **maker_pairs(lambda name: {name: optax.global_norm}, "norm", "size", "measures"),
    **maker_pairs(
        lambda peak: [dict(init_value=0.1, peak_value=peak, decay_steps=9, warmup_steps=2)], 1, 2, "cosine_kwargs"
    ),
    **maker_pairs(axes("MuonDimensionNumbers"), (0, 1), (1, 0), "muon_weight_dimension_numbers"),
    **maker_pairs(axes("MuonDimensionNumbers"), (0, 1), (1, 0), "contrib.scale_by_muon.weight_dimension_numbers"),
    **maker_pairs(axes("GaLoreDimensionNumbers"), (0, 1), (1, 0), "weight_dimension_numbers"),
}
OBJECTS = {
    **maker_pairs(jax.random.key, 0, 1, "key"),
    **maker_pairs(jax.random.PRNGKey, 0, 1, "random_seed"),
    **maker_pairs(optax.adam, 0.1, 0.2, "adv_optimizer base_optimizer fast_optimizer inner optimizer tx"),
    **maker_pairs(lambda rate: (optax.clip(1.0), optax.sgd(rate)), 0.1, 0.2, "chain.args"),
    **maker_pairs(lambda rate: (("clip", optax.clip(1.0)), ("sgd", optax.sgd(rate))), 0.1, 0.2, "named_chain.args"),
    **maker_pairs(falling_schedule, 10, 20, "step_size_fn"),
    **maker_pairs(optax.scale_by_zoom_linesearch, 3, 4, "linesearch"),
    **maker_pairs(lambda seed: optax.contrib.hutchinson_estimator_diag_hessian(seed), 0, 1, "hessian_diagonal_fn"),
    **either(optax.adam, optax.adamax, "inner_factory"),
}
# User functions that read and capture nothing: such a lambda, recreated, is an equal static.
FUNCTIONS: dict[str, tuple[Maker, Maker]] = {
    "should_transform_fn": (lambda: lambda step: step % 2 == 0, lambda: lambda step: step % 3 == 0),
    "f": (lambda: lambda grads, params: grads, lambda: lambda grads, params: params),
    "measure": (lambda: lambda grads: grads, lambda: lambda grads: -grads),
    "clip_value_fn": (lambda: lambda step: step**0.5, lambda: lambda step: step**0.25),
    "decay_rate_fn": (lambda: lambda step, rate: rate, lambda: lambda step, rate: 2 * rate),
}
ARGUMENTS = {**NUMBERS, **CHOICES, **CONTAINERS, **OBJECTS, **FUNCTIONS}

NOT_FACTORIES = {
    **dict.fromkeys(("bias_correction", "update_infinity_moment", "update_moment"), "computes from moments"),
    **dict.fromkeys(("microbatch", "value_and_grad_from_state"), "wraps a function that no optimiser holds"),
    "contrib.schedule_free_eval_params": "computes from a state",
    "matrix_inverse_pth_root": "computes from a matrix",
    "sigmoid_binary_cross_entropy": "is a loss",
    "update_moment_per_elem_norm": "computes from moments",
}


def injected_pair(name: str) -> tuple[str, Maker]:
    return "captures a WrappedSchedule", lambda: getattr(optax, name)(optax.adam)(falling_schedule())


# Compared by identity: a rebuilt one is a different static. At most four.
BY_IDENTITY: dict[str, tuple[str, Maker]] = {
    "MultiSteps": ("methods of an object", lambda: optax.MultiSteps(optax.adam(0.1), 3).gradient_transformation()),
    "WrappedSchedule": ("an object whose attributes can change", lambda: optax.WrappedSchedule(falling_schedule())),
    "inject_hyperparams of a schedule": injected_pair("inject_hyperparams"),
    "inject_stateful_hyperparams of a schedule": injected_pair("inject_stateful_hyperparams"),
}


@dataclasses.dataclass(frozen=True)
class Factory:
    name: str
    function: Any

    def makers(self, parameter: str) -> tuple[Maker, ...]:
        return ARGUMENTS.get(f"{self.name}.{parameter}", ARGUMENTS.get(parameter, ()))

    def parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())

    def missing(self) -> list[str]:
        """The required parameters without an argument in the tables."""
        required = [p.name for p in self.parameters() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        return [name for name in required if not self.makers(name)]

    def problem(self) -> str | None:
        """The reason why the arguments in the tables are not enough."""
        if self.missing():
            return f"needs {', '.join(self.missing())}"
        try:
            self.build()
        except Exception as error:  # noqa: BLE001  whatever optax raises
            return f"raises {type(error).__name__}: {error}"
        return None

    def changeable(self) -> list[str]:
        plain = (bool, int, float)
        return [p.name for p in self.parameters() if self.makers(p.name) or isinstance(p.default, plain)]

    def build(self, *, changed: str = "", only_required: bool = False, overrides: dict[str, Any] | None = None) -> Any:
        """The factory's result for recreated arguments: all those in the tables, or only the required ones."""
        spread: tuple[Any, ...] = ()
        arguments: dict[str, Any] = {}
        for parameter in self.parameters():
            makers, default = self.makers(parameter.name), parameter.default
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL and makers:
                spread = makers[parameter.name == changed]()
            elif makers and (default is parameter.empty or not only_required):
                arguments[parameter.name] = makers[parameter.name == changed]()
            elif parameter.name == changed:
                arguments[changed] = different_number(default)
        return optimiser(self.name, self.function(*spread, **(arguments | (overrides or {}))))


def different_number(number: Any) -> Any:
    """A number that differs from this default; a fraction stays one."""
    if isinstance(number, bool):
        return not number
    return number + 1 if isinstance(number, int) else number / 2 or 0.5


def optimiser(name: str, value: Any) -> Any:
    """A factory's result as an optimiser; a schedule becomes the rate of one."""
    if name.startswith("inject_"):
        return value(learning_rate=0.1)
    if hasattr(value, "init") and hasattr(value, "update"):
        return value
    if not callable(value):
        raise TypeError(f"{value!r} is neither an optimiser nor a schedule")
    return optax.adam(value)


def may_be_factory(value: Any) -> bool:
    """Whether a public name of optax may be a factory, by its return annotation; without one it may be."""
    if isinstance(value, type):
        return not issubclass(value, tuple) and not getattr(value, "_is_protocol", False)
    if isinstance(value, types.ModuleType) or not callable(value) or typing.get_origin(value) is not None:
        return False
    returned = inspect.signature(value).return_annotation
    words = ("Transformation", "Callable", "Schedule")
    return returned is inspect.Signature.empty or any(word in str(returned) for word in words)


def factories() -> Iterator[Factory]:
    visited: set[int] = set()
    for module in (optax, optax.contrib, optax.schedules, optax.transforms):
        within = module.__name__.removeprefix("optax").removeprefix(".")
        for name in dir(module):
            value: Any = None if name.startswith("_") else getattr(module, name)
            full = f"{within}.{name}" if within else name
            if id(value) not in visited and may_be_factory(value) and not {full} & {*NOT_FACTORIES, *BY_IDENTITY}:
                yield Factory(full, value)
            visited.add(id(value))


ALL = {factory.name: factory for factory in factories()}
BUILDABLE = [name for name, factory in ALL.items() if not factory.missing()]


def test_every_optax_factory_has_arguments_in_the_tables() -> None:
    problems = {name: factory.problem() for name, factory in ALL.items()}
    fix = "Add its arguments to ARGUMENTS, or list it in NOT_FACTORIES with the reason."
    assert [f"optax.{name} {problem}. {fix}" for name, problem in problems.items() if problem] == []
    assert len(BUILDABLE) >= 90
    assert len(BY_IDENTITY) <= 4


@pytest.mark.parametrize("name", BUILDABLE)
def test_equal_factory_arguments_return_an_equal_static(name: str) -> None:
    for only_required in (True, False):
        first, second = (ALL[name].build(only_required=only_required) for _ in range(2))
        assert first is not second
        assert are_equal(first, second)


@pytest.mark.parametrize("name", BUILDABLE)
def test_each_changed_factory_argument_returns_a_different_static(name: str) -> None:
    factory = ALL[name]
    original = factory.build()

    merged = [changed for changed in factory.changeable() if are_equal(original, factory.build(changed=changed))]

    assert merged == []


RATES: dict[str, Callable[[float], Any]] = {
    "schedule": lambda rate: optax.cosine_decay_schedule(rate, 10),
    "jax": jnp.asarray,
    "numpy": np.asarray,
    "scalar": np.float32,
}


@pytest.mark.parametrize("kind", RATES)
def test_optimisers_with_schedules_or_array_rates_are_equal_statics(kind: str) -> None:
    rejecting = {"optimistic_adam", "sm3"} if kind == "schedule" else set[str]()
    factories_with_rate = [
        ALL[name] for name in BUILDABLE if any(p.name == "learning_rate" for p in ALL[name].parameters())
    ]
    assert len(factories_with_rate) >= 30
    for factory in (factory for factory in factories_with_rate if factory.name not in rejecting):
        first, second, changed = (
            factory.build(overrides={"learning_rate": RATES[kind](rate)}) for rate in (0.1, 0.1, 0.2)
        )
        assert are_equal(first, second), factory.name
        assert not are_equal(first, changed), factory.name


@pytest.mark.parametrize("name", BY_IDENTITY)
def test_the_exceptions_are_compared_by_identity(name: str) -> None:
    _, make = BY_IDENTITY[name]
    original = make()

    counts = trace_counts(lambda x, tx: HOLD(tx, x), original, original, make())

    assert counts == [1, 1, 2], "optax or we have learned to compare it: take it from BY_IDENTITY"


# Training steps that retraced when containers captured by optax had no keys. The changed parameter comes last.

PARAMS = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
GRADS = {"kernel": jnp.full((2, 2), 0.1), "bias": jnp.full(2, 0.1)}


HOLDING = [(name, p) for name in BUILDABLE for p in ALL[name].changeable() if {p, f"{name}.{p}"} & {*CONTAINERS}]


@pytest.mark.parametrize(("name", "parameter"), HOLDING)
def test_a_mutated_container_is_not_confused_with_its_first_content(name: str, parameter: str) -> None:
    factory, hold = ALL[name], new_holder()
    container = factory.makers(parameter)[0]()
    original = factory.build(overrides={parameter: container})
    node = hold(original)

    container.clear()
    rebuilt = factory.build()

    assert node.tx is original
    other = new_holder()  # It has compared neither of the two.
    is_copied = jax.tree.structure(other(original)) == jax.tree.structure(
        other(rebuilt)
    )  # The change does not affect these.
    assert (hold(rebuilt).tx is rebuilt) != is_copied
    assert (jax.tree.structure(hold(rebuilt)) == jax.tree.structure(node)) == is_copied


@pytest.mark.parametrize("name", ["add_decayed_weights", "freeze", "masked"])
def test_an_optimiser_follows_the_mask_at_its_construction(name: str) -> None:
    def build(bias: bool) -> Any:
        return ALL[name].build(overrides={"mask": {"kernel": True, "bias": bias}})

    def updates(tx: Any) -> list[Any]:
        return [leaf.tolist() for leaf in jax.tree.leaves(tx.update(GRADS, tx.init(PARAMS), PARAMS)[0])]

    hold, mask = new_holder(), {"kernel": True, "bias": True}
    node = hold(ALL[name].build(overrides={"mask": mask}))
    mask["bias"] = False

    rebuilt = hold(build(True))

    assert updates(rebuilt.tx) == updates(build(True)) != updates(build(False))
    assert updates(node.tx) == updates(build(False))


@pytest.mark.parametrize("rate", [1e-3, 0.1])
def test_a_schedule_is_the_same_static_before_and_after_its_first_call(rate: float) -> None:
    called, uncalled = (optax.cosine_decay_schedule(rate, 400) for _ in range(2))
    called(0)  # replaces its captured 400 by 400.0

    holder = new_holder()

    assert type(inspect.getclosurevars(called).nonlocals["decay_steps"]) is float
    assert jax.tree.structure(holder(called)) == jax.tree.structure(holder(uncalled))
    assert jax.tree.structure(holder(called)) != jax.tree.structure(holder(optax.cosine_decay_schedule(rate, 401)))
