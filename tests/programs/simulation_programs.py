"""Whole programs of simulation and signal processing."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# Verlet integration of springs (Witkin and Baraff).
def spring_chain(x, v, k, dt, steps):
    for _ in range(steps):
        f = np.zeros_like(x)
        stretch = x[1:] - x[:-1] - 1.0
        f[:-1] += k * stretch
        f[1:] -= k * stretch
        v += f * dt
        x += v * dt
    return 0.5 * (v**2).sum() + 0.5 * k * (stretch**2).sum()


# Reynolds's boids, after Rougier's "From Python to NumPy".
class Boids:
    def __init__(self, position, velocity):
        self.position = position
        self.velocity = velocity

    def run(self):
        P, V, n = self.position, self.velocity, len(self.position)
        dx = np.subtract.outer(P[:, 0], P[:, 0])
        dy = np.subtract.outer(P[:, 1], P[:, 1])
        distance = np.hypot(dx, dy)
        mask = (distance > 0) & (distance < 0.5)
        count = np.maximum(mask.sum(axis=1), 1)
        align = np.dot(mask, V) / count.reshape(n, 1)
        cohesion = np.dot(mask, P) / count.reshape(n, 1) - P
        V += 0.1 * align + 0.05 * cohesion
        norm = np.sqrt((V * V).sum(axis=1)).reshape(n, 1)
        np.divide(V, norm, out=V, where=norm > 0.3)
        P += V * 0.1
        P %= 1.0


# Metropolis sweep of the Ising model on a checkerboard, with given uniforms.
def ising_sweep(spins, u, beta):
    n = spins.shape[0]
    i, j = np.indices(spins.shape)
    for colour in (0, 1):
        nb = np.roll(spins, 1, 0) + np.roll(spins, -1, 0) + np.roll(spins, 1, 1) + np.roll(spins, -1, 1)
        dE = 2 * spins * nb
        flip = ((i + j) % 2 == colour) & (u < np.exp(-beta * dE))
        spins[flip] *= -1
    return spins.sum() / n**2


# Lattice Boltzmann, D2Q9 (Latt; Mocz's Python example).
def lattice_boltzmann(F, tau, steps):
    cxs = np.array([0, 0, 1, 1, 1, 0, -1, -1, -1])
    cys = np.array([0, 1, 1, 0, -1, -1, -1, 0, 1])
    weights = np.array([4 / 9, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36])
    for _ in range(steps):
        for i, cx, cy in zip(range(9), cxs, cys, strict=True):
            F[:, :, i] = np.roll(F[:, :, i], cx, axis=1)
            F[:, :, i] = np.roll(F[:, :, i], cy, axis=0)
        rho = np.sum(F, 2)
        ux = np.sum(F * cxs, 2) / rho
        uy = np.sum(F * cys, 2) / rho
        Feq = np.zeros(F.shape)
        for i, cx, cy, w in zip(range(9), cxs, cys, weights, strict=True):
            Feq[:, :, i] = (
                rho * w * (1 + 3 * (cx * ux + cy * uy) + 9 * (cx * ux + cy * uy) ** 2 / 2 - 3 * (ux**2 + uy**2) / 2)
            )
        F += -(1.0 / tau) * (F - Feq)
    return F


# An SIR epidemic by Euler's method (Kermack and McKendrick).
def sir(S, I, R, beta, gamma, days):
    log = []
    N = S + I + R
    for _ in range(days):
        new = beta * S * I / N
        rec = gamma * I
        S, I, R = S - new, I + new - rec, R + rec
        log.append(I.sum())
    return S, I, R, np.array(log)


# Rule 30, an elementary cellular automaton (Wolfram).
def rule30(cells, steps):
    rows = [cells]
    for _ in range(steps):
        c = rows[-1]
        rows.append(np.roll(c, 1) ^ (c | np.roll(c, -1)))
    return np.stack(rows)


# A linear congruential generator (Numerical Recipes, "quick and dirty").
class LinearCongruential:
    def __init__(self, seeds):
        self.state = seeds

    def next(self):
        self.state = (self.state * np.uint32(1664525) + np.uint32(1013904223)).astype(np.uint32)
        return self.state / 2**32


# A biquad filter (Bristow-Johnson's cookbook).
def biquad(x, b, a):
    y = np.zeros_like(x)
    for n in range(len(x)):
        y[n] = b[0] * x[n]
        if n >= 1:
            y[n] += b[1] * x[n - 1] - a[0] * y[n - 1]
        if n >= 2:
            y[n] += b[2] * x[n - 2] - a[1] * y[n - 2]
    return y


# Random walk from draws of a generator held by the object (Python for Data Analysis).
class Walker:
    def __init__(self, n):
        self.rng = np.random.default_rng(7)
        self.position = np.zeros(n)

    def step(self):
        self.position += self.rng.choice([-1, 1], size=self.position.shape)
        return self.position


# A predator-prey model (Lotka and Volterra), with a record of the path.
def lotka_volterra(z, steps, dt):
    path = np.zeros((steps + 1, *z.shape))
    path[0] = z
    for t in range(steps):
        x, y = path[t]
        path[t + 1] = path[t] + dt * np.array([x * (1.1 - 0.4 * y), y * (0.1 * x - 0.4)])
    return path


# Traffic by the Nagel-Schreckenberg rules, without randomness, on a ring.
def traffic(road, speed, vmax):
    gap = (np.roll(road, -1) - road) % 100
    speed = np.minimum(np.minimum(speed + 1, vmax), gap - 1)
    return (road + speed) % 100, speed


# Heat on a plate until it is steady (Gerald and Wheatley).
def steady_plate(u, tolerance):
    count = 0
    while True:
        new = u.copy()
        new[1:-1, 1:-1] = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
        change = np.abs(new - u).max()
        u = new
        count += 1
        if change < tolerance:
            return u, count


CASES = [
    Case(spring_chain, lambda r, n: (np.arange(n) + 0.1 * r.normal(size=n), r.normal(size=n), 2.0, 0.05, 4)),
    Case(Boids.run, lambda r, n: (), instance=lambda r, n: Boids(r.random((n, 2)), r.normal(size=(n, 2)))),
    Case(ising_sweep, lambda r, n: (r.choice([-1, 1], size=(n, n)), r.random((n, n)), 0.4)),
    Case(lattice_boltzmann, lambda r, n: (1 + 0.01 * r.random((n, n, 9)), 0.6, 2)),
    Case(sir, lambda r, n: (1000 * r.random(n), r.random(n), np.zeros(n), 0.3, 0.1, 6)),
    Case(rule30, lambda r, n: (r.integers(0, 2, n), 6)),
    Case(
        LinearCongruential.next,
        lambda r, n: (),
        instance=lambda r, n: LinearCongruential(r.integers(0, 2**32, n, dtype=np.uint32)),
    ),
    Case(biquad, lambda r, n: (r.normal(size=n), r.random(3), r.random(2) / 2)),
    Case(Walker.step, lambda r, n: (), instance=lambda r, n: Walker(n)),
    Case(lotka_volterra, lambda r, n: (r.uniform(1, 10, (2, n)), 6, 0.05)),
    Case(traffic, lambda r, n: (np.sort(r.choice(100, size=n, replace=False)), r.integers(0, 5, n), 5)),
    Case(steady_plate, lambda r, n: (r.random((n, n)), 0.05)),
]
