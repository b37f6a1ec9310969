"""docs/tutorials/first-model.md in equinox: trained, saved at each epoch, interrupted and resumed."""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)  # pyright: ignore[reportAttributeAccessIssue]
train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


class State(eqx.Module):
    """The state of a training loop; the optimiser is global."""

    model: eqx.nn.MLP
    opt_state: optax.OptState


def loss_of(model: eqx.nn.MLP, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jax.vmap(model)(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


tx = optax.adam(1e-2)


@eqx.filter_jit
def step(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, jax.Array]:
    loss, grads = eqx.filter_value_and_grad(loss_of)(state.model, images, labels)
    updates, opt_state = tx.update(grads, state.opt_state, eqx.filter(state.model, eqx.is_inexact_array))
    return State(eqx.apply_updates(state.model, updates), opt_state), loss


@eqx.filter_jit
def accuracy(model: eqx.nn.MLP, images: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(jnp.argmax(jax.vmap(model)(images), axis=1) == labels)


def fresh() -> State:
    model = eqx.nn.MLP(64, 10, 64, depth=1, key=jax.random.key(0))
    return State(model, tx.init(eqx.filter(model, eqx.is_inexact_array)))


def epoch(state: State, number: int) -> State:
    order = jax.random.permutation(jax.random.fold_in(jax.random.key(1), number), 1500)
    for batch in order.reshape(-1, 50):
        state, _ = step(state, train[0][batch], train[1][batch])
    return state


def steps_in(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.eqx"))


def save(folder: Path, number: int, state: State) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{number}.partial"
    eqx.tree_serialise_leaves(partial, state)
    partial.replace(folder / f"{number}.eqx")
    for old in steps_in(folder)[:-2]:
        (folder / f"{old}.eqx").unlink()


def run(folder: Path, epochs: int) -> State:
    state, start = fresh(), 0
    for number in reversed(steps_in(folder)):
        try:
            state, start = eqx.tree_deserialise_leaves(folder / f"{number}.eqx", like=fresh()), number
            break
        except (RuntimeError, ValueError, OSError, EOFError):
            continue
    for number in range(start, epochs):
        state = epoch(state, number)
        save(folder, number + 1, state)
    return state


folder = Path(tempfile.mkdtemp())
whole = run(folder / "whole", epochs=8)
print(f"{accuracy(whole.model, *test):.2f} of the unseen digits are right")

run(folder / "stopped", epochs=3)
resumed = run(folder / "stopped", epochs=8)
print("the same:", bool(eqx.tree_equal(resumed.model, whole.model)))

eqx.tree_serialise_leaves(folder / "model.eqx", resumed.model)
like = eqx.filter_eval_shape(lambda: eqx.nn.MLP(64, 10, 64, depth=1, key=jax.random.key(0)))
model = eqx.tree_deserialise_leaves(folder / "model.eqx", like=like)
print("prediction:", int(jnp.argmax(model(test[0][0]))), "label:", int(test[1][0]))
