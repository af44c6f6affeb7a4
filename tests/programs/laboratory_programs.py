"""Whole programs of laboratories: physics, chemistry, biology, astronomy, geometry, measurement."""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.programs.case import Case

BOLTZMANN = 1.380649e-23


# Lennard-Jones forces in a periodic box (Allen and Tildesley).
def lennard_jones(positions, box):
    delta = positions[:, np.newaxis, :] - positions[np.newaxis, :, :]
    delta -= box * np.rint(delta / box)
    r2 = np.einsum("ijk,ijk->ij", delta, delta)
    np.fill_diagonal(r2, np.inf)
    inv6 = 1.0 / r2**3
    energy = 2.0 * (inv6 * inv6 - inv6).sum()
    forces = (24.0 * (2.0 * inv6**2 - inv6) / r2)[..., None] * delta
    return energy, forces.sum(axis=1)


# Planck's law and the Wien peak.
def planck(wavelength, temperature):
    h, c = 6.62607015e-34, 299792458.0
    a = 2.0 * h * c**2
    b = h * c / (wavelength * BOLTZMANN * temperature)
    intensity = a / (wavelength**5 * np.expm1(b))
    return intensity, wavelength[np.argmax(intensity)]


# Kepler's equation by Newton's method, all anomalies at once.
def kepler(mean, eccentricity):
    E = np.where(eccentricity < 0.8, mean, np.pi)
    for _ in range(30):
        step = (E - eccentricity * np.sin(E) - mean) / (1 - eccentricity * np.cos(E))
        E = E - step
        if np.max(np.abs(step)) < 1e-12:
            break
    return 2 * np.arctan2(np.sqrt(1 + eccentricity) * np.sin(E / 2), np.sqrt(1 - eccentricity) * np.cos(E / 2))


# Needleman-Wunsch scores along antidiagonals.
def needleman_wunsch(a, b, gap):
    n, m = len(a), len(b)
    score = np.zeros((n + 1, m + 1), int)
    score[:, 0] = -gap * np.arange(n + 1)
    score[0] = -gap * np.arange(m + 1)
    match = np.where(a[:, None] == b[None, :], 1, -1)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            score[i, j] = max(score[i - 1, j - 1] + match[i - 1, j - 1], score[i - 1, j] - gap, score[i, j - 1] - gap)
    return score


# Michaelis-Menten parameters by Gauss-Newton.
def michaelis_menten(s, v):
    vmax, km = v.max(), np.median(s)
    for _ in range(5):
        predicted = vmax * s / (km + s)
        J = np.column_stack([s / (km + s), -vmax * s / (km + s) ** 2])
        delta, *_ = np.linalg.lstsq(J, v - predicted, rcond=None)
        vmax, km = vmax + delta[0], km + delta[1]
    return vmax, km


# Radioactive chain by the matrix exponential, scaling and squaring.
def decay_chain(amounts, rates, t):
    n = len(rates)
    A = np.zeros((n, n))
    A[np.arange(n), np.arange(n)] = -rates
    A[np.arange(1, n), np.arange(n - 1)] = rates[:-1]
    squarings = max(0, math.ceil(math.log2(np.abs(A * t).sum(axis=0).max())) + 1)
    scaled = A * t / 2**squarings
    term = total = np.eye(n)
    for k in range(1, 12):
        term = term @ scaled / k
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return total @ amounts


@dataclass
class Quantity:
    """A value with an uncertainty that operators propagate."""

    value: Any
    sigma: Any

    def __add__(self, other):
        return Quantity(self.value + other.value, np.hypot(self.sigma, other.sigma))

    def __mul__(self, other):
        product = self.value * other.value
        return Quantity(product, np.abs(product) * np.hypot(self.sigma / self.value, other.sigma / other.value))

    def __truediv__(self, other):
        ratio = self.value / other.value
        return Quantity(ratio, abs(ratio) * np.hypot(self.sigma / self.value, other.sigma / other.value))


def resistivity(voltage, current, area):
    v, i = Quantity(voltage, 0.01 * voltage), Quantity(current, np.full_like(current, 0.02))
    a = Quantity(area, 0.05)
    r = v / i * a
    both = r + r
    return {"value": r.value, "sigma": r.sigma, "both": (both.value, both.sigma)}


# Signed area, centroid and convexity of a polygon (the shoelace formula).
def polygon(points):
    x, y = points.T
    x1, y1 = np.roll(x, -1), np.roll(y, -1)
    cross = x * y1 - x1 * y
    area = cross.sum() / 2
    centroid = np.array([((x + x1) * cross).sum(), ((y + y1) * cross).sum()]) / (6 * area)
    edges = np.diff(np.r_[points, points[:1]], axis=0)
    turns = np.sign(edges[:-1, 0] * edges[1:, 1] - edges[:-1, 1] * edges[1:, 0])
    return area, centroid, bool(np.all(turns == turns[0]))


# Points in a polygon by ray crossing.
def inside_polygon(points, polygon):
    inside = np.zeros(len(points), dtype=bool)
    px, py = points[:, 0], points[:, 1]
    j = len(polygon) - 1
    for i in range(len(polygon)):
        xi, yi = polygon[i]
        xj, yj = polygon[j]
        crosses = (yi > py) != (yj > py)
        inside ^= crosses & (px < (xj - xi) * (py - yi) / (yj - yi) + xi)
        j = i
    return inside


# Rodrigues' rotation of points about axes.
def rotate_about(points, axis, angle):
    k = axis / np.linalg.norm(axis)
    K = np.array([[0, -k[2], k[1]], [k[2], 0, -k[0]], [-k[1], k[0], 0]])
    R = np.eye(3) + math.sin(angle) * K + (1 - math.cos(angle)) * K @ K
    return points @ R.T, np.isclose(np.linalg.det(R), 1.0)


# Fourier descriptors of a contour.
def fourier_descriptors(contour, kept):
    z = contour[:, 0] + 1j * contour[:, 1]
    Z = np.fft.fft(z)
    Z[kept + 1 : -kept] = 0
    Z[0] = 0
    scale = np.abs(Z[1])
    return np.abs(Z[1 : kept + 1]) / scale, np.fft.ifft(Z / scale)


# Recursive fast Fourier transform (Cooley and Tukey).
def recursive_fft(x):
    n = len(x)
    if n <= 2:
        return np.array([x[0] + x[-1], x[0] - x[-1]]) if n == 2 else x.astype(complex)
    even, odd = recursive_fft(x[::2]), recursive_fft(x[1::2])
    twiddle = np.exp(-2j * np.pi * np.arange(n) / n)
    half = n // 2
    return np.concatenate([even + twiddle[:half] * odd, even + twiddle[half:] * odd])


# Roots of a cubic by Cardano, in Python numbers of array elements.
def cubic_roots(coefficients):
    a, b, c, d = (complex(v) for v in coefficients)
    p = (3 * a * c - b * b) / (3 * a * a)
    q = (2 * b**3 - 9 * a * b * c + 27 * a * a * d) / (27 * a**3)
    root = cmath.sqrt(q * q / 4 + p**3 / 27)
    u = (-q / 2 + root) ** (1 / 3)
    spins = [cmath.exp(2j * cmath.pi * k / 3) for k in range(3)]
    return [u * s - p / (3 * u * s) - b / (3 * a) for s in spins]


# Ewald-like structure factors of a crystal.
def structure_factors(atoms, charges, hkl):
    phase = 2j * np.pi * np.tensordot(hkl, atoms, axes=([1], [1]))
    F = (charges * np.exp(phase)).sum(axis=-1)
    return np.abs(F) ** 2, np.angle(F, deg=True)


# The upwind scheme with flux limiting by np.piecewise.
def upwind(u, courant):
    du = np.diff(u, prepend=u[-1])
    ratio = np.divide(np.roll(du, 1), du, out=np.zeros_like(du), where=np.abs(du) > 1e-9)
    phi = np.piecewise(ratio, [ratio <= 0, ratio >= 1], [0.0, 1.0, lambda t: t])
    flux = u + 0.5 * phi * (1 - courant) * np.roll(du, -1)
    return u - courant * (flux - np.roll(flux, 1))


# Weather: wind chill and heat index with chained conditions.
def apparent_temperature(celsius, wind, humidity):
    out = celsius.astype(float).copy()
    cold = (celsius < 10) & (wind > 4.8)
    v = wind[cold] ** 0.16
    out[cold] = 13.12 + 0.6215 * celsius[cold] - 11.37 * v + 0.3965 * celsius[cold] * v
    hot = celsius > 27
    t, r = celsius[hot], humidity[hot]
    out[hot] = -8.785 + 1.611 * t + 2.339 * r - 0.1461 * t * r
    return np.round(out, 1)


# Bilayer magnetisation: Metropolis by hand over sites with given uniforms.
def heat_bath(spins, uniforms, beta):
    for site in range(spins.size):
        field = spins[site - 1] + spins[(site + 1) % spins.size]
        probability = 1 / (1 + np.exp(-2 * beta * field))
        spins[site] = 1 if uniforms[site] < probability else -1
    return spins.mean()


# Seismogram: STA/LTA trigger by cumulative sums.
def sta_lta(trace, short, long):
    energy = np.insert(np.cumsum(trace**2), 0, 0.0)
    sta = (energy[long:] - energy[long - short : -short]) / short
    lta = (energy[long:] - energy[:-long]) / long
    ratio = sta / lta
    on = np.flatnonzero((ratio[1:] > 1.2) & (ratio[:-1] <= 1.2)) + long
    return ratio, on


# Titration: bisection for pH, vectorised.
def titration_ph(volume, concentration):
    low, high = np.zeros_like(volume), np.full_like(volume, 14.0)
    for _ in range(40):
        mid = (low + high) / 2
        charge = 10**-mid - 10 ** (mid - 14) + volume * concentration / (1 + volume) - 0.05 / (1 + volume)
        low, high = np.where(charge > 0, mid, low), np.where(charge > 0, high, mid)
    return (low + high) / 2


# A colour map by np.interp on each channel, and np.stack.
def colour_map(values, stops, colours):
    scaled = (values - values.min()) / np.ptp(values)
    channels = [np.interp(scaled, stops, colours[:, c]) for c in range(3)]
    return (np.stack(channels, axis=-1) * 255).astype(np.uint8)


CASES = [
    Case(lennard_jones, lambda r, n: (10 * r.random((n, 3)), 10.0)),
    Case(planck, lambda r, n: (np.linspace(1e-7, 3e-6, 4 * n), 5778.0)),
    Case(kepler, lambda r, n: (r.uniform(0, 6, n), r.uniform(0, 0.7, n))),
    Case(needleman_wunsch, lambda r, n: (r.integers(0, 4, 5), r.integers(0, 4, 4), 1)),
    Case(michaelis_menten, lambda r, n: _kinetics(r, n)),
    Case(decay_chain, lambda r, n: (r.random(4), r.uniform(0.1, 1, 4), 2.5)),
    Case(resistivity, lambda r, n: (r.uniform(1, 2, n), r.uniform(1, 2, n), 3.0)),
    Case(polygon, lambda r, n: (_ring(r, n),)),
    Case(inside_polygon, lambda r, n: (r.uniform(-1, 1, (4 * n, 2)), _ring(r, 5))),
    Case(rotate_about, lambda r, n: (r.normal(size=(n, 3)), r.normal(size=3), 0.7)),
    Case(fourier_descriptors, lambda r, n: (_ring(r, 4 * n), 3)),
    Case(recursive_fft, lambda r, n: (r.normal(size=8 if n == 8 else 16),)),
    Case(cubic_roots, lambda r, n: (r.uniform(1, 2, 4),)),
    Case(structure_factors, lambda r, n: (r.random((n, 3)), r.normal(size=n), r.integers(-3, 4, (5, 3)))),
    Case(upwind, lambda r, n: (r.normal(size=n), 0.5)),
    Case(apparent_temperature, lambda r, n: (r.uniform(-10, 40, n), r.uniform(0, 30, n), r.uniform(20, 90, n))),
    Case(heat_bath, lambda r, n: (r.choice([-1, 1], n), r.random(n), 0.4)),
    Case(sta_lta, lambda r, n: (r.normal(size=8 * n), 3, 12)),
    Case(titration_ph, lambda r, n: (r.uniform(0, 2, n), 0.1)),
    Case(colour_map, lambda r, n: (r.normal(size=(n, n)), np.array([0.0, 0.4, 1.0]), r.random((3, 3)))),
]


def _kinetics(r, n):
    s = np.sort(r.uniform(0.5, 10, n))
    return s, 3.0 * s / (2.0 + s) + 0.01 * r.normal(size=n)


def _ring(r, n):
    angle = np.sort(r.uniform(0, 2 * np.pi, n))
    return np.column_stack([np.cos(angle), np.sin(angle)]) * r.uniform(0.5, 1, (n, 1))
