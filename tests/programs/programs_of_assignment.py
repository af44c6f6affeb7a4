"""Programs built on assignment to slices, masks and positions."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# NPBench: jacobi_1d.
def jacobi_1d(tsteps, A, B):
    for _t in range(1, tsteps):
        B[1:-1] = 0.33333 * (A[:-2] + A[1:-1] + A[2:])
        A[1:-1] = 0.33333 * (B[:-2] + B[1:-1] + B[2:])


# NPBench: fdtd_2d.
def fdtd_2d(tmax, ex, ey, hz, fict):
    for t in range(tmax):
        ey[0, :] = fict[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


# NPBench: hdiff, as in weather codes, with masks.
def limited_diffusion(u, coeff):
    lap = 4.0 * u[1:-1, 1:-1] - (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
    flx = lap[1:, :] - lap[:-1, :]
    flx[flx * (u[2:-1, 1:-1] - u[1:-2, 1:-1]) > 0] = 0
    out = u.copy()
    out[2:-2, 1:-1] -= coeff * (flx[1:] - flx[:-1])
    return out


# NPBench: softmax / relu of its deep learning part, in place.
def relu_in_place(x):
    x[x < 0] = 0
    return x


# Numerical Recipes: tridag, the Thomas algorithm.
def tridiagonal(a, b, c, d):
    n = len(d)
    cp, dp = np.zeros(n), np.zeros(n)
    cp[0], dp[0] = c[0] / b[0], d[0] / b[0]
    for i in range(1, n):
        m = b[i] - a[i] * cp[i - 1]
        cp[i] = c[i] / m
        dp[i] = (d[i] - a[i] * dp[i - 1]) / m
    x = np.zeros(n)
    x[-1] = dp[-1]
    for i in range(n - 2, -1, -1):
        x[i] = dp[i] - cp[i] * x[i + 1]
    return x


# scikit-learn's OneHotEncoder, as in every tutorial.
def one_hot(labels, n_classes):
    out = np.zeros((labels.size, n_classes))
    out[np.arange(labels.size), labels] = 1
    return out


# Cross-entropy gradient of CS231n.
def softmax_gradient(scores, y):
    n = scores.shape[0]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(n), y]).mean()
    p[np.arange(n), y] -= 1
    return loss, p / n


# Rougier's "From Python to NumPy": the game of life.
def life(Z):
    N = (
        Z[0:-2, 0:-2]
        + Z[0:-2, 1:-1]
        + Z[0:-2, 2:]
        + Z[1:-1, 0:-2]
        + Z[1:-1, 2:]
        + Z[2:, 0:-2]
        + Z[2:, 1:-1]
        + Z[2:, 2:]
    )
    birth = (N == 3) & (Z[1:-1, 1:-1] == 0)
    survive = ((N == 2) | (N == 3)) & (Z[1:-1, 1:-1] == 1)
    Z[...] = 0
    Z[1:-1, 1:-1][birth | survive] = 1
    return Z


# Rougier's "From Python to NumPy": Gray-Scott.
def gray_scott(U, V, Du, Dv, F, k):
    u, v = U[1:-1, 1:-1], V[1:-1, 1:-1]
    Lu = U[0:-2, 1:-1] + U[1:-1, 0:-2] - 4 * U[1:-1, 1:-1] + U[1:-1, 2:] + U[2:, 1:-1]
    Lv = V[0:-2, 1:-1] + V[1:-1, 0:-2] - 4 * V[1:-1, 1:-1] + V[1:-1, 2:] + V[2:, 1:-1]
    uvv = u * v * v
    u += Du * Lu - uvv + F * (1 - u)
    v += Dv * Lv + uvv - (F + k) * v


# pandas' fillna by hand.
def fill_missing(x):
    y = x.copy()
    mask = np.isnan(y)
    y[mask] = np.nanmean(y)
    return y, mask.sum()


# Winsorising (SciPy's mstats.winsorize).
def winsorise(x, low, high):
    y = x.copy()
    lo, hi = np.percentile(y, [low, high])
    y[y < lo] = lo
    y[y > hi] = hi
    return y


# Histogram of votes by np.add.at (NumPy's documentation of ufunc.at).
def vote(ids, w, n):
    counts = np.zeros(n)
    np.add.at(counts, ids, w)
    return counts


# Upper triangle mirrored (SciPy's squareform, by hand).
def mirror_upper(a):
    i, j = np.triu_indices(4, 1)
    b = a[:4, :4].copy()
    b[j, i] = b[i, j]
    return b


# Cumulative sum by a Python loop (Python tutorials before cumsum).
def prefix_sums(x):
    out = np.empty_like(x)
    total = 0
    for i in range(len(x)):
        total += x[i]
        out[i] = total
    return out


# Pascal's triangle, or binomial lattice, by shifted assignment.
def binomial_row(n, x):
    row = np.zeros(n + 1)
    row[0] = 1
    for _ in range(n):
        row[1:] += row[:-1].copy()
    return row[: x.shape[0]] * x


# Pixel masks (scikit-image's user guide: drawing a disk).
def draw_disk(img, radius, value):
    rows, cols = np.ogrid[: img.shape[0], : img.shape[1]]
    mask = (rows - img.shape[0] / 2) ** 2 + (cols - img.shape[1] / 2) ** 2 < radius**2
    img[mask] = value
    return img


# Sobel by accumulating into zeros (a first lesson in image processing).
def sobel_x(img):
    out = np.zeros_like(img)
    out[1:-1, 1:-1] += img[:-2, 2:] - img[:-2, :-2]
    out[1:-1, 1:-1] += 2 * (img[1:-1, 2:] - img[1:-1, :-2])
    out[1:-1, 1:-1] += img[2:, 2:] - img[2:, :-2]
    return out


CASES = [
    Case(jacobi_1d, lambda r, n: (4, r.normal(size=n), r.normal(size=n))),
    Case(
        fdtd_2d, lambda r, n: (3, r.normal(size=(n, n)), r.normal(size=(n, n)), r.normal(size=(n, n)), r.normal(size=5))
    ),
    Case(limited_diffusion, lambda r, n: (r.normal(size=(n, n)), 0.025)),
    Case(relu_in_place, lambda r, n: (r.normal(size=(n, n)),)),
    Case(tridiagonal, lambda r, n: (r.random(n), 4 + r.random(n), r.random(n), r.normal(size=n))),
    Case(one_hot, lambda r, n: (r.integers(0, 4, size=n), 4)),
    Case(softmax_gradient, lambda r, n: (r.normal(size=(n, 5)), r.integers(0, 5, size=n))),
    Case(life, lambda r, n: (r.integers(0, 2, size=(n, n)),)),
    Case(gray_scott, lambda r, n: (r.random((n, n)), r.random((n, n)), 0.16, 0.08, 0.035, 0.065)),
    Case(fill_missing, lambda r, n: (np.where(r.random(n) < 0.3, np.nan, r.normal(size=n)),)),
    Case(winsorise, lambda r, n: (r.normal(size=n), 10, 90)),
    Case(vote, lambda r, n: (r.integers(0, 6, size=n), r.random(n), 6)),
    Case(mirror_upper, lambda r, n: (r.normal(size=(n, n)),)),
    Case(prefix_sums, lambda r, n: (r.normal(size=n),)),
    Case(binomial_row, lambda r, n: (n, r.normal(size=n))),
    Case(draw_disk, lambda r, n: (r.integers(0, 255, size=(n, n)).astype(np.uint8), 3, 255)),
    Case(sobel_x, lambda r, n: (r.normal(size=(n, n)),)),
]
