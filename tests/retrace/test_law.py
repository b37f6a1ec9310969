"""The law: for two calls of any function with any trees, a report names exactly the changes, whatever else ran."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import treewright
from treewright import Module, static

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from treewright import Difference, RetraceReport


class Node(Module):
    below: Any
    setting: Any = static(default=0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    below: Any
    setting: Any = dataclasses.field(default=0, metadata={"static": True})


class Equinox(eqx.Module):
    below: Any
    setting: Any = eqx.field(static=True, default=0)


class Named(NamedTuple):
    below: Any


class Case(NamedTuple):
    """A path that can change: the old value, the new value, and the suffix of its path in a report."""

    old: Callable[[], Any]
    new: Callable[[], Any]
    below: str = ""


LEAVES = {
    "shape": Case(lambda: np.ones(2, np.float32), lambda: np.ones(3, np.float32)),
    "axes": Case(lambda: np.ones(2, np.float32), lambda: np.ones((2, 1), np.float32)),
    "dtype": Case(lambda: np.ones(2, np.float32), lambda: np.ones(2, np.int32)),
    "weak type": Case(lambda: jnp.ones(()), lambda: jnp.asarray(1.0)),
    "None": Case(lambda: np.ones(2, np.float32), lambda: None),
    "class": Case(lambda: [np.ones(2, np.float32)], lambda: (np.ones(2, np.float32),)),
    "added": Case(lambda: {"a": 1.0}, lambda: {"a": 1.0, "b": 1.0}, "['b']"),
    "removed": Case(lambda: {"a": 1.0, "b": 1.0}, lambda: {"a": 1.0}, "['b']"),
    "placement": Case(lambda: jnp.ones(2), lambda: jax.device_put(jnp.ones(2), jax.devices()[0])),
    "values": Case(lambda: np.ones(2, np.float32), lambda: np.zeros(2, np.float32)),  # no difference to jit
}
STATICS = ((0, 1), (1, True), ("relu", "gelu"), ((1, "a"), (1, "a", 2)), (None, 0))
CONTAINERS: dict[str, tuple[Callable[..., Any], str]] = {
    "node": (Node, ".below"),
    "foreign": (Foreign, ".below"),
    "equinox": (Equinox, ".below"),
    "named": (Named, ".below"),
    "dict": (lambda below: {"k": below, "z": 1.0}, "['k']"),
    "ordered": (lambda below: collections.OrderedDict(z=1.0, k=below), "['k']"),
    "list": (lambda below: [1.0, below], "[1]"),
    "tuple": (lambda below: (below,), "[0]"),
}


@dataclasses.dataclass(frozen=True)
class Tree:
    """The plan of a tree: a kind of leaf, or a container around a tree, with a static if its class has one."""

    kind: str
    below: Tree | None = None
    setting: int = 0

    def places(self, path: str = "") -> Iterator[str]:
        """Possible changes, by the words of a report."""
        if self.below is None:
            yield path + LEAVES[self.kind].below
            return
        if self.kind in {"node", "foreign", "equinox"} and self.distinguishes_statics:
            yield f"{path}.setting"
        yield from self.below.places(path + CONTAINERS[self.kind][1])

    @property
    def distinguishes_statics(self) -> bool:
        """Whether the class distinguishes its two statics: other classes compare with `==`, and 1 equals True."""
        return self.kind == "node" or STATICS[self.setting][0] != STATICS[self.setting][1]

    def make(self, changed: set[str], path: str = "") -> Any:
        """The tree, changed in some places."""
        if self.below is None:
            case = LEAVES[self.kind]
            return (case.new if path + case.below in changed else case.old)()
        make, key = CONTAINERS[self.kind]
        below = self.below.make(changed, path + key)
        if self.kind not in {"node", "foreign", "equinox"}:
            return make(below)
        return make(below, STATICS[self.setting][f"{path}.setting" in changed])

    @property
    def leaf(self) -> str:
        return self.kind if self.below is None else self.below.leaf


trees = st.recursive(
    st.builds(Tree, st.sampled_from(sorted(LEAVES))),
    lambda below: st.builds(Tree, st.sampled_from(sorted(CONTAINERS)), below, st.integers(0, len(STATICS) - 1)),
    max_leaves=5,
)
NAMES = ("x", "y", "z", "w")


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of some trees, two calls of it, and the events in between."""

    arguments: dict[str, Tree]
    changed: frozenset[str]
    by_name: bool
    precision: bool
    between: tuple[str, ...]

    def call(self, jitted: Any, changed: frozenset[str], *, precise: bool = False) -> None:
        values = {name: tree.make(set(changed), name) for name, tree in self.arguments.items()}
        with jax.default_matmul_precision("float32" if precise else None):
            if self.by_name:
                jitted(**values)
            else:
                jitted(*values.values())

    @property
    def traced_for(self) -> set[str]:
        """The changes that make `jit` retrace."""
        setting = {"jax.config.jax_default_matmul_precision"} if self.precision else set[str]()
        return setting | self.retracing(self.changed)

    def retracing(self, places: Iterable[str]) -> set[str]:
        """The places whose change makes `jit` retrace."""
        return {place for place in places if self.kind_of(place) not in {"placement", "values"}}

    @property
    def compiled_for(self) -> set[str]:
        """The changes that make it only recompile."""
        return {place for place in self.changed if self.kind_of(place) == "placement"}

    def kind_of(self, place: str) -> str:
        """The changes possible at a path."""
        leaves = {path: tree.leaf for name, tree in self.arguments.items() for path in tree.places(name)}
        return "static" if place.endswith(".setting") else leaves[place]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    arguments = {name: draw(trees) for name in NAMES[: draw(st.integers(1, 4))]}
    places = [place for name, tree in arguments.items() for place in tree.places(name)]
    changed = draw(st.sets(st.sampled_from(places), min_size=1, max_size=3))
    between = draw(
        st.lists(st.sampled_from(["the same", "all changed", "different function", "eager", "shape"]), max_size=3)
    )
    return Program(arguments, frozenset(changed), draw(st.booleans()), draw(st.booleans()), tuple(between))


def function_of(names: tuple[str, ...]) -> Any:
    """A new function with these parameters."""
    namespace: dict[str, Any] = {}
    listed = ", ".join(names)
    exec(f"def function({listed}):\n    return [{listed}]", namespace)
    return namespace["function"]


def paths(differences: tuple[Difference, ...]) -> list[str]:
    """The paths in a report; paths inside a static count as the static."""
    return sorted({jax.tree_util.keystr(difference.path) for difference in differences})


def run_between(program: Program, jitted: Any) -> None:
    everything = {place for name, tree in program.arguments.items() for place in tree.places(name)}
    for what in program.between:
        if what == "the same":
            program.call(jitted, frozenset())
        elif what == "all changed" and len(program.retracing(everything)) > 2 * len(program.changed) + 2:
            # Only then is the first call closer to the last one.
            program.call(jitted, frozenset(everything), precise=not program.precision)
        elif what == "different function":
            jax.jit(lambda x: x)(np.ones(len(program.between)))
        elif what == "eager":
            _ = jnp.ones(5) + 1
        elif what == "shape":
            jax.eval_shape(lambda x: x * 2, np.ones(3))


@pytest.mark.slow
@given(program=programs())
def test_a_report_names_exactly_the_changes(program: Program) -> None:
    reports: list[RetraceReport] = []

    def tell(report: RetraceReport) -> None:
        if report.function == function.__name__:
            reports.append(report)

    function = function_of(tuple(program.arguments))
    jitted = jax.jit(function)

    with treewright.explain_retraces(on_report=tell):
        program.call(jitted, frozenset())
        run_between(program, jitted)
        reports.clear()
        program.call(jitted, program.changed, precise=program.precision)
        program.call(jitted, program.changed, precise=program.precision)
        program.call(jitted, frozenset())

    if program.traced_for:
        [report] = reports
        assert (report.event, paths(report.differences)) == ("trace", sorted(program.traced_for))
    elif program.compiled_for:
        [report] = reports
        assert (report.event, paths(report.differences)) == ("recompile", sorted(program.compiled_for))
    else:
        assert not reports
