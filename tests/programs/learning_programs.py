"""Whole programs of machine learning."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# NPBench: lenet's forward pass.
def relu(x):
    return np.maximum(x, 0)


def conv2d(input, weights):
    K = weights.shape[0]
    N = input.shape[0]
    H_out = input.shape[1] - K + 1
    W_out = input.shape[2] - K + 1
    C_out = weights.shape[3]
    output = np.empty((N, H_out, W_out, C_out), dtype=np.float32)
    for i in range(H_out):
        for j in range(W_out):
            output[:, i, j, :] = np.sum(
                input[:, i : i + K, j : j + K, :, np.newaxis] * weights[np.newaxis, :, :, :], axis=(1, 2, 3)
            )
    return output


def conv_relu(x, w, b):
    return relu(conv2d(x, w) + b)


# NPBench: mlp.
def mlp(x, w1, b1, w2, b2):
    h = relu(x @ w1 + b1)
    out = h @ w2 + b2
    e = np.exp(out - np.max(out, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


# Logistic regression by gradient descent (Ng's course).
def logistic_regression(X, y, rate, steps):
    w = np.zeros(X.shape[1])
    b = 0.0
    for _ in range(steps):
        p = 1 / (1 + np.exp(-(X @ w + b)))
        w -= rate * X.T @ (p - y) / len(y)
        b -= rate * (p - y).mean()
    return w, b


# k-means by Lloyd's algorithm (scikit-learn's user guide).
def kmeans(X, centres, steps):
    for _ in range(steps):
        d = ((X[:, None, :] - centres[None]) ** 2).sum(-1)
        labels = d.argmin(axis=1)
        centres = np.array(
            [X[labels == k].mean(axis=0) if (labels == k).any() else centres[k] for k in range(len(centres))]
        )
    return centres, labels


# k nearest neighbours (scikit-learn's KNeighborsClassifier).
def knn(X, y, Q, k):
    d = np.sqrt(((Q[:, None] - X[None]) ** 2).sum(axis=2))
    nearest = np.argsort(d, axis=1)[:, :k]
    return (y[nearest].mean(axis=1) > 0.5).astype(int)


# Principal components (scikit-learn's PCA).
def pca(X, k):
    Xc = X - X.mean(axis=0)
    U, S, Vt = np.linalg.svd(Xc, full_matrices=False)
    return np.abs(Xc @ Vt[:k].T), S[:k] ** 2 / (len(X) - 1)


# Batch normalisation, forward and backward (CS231n).
def batchnorm(x, gamma, beta, dout):
    mu, var = x.mean(axis=0), x.var(axis=0)
    std = np.sqrt(var + 1e-5)
    xhat = (x - mu) / std
    out = gamma * xhat + beta
    dbeta, dgamma = dout.sum(axis=0), (dout * xhat).sum(axis=0)
    N = x.shape[0]
    dx = gamma / (N * std) * (N * dout - dbeta - xhat * dgamma)
    return out, dx, dgamma, dbeta


# Max pooling by reshape (CS231n's max_pool_forward_fast).
def maxpool(x):
    N, C, H, W = x.shape
    reshaped = x.reshape(N, C, H // 2, 2, W // 2, 2)
    out = reshaped.max(axis=3).max(axis=4)
    mask = reshaped == out[:, :, :, None, :, None]
    return out, mask


# An LSTM step (Graves; Karpathy's gist).
def lstm_step(x, h, c, Wx, Wh, b):
    a = x @ Wx + h @ Wh + b
    H = h.shape[1]
    i, f, o = (1 / (1 + np.exp(-a[:, k * H : (k + 1) * H])) for k in range(3))
    g = np.tanh(a[:, 3 * H :])
    c = f * c + i * g
    return o * np.tanh(c), c


# A radial basis function kernel (scikit-learn's rbf_kernel).
def rbf_kernel(X, Y, gamma):
    d = (X**2).sum(1)[:, None] - 2 * X @ Y.T + (Y**2).sum(1)[None]
    return np.exp(-gamma * np.maximum(d, 0))


# Gaussian naive Bayes (scikit-learn's GaussianNB).
class GaussianNaiveBayes:
    def fit(self, X, y):
        self.classes = np.arange(2)
        self.mean = np.array([X[y == c].mean(axis=0) for c in self.classes])
        self.var = np.array([X[y == c].var(axis=0) for c in self.classes]) + 1e-3
        return self

    def predict(self, X):
        ll = -0.5 * (np.log(2 * np.pi * self.var)[None] + (X[:, None] - self.mean) ** 2 / self.var).sum(-1)
        return self.classes[ll.argmax(axis=1)]


# Dropout with its mask (Srivastava and others).
def dropout(x, u, p):
    mask = (u < p) / p
    return x * mask


CASES = [
    Case(
        conv_relu,
        lambda r, n: (
            r.normal(size=(2, n, n, 1)).astype(np.float32),
            r.normal(size=(3, 3, 1, 4)).astype(np.float32),
            r.normal(size=4).astype(np.float32),
        ),
        sizes=(5, 6),
    ),
    Case(
        mlp,
        lambda r, n: (
            *(r.normal(size=(n, 4)), r.normal(size=(4, 8)), r.normal(size=8), r.normal(size=(8, 3)), r.normal(size=3)),
        ),
    ),
    Case(logistic_regression, lambda r, n: (r.normal(size=(n, 3)), r.integers(0, 2, n), 0.1, 5)),
    Case(kmeans, lambda r, n: (r.normal(size=(n, 2)), r.normal(size=(3, 2)), 3)),
    Case(knn, lambda r, n: (r.normal(size=(n, 2)), r.integers(0, 2, n), r.normal(size=(4, 2)), 3)),
    Case(pca, lambda r, n: (r.normal(size=(n, 4)), 2)),
    Case(batchnorm, lambda r, n: (r.normal(size=(n, 4)), r.random(4), r.random(4), r.normal(size=(n, 4)))),
    Case(maxpool, lambda r, n: (r.normal(size=(2, 3, n, n)),), sizes=(8, 12)),
    Case(
        lstm_step,
        lambda r, n: (
            r.normal(size=(n, 3)), r.normal(size=(n, 4)), r.normal(size=(n, 4)),
            r.normal(size=(3, 16)), r.normal(size=(4, 16)), r.normal(size=16),
        ),
    ),
    Case(rbf_kernel, lambda r, n: (r.normal(size=(n, 3)), r.normal(size=(5, 3)), 0.5)),
    Case(
        GaussianNaiveBayes.predict,
        lambda r, n: (r.normal(size=(n, 3)),),
        instance=lambda r, n: GaussianNaiveBayes().fit(r.normal(size=(20, 3)), np.arange(20) % 2),
    ),
    Case(dropout, lambda r, n: (r.normal(size=(n, n)), r.random((n, n)), 0.8)),
]  # fmt: skip
