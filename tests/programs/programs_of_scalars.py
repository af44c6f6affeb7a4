"""Programs that mix arrays, NumPy scalars and Python numbers, and rebind them."""

from __future__ import annotations

import math

import numpy as np

from tests.programs.case import Case


# A NumPy scalar is rebound by an in-place operator (NumPy's documentation of scalars).
def first_and_third(a):
    s = a.sum()
    first = s
    s /= 3
    return first, s


# Integer total that becomes a float.
def halve_count(flags):
    n = flags.sum()
    n = n / 2
    return n, flags * n


# Haversine distance (Sinnott, 1984; every GIS tutorial).
def haversine(lat1, lon1, lat2, lon2):
    lat1, lon1, lat2, lon2 = map(np.radians, [lat1, lon1, lat2, lon2])
    a = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6371.0 * np.arcsin(np.sqrt(a))


# Normal density with math functions of a Python scalar (statistics textbooks).
def normal_pdf(x, mu, sigma):
    return np.exp(-0.5 * ((x - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


# Types of small integers: luma of an 8-bit image (ITU-R BT.601).
def luma_uint8(rgb):
    r, g, b = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    return (0.299 * r + 0.587 * g + 0.114 * b).astype(np.uint8)


# Overflowing sums of bytes, as a checksum (Fletcher, 1982).
def fletcher(data):
    s1 = np.cumsum(data, dtype=np.uint32) % 255
    s2 = np.cumsum(s1, dtype=np.uint32) % 255
    return (s2[-1] << 8) | s1[-1]


# float() of a reduction for a report.
def summary(x):
    return {"mean": float(x.mean()), "n": int(x.size), "max": x.max().item()}


# A branch on the value of a reduction (gradient clipping, PyTorch's clip_grad_norm_).
def clip_norm(g, limit):
    norm = np.sqrt((g * g).sum())
    if norm > limit:
        g = g * (limit / norm)
    return g


# Newton's square root until it converges (Heron).
def heron(a):
    x = a / 2 + 0.5
    while np.max(np.abs(x * x - a)) > 1e-10:
        x = 0.5 * (x + a / x)
    return x


# max and min of Python on two totals.
def scale_by_larger(x, y):
    s = max(x.sum(), y.sum())
    return x / s, min(abs(s), 3.0)


# List operands (a beginner's RGB to grey).
def grey_list(rgb):
    return rgb @ [0.299, 0.587, 0.114]


# bit tricks: Morton codes (Bit Twiddling Hacks).
def morton(x, y):
    def part(v):
        v = (v | (v << 8)) & 0x00FF00FF
        v = (v | (v << 4)) & 0x0F0F0F0F
        v = (v | (v << 2)) & 0x33333333
        return (v | (v << 1)) & 0x55555555

    return part(x) | (part(y) << 1)


# Compound interest with NumPy scalar arguments.
def compound(principal, rate, years):
    return principal * (1 + rate) ** years


# A percentage in text (every report).
def describe(x):
    return f"{x.mean():.3f} +- {x.std():.3f}"


CASES = [
    Case(first_and_third, lambda r, n: (r.normal(size=n),)),
    Case(halve_count, lambda r, n: (r.random(n) < 0.5,)),
    Case(haversine, lambda r, n: (r.uniform(-80, 80, n), r.uniform(-180, 180, n), 48.2, 16.4)),
    Case(normal_pdf, lambda r, n: (r.normal(size=n), 0.5, 2.0)),
    Case(luma_uint8, lambda r, n: (r.integers(0, 256, size=(n, n, 3)).astype(np.uint8),)),
    Case(fletcher, lambda r, n: (r.integers(0, 256, size=n).astype(np.uint8),)),
    Case(summary, lambda r, n: (r.normal(size=n),)),
    Case(clip_norm, lambda r, n: (r.normal(size=n), float(r.uniform(1, 5)))),
    Case(heron, lambda r, n: (r.uniform(1, 10, n),)),
    Case(scale_by_larger, lambda r, n: (r.random(n), r.random(n))),
    Case(grey_list, lambda r, n: (r.random((n, n, 3)),)),
    Case(morton, lambda r, n: (r.integers(0, 1 << 16, size=n), r.integers(0, 1 << 16, size=n))),
    Case(compound, lambda r, n: (np.float64(1000.0), np.float32(0.05), np.arange(n))),
    Case(describe, lambda r, n: (r.normal(size=n),)),
]
