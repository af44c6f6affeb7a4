"""Tests well-known stencil and dynamic-programming functions, unchanged, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

RANDOM = np.random.default_rng(1)


def jacobi_of_a_line(u: Any) -> Any:
    for _ in range(5):
        u[1:-1] = 0.5 * (u[2:] + u[:-2])
    return u


def jacobi_of_a_plane(u: Any, f: Any) -> Any:
    new = u.copy()
    for _ in range(4):
        new[1:-1, 1:-1] = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]) - f[1:-1, 1:-1]
        u, new = new, u
    return u


def heat(u: Any) -> Any:
    before = np.empty_like(u)
    for _ in range(3):
        before[...] = u
        inner = before[1:-1, 1:-1]
        u[1:-1, 1:-1] = (
            inner + 0.1 * (before[2:, 1:-1] - 2 * inner + before[:-2, 1:-1])
            + 0.1 * (before[1:-1, 2:] - 2 * inner + before[1:-1, :-2])
        )  # fmt: skip
        u[0, :] = u[-1, :] = 1
        u[:, 0], u[:, -1] = 1, 1
    return u


def fdtd(electric: Any, magnetic: Any) -> None:
    for step in range(6):
        magnetic[:-1] += 0.5 * (electric[1:] - electric[:-1])
        electric[1:] += 0.5 * (magnetic[1:] - magnetic[:-1])
        electric[3] += np.exp(-((step - 3.0) ** 2))


def gauss_seidel_red_black(u: Any) -> Any:
    for _ in range(3):
        u[1:-1:2, 1:-1:2] = 0.25 * (u[:-2:2, 1:-1:2] + u[2::2, 1:-1:2] + u[1:-1:2, :-2:2] + u[1:-1:2, 2::2])
        u[2:-1:2, 2:-1:2] = 0.25 * (u[1:-2:2, 2:-1:2] + u[3::2, 2:-1:2] + u[2:-1:2, 1:-2:2] + u[2:-1:2, 3::2])
    return u


def prefix_sums(a: Any) -> Any:
    sums, shift = a.copy(), 1
    while shift < 16:
        sums[shift:] = sums[shift:] + sums[:-shift]
        shift *= 2
    return sums


def finite_differences(x: Any) -> Any:
    d = np.zeros_like(x)
    d[1:-1] = (x[2:] - x[:-2]) / 2
    d[0], d[-1] = x[1] - x[0], x[-1] - x[-2]
    return d


def blur_with_borders(image: Any) -> Any:
    out = np.empty_like(image)
    inner = image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:] + image[1:-1, 1:-1]
    out[1:-1, 1:-1] = inner / 5
    out[[0, -1], :] = image[[0, -1], :]
    out[:, [0, -1]] = image[:, [0, -1]]
    return out


def game_of_life(z: Any) -> Any:
    n = np.zeros(z.shape)
    n[1:-1, 1:-1] += z[:-2, :-2] + z[:-2, 1:-1] + z[:-2, 2:] + z[1:-1, :-2]
    n[1:-1, 1:-1] += z[1:-1, 2:] + z[2:, :-2] + z[2:, 1:-1] + z[2:, 2:]
    birth, survives = (n == 3) & (z == 0), ((n == 2) | (n == 3)) & (z == 1)
    z[...] = 0
    z[birth | survives] = 1
    return z


def gray_scott(u: Any, v: Any) -> Any:
    inner_u, inner_v = u[1:-1, 1:-1], v[1:-1, 1:-1]
    for _ in range(2):
        of_u, of_v = (
            x[:-2, 1:-1] + x[1:-1, :-2] - 4 * x[1:-1, 1:-1] + x[1:-1, 2:] + x[2:, 1:-1] for x in (u, v)
        )  # fmt: skip
        reaction = inner_u * inner_v * inner_v
        inner_u += 0.16 * of_u - reaction + 0.035 * (1 - inner_u)
        inner_v += 0.08 * of_v + reaction - 0.095 * inner_v
        u[0, :], u[-1, :] = u[1, :], u[-2, :]
        v[:, 0], v[:, -1] = v[:, 1], v[:, -2]
    return inner_v


def edit_distances(cost: Any) -> Any:
    rows, columns = cost.shape
    d = np.zeros((rows + 1, columns + 1))
    d[0, :] = np.arange(columns + 1)
    d[:, 0] = np.arange(rows + 1)
    for i in range(1, rows + 1):
        d[i, 1:] = np.minimum(d[i - 1, 1:] + 1, d[i - 1, :-1] + cost[i - 1])
    return d


def upwind(u: Any, courant: Any) -> Any:
    before = u.copy()
    u[1:] = before[1:] - courant * (before[1:] - before[:-1])
    return u


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (jacobi_of_a_line, (RANDOM.random(20),)),
    (jacobi_of_a_plane, (RANDOM.random((9, 8)), RANDOM.random((9, 8)))),
    (heat, (RANDOM.random((8, 9)),)),
    (fdtd, (RANDOM.random(15), RANDOM.random(15))),
    (gauss_seidel_red_black, (RANDOM.random((9, 9)),)),
    (prefix_sums, (RANDOM.random(16),)),
    (finite_differences, (RANDOM.random(12),)),
    (blur_with_borders, (RANDOM.random((7, 8)),)),
    (game_of_life, (np.round(RANDOM.random((9, 9))),)),
    (gray_scott, (RANDOM.random((8, 8)), RANDOM.random((8, 8)))),
    (edit_distances, (np.round(RANDOM.random((4, 6))),)),
    (upwind, (RANDOM.random(9), np.float64(0.3))),
]


@pytest.mark.parametrize("options", [{"target": "reference"}, {}], ids=["reference", "cpu"])
@pytest.mark.parametrize(("function", "arguments"), PROGRAMS, ids=lambda case: getattr(case, "__name__", ""))
def test_the_program_runs_unchanged(function: Any, arguments: Any, options: Any) -> None:
    own, expected = [a.copy() for a in arguments], [a.copy() for a in arguments]
    wanted, result = function(*expected), fuse(function, **options)(*own)
    if wanted is not None:
        np.testing.assert_allclose(result, wanted, rtol=1e-12)
    for mine, theirs in zip(own, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_recorded_operations_and_kernels_grow_with_the_number_of_steps() -> None:
    def steps(count: int) -> tuple[int, int]:
        def run(u: Any) -> None:
            for _ in range(count):
                u[1:-1] = 0.5 * (u[2:] + u[:-2])

        fused = fuse(run)
        u = np.linspace(0, 1, 300) ** 2
        own = u.copy()
        fused(u)
        run(own)
        np.testing.assert_allclose(u, own, rtol=1e-12)
        definition = fused.definition(own)
        return len(definition.fusion.nodes), len(definition.segment())

    (few, few_kernels), (many, many_kernels) = steps(25), steps(100)
    assert many <= 4 * few + 10
    assert many_kernels <= 4 * few_kernels + 4


def test_interiors_of_two_arguments_change_together() -> None:
    """Equal interiors have equal sizes: i0 - 2 == i1 - 2 is an equation of i0 and i1."""

    def change_interiors(u: Any, v: Any) -> None:
        inner_u, inner_v = u[1:-1], v[1:-1]
        product = inner_u * inner_v
        inner_u += product
        inner_v += product - inner_v

    fused = fuse(change_interiors)
    for n in (8, 13):
        changed, expected = ([np.arange(n) / 4, np.arange(n) - 3.0] for _ in range(2))
        fused(*changed)
        change_interiors(*expected)
        np.testing.assert_array_equal(changed, expected)


def test_positions_up_to_a_size_at_changed_sizes() -> None:
    """A segment that reads both a size and its negative keeps the size, which it has at every call."""

    def change_every_second(x: Any) -> None:
        x[np.arange(x.shape[0])[::2]] = -1

    fused = fuse(change_every_second)
    for n in (5, 4, 7):
        changed, expected = np.arange(float(n)), np.arange(float(n))
        fused(changed)
        change_every_second(expected)
        np.testing.assert_array_equal(changed, expected)
