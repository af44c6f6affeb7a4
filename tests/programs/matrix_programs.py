"""Whole programs of linear algebra."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from tests.programs.case import Case, Generator


# Householder's QR (Golub and Van Loan; Trefethen and Bau).
def householder(A):
    m, n = A.shape
    R = A.copy()
    Q = np.eye(m)
    for k in range(n):
        x = R[k:, k]
        e = np.zeros_like(x)
        e[0] = np.copysign(np.linalg.norm(x), x[0])
        v = x + e
        v = v / np.linalg.norm(v)
        R[k:, k:] -= 2 * np.outer(v, v @ R[k:, k:])
        Q[:, k:] -= 2 * np.outer(Q[:, k:] @ v, v)
    return Q, R


# Cholesky by columns (Golub and Van Loan, algorithm 4.2.1).
def cholesky_by_columns(A):
    n = A.shape[0]
    L = np.zeros_like(A)
    for j in range(n):
        L[j, j] = np.sqrt(A[j, j] - (L[j, :j] ** 2).sum())
        L[j + 1 :, j] = (A[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
    return L


# Thomas's algorithm for tridiagonal equations (Conte and de Boor).
def thomas(a, b, c, d):
    n = len(d)
    c, d = c.copy(), d.copy()
    c[0] /= b[0]
    d[0] /= b[0]
    for i in range(1, n):
        m = 1 / (b[i] - a[i] * c[i - 1])
        c[i] *= m
        d[i] = (d[i] - a[i] * d[i - 1]) * m
    for i in range(n - 2, -1, -1):
        d[i] -= c[i] * d[i + 1]
    return d


# Ridge regression by singular values (scikit-learn's _solve_svd).
def ridge(X, y, alpha):
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    d = s / (s**2 + alpha)
    coefficients = Vt.T @ (d * (U.T @ y))
    return coefficients, y - X @ coefficients


# A low-rank approximation with its relative error (Eckart and Young; image compression examples).
def low_rank(A, k):
    U, s, Vt = np.linalg.svd(A)
    approximation = (U[:, :k] * s[:k]) @ Vt[:k]
    return approximation, np.linalg.norm(A - approximation) / np.linalg.norm(A), np.cumsum(s**2) / (s**2).sum()


# A Markov chain's stationary distribution by eigenvectors (QuantEcon's lectures).
def stationary(P):
    values, vectors = np.linalg.eig(P.T)
    index = np.argmin(np.abs(values - 1))
    distribution = np.real(vectors[:, index])
    return distribution / distribution.sum()


# PageRank by power iteration with damping (Page and Brin).
def pagerank(adjacency, damping, steps):
    n = adjacency.shape[0]
    out = adjacency.sum(axis=1)
    transition = np.where(out[:, None] > 0, adjacency / np.maximum(out, 1)[:, None], 1 / n)
    rank = np.full(n, 1 / n)
    for _ in range(steps):
        rank = damping * rank @ transition + (1 - damping) / n
    return rank


# A Kalman filter over measurements (Welch and Bishop; filterpy).
def kalman(z, F, H, Q, R):
    x, P = np.zeros(F.shape[0]), np.eye(F.shape[0])
    path = []
    for k in range(len(z)):
        x = F @ x
        P = F @ P @ F.T + Q
        S = H @ P @ H.T + R
        K = np.linalg.solve(S, H @ P).T
        x = x + K @ (z[k] - H @ x)
        P = (np.eye(len(x)) - K @ H) @ P
        path.append(x)
    return np.array(path), P


# The discrete-time linear quadratic regulator by Riccati's iteration (Boyd's lecture notes).
def regulator(A, B, Q, R, steps):
    P = Q
    for _ in range(steps):
        K = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        P = Q + A.T @ P @ (A - B @ K)
    return K, P, np.abs(np.linalg.eigvals(A - B @ K)).max() < 1


# Procrustes rotation with the sign of the determinant (Kabsch).
def kabsch(P, Q):
    P, Q = P - P.mean(axis=0), Q - Q.mean(axis=0)
    U, _, Vt = np.linalg.svd(P.T @ Q)
    d = np.sign(np.linalg.det(Vt.T @ U.T))
    rotation = Vt.T @ np.diag([1, 1, d]) @ U.T
    return rotation, np.sqrt(((P @ rotation.T - Q) ** 2).sum() / len(P))


# Gaussian process regression (Rasmussen and Williams, algorithm 2.1), with SciPy.
def gaussian_process(X, y, Z, noise):
    def kernel(a, b):
        return np.exp(-0.5 * ((a[:, None] - b[None, :]) ** 2).sum(-1))

    L = linalg.cholesky(kernel(X, X) + noise * np.eye(len(X)), lower=True)
    alpha = linalg.cho_solve((L, True), y)
    cross = kernel(X, Z)
    v = linalg.solve_triangular(L, cross, lower=True)
    mean, variance = cross.T @ alpha, 1 - (v**2).sum(axis=0)
    return mean, variance, -0.5 * y @ alpha - np.log(np.diag(L)).sum() - len(X) / 2 * np.log(2 * np.pi)


def _definite(r: Generator, n: int) -> np.ndarray:
    B = r.normal(size=(n, n))
    return B @ B.T + n * np.eye(n)


def _motion() -> np.ndarray:
    return np.array([[1, 0.1], [0, 1]])


def _chain(r: Generator, n: int) -> np.ndarray:
    P = r.random((n, n))
    return P / P.sum(axis=1, keepdims=True)


CASES = [
    Case(householder, lambda r, n: (r.normal(size=(n, 4)),), sizes=(5, 6)),
    Case(cholesky_by_columns, lambda r, n: (_definite(r, n),), sizes=(4, 5)),
    Case(thomas, lambda r, n: (r.random(n), 4 + r.random(n), r.random(n), r.normal(size=n))),
    Case(ridge, lambda r, n: (r.normal(size=(n, 4)), r.normal(size=n), 0.5)),
    Case(low_rank, lambda r, n: (r.normal(size=(n, 6)), 3)),
    Case(stationary, lambda r, n: (_chain(r, n),)),
    Case(pagerank, lambda r, n: ((r.random((n, n)) < 0.3).astype(float), 0.85, 20)),
    Case(kalman, lambda r, n: (r.normal(size=(n, 1)), _motion(), np.array([[1.0, 0]]), np.eye(2) * 0.01, np.eye(1))),
    Case(regulator, lambda r, n: (_motion(), np.array([[0.0], [0.1]]), np.eye(2), np.eye(1), n)),
    Case(kabsch, lambda r, n: (r.normal(size=(n, 3)), r.normal(size=(n, 3)))),
    Case(gaussian_process, lambda r, n: (r.normal(size=(n, 2)), r.normal(size=n), r.normal(size=(5, 2)), 0.1)),
]  # fmt: skip
