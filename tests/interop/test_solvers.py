"""diffrax and lineax: our nodes are arguments, states and vectors of their solvers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, pytree_dataclass, static

pytestmark = pytest.mark.slow

lineax = pytest.importorskip("lineax")
diffrax = pytest.importorskip("diffrax")


@pytree_dataclass
class Pendulum:
    angle: jax.Array
    speed: jax.Array


class Gravity(Module):
    strength: jax.Array
    damping: jax.Array
    model: str = static(default="full")

    def __call__(self, time: Any, pendulum: Pendulum, args: Any) -> Pendulum:
        pull = jnp.sin(pendulum.angle) if self.model == "full" else pendulum.angle
        return Pendulum(pendulum.speed, -self.strength * pull - self.damping * pendulum.speed)


def simulate(gravity: Gravity, start: Pendulum) -> Pendulum:
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: args(t, y, None)),
        diffrax.Tsit5(),
        t0=0.0,
        t1=1.0,
        dt0=0.01,
        y0=start,
        args=gravity,
    )
    end: Pendulum = jax.tree.map(lambda leaf: leaf[-1], solution.ys)
    return end


def test_diffrax_solves_for_a_node_with_a_node_of_arguments() -> None:
    start = Pendulum(jnp.asarray(0.1), jnp.asarray(0.0))

    end = jax.jit(simulate)(Gravity(jnp.asarray(9.0), jnp.asarray(0.0), "linear"), start)

    assert isinstance(end, Pendulum)
    np.testing.assert_allclose([end.angle, end.speed], [0.1 * np.cos(3), -0.3 * np.sin(3)], atol=1e-4)


def test_lineax_solves_for_a_node() -> None:
    vector = Pendulum(jnp.asarray([1.0, 2.0]), jnp.asarray(3.0))
    operator = lineax.FunctionLinearOperator(
        lambda v: Pendulum(2 * v.angle, 4 * v.speed),
        jax.eval_shape(lambda: vector),
        tags=lineax.positive_semidefinite_tag,
    )

    solution = lineax.linear_solve(operator, vector, lineax.CG(rtol=1e-6, atol=1e-6)).value

    assert isinstance(solution, Pendulum)
    np.testing.assert_allclose(solution.angle, [0.5, 1.0], rtol=1e-5)
    np.testing.assert_allclose(solution.speed, 0.75, rtol=1e-5)
