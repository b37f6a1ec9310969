"""`TrainState`: parameters, optimiser state and step of a training run, as one node.

The types stand in `train.pyi`.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Annotated, Any, Generic, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from typing_extensions import TypeVar

from treewright._core.converters import Converted, Converter
from treewright._core.fields import StaticValue, field, static
from treewright._core.instance import with_close_matches
from treewright._core.jax_private import untyped_jax
from treewright._core.module import Module
from treewright._core.spec import spec_of
from treewright._core.text import cured, first_of, first_text
from treewright._trees.diff import differences, telling_of_classes
from treewright._trees.partition import combine, partition, trainable
from treewright._trees.refs import first_ref, from_refs, write_changes
from treewright.errors import missing_extra

P = TypeVar("P", default=Any)  # for programs that write TrainState without a parameter, as flax has it


class Transformation(Protocol):
    """The two functions of an optimiser."""

    @property
    def init(self) -> Callable[[Any], Any]:
        """`init(params)` gives the optimiser's state."""
        ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """`update(grads, opt_state, params)` gives the updates and the new state."""
        ...


class Optimizer(Transformation, StaticValue, Protocol):
    """What `TrainState` asks of an optimiser: optax's `GradientTransformation`, or anything with its two functions."""


def _as_step(step: Any) -> Any:
    """An `i32[]` that is not weakly typed: a Python int would trace the training step twice."""
    return jnp.asarray(step, jnp.int32) if isinstance(step, int | np.integer | np.ndarray | jax.Array) else step


def _refuse_refs(state: object, **fields: object) -> None:
    """Refuse a state that could not be returned, or whose optimiser would be given refs."""
    for name, value in fields.items():
        path = first_ref(value)
        if path is not None:
            raise TypeError(
                f"{type(state).__qualname__}.{name}{path} is a ref. apply_gradients gives a new state, and JAX returns "
                f"no refs from jit, grad, scan and the like. Change the refs instead, and return only the metrics: "
                f"state = to_refs(state) before the first step, and state.update_in_place(grads=...) in it. For a new "
                f"state of arrays: from_refs(state).apply_gradients(grads=...)."
            )


class TrainState(Module, Generic[P], kw_only=True):
    """Everything that a training step takes and gives back.

    A program written for `flax.training.train_state.TrainState` runs with this one. Subclass it for more fields, such
    as batch statistics or a random key. An optimiser of optax that is built again with the same settings is the same
    static, and one with other settings traces again; one of your own functions is compared as any static function is.

    `buffer()` fields of the parameters are not trained: the optimiser gets `None` in their place, so it keeps nothing
    for them and neither gradients nor weight decay reach them.

    Examples:
        >>> import optax
        >>> state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.5))
        >>> state = state.apply_gradients(grads={"w": jnp.ones(2)})
        >>> state.params["w"].tolist(), int(state.step)
        ([0.5, 0.5], 1)
    """

    step: Annotated[Converted[ArrayLike, jax.Array], Converter(_as_step)] = field(
        default=Converted(0), doc="`i32[]`, the number of updates so far."
    )
    apply_fn: Callable[..., Any] | None = static(default=None, doc="What applies the model, or None.")
    params: P = field(doc="The parameters: a `Module`, a flax parameter dict, any pytree.")
    tx: Optimizer = static(doc="The optimiser, an `optax.GradientTransformation`.")
    opt_state: Any = field(doc="What `tx.init(params)` gave, for the parameters without their buffers.")

    @classmethod
    @cured(lambda args, kwargs: _create_cure(args[0], kwargs))
    def create(cls, *, params: P, tx: Optimizer, apply_fn: Callable[..., Any] | None = None, **fields: Any) -> Self:
        """A state at step 0, with the optimiser's state for `params`.

        Args:
            params: The parameters, any pytree.
            tx: The optimiser.
            apply_fn: What applies the model, if the program wants to keep it here.
            **fields: Values of fields that a subclass adds.

        Raises:
            TypeError: If `tx` is not an optimiser, or `params` is a class.
        """
        if isinstance(params, type):
            name = params.__name__
            raise TypeError(
                f"{cls.__qualname__}.create(params=...) takes the parameters, and was given the class {name}. Make an "
                f"instance: params={name}(...)."
            )
        if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
            name: str | None = getattr(tx, "__name__", None)
            made = "" if name is None else f" It makes one when it is called: tx={name}(...)."
            raise TypeError(
                f"{cls.__qualname__}.create(tx=...) takes an optimiser with init and update, such as optax.adam(1e-3), "
                f"got {first_text(tx)}.{made}"
            )
        weights, _ = partition(params, trainable)
        return cls(apply_fn=apply_fn, params=params, tx=tx, opt_state=tx.init(weights), **fields)

    @cured(lambda _args, _kwargs: "Name them: state.apply_gradients(grads=grads).")
    def apply_gradients(self, *, grads: P, buffers: P | None = None, **changes: Any) -> Self:
        """The state after one update of the parameters.

        A state of refs has `update_in_place`.

        Args:
            grads: Gradients: a tree like `params`, or like the first half of `partition(params, trainable)`, for which
                no gradients of buffers have been computed.
            buffers: The model with new buffers, as a loss with `has_aux=True` hands it out, or the second half of such
                a partition. Only its buffers are taken. Without it, they stay as they are.
            **changes: New values of the fields that a subclass adds, such as a random key.

        Raises:
            ImportError: If optax is not installed.
            TypeError: If a name in `changes` is not a field; the message lists the close ones. Also if it is one of
                those that the update computes, or if `buffers` is the name of a field.
            ValueError: If `buffers` has another structure, or a buffer another shape or dtype than it had.

        Examples:
            >>> import optax
            >>> class Centred(Module):
            ...     weight: jax.Array
            ...     mean: jax.Array = buffer()
            >>> def loss_of(model, x):
            ...     model = replace(model, mean=0.9 * model.mean + 0.1 * jnp.mean(x))
            ...     return jnp.mean((model.weight * (x - model.mean)) ** 2), model
            >>> state = TrainState.create(params=Centred(jnp.ones(()), jnp.zeros(())), tx=optax.sgd(0.1))
            >>> grads, model = jax.grad(loss_of, has_aux=True)(state.params, jnp.array([4.0, 6.0]))
            >>> state = state.apply_gradients(grads=grads, buffers=model)
            >>> print(f"{state.params.mean:.2f}")
            0.50
        """
        _refuse_wrong_names(self, changes)
        try:
            import optax
        except ImportError as error:
            raise missing_extra("TrainState.apply_gradients", "optax", "train") from error
        weights: Any  # optax's own type of parameters leaves nodes out
        weights, kept = partition(self.params, trainable)
        if buffers is not None:
            kept = _new_buffers(self, kept, buffers)
        _refuse_refs(self, step=self.step, params=weights, opt_state=self.opt_state)
        with telling_of_classes(self.params, grads, self.opt_state), _telling_of_misfits(self, weights, grads):
            updates, opt_state = self.tx.update(partition(grads, trainable)[0], self.opt_state, weights)
            updated: Any = optax.apply_updates(weights, updates)
        params = combine(updated, kept)
        state = self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state)):
            _refuse_refs(self, params=params, **changes)
        return state

    def update_in_place(self, *, grads: P, **changes: Any) -> None:
        """Do what `apply_gradients` does in the refs of this state, without a copy of it and without donation.

        For a state that `to_refs` made, in a jitted step that returns no state, only metrics. What `apply_gradients`
        leaves as it is, such as buffers, is not written, and may be an array.

        Args:
            grads: As for `apply_gradients`, of arrays: gradients with respect to `from_refs(params)`.
            **changes: As for `apply_gradients`: `buffers`, and new values of other fields, which hold refs.

        Raises:
            TypeError: If something that changes is not a ref, or changes its structure, shape or dtype.
            ImportError: If optax is not installed.

        Examples:
            >>> import optax
            >>> state = to_refs(TrainState.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.5)))
            >>> @jax.jit
            ... def step(state, x):
            ...     loss, grads = jax.value_and_grad(lambda params: params["w"] @ x)(from_refs(state.params))
            ...     state.update_in_place(grads=grads)
            ...     return loss
            >>> float(step(state, jnp.ones(2))), from_refs(state).params["w"].tolist()
            (2.0, [0.5, 0.5])
        """
        before = from_refs(self)
        write_changes(self, before, before.apply_gradients(grads=grads, **changes))


_COMPUTED = ("step", "params", "opt_state")
_NO_FIT = ("class", "static", "added", "removed", "shape")  # where no computation takes both
_LINES = 10  # of differences that a message lists


def _refuse_wrong_names(state: TrainState[Any], changes: Iterable[str]) -> None:
    """Before anything is computed, and with the arguments among the close matches."""
    cls = type(state).__qualname__
    fields = [name for name in spec_of(state).by_name if name not in _COMPUTED]
    for name in changes:
        if name in _COMPUTED:
            raise TypeError(
                f"{cls}.apply_gradients computes {name} itself. For another value, call "
                f".replace({name}=...) on the state before or on the one that it returns."
            )
        if name not in fields:
            (meant,) = with_close_matches([name], [*fields, "grads", "buffers"])
            raise TypeError(
                f"{cls} has no field {meant}. apply_gradients takes grads, buffers, and new values of its fields: "
                f"{', '.join(fields)}."
            )


def _new_buffers(state: TrainState[Any], old: Any, given: Any) -> Any:
    """The buffers of `given`, which have the structure, shapes and dtypes of those before."""
    if "buffers" in spec_of(state).by_name:
        raise TypeError(
            f"{type(state).__qualname__} has a field buffers, and apply_gradients(buffers=...) is for the buffers of "
            f"params. Write .replace(buffers=...) for the field, and .replace(params=...) for the model."
        )
    new = partition(given, trainable)[1]
    wrong = _misfits("params", old, new, (*_NO_FIT, "dtype", "value"))
    if wrong:
        raise ValueError(
            f"{type(state).__qualname__}.apply_gradients(buffers=...) takes the buffers of params in the shapes and "
            f"dtypes that they have, or the next step would be compiled anew:{wrong}\n"
            f"Give the model that the loss hands out, or the second half of its partition. Statistics that vmap gives "
            f"for each example need jax.lax.pmean(..., axis_name) and out_axes=None, or a mean over the examples."
        )
    return new


def _create_cure(state: Any, given: Mapping[str, Any]) -> str:
    """What follows Python's words for a call of the constructor, or of `create`, that it refuses."""
    unknown = [name for name in given if name not in state.__node_spec__.by_name]
    if not {"params", "tx"} <= set(given) or not unknown:
        wrong = f", and takes no {unknown[0]}=" if unknown else ""
        return f"TrainState.create(params=..., tx=...) makes a state at step 0{wrong}."
    return f"A field of your own stands in a subclass: class State(TrainState): {unknown[0]}: ..."


# Not in the class body, where it would be an `__init__` of the user's, and be inherited.
setattr(TrainState, "__init__", cured(lambda args, kwargs: _create_cure(args[0], kwargs))(TrainState.__init__))  # noqa: B010


@contextlib.contextmanager
def _telling_of_misfits(state: TrainState[Any], weights: Any, grads: Any) -> "Generator[None, None, None]":
    """Say which tree does not fit which, where the optimiser fails: optax names neither gradients nor parameters."""
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        told = _misfit(state, weights, grads)
        if told is None:
            raise
        raise ValueError(f"{type(state).__qualname__}.apply_gradients: {told}") from error


def _misfit(state: TrainState[Any], weights: Any, grads: Any) -> str | None:
    if callable(grads) and not hasattr(grads, "__node_spec__"):
        return f"grads is the function {first_text(grads)}. Call it: grads = jax.grad(loss)(state.params, ...)."
    found = _misfits("params", weights, partition(grads, trainable)[0])
    if found:
        pair: Any = grads
        is_pair = isinstance(grads, tuple) and len(pair) == 2
        paired = is_pair and not _misfits("", weights, partition(pair[1], trainable)[0])
        cure = "\nThat is what jax.value_and_grad gives: value, grads = ..." if paired else ""
        return f"grads is not a tree like params, so no update can be computed. From params to grads:{found}{cure}"
    made = untyped_jax.eval_shape(state.tx.init, weights)
    found = _misfits("opt_state", made, state.opt_state)
    if found:
        return (
            f"opt_state is not what tx.init(params) gives. From that to opt_state:{found}\n"
            f"After a change of tx or params, make it anew: opt_state=tx.init(params)."
        )
    return None


def _misfits(root: str, left: Any, right: Any, kinds: Collection[str] = _NO_FIT) -> str:
    """The lines on where two trees differ in these ways, by default so that no computation takes both."""
    found = differences(left, right, values=False, path=(root,))
    lines = [str(difference) for difference in found if difference.kind in kinds]
    return "".join(f"\n  {line}" for line in first_of(lines, _LINES))
