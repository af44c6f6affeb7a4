"""Every name of memory sees what is written through a view; layouts decide between views and copies as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.arrays.written_vectors import CAPTURED, leaves
from tracefuse import fuse


def view_written(x: Any) -> None:
    part = x[1:]
    part += 1


def view_alive(x: Any) -> Any:
    part = x.reshape(-1)
    x += 1
    return part


def turned(x: Any) -> None:
    np.add(x.T, 1, out=x.T)


def element(x: Any) -> None:
    x[0] = 1


def everything(x: Any) -> None:
    x[...] = 1


def temporary(x: Any) -> Any:
    made = x * 2
    part = made[1:]
    made += 1
    return part


def base_of_changed(x: Any) -> Any:
    made = x * 2
    part = made[1:]
    part += 1
    return made


def captured(x: Any) -> None:
    global CAPTURED
    CAPTURED += x


def into_captured(x: Any) -> None:
    np.add(x, 1, out=CAPTURED)


@pytest.mark.parametrize(
    "function", [view_written, view_alive, turned, element, everything, temporary, base_of_changed],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_every_name_of_changed_memory_sees_the_change(function: Any) -> None:
    x, own = np.ones(5), np.ones(5)
    expected = function(own)
    for made, wanted in zip(leaves(fuse(function)(x)), leaves(expected), strict=True):
        np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(x, own)


@pytest.mark.parametrize("function", [captured, into_captured], ids=lambda function: function.__name__)
def test_a_captured_array_is_changed_at_every_call(function: Any) -> None:
    fused, x, before = fuse(function), np.ones(5), CAPTURED.copy()
    wanted = function(x.copy())
    after = CAPTURED.copy()
    assert not np.array_equal(after, before)
    CAPTURED[...] = before
    for _ in range(2):
        np.testing.assert_array_equal(fused(x.copy()), wanted)
        np.testing.assert_array_equal(CAPTURED, after)
        CAPTURED[...] = before


def splits_and_joins(x: Any) -> None:
    x.reshape(2, 3, 4)[1, 2] = 4
    x[None, 1:3].reshape(-1)[0] = 5


def writes_flat(x: Any) -> Any:
    flat = x.reshape(-1)
    flat += 1
    return x * 1


def reads_flat(x: Any) -> Any:
    flat, turned = x.ravel(), x.T.reshape(-1)
    part = turned[1:3]
    x += 1
    part *= 2
    return flat * 1, turned * 1, part[0]


def reshapes_views(x: Any) -> Any:
    split = x.reshape(2, 3, 2, 2)
    joined = split.transpose(2, 3, 0, 1).reshape(-1)
    joined[0] = 9
    split[1] = 3
    return joined * 1, split.sum()


LAYOUTS = (
    lambda x: x, np.asfortranarray, lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    lambda x: x[::-1].copy()[::-1],
    lambda x: np.concatenate([x, x], 1)[:, :4],
)  # fmt: skip


@pytest.mark.parametrize("function", [splits_and_joins, writes_flat, reads_flat, reshapes_views])
def test_the_layout_of_an_argument_decides_between_a_view_and_a_copy_as_in_numpy(function: Any) -> None:
    fused = fuse(function, target="reference")
    for arrange in (*LAYOUTS, *LAYOUTS):
        own, expected = (arrange(np.arange(24.0).reshape(6, 4)) for _ in range(2))
        wanted = function(expected)
        result = fused(own)
        for made, right in zip(leaves(result), leaves(wanted), strict=True):
            np.testing.assert_array_equal(made, right)
        np.testing.assert_array_equal(own, expected)
    assert fused.cache_info().traces <= len(LAYOUTS)


def test_a_plan_of_one_layout_does_not_serve_another() -> None:
    fused = fuse(writes_flat)
    for arrange in (*LAYOUTS[:2], *LAYOUTS[:2]):
        own, expected = (arrange(np.arange(24.0).reshape(6, 4)) for _ in range(2))
        np.testing.assert_array_equal(fused(own), writes_flat(expected))
        np.testing.assert_array_equal(own, expected)
    assert fused.cache_info().traces == 2


_SHAPES = st.lists(st.integers(1, 4), min_size=2, max_size=4)


def _reshaped_after_work(x: Any) -> Any:
    y = np.sqrt(x + 1).astype(np.float32)
    flat = y.reshape(y.shape[0] * y.shape[1], *y.shape[2:])
    flat[...] = flat * 2 + 1
    return y, flat, np.transpose(y).ravel()


_FUSED_RESHAPED = fuse(_reshaped_after_work, target="reference")


@given(_SHAPES, st.randoms(use_true_random=False), st.booleans())
def test_the_result_of_a_permuted_operand_is_reshaped_as_numpy_does(shape: list[int], random: Any, steps: bool) -> None:
    order = random.sample(range(len(shape)), len(shape))
    x = np.ascontiguousarray(np.arange(float(np.prod(shape))).reshape(shape).transpose(order))
    x = x.transpose(np.argsort(order))[::-1] if steps else x.transpose(np.argsort(order))
    for got, want in zip(_FUSED_RESHAPED(x), _reshaped_after_work(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_reshaped_result_is_a_view_or_a_copy_by_the_layout_of_the_operands() -> None:
    def function(x: Any) -> Any:
        y = x * np.ones((2, 2)) * 2
        y.reshape(-1)[0] = 7
        return y

    fused = fuse(function)
    for x in (np.ones((2, 2)), np.asfortranarray(np.ones((2, 2))), np.ones((4, 2))[::2]):
        np.testing.assert_array_equal(fused(x), function(x))
