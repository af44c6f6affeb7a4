"""Whole programs of control and of estimates over time."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case, Generator


# The gain of a linear regulator by the Riccati recursion.
def lqr(A, B, Q, R, steps):
    P = Q.copy()
    for _ in range(steps):
        K = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        P = Q + A.T @ P @ (A - B @ K)
    return K, P


# An unscented Kalman filter (Julier and Uhlmann).
class UnscentedKalman:
    def __init__(self, n):
        self.x = np.zeros(n)
        self.P = np.eye(n)
        self.n = n
        self.kappa = 3.0 - n
        self.Q = 0.01 * np.eye(n)
        self.R = 0.1 * np.eye(n)

    def sigma(self):
        S = np.linalg.cholesky((self.n + 0.5) * self.P)
        return np.vstack([self.x, self.x + S.T, self.x - S.T])

    def step(self, z):
        w = np.full(2 * self.n + 1, 0.5 / (self.n + 0.5))
        w[0] = 0.5 / (self.n + 0.5)
        w = w / w.sum()
        X = self.sigma()
        Y = X + 0.05 * np.sin(X)
        mean = w @ Y
        dY = Y - mean
        P = (w[:, None] * dY).T @ dY + self.Q
        Z = np.tanh(Y)
        zm = w @ Z
        dZ = Z - zm
        S = (w[:, None] * dZ).T @ dZ + self.R
        C = (w[:, None] * dY).T @ dZ
        K = C @ np.linalg.inv(S)
        self.x = mean + K @ (z - zm)
        self.P = P - K @ S @ K.T
        return self.x


# A Kalman filter and the smoother of Rauch, Tung and Striebel.
def rts_smoother(z, F, H, Q, R):
    T, n = len(z), F.shape[0]
    xs, Ps = np.zeros((T, n)), np.zeros((T, n, n))
    xp, Pp = np.zeros((T, n)), np.zeros((T, n, n))
    x, P = np.zeros(n), np.eye(n)
    for t in range(T):
        x, P = F @ x, F @ P @ F.T + Q
        xp[t], Pp[t] = x, P
        S = H @ P @ H.T + R
        K = P @ H.T @ np.linalg.inv(S)
        x = x + K @ (z[t] - H @ x)
        P = (np.eye(n) - K @ H) @ P
        xs[t], Ps[t] = x, P
    for t in range(T - 2, -1, -1):
        C = Ps[t] @ F.T @ np.linalg.inv(Pp[t + 1])
        xs[t] += C @ (xs[t + 1] - xp[t + 1])
        Ps[t] += C @ (Ps[t + 1] - Pp[t + 1]) @ C.T
    return xs, Ps


# Systematic resampling of particles (Kitagawa).
def resample_particles(particles, weights, u):
    N = len(weights)
    w = weights / weights.sum()
    ess = 1.0 / np.sum(w**2)
    if ess < 0.9 * N:
        positions = (u + np.arange(N)) / N
        index = np.zeros(N, dtype=int)
        cumulative = np.cumsum(w)
        cumulative[-1] = 1.0
        i = j = 0
        while i < N:
            if positions[i] < cumulative[j]:
                index[i] = j
                i += 1
            else:
                j += 1
        particles = particles[index]
        w = np.full(N, 1.0 / N)
    return particles, w, ess


# Spectral subtraction between two short-time transforms.
def stft_denoise(x, size, hop, floor):
    window = np.hanning(size)
    n_frames = 1 + (len(x) - size) // hop
    S = np.empty((n_frames, size // 2 + 1), dtype=complex)
    for i in range(n_frames):
        S[i] = np.fft.rfft(window * x[i * hop : i * hop + size])
    mag = np.abs(S)
    noise = np.median(mag, axis=0)
    gain = np.maximum(1 - noise / np.maximum(mag, 1e-12), floor)
    S = S * gain
    out = np.zeros(len(x))
    norm = np.zeros(len(x))
    for i in range(n_frames):
        out[i * hop : i * hop + size] += window * np.fft.irfft(S[i], size)
        norm[i * hop : i * hop + size] += window**2
    norm[norm < 1e-8] = 1.0
    return out / norm, gain.mean(axis=1)


# A dynamic range compressor with attack and release.
def compressor(x, threshold_db, ratio, attack, release):
    env = 0.0
    gains = np.empty_like(x)
    for i in range(x.shape[0]):
        level = abs(x[i])
        a = attack if level > env else release
        env = a * env + (1 - a) * level
        db = 20 * np.log10(env + 1e-10)
        over = db - threshold_db
        gains[i] = 10 ** (-over * (1 - 1 / ratio) / 20) if over > 0 else 1.0
    return x * gains, gains.min()


def _stable(r: Generator, n: int) -> np.ndarray:
    A = r.normal(size=(n, n))
    return 0.9 * A / np.abs(np.linalg.eigvals(A)).max()


def _lqr(r: Generator, n: int) -> tuple:
    m = max(1, n // 3)
    return _stable(r, n), r.normal(size=(n, m)), np.eye(n), np.eye(m), 40


def _tracking(r: Generator, n: int) -> tuple:
    motion = np.eye(4) + 0.1 * np.eye(4, k=2)
    return r.normal(size=(5 * n, 2)), motion, np.eye(2, 4), 0.01 * np.eye(4), 0.1 * np.eye(2)


CASES = [
    Case(lqr, _lqr),
    Case(UnscentedKalman.step, lambda r, n: (np.tanh(r.normal(size=4)),), instance=lambda r, n: UnscentedKalman(4)),
    Case(rts_smoother, _tracking),
    Case(resample_particles, lambda r, n: (r.normal(size=(10 * n, 3)), r.random(10 * n) ** 3, float(r.random()))),
    Case(stft_denoise, lambda r, n: (r.normal(size=64 * n), 64, 16, 0.1)),
    Case(compressor, lambda r, n: (r.normal(size=30 * n), -10.0, 4.0, 0.9, 0.99)),
]
