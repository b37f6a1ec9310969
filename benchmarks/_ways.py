"""A transformer and its training step, as each library would have them written, and each way to call that step."""

import dataclasses
import functools
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
import optax
from _peers import LIBRARIES, Library

import treewright

LAYERS = 24
LEAVES = 9 * LAYERS + 9  # of the model; the state has three times as many, and a count
TX = optax.adam(1e-3)

# Fields, and the one static of a class. The last are plain parts: every library gets a list of blocks.
CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, object] | None]] = {
    "LayerNorm": (("scale", "bias"), ("epsilon", 1e-6)),
    "RMSNorm": (("scale",), ("epsilon", 1e-6)),
    "Attention": (("query", "key", "value", "out"), ("heads", 8)),
    "MLP": (("gate", "up", "down"), ("activation", "silu")),
    "Block": (("norm1", "attention", "norm2", "mlp"), None),
    "Embedding": (("tokens", "positions", "norm"), None),
    "Head": (("norm", "kernel", "bias", "temperature"), None),
    "Model": (("embedding", "blocks", "head"), None),
    "State": (("params", "opt_state"), None),
}
# Every field is read once. The arrays are too small for products of matrices.
FORWARD = """
def forward(model, x):
    x = x + model.embedding.tokens + model.embedding.positions
    x = x * model.embedding.norm.scale + model.embedding.norm.bias
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        y = x * block.norm1.scale
        x = x + y * attention.query + y * attention.key * attention.value * attention.out
        y = x * block.norm2.scale
        x = x + y * mlp.gate * mlp.up * mlp.down
    head = model.head
    x = x * head.norm.scale + head.norm.bias
    return ((x * head.kernel + head.bias) * head.temperature).sum()
"""
PARTS = "embedding|tokens|positions|norm1|norm2|norm|scale|bias|blocks|attention|mlp|query|key|value|out|gate|up|down"
NNX_CLASS = """
class {name}(nnx.Module):
    def __init__(self, {parameters}):
{body}
"""

Role = Literal["base", "limit", "peer", "ours"]
Step = Callable[[jax.Array], Any]
Start = Callable[[Any], Step]  # from a model; the program is compiled once, at the first call of the first step


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One way to write a model and to run its training step.

    Args:
        name: What tables call it.
        role: Whether it is what others are compared with, the least that a call can cost, a peer, or ours.
        code: The classes and functions of the library.
        begin: Gives what starts a training run from a model: something that does one step after another, on a state of
            its own, and returns the loss.
        own_model: Whether building a model and calling it is anything else than in the ways before.
        distribution: Where the library comes from.
    """

    name: str
    role: Role
    code: types.ModuleType
    begin: Callable[[types.ModuleType], Start]
    own_model: bool = True
    distribution: str | None = None

    def model(self, leaves: Sequence[jax.Array]) -> Any:
        """A model with these leaves."""
        return self.code.build(leaves)


def leaves_of(size: int) -> list[jax.Array]:
    """New arrays for a model, each `f32[size]`."""
    return [jax.device_put(np.full(size, 0.01, np.float32)) for _ in range(LEAVES)]


# The code of each library


def _call(library: Library | None, name: str, *values: str) -> str:
    """The text that makes a part of the model: an instance, or a dict."""
    fields, static = CLASSES[name]
    if library is None:
        return "{" + ", ".join(f"{field!r}: {value}" for field, value in zip(fields, values, strict=True)) + "}"
    if static is not None and library.static is not None:
        fields, values = (*fields, static[0]), (*values, repr(static[1]))
    pairs = zip(fields, values, strict=True)
    return f"{name}({', '.join(f'{field}={value}' if library.keywords else value for field, value in pairs)})"


def _functions(library: Library | None, blocks: str) -> str:
    """`build`, `forward` and, but for a `None`, `state`."""
    part = functools.partial(_call, library)
    norm, layer_norm = part("RMSNorm", "take()"), part("LayerNorm", "take()", "take()")
    attention = part("Attention", *["take()"] * 4)
    block = part("Block", norm, attention, norm, part("MLP", *["take()"] * 3))
    embedding = part("Embedding", "take()", "take()", layer_norm)
    head = part("Head", layer_norm, "take()", "take()", "take()")
    model = part("Model", embedding, blocks.format(f"[{block} for _ in range({LAYERS})]"), head)
    forward = re.sub(rf"\.({PARTS}|head|kernel|temperature)\b", r"['\1']", FORWARD) if library is None else FORWARD
    build = f"def build(leaves):\n    take = iter(leaves).__next__\n    return {model}\n"
    state = f"def state(params, opt_state):\n    return {part('State', 'params', 'opt_state')}\n"
    return f"{forward}\n{build}\n{state}"


def _classes(library: Library) -> str:
    texts: list[str] = []
    for name, (fields, static) in CLASSES.items():
        lines = [f"    {field}: object" for field in fields]
        if static is not None and library.static is not None:
            lines.append(f"    {library.static.format(name=static[0], type=type(static[1]).__name__)}")
        head = f"class {name}({library.bases}):" if library.bases else f"class {name}:"
        texts.append("\n".join([library.decorator, head, *lines]))
    return "\n".join(["import jax", library.imports, *texts])


def _nnx() -> str:
    texts: list[str] = []
    for name, (fields, static) in CLASSES.items():
        names = fields if static is None else (*fields, static[0])
        holds_parts = name in {"Block", "Model"}
        lines = [f"        self.{field} = {_nnx_value(field, holds_parts)}" for field in fields]
        lines += [] if static is None else [f"        self.{static[0]} = {static[0]}"]
        texts.append(NNX_CLASS.format(name=name, parameters=", ".join(names), body="\n".join(lines)))
    return "\n".join(["from flax import nnx", *texts])


def _nnx_value(field: str, holds_parts: bool) -> str:  # noqa: FBT001
    return field if holds_parts or field == "norm" else f"nnx.Param({field})"


def _module(name: str, text: str) -> types.ModuleType:
    module = types.ModuleType(f"_step_{re.sub(r'[^a-z]', '_', name.lower())}")
    sys.modules[module.__name__] = module  # dataclasses and typing look a class's module up by name
    exec(compile(text, f"<{module.__name__}>", "exec"), module.__dict__)  # noqa: S102 - text from this file
    return module


# The ways to call a step


def _loss_and_grads(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
    """Of `x / 2 * |params|**2`, written down, and no more of the loss than there has to be.

    What is measured is a call. With `forward`, whose 225 leaves are in one chain, XLA compiles for minutes.
    """
    grads = jax.tree.map(lambda leaf: x * leaf, params)
    return jax.tree.leaves(grads)[0].sum(), grads


def _training_step(code: types.ModuleType) -> Callable[[Any, Any, jax.Array], Any]:
    """`(params, opt_state, x) -> (state, loss)`, for each way a function of its own: `jit` keeps programs by it."""

    def step(params: Any, opt_state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        loss, grads = _loss_and_grads(params, x)
        updates, opt_state = TX.update(grads, opt_state)
        return code.state(optax.apply_updates(params, updates), opt_state), loss

    return step


def _step_of(code: types.ModuleType) -> Callable[[Any, jax.Array], Any]:
    """The same of a state, whatever it is."""
    step = _training_step(code)
    if hasattr(code, "State"):
        return lambda state, x: step(state.params, state.opt_state, x)
    return lambda state, x: step(state["params"], state["opt_state"], x)


def _carrying(call: Callable[[Any, jax.Array], Any], start: Callable[[Any], Any]) -> Start:
    """Steps that keep their state, as a training loop does, from the state that `start` makes of a model."""

    def started(model: Any) -> Step:
        state = start(model)

        def step(x: jax.Array) -> Any:
            nonlocal state
            state, loss = call(state, x)
            return loss

        return step

    return started


def _state_of(code: types.ModuleType) -> Callable[[Any], Any]:
    return lambda model: code.state(model, TX.init(model))


def _jitted(code: types.ModuleType) -> Start:
    return _carrying(jax.jit(_step_of(code), donate_argnums=0), _state_of(code))


def _flat(code: types.ModuleType) -> Start:
    step = _step_of(code)
    treedef = jax.tree.structure(_state_of(code)(code.build([0.0] * LEAVES)))

    def flat_step(leaves: list[Any], x: jax.Array) -> tuple[list[Any], Any]:
        state, loss = step(treedef.unflatten(leaves), x)
        return jax.tree.leaves(state), loss

    state_of = _state_of(code)
    return _carrying(jax.jit(flat_step, donate_argnums=0), lambda model: jax.tree.leaves(state_of(model)))


def _looped(code: types.ModuleType) -> Start:
    runs: list[Any] = []
    state_of = _state_of(code)

    def started(model: Any) -> Step:
        if runs:
            runs[0].state = state_of(model)
        else:
            runs.append(treewright.loop(_step_of(code), state_of(model)))
        run: Step = runs[0]
        return run

    return started


def _filter_jitted(code: types.ModuleType) -> Start:
    import equinox

    step = _step_of(code)
    call = equinox.filter_jit(lambda x, state: step(state, x), donate="all-except-first")
    return _carrying(lambda state, x: call(x, state), _state_of(code))


def _nnx_step() -> Callable[[Any, Any, jax.Array], Any]:
    from flax import nnx

    def step(model: Any, optimizer: Any, x: jax.Array) -> Any:
        loss, grads = _loss_and_grads(nnx.state(model, nnx.Param), x)
        optimizer.update(model, grads)
        return loss

    return step


def _nnx_optimizer(model: Any) -> Any:
    from flax import nnx

    return nnx.Optimizer(model, TX, wrt=nnx.Param)


def _nnx_split_once(code: types.ModuleType) -> Start:
    from flax import nnx

    step, model = _nnx_step(), code.build(leaves_of(1))
    graphdef = nnx.graphdef((model, _nnx_optimizer(model)))

    def call(state: Any, x: jax.Array) -> tuple[Any, Any]:
        model, optimizer = nnx.merge(graphdef, state)
        loss = step(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    def start(model: Any) -> Any:
        return nnx.state((model, _nnx_optimizer(model)))

    return _carrying(jax.jit(call, donate_argnums=0), start)


def _nnx_jitted(_: types.ModuleType) -> Start:
    from flax import nnx

    call = nnx.jit(_nnx_step(), donate_argnums=(0, 1))
    return lambda model: functools.partial(call, model, _nnx_optimizer(model))


def _nnx_cached(_: types.ModuleType) -> Start:
    from flax import nnx

    call = nnx.jit(_nnx_step(), donate_argnums=(0, 1))

    def started(model: Any) -> Step:
        step: Step = nnx.cached_partial(call, model, _nnx_optimizer(model))
        return step

    return started


def _of_library(library: Library) -> list[Way]:
    code = _module(library.name, f"{_classes(library)}\n{_functions(library, '{}')}")
    ours = library.role == "ours"
    ways = [Way(library.name, "ours" if ours else "peer", code, _jitted, distribution=library.distribution)]
    if library.name == "equinox":
        return [
            dataclasses.replace(ways[0], name="equinox, jax.jit"),
            Way("equinox, filter_jit", "peer", code, _filter_jitted, own_model=False),
        ]
    if library.name == "treewright.Module":
        ways.append(Way("treewright.loop", "ours", code, _looped, own_model=False))
    return ways


def _of_builtins() -> list[Way]:
    code = _module("dict", _functions(None, "{}"))
    return [Way("nested dicts", "base", code, _jitted), Way("a flat list", "limit", code, _flat, own_model=False)]


def _of_nnx() -> list[Way]:
    as_peer = Library("flax.nnx", "peer", "flax", static="")
    code = _module("flax.nnx", f"{_nnx()}\n{_functions(as_peer, 'nnx.List({})')}")
    return [
        Way("flax.nnx, split once", "peer", code, _nnx_split_once),
        Way("flax.nnx, nnx.jit", "peer", code, _nnx_jitted, own_model=False),
        Way("flax.nnx, cached_partial", "peer", code, _nnx_cached, own_model=False),
    ]


def makers() -> dict[str, Callable[[], list[Way]]]:
    """What makes the ways of each library; nothing is imported before."""
    found: dict[str, Callable[[], list[Way]]] = {"built-in": _of_builtins, "flax.nnx": _of_nnx}
    for library in LIBRARIES:
        if library.role in {"peer", "ours"}:
            found[library.name] = functools.partial(_of_library, library)
    return found


def ways() -> tuple[dict[str, list[Way]], dict[str, str]]:
    """The ways of each library that is there and runs the step, and why each of the others is left out."""
    found: dict[str, list[Way]] = {}
    left_out: dict[str, str] = {}
    for name, make in makers().items():
        try:
            found[name] = make()
        except Exception as error:  # noqa: BLE001 - a broken peer must not stop the others
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return found, left_out
