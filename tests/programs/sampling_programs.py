"""Whole programs of statistics with random draws."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case, Generator


# Pi by Monte Carlo (every course).
def pi_by_darts(rng, count):
    points = rng.random((count, 2))
    return 4 * ((points**2).sum(axis=1) < 1).mean()


# A bootstrap interval for a mean (Efron; SciPy's bootstrap, percentile method).
def bootstrap_interval(x, rng, resamples):
    indices = rng.integers(0, len(x), size=(resamples, len(x)))
    means = x[indices].mean(axis=1)
    return np.percentile(means, [2.5, 97.5]), means.std(ddof=1)


# A permutation test of two means (Good; SciPy's permutation_test).
def permutation_test(a, b, rng):
    pooled = np.concatenate([a, b])
    observed = a.mean() - b.mean()
    count = 0
    for _ in range(20):
        shuffled = rng.permutation(pooled)
        difference = shuffled[: len(a)].mean() - shuffled[len(a) :].mean()
        count = count + (np.abs(difference) >= np.abs(observed))
    return observed, (count + 1) / 21


# Random-walk Metropolis for a normal mean, vectorised over chains (Gelman and others).
def metropolis(x, rng, steps):
    chains = rng.normal(size=8)
    kept = np.empty((steps, 8))

    def log_density(mean):
        return -0.5 * ((x[:, None] - mean) ** 2).sum(axis=0)

    current = log_density(chains)
    for k in range(steps):
        proposal = chains + 0.5 * rng.normal(size=8)
        proposed = log_density(proposal)
        accepted = np.log(rng.random(8)) < proposed - current
        chains = np.where(accepted, proposal, chains)
        current = np.where(accepted, proposed, current)
        kept[k] = chains
    return kept.mean(), kept.var(axis=0)


# Gibbs sampling of a bivariate normal (Casella and George).
def gibbs(rng, correlation, steps):
    x = y = 0.0
    path = np.zeros((steps, 2))
    scale = np.sqrt(1 - correlation**2)
    for k in range(steps):
        x = rng.normal(correlation * y, scale)
        y = rng.normal(correlation * x, scale)
        path[k] = x, y
    return path, np.corrcoef(path.T)


# Importance sampling of a tail probability (Owen).
def tail_probability(rng, count, threshold):
    z = rng.normal(threshold, 1, count)
    weights = np.exp(-threshold * z + threshold**2 / 2)
    estimates = np.where(z > threshold, weights, 0)
    return estimates.mean(), estimates.std() / np.sqrt(count)


# Latin hypercube sampling (McKay, Beckman and Conover).
def latin_hypercube(rng, count, dimensions):
    cuts = np.arange(count)[:, None] + rng.random((count, dimensions))
    for d in range(dimensions):
        cuts[:, d] = rng.permutation(cuts[:, d])
    return cuts / count


# A particle filter with systematic resampling (Gordon, Salmond and Smith; filterpy).
def particle_filter(observations, rng):
    particles = rng.normal(size=32)
    estimates = []
    for z in observations:
        particles = 0.9 * particles + rng.normal(scale=0.3, size=32)
        weights = np.exp(-0.5 * (z - particles) ** 2) + 1e-300
        weights /= weights.sum()
        estimates.append((weights * particles).sum())
        positions = (np.arange(32) + rng.random()) / 32
        particles = particles[np.minimum(np.searchsorted(np.cumsum(weights), positions), 31)]
    return np.array(estimates)


# Rejection-free draws by the inverse of a distribution, and its histogram (Devroye).
def exponential_by_inverse(rng, count, rate):
    draws = -np.log1p(-rng.random(count)) / rate
    counts, edges = np.histogram(draws, bins=8, range=(0, 4 / rate))
    return draws.mean(), counts / count, edges


class Minibatches:
    """Stochastic gradient descent on shuffled batches (scikit-learn's SGDRegressor)."""

    def __init__(self, seed, features):
        self.rng = np.random.default_rng(seed)
        self.weights = np.zeros(features)

    def epoch(self, X, y, rate):
        order = self.rng.permutation(len(y))
        for start in range(0, len(y), 4):
            batch = order[start : start + 4]
            error = X[batch] @ self.weights - y[batch]
            self.weights = self.weights - rate * X[batch].T @ error / len(batch)
        return ((X @ self.weights - y) ** 2).mean()


def _rng(r: Generator) -> Generator:
    return np.random.default_rng(int(r.integers(1 << 30)))


CASES = [
    Case(pi_by_darts, lambda r, n: (_rng(r), 10 * n)),
    Case(bootstrap_interval, lambda r, n: (r.normal(size=n), _rng(r), 50)),
    Case(permutation_test, lambda r, n: (r.normal(size=n), r.normal(size=n) + 0.5, _rng(r))),
    Case(metropolis, lambda r, n: (r.normal(size=n), _rng(r), 10)),
    Case(gibbs, lambda r, n: (_rng(r), 0.6, 10)),
    Case(tail_probability, lambda r, n: (_rng(r), 10 * n, 2.5)),
    Case(latin_hypercube, lambda r, n: (_rng(r), n, 3)),
    Case(particle_filter, lambda r, n: (r.normal(size=6), _rng(r))),
    Case(exponential_by_inverse, lambda r, n: (_rng(r), 10 * n, 2.0)),
    Case(
        Minibatches.epoch, lambda r, n: (r.normal(size=(n, 3)), r.normal(size=n), 0.1),
        instance=lambda r, n: Minibatches(int(r.integers(1000)), 3),
    ),
]  # fmt: skip
