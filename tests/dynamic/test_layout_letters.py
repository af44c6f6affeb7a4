"""The letters of a layout: which axes are contiguous with which, and the strides that follow from them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracefuse import fuse
from tracefuse.dynamic.layouts import numbers_of_stride, strided, symbolic_strides
from tracefuse.ir.extents import evaluate, input_extent, substitute, symbols
from tracefuse.runtime.loop_plans import _strides


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Permuted, sliced and broadcast views of C-ordered arrays of int16."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    x = np.zeros(shape, np.int16).transpose(draw(st.permutations(range(len(shape)))))
    keys = st.sampled_from([slice(None), slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1)])
    x = x[tuple(draw(keys) for _ in shape)]
    if draw(st.booleans()):
        x = np.broadcast_to(x[..., None], (*x.shape, 3)).swapaxes(0, -1)
    return x


@given(views())
def test_strides_follow_from_the_letters_and_the_extents(x: np.ndarray) -> None:
    layout = strided(x.shape, x.strides, x.itemsize, True)
    strides = symbolic_strides(layout, tuple(map(input_extent, range(x.ndim))), 7)
    free = {s: x.strides[numbers_of_stride(s.name)[1]] // 2 for e in strides for s in symbols(e) if s.id is None}
    sizes = {symbol.id: x.shape[k] for k in range(x.ndim) for symbol in symbols(input_extent(k))}
    assert layout.axes.count("s") == len(free)
    if math.prod(x.shape):
        known = [2 * evaluate(substitute(stride, free), sizes) for stride in strides]
        assert all(n == 1 or a == b for a, b, n in zip(known, x.strides, x.shape, strict=True))
        placeholder = [2 * stride for stride in _strides(x.shape, layout)]
        assert strided(x.shape, placeholder, 2, True) == layout


def letters(x: np.ndarray) -> str:
    return strided(x.shape, x.strides, x.itemsize, True).axes


def test_letters_name_the_axis_within() -> None:
    x = np.zeros((4, 5, 6))
    assert [letters(x.transpose(p)) for p in ((2, 1, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2))] == [
        "1AB", "1cA", "C1B", "CA1"
    ]  # fmt: skip
    assert [letters(y.T) for y in (x[1:], x[:, 1:], x[:, :, 1:], x[::2], x[:, ::-1], x[:, :1])] == [
        "1AB", "1As", "1sB", "1As", "1ss", "10s"
    ]  # fmt: skip
    assert letters(np.lib.stride_tricks.sliding_window_view(np.zeros(9), 3)) == "11"


def test_transposed_arrays_of_other_sizes_have_one_plan() -> None:
    fused = fuse(lambda x: x.max() + x.sum(0))
    for shape in ((30, 7, 40), (31, 9, 43), (29, 11, 50)):
        x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape).transpose(2, 0, 1)
        np.testing.assert_array_equal(fused(x), x.max() + x.sum(0))
    assert fused.cache_info().compiles == 1
