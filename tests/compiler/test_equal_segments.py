"""Equal segments of a program share their kernels; what differs in sizes, types or literals does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

U = np.random.default_rng(0).random((10, 12))


def with_factors(u: Any, factors: Any) -> Any:
    for factor in factors:
        u = np.exp(np.tanh(u)) + factor
        u = u[1:] + u[:-1] + np.roll(u, 1, 1)[1:] + np.roll(u, 2, 1)[1:] + np.roll(u, 3, 1)[1:]
        u = np.pad(u / 5, ((1, 0), (0, 0)))
    return u


def sources(function: Any, *arguments: Any) -> list[tuple[str, str, str]]:
    return [one.kernel.partition("(") for one in function.segments(*arguments)]


def test_the_steps_of_a_loop_have_one_kernel_under_several_names() -> None:
    fused = fuse(lambda u: with_factors(u, [0.5] * 6))
    np.testing.assert_allclose(fused(U), with_factors(U, [0.5] * 6))
    texts = sources(fused, U)
    assert len(texts) >= 6
    assert len({body for _, _, body in texts}) <= 3
    assert len({name for name, _, _ in texts}) == len(texts)


@pytest.mark.parametrize("factors", [[0.0, -0.0, 0.0], [1, 1.0, 2], [0.5, 0.25, 0.125]])
def test_literals_that_differ_in_type_or_sign_have_kernels_of_their_own(factors: list[Any]) -> None:
    def scaled(u: Any) -> Any:
        for factor in factors:
            u = np.exp(np.exp(np.tanh(u) * factor) * 0.1) + np.sin(u)
            u = np.copysign(1.0, u * factor)[1:] + u[:-1] + u[1:] * 0.5
        return u

    np.testing.assert_allclose(fuse(scaled)(U), scaled(U))


def test_new_sizes_take_the_kernels_whose_guards_they_meet() -> None:
    def rows(u: Any, v: Any) -> Any:
        first = u / np.sqrt((u * u).sum(axis=1, keepdims=True))
        second = v / np.sqrt((v * v).sum(axis=1, keepdims=True))
        return first, second

    fused = fuse(rows)
    for shape in ((4, 5), (3, 70000), (1, 1), (0, 4), (2, 16)):
        v = np.random.default_rng(1).random(shape)
        for result, wanted in zip(fused(U, v), rows(U, v), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-12)
