"""`TrainState`: parameters, optimiser state and step of a training run, as one node.

The types stand in `train.pyi`.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeVar

from treewright._arguments import cured
from treewright._core import Module, StaticValue, field, is_node, spec_of, static
from treewright._core.jax_private import jax_trees, path_text, untyped_jax
from treewright._core.text import Verbatim, did_you_mean, short_text
from treewright._lines import first_of
from treewright._trees.level import note_classes_made_again
from treewright._trees.partition import combine, partition
from treewright._trees.specs import trainable
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


_FROM_OPTIMIZER = Verbatim("tx.init(params)")  # the default of `opt_state`


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

    step: Any = field(default=0, converter=_as_step, doc="`i32[]`, the number of updates so far.")
    apply_fn: Callable[..., Any] | None = static(
        default=None, doc="What applies the model; None unless it was given, so it can't be called."
    )
    params: P = field(doc="The parameters: a `Module`, a flax parameter dict, any pytree.")
    tx: Optimizer = static(doc="The optimiser, an `optax.GradientTransformation`.")
    opt_state: Any = field(
        default=_FROM_OPTIMIZER, doc="The optimiser's state; by default `tx.init(params)`, without the buffers."
    )

    def __post_init__(self) -> None:
        if self.opt_state is _FROM_OPTIMIZER:
            self.opt_state = _initial_opt_state(type(self), self.params, self.tx)

    @classmethod
    @cured(lambda _args, _kwargs: "It takes them by name: TrainState.create(params=..., tx=...).")
    def create(cls, *, params: P, tx: Optimizer, apply_fn: Callable[..., Any] | None = None, **fields: Any) -> Self:
        """A state at step 0, with the optimiser's state for `params`: the constructor, by the name that flax gives it.

        Args:
            params: The parameters, any pytree.
            tx: The optimiser.
            apply_fn: What applies the model, if the program calls `state.apply_fn`.
            **fields: Values of fields that a subclass adds. Arrays given to two fields are shared, which a step that
                donates the state refuses: give one of them a copy, `ema=jax.tree.map(jnp.copy, params)`.

        Raises:
            TypeError: If `tx` is not an optimiser, `params` is a class, or a name in `fields` is not a field.
        """
        spec = spec_of(cls)
        unknown = [] if spec.has_own_init else [name for name in fields if name not in {*spec.by_name, *spec.init_vars}]
        if unknown:
            (name, *_) = unknown
            raise TypeError(
                f"{cls.__qualname__} has no field {name}{did_you_mean(name, spec.by_name)}. A field of your own stands "
                f"in a subclass: class State(TrainState): {name}: ..."
            )
        opt_state = _initial_opt_state(cls, params, tx)
        return cls(apply_fn=apply_fn, params=params, tx=tx, opt_state=opt_state, **fields)

    @cured(lambda _args, _kwargs: "Name them: state.apply_gradients(grads=grads).")
    def apply_gradients(self, *, grads: P, buffers: P | None = None, **changes: Any) -> Self:
        """The state after one update of the parameters.

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
        try:
            updates, opt_state = self.tx.update(partition(grads, trainable)[0], self.opt_state, weights)
            updated: Any = optax.apply_updates(weights, updates)
        except (TypeError, ValueError, AttributeError) as error:
            misfit = _misfit(self, weights, grads)
            refused = None if misfit is None else ValueError(f"{type(self).__qualname__}.apply_gradients: {misfit}")
            note_classes_made_again(refused or error, self.params, grads, self.opt_state)
            if refused is None:
                raise
            raise refused from error
        return self.replace(step=self.step + 1, params=combine(updated, kept), opt_state=opt_state, **changes)


_NO_FIT = ("class", "static", "added", "removed", "shape")  # where no computation takes both


def _initial_opt_state(cls: type[Any], params: Any, tx: Any) -> Any:
    """The optimiser's state for parameters without their buffers."""
    if isinstance(params, type):
        raise TypeError(
            f"{cls.__qualname__}.create(params=...) takes the parameters, and was given the class {params.__name__}. "
            f"Make an instance: params={params.__name__}(...)."
        )
    if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
        made = f" It makes one when it is called: tx={tx.__name__}(...)." if hasattr(tx, "__name__") else ""
        raise TypeError(
            f"{cls.__qualname__}.create(tx=...) takes an optimiser with init and update, such as optax.adam(1e-3), "
            f"got {short_text(tx)}.{made}"
        )
    weights: Any = partition(params, trainable)[0]
    try:
        return tx.init(weights)
    except Exception as error:
        if callable(weights):
            error.add_note(
                f"tx.init(params) raised this. Optax calls a mask or labels that can be called, as a spec of a "
                f"{type(weights).__qualname__} can. Give a function: lambda params: spec_like(params, ...)."
            )
        raise


def _refuse_wrong_names(state: TrainState[Any], changes: Iterable[str]) -> None:
    """Before anything is computed, and with the arguments among the close matches."""
    fields = [name for name in spec_of(state).by_name if name not in {"step", "params", "opt_state"}]
    for name in changes:
        if name not in fields:
            raise TypeError(
                f"{type(state).__qualname__}.apply_gradients does not take {name}"
                f"{did_you_mean(name, [*fields, 'grads', 'buffers'])}. It takes grads, buffers, and new values of "
                f"{', '.join(fields)}; it computes step, params and opt_state, which .replace(...) sets."
            )


def _new_buffers(state: TrainState[Any], old: Any, given: Any) -> Any:
    """The buffers of `given`, which have the structure, shapes and dtypes of those before."""
    cls = type(state).__qualname__
    if "buffers" in spec_of(state).by_name:
        raise TypeError(
            f"{cls} has a field buffers, and apply_gradients(buffers=...) is for the buffers of params. Write "
            f".replace(buffers=...) for the field, and .replace(params=...) for the model."
        )
    new = partition(given, trainable)[1]
    wrong = _misfits("params", old, new, (*_NO_FIT, "dtype", "value"))
    if wrong:
        raise ValueError(
            f"{cls}.apply_gradients(buffers=...) takes the buffers of params in the shapes and dtypes that they have, "
            f"or the next step would be compiled again:{wrong}\n"
            f"Give the model that the loss hands out, or the second half of its partition. Statistics that vmap gives "
            f"for each example need jax.lax.pmean(..., axis_name) and out_axes=None, or a mean over the examples."
        )
    return new


def _misfit(state: TrainState[Any], weights: Any, grads: Any) -> str | None:
    """Why the optimiser can't take its arguments: optax names neither gradients nor parameters. None if they fit."""
    if callable(grads) and not is_node(grads):
        return f"grads is the function {short_text(grads)}. Call it: grads = jax.grad(loss)(state.params, ...)."
    trained = partition(grads, trainable)[0]
    lines = _misfits("params", weights, trained)
    if lines:
        pair: Any = grads if isinstance(grads, tuple) and len(grads) == 2 else None
        is_result = pair is not None and not _misfits("", weights, partition(pair[1], trainable)[0])
        cure = "\nThat is what jax.value_and_grad gives: value, grads = ..." if is_result else ""
        return f"grads is not a tree like params, so no update can be computed. From params to grads:{lines}{cure}"
    for path, leaf in jax_trees.tree_leaves_with_path(trained):
        if getattr(leaf, "dtype", None) == jax.dtypes.float0:
            return (
                f"params{path_text(path)} holds integers, which have no gradient, and the optimiser computes with all "
                f"of params. Declare its field as static(), or as buffer(), which trainable leaves out."
            )
    lines = _misfits("opt_state", untyped_jax.eval_shape(state.tx.init, weights), state.opt_state)
    if lines:
        return (
            f"opt_state is not what tx.init(params) gives. From that to opt_state:{lines}\n"
            f"After a change of tx or params, make it again: opt_state=tx.init(params)."
        )
    return None


def _misfits(root: str, left: Any, right: Any, kinds: Collection[str] = _NO_FIT) -> str:
    """The lines on where two trees differ in these ways, by default so that no computation takes both."""
    from treewright._trees.diff import differences  # which a step without buffers does not need

    found = differences(left, right, values=False, path=(root,))
    lines = [str(difference) for difference in found if difference.kind in kinds]
    return "".join(f"\n  {line}" for line in first_of(lines))
