"""Whole programs of finance."""

from __future__ import annotations

import numpy as np
from scipy.special import erf

from tests.programs.case import Case


# Black and Scholes with SciPy's erf (Hull; numba's example).
def black_scholes(S, K, T, r, sigma):
    d1 = (np.log(S / K) + (r + 0.5 * sigma**2) * T) / (sigma * np.sqrt(T))
    d2 = d1 - sigma * np.sqrt(T)

    def cdf(x):
        return 0.5 * (1 + erf(x / np.sqrt(2)))

    call = S * cdf(d1) - K * np.exp(-r * T) * cdf(d2)
    return call, call - S + K * np.exp(-r * T)


# Cox, Ross and Rubinstein's binomial tree (Hull).
def binomial_option(S, K, r, sigma, T, steps):
    dt = T / steps
    u = np.exp(sigma * np.sqrt(dt))
    d = 1 / u
    p = (np.exp(r * dt) - d) / (u - d)
    prices = S * u ** np.arange(steps, -steps - 1, -2)
    values = np.maximum(K - prices, 0)
    for i in range(steps - 1, -1, -1):
        values = np.exp(-r * dt) * (p * values[:-1] + (1 - p) * values[1:])
    return values[0]


# Geometric Brownian motion from normal draws (Glasserman).
def brownian_paths(z, S0, mu, sigma, dt):
    steps = (mu - 0.5 * sigma**2) * dt + sigma * np.sqrt(dt) * z
    paths = S0 * np.exp(np.cumsum(steps, axis=1))
    payoff = np.maximum(paths[:, -1] - S0, 0)
    return payoff.mean(), payoff.std() / np.sqrt(len(payoff))


# Exponential moving average and MACD (technical analysis libraries).
def macd(prices, fast, slow):
    def ema(x, span):
        alpha = 2 / (span + 1)
        out = np.empty_like(x)
        out[0] = x[0]
        for i in range(1, len(x)):
            out[i] = alpha * x[i] + (1 - alpha) * out[i - 1]
        return out

    line = ema(prices, fast) - ema(prices, slow)
    return line, ema(line, 3)


# Relative strength index (Wilder).
def rsi(prices, period):
    delta = np.diff(prices)
    gain = np.where(delta > 0, delta, 0.0)
    loss = np.where(delta < 0, -delta, 0.0)
    kernel = np.ones(period) / period
    avg_gain = np.convolve(gain, kernel, mode="valid")
    avg_loss = np.convolve(loss, kernel, mode="valid")
    return 100 - 100 / (1 + avg_gain / (avg_loss + 1e-12))


# Maximum drawdown (empyrical).
def max_drawdown(returns):
    wealth = np.cumprod(1 + returns)
    peak = np.maximum.accumulate(wealth)
    drawdown = (wealth - peak) / peak
    end = np.argmin(drawdown)
    return drawdown.min(), end


# Sharpe and Sortino ratios (empyrical).
def ratios(returns, risk_free):
    excess = returns - risk_free
    downside = excess[excess < 0]
    return excess.mean() / excess.std(ddof=1), excess.mean() / np.sqrt(np.mean(downside**2) + 1e-12)


# Markowitz's minimum variance portfolio.
def minimum_variance(returns):
    cov = np.cov(returns.T) + 0.1 * np.eye(returns.shape[1])
    w = np.linalg.inv(cov) @ np.ones(len(cov))
    return w / w.sum()


# Net present value and yield by Newton's method (numpy-financial's irr).
def bond_yield(cashflows, price):
    t = np.arange(1, len(cashflows) + 1)
    y = 0.05
    for _ in range(20):
        f = (cashflows / (1 + y) ** t).sum() - price
        df = (-t * cashflows / (1 + y) ** (t + 1)).sum()
        step = f / df
        y = y - step
        if abs(step) < 1e-12:
            break
    return y


# Historical value at risk and expected shortfall.
def value_at_risk(returns, level):
    var = np.quantile(returns, level)
    return var, returns[returns <= var].mean()


CASES = [
    Case(black_scholes, lambda r, n: (r.uniform(50, 150, n), 100.0, r.uniform(0.1, 2, n), 0.02, 0.3)),
    Case(binomial_option, lambda r, n: (100.0, float(r.uniform(90, 110)), 0.03, 0.2, 1.0, n)),
    Case(brownian_paths, lambda r, n: (r.normal(size=(n, 10)), 100.0, 0.05, 0.2, 0.01)),
    Case(macd, lambda r, n: (100 + r.normal(size=n).cumsum(), 3, 6)),
    Case(rsi, lambda r, n: (100 + r.normal(size=n).cumsum(), 3)),
    Case(max_drawdown, lambda r, n: (r.normal(size=n) / 50,)),
    Case(ratios, lambda r, n: (r.normal(size=n) / 50, 0.001)),
    Case(minimum_variance, lambda r, n: (r.normal(size=(n, 3)),)),
    Case(bond_yield, lambda r, n: (r.uniform(5, 10, n), 30.0)),
    Case(value_at_risk, lambda r, n: (r.normal(size=n), 0.2)),
]
