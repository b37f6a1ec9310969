"""docs/tutorials/reinforcement-learning.md in flax: flax.struct, linen and flax's TrainState."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, struct
from flax.training.train_state import TrainState


@struct.dataclass
class Cart:
    position: jax.Array
    speed: jax.Array
    angle: jax.Array
    spin: jax.Array
    age: jax.Array

    @property
    def observation(self) -> jax.Array:
        return jnp.stack([self.position, self.speed, self.angle, self.spin])

    @property
    def fallen(self) -> jax.Array:
        return (jnp.abs(self.position) > 2.4) | (jnp.abs(self.angle) > 0.21) | (self.age >= 200)


@struct.dataclass
class World:
    gravity: float = struct.field(pytree_node=False, default=9.8)  # type: ignore[no-untyped-call]  # left untyped by its library
    push: float = struct.field(pytree_node=False, default=10.0)  # type: ignore[no-untyped-call]  # left untyped by its library
    dt: float = struct.field(pytree_node=False, default=0.02)  # type: ignore[no-untyped-call]  # left untyped by its library

    def reset(self, key: jax.Array) -> Cart:
        start = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return Cart(*start, age=jnp.zeros((), jnp.int32))  # type: ignore[misc]  # four of its fields are in start

    def step(self, cart: Cart, action: jax.Array, key: jax.Array) -> Cart:
        force = jnp.where(action == 1, self.push, -self.push)
        sine, cosine = jnp.sin(cart.angle), jnp.cos(cart.angle)
        pull = (force + 0.05 * cart.spin**2 * sine) / 1.1
        turn = (self.gravity * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moved = Cart(
            position=cart.position + self.dt * cart.speed,
            speed=cart.speed + self.dt * (pull - 0.05 * turn * cosine / 1.1),
            angle=cart.angle + self.dt * cart.spin,
            spin=cart.spin + self.dt * turn,
            age=cart.age + 1,
        )
        return jax.tree.map(lambda new, old: jnp.where(moved.fallen, new, old), self.reset(key), moved)  # type: ignore[no-any-return]  # the call returns Any


class Network(linen.Module):
    widths: tuple[int, ...]

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = linen.initializers.lecun_normal()
        for width in self.widths[:-1]:
            x = jnp.tanh(linen.Dense(width, kernel_init=init)(x))
        return linen.Dense(self.widths[-1], kernel_init=init)(x)


class Agent(linen.Module):
    def setup(self) -> None:
        self.actor = Network((32, 2))
        self.critic = Network((32, 1))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.actor(x), self.critic(x)[0]


@struct.dataclass
class Moment:
    observation: jax.Array
    action: jax.Array
    fell: jax.Array


agent = Agent()


def play(world: World, params: Any, cart: Cart, key: jax.Array, length: int) -> tuple[Cart, Moment]:
    def act(cart: Cart, key: jax.Array) -> tuple[Cart, Moment]:
        choice, fate = jax.random.split(key)
        logits, _ = agent.apply(params, cart.observation)
        action = jax.random.categorical(choice, logits)
        moved = world.step(cart, action, fate)
        return moved, Moment(cart.observation, action, fell=moved.age == 0)

    return jax.lax.scan(act, cart, jax.random.split(key, length))


def loss_of(params: Any, moments: Moment, last: Cart) -> jax.Array:
    logits, values = jax.vmap(lambda observation: agent.apply(params, observation))(moments.observation)

    def discount(after: jax.Array, fell: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.where(fell, 0.0, 1.0 + 0.97 * after)
        return total, total

    _, totals = jax.lax.scan(discount, agent.apply(params, last.observation)[1], moments.fell, reverse=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # its library names fewer types than it takes
    advantage = jax.lax.stop_gradient(totals) - values  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]  # flax says less than it returns
    logits = jax.nn.log_softmax(logits)
    score = jnp.take_along_axis(logits, moments.action[:, None], axis=1)[:, 0]
    entropy = -jnp.sum(jnp.exp(logits) * logits, axis=1)
    return jnp.mean(0.5 * advantage**2 - score * jax.lax.stop_gradient(advantage) - 0.01 * entropy)


class Training(TrainState):  # type: ignore[no-untyped-call]  # left untyped by its library
    carts: Cart
    key: jax.Array


def update(world: World, state: Training) -> tuple[Training, jax.Array]:
    key, *keys = jax.random.split(state.key, 65)
    carts, moments = jax.vmap(lambda cart, key: play(world, state.params, cart, key, 32))(state.carts, jnp.stack(keys))

    def mean_loss(params: Any) -> jax.Array:
        return jnp.mean(jax.vmap(lambda *each: loss_of(params, *each))(moments, carts))

    grads = jax.grad(mean_loss)(state.params)
    return state.apply_gradients(grads=grads, carts=carts, key=key), jnp.mean(carts.age)  # type: ignore[no-untyped-call]  # left untyped by its library


@jax.jit
def train(world: World, state: Training) -> tuple[Training, jax.Array]:
    return jax.lax.scan(lambda state, _: update(world, state), state, length=100)


world = World()
carts = jax.vmap(world.reset)(jax.random.split(jax.random.key(0), 64))
params = agent.init(jax.random.key(1), jnp.zeros(4))
state = Training.create(apply_fn=agent.apply, params=params, tx=optax.adam(5e-3), carts=carts, key=jax.random.key(2))  # type: ignore[no-untyped-call]  # left untyped by its library
state = state.replace(step=jnp.zeros((), jnp.int32))
state, ages = train(world, state)
print(f"mean age of a cart: below 50 at first: {ages[10] < 50}, above 70 at the end: {ages[-20:].mean() > 70}")
