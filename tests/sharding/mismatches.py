"""Differences between processes: for each kind one process's value, the others' value, and the message.

A case is a function of `odd`, which is true in one process, and the texts that the message must contain, with `{odd}`
and `{rest}` for the names of the processes.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from treewright import FrozenMapping, Module, TrainState, field, freeze, static
from treewright.sharding import assert_same_on_all_processes, sharded_init

if TYPE_CHECKING:
    from collections.abc import Callable

Case = tuple["Callable[[bool], None]", tuple[str, ...]]
untyped_jax: Any = jax
RULES = {"embed": "data", "mlp": None}
SETTINGS = {"scale": 2.0}


class Net(Module):
    kernel: Any = field(sharding=("embed", "mlp"))
    act: Any = static(default="relu")
    log: str = static(default="", local=True)


class Twin(Net): ...


class Silent:
    """Its repr omits its contents."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __repr__(self) -> str:
        return "Silent()"

    def step(self) -> float:
        return self.rate


def scaled(by: float) -> Any:
    return lambda x: x * by


def kernel() -> jax.Array:
    return jnp.ones((8, 8))


def random_net(key: jax.Array) -> Net:
    return Net(jax.random.normal(key, (8, 8)))


def mesh() -> Any:
    return jax.make_mesh((jax.device_count(),), ("data",))


def spread(count: int, *names: str | None) -> Any:
    """An abstract array split over this number of devices."""
    sharding = jax.NamedSharding(jax.sharding.AbstractMesh((count,), ("data",)), untyped_jax.P(*names))
    return untyped_jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)


def replicated(number: float) -> jax.Array:
    """An array that claims to be replicated, with different numbers from each process."""
    everywhere = jax.NamedSharding(mesh(), untyped_jax.P())
    return jax.make_array_from_callback((3,), everywhere, lambda index: np.full(3, number, np.float32)[index])


def state(tx: Any) -> Any:
    return jax.eval_shape(lambda: TrainState.create(params=Net(kernel()), tx=tx))


@contextlib.contextmanager
def version(package: Any, other: str | None) -> Any:
    before = package.__version__
    package.__version__ = other or before
    try:
        yield
    finally:
        package.__version__ = before


def both(odd: Any, rest: Any) -> tuple[str, ...]:
    return (f"{{rest}}: {rest}\n", f"{{odd}}: {odd}\n")


def act_case(odd: Any, rest: Any, *texts: str) -> Case:
    """A static that differs."""
    return (
        lambda is_odd: assert_same_on_all_processes(Net(1, odd if is_odd else rest)),
        ("  .act (static)\n", *(texts or both(repr(odd), repr(rest)))),
    )


def tree_case(odd: Callable[[], Any], rest: Callable[[], Any], *texts: str) -> Case:
    return lambda is_odd: assert_same_on_all_processes((odd if is_odd else rest)()), texts


def program_case(function: Callable[[bool], Any], *texts: str) -> Case:
    """A program that differs: the function, of one array."""

    def check(odd: bool) -> None:
        assert_same_on_all_processes(jax.jit(function(odd)).lower(kernel()))

    return check, ("have different programs:\n  the program, line ", *(texts or ("{odd}: ", "{rest}: ")))


def init_case(make: Callable[[bool], Any], *texts: str, rules: Callable[[bool], Any] = lambda _: RULES) -> Case:
    """A state that would differ: its init function and the arguments."""

    def check(odd: bool) -> None:
        function, *args = make(odd)
        sharded_init(function, *args, mesh=mesh(), rules=rules(odd))

    return check, texts


def with_version(package: Any, tree: Callable[[], Any]) -> Case:
    def check(odd: bool) -> None:
        with version(package, "0.0.1" if odd else None):
            assert_same_on_all_processes(tree())

    return check, (f"trees:\n  version of {package.__name__}\n", "{odd}: 0.0.1\n")


def reading_environment(odd: bool) -> Any:
    os.environ["SCALE"] = "3" if odd else "2"
    return lambda x: x * float(os.environ["SCALE"])


def reading_a_global(odd: bool) -> Any:
    SETTINGS["scale"] = 3.0 if odd else 2.0
    return lambda x: x * SETTINGS["scale"]


def large_table(odd: bool) -> Any:
    table = np.zeros(5000, np.float32)
    table[-1] = odd
    return lambda x: x.sum() + jnp.asarray(table).sum()


def another_check(odd: bool) -> None:
    if odd:
        sharded_init(random_net, jax.random.key(0), mesh=mesh(), rules=RULES)
    else:
        assert_same_on_all_processes(Net(kernel()))


TREES: dict[str, Case] = {
    "a text": act_case("gelu", "relu"),
    "an int and a bool": act_case(True, 1),
    "zeros of two signs": act_case(-0.0, 0.0),
    "a long text, at its end": act_case("a" * 500 + "y", "a" * 500 + "x", "{odd}: ...aaa", "ay'\n", "ax'\n"),
    "a dtype": act_case(jnp.dtype("bfloat16"), jnp.dtype("float32"), "bfloat16", "float32"),
    "a mapping": act_case(FrozenMapping({"a": 1}), FrozenMapping({"a": 2}), "'a': 1", "'a': 2"),
    "a frozen array": act_case(freeze(np.arange(3)), freeze(np.arange(3) + 1), "{odd}: ", "{rest}: "),
    "an object whose repr tells nothing": act_case(Silent(0.1), Silent(0.2), "rate=0.1", "rate=0.2"),
    "a method of an object": act_case(Silent(0.1).step, Silent(0.2).step, "rate=0.1", "rate=0.2"),
    "a library's function": act_case(jax.nn.gelu, jax.nn.relu, "gelu", "relu"),
    "the code of a lambda": act_case(lambda x: x + 1, lambda x: x - 1, "{odd}: ", "{rest}: "),
    "the captured variable of a closure": act_case(scaled(2.0), scaled(3.0), "by=2.0", "by=3.0"),
    "a jitted function": act_case(jax.jit(scaled(2.0)), jax.jit(scaled(3.0)), "by=2.0", "by=3.0"),
    "a dtype of a leaf": tree_case(
        lambda: Net(kernel().astype(jnp.bfloat16)), lambda: Net(kernel()), "  .kernel\n", *both("bf16[8,8]", "f32[8,8]")
    ),
    "a shape": tree_case(
        lambda: Net(jnp.ones((8, 9))), lambda: Net(kernel()), "  .kernel\n", *both("f32[8,9]", "f32[8,8]")
    ),
    "a weak type": tree_case(lambda: [jnp.asarray(1.0)], lambda: [jnp.ones(())], "  [0]\n", "(weakly typed)"),
    "the numbers of a replicated array": (
        lambda odd: assert_same_on_all_processes([replicated(1.0 + odd)], values=True),
        ("  [0]\n", "{odd}: f32[3] split by P() on ", "{rest}: f32[3] split by P() on "),
    ),
    "the numbers of an array of one's own": (
        lambda odd: assert_same_on_all_processes([jnp.full(3, 1.0 + odd, jnp.float32)], values=True),
        ("  [0]\n", "{odd}: f32[3]#", "{rest}: f32[3]#"),
    ),
    "a Python number": tree_case(lambda: [3], lambda: [4], "  [0]\n", *both(3, 4)),
    "None for an array": tree_case(lambda: Net(None), lambda: Net(kernel()), "  .kernel\n", *both("None", "f32[8,8]")),
    "how many layers": tree_case(
        lambda: [Net(kernel())] * 3, lambda: [Net(kernel())] * 2, "  [2].kernel\n", *both("f32[8,8]", "nothing")
    ),
    "a list and a tuple": tree_case(lambda: [(1,)], lambda: [[1]], "  [0]\n", *both("tuple", "list")),
    "two classes of the same fields": tree_case(lambda: [Twin(1)], lambda: [Net(1)], "  [0]\n", "mismatches.Twin\n"),
    "a key of a dict": tree_case(lambda: {"w": 1}, lambda: {"v": 1}, "  ['w']\n", *both(1, "nothing")),
    "the rate of an optimiser": tree_case(
        lambda: state(optax.adam(2e-3)), lambda: state(optax.adam(1e-3)), "  .tx (static)\n", "0.002", "0.001"
    ),
    "the kind of an optimiser": tree_case(
        lambda: state(optax.lion(1e-3)), lambda: state(optax.adam(1e-3)), "  .tx (static)\n", "  .opt_state[0].nu\n"
    ),
    "a split": tree_case(
        lambda: [spread(4, "data")], lambda: [spread(4, None, "data")], "P('data',)", "P(None, 'data')"
    ),
    "a mesh": tree_case(lambda: [spread(8, "data")], lambda: [spread(4, "data")], "{'data': 8}", "{'data': 4}"),
    "more places than are shown": tree_case(lambda: [*range(25)], lambda: [*range(1, 26)], "  and 5 more paths\n"),
    "the version of optax": with_version(optax, lambda: state(optax.adam(0.1))),
    "the version of JAX": with_version(jax, lambda: Net(1)),
}
PROGRAMS: dict[str, Case] = {
    "a global": program_case(reading_a_global, "{odd}: %cst = stablehlo.constant dense<3.0", "{rest}: %cst = "),
    "an environment variable": program_case(reading_environment),
    "a captured array": program_case(lambda odd: lambda x: x + (jnp.arange(64.0).reshape(8, 8) + odd)),
    "a captured array of many numbers": program_case(large_table),
    "the order of a set": program_case(lambda odd: lambda x: [x + n for n in sorted({1, 2, 3}, reverse=odd)]),
    "a part that only one has": program_case(lambda odd: lambda x: x * 2 if odd else x),
    "another check": (
        another_check,
        (
            "The processes are at different points of the program:\n",
            "{odd}: sharded_init\n",
            "{rest}: assert_same_on_all_processes\n",
        ),
    ),
}
INITS: dict[str, Case] = {
    "a seed": init_case(lambda odd: (random_net, jax.random.key(odd)), "  argument 0\n", "{odd}: key<fry>[]"),
    "a table of numpy": init_case(lambda odd: (Net, np.full((8, 8), 1.0 + odd)), "  argument 0\n"),
    "a seed that only the init reads": init_case(
        lambda odd: (lambda: random_net(jax.random.key(odd)),), "  the program, line ", "{odd}: "
    ),
    "an argument that becomes a static": init_case(
        lambda odd: (lambda act: Net(kernel(), act), "gelu" if odd else "relu"),
        "  .act (static)\n",
        *both("'gelu'", "'relu'"),
    ),
    "a rule": init_case(
        lambda _: (random_net, jax.random.key(0)),
        "  .kernel\n",
        "{odd}: f32[8,8] split by P(None, 'data')",
        "{rest}: f32[8,8] split by P('data',)",
        rules=lambda odd: {"embed": None, "mlp": "data"} if odd else RULES,
    ),
    "an initialiser": init_case(
        lambda odd: (
            lambda key: Net((jax.random.uniform if odd else jax.random.normal)(key, (8, 8))),
            jax.random.key(0),
        ),
        "  the program, line ",
        "{odd}: ",
        "{rest}: ",
    ),
}
CASES = {
    **{f"trees: {name}": case for name, case in TREES.items()},
    **{f"programs: {name}": case for name, case in PROGRAMS.items()},
    **{f"inits: {name}": case for name, case in INITS.items()},
}
A_FEW = ("trees: a text", "trees: how many layers", "programs: a global", "programs: another check", "inits: a seed")


def equal() -> None:
    """Differences that are allowed or only apparent. Each process has a different hash seed."""
    log = f"process {jax.process_index()}"
    assert_same_on_all_processes(
        [
            Net(kernel() * jax.process_index(), frozenset({"a", "b", "c", "d"}), log),
            *(Net(1, act) for act in (lambda x: x in {"a", "b", "c", "d"}, scaled(2.0), jax.jit(scaled(2.0)))),
            *(Net(1, act) for act in (Silent(0.1), Silent(0.1).step, freeze({"x": [1, 2]}), object())),
            dict.fromkeys({"x", "y", "z"}, 1),
            state(optax.chain(optax.clip(1.0), optax.adamw(0.1))),
            jax.jit(lambda x: jnp.tanh(x) + len(log)).lower(kernel()),
        ]
    )
    assert_same_on_all_processes([replicated(2.0), jnp.ones(3), 3, np.ones(2)], values=True)
    sharded_init(lambda key, log: replace_log(random_net(key), log), jax.random.key(0), log, mesh=mesh(), rules=RULES)


def replace_log(net: Net, log: str) -> Net:
    return Net(net.kernel, net.act, log)
