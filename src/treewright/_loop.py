"""`loop`: a step that is called again and again on a state which nobody looks at in between."""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding

from treewright._core.functions import class_of, innermost, public
from treewright._core.jax_private import Path, jax_trees, path_text, trace_reader, typeof, untyped_jax
from treewright._core.jax_refs import is_ref
from treewright._core.text import short_text
from treewright._trees.diff import Difference, differences
from treewright._trees.sizes import memory_of
from treewright.errors import DonatedStateError, LoopStateError

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

_LINES = 20  # of differences that are printed


@dataclasses.dataclass(frozen=True, slots=True)
class _PathKey:
    """The whole path of a leaf as one key."""

    path: Path

    def __str__(self) -> str:
        return path_text(self.path)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _FlatStructure:
    """A treedef that is compared by identity: to compare two equal ones, `jit` would walk through both at each call."""

    treedef: Any


class FlatTree:
    """A tree as one node with all its leaves, which `jit` takes apart in one call, however many nodes the tree has.

    JAX unflattens it to the tree itself, and calls its leaves by their paths in the tree. `structure` is what `jit`
    compares; each of the `results` is leaves and something else.
    """

    __slots__ = ("results", "structure")

    def __init__(self, structure: _FlatStructure, leaves: list[Any]) -> None:
        self.structure = structure
        self.results: list[tuple[list[Any], Any]] = [(leaves, None)]

    @property
    def leaves(self) -> list[Any]:
        """The newest leaves."""
        return self.results[-1][0]

    @property
    def tree(self) -> Any:
        """The tree."""
        return _tree(self.structure, self.leaves)

    @property
    def paths(self) -> list[Path]:
        """The path of each leaf in the tree."""
        return [path for path, _ in jax_trees.tree_flatten_with_path(self.tree)[0]]


def _flatten(flat: FlatTree) -> tuple[list[Any], _FlatStructure]:
    return flat.results[-1][0], flat.structure


def _flatten_with_keys(flat: FlatTree) -> tuple[list[tuple[_PathKey, Any]], _FlatStructure]:
    return [(_PathKey(path), leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)], flat.structure


def _tree(structure: _FlatStructure, leaves: Sequence[Any]) -> Any:
    return structure.treedef.unflatten(leaves)


jax_trees.register_pytree_with_keys(FlatTree, _flatten_with_keys, _tree, _flatten)


@public("treewright")
class loop(Generic[S, P, R]):  # noqa: N801  it is used like a function
    """A jitted step that keeps its state: `output = run(*inputs)`, and `run.state` when you want to see it.

    With `jit`, each call takes the state apart and puts the next one together. A loop does that only when `run.state`
    is read or assigned, so a call costs what one with a flat list of arrays does, however many nodes the state has.

    The state is donated: each call uses up the arrays of the state before it, and the first call those of `state`
    itself. What you read from `run.state` is good until the next call, and `jax.tree.map(jnp.copy, run.state)` is good
    for ever. With `donate=False` nothing is used up, and memory for two states is needed.

    Every leaf keeps its shape, dtype and sharding. As in `jax.lax.scan`, a weakly typed leaf takes the type that the
    step gives it, before the first call. Leaves that are not committed to devices go where the others and the inputs
    are, so that the second call needs no program of its own.

    After an exception, Ctrl-C included, `run.state` is the state of the last complete step. Only what fails once a step
    computes takes the donated state with it, and `run.state` says so.

    Args:
        step: `step(state, *inputs)` gives `(state, output)`, as for `jax.lax.scan`. The loop jits it; `traced` and
            `max_traces` stand directly on it.
        state: A tree of arrays and numbers.
        donate: Whether a state may take the memory of the one before it.

    Raises:
        LoopStateError: If a leaf of `state` is not an array or number. From a call that traces the step: if it returns
            another structure, shape or dtype than it was given. From a call inside of `jit`, `grad` and the like: if
            the loop was made outside.
        DonatedStateError: From `run.state`, if its arrays have been used up.

    Examples:
        >>> def step(mean, x):
        ...     mean = 0.9 * mean + 0.1 * x
        ...     return mean, jnp.abs(x - mean)
        >>> run = loop(step, jnp.zeros(()))
        >>> for x in jnp.ones(50):
        ...     distance = run(x)
        >>> print(f"{run.state:.3f} {distance:.3f}")
        0.995 0.005
    """

    def __init__(self, step: Callable[Concatenate[S, P], tuple[S, R]], state: S, *, donate: bool = True) -> None:
        self._name: str = getattr(innermost(step), "__name__", class_of(step).__qualname__)
        self._function = _with_flat_result(step, self._name, _first_parameter(step))
        self._donate = donate
        self._read_trace = trace_reader()
        self._trace = self._read_trace()
        self._structures: dict[Any, _FlatStructure] = {}
        self.state = state

    @property
    def state(self) -> S:
        """The state after the last complete step. Assign another one to go on from there.

        A state of the same structure, shapes, dtypes and shardings needs no other program.
        """
        leaves = self._flat.leaves
        gone = [place for place, leaf in enumerate(leaves) if not isinstance(leaf, Tracer) and leaf.is_deleted()]
        if gone:
            more = f" and {len(gone) - 1} more were" if len(gone) > 1 else " was"
            raise DonatedStateError(
                f"The state of the loop over {self._name} is used up: {path_text(self._flat.paths[gone[0]], 'state')}"
                f"{more} donated to a call that failed, or to another function. Assign a state to go on from, such as "
                f"the last checkpoint: run.state = load(...). loop(..., donate=False) keeps each state until the next "
                f"one is there, and needs memory for both."
            )
        tree: S = self._flat.tree
        return tree

    @state.setter
    def state(self, state: S) -> None:
        entries, treedef = jax_trees.tree_flatten_with_path(state)
        leaves = [self._array(path, leaf) for path, leaf in entries]
        structure = self._structures.setdefault(treedef, _FlatStructure(treedef))
        self._flat = FlatTree(structure, _apart(leaves) if self._donate else leaves)
        self._program: Callable[..., Any] | None = None

    def __call__(self, *inputs: P.args, **keywords: P.kwargs) -> R:
        """The output of one more step. Its inputs are traced, as those of any jitted function."""
        if self._trace != self._read_trace():
            raise LoopStateError(
                f"The loop over {self._name} was called inside of jit, grad, vmap or the like, and made outside: its "
                f"state would be a tracer from then on. Call {self._name} itself there, or make the loop there."
            )
        program: Any = self._program or self._prepared(inputs, keywords)
        if keywords:
            program = functools.partial(program, **keywords)
        results = self._flat.results
        # One instruction runs the step and stores its state: Ctrl-C comes before or after it. Between the two it would
        # lose the only state that there is (test_an_interrupt_loses_no_state).
        results.extend(map(program, (self._flat,), *zip(inputs)))
        leaves, result = results[-1]
        results[:] = [(leaves, None)]
        output: R = result
        return output

    def __repr__(self) -> str:
        return f"<loop over {self._name}>"

    def _array(self, path: Path, leaf: Any) -> Any:
        if is_ref(leaf):
            raise LoopStateError(
                f"{path_text(path, 'state')} is {short_text(leaf)}, and {self._name} would have to return it, which "
                f"JAX refuses. A step that changes refs needs no loop: jax.jit({self._name}) with the state as an "
                f"argument, and only the metrics returned. Or give the loop arrays: from_refs(state)."
            )
        if isinstance(leaf, jax.Array):
            return leaf
        try:
            return jnp.array(leaf)  # a copy: donation must not reach the memory of a numpy array
        except TypeError as error:
            raise LoopStateError(
                f"{path_text(path, 'state')} is {short_text(leaf)}, and {self._name} can take only arrays and numbers. "
                f"Make it a static field, or keep it outside of the state."
            ) from error

    def _prepared(self, inputs: Iterable[Any], keywords: Any) -> Callable[..., Any]:
        """The program, and the leaves as it will give them back, so that the second call needs no other one."""
        flat = self._flat
        flat.results[:] = [(_committed(flat.leaves, jax.tree.leaves((inputs, keywords))), None)]
        options: dict[str, Any] = {"donate_argnums": 0} if self._donate else {}
        pinned = [leaf.sharding if _is_committed(leaf) else None for leaf in flat.leaves]
        if any(pinned):
            options["out_shardings"] = (pinned, None)
        program: Any = untyped_jax.jit(self._function, **options)
        while any(map(_is_weak, flat.leaves)) and not untyped_jax.config.jax_disable_jit:
            after = program.eval_shape(flat, *inputs, **keywords)[0]  # the call itself then needs no other trace
            leaves = [_settled(leaf, new) for leaf, new in zip(flat.leaves, after, strict=True)]
            if all(map(operator.is_, leaves, flat.leaves)):
                break
            flat.results[:] = [(leaves, None)]
        self._program = cast("Callable[..., Any]", program)
        return self._program


def _with_flat_result(step: Callable[..., Any], name: str, root: str) -> Callable[..., Any]:
    """What a loop jits: `step`, whose state comes back as leaves that fit those it was given."""

    @functools.wraps(step)
    def stepped(state: Any, *inputs: Any, **keywords: Any) -> tuple[list[Any], Any]:
        if isinstance(state, FlatTree):  # jax.disable_jit
            state = state.tree
        leaves, treedef = jax_trees.tree_flatten(state)
        result: Any = step(state, *inputs, **keywords)
        match result:
            case (after, output):
                pass
            case _:
                raise LoopStateError(
                    f"{name} returned {short_text(result)}, and a loop takes a pair, (state, output). Where there is "
                    f"nothing to put out: return {root}, None."
                )
        _check(treedef.unflatten(leaves), after, name, root)  # anew, since step may have changed its dicts in place
        return [_like(old, new) for old, new in zip(leaves, jax.tree.leaves(after), strict=True)], output

    stepped.__name__ = name  # that of the program, in profiles and logs
    return stepped


def _check(before: Any, after: Any, name: str, root: str) -> None:
    of_trees = differences(before, after, values=False, path=(root,))
    lines = [f"\n    {difference}" for difference in of_trees if not _settles(difference)]
    if not lines:
        return
    if len(lines) > _LINES:
        lines[_LINES:] = [f"\n    ... and {len(lines) - _LINES} more"]
    raise LoopStateError(
        f"{name} returns another state than it was given, so that each call would have to be compiled anew:"
        f"{''.join(lines)}\nReturn the same structure and statics, and each leaf with the shape and dtype that it came "
        f"with. What is new at each step belongs in the output."
    )


def _settles(difference: Difference) -> bool:
    """Whether a leaf gets what it differs in before the first call, as a weakly typed one does, or is converted."""
    if difference.kind == "weak_type":
        return True
    if difference.kind != "dtype" or not _is_weak(difference.left):
        return False
    new: Any = typeof(difference.right)
    return bool(jnp.result_type(difference.left, difference.right) == new.dtype)


def _settled(leaf: Any, new: Any) -> Any:
    """A leaf of the first state; if it is weakly typed, of the type that the step gives it."""
    stays = not _is_weak(leaf) or (new.weak_type and new.dtype == leaf.dtype)
    return leaf if stays else jnp.asarray(leaf, new.dtype)


def _like(old: Any, new: Any) -> Any:
    """A leaf of the new state, which is weakly typed only where that of the old one is."""
    array = new if isinstance(new, jax.Array) else jnp.asarray(new)
    return jnp.asarray(array, array.dtype) if _is_weak(array) and not _is_weak(old) else array


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(typeof(leaf), "weak_type", False))


def _apart(leaves: list[Any]) -> list[Any]:
    """The leaves, no two of which share memory: an array can be donated once."""
    known: set[object] = set()
    apart: list[Any] = []
    for leaf in leaves:
        memory = memory_of(leaf)
        apart.append(jnp.copy(leaf) if memory in known else leaf)
        known.add(memory)
    return apart


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed


def _committed(leaves: list[Any], inputs: list[Any]) -> list[Any]:
    """The leaves, all committed to where some of them or of the inputs are; as they are, if that is not one place.

    `jit` puts them there too, but then compiles again for what it gave back.
    """
    shardings: set[Sharding] = {leaf.sharding for leaf in (*leaves, *inputs) if _is_committed(leaf)}
    whole: Any = untyped_jax.sharding.PartitionSpec()
    places = {NamedSharding(at.mesh, whole) if isinstance(at, NamedSharding) else at for at in shardings}
    if len(places) != 1:
        return leaves
    (place,) = places
    return [
        leaf if _is_committed(leaf) or isinstance(leaf, Tracer) else untyped_jax.device_put(leaf, place)
        for leaf in leaves
    ]


def _first_parameter(step: Callable[..., Any]) -> str:
    """The name by which a step calls its state."""
    try:
        return next(iter(inspect.signature(step).parameters), "state")
    except (TypeError, ValueError):  # built-in functions
        return "state"
