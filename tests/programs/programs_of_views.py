"""Programs that change arrays through views, and read one array by several views."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tests.programs.case import Case


# A diagonal that follows its matrix (NumPy's documentation of np.diagonal).
def diagonal_after_scaling(a):
    y = a.copy()
    d = np.diagonal(y)
    y *= 2
    return d


# Rougier's "100 NumPy exercises": blocks of a matrix through reshape.
def block_sums(z):
    n = z.shape[0] // 2 * 2
    z = z[:n, :n].copy()
    blocks = z.reshape(n // 2, 2, n // 2, 2)
    blocks[:, 0, :, 0] = 0
    return z, blocks.sum(axis=(1, 3))


# A red-black Gauss-Seidel sweep by strided views (Barrett and others, "Templates").
def red_black(u, f, h):
    for start in (0, 1):
        u[1 + start : -1 : 2] = 0.5 * (
            u[start:-2:2][: u[1 + start : -1 : 2].size] + u[2 + start :: 2] - h * h * f[1 + start : -1 : 2]
        )
    return u


# Butterfly of a radix-2 FFT step on even and odd views (Numerical Recipes, four1).
def butterfly(x):
    n = x.size // 2
    even, odd = x[: 2 * n : 2], x[1 : 2 * n : 2]
    twiddle = np.exp(-2j * np.pi * np.arange(n) / (2 * n))
    t = twiddle * odd
    out = np.empty(2 * n, dtype=complex)
    out[:n] = even + t
    out[n:] = even - t
    return out


# In-place transposition assignment (NumPy user guide, "Copies and views").
def symmetrise(a):
    lower = a.T
    upper = a
    s = (upper + lower) / 2
    a[...] = s
    return lower


# Reverse part of an array in place (Knuth's "Dancing" exercises; LeetCode's rotate array).
def rotate_in_place(a, k):
    k = k % a.shape[0]
    a[:] = a[::-1].copy()
    a[:k] = a[:k][::-1].copy()
    a[k:] = a[k:][::-1].copy()
    return a


# Borders through four views (OpenCV's copyMakeBorder, written by hand).
def zero_border(img):
    for edge in (img[0], img[-1], img[:, 0], img[:, -1]):
        edge[...] = 0
    return img.sum()


# A flattened view that is normalised (scikit-image's rescale).
def normalise_flat(img):
    out = img.astype(float)
    flat = out.ravel()
    flat -= flat.min()
    flat /= flat.max()
    return out


# Moving average by sliding windows (NumPy's documentation of sliding_window_view).
def moving_stats(x):
    w = sliding_window_view(x, 4)
    return w.mean(axis=-1), w.max(axis=-1), np.median(w, axis=-1)


# Swapping rows by assignment of a tuple (Gaussian elimination with pivoting, Trefethen and Bau).
def swap_rows(a, i, j):
    a[[i, j]] = a[[j, i]]
    return a[i], a[j]


# A view is kept before an update, and read after it (MATLAB users' guide in NumPy's documentation).
def view_before_update(x):
    first = x[:3]
    before = first.copy()
    x += 10
    return before, first, x


# Trace of a stack of matrices through a view with einsum (NumPy's documentation of einsum).
def scale_diagonal(a, s):
    np.einsum("ii->i", a)[...] *= s
    return a


# Real and imaginary parts as views (SciPy cookbook's demodulation).
def rotate_phase(z, k):
    z = z.copy()
    z.real += k
    z.imag[::2] = 0
    return np.abs(z)


# Interleaving two channels (audio tutorials).
def interleave(left, right):
    out = np.empty(left.size + right.size, dtype=left.dtype)
    out[0::2] = left
    out[1::2] = right
    return out


# Haar wavelet transform in place, level by level (Strang).
def haar(x):
    n = 8
    y = x[:8].copy()
    while n > 1:
        half = n // 2
        s = (y[0:n:2] + y[1:n:2]) / np.sqrt(2)
        d = (y[0:n:2] - y[1:n:2]) / np.sqrt(2)
        y[:half], y[half:n] = s, d
        n = half
    return y


CASES = [
    Case(diagonal_after_scaling, lambda r, n: (r.normal(size=(n, n)),)),
    Case(block_sums, lambda r, n: (r.normal(size=(n, n)),)),
    Case(red_black, lambda r, n: (r.normal(size=n), r.normal(size=n), 0.1), sizes=(9, 15)),
    Case(butterfly, lambda r, n: (r.normal(size=n) + 1j * r.normal(size=n),)),
    Case(symmetrise, lambda r, n: (r.normal(size=(n, n)),)),
    Case(rotate_in_place, lambda r, n: (r.normal(size=n), int(r.integers(1, 9)))),
    Case(zero_border, lambda r, n: (r.normal(size=(n, n + 2)),)),
    Case(normalise_flat, lambda r, n: (r.integers(0, 255, size=(n, n)).astype(np.uint8),)),
    Case(moving_stats, lambda r, n: (r.normal(size=n),)),
    Case(swap_rows, lambda r, n: (r.normal(size=(n, 3)), 1, int(r.integers(2, 6)))),
    Case(view_before_update, lambda r, n: (r.normal(size=n),)),
    Case(scale_diagonal, lambda r, n: (r.normal(size=(n, n)), 3.0)),
    Case(rotate_phase, lambda r, n: (r.normal(size=n) + 1j * r.normal(size=n), 0.5)),
    Case(interleave, lambda r, n: (r.normal(size=n).astype(np.float32), r.normal(size=n).astype(np.float32))),
    Case(haar, lambda r, n: (r.normal(size=n),)),
]
