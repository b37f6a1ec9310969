"""The cost of nodes: flatten, unflatten, construction, calls of jitted functions, class creation."""

from __future__ import annotations

import functools
import itertools
import linecache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from interleaved import Statement, group
from peers import BY_CHILDREN, FIELDS, LIBRARIES, NAMES, OURS, STATICS, arrays, nodes, peer

from treewright import pytree_dataclass, static

CHILDREN = [1, 4, 8]


@group(*NAMES, title="flatten 100 nodes, {children} children each", children=CHILDREN)
def test_flatten(name: str, children: int) -> Statement:
    return "flatten(tree)", {"flatten": jax.tree_util.tree_flatten, "tree": nodes(name, children)}


@group(*NAMES, title="unflatten 100 nodes, {children} children each", children=CHILDREN)
def test_unflatten(name: str, children: int) -> Statement:
    leaves, treedef = jax.tree_util.tree_flatten(nodes(name, children))
    unflatten = jax.tree_util.tree_unflatten
    return "unflatten(treedef, leaves)", {"unflatten": unflatten, "treedef": treedef, "leaves": leaves}


@group(*NAMES, title="flatten 100 nodes with paths, {children} children each", children=CHILDREN)
def test_flatten_with_path(name: str, children: int) -> Statement:
    return "flatten(tree)", {"flatten": jax.tree_util.tree_flatten_with_path, "tree": nodes(name, children)}


@group(
    *NAMES,
    title="a jitted call that takes and returns 100 nodes, {children} children each",
    rounds=100,
    children=CHILDREN,
)
def test_jitted_call(name: str, children: int) -> Statement:
    tree = nodes(name, children)
    call = jax.jit(lambda tree: tree)
    jax.block_until_ready(call(tree))
    return "call(tree)", {"call": call, "tree": tree}


@group(*NAMES, title="a jitted call that reads 100 nodes, {children} children each", rounds=100, children=[4])
def test_jitted_read(name: str, children: int) -> Statement:
    tree = nodes(name, children)
    call = jax.jit(lambda tree: jax.tree.leaves(tree)[0])
    jax.block_until_ready(call(tree))
    return "call(tree)", {"call": call, "tree": tree}


@group("dict", *LIBRARIES, *OURS, title="construct a node, {children} children", children=CHILDREN)
def test_construction(name: str, children: int) -> Statement:
    cls, library = BY_CHILDREN[children], peer(name)
    values: dict[str, Any] = dict(zip(FIELDS[cls], arrays(children), strict=True))
    values |= {} if getattr(library, "NO_STATICS", False) else STATICS[cls]
    by_name = name in {"chex", "dict"}  # chex takes no others
    arguments = ", ".join(f"{field}={field}" if by_name else field for field in values)
    # One node lives all the while: statics that no node holds are forgotten.
    make = getattr(library, cls)
    return f"make({arguments})", {"make": make, **values, "first": make(**values)}


def class_statement(name: str) -> tuple[str, dict[str, Any]]:
    """The `class Attention` statement of a library as a function's text, and the names it uses."""
    library = peer(name)
    lines = linecache.getlines(library.__file__ or "")
    start = next(i for i, line in enumerate(lines) if line.startswith("class Attention"))
    while lines[start - 1].startswith("@"):
        start -= 1
    end = next((i for i in range(start, len(lines)) if lines[i] == "\n" and lines[i + 1] == "\n"), len(lines))
    return "".join(["def make():\n", *(f"    {line}" for line in lines[start:end])]), vars(library)


# JAX keeps each class for ever, hence few.
@group(*LIBRARIES, *OURS, title="make a class of 4 children and a static", loops=1, rounds=30)
def test_class_creation(name: str) -> Statement:
    text, used = class_statement(name)
    made: dict[str, Any] = {**used}
    exec(text, made)  # noqa: S102 - text from a file in this folder
    return "make()", {"make": made["make"]}


# Our statics by type; other libraries compare by `==` and pay at each jitted call.


@pytree_dataclass
class Plain:
    """A node with one child and one static."""

    child: jax.Array
    value: Any = static()


def closure() -> Any:
    """A new function that captures a number."""
    slope = 0.1
    return lambda x: x * slope


IDENTITY, ADAMW = (lambda x: x), optax.adamw(1e-3)
STATIC_VALUES: dict[str, Any] = {
    "a str": lambda: "relu",
    "jax.nn.relu": lambda: jax.nn.relu,
    "np.dtype": lambda: np.dtype("float32"),
    "jnp.float32": lambda: jnp.float32,
    "a partial of jax.nn.leaky_relu": lambda: functools.partial(jax.nn.leaky_relu, negative_slope=0.1),
    "a lambda, the same": lambda: IDENTITY,
    "a lambda, a new one each time": lambda: lambda x: x,
    "a closure, a new one each time": closure,
    "optax.adamw, the same": lambda: ADAMW,
    "optax.adamw, a new one each time": lambda: optax.adamw(1e-3),
}


@group(*STATIC_VALUES, title="construct a node whose static is")
def test_static(name: str) -> Statement:
    make, cls = STATIC_VALUES[name], Plain
    values = itertools.cycle([make() for _ in range(2000)])  # made before the clock starts
    child = arrays(1)[0]
    names = {"Node": cls, "child": child, "next": next, "values": values, "first": cls(child, make())}
    return "Node(child, next(values))", names
