"""Whole programs of statistics."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# SciPy's pearsonr, by hand.
def pearson(x, y):
    xm, ym = x - x.mean(), y - y.mean()
    return (xm * ym).sum() / np.sqrt((xm**2).sum() * (ym**2).sum())


# SciPy's spearmanr by ranks.
def spearman(x, y):
    rx, ry = np.argsort(np.argsort(x)), np.argsort(np.argsort(y))
    d = rx - ry
    n = len(x)
    return 1 - 6 * np.sum(d**2) / (n * (n**2 - 1))


# Ordinary least squares by the normal equations (Hastie, Tibshirani, Friedman).
def least_squares(X, y):
    Xb = np.column_stack([np.ones(len(X)), X])
    beta = np.linalg.solve(Xb.T @ Xb, Xb.T @ y)
    residuals = y - Xb @ beta
    return beta, 1 - (residuals**2).sum() / ((y - y.mean()) ** 2).sum()


# Gaussian kernel density estimate (Silverman; SciPy's gaussian_kde).
def density(points, samples):
    n = samples.size
    h = 1.06 * samples.std(ddof=1) * n ** (-1 / 5)
    z = (points[:, None] - samples[None, :]) / h
    return np.exp(-0.5 * z**2).sum(axis=1) / (n * h * np.sqrt(2 * np.pi))


# Welch's t statistic (SciPy's ttest_ind).
def welch(a, b):
    va, vb = a.var(ddof=1) / a.size, b.var(ddof=1) / b.size
    t = (a.mean() - b.mean()) / np.sqrt(va + vb)
    df = (va + vb) ** 2 / (va**2 / (a.size - 1) + vb**2 / (b.size - 1))
    return t, df


# Chi-squared of a contingency table (SciPy's chi2_contingency).
def chi_squared(table):
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    return ((table - expected) ** 2 / expected).sum()


# Expectation maximisation for two Gaussians (Bishop).
def gaussian_mixture(x, steps):
    mu, sigma, weight = np.array([-1.0, 1.0]), np.array([1.0, 1.0]), np.array([0.5, 0.5])
    for _ in range(steps):
        p = weight * np.exp(-0.5 * ((x[:, None] - mu) / sigma) ** 2) / sigma
        p /= p.sum(axis=1, keepdims=True)
        nk = p.sum(axis=0)
        mu = (p * x[:, None]).sum(axis=0) / nk
        sigma = np.sqrt((p * (x[:, None] - mu) ** 2).sum(axis=0) / nk)
        weight = nk / len(x)
    return mu, sigma, weight


# Skewness and kurtosis (SciPy's describe).
def moments(x):
    m = x.mean(axis=0)
    d = x - m
    s2 = np.mean(d**2, axis=0)
    return m, s2, np.mean(d**3, axis=0) / s2**1.5, np.mean(d**4, axis=0) / s2**2 - 3


# Bootstrap of a mean from given indices (Efron).
def bootstrap(x, indices):
    means = x[indices].mean(axis=1)
    return np.percentile(means, [2.5, 97.5]), means.std()


# Kolmogorov-Smirnov distance of two samples (SciPy's ks_2samp).
def ks_distance(a, b):
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    ca = np.searchsorted(a, both, side="right") / len(a)
    cb = np.searchsorted(b, both, side="right") / len(b)
    return np.abs(ca - cb).max()


# Autocorrelation (statsmodels' acf).
def autocorrelation(x, lags):
    x = x - x.mean()
    return np.array([(x[k:] * x[: len(x) - k]).sum() for k in range(lags)]) / (x * x).sum()


CASES = [
    Case(pearson, lambda r, n: (r.normal(size=n), r.normal(size=n))),
    Case(spearman, lambda r, n: (r.normal(size=n), r.normal(size=n))),
    Case(least_squares, lambda r, n: (r.normal(size=(n, 2)), r.normal(size=n))),
    Case(density, lambda r, n: (np.linspace(-2, 2, 5), r.normal(size=n))),
    Case(welch, lambda r, n: (r.normal(size=n), r.normal(size=n + 2))),
    Case(chi_squared, lambda r, n: (r.integers(5, 50, size=(n, 3)),)),
    Case(gaussian_mixture, lambda r, n: (r.normal(size=n), 3)),
    Case(moments, lambda r, n: (r.normal(size=(n, 3)),)),
    Case(bootstrap, lambda r, n: (r.normal(size=n), r.integers(0, n, size=(20, n)))),
    Case(ks_distance, lambda r, n: (r.normal(size=n), r.normal(size=n + 3))),
    Case(autocorrelation, lambda r, n: (r.normal(size=n), 4)),
]
