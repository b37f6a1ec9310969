"""Whole programs, each with all that must be said of it: what a table of `test_programs.py` consists of."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compute_on import compute_on
from jax.sharding import AxisType, Mesh, SingleDeviceSharding

from treewright import Module, static

if TYPE_CHECKING:
    from collections.abc import Callable

UNTOLD = (  # before JAX 0.10 it does tell of these traces
    ""
    if jax.__version_info__ < (0, 10)
    else " | under grad or vmap JAX tells of compilations alone: this one was compiled for arguments that are new in "
    "this block, and may have been traced before"
)
CPU0, CPU1 = jax.devices()[:2]  # cpu:0, or TFRT_CPU_0 before JAX 0.10
CLEARED = (
    "no difference was seen, so the cause was not: JAX's caches were cleared or evicted, or an untracked setting "
    "changed"
)

# Of each kind of mistake that a report could make: programs, each with its reports in order. A report is written as
# `trace 2: LINE | LINE`, without reasons, remedies and the number of the trace that it is compared with.
KINDS: dict[str, dict[str, tuple[Callable[[], object], list[str]]]] = collections.defaultdict(dict)


def says(kind: str, *reports: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Put a program into the table."""

    def add(program: Callable[[], object]) -> Callable[[], object]:
        KINDS[kind][program.__name__] = (program, list(reports))
        return program

    return add


def f32(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def committed(*shape: int, device: int = 0) -> Any:
    return jax.device_put(f32(*shape), jax.devices()[device])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    weight: Any
    setting: Any = dataclasses.field(default="", metadata={"static": True})


class Layer(Module):
    weight: Any
    setting: Any = static(default="relu")


def mesh_of(count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]), ("d",))


# A trace that is shared is no trace


@says(
    "shared", "trace 2: x: float32[4] -> float32[3]", f"recompile 3: x (placement): uncommitted -> committed to {CPU0}"
)
def an_array_is_committed_after_another_shape() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    for x in (f32(4), f32(3), committed(4)):
        jitted(x)


@says(
    "shared", "trace 2: x: float32[4] -> float32[3]", f"recompile 3: x (placement): committed to {CPU0} -> uncommitted"
)
def an_array_is_let_go_after_another_shape() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    for x in (committed(4), committed(3), jnp.ones(4)):
        jitted(x)


@says(
    "shared",
    "trace 2: x: float32[4] -> float32[3]",
    "trace 3: x: float32[3] -> float32[2]",
    f"recompile 4: x (placement): uncommitted -> committed to {CPU1}",
)
def the_one_that_differs_in_placement_is_the_oldest() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    for x in (f32(4), f32(3), f32(2), committed(4, device=1)):
        jitted(x)


@says("shared", "recompile 2: donate_argnums (option of jit): () -> (0,)")
def another_option_shares_the_trace() -> None:
    def function(x: Any) -> Any:
        return x * 2

    jax.jit(function)(f32(4))
    jax.jit(function, donate_argnums=0)(jnp.ones(4))


@says("shared")
def the_same_function_is_jitted_twice() -> None:
    def function(x: Any) -> Any:
        return x * 2

    for _ in range(3):
        jax.jit(function)(f32(4))


@says("shared")
def it_is_lowered_compiled_and_called() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted.lower(f32(4)).compile()
    jitted(f32(4))
    jax.eval_shape(jitted, f32(4))


@says("shared")
def its_jaxpr_is_made_before_and_after() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jax.make_jaxpr(jitted)(f32(4))
    jitted(f32(4))
    jax.make_jaxpr(jitted)(f32(4))


@says("shared", "trace 2: x: float32[4] -> float32[3]", "trace 3: x: float32[3] -> float32[2]")
def its_jaxpr_is_made_for_another_shape() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(4))
    jax.make_jaxpr(jitted)(f32(3))
    jax.jit(jitted)(f32(2))


@says("shared")
def a_function_without_arguments_is_jitted_twice() -> None:
    def function() -> Any:
        return 1.0

    jax.jit(function)()
    jax.jit(function, keep_unused=True)()


@says("shared", "trace 2: x: float32[4] -> float32[3]" + UNTOLD)
def a_gradient_is_taken_of_what_was_called() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(4))
    for x in (f32(4), f32(3), f32(4), f32(3)):
        jax.grad(lambda x: jitted(x).sum())(x)
    jitted(f32(3))


@says("shared", "trace 2: x: float32[4] -> float32[3]" + UNTOLD)
def it_is_called_below_vmap() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    for x in (f32(2, 4), f32(2, 3), f32(5, 4)):
        jax.vmap(jitted)(x)
    jitted(f32(4))


@says("shared", "trace 2: x: float32[4] -> float32[3]" + UNTOLD)
def it_is_called_beside_a_gradient() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    for length in (4, 3):
        jax.grad(lambda w: (w * jitted(jnp.ones(length))).sum())(1.0)  # noqa: B023


# Names that came and went


@says("structure", "trace 2: d['b'] (removed): Python float | d['c'] (added): Python float")
def one_key_takes_the_place_of_another() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted({"a": 1.0, "b": 1.0})
    jitted({"a": 1.0, "c": 1.0})


@says(
    "structure", "trace 2: d['a', 'b'] (removed, 2 places): Python float | d['c', 'd'] (added, 2 places): Python float"
)
def two_keys_take_the_place_of_two() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted({"a": 1.0, "b": 1.0})
    jitted({"c": 1.0, "d": 1.0})


@says("structure", "trace 2: d['k0', 'k1', 'k2', ...] (added, 9 places): Python float")
def nine_keys_are_added() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted({})
    jitted({f"k{index}": 1.0 for index in range(9)})


@says("structure", "trace 2: d['x'][1] (removed): Python float | d['y'][1] (added): Python float")
def one_list_is_shorter_and_another_longer() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted({"x": [1.0, 1.0], "y": [1.0]})
    jitted({"x": [1.0], "y": [1.0, 1.0]})


@says("structure", "trace 2: d (static): ('a', 'b') -> ('b', 'a')")
def an_ordered_dict_is_built_in_another_order() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted(collections.OrderedDict(a=1.0, b=1.0))
    jitted(collections.OrderedDict(b=1.0, a=1.0))


@says("structure", "trace 2: d['a'] (removed): Python float | d['b'] (added): Python float")
def an_ordered_dict_has_another_key() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted(collections.OrderedDict(a=1.0))
    jitted(collections.OrderedDict(b=1.0))


@says("structure", "trace 2: d.<aux_data>[0] (static): int -> float")
def a_defaultdict_has_another_factory() -> None:
    jitted: Any = jax.jit(lambda d: 0)
    jitted(collections.defaultdict(int, a=1.0))
    jitted(collections.defaultdict(float, a=1.0))


# Which arguments are static


@says("static_argnums", "trace 2: n (static): 1 -> 2")
def the_last_argument_is_static() -> None:
    jitted: Any = jax.jit(lambda x, n: x * n, static_argnums=-1)
    jitted(f32(4), 1)
    jitted(f32(4), 2)


@says("static_argnums", "trace 2: n (static): 1 -> 2")
def the_last_but_one_is_static() -> None:
    jitted: Any = jax.jit(lambda x, n, y: x * n * y, static_argnums=(-2,))
    jitted(f32(4), 1, 1.0)
    jitted(f32(4), 2, 2.0)


@says("static_argnums", "trace 2: n (static): 1 -> 2")
def a_static_argument_is_given_by_name() -> None:
    jitted: Any = jax.jit(lambda x, n: x * n, static_argnums=1)
    jitted(f32(4), n=1)
    jitted(f32(4), n=2)


@says("static_argnums")
def a_keyword_in_the_place_of_a_static_argument_is_traced() -> None:
    jitted: Any = jax.jit(lambda *args, **named: args[0] * named["z"], static_argnums=1)
    jitted(f32(4), z=1.0)
    jitted(f32(4), z=2.0)


@says(
    "shared",
    "recompile 2: out_shardings[0] (option of jit): UnspecifiedValue -> "
    "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)",
)
def an_option_is_called_what_users_call_it() -> None:
    def function(x: Any) -> Any:
        return x * 2

    jax.jit(function)(f32(4))
    jax.jit(function, out_shardings=SingleDeviceSharding(jax.devices()[0]))(f32(4))


@says("shared", "recompile 2: jitted (option of jit): 'once' -> 'twice'", "trace 2: x: float32[4] -> float32[3]")
def a_jitted_function_is_jitted_again() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(4))
    again = jax.jit(jitted)
    for x in (f32(4), f32(3), f32(4)):
        again(x)


# What equinox compares


@says("equinox", "trace 2: f (static): <lambda> -> <lambda>")
def a_lambda_made_anew_captures_another_number() -> None:
    @eqx.filter_jit
    def call(f: Any, x: Any) -> Any:
        return f(x)

    for factor in (1.0, 2.0):
        call(lambda x: x * factor, f32(4))  # noqa: B023


@says("equinox", "trace 2: n (static): nan -> nan")
def nan_is_passed_twice() -> None:
    @eqx.filter_jit
    def call(n: Any, x: Any) -> Any:
        return x

    for _ in range(2):
        call(float("nan"), f32(4))


@says("equinox", "trace 2: x: float32[4] -> float32[3]")
def equal_numbers_of_two_types_are_one_to_equinox() -> None:
    @eqx.filter_jit
    def call(n: Any, x: Any) -> Any:
        return x

    call(1, f32(4))
    call(True, f32(3))


@says("equinox", "trace 2: x: float32[4] -> float32[3]")
def a_transformation_of_equinox_is_jitted() -> None:
    def loss(model: Any, x: Any) -> Any:
        return model["weight"].sum() * x.sum()

    jitted: Any = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    for x in (f32(4), f32(3), f32(4)):
        jitted({"weight": jnp.ones(2), "name": "a"}, x)


class Scale(eqx.Module):
    factor: jax.Array

    def __call__(self, x: Any) -> Any:
        return self.factor * x


@says("equinox", "trace 2: x: float32[4] -> float32[3]")
def a_module_of_equinox_is_jitted() -> None:
    jitted: Any = eqx.filter_jit(Scale(jnp.ones(())))
    for x in (f32(4), f32(3), f32(4)):
        jitted(x)


@says(
    "equinox",
    "trace 2: the function itself: the same function under other decorators: JitWrapper, GradWrapper -> JitWrapper, "
    "ValueAndGradWrapper",
)
def a_function_is_jitted_under_another_transformation_of_equinox() -> None:
    def loss(x: Any) -> Any:
        return (x * 2).sum()

    for transformation in (eqx.filter_grad, eqx.filter_value_and_grad):
        eqx.filter_jit(transformation(loss))(f32(4))


@says("equinox", "trace 2: n (static): 1 -> 2 | mode (static): 'a' -> 'b'")
def a_number_and_a_text_change() -> None:
    @eqx.filter_jit
    def call(n: Any, mode: Any, x: Any) -> Any:
        return x * n

    call(1, "a", f32(4))
    call(2, "b", f32(4))


# The closest of many


@says(
    "closest",
    *(f"trace {n}: x: float32[{n - 1}] -> float32[{n}]" for n in range(2, 12)),
    "trace 12: n (static): 'a' -> 'b'",
)
def an_early_call_is_the_closest() -> None:
    jitted: Any = jax.jit(lambda x, n: x, static_argnums=1)
    jitted(f32(1), "a")
    for length in range(2, 12):
        jitted(f32(length), "a")
    jitted(f32(1), "b")


@says(
    "closest",
    "trace 2: a: float32[4] -> float32[3] | b: float32[4] -> float32[3]",
    "trace 3: b: float32[4] -> float32[2]",
)
def fewer_differences_are_closer() -> None:
    jitted: Any = jax.jit(lambda a, b: a)
    jitted(f32(4), f32(4))
    jitted(f32(3), f32(3))
    jitted(f32(4), f32(2))


# Nothing of ours, and nothing of JAX's, in the text


class Unequal:
    """Equal to all others, with a hash of its own."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unequal)

    def __hash__(self) -> int:
        return id(self)


class Named(Module):
    weight: Any
    name: str = static()
    setting: Any = static()


@says("internals", "trace 2: layer.setting (static): <Unequal object> -> <Unequal object>")
def equal_statics_have_unequal_hashes() -> None:
    jitted: Any = jax.jit(lambda layer: layer.weight)
    kept = [Named(f32(4), "a", Unequal()), Named(f32(4), "a", Unequal())]
    for layer in kept:
        jitted(layer)


@says("internals", "trace 2: layer.setting (static): 'relu' -> 'gelu'")
def a_static_of_a_node_changes() -> None:
    jitted: Any = jax.jit(lambda layer: layer.weight)
    for setting in ("relu", "gelu", "relu"):
        jitted(Layer(f32(4), setting))


@says("internals", "trace 2: layer: Node(weight) -> Node(weight)")
def a_class_statement_runs_twice() -> None:
    jitted: Any = jax.jit(lambda layer: layer.weight)
    for _ in range(2):

        class Node(Module):
            weight: Any

        Node.__qualname__ = "Node"
        jitted(Node(f32(4)))


@says("internals", "trace 2: f (static): <lambda> -> <lambda>")
def two_lambdas_stand_on_one_line() -> None:
    jitted: Any = jax.jit(lambda f, x: f(x), static_argnums=0)
    for f in (lambda x: x * 2, lambda x: x * 3):
        jitted(f, f32(4))


@says("internals", "trace 2: key: key<fry>[] -> uint32[2]")
def a_typed_key_becomes_a_raw_one() -> None:
    jitted: Any = jax.jit(lambda key: 0)
    jitted(jax.random.key(0))
    jitted(jax.random.PRNGKey(0))


# Settings


def under(setting: Callable[[], Any]) -> Callable[[], None]:
    def program() -> None:
        jitted: Any = jax.jit(lambda x: x * 2)
        jitted(f32(4))
        with setting():
            jitted(f32(4))
        jitted(f32(4))

    return program


update: Any = jax.config.update


class Updated:
    """A setting of `jax.config` for the time of a block."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value, self.before = name, value, getattr(jax.config, name)

    def __enter__(self) -> None:
        update(self.name, self.value)

    def __exit__(self, *_: object) -> None:
        update(self.name, self.before)


SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "matmul precision": (
        lambda: jax.default_matmul_precision("float32"),
        "jax.config.jax_default_matmul_precision (setting): None -> 'float32'",
    ),
    "a mesh by set_mesh": (
        lambda: jax.set_mesh(jax.make_mesh((1,), ("data",), (AxisType.Auto,))),
        "the mesh in use (setting): no mesh -> a mesh of data=1 (Auto)",
    ),
}
UNNAMED_BEFORE: dict[str, tuple[Callable[[], Any], str]] = {
    name: (
        functools.partial(Updated, name, value),
        f"jax.config.{name} (setting): {not value} -> {value}",
    )
    for name, value in (
        ("jax_use_direct_linearize", False),
        ("jax_use_simplified_jaxpr_constants", True),
        ("jax_softmax_custom_jvp", True),
    )
    if getattr(jax.config, name, value) is not value
}
UNNAMED_BEFORE["a mesh by `with mesh:`"] = (
    lambda: Mesh(np.asarray(jax.devices()[:1]), ("data",)),
    "the mesh of `with mesh:` (setting): no mesh -> a mesh of data=1 (Auto)",
)
if jax.__version_info__ < (0, 11):
    UNNAMED_BEFORE["compute_on"] = (lambda: compute_on("device_host"), "compute_on (setting): None -> 'device_host'")

for name, (setting, line) in SETTINGS.items():
    KINDS["settings"][name] = (under(setting), [f"trace 2: {line}"])
for name, (setting, line) in UNNAMED_BEFORE.items():
    KINDS["settings without a name before JAX 0.10.2"][name] = (under(setting), [f"trace 2: {line}"])


# What fails, and what is not the user's


@says("failed", "trace 2: x: float32[3] -> float32[4]")
def a_function_raises_between() -> None:
    @jax.jit
    def picky(x: Any) -> Any:
        if x.shape[0] == 2:
            raise ValueError("two")
        return x

    for length in (2, 3, 2, 4):
        try:
            picky(f32(length))
        except ValueError:
            assert length == 2


@says("failed", "trace 2: " + CLEARED)
def the_cache_is_cleared() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(4))
    jitted.clear_cache()
    jitted(f32(4))


@says("failed", "trace 2: x: float32[4] -> float32[3]", "trace 3: " + CLEARED)
def the_cache_is_cleared_after_another_shape() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(4))
    jitted(f32(3))
    jitted.clear_cache()
    jitted(f32(4))


@says("silent")
def the_same_calls_come_again() -> None:
    jitted: Any = jax.jit(lambda d: d["x"] * 2)
    for _ in range(3):
        jitted({"x": f32(4)})


@says("silent")
def arrays_of_numpy_and_of_jax_take_turns() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    for x in (f32(4), jnp.ones(4), f32(4)):
        jitted(x)


@says("silent")
def operations_run_outside_of_jit() -> None:
    for length in (4, 3):
        x = jnp.ones(length)
        _ = (x + 1, x @ x, jnp.linspace(0, 1, length), jax.random.normal(jax.random.key(0), (length,)))


@says("silent")
def an_inner_function_is_jitted_too() -> None:
    inner: Any = jax.jit(lambda x: x * 2)
    outer: Any = jax.jit(lambda x: inner(x) + inner(x[:2]).sum())
    for _ in range(2):
        outer(f32(4))


@says("silent")
def an_equal_node_is_made_again() -> None:
    jitted: Any = jax.jit(lambda layer: layer.weight)
    for _ in range(3):
        jitted(Layer(f32(4), ("a", 1)))
