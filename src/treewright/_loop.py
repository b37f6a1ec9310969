"""`loop`: a jitted training step whose state stays flat between calls."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding

from treewright._core import innermost, public
from treewright._core.jax_private import jax_trees, path_text, typeof, untyped_jax
from treewright._core.text import short_text
from treewright._lines import first_of
from treewright._trees.diff import Difference, differences
from treewright._trees.sizes import memory_of
from treewright.errors import DonatedStateError, LoopStateError

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class _FlatStructure:
    """A treedef that is compared by identity: to compare two equal ones, `jit` would walk through both at each call."""

    def __init__(self, treedef: Any) -> None:
        self.unflatten: Callable[[Any], Any] = treedef.unflatten


class FlatTree:
    """A tree as one node with all its leaves, which `jit` flattens in one call, however many nodes the tree has.

    JAX unflattens it to the tree itself. `results` holds `(leaves, output)`; the last one is current.
    """

    __slots__ = ("results", "structure")

    def __init__(self, structure: _FlatStructure, leaves: list[Any]) -> None:
        self.structure = structure
        self.results: list[tuple[list[Any], Any]] = [(leaves, None)]

    @property
    def tree(self) -> Any:
        """The tree."""
        return self.structure.unflatten(self.results[-1][0])

    def with_paths(self) -> Any:
        """Each leaf with its whole path as one key, so that JAX's errors name it."""
        return [(path_text(path), leaf) for path, leaf in jax_trees.tree_leaves_with_path(self.tree)], self.structure


jax_trees.register_pytree_with_keys(
    FlatTree,
    FlatTree.with_paths,
    lambda structure, leaves: structure.unflatten(leaves),
    lambda flat: (flat.results[-1][0], flat.structure),
)


@public("treewright")
class loop(Generic[S, P, R]):  # noqa: N801  it is used like a function
    """A jitted step that keeps its state: `output = run(*inputs)`, and `run.state` when you want to see it.

    With `jit`, each call flattens the state and unflattens the next one. A loop does that only when `run.state` is read
    or assigned, so a call costs what one with a flat list of arrays does, however many nodes the state has.

    The state is donated: each call uses up the arrays of the state before it, and the first call those of `state`
    itself. What you read from `run.state` is good until the next call, and `jax.tree.map(jnp.copy, run.state)` is good
    for ever. With `donate=False` nothing is used up, and memory for two states is needed.

    Every leaf keeps its shape, dtype and sharding. As in `jax.lax.scan`, a weakly typed leaf takes the type that the
    step gives it. Leaves that are not committed to devices go where the others and the inputs are. After an exception,
    Ctrl-C included, `run.state` is the state of the last complete step, unless it was donated to the step that failed.
    Inside of `jit` and the like, make the loop there too: the state of one from outside would be a tracer from then on.

    Args:
        step: `step(state, *inputs)` gives `(state, output)`, as for `jax.lax.scan`. The loop jits it; `max_traces`
            stands directly on it.
        state: A tree of arrays and numbers.
        donate: Whether a state may take the memory of the one before it.

    Raises:
        LoopStateError: If a leaf of `state` is not an array or number; from a call, if the step returns another
            structure, shape or dtype than it was given.
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
        self._name: str = getattr(innermost(step), "__name__", type(step).__qualname__)
        self._step = _with_flat_result(step, self._name)
        self._donate = donate
        self._structures: dict[Any, _FlatStructure] = {}
        self.state = state

    @property
    def state(self) -> S:
        """The state after the last complete step. Assign another one to go on from there.

        A state of the same structure, shapes, dtypes and shardings needs no other program.
        """
        tree: S = self._flat.tree
        for path, leaf in jax_trees.tree_leaves_with_path(tree):
            if not isinstance(leaf, Tracer) and leaf.is_deleted():
                raise DonatedStateError(
                    f"The state of the loop over {self._name} is used up: {path_text(path, 'state')} was donated to a "
                    f"call that failed, or to another function. Assign a state to go on from, such as the last "
                    f"checkpoint: run.state = load(...). loop(..., donate=False) keeps each until the next is there."
                )
        return tree

    @state.setter
    def state(self, state: S) -> None:
        entries, treedef = jax_trees.tree_flatten_with_path(state)
        leaves: list[Any] = []
        taken: set[Any] = set()
        for path, leaf in entries:
            try:  # a copy of what is not JAX's: donation must not reach the memory of a numpy array
                array = leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)
            except TypeError as error:
                raise LoopStateError(
                    f"{path_text(path, 'state')} is {short_text(leaf)}, and {self._name} can take only arrays and "
                    f"numbers. Make it a static field, or keep it outside of the state."
                ) from error
            # An array can be donated once.
            leaves.append(jnp.copy(array) if self._donate and memory_of(array) in taken else array)
            taken.add(memory_of(array))
        self._flat = FlatTree(self._structures.setdefault(treedef, _FlatStructure(treedef)), leaves)
        self._program: Callable[..., Any] | None = None

    def __call__(self, *inputs: P.args, **keywords: P.kwargs) -> R:
        """The output of one more step. Its inputs are traced, as those of any jitted function."""
        program: Any = self._program or self._make_program(inputs, keywords)
        if keywords:
            program = functools.partial(program, **keywords)
        results = self._flat.results
        # One instruction runs the step and stores its state: Ctrl-C comes before or after it. Between the two it would
        # lose the only state that there is (test_an_interrupt_loses_no_state).
        results.extend(map(program, (self._flat,), *zip(inputs)))
        leaves, output = results[-1]
        results[:] = [(leaves, None)]
        return output  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<loop over {self._name}>"

    def _make_program(self, inputs: Any, keywords: Any) -> Any:
        """The program, once the leaves are of the types and at the places in which it will give them back."""
        leaves = _committed(self._flat.results[-1][0], jax.tree.leaves((inputs, keywords)))
        self._flat.results[:] = [(leaves, None)]
        shardings = [leaf.sharding if _is_committed(leaf) else None for leaf in leaves]
        program: Any = untyped_jax.jit(
            self._step,
            donate_argnums=(0,) if self._donate else (),
            out_shardings=(shardings, None) if any(shardings) else None,
        )
        if any(map(_is_weak, leaves)) and not untyped_jax.config.jax_disable_jit:
            types = program.eval_shape(self._flat, *inputs, **keywords)[0]  # the call itself then needs no other trace
            self._flat.results[:] = [(list(map(_settled, leaves, types)), None)]
        self._program = program
        return program


def _with_flat_result(step: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function that a loop jits: `step`, whose state comes back as leaves that fit those it was given."""

    @functools.wraps(step)
    def stepped(state: Any, *inputs: Any, **keywords: Any) -> tuple[list[Any], Any]:
        if isinstance(state, FlatTree):  # jax.disable_jit
            state = state.tree
        leaves, treedef = jax_trees.tree_flatten(state)
        result: Any = step(state, *inputs, **keywords)
        if not (isinstance(result, tuple | list) and len(result) == 2):
            raise LoopStateError(
                f"{name} returned {short_text(result)}, and a loop takes a pair, (state, output). Where there is "
                f"nothing to put out: return state, None."
            )
        before = treedef.unflatten(leaves)  # `step` may have changed the dicts of its state
        of_trees = differences(before, result[0], values=False, path=("state",))
        misfits = first_of([str(difference) for difference in of_trees if not _is_settled(difference)])
        if misfits:
            lines = "\n  ".join(["", *misfits])
            raise LoopStateError(
                f"{name} returns another state than it was given, so that each call would have to be compiled again:"
                f"{lines}\nReturn the same structure and statics, and each leaf with the shape and dtype that it "
                f"came with. What is new at each step belongs in the output."
            )
        return [_like(old, new) for old, new in zip(leaves, jax.tree.leaves(result[0]), strict=True)], result[1]

    stepped.__name__ = name  # that of the program, in profiles and logs
    return stepped


# Weak types


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(typeof(leaf), "weak_type", False))


def _is_settled(difference: Difference) -> bool:
    """Whether a leaf gets what it differs in before the first call, as a weakly typed one does, or is converted."""
    if difference.kind != "dtype" or not _is_weak(difference.left):
        return difference.kind == "weak_type"
    return bool(jnp.result_type(difference.left, difference.right) == typeof(difference.right).dtype)


def _settled(leaf: Any, new: Any) -> Any:
    """A leaf of the first state; if it is weakly typed, of the type that the step gives it."""
    stays = not _is_weak(leaf) or (new.weak_type and new.dtype == leaf.dtype)
    return leaf if stays else jnp.asarray(leaf, new.dtype)


def _like(old: Any, new: Any) -> Any:
    """A leaf of the new state, which is weakly typed only where that of the old one is."""
    array = jnp.asarray(new)
    return jnp.asarray(array, array.dtype) if _is_weak(array) and not _is_weak(old) else array


# Places


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed


def _committed(leaves: list[Any], inputs: list[Any]) -> list[Any]:
    """The leaves, all committed to where some of them or of the inputs are; as they are, if that is not one place.

    `jit` puts them there too, but then compiles again for what it gave back.
    """
    whole: Any = untyped_jax.sharding.PartitionSpec()
    shardings = {leaf.sharding for leaf in (*leaves, *inputs) if _is_committed(leaf)}
    places = {NamedSharding(at.mesh, whole) if isinstance(at, NamedSharding) else at for at in shardings}
    if len(places) != 1:
        return leaves
    (place,) = places
    stay = [_is_committed(leaf) or isinstance(leaf, Tracer) for leaf in leaves]
    return [leaf if stays else untyped_jax.device_put(leaf, place) for leaf, stays in zip(leaves, stay, strict=True)]
