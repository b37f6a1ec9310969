"""The cost of nodes: flatten, unflatten, construction, calls of jitted functions, class creation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle
import sys
import textwrap
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from interleaved import Statement, group
from peers import BY_CHILDREN, FIELDS, LIBRARIES, NAMES, OURS, SPELLINGS, arrays, class_text, nodes, peer, statics

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


def construction(name: str, children: int) -> Statement:
    cls = BY_CHILDREN[children]
    values: dict[str, Any] = {**dict(zip(FIELDS[cls], arrays(children), strict=True)), **dict(statics(name, cls))}
    by_name = name in {"chex", "dict"}  # chex accepts no others
    arguments = ", ".join(f"{field}={field}" if by_name else field for field in values)
    return f"make({arguments})", {"make": getattr(peer(name), cls), **values}


@group("dict", *LIBRARIES, *OURS, title="construct a node, {children} children", children=CHILDREN)
def test_construction(name: str, children: int) -> Statement:
    return construction(name, children)


@group("dict", *LIBRARIES, *OURS, title="construct a node, {children} children, beside an equal one", children=[4])
def test_construction_of_a_twin(name: str, children: int) -> Statement:
    statement, names = construction(name, children)
    return statement, {**names, "first": names["make"](**{key: names[key] for key in names if key != "make"})}


# What runs in Python: a node of two floats, with a method. `Checked` has a `__post_init__` too.

SMALL = ("flax.struct", "register_dataclass", "equinox", "treewright.Module")
BODY = "    a: float\n    b: float\n    def total(self): return self.a\n"
CHECK = "    def __post_init__(self): assert self.a\n"


@functools.cache
def small(name: str) -> Any:
    """`Small` and `Checked` in the spelling of a library, in a module where `pickle` finds them."""
    spelling, module = SPELLINGS[name], types.ModuleType("small_" + name.replace(".", "_"))
    sys.modules[module.__name__] = module
    text = f"import jax\n{spelling.imports}\n"
    for cls, body in (("Small", BODY), ("Checked", BODY + CHECK)):
        text += f"{spelling.decorators}class {cls}{spelling.base}:\n{body}"
    exec(text, vars(module))  # noqa: S102
    return module


@group(*SMALL, title="compare two nodes with ==")
def test_equality(name: str) -> Statement:
    return "a == b", {"a": small(name).Small(0.1, 0.2), "b": small(name).Small(0.1, 0.2)}


@group(*SMALL, title="hash a node")
def test_hash(name: str) -> Statement:
    return "hash(node)", {"node": small(name).Small(0.1, 0.2)}


@group(*SMALL, title="pickle 100 nodes and load them")
def test_pickle(name: str) -> Statement:
    nodes_to_pickle = [small(name).Small(0.1, float(i)) for i in range(100)]
    return "loads(dumps(nodes))", {"loads": pickle.loads, "dumps": pickle.dumps, "nodes": nodes_to_pickle}


@group(*SMALL, title="call a method of a node")
def test_method(name: str) -> Statement:
    return "node.total()", {"node": small(name).Small(0.1, 0.2)}


@group(*SMALL, title="construct a node with a __post_init__")
def test_post_init(name: str) -> Statement:
    return "Checked(0.1, 0.2)", {"Checked": small(name).Checked}


# few, because JAX never frees a class
@group(*LIBRARIES, *OURS, title="make a class of 4 children and a static", loops=1, rounds=30)
def test_class_creation(name: str) -> Statement:
    names = vars(peer(name)).copy()
    exec(f"def make():\n{textwrap.indent(class_text(name, 'Attention'), '    ')}", names)  # noqa: S102
    return "make()", {"make": names["make"]}


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


class Unfrozen:
    """An object without `==`."""

    def __init__(self) -> None:
        self._rate = 0.1

    def scaled(self, x: Any) -> Any:
        """A method, for use as a static."""
        return x * self._rate


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A setting compared by its fields."""

    width: int = 3
    rate: float = 0.1


IDENTITY, ADAMW = (lambda x: x), optax.adamw(1e-3)
STATIC_VALUES: dict[str, Any] = {
    "a str": lambda: "relu",
    "a float": lambda: 0.1,
    "a tuple of ints": lambda: (3, (64, 64), "same"),
    "a frozen dataclass, a new one each time": Frozen,
    "an object, a new one each time": Unfrozen,
    "a method, of a new object each time": lambda: Unfrozen().scaled,
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
    make = STATIC_VALUES[name]
    values = itertools.cycle([make() for _ in range(2000)])  # created before the clock starts
    child = arrays(1)[0]
    names = {"Node": Plain, "child": child, "next": next, "values": values, "first": Plain(child, make())}
    return "Node(child, next(values))", names
