"""Tests inputs in another memory order: which of them are copied, that values stay, and that sizes are guarded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def stencil(x: Any) -> Any:
    return x[1:-1, 1:-1] * 4 - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]


def sums(x: Any) -> Any:
    return x.sum(1)


def mixed(x: Any) -> Any:
    return softmax(x) + np.zeros(x.shape).copy()


def doubled(x: Any) -> Any:
    return x * 2


def first_largest(x: Any) -> Any:
    return x.round().argmax()


def stacked(x: Any) -> Any:
    return np.stack([x, x * 2], -1)


def repeated(x: Any) -> Any:
    return np.tile(x, (2, 2))


def differences(x: Any) -> Any:
    return np.diff(x.ravel())


def corner(x: Any) -> Any:
    return np.kron(x[:9, :9], np.ones((3, 3)))


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 0, 1)])
def test_arrays_that_are_flattened_and_shifted_are_copied(axes: Any) -> None:
    x = np.random.default_rng(0).normal(size=(30, 40, 50)).transpose(axes)
    for given in (x, x[:, :, 3:]):
        fused = fuse(differences, target="cpu")
        np.testing.assert_array_equal(fused(given), differences(given))
        assert list(fused.explain(given).templates) == [
            "transpose" if given.strides[-1] != 8 else "pointwise",
            "pointwise",
        ]


def update(x: Any) -> Any:
    x -= x.max(1, keepdims=True)
    return x.sum(0)


CASES = [
    (softmax, (300, 200), ["column"]),
    (softmax, (30, 20), ["column"]),
    (stencil, (300, 200), ["pointwise"]),
    (sums, (300, 200), ["column"]),
    (doubled, (300, 200), ["pointwise"]),
    (mixed, (300, 200), ["transpose", "row"]),
    (first_largest, (100, 50), ["transpose", "row"]),
    (first_largest, (30, 20), ["row"]),
    (repeated, (300, 200), ["transpose", "pointwise"]),
    (repeated, (30, 20), ["transpose"]),
    (stacked, (300, 200), ["short_loops"]),
    (differences, (100, 90), ["transpose", "pointwise"]),
    (corner, (100, 90), ["pointwise"]),
]


@pytest.mark.parametrize(("function", "shape", "templates"), CASES)
def test_kernels_do_not_read_large_inputs_across_their_loops(function: Any, shape: Any, templates: list[str]) -> None:
    x = np.asfortranarray(np.random.default_rng(0).normal(size=shape))
    fused = fuse(function, target="cpu")
    np.testing.assert_allclose(fused(x), function(x), rtol=1e-12, atol=1e-12)
    assert list(fused.explain(x).templates) == templates
    in_order = np.ascontiguousarray(x)
    np.testing.assert_allclose(fused(in_order), function(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1)])
@pytest.mark.parametrize(
    "function",
    [softmax, lambda x: (x - x.mean(-1, keepdims=True)).sum((0, 1)), lambda x: x.cumsum(-1), lambda x: np.roll(x, 5)],
)
def test_values_are_numpys_for_every_order_of_the_axes_and_every_size(function: Any, axes: Any) -> None:
    fused = fuse(function, target="cpu")
    random = np.random.default_rng(1)
    for shape in ((40, 31, 33), (2, 3, 4), (64, 64, 64), (1, 40, 900)):
        x = np.transpose(random.normal(size=[shape[k] for k in axes]), np.argsort(axes))
        np.testing.assert_allclose(fused(x), function(x), rtol=1e-10, atol=1e-10)


def test_an_updated_input_stays_where_it_is() -> None:
    x = np.asfortranarray(np.random.default_rng(2).normal(size=(300, 200)))
    plain = x.copy(order="F")
    fused = fuse(update, target="cpu")
    np.testing.assert_allclose(fused(x), update(plain), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(x, plain)
