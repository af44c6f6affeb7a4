"""Programs that create arrays of the sizes of their arguments."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# Attention with a causal mask (Karpathy's nanoGPT, in NumPy).
def causal_attention(q, k, v):
    n = q.shape[0]
    scores = q @ k.T / np.sqrt(q.shape[-1])
    mask = np.tril(np.ones((n, n)))
    scores = np.where(mask == 0, -np.inf, scores)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


# Positional encoding ("Attention is all you need", many notebooks).
def positional_encoding(x):
    n, d = x.shape
    pos = np.arange(n)[:, np.newaxis]
    i = np.arange(d)[np.newaxis, :]
    angles = pos / np.power(10000, (2 * (i // 2)) / np.float32(d))
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return x + angles


# MATLAB users' meshgrid surface (NumPy's documentation).
def ripple(x, y):
    X, Y = np.meshgrid(x, y)
    R = np.sqrt(X**2 + Y**2) + 1e-9
    return np.sin(R) / R


# Gaussian kernel (OpenCV's getGaussianKernel, by hand).
def gaussian_kernel(sigma, size):
    ax = np.linspace(-(size - 1) / 2.0, (size - 1) / 2.0, size)
    gauss = np.exp(-0.5 * np.square(ax) / np.square(sigma))
    kernel = np.outer(gauss, gauss)
    return kernel / np.sum(kernel)


# Vandermonde least squares design (Numerical Recipes, lfit).
def design_matrix(x, degree):
    return np.array([x**k for k in range(degree + 1)]).T


# Rotation matrices from Euler angles (robotics textbooks).
def euler_rotation(angles):
    a, b, c = angles
    rx = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    ry = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    rz = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    return rz @ ry @ rx


# Second difference matrix by eye (Trefethen's "Spectral Methods").
def laplacian_matrix(x):
    n = len(x)
    L = -2 * np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)
    return L @ x


# Chebyshev points and differentiation matrix (Trefethen's cheb.m).
def cheb(u):
    N = u.shape[0] - 1
    x = np.cos(np.pi * np.arange(N + 1) / N)
    c = np.hstack([2, np.ones(N - 1), 2]) * (-1) ** np.arange(N + 1)
    X = np.tile(x, (N + 1, 1)).T
    dX = X - X.T
    D = np.outer(c, 1 / c) / (dX + np.eye(N + 1))
    D = D - np.diag(D.sum(axis=1))
    return D @ u


# Hamming window and frame matrix of a spectrogram (Lyons; librosa's util.frame).
def frames(x, width, hop):
    count = 1 + (len(x) - width) // hop
    idx = np.arange(width)[None, :] + hop * np.arange(count)[:, None]
    window = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(width) / (width - 1))
    return x[idx] * window


# Identity plus noise for a regularised covariance (Ledoit-Wolf, a first try).
def shrink(X, rho):
    S = np.cov(X, rowvar=False)
    mu = np.trace(S) / S.shape[0]
    return (1 - rho) * S + rho * mu * np.identity(S.shape[0])


# Coordinates by indices (SciPy's ndimage.center_of_mass, by hand).
def centre_of_mass(img):
    ys, xs = np.indices(img.shape)
    total = img.sum()
    return np.array([(ys * img).sum() / total, (xs * img).sum() / total])


# A checkerboard by fromfunction (NumPy's documentation).
def checkerboard(img):
    board = np.fromfunction(lambda i, j: (i + j) % 2, img.shape)
    return img * board


# Twiddle table (a naive DFT as in every textbook).
def naive_dft(x):
    N = x.shape[0]
    n = np.arange(N)
    M = np.exp(-2j * np.pi * n.reshape((N, 1)) * n / N)
    return M @ x


# Lags of a time series as columns (statsmodels' lagmat).
def lag_matrix(x, lags):
    n = len(x)
    out = np.zeros((n - lags, lags + 1))
    for i in range(lags + 1):
        out[:, i] = x[lags - i : n - i]
    return out


CASES = [
    Case(causal_attention, lambda r, n: tuple(r.normal(size=(n, 4)) for _ in range(3))),
    Case(positional_encoding, lambda r, n: (r.normal(size=(n, 6)),)),
    Case(ripple, lambda r, n: (np.linspace(-3, 3, n), np.linspace(-2, 2, n + 1))),
    Case(gaussian_kernel, lambda r, n: (1.5, n)),
    Case(design_matrix, lambda r, n: (r.normal(size=n), 3)),
    Case(euler_rotation, lambda r, n: (r.normal(size=3),)),
    Case(laplacian_matrix, lambda r, n: (r.normal(size=n),)),
    Case(cheb, lambda r, n: (r.normal(size=n),)),
    Case(frames, lambda r, n: (r.normal(size=4 * n), 8, 4)),
    Case(shrink, lambda r, n: (r.normal(size=(n, 3)), 0.1)),
    Case(centre_of_mass, lambda r, n: (r.random((n, n + 1)),)),
    Case(checkerboard, lambda r, n: (r.random((n, n)),)),
    Case(naive_dft, lambda r, n: (r.normal(size=n),)),
    Case(lag_matrix, lambda r, n: (r.normal(size=n), 3)),
]
