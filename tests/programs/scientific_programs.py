"""Whole programs of scientific computing."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# NPBench: cavity flow (Barba's "12 steps to Navier-Stokes", step 11).
def cavity_flow(u, v, p, dt, dx, dy, rho, nu, nt, nit):
    b = np.zeros_like(p)
    for _n in range(nt):
        un, vn = u.copy(), v.copy()
        b[1:-1, 1:-1] = rho * (
            1 / dt * ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx) + (v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy))
            - ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx)) ** 2
            - ((v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy)) ** 2
        )
        for _q in range(nit):
            pn = p.copy()
            p[1:-1, 1:-1] = ((pn[1:-1, 2:] + pn[1:-1, 0:-2]) * dy**2 + (pn[2:, 1:-1] + pn[0:-2, 1:-1]) * dx**2) / (
                2 * (dx**2 + dy**2)
            ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, 1:-1]
            p[:, -1] = p[:, -2]
            p[0, :] = p[1, :]
            p[:, 0] = p[:, 1]
            p[-1, :] = 0
        u[1:-1, 1:-1] = (
            un[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, 0:-2])
            - dt / (2 * rho * dx) * (p[1:-1, 2:] - p[1:-1, 0:-2])
            + nu * dt / dx**2 * (un[1:-1, 2:] - 2 * un[1:-1, 1:-1] + un[1:-1, 0:-2])
        )
        v[1:-1, 1:-1] = vn[1:-1, 1:-1] - dt / (2 * rho * dy) * (p[2:, 1:-1] - p[0:-2, 1:-1])
        u[0, :] = u[:, 0] = u[:, -1] = 0
        u[-1, :] = 1
        v[0, :] = v[-1, :] = v[:, 0] = v[:, -1] = 0
    return u, v, p


# NPBench: nbody (Mocz).
def acceleration(pos, mass, G, softening):
    x, y, z = pos[:, 0:1], pos[:, 1:2], pos[:, 2:3]
    dx, dy, dz = x.T - x, y.T - y, z.T - z
    inv_r3 = dx**2 + dy**2 + dz**2 + softening**2
    inv_r3[inv_r3 > 0] = inv_r3[inv_r3 > 0] ** (-1.5)
    ax, ay, az = G * (dx * inv_r3) @ mass, G * (dy * inv_r3) @ mass, G * (dz * inv_r3) @ mass
    return np.hstack((ax, ay, az))


# NPBench: mandelbrot1.
def mandelbrot(xmin, xmax, ymin, ymax, n, maxiter):
    X = np.linspace(xmin, xmax, n)
    Y = np.linspace(ymin, ymax, n)
    C = X + Y[:, None] * 1j
    N = np.zeros(C.shape, dtype=np.int64)
    Z = np.zeros(C.shape, dtype=np.complex128)
    for k in range(maxiter):
        mask = np.less(abs(Z), 2.0)
        N[mask] = k
        Z[mask] = Z[mask] ** 2 + C[mask]
    N[maxiter - 1 == N] = 0
    return Z, N


# Numerical Recipes: rk4 on the Lorenz system.
def lorenz_rk4(state, sigma, rho, beta, dt, steps):
    def rhs(s):
        x, y, z = s
        return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])

    for _ in range(steps):
        k1 = rhs(state)
        k2 = rhs(state + dt / 2 * k1)
        k3 = rhs(state + dt / 2 * k2)
        k4 = rhs(state + dt * k3)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


# Golub and Van Loan: conjugate gradients with a stopping test.
def conjugate_gradients(A, b):
    A = A @ A.T + 5 * np.eye(len(b))
    x = np.zeros_like(b)
    r = b - A @ x
    p = r.copy()
    rs = r @ r
    for _ in range(len(b)):
        Ap = A @ p
        alpha = rs / (p @ Ap)
        x += alpha * p
        r -= alpha * Ap
        new = r @ r
        if np.sqrt(new) < 1e-8:
            break
        p = r + new / rs * p
        rs = new
    return x


# Trefethen and Bau: modified Gram-Schmidt.
def gram_schmidt(A):
    m, n = A.shape
    Q, R = A.copy(), np.zeros((n, n))
    for i in range(n):
        R[i, i] = np.linalg.norm(Q[:, i])
        Q[:, i] /= R[i, i]
        for j in range(i + 1, n):
            R[i, j] = Q[:, i] @ Q[:, j]
            Q[:, j] -= R[i, j] * Q[:, i]
    return Q, R


# NPBench: lu without pivoting.
def lu(A):
    A = A + A.shape[0] * np.eye(A.shape[0])
    for i in range(A.shape[0]):
        for j in range(i):
            A[i, j] -= A[i, :j] @ A[:j, j]
            A[i, j] /= A[j, j]
        for j in range(i, A.shape[0]):
            A[i, j] -= A[i, :i] @ A[:i, j]
    return A


# Power iteration (Golub and Van Loan).
def power_iteration(A, iterations):
    v = np.ones(A.shape[0])
    for _ in range(iterations):
        v = A @ v
        v /= np.linalg.norm(v)
    return v @ A @ v, v


# Spectral derivative (Trefethen's "Spectral Methods in MATLAB", program 5).
def spectral_derivative(u):
    n = u.size
    k = np.fft.fftfreq(n, 1 / n)
    return np.real(np.fft.ifft(1j * k * np.fft.fft(u)))


# Simpson's rule on samples (SciPy's simpson, by hand).
def simpson(f, a, b, n):
    x = np.linspace(a, b, 2 * n + 1)
    y = np.sin(f * x)
    return (b - a) / (6 * n) * (y[0] + 4 * y[1::2].sum() + 2 * y[2:-1:2].sum() + y[-1])


# NPBench: compute (a stencil-free elementwise function with clip).
def clipped_combination(a1, a2, a, b, c):
    return np.clip(a1, 2, 10) * a + a2 * b + c


# Crank-Nicolson for the heat equation with a solve.
def crank_nicolson(u, r, steps):
    n = len(u)
    A = (1 + r) * np.eye(n) - r / 2 * (np.eye(n, k=1) + np.eye(n, k=-1))
    B = (1 - r) * np.eye(n) + r / 2 * (np.eye(n, k=1) + np.eye(n, k=-1))
    for _ in range(steps):
        u = np.linalg.solve(A, B @ u)
    return u


CASES = [
    Case(
        cavity_flow,
        lambda r, n: (np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n)), 0.001, 0.1, 0.1, 1.0, 0.1, 2, 3),
    ),
    Case(acceleration, lambda r, n: (r.normal(size=(n, 3)), r.random((n, 1)), 1.0, 0.1)),
    Case(mandelbrot, lambda r, n: (-1.75, 0.25, -1.0, 1.0, n, 8)),
    Case(lorenz_rk4, lambda r, n: (r.normal(size=3), 10.0, 28.0, 8 / 3, 0.01, 5)),
    Case(conjugate_gradients, lambda r, n: (r.normal(size=(n, n)), r.normal(size=n))),
    Case(gram_schmidt, lambda r, n: (r.normal(size=(n, 5)),)),
    Case(lu, lambda r, n: (r.normal(size=(n, n)),), sizes=(5, 7)),
    Case(power_iteration, lambda r, n: (r.random((n, n)), 10)),
    Case(spectral_derivative, lambda r, n: (np.sin(np.arange(n) * 2 * np.pi / n),)),
    Case(simpson, lambda r, n: (float(r.random()), 0.0, 2.0, n)),
    Case(clipped_combination, lambda r, n: (r.integers(0, 20, (n, n)), r.integers(0, 20, (n, n)), 4, 3, 9)),
    Case(crank_nicolson, lambda r, n: (r.normal(size=n), 0.3, 3)),
]
