"""Programs that write parts of arrays: stencils, borders, paths through views, tables and kernels of linear algebra."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# LeVeque's upwind scheme with a limiter, ghost cells in place.
def limited_upwind(u, speed):
    u[0], u[-1] = u[-2], u[1]
    slopes = np.zeros_like(u)
    left, right = u[1:-1] - u[:-2], u[2:] - u[1:-1]
    agree = left * right > 0
    slopes[1:-1][agree] = (2 * left * right)[agree] / (left + right)[agree]
    u[1:-1] -= speed * (u[1:-1] - u[:-2] + 0.1 * (slopes[1:-1] - slopes[:-2]))
    return u.sum()


# The lattice Boltzmann streaming step of Palabos' tutorials.
def stream(f, cx):
    for k in range(3):
        f[k] = np.roll(f[k], cx[k], axis=0)
    f[1, 0], f[2, -1] = f[2, 0], f[1, -1]
    wall = f[:, 0].copy()
    f[:, 0] = wall[[0, 2, 1]]
    return f.mean()


# Gauss-Jordan with a pivot row that is swapped in.
def eliminate_column(a, k):
    p = k + int(np.argmax(np.abs(a[k:, k])))
    a[[k, p]] = a[[p, k]]
    a[k] /= a[k, k]
    rest = np.arange(len(a)) != k
    a[rest] -= a[rest, k : k + 1] * a[k]
    return a[k]


# A Givens rotation of two rows and columns.
def rotate_rows(a, c, s):
    top = c * a[0] - s * a[1]
    a[1] = s * a[0] + c * a[1]
    a[0] = top
    left = c * a[:, 0] - s * a[:, 1]
    a[:, 1] = s * a[:, 0] + c * a[:, 1]
    a[:, 0] = left
    return np.trace(a)


# A Householder reflection of a trailing block.
def reflect(a, k):
    v = a[k:, k].copy()
    v[0] += np.copysign(np.sqrt((v * v).sum()), v[0])
    v /= np.sqrt((v * v).sum())
    a[k:, k:] -= 2.0 * np.outer(v, v @ a[k:, k:])
    return a


# Blending an image into another (PIL's paste).
def paste(image, patch, y, x):
    h, w = patch.shape[:2]
    window = image[y : y + h, x : x + w]
    window[...] = 0.5 * window + 0.5 * patch
    window[0] = window[-1] = 1.0
    window[:, 0] = 0.0
    image[::2, ::-1][0] *= 2
    return window.mean()


# Floyd and Warshall's update of all pairs.
def relax_through(d, k):
    np.minimum(d, d[:, k : k + 1] + d[k], out=d)
    np.fill_diagonal(d, 0.0)
    return d.max()


# Conway's life by neighbours that are added into a padded board.
def life_padded(board):
    padded = np.zeros((board.shape[0] + 2, board.shape[1] + 2), dtype=board.dtype)
    padded[1:-1, 1:-1] = board
    padded[0], padded[-1] = padded[-2], padded[1]
    padded[:, 0], padded[:, -1] = padded[:, -2], padded[:, 1]
    n = sum(padded[1 + y : padded.shape[0] - 1 + y, 1 + x : padded.shape[1] - 1 + x]
            for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x)  # fmt: skip
    born, lives = (board == 0) & (n == 3), (board == 1) & ((n == 2) | (n == 3))
    board[...] = 0
    board[born | lives] = 1
    return int(board.sum())


# One-hot tables and label smoothing, written into a buffer.
def smooth_labels(buffer, labels, rate):
    buffer.fill(rate / buffer.shape[1])
    buffer[np.arange(len(labels)), labels] += 1 - rate
    buffer[labels == 0, 0] = 1.0
    buffer /= buffer.sum(axis=1, keepdims=True)


# The antidiagonal and flat positions of matrices, as in puzzles.
def mark(a, v):
    n = len(a)
    a.flat[:: n + 1] = v
    np.fliplr(a)[np.arange(n), np.arange(n)] += v
    a.ravel()[n : 2 * n] -= 1
    a.T[0] = a[:, -1]
    np.put(a, [0, n * n - 1], [9.0, 8.0])
    return a.trace(), a[:, ::-1].trace()


# Taking turns on a red-black grid.
def red_black_halves(u, w):
    for parity in (0, 1):
        for row in (1, 2):
            first = 1 + (row + parity) % 2
            u[row:-1:2, first:-1:2] += w * (
                0.25
                * (
                    u[row - 1 : -2 : 2, first:-1:2]
                    + u[row + 1 :: 2, first:-1:2]
                    + u[row:-1:2, first - 1 : -2 : 2]
                    + u[row:-1:2, first + 1 :: 2]
                )
                - u[row:-1:2, first:-1:2]
            )
    return u


# In-place sorting network of columns.
def compare_exchange(x):
    for gap in (1, 2):
        low, high = np.minimum(x[:-gap], x[gap:]), np.maximum(x[:-gap], x[gap:])
        x[:-gap:2], x[gap::2] = low[::2], high[::2]
    return x[0] * 1


# Masked updates with several conditions, as in cleaning of sensor data.
def clean(x, low, high):
    bad = ~np.isfinite(x) | (x < low) | (x > high)
    x[bad] = np.nan
    good = x[~bad]
    x[bad] = good.mean() if good.size else 0.0
    x[1:-1][bad[1:-1]] = (0.5 * (x[2:] + x[:-2]))[bad[1:-1]]
    return int(bad.sum())


# Scatter of charges to a grid with weights (particle in cell).
def deposit(grid, x, q):
    cell = np.floor(x).astype(int) % len(grid)
    w = x - np.floor(x)
    np.add.at(grid, cell, q * (1 - w))
    np.add.at(grid, (cell + 1) % len(grid), q * w)
    grid -= grid.mean()
    return grid


# Structures of arrays with views that are kept by name.
def integrate(state, dt):
    position, velocity = state[:2], state[2:]
    velocity -= dt * position
    position += dt * velocity
    position[0, velocity[0] > 0] *= 0.99
    state[:, 0] = 0
    return position.sum(), velocity[-1, ::-1].copy()


CASES = [
    Case(limited_upwind, lambda r, n: (r.normal(size=3 * n), 0.3)),
    Case(stream, lambda r, n: (r.random((3, n, 4)), (0, 1, -1))),
    Case(eliminate_column, lambda r, n: (r.normal(size=(5, n)), int(r.integers(4)))),
    Case(rotate_rows, lambda r, n: (r.normal(size=(n, n)), 0.8, 0.6)),
    Case(reflect, lambda r, n: (r.normal(size=(n, n)), 2)),
    Case(paste, lambda r, n: (r.random((3 * n, 3 * n)), r.random((n, n)), int(r.integers(3)), int(r.integers(3)))),
    Case(relax_through, lambda r, n: (r.random((n, n)), int(r.integers(n)))),
    Case(life_padded, lambda r, n: (r.integers(0, 2, (n, n)),)),
    Case(smooth_labels, lambda r, n: (np.empty((n, 4)), r.integers(0, 4, n), 0.1)),
    Case(mark, lambda r, n: (r.random((n, n)), 2.0)),
    Case(red_black_halves, lambda r, n: (r.random((2 * n, 2 * n)), 1.2)),
    Case(compare_exchange, lambda r, n: (r.normal(size=(2 * n, 3)),)),
    Case(clean, lambda r, n: (np.where(r.random(n) < 0.2, np.nan, r.normal(size=n)), -1.0, 1.0)),
    Case(deposit, lambda r, n: (np.zeros(n), r.random(3 * n) * n, r.random(3 * n))),
    Case(integrate, lambda r, n: (r.normal(size=(4, n)), 0.1)),
]
