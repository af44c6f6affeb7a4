"""Whole programs of economics, statistics and machine learning, with state in objects, closures and globals."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from tests.programs.case import Case

LEDGER = {"cash": 100.0, "shares": np.zeros(3), "trades": []}
CONFIG = {"fees": {"fixed": 0.1, "rate": 0.001}, "limits": (0.2, 0.5)}


# Rebalancing with a ledger in a global.
def rebalance(prices, target):
    worth = LEDGER["cash"] + LEDGER["shares"] @ prices
    wanted = target * worth / prices
    orders = wanted - LEDGER["shares"]
    fees = (
        CONFIG["fees"]["fixed"] * np.count_nonzero(np.abs(orders) > 1e-3)
        + CONFIG["fees"]["rate"] * (np.abs(orders) * prices).sum()
    )
    LEDGER["shares"] = LEDGER["shares"] + orders
    LEDGER["cash"] = LEDGER["cash"] - float(orders @ prices + fees)
    LEDGER["trades"].append({"orders": orders, "fees": float(fees)})
    return worth


def change_fees(module, r):
    module.CONFIG["fees"]["rate"] = float(r.uniform(0, 0.01))


# GARCH(1,1) likelihood.
def garch(returns, omega, alpha, beta):
    variance = np.empty_like(returns)
    variance[0] = returns.var()
    for t in range(1, len(returns)):
        variance[t] = omega + alpha * returns[t - 1] ** 2 + beta * variance[t - 1]
    return -0.5 * np.sum(np.log(2 * np.pi * variance) + returns**2 / variance)


# An American put by least squares Monte Carlo (Longstaff and Schwartz), paths given.
def american_put(paths, strike, rate):
    cash = np.maximum(strike - paths[:, -1], 0)
    for t in range(paths.shape[1] - 2, 0, -1):
        cash *= math.exp(-rate)
        exercise = np.maximum(strike - paths[:, t], 0)
        money = exercise > 0
        if money.sum() > 3:
            fit = np.polyfit(paths[money, t], cash[money], 2)
            stay = np.polyval(fit, paths[money, t])
            now = np.zeros(len(paths), bool)
            now[money] = exercise[money] > stay
            cash[now] = exercise[now]
    return float(cash.mean()) * math.exp(-rate)


# A yield curve: bootstrap of discount factors.
def discount_factors(rates):
    factors = []
    for k, rate in enumerate(rates):
        annuity = sum(factors)
        factors.append((1 - rate * annuity) / (1 + rate))
    factors = np.array(factors)
    return factors, -np.log(factors) / np.arange(1, len(factors) + 1)


# The Gini coefficient and the Lorenz curve.
def gini(incomes):
    ordered = np.sort(incomes)
    lorenz = np.insert(ordered.cumsum() / ordered.sum(), 0, 0)
    return 1 - 2 * np.trapezoid(lorenz, dx=1 / len(ordered)), lorenz


# An order book that matches (lists of arrays).
class OrderBook:
    def __init__(self):
        self.bids = np.empty((0, 2))
        self.asks = np.empty((0, 2))
        self.last = None

    def quote(self, price, size, side):
        order = np.array([[price, size]])
        if side > 0:
            self.bids = np.vstack([self.bids, order])
        else:
            self.asks = np.vstack([self.asks, order])
        spread = np.nan
        if len(self.bids) and len(self.asks):
            spread = self.asks[:, 0].min() - self.bids[:, 0].max()
        self.last = (price, size)
        return spread


# Bayesian updating of a grid posterior.
class GridPosterior:
    def __init__(self, n):
        self.grid = np.linspace(0, 1, n)
        self.log_posterior = np.zeros(n)
        self.trials = 0

    def observe(self, outcomes):
        heads = int(outcomes.sum())
        tails = outcomes.size - heads
        self.trials += outcomes.size
        with np.errstate(divide="ignore"):
            self.log_posterior += np.where(
                (self.grid > 0) & (self.grid < 1),
                heads * np.log(self.grid) + tails * np.log1p(-self.grid),
                -np.inf,
            )
        shifted = self.log_posterior - self.log_posterior.max()
        density = np.exp(shifted)
        density /= density.sum()
        return (density * self.grid).sum()


# A bandit with upper confidence bounds.
class Bandit:
    def __init__(self, arms):
        self.counts = np.zeros(arms, dtype=int)
        self.values = np.zeros(arms)

    def pull(self, rewards):
        total = self.counts.sum()
        if (self.counts == 0).any():
            arm = int(np.argmin(self.counts))
        else:
            arm = int(np.argmax(self.values + np.sqrt(2 * np.log(total) / self.counts)))
        self.counts[arm] += 1
        self.values[arm] += (rewards[arm] - self.values[arm]) / self.counts[arm]
        return arm


# Value iteration on a small grid world.
def value_iteration(rewards, gamma):
    V = np.zeros_like(rewards)
    for sweep in range(50):
        padded = np.pad(V, 1, mode="edge")
        options = np.stack([padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]])
        new = rewards + gamma * options.max(axis=0)
        delta = np.abs(new - V).max()
        V = new
        if delta < 1e-3:
            break
    return V, options.argmax(axis=0), sweep


# Q-learning on a chain, with a table that is written element by element.
def q_learning(q, states, actions, rewards, alpha, gamma):
    for s, a, r, s2 in zip(states[:-1], actions, rewards, states[1:]):  # noqa: B905
        q[s, a] += alpha * (r + gamma * q[s2].max() - q[s, a])
    return q.argmax(axis=1)


# A decision stump over all features.
def stump(X, y):
    best = (np.inf, None, None)
    for j in range(X.shape[1]):
        order = X[:, j].argsort()
        ones = np.cumsum(y[order])
        left = np.arange(1, len(y) + 1)
        p = ones / left
        right = np.maximum(len(y) - left, 1)
        q = (ones[-1] - ones) / right
        impurity = (left * p * (1 - p) + right * q * (1 - q)) / len(y)
        k = impurity.argmin()
        if impurity[k] < best[0]:
            best = (impurity[k], j, X[order[k], j])
    return best


# AdaBoost weights for given weak predictions (Freund and Schapire).
def adaboost(predictions, y):
    w = np.full(len(y), 1 / len(y))
    alphas = []
    for h in predictions:
        error = w[h != y].sum()
        error = min(max(error, 1e-9), 1 - 1e-9)
        alpha = 0.5 * math.log((1 - error) / error)
        w = w * np.exp(-alpha * y * h)
        w /= w.sum()
        alphas.append(alpha)
    return np.array(alphas), np.sign(np.array(alphas) @ predictions)


# Non-negative matrix factorisation (Lee and Seung).
def nmf(V, W, H, rounds):
    eps = np.finfo(V.dtype).eps
    for _ in range(rounds):
        H *= (W.T @ V) / (W.T @ W @ H + eps)
        W *= (V @ H.T) / (W @ H @ H.T + eps)
    return np.linalg.norm(V - W @ H)


# Soft-thresholded coordinate descent for the lasso.
def lasso(X, y, penalty, sweeps):
    w = np.zeros(X.shape[1])
    residual = y - X @ w
    for _ in range(sweeps):
        for j in range(len(w)):
            column = X[:, j]
            rho = column @ residual + w[j] * (column @ column)
            new = np.sign(rho) * max(abs(rho) - penalty, 0) / (column @ column)
            residual += column * (w[j] - new)
            w[j] = new
    return w


# A hidden Markov model: Viterbi with back pointers.
def viterbi(log_start, log_move, log_emit, seen):
    T = len(seen)
    score = log_start + log_emit[:, seen[0]]
    back = np.zeros((T, len(log_start)), dtype=np.intp)
    for t in range(1, T):
        candidates = score[:, None] + log_move
        back[t] = candidates.argmax(0)
        score = candidates.max(0) + log_emit[:, seen[t]]
    path = [int(score.argmax())]
    for t in range(T - 1, 0, -1):
        path.append(int(back[t, path[-1]]))
    return path[::-1], score.max()


# t-SNE affinities by bisection of the perplexity.
def affinities(X, perplexity):
    D = ((X[:, None] - X[None]) ** 2).sum(-1)
    n = len(X)
    P = np.zeros((n, n))
    target = np.log(perplexity)
    for i in range(n):
        low, high, beta = 0.0, np.inf, 1.0
        d = np.delete(D[i], i)
        for _ in range(12):
            p = np.exp(-d * beta)
            total = p.sum()
            entropy = np.log(total) + beta * (d * p).sum() / total
            if abs(entropy - target) < 1e-5:
                break
            if entropy > target:
                low, beta = beta, beta * 2 if high == np.inf else (beta + high) / 2
            else:
                high, beta = beta, (beta + low) / 2
        P[i, np.arange(n) != i] = p / total
    return (P + P.T) / (2 * n)


# Confusion matrix, precision and recall, with a report in a namespace.
def classification_report(truth, guess, classes):
    matrix = np.zeros((classes, classes), dtype=int)
    np.add.at(matrix, (truth, guess), 1)
    hits = np.diagonal(matrix)
    precision = hits / np.maximum(matrix.sum(0), 1)
    recall = hits / np.maximum(matrix.sum(1), 1)
    f1 = np.where(precision + recall > 0, 2 * precision * recall / np.maximum(precision + recall, 1e-12), 0)
    report = SimpleNamespace(accuracy=float(hits.sum() / matrix.sum()), macro=f1.mean())
    return matrix, report.accuracy, report.macro


# ROC curve and its area.
def roc(scores, labels):
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    misses = np.cumsum(1 - labels[order])
    tpr, fpr = hits / hits[-1], misses / misses[-1]
    return np.trapezoid(tpr, fpr), tpr, fpr


# Attention over a growing cache of keys and values.
class KeyValueCache:
    def __init__(self, width):
        self.keys = np.zeros((0, width))
        self.values = np.zeros((0, width))

    def attend(self, q, k, v):
        self.keys = np.concatenate([self.keys, k[None]])
        self.values = np.concatenate([self.values, v[None]])
        logits = self.keys @ q / np.sqrt(q.size)
        weights = np.exp(logits - logits.max())
        return weights @ self.values / weights.sum()


# A learning-rate schedule in a closure with nonlocal counters.
def make_schedule(base, warmup):
    step = 0
    best = None

    def schedule(gradient):
        nonlocal step, best
        step += 1
        rate = base * min(step / warmup, 1.0)
        size = float(np.sqrt((gradient**2).sum()))
        best = size if best is None else min(best, size)
        return -rate * gradient / max(1.0, size)

    return schedule


# Exponentially weighted covariance with decay in place.
class RiskModel:
    halflife = 5.0

    def __init__(self, n):
        self.covariance = np.eye(n)
        self.mean = np.zeros(n)

    @property
    def decay(self):
        return 0.5 ** (1 / self.halflife)

    @property
    def correlation(self):
        s = np.sqrt(np.diag(self.covariance))
        return self.covariance / np.outer(s, s)

    def update(self, returns):
        d = self.decay
        excess = returns - self.mean
        self.mean[:] = d * self.mean + (1 - d) * returns
        self.covariance *= d
        self.covariance += (1 - d) * np.outer(excess, excess)
        return self.correlation


CASES = [
    Case(rebalance, lambda r, n: (r.uniform(10, 20, 3), r.dirichlet(np.ones(3))), between=change_fees),
    Case(garch, lambda r, n: (0.01 * r.normal(size=n), 1e-5, 0.1, 0.8)),
    Case(american_put, lambda r, n: (_paths(r, n), 1.0, 0.01)),
    Case(discount_factors, lambda r, n: (r.uniform(0.01, 0.05, n),)),
    Case(gini, lambda r, n: (r.exponential(size=n),)),
    Case(OrderBook.quote, lambda r, n: (r.uniform(), 1.0, int(r.choice([-1, 1]))), instance=lambda r, n: OrderBook()),
    Case(GridPosterior.observe, lambda r, n: (r.integers(0, 2, n),), instance=lambda r, n: GridPosterior(n)),
    Case(Bandit.pull, lambda r, n: (r.normal(size=3),), instance=lambda r, n: Bandit(3)),
    Case(value_iteration, lambda r, n: (r.normal(size=(n, n)), 0.5)),
    Case(
        q_learning,
        lambda r, n: (np.zeros((5, 2)), r.integers(0, 5, n), r.integers(0, 2, n - 1), r.normal(size=n - 1), 0.5, 0.9),
    ),
    Case(stump, lambda r, n: (r.normal(size=(n, 3)), r.integers(0, 2, n))),
    Case(adaboost, lambda r, n: (r.choice([-1, 1], (4, n)), r.choice([-1, 1], n))),
    Case(nmf, lambda r, n: (r.random((n, n)), r.random((n, 2)), r.random((2, n)), 3)),
    Case(lasso, lambda r, n: (r.normal(size=(n, 3)), r.normal(size=n), 0.5, 2)),
    Case(viterbi, lambda r, n: _chain(r, n)),
    Case(affinities, lambda r, n: (r.normal(size=(4, 2)), 2.0)),
    Case(classification_report, lambda r, n: (r.integers(0, 3, n), r.integers(0, 3, n), 3)),
    Case(roc, lambda r, n: (r.normal(size=n), np.r_[0, 1, r.integers(0, 2, n - 2)])),
    Case(KeyValueCache.attend, lambda r, n: tuple(r.normal(size=(3, n))), instance=lambda r, n: KeyValueCache(n)),
    Case(make_schedule, lambda r, n: (r.normal(size=n),), closure=lambda r, n: (0.1, 4)),
    Case(
        RiskModel.update,
        lambda r, n: (r.normal(size=n),),
        instance=lambda r, n: RiskModel(n),
        between=lambda m, r: setattr(m, "halflife", float(r.choice([5.0, 8.0]))),
    ),
]


def _paths(r, n):
    return np.cumprod(np.c_[np.ones(4 * n), np.exp(0.1 * r.normal(size=(4 * n, 4)))], axis=1)


def _chain(r, n):
    return (
        np.log(r.dirichlet(np.ones(3))),
        np.log(r.dirichlet(np.ones(3), 3)),
        np.log(r.dirichlet(np.ones(4), 3)),
        r.integers(0, 4, n),
    )
