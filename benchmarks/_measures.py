"""What is measured: each measure of each library and number of children, as a case to time."""

import dataclasses
import timeit
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from _peers import STATICS, Library, Nodes, nodes_of
from _timing import Case, Key, statement

NODES = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One table of the report. `per_node` measures divide the time of 100 nodes by 100."""

    name: str
    title: str
    base: str
    per_node: bool = False
    needs: tuple[str, ...] = ("builtin", "peer", "ours")
    only_children: tuple[int, ...] | None = None


MEASURES = (
    Measure("flatten", "flatten, one node", "tuple", per_node=True),
    Measure("unflatten", "unflatten, one node", "tuple", per_node=True),
    Measure("path", "flatten with path, one node", "tuple", per_node=True),
    Measure("construct", "construction, one node", "frozen dataclass", needs=("builtin", "plain", "peer", "ours")),
    Measure("jit", f"jit call that takes and returns {NODES} nodes", "tuple"),
    Measure("read", f"jit call that reads {NODES} nodes and returns one scalar", "tuple", only_children=(2,)),
    Measure("class", "class creation", "register_dataclass", needs=("plain", "peer", "ours")),
)


def sizes(measure: Measure, children: Sequence[int]) -> tuple[int, ...]:
    """The numbers of children, out of `children`, for which `measure` is taken."""
    return tuple(n for n in children if measure.only_children is None or n in measure.only_children)


def make_leaves(count: int) -> list[jax.Array]:
    """`count` scalars `f32[]`, each an array of its own."""
    return [jax.device_put(np.float32(i)) for i in range(count)]


def _compiled(measure: str, tree: Any) -> Callable[[Any], Any]:
    # Functions of its own for each library: jit keeps its variants by function, and would search through all of them.
    def returns(tree: Any) -> Any:
        return tree

    def reads(tree: Any) -> Any:
        return sum(jax.tree_util.tree_leaves(tree))

    call: Callable[[Any], Any] = jax.jit(returns if measure == "jit" else reads)
    for leaf in jax.tree_util.tree_leaves(call(tree)):
        leaf.block_until_ready()
    return call


def _timer(measure: str, nodes: Nodes, leaves: Sequence[jax.Array]) -> timeit.Timer:
    if measure == "class":
        return statement("make()", make=nodes.make)
    if measure == "construct":
        children = {f"c{i}": leaves[i] for i in range(nodes.children)}
        cls = {} if nodes.library.role == "builtin" else {"Node": nodes.module.Node}
        # One node lives all the while: statics that no node holds are forgotten, and would be stored anew each time.
        first = nodes.tree(leaves[: nodes.children])
        return statement(nodes.library.construction(nodes.children), **children, **STATICS, **cls, first=first)
    tree = nodes.tree(leaves)
    match measure:
        case "flatten":
            return statement("flatten(tree)", flatten=jax.tree_util.tree_flatten, tree=tree)
        case "unflatten":
            found, treedef = jax.tree_util.tree_flatten(tree)
            unflatten = jax.tree_util.tree_unflatten
            return statement("unflatten(treedef, leaves)", unflatten=unflatten, treedef=treedef, leaves=found)
        case "path":
            return statement("flatten(tree)", flatten=jax.tree_util.tree_flatten_with_path, tree=tree)
        case "jit" | "read":
            call = _compiled(measure, tree)
            return statement("call(tree)", call=call, tree=tree)
        case _:
            raise ValueError(f"{measure!r} is not a measure")


def cases(measures: Sequence[Measure], libraries: Sequence[Library], children: Sequence[int]) -> Iterator[Case]:
    """The cases of all `measures`, those of one measure and size next to each other."""
    nodes = {(library.name, n): nodes_of(library, n) for library in libraries for n in children}
    leaves = make_leaves(NODES * max(children))
    for measure in measures:
        for n in sizes(measure, children):
            for library in libraries:
                if library.role in measure.needs:
                    timer = _timer(measure.name, nodes[library.name, n], leaves[: NODES * n])
                    yield Case(
                        Key(measure.name, n, library.name),
                        timer,
                        operations=NODES if measure.per_node else 1,
                        once=measure.name == "class",
                    )
