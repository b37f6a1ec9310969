"""Three bodies under gravity, in `lax.scan`: state as nested nodes, settings as statics, an ensemble by `vmap`.

The bodies follow each other along an eight (Moore 1993; Chenciner and Montgomery 2000). A careless integrator loses
energy, which the table shows, and 64 starts that differ by a thousandth drift apart, which the picture shows.

Run `python examples/simulation.py` where `pip install ".[examples]"` has been done.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from treewright import Module, pytree_dataclass, replace, static

Method: TypeAlias = Literal["euler", "leapfrog"]

PICTURE = "simulation.png"
PERIOD = 6.3259  # Period of the figure eight, with masses and gravity of 1


# The state: nodes within nodes


@pytree_dataclass
class Bodies:
    """Three bodies in the plane."""

    place: jax.Array  # f32[3, 2]
    speed: jax.Array  # f32[3, 2]
    mass: jax.Array  # f32[3]


@pytree_dataclass
class Clock:
    """The time."""

    time: jax.Array  # f32[]
    ticks: jax.Array  # i32[]


@pytree_dataclass
class World:
    """The input and output of a step."""

    bodies: Bodies
    clock: Clock


# The settings: statics, because they determine the compiled program


class Simulation(Module):
    """The laws of motion; `jit` compiles the method `run`."""

    method: Method = static()
    ticks: int = static(default=1000)
    periods: int = static(default=1)

    @property
    def tick(self) -> float:
        """The time from one state to the next."""
        return PERIOD * self.periods / self.ticks

    def step(self, world: World) -> World:
        """The world one tick later."""
        place, speed = world.bodies.place, world.bodies.speed
        if self.method == "euler":
            moved = place + self.tick * speed
            turned = speed + self.tick * pull(world.bodies)
        else:
            half = speed + self.tick / 2 * pull(world.bodies)
            moved = place + self.tick * half
            turned = half + self.tick / 2 * pull(replace(world.bodies, place=moved))
        bodies = Bodies(moved, turned, world.bodies.mass)
        return World(bodies, Clock(world.clock.time + self.tick, world.clock.ticks + 1))

    def run(self, world: World) -> tuple[World, World]:
        """The last world, and all worlds on the way, stacked."""

        def step(world: World, _: None) -> tuple[World, World]:
            world = self.step(world)
            return world, world

        return jax.lax.scan(step, world, length=self.ticks)


def pull(bodies: Bodies) -> jax.Array:
    """The acceleration of each body by gravity, `f32[3, 2]`."""

    def on_one(place: jax.Array) -> jax.Array:
        way = bodies.place - place[None, :]
        cubed = jnp.sum(way**2, axis=1) ** 1.5
        weight = jnp.where(cubed > 0, bodies.mass / jnp.where(cubed > 0, cubed, 1), 0)  # no body attracts itself
        return weight @ way

    return jax.vmap(on_one)(bodies.place)


def energy(bodies: Bodies) -> jax.Array:
    """Kinetic and potential energy, whose sum is constant in nature."""
    kinetic = 0.5 * jnp.sum(bodies.mass * jnp.sum(bodies.speed**2, axis=1))
    pairs = ((0, 1), (0, 2), (1, 2))
    distances = [jnp.linalg.norm(bodies.place[i] - bodies.place[j]) for i, j in pairs]
    potential = [bodies.mass[i] * bodies.mass[j] / far for (i, j), far in zip(pairs, distances, strict=True)]
    return kinetic - jnp.sum(jnp.stack(potential))


def eight() -> World:
    """The start of the eight."""
    place = jnp.asarray([[0.97000436, -0.24308753], [-0.97000436, 0.24308753], [0.0, 0.0]])
    last = jnp.asarray([-0.93240737, -0.86473146])
    speed = jnp.stack([-last / 2, -last / 2, last])
    return World(Bodies(place, speed, jnp.ones(3)), Clock(jnp.asarray(0.0), jnp.asarray(0)))


def ensemble(world: World, count: int, spread: float, key: jax.Array) -> World:
    """Slightly different worlds, as one world with a leading axis on each leaf."""

    def moved(key: jax.Array) -> World:
        place = world.bodies.place + spread * jax.random.normal(key, world.bodies.place.shape)
        return replace(world, bodies=replace(world.bodies, place=place))

    return jax.vmap(moved)(jax.random.split(key, count))


class CountedRuns:
    """`run` under `jit`, counting its traces by a side effect that only tracing runs."""

    def __init__(self) -> None:
        self.traces = 0
        self.of_one = jax.jit(self._run)
        self.of_many = jax.jit(jax.vmap(self._run, in_axes=(None, 0)))

    def _run(self, simulation: Simulation, world: World) -> tuple[World, World]:
        self.traces += 1
        return simulation.run(world)


# Output


def drift(way: World) -> float:
    """The largest change of the energy, relative to the energy at the start."""
    energies = np.asarray(jax.vmap(energy)(way.bodies))
    return float(np.max(np.abs(energies / energies[0] - 1)))


def spread_of(way: World) -> np.ndarray:
    """The spread of the ensemble, `f32[ticks]`: the standard deviation of the first body's position."""
    place = np.asarray(way.bodies.place)[:, :, 0]
    return np.asarray(np.sqrt(place.var(axis=0).sum(axis=-1)))


def draw(one: World, many: World, path: Path) -> None:
    """Draw the figure eight, and some of the ensemble."""
    figure = Figure(figsize=(9, 2.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set_title("Three bodies, one eight", loc="left", fontweight="bold")
    for body, color in enumerate(("#c2410c", "#1d4ed8", "#15803d")):
        left.plot(*np.asarray(one.bodies.place[:, body]).T, color=color, linewidth=1)
        left.plot(*np.asarray(one.bodies.place[-1, body]), "o", color=color)
    left.set_aspect("equal")
    right.set_title("One body, in every world of the ensemble", loc="left", fontweight="bold")
    for way in np.asarray(many.bodies.place)[:, :, 0]:
        right.plot(*way.T, color="#c2410c", linewidth=0.4, alpha=0.4)
    right.set_aspect("equal")
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run with both methods, then the ensemble; print a table and draw."""
    parser = argparse.ArgumentParser(description="Three bodies under gravity.")
    parser.add_argument("--members", type=int, default=64, help="worlds in the ensemble")
    parser.add_argument("--periods", type=int, default=4, help="how often the bodies go round")
    parser.add_argument("--seed", type=int, default=0, help="for the ensemble")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for the picture")
    settings = parser.parse_args(argv)

    world, runs = eight(), CountedRuns()
    print(world)
    print(f"{'method':>10}{'ticks':>8}{'energy drift':>15}{'return to the start':>22}")
    way = world
    methods: tuple[tuple[Method, int], ...] = (("euler", 1000), ("euler", 4000), ("leapfrog", 1000), ("leapfrog", 4000))
    for method, ticks in methods:
        last, way = runs.of_one(Simulation(method, ticks), world)
        missed = float(jnp.linalg.norm(last.bodies.place - world.bodies.place))
        print(f"{method:>10}{ticks:>8}{drift(way):>15.1e}{missed:>22.1e}")
    print(f"traces: {runs.traces}, one for each setting")
    runs.of_one(Simulation("leapfrog", 4000), world)
    print(f"traces after an equal setting was recreated: {runs.traces}")

    starts = ensemble(world, settings.members, 1e-3, jax.random.key(settings.seed))
    simulation = Simulation("leapfrog", 1000 * settings.periods, settings.periods)
    _, ways = runs.of_many(simulation, starts)
    spread = spread_of(ways)
    for period in range(1, settings.periods + 1):
        print(f"{settings.members} worlds after {period} periods: {spread[1000 * period - 1]:.4f} apart")
    settings.output.mkdir(parents=True, exist_ok=True)
    draw(way, ways, settings.output / PICTURE)
    print(f"picture: {settings.output / PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
