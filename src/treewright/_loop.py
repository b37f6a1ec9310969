"""`loop`: a jitted training step whose state stays flat between calls."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding

from treewright._core import innermost, public
from treewright._core.jax_private import current_trace, jax_trees, path_text, untyped_jax
from treewright._core.text import short_text
from treewright._lines import first_of
from treewright._trees.diff import differences
from treewright._trees.sizes import memory_of
from treewright.errors import DonatedStateError, LoopStateError

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class FlatTree:
    """A tree as one node with all its leaves, which `jit` flattens in one call, however many nodes the tree has.

    Its `aux_data` is the `unflatten` of its treedef, which `jit` compares by identity: treedefs it would walk through
    at each call. `result` is a list of one pair, `(leaves, output)`.
    """

    __slots__ = ("result", "unflatten")

    def __init__(self, unflatten: Callable[..., Any], leaves: Any) -> None:
        self.unflatten = unflatten
        self.result: list[tuple[Any, Any]] = [(leaves, None)]

    @property
    def tree(self) -> Any:
        """The tree, made anew."""
        return self.unflatten(self.result[0][0])

    def with_paths(self) -> Any:
        """Each leaf with its whole path as one key, so that JAX's errors name it."""
        return [(path_text(path), leaf) for path, leaf in jax_trees.tree_leaves_with_path(self.tree)], self.unflatten


jax_trees.register_pytree_with_keys(
    FlatTree, FlatTree.with_paths, FlatTree, lambda flat: (flat.result[0][0], flat.unflatten)
)


@public("treewright")
class loop(Generic[S, P, R]):  # noqa: N801  it is used like a function
    """A jitted step that keeps its state: `output = run(*inputs)`, and `run.state` when you want to see it.

    With `jit`, each call flattens the state and unflattens the next one. A loop does that only when `run.state` is read
    or assigned, so a call costs what one with a flat list of arrays does, however many nodes the state has.

    The state is donated: each call uses up the arrays of the state before it, and the first call those of `state`
    itself. What you read from `run.state` is good until the next call, and `jax.tree.map(jnp.copy, run.state)` is good
    for ever. With `donate=False` nothing is used up, and memory for two states is needed.

    Every leaf keeps its shape, dtype and sharding; a Python number becomes an array of JAX's default dtype. Leaves that
    are not committed to devices go where the others and the inputs are. After an exception, Ctrl-C included,
    `run.state` is the state of the last complete step, unless it was donated to the step that failed. Inside of `jit`
    and the like, make the loop there too.

    Args:
        step: `step(state, *inputs)` gives `(state, output)`, as for `jax.lax.scan`. The loop jits it; `max_traces`
            stands directly on it.
        state: A tree of arrays and numbers.
        donate: Whether a state may take the memory of the one before it.

    Raises:
        LoopStateError: If a leaf of `state` is not an array or number; from a call, if the step returns another
            structure, shape or dtype than it was given, or if the state is of another trace.
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
        self._structures: dict[Any, Callable[..., Any]] = {}
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
        leaves: list[jax.Array] = []
        taken: set[Any] = set()
        for path, leaf in entries:
            try:
                array = _array_of(leaf)
            except TypeError as error:
                raise LoopStateError(
                    f"{path_text(path, 'state')} is {short_text(leaf)}, and {self._name} can take only arrays and "
                    f"numbers. Make it a static field, or keep it outside of the state."
                ) from error
            # An array can be donated once.
            leaves.append(jnp.copy(array) if self._donate and memory_of(array) in taken else array)
            taken.add(memory_of(array))
        self._flat = FlatTree(self._structures.setdefault(treedef, treedef.unflatten), leaves)
        self._trace = current_trace()
        self._program: Callable[..., Any] | None = None

    def __call__(self, *inputs: P.args, **keywords: P.kwargs) -> R:
        """The output of one more step. Its inputs are traced, as those of any jitted function."""
        if self._trace is not current_trace():
            raise LoopStateError(
                f"The loop over {self._name} was made outside of this trace, and its state would be a tracer from now "
                f"on. Make the loop inside of the function that jit, vmap or grad transforms, or call the step itself: "
                f"state, output = {self._name}(state, ...)."
            )
        program: Any = self._program or self._make_program(inputs, keywords)
        if keywords:
            program = functools.partial(program, **keywords)
        result = self._flat.result
        # One instruction runs the step and stores its state: Ctrl-C comes before or after it. Between the two it would
        # lose the only state that there is (test_an_interrupt_loses_no_state).
        result[:] = map(program, (self._flat,), *zip(inputs))
        leaves, output = result[0]
        result[0] = (leaves, None)
        return output  # type: ignore[no-any-return]

    def _make_program(self, inputs: Any, keywords: Any) -> Any:
        """The program, once the leaves are at the places in which it will give them back."""
        leaves: list[Any] = self._flat.result[0][0]
        places = {*map(_place_of, [*leaves, *jax.tree.leaves((inputs, keywords))])} - {None}
        if len(places) == 1:  # jit itself puts the others there, but then compiles again for what it gave back
            leaves[:] = [jax.device_put(leaf, *places) if _sharding_of(leaf) is None else leaf for leaf in leaves]
        shardings = [*map(_sharding_of, leaves)]
        donated = (0,) if self._donate else ()
        self._program = untyped_jax.jit(self._step, donate_argnums=donated, out_shardings=(shardings, None))
        return self._program


def _with_flat_result(step: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function that a loop jits: `step`, whose state comes back as leaves that fit those it was given."""

    @functools.wraps(step)
    def stepped(flat: FlatTree, /, *inputs: Any, **keywords: Any) -> tuple[list[Any], Any]:
        result: Any = step(flat.tree, *inputs, **keywords)
        if not (isinstance(result, tuple | list) and len(result) == 2):
            raise LoopStateError(
                f"{name} returned {short_text(result)}, and a loop takes a pair, (state, output). Where there is "
                f"nothing to put out: return state, None."
            )
        of_trees = differences(flat.tree, result[0], values=False, path=("state",))
        misfits = first_of([str(difference) for difference in of_trees if difference.kind != "weak_type"])
        if misfits:
            lines = "\n  ".join(["", *misfits])
            raise LoopStateError(
                f"{name} returns another state than it was given, so that each call would have to be compiled again:"
                f"{lines}\nReturn the same structure and statics, and each leaf with the shape and dtype that it "
                f"came with. What is new at each step belongs in the output."
            )
        return list(map(_array_of, jax.tree.leaves(result[0]))), result[1]

    stepped.__name__ = name  # that of the program, in profiles and logs
    return stepped


def _array_of(leaf: Any) -> jax.Array:
    """A leaf as an array with a dtype of its own; a copy of what is not JAX's, whose memory can't be donated."""
    array = leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)
    return jnp.asarray(array, array.dtype) if getattr(array, "weak_type", False) else array


def _sharding_of(leaf: Any) -> Any:
    """The sharding that a leaf keeps; None for one that is committed to no device."""
    is_committed = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed
    return leaf.sharding if is_committed else None


def _place_of(leaf: Any) -> Any:
    """Where a copy of a leaf with no sharding of its own goes: the whole of it to all devices of the mesh."""
    sharding, whole = _sharding_of(leaf), untyped_jax.sharding.PartitionSpec()
    return NamedSharding(sharding.mesh, whole) if isinstance(sharding, NamedSharding) else sharding
