"""`loop`: a jitted training step whose state stays flat between calls."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

from treewright._base.functions import public
from treewright._base.jax_private import Path, current_trace, is_ref, jax_trees, path_text, untyped_jax
from treewright._base.text import short_text
from treewright._contents import unwrap
from treewright._reports import first_lines
from treewright._trees.devices import placed_with, sharding_of
from treewright._trees.diff import differences
from treewright._trees.level import strong
from treewright._trees.sizes import memory_of
from treewright.errors import DonatedStateError, LoopStateError

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class FlatTree:
    """A tree as a single node with all its leaves, so `jit` flattens it in one call for any number of nodes.

    Its `aux_data` is the `unflatten` method of its treedef, because `jit` compares that by identity, but would traverse
    a treedef at each call. `result` is a list of one pair, `(leaves, output)`.
    """

    __slots__ = ("result", "unflatten")

    def __init__(self, unflatten: Callable[..., Any], leaves: Any) -> None:
        self.unflatten = unflatten
        self.result: list[tuple[Any, Any]] = [(leaves, None)]

    @property
    def tree(self) -> Any:
        """The tree, rebuilt from its leaves."""
        return self.unflatten(self.result[0][0])

    def with_paths(self) -> Any:
        """Each leaf with its full path as one key, so JAX's errors name the path."""
        return [(path_text(path), leaf) for path, leaf in jax_trees.tree_leaves_with_path(self.tree)], self.unflatten


jax_trees.register_pytree_with_keys(
    FlatTree, FlatTree.with_paths, FlatTree, lambda flat: (flat.result[0][0], flat.unflatten)
)


@public
class loop(Generic[S, P, R]):  # noqa: N801  it is used like a function
    """A jitted step that stores its state: call `output = run(*inputs)`, and read `run.state` when you need it.

    With `jit`, each call flattens the state and unflattens the next one. A loop does that only when `run.state` is read
    or assigned, so a call costs as much as with a flat list of arrays, for any number of nodes.

    The state is donated: each call consumes the arrays of the previous state, and the first call those of `state`. A
    value from `run.state` is valid until the next call; `jax.tree.map(jnp.copy, run.state)` stays valid. With
    `donate=False` nothing is consumed, but two states need memory.

    Every leaf keeps its shape, dtype and sharding; a Python number becomes an array of JAX's default dtype. Leaves that
    are not committed to devices move to those of the other leaves and inputs. After an exception, also Ctrl-C,
    `run.state` is the state of the last complete step, unless it was donated to the failed step. To use a loop inside
    `jit` and the like, create it there.

    Args:
        step: A function `step(state, *inputs)` that returns `(state, output)`, as for `jax.lax.scan`. The loop jits it;
            apply `max_traces` directly to it.
        state: A tree of arrays and numbers.
        donate: Whether a state may reuse the memory of the previous one.

    Raises:
        LoopStateError: If a leaf of `state` is not an array or number; from a call, if the step returns a state with a
            different structure, shape or dtype, or if the state belongs to a different trace.
        DonatedStateError: From `run.state`, if its arrays have been consumed.

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

    # Assigning to a misspelt `run.state` raises.
    __slots__ = ("__weakref__", "_donate", "_flat", "_name", "_program", "_step", "_structures", "_trace")

    def __init__(self, step: Callable[Concatenate[S, P], tuple[S, R]], state: S, *, donate: bool = True) -> None:
        if not callable(step):
            raise TypeError(f"loop(step, state) needs a function, step(state, *inputs), got {short_text(step)}.")
        self._name: str = getattr(unwrap(step), "__name__", type(step).__qualname__)
        self._step = self._with_flat_result(step)
        self._donate = donate
        self._structures: dict[Any, Callable[..., Any]] = {}
        self.state = state

    @property
    def state(self) -> S:
        """The state after the last complete step. Assign a state to continue from it.

        A state with the same structure, shapes, dtypes and shardings needs no new program.
        """
        tree: S = self._flat.tree
        self._reject_deleted(jax_trees.tree_leaves_with_path(tree))
        return tree

    @state.setter
    def state(self, state: S) -> None:
        entries, treedef = jax_trees.tree_flatten_with_path(state)
        self._reject_deleted(entries)
        leaves: list[jax.Array] = []
        memories: set[Any] = set()
        for path, leaf in entries:
            try:
                array = _array_of(leaf)
            except TypeError as error:
                fix = "Pass a ref as an input of the step" if is_ref(leaf) else "Make it a static field"
                raise LoopStateError(
                    f"{path_text(path, 'state')} is {short_text(leaf)}, but the state of a loop may contain only "
                    f"arrays and numbers. {fix}, or keep it outside the state."
                ) from error
            # An array can be donated only once.
            leaves.append(jnp.copy(array) if self._donate and memory_of(array) in memories else array)
            memories.add(memory_of(array))
        self._flat = FlatTree(self._structures.setdefault(treedef, treedef.unflatten), leaves)
        self._trace = current_trace()
        self._program: Callable[..., Any] | None = None

    def __call__(self, *inputs: P.args, **keywords: P.kwargs) -> R:
        """Run one step and return its output. Inputs are traced, as in any jitted function."""
        if self._trace is not current_trace():
            raise LoopStateError(
                f"loop({self._name}) was created outside this trace, so its state would become a tracer. Create the "
                f"loop inside the function that jit, vmap or grad transforms, or call the step itself: state, output = "
                f"{self._name}(state, ...)."
            )
        program: Any = self._program or self._make_program(inputs, keywords)
        if keywords:
            program = functools.partial(program, **keywords)
        result = self._flat.result
        try:
            # One instruction runs the step and stores its state, so Ctrl-C comes before or after it. Between two it
            # would lose the only state (test_an_interrupt_loses_no_state).
            result[:] = map(program, (self._flat,), *zip(inputs))
        except (RuntimeError, ValueError) as error:  # JAX's errors about buffers name no argument
            self._reject_donated((inputs, keywords), error)
            raise
        leaves, output = result[0]
        result[0] = (leaves, None)
        return output  # type: ignore[no-any-return]

    def _reject_deleted(self, entries: Iterable[tuple[Path, Any]]) -> None:
        for path, leaf in entries:
            if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
                raise DonatedStateError(
                    f"The state of loop({self._name}) is gone: {path_text(path, 'state')} was donated to a call that "
                    f"failed, or to a different loop or function. To begin two loops with one state, copy it: "
                    f"jax.tree.map(jnp.copy, state). Otherwise assign a state to continue from, such as the last "
                    f"checkpoint: run.state = load(...). With loop(..., donate=False), the previous state survives a "
                    f"failed step."
                )

    def _reject_donated(self, inputs: tuple[Any, Any], error: Exception) -> None:
        """Raise an error that names an array that this call or an earlier one donated."""
        tree = self._flat.tree
        own = {*map(memory_of, jax.tree.leaves(tree))} if self._donate else set()
        for path, leaf in jax_trees.tree_leaves_with_path(inputs):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or is_ref(leaf):
                continue
            if leaf.is_deleted() or memory_of(leaf) in own:
                name = path_text(path[1:], "inputs" if path[0].idx == 0 else "keywords")
                raise DonatedStateError(
                    f"{name} of this call of loop({self._name}) is part of the state that this or an earlier call "
                    f"donated. Read it from the state in the step, or copy it first: jax.tree.map(jnp.copy, run.state)."
                ) from error
        if "has been deleted" in str(error):  # before the step ran
            self._reject_deleted(jax_trees.tree_leaves_with_path(tree))

    def _with_flat_result(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The function that a loop jits: `step`, but it checks the new state and returns its leaves."""
        name = self._name

        @functools.wraps(step)
        def stepped(flat: FlatTree, /, *inputs: Any, **keywords: Any) -> tuple[list[Any], Any]:
            result: Any = step(flat.tree, *inputs, **keywords)
            if not (isinstance(result, tuple | list) and len(result) == 2):
                raise LoopStateError(
                    f"{name} must return a pair, (state, output), got {short_text(result)}. Without an output: return "
                    f"state, None."
                )
            of_trees = differences(flat.tree, result[0], values=False, path=("state",))
            changes = first_lines([str(difference) for difference in of_trees if difference.kind != "weak_type"])
            if changes:
                lines = "\n  ".join(["", *changes])
                raise LoopStateError(
                    f"{name} returned a state that differs from its input, so every call would recompile:{lines}\n"
                    f"Keep the structure, statics, shapes and dtypes of the state; return new values as output."
                )
            return list(map(_array_of, jax.tree.leaves(result[0]))), result[1]

        stepped.__name__ = name  # the program's name in profiles and logs
        return stepped

    def _make_program(self, inputs: Any, keywords: Any) -> Any:
        """The jitted step; the leaves are first moved to the devices where it will return them."""
        leaves: list[Any] = self._flat.result[0][0]
        leaves[:] = placed_with([*leaves, *jax.tree.leaves((inputs, keywords))], leaves)
        shardings = [*map(sharding_of, leaves)]
        donated = (0,) if self._donate else ()
        self._program = untyped_jax.jit(self._step, donate_argnums=donated, out_shardings=(shardings, None))
        return self._program


def _array_of(leaf: Any) -> jax.Array:
    """A leaf as an array that is not weakly typed; a copy if it is not JAX's, because its memory can't be donated."""
    if is_ref(leaf):
        raise TypeError("A ref can't be part of the state.")
    array: jax.Array = strong(leaf if isinstance(leaf, jax.Array) else jnp.array(leaf))
    return array
