"""Whole programs of geometry and astronomy."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case, Generator


# Andrew's monotone chain, which returns positions and the area.
def convex_hull(points):
    order = np.lexsort((points[:, 1], points[:, 0]))
    pts = points[order]
    n = len(pts)
    hull = np.zeros(2 * n, dtype=np.int64)
    k = 0
    for i in range(n):
        while k >= 2:
            o, a = pts[hull[k - 2]], pts[hull[k - 1]]
            cross = (a[0] - o[0]) * (pts[i, 1] - o[1]) - (a[1] - o[1]) * (pts[i, 0] - o[0])
            if cross > 0:
                break
            k -= 1
        hull[k] = i
        k += 1
    lower = k
    for i in range(n - 2, -1, -1):
        while k > lower:
            o, a = pts[hull[k - 2]], pts[hull[k - 1]]
            cross = (a[0] - o[0]) * (pts[i, 1] - o[1]) - (a[1] - o[1]) * (pts[i, 0] - o[0])
            if cross > 0:
                break
            k -= 1
        hull[k] = i
        k += 1
    index = hull[: k - 1]
    ring = pts[index]
    x, y = ring[:, 0], ring[:, 1]
    area = 0.5 * np.abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))
    return order[index], area


# Which triangles have an empty circumcircle (Delaunay).
def circumcircles(points, triangles):
    a, b, c = points[triangles[:, 0]], points[triangles[:, 1]], points[triangles[:, 2]]
    d = 2 * (a[:, 0] * (b[:, 1] - c[:, 1]) + b[:, 0] * (c[:, 1] - a[:, 1]) + c[:, 0] * (a[:, 1] - b[:, 1]))
    a2, b2, c2 = (a**2).sum(1), (b**2).sum(1), (c**2).sum(1)
    ux = (a2 * (b[:, 1] - c[:, 1]) + b2 * (c[:, 1] - a[:, 1]) + c2 * (a[:, 1] - b[:, 1])) / d
    uy = (a2 * (c[:, 0] - b[:, 0]) + b2 * (a[:, 0] - c[:, 0]) + c2 * (b[:, 0] - a[:, 0])) / d
    centre = np.stack([ux, uy], axis=1)
    radius = np.linalg.norm(centre - a, axis=1)
    distance = np.sqrt(((points[None, :, :] - centre[:, None, :]) ** 2).sum(-1))
    inside = (distance < radius[:, None] - 1e-9).sum(axis=1)
    return centre, radius, inside == 0


# Points in a polygon by the crossing number (Shimrat).
def crossing_number(px, py, vx, vy):
    inside = np.zeros(px.shape, dtype=bool)
    j = len(vx) - 1
    for i in range(len(vx)):
        straddles = (vy[i] > py) != (vy[j] > py)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = (vx[j] - vx[i]) * (py - vy[i]) / (vy[j] - vy[i]) + vx[i]
        inside ^= straddles & (px < crossing)
        j = i
    return inside


# Latitude, longitude and height on the ellipsoid WGS 84 (Bowring).
def geodetic_from_ecef(xyz):
    a, e2 = 6378137.0, 6.69437999014e-3
    x, y, z = xyz.T
    lon = np.arctan2(y, x)
    p = np.hypot(x, y)
    lat = np.arctan2(z, p * (1 - e2))
    for _ in range(5):
        N = a / np.sqrt(1 - e2 * np.sin(lat) ** 2)
        h = p / np.cos(lat) - N
        lat = np.arctan2(z, p * (1 - e2 * N / (N + h)))
    return np.column_stack([np.degrees(lat), np.degrees(lon), h])


# Positions on orbits, by Newton's method for Kepler's equation.
def kepler_ephemeris(elements, times):
    a, e, inc, node, peri, m0 = elements.T
    n = 0.01720209895 / a**1.5
    M = (m0[:, None] + n[:, None] * times[None, :]) % (2 * np.pi)
    E = M + e[:, None] * np.sin(M)
    for _ in range(20):
        dE = (E - e[:, None] * np.sin(E) - M) / (1 - e[:, None] * np.cos(E))
        E -= dE
        if np.abs(dE).max() < 1e-12:
            break
    nu = 2 * np.arctan2(np.sqrt(1 + e)[:, None] * np.sin(E / 2), np.sqrt(1 - e)[:, None] * np.cos(E / 2))
    r = a[:, None] * (1 - e[:, None] * np.cos(E))
    u = nu + peri[:, None]
    X = r * (np.cos(node)[:, None] * np.cos(u) - np.sin(node)[:, None] * np.sin(u) * np.cos(inc)[:, None])
    Y = r * (np.sin(node)[:, None] * np.cos(u) + np.cos(node)[:, None] * np.sin(u) * np.cos(inc)[:, None])
    Z = r * np.sin(u) * np.sin(inc)[:, None]
    return np.stack([X, Y, Z], axis=-1)


def _on_earth(r: Generator, n: int) -> np.ndarray:
    directions = r.normal(size=(n, 3))
    return 6.4e6 * directions / np.linalg.norm(directions, axis=1, keepdims=True)


def _elements(r: Generator, n: int) -> np.ndarray:
    return np.column_stack([r.uniform(0.5, 5, n), r.uniform(0, 0.5, n), r.random((n, 4))])


CASES = [
    Case(convex_hull, lambda r, n: (r.random((4 * n, 2)),)),
    Case(circumcircles, lambda r, n: (r.random((n, 2)), np.stack([r.permutation(n)[:3] for _ in range(2 * n)]))),
    Case(crossing_number, lambda r, n: (r.random(20 * n), r.random(20 * n), r.random(n), r.random(n))),
    Case(geodetic_from_ecef, lambda r, n: (_on_earth(r, n),)),
    Case(kepler_ephemeris, lambda r, n: (_elements(r, n), np.linspace(0, 1000, 3 * n))),
]
