"""Programs of science as users of JAX write them: roots, automata, equations, spectra, histograms."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.frontend.jax_program_table import normal, program


@program(lambda: (jnp.float32(7.0), jnp.float32(1e-5)))
def root_by_newton(a: Any, tolerance: Any) -> Any:
    def body(state: Any) -> Any:
        x, count = state
        return 0.5 * (x + a / x), count + 1

    return lax.while_loop(lambda state: jnp.abs(state[0] ** 2 - a) > tolerance * a, body, (a, 0))


@program(lambda: (normal(24, 24),))
def game_of_life(cells: Any) -> Any:
    def step(alive: Any, _: Any) -> Any:
        count = sum(
            jnp.roll(alive, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)
        )  # fmt: skip
        new = jnp.where((count == 3) | ((alive == 1) & (count == 2)), 1, 0)
        return new, new.sum()

    return lax.scan(step, (cells > 0).astype(jnp.int32), None, length=6)


@program(lambda: (normal(64), jnp.float32(0.01)))
def heat_equation(u: Any, dt: Any) -> Any:
    def step(_: Any, u: Any) -> Any:
        return u.at[1:-1].add(dt * (u[2:] - 2 * u[1:-1] + u[:-2]))

    return lax.fori_loop(0, 30, step, u)


@program(lambda: (normal(2), jnp.linspace(0.0, 1.0, 11)))
def runge_kutta(y: Any, times: Any) -> Any:
    def slope(y: Any, t: Any) -> Any:
        return jnp.array([y[1], (1 - y[0] ** 2) * y[1] - y[0] + jnp.sin(t)])

    def step(y: Any, pair: Any) -> Any:
        t, h = pair[0], pair[1] - pair[0]
        k1 = slope(y, t)
        k2 = slope(y + h / 2 * k1, t + h / 2)
        k3 = slope(y + h / 2 * k2, t + h / 2)
        k4 = slope(y + h * k3, t + h)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return lax.scan(step, y, jnp.stack([times[:-1], times[1:]], 1))[1]


@program(lambda: (normal(3, 32),))
def spectral_filter(signal: Any) -> Any:
    spectrum = jnp.fft.rfft(signal)
    kept = spectrum * (jnp.arange(spectrum.shape[-1]) < 5)
    smooth = jnp.fft.irfft(kept, n=signal.shape[-1])
    return smooth, jnp.abs(spectrum) ** 2, jnp.convolve(signal[0], jnp.ones(3) / 3, mode="same")


@program(lambda: (normal(10, 3),))
def ranks_and_histograms(x: Any) -> Any:
    order = jnp.argsort(x, axis=0)
    ranks = jnp.argsort(order, axis=0)
    bins = jnp.linspace(-2.0, 2.0, 6)
    return ranks, jnp.sort(x, axis=0)[::-1], jnp.digitize(x, bins), jnp.bincount(jnp.abs(x[:, 0]).astype(int), length=4)


@program(lambda: (normal(6, 6), jnp.asarray(True)))
def branches(x: Any, flag: Any) -> Any:
    one = lax.cond(flag, lambda x: jnp.sin(x) @ x, lambda x: x.T * 2, x)
    two = lax.switch(jnp.argmax(x[0]) % 3, [lambda x: x + 1, lambda x: x * 2, jnp.exp], x)
    return one, two, lax.select(x > 0, one, two)


@program(lambda: (normal(5, 4), normal(4)))
def jacobian_and_vectorization(points: Any, weights: Any) -> Any:
    def residual(p: Any) -> Any:
        return jnp.array([p @ weights, jnp.prod(p), jnp.linalg.norm(p)])

    def damped(p: Any) -> Any:
        jacobian = jax.jacfwd(residual)(p)
        normal_matrix = jacobian.T @ jacobian + 0.1 * jnp.eye(4)
        return p - jnp.linalg.solve(normal_matrix, jacobian.T @ residual(p))

    return jax.vmap(damped)(points), jax.vmap(jax.jacrev(residual))(points)


@program(lambda: (normal(16, 8) * 0.3, normal(8, 8) * 0.3, normal(5, 16)))
def recurrent_network(inputs: Any, recurrent: Any, sequence: Any) -> Any:
    @partial(jax.checkpoint)
    def cell(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ inputs + h @ recurrent)
        return h, h

    def loss(recurrent_inputs: Any) -> Any:
        _, hidden = lax.scan(lambda h, x: cell(h, x), jnp.zeros(8), sequence * recurrent_inputs)
        return jnp.mean(hidden**2)

    return jax.value_and_grad(loss)(jnp.ones(()))


@program(lambda: (normal(4, 30), normal(4)))
def cumulative_statistics(returns: Any, weights: Any) -> Any:
    wealth = jnp.cumprod(1 + 0.01 * returns, axis=1)
    drawdown = 1 - wealth / lax.cummax(wealth, axis=1)
    smoothed = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (0.9 * jnp.ones_like(returns), returns), axis=1)[1]  # fmt: skip # noqa: E501
    return drawdown.max(1), smoothed[:, -1], jnp.tensordot(weights, wealth, 1), jnp.var(returns, axis=1, ddof=1)
