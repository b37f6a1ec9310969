"""What can differ between processes: for each kind what one of them has, what the others have, and what is said of it.

A case is a function of `odd`, which is true in one process, and the texts that the message has to hold, with `{odd}`
and `{rest}` for the names of the processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from treewright import FrozenMapping, Module, TrainState, field, freeze, static
from treewright.sharding import assert_same_on_all_processes, assert_same_program_on_all_processes, sharded_init

if TYPE_CHECKING:
    from collections.abc import Callable

untyped_jax: Any = jax
RULES = {"embed": "data", "mlp": None}
SETTINGS = {"scale": 2.0}


class Net(Module):
    kernel: Any = field(sharding=("embed", "mlp"))
    act: Any = static(default="relu")
    log: str = static(default="", local=True)


class Twin(Module):
    kernel: Any = field(sharding=("embed", "mlp"))
    act: Any = static(default="relu")
    log: str = static(default="", local=True)


class Hidden:
    """Its repr is that of `object`."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Silent(Hidden):
    def __repr__(self) -> str:
        return "Silent()"

    def step(self) -> float:
        return self.rate


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float


def scaled(by: float) -> Any:
    return lambda x: x * by


def kernel() -> jax.Array:
    return jnp.ones((8, 8))


def mesh(count: int | None = None) -> Any:
    return (
        jax.make_mesh((jax.device_count(),), ("data",))
        if count is None
        else jax.sharding.AbstractMesh((count,), ("data",))
    )


def spread(axes: int, names: tuple[str | None, ...] = ("data",)) -> Any:
    sharding = jax.NamedSharding(mesh(axes), untyped_jax.P(*names))
    return untyped_jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)


def replicated(number: float) -> jax.Array:
    """An array that says it is the same on all devices, of what each process made for itself."""
    everywhere = jax.NamedSharding(mesh(), untyped_jax.P())
    return jax.make_array_from_callback((3,), everywhere, lambda index: np.full(3, number, np.float32)[index])


def state(tx: Any) -> Any:
    return jax.eval_shape(lambda: TrainState.create(params=Net(kernel()), tx=tx))


@contextlib.contextmanager
def version(package: Any, told: str | None) -> Any:
    """Another version of a package, where one is told."""
    before = package.__version__
    package.__version__ = told or before
    try:
        yield
    finally:
        package.__version__ = before


def with_version(package: Any, odd: bool, tree: Any) -> None:
    with version(package, "0.0.1" if odd else None):
        assert_same_on_all_processes(tree)


def made(make: Any, *args: Any, rules: Any = RULES, **kwargs: Any) -> None:
    sharded_init(make, *args, mesh=mesh(), rules=rules, **kwargs)


def lowered(function: Any, *args: Any) -> None:
    assert_same_program_on_all_processes(jax.jit(function).lower(*(args or (kernel(),))))


def reading_environment(odd: bool) -> None:
    os.environ["SCALE"] = "3" if odd else "2"
    lowered(lambda x: x * float(os.environ["SCALE"]))


def reading_a_global(odd: bool) -> None:
    SETTINGS["scale"] = 3.0 if odd else 2.0
    lowered(lambda x: x * SETTINGS["scale"])


def under_another_precision(odd: bool) -> None:
    with jax.default_matmul_precision("float32" if odd else "bfloat16"):
        lowered(lambda x: x @ x)


def another_check(odd: bool) -> None:
    if odd:
        lowered(lambda x: x)
    else:
        assert_same_on_all_processes(Net(kernel()))


def captured(odd: bool) -> Any:
    table = jnp.arange(64.0).reshape(8, 8) + odd
    return lambda key: Net(jax.random.normal(key, (8, 8)) + table)


def both(*values: Any) -> tuple[str, ...]:
    rest, odd = values
    return (f"{{rest}}: {rest}\n", f"{{odd}}: {odd}\n")


def of_act(odd: Any, rest: Any, *said: str) -> tuple[Callable[[bool], None], tuple[str, ...]]:
    """A static that differs."""
    texts = said or both(repr(rest), repr(odd))
    return lambda is_odd: assert_same_on_all_processes(Net(1, odd if is_odd else rest)), ("  .act (static)\n", *texts)


def of_tree(
    odd: Callable[[], Any], rest: Callable[[], Any], *said: str
) -> tuple[Callable[[bool], None], tuple[str, ...]]:
    return lambda is_odd: assert_same_on_all_processes((odd if is_odd else rest)()), said


KEY = 0
TREES: dict[str, tuple[Callable[[bool], None], tuple[str, ...]]] = {
    "a text": of_act("gelu", "relu"),
    "an int and a float": of_act(1.0, 1),
    "an int and a bool": of_act(True, 1),
    "zeros of two signs": of_act(-0.0, 0.0),
    "NaN": of_act(float("nan"), 0.0),
    "a long text, at its end": of_act("a" * 500 + "y", "a" * 500 + "x", "ax'\n", "ay'\n"),
    "an enum": of_act(Color.BLUE, Color.RED, "Color.BLUE", "Color.RED"),
    "a dtype": of_act(jnp.dtype("bfloat16"), jnp.dtype("float32"), "bfloat16", "float32"),
    "a tuple inside": of_act((1, (2, 3)), (1, (2, 4))),
    "a mapping": of_act(FrozenMapping({"a": 1}), FrozenMapping({"a": 2}), "'a': 1", "'a': 2"),
    "a frozen array": of_act(freeze(np.arange(3)), freeze(np.arange(3) + 1), "{odd}: i64[3]#", "{rest}: i64[3]#"),
    "a named tuple": of_act(Pair(1, 2), Pair(1, 3), "left=1, right=2", "left=1, right=3"),
    "a dataclass": of_act(Settings(0.1), Settings(0.2), "rate=0.1", "rate=0.2"),
    "a plain object": of_act(Hidden(0.1), Hidden(0.2), "Hidden(rate=0.1)", "Hidden(rate=0.2)"),
    "an object whose repr tells nothing": of_act(
        Silent(0.1), Silent(0.2), "Silent() (rate=0.1)", "Silent() (rate=0.2)"
    ),
    "an object with slots": of_act(Slotted(0.1), Slotted(0.2), "Slotted(rate=0.1)", "Slotted(rate=0.2)"),
    "a method of an object": of_act(Silent(0.1).step, Silent(0.2).step, "rate=0.1", "rate=0.2"),
    "a library's function": of_act(jax.nn.gelu, jax.nn.relu, "gelu", "relu"),
    "the code of a lambda": of_act(lambda x: x + 1, lambda x: x - 1, "{odd}: ", "<lambda>#", "{rest}: "),
    "what a closure captured": of_act(scaled(2.0), scaled(3.0), "by=2.0", "by=3.0"),
    "a partial": of_act(functools.partial(max, 1), functools.partial(max, 2), "max, 1", "max, 2"),
    "a jitted function": of_act(jax.jit(scaled(2.0)), jax.jit(scaled(3.0)), "by=2.0", "by=3.0"),
    "a static node": of_act(Net(1, "a"), Net(1, "b"), "act='a'", "act='b'"),
    "a dtype of a leaf": of_tree(
        lambda: Net(kernel().astype(jnp.bfloat16)), lambda: Net(kernel()), "  .kernel\n", *both("f32[8,8]", "bf16[8,8]")
    ),
    "a shape": of_tree(
        lambda: Net(jnp.ones((8, 9))), lambda: Net(kernel()), "  .kernel\n", *both("f32[8,8]", "f32[8,9]")
    ),
    "a weak type": of_tree(lambda: [jnp.asarray(1.0)], lambda: [jnp.ones(())], "  [0]\n", "(weakly typed)"),
    "the numbers of a replicated array": (
        lambda odd: assert_same_on_all_processes([replicated(1.0 + odd)], values=True),
        ("  [0]\n", "{odd}: f32[3] split by P() on ", "{rest}: f32[3] split by P() on "),
    ),
    "the numbers of an array of one's own": (
        lambda odd: assert_same_on_all_processes([jnp.full(3, 1.0 + odd, jnp.float32)], values=True),
        ("  [0]\n", "{odd}: f32[3] #", "{rest}: f32[3] #"),
    ),
    "a Python number": of_tree(lambda: [3], lambda: [4], "  [0]\n", *both(4, 3)),
    "None for an array": of_tree(lambda: Net(None), lambda: Net(kernel()), "  .kernel\n", *both("f32[8,8]", "None")),
    "how many layers": of_tree(
        lambda: [Net(kernel())] * 3, lambda: [Net(kernel())] * 2, "  [2].kernel\n", *both("nothing", "f32[8,8]")
    ),
    "a list and a tuple": of_tree(lambda: [[1]], lambda: [(1,)], "  [0]\n", *both("tuple", "list")),
    "two classes of the same fields": of_tree(lambda: [Twin(1)], lambda: [Net(1)], "  [0]\n", "mismatches.Twin\n"),
    "a key of a dict": of_tree(lambda: {"w": 1}, lambda: {"v": 1}, "  ['w']\n", *both("nothing", 1)),
    "the rate of an optimiser": of_tree(
        lambda: state(optax.adam(2e-3)), lambda: state(optax.adam(1e-3)), "  .tx (static)\n", "0.002", "0.001"
    ),
    "the kind of an optimiser": of_tree(
        lambda: state(optax.lion(1e-3)), lambda: state(optax.adam(1e-3)), "  .tx (static)\n", "  .opt_state[0].nu\n"
    ),
    "a schedule": of_tree(
        lambda: state(optax.adam(optax.cosine_decay_schedule(0.1, 10))),
        lambda: state(optax.adam(optax.cosine_decay_schedule(0.1, 20))),
        "  .tx (static)\n",
    ),
    "a static of the parameters and moments": of_tree(
        lambda: jax.eval_shape(lambda: TrainState.create(params=[Net(kernel(), "b")] * 3, tx=optax.adam(0.1))),
        lambda: jax.eval_shape(lambda: TrainState.create(params=[Net(kernel(), "a")] * 3, tx=optax.adam(0.1))),
        "  .params[0-2].act (static), and in .opt_state[0].mu, .opt_state[0].nu\n",
        *both("'a'", "'b'"),
    ),
    "a split": of_tree(
        lambda: [spread(4, (None, "data"))],
        lambda: [spread(4)],
        "  [0]\n",
        "split by P('data',)",
        "split by P(None, 'data')",
    ),
    "a mesh": of_tree(lambda: [spread(8)], lambda: [spread(4)], "  [0]\n", "{'data': 8}", "{'data': 4}"),
    "the version of optax": (
        lambda odd: with_version(optax, odd, state(optax.adam(0.1))),
        ("  version of optax\n", "{odd}: 0.0.1\n"),
    ),
    "the version of JAX": (lambda odd: with_version(jax, odd, Net(1)), ("  version of jax\n", "{odd}: 0.0.1\n")),
}
PROGRAMS: dict[str, tuple[Callable[[bool], None], tuple[str, ...]]] = {
    "a global": (reading_a_global, ("  line ", "{odd}: %cst = stablehlo.constant dense<3.0", "{rest}: %cst = ")),
    "an environment variable": (
        reading_environment,
        ("  line ", "{odd}: %cst = stablehlo.constant dense<3.0", "{rest}: "),
    ),
    "a captured array": (lambda odd: lowered(lambda x: x + captured_table(odd)), ("  line ", "{odd}: ", "{rest}: ")),
    "a captured array of many numbers": (
        lambda odd: lowered(lambda x: x.sum() + large(odd)),
        ("  line ", "{odd}: ", "{rest}: "),
    ),
    "the order of a set": (
        lambda odd: lowered(lambda x: [x + ord(name) for name in names(odd)]),
        ("  line ", "{odd}: "),
    ),
    "the shape of an argument": (
        lambda odd: lowered(lambda x: x, jnp.ones(3 + odd)),
        ("  line ", "tensor<4xf32>", "tensor<3xf32>"),
    ),
    "a precision": (under_another_precision, ("  line ", "{odd}: ", "{rest}: ")),
    "another check": (
        another_check,
        (
            "not at the same check",
            "{odd}: assert_same_program_on_all_processes\n",
            "{rest}: assert_same_on_all_processes\n",
        ),
    ),
}
INITS: dict[str, tuple[Callable[[bool], None], tuple[str, ...]]] = {
    "a seed": (
        lambda odd: made(random_net, jax.random.key(odd)),
        ("  argument key\n", "{odd}: key<fry>[]#", "{rest}: key<fry>[]#"),
    ),
    "a seed by name": (
        lambda odd: made(random_net, key=jax.random.key(odd)),
        ("  argument key\n", "{odd}: key<fry>[]#"),
    ),
    "a table of numpy": (lambda odd: made(Net, np.full((8, 8), 1.0 + odd)), ("  argument kernel\n",)),
    "a seed that only the init reads": (
        lambda odd: made(lambda: random_net(jax.random.key(odd))),
        ("lowered different programs", "{odd}: "),
    ),
    "an array that only the init reads": (
        lambda odd: made(captured(odd), jax.random.key(0)),
        ("lowered different programs", "{odd}: "),
    ),
    "an argument that becomes a static": (
        lambda odd: made(lambda act: Net(kernel(), act), "gelu" if odd else "relu"),
        ("would make different trees", "  .act (static)\n", *both("'relu'", "'gelu'")),
    ),
    "a rule": (
        lambda odd: made(random_net, jax.random.key(0), rules={"embed": None, "mlp": "data"} if odd else RULES),
        ("  .kernel\n", "{odd}: f32[8,8] split by P(None, 'data')", "{rest}: f32[8,8] split by P('data',)"),
    ),
    "a size": (lambda odd: made(lambda: Net(jnp.ones((8, 8 + odd)))), ("  .kernel\n", "f32[8,9]", "f32[8,8]")),
    "an initialiser": (
        lambda odd: made(
            lambda key: Net((jax.random.uniform if odd else jax.random.normal)(key, (8, 8))), jax.random.key(0)
        ),
        ("lowered different programs", "{odd}: ", "{rest}: "),
    ),
}
CASES = {
    **{f"trees: {name}": case for name, case in TREES.items()},
    **{f"programs: {name}": case for name, case in PROGRAMS.items()},
    **{f"inits: {name}": case for name, case in INITS.items()},
}


def random_net(key: jax.Array) -> Net:
    return Net(jax.random.normal(key, (8, 8)))


def captured_table(odd: bool) -> jax.Array:
    return jnp.arange(64.0).reshape(8, 8) + odd


def large(odd: bool) -> Any:
    table = np.zeros(5000, np.float32)
    table[-1] = odd
    return jnp.asarray(table).sum()


def names(odd: bool) -> list[str]:
    return sorted({"a", "b", "c"}, reverse=odd)


def equal() -> None:
    """What may differ between processes, or only looks as if it did. Each process has hashes of its own."""
    me = jax.process_index()
    log = f"process {me}"
    kept: Any = [
        *(Net(kernel() * me, frozenset({"a", "b", "c", "d"}), log), Net(1, lambda x: x in {"a", "b", "c", "d"})),
        *(Net(1, Hidden(0.1)), Net(1, scaled(2.0)), Net(1, Silent(0.1).step), Net(1, freeze({"x": [1, 2]}))),
        *(
            Net(1, jax.jit(scaled(2.0))),
            Net(1, Pair(frozenset({"a", "b"}), object())),
            dict.fromkeys(("a", "b"), 1),
        ),
        *(dict.fromkeys({"x", "y", "z"}, 1), state(optax.chain(optax.clip(1.0), optax.adamw(0.1)))),
    ]
    assert_same_on_all_processes(kept)
    assert_same_on_all_processes([replicated(2.0), jnp.ones(3), 3, np.ones(2)], values=True)
    lowered(lambda x: jnp.tanh(x) + len(log))
    sharded_init(
        lambda key, log: Net(jax.random.normal(key, (8, 8)), log=log), jax.random.key(0), log, mesh=mesh(), rules=RULES
    )
