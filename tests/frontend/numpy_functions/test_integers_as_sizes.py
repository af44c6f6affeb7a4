"""Integers that data decide as sizes, bounds and shifts: values as NumPy's, one trace for all of them above 1."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import TracefuseError, fori_loop, fuse, options


def count(x: Any) -> int:
    return int((x > 0).sum())


def assigned(x: Any) -> Any:
    y, k = np.zeros_like(x), count(x)
    y[:k] = x[:k]
    y[k:] += 1
    return y


def added_to_selected(x: Any) -> Any:
    y = x.copy()
    y[x > 0] += np.arange((x > 0).sum())
    return y


def between_last(x: Any) -> Any:
    """Two results of one loop, or of one op, are two integers."""
    first = last = 0
    for position in range(x.size):
        if x[position] > 0:
            first, last = max(position - 3, 0), position + 1
    return x[first:last] * 2


USES: dict[str, Callable[[Any], Any]] = {
    "x[:k]": lambda x: x[: count(x)] * 2,
    "x[:k] of a NumPy integer": lambda x: x[: (x > 0).sum()] * 2,
    "x[k:]": lambda x: x[count(x) :] * 2,
    "x[-k:]": lambda x: x[-count(x) :] * 2,
    "x[k::-1]": lambda x: x[count(x) :: -1] * 2,
    "x[:argmax]": lambda x: x[: np.argmax(x)],
    "x[k]": lambda x: x[count(x) - 1] * 2,
    "x[i, j]": lambda x: np.outer(x, x)[int(np.argmax(x)), int(np.argmin(x))],
    "x[i][:k]": lambda x: np.outer(x, x)[np.argmax(x)][: count(x)],
    "x[:len(selected)]": lambda x: x[: len(x[x > 0])],
    "zeros(k)": lambda x: np.zeros(count(x)) + 1,
    "ones((k, 2))": lambda x: np.ones((count(x), 2)) + 1,
    "full(k, v)": lambda x: np.full(count(x), x.max()),
    "empty(k)": lambda x: np.empty((x > 0).sum()).size,
    "insert(k)": lambda x: np.insert(x, count(x), 7.0),
    "delete(k)": lambda x: np.delete(x, count(x) - 1),
    "resize(k)": lambda x: np.resize(x, count(x)),
    "arange(k)": lambda x: np.arange(count(x)),
    "arange(-k, n)": lambda x: np.arange(-count(x), x.size, 2),
    "linspace(0, 1, k)": lambda x: np.linspace(0, 1, count(x)),
    "eye(k)": lambda x: np.eye(count(x)) * 2,
    "eye(n, k)": lambda x: np.eye(x.size, k=count(x)),
    "tri(k)": lambda x: np.tri(count(x)),
    "roll(x, k)": lambda x: np.roll(x, count(x)),
    "roll(x, -argmax)": lambda x: np.roll(x, -np.argmax(x)),
    "tile(x, k)": lambda x: np.tile(x, count(x)),
    "repeat(x, k)": lambda x: np.repeat(x, count(x)),
    "pad(x, k)": lambda x: np.pad(x, (0, count(x))),
    "split(x, [k])": lambda x: np.split(x, [count(x)])[1],
    "broadcast_to(x, (k, n))": lambda x: np.broadcast_to(x, (count(x), x.size)) * 1,
    "reshape(k, -1)": lambda x: np.zeros((count(x), 2)).reshape(2, -1),
    "reshape((k, 2))": lambda x: np.reshape(np.ones(2 * count(x)), (count(x), 2)),
    "sizes of two arrays": lambda x: np.zeros(count(x)) + x[x > 0],
    "k used as a number": lambda x: np.arange(count(x)) * count(x) + x.sum() / max(count(x), 1),
    "len of positions": lambda x: np.zeros(len(np.nonzero(x > 0)[0])),
    "mean by len": lambda x: x[x > 0].sum() / max(len(x[x > 0]), 1),
    "assigned": assigned,
    "between two variables of a loop": between_last,
    "added to selected": added_to_selected,
}  # fmt: skip


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.shape(found) == np.shape(expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


def of_count(k: int, size: int = 12) -> Any:
    x = np.linspace(-2, -1, size)
    x[:k] *= -1
    return np.roll(x, 3)


@pytest.mark.parametrize("name", USES)
def test_one_trace_serves_all_numbers_above_one(name: str) -> None:
    function = USES[name]
    fused = fuse(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning of many values
        for k in (5, 3, 8, 2, 7, 4, 6):
            same(fused(of_count(k)), function(of_count(k)))
    assert fused.cache_info().traces <= 3  # where a bound is beyond the other end, or argmax is 0


@settings(max_examples=times(20), deadline=None)
@given(name=st.sampled_from(list(USES)), counts=st.lists(st.integers(0, 6), min_size=2, max_size=4))
def test_any_number_gives_what_numpy_gives(name: str, counts: list[int]) -> None:
    function = USES[name]
    fused = fuse(function, target="reference")
    for k in counts:
        x = of_count(k, 6)
        try:
            expected = function(x.copy())
        except Exception as error:
            with pytest.raises(type(error)):
                fused(x.copy())
        else:
            same(fused(x.copy()), expected)


HOST_USES: dict[str, Callable[[Any, Any], Any]] = {
    "x[:int(rate * len(x))]": lambda x, s: x[: int(s * len(x) / 10)] * 2,
    "zeros(math.ceil(s)), split(x, [round(s)])": lambda x, s: (np.zeros(math.ceil(s)), *np.split(x, [round(s)])),
    "reshape by int(np.sqrt(len(x)))": lambda x, s: np.ones(int(np.sqrt(len(x))) ** 2).reshape(int(len(x) ** 0.5), -1),
    "x[k:] after a question": lambda x, s: x[int(s * 0.5) :] if x.sum() > 0 else x[: math.floor(s / 2)],
    "x * hanning(len(x)), len(x) >> 1": lambda x, s: x * np.hanning(len(x)) + np.kaiser(len(x), s) + (len(x) >> 1),
    "arange(0, s, 0.5), prod(shape)": lambda x, s: (np.arange(0, s, 0.5), x.reshape(np.prod(x.shape)) + s),
    "x[math.isqrt(len(x)):]": lambda x, s: x[math.isqrt(len(x)) :] * s,
    "x[:int(s * count)]": lambda x, s: x[: int(s * np.count_nonzero(x > 0) / 9)] + 1,
}


@pytest.mark.parametrize("name", HOST_USES)
def test_one_trace_serves_all_integers_above_one_that_the_host_computes(name: str) -> None:
    function = HOST_USES[name]
    fused = fuse(function)
    for size, number in ((12, 4.5), (12, 6.2), (15, 7.9), (12, 4.5), (18, 5.0)):
        x = np.linspace(-1, 2, size)
        for found, expected in zip(fused(x, number), function(x, number), strict=True):
            same(found, expected)
    assert fused.cache_info().traces == 1
    for found, expected in zip(fused(x, 0.3), function(x, 0.3), strict=True):  # 0 and 1 are other traces
        same(found, expected)


NUMBERS_OF_SIZES: list[tuple[Callable[[Any], Any], int]] = [
    (lambda x: (np.arange(math.comb(len(x), 2)), x * math.comb(len(x), 3)), 2),  # 1 is a trace of its own
    (lambda x: (x * math.gcd(len(x), 6), math.gcd(4, len(x), 2)), 5),
    (lambda x: (x[:1] * (len(x) << 3), len(x) << 1), 3),
    (lambda x: np.zeros(1 << (len(x) - 1).bit_length()) + x.sum(), 7),
]


@pytest.mark.parametrize(("function", "traces"), NUMBERS_OF_SIZES)
def test_binomials_divisors_and_bits_of_sizes_are_pythons_in_few_traces(function: Any, traces: int) -> None:
    fused = fuse(function, target="reference")
    for size in (*range(14), 31, 17, 32):
        x = np.linspace(-1, 2, size)
        for found, expected in zip(fused(x), function(x), strict=True):
            same(found, expected)
    assert fused.cache_info().traces <= traces


def test_negative_sizes_raise_before_anything_is_made() -> None:
    fused = fuse(lambda x: np.zeros(count(x) - 3) + x[0])
    for k in (5, 2, 6, 1):
        if k < 3:
            with pytest.raises(ValueError, match="negative dimensions"):
                fused(of_count(k))
        else:
            assert fused(of_count(k)).shape == (k - 3,)


def test_explain_shows_the_question_and_its_classes() -> None:
    fused = fuse(lambda x: x[: count(x)] * 2)
    for k in (0, 1, 4):
        fused(of_count(k))
    text = str(fused.explain(of_count(4)))
    assert "size from T" in text
    assert "test_integers_as_sizes.py:" in text
    assert all(f"\n  {answer}: result" in text for answer in ("0", "1", "many"))


def test_in_a_body_the_error_names_what_to_write() -> None:
    with pytest.raises(TracefuseError, match="body is recorded once"):
        fuse(lambda x: fori_loop(0, 3, lambda i, c: c + np.zeros(count(c)).sum(), x))(np.ones(3))


def test_the_length_of_an_argument_is_a_size() -> None:
    fused = fuse(lambda x: x.sum() / len(x) + len(x) // 2)
    for size in range(2, 8):
        assert fused(np.ones(size)) == 1 + size // 2
    assert fused.cache_info().traces == 1
    with options(target="reference"):
        assert fuse(lambda x: [len(x), range(len(x))])(np.ones(4)) == [4, range(4)]


FLOAT_USES: dict[str, Callable[[Any, float], Any]] = {
    "quantile": lambda x, s: np.quantile(x, s),
    "percentile of float32 at a computed number": lambda x, s: np.percentile(x.astype(np.float32), float(x.max()) * s),
    "pad": lambda x, s: np.pad(x, 1, constant_values=s),
    "histogram": lambda x, s: np.histogram(x, 4, range=(0, s))[0],
    "norm": lambda x, s: np.linalg.norm(x, 2 * s),
    "complex": lambda x, s: x * complex(s, len(x)),
    "truth": lambda x, s: x * s if s else x,
}


@pytest.mark.parametrize("name", FLOAT_USES)
def test_one_trace_serves_all_floats_that_a_call_passes(name: str) -> None:
    function = FLOAT_USES[name]
    fused, x = fuse(function), np.linspace(0.1, 1, 9)
    for number in (0.3, 0.45, 0.7, 0.9):
        found, expected = fused(x, number), function(x, number)
        same(found, expected)
    assert fused.cache_info().traces == 1


@pytest.mark.parametrize("function", [
    lambda x: np.insert(x, 1, 7.0), lambda x: np.insert(x, [3, -1, 0, 3], [1, 2, 3, 4]),
    lambda x: np.insert(np.stack([x, x]), -2, x[:2], axis=1), lambda x: np.insert(x, len(x) // 2, x),
    lambda x: np.delete(x, [-1, 0, 2, 0]), lambda x: np.delete(np.stack([x, x]), len(x) - 2, axis=1),
    lambda x: np.resize(x, int(len(x) * 1.5)), lambda x: np.geomspace(1 / len(x), 2 / len(x), 5),
    lambda x: np.average(x, weights=np.full(len(x), 0.5)),
])  # fmt: skip
def test_insertions_and_conditions_on_sizes_are_one_trace_for_all_sizes(function: Callable[[Any], Any]) -> None:
    fused = fuse(function)
    for extent in (8, 5, 13, 30):
        x = np.arange(extent) * 1.5
        result, expected = fused(x), function(x)
        np.testing.assert_allclose(result, expected, rtol=1e-15)
        assert result.dtype == expected.dtype
    assert fused.cache_info().traces == 1


def test_positions_outside_of_an_axis_raise_as_in_numpy_at_every_size() -> None:
    for text in ("np.insert(x, 7, 1)", "np.insert(x, -7, 1)", "np.delete(x, [0, 6])", "np.delete(x, -7)"):
        function = eval(f"lambda x: {text}")
        fused = fuse(function)
        for extent in (9, 6, 12, 3):
            try:
                expected = function(np.arange(extent))
            except IndexError as error:
                with pytest.raises(IndexError, match=str(error)):
                    fused(np.arange(extent))
            else:
                np.testing.assert_array_equal(fused(np.arange(extent)), expected)


DIAGONALS = (
    "np.diag(x, k)",
    "np.diag(x[0], k)",
    "np.trace(x, k)",
    "x.diagonal(-k)",
    "np.delete(x, slice(k, k + 2), 1)",
)


@pytest.mark.parametrize("text", DIAGONALS)
def test_a_trace_serves_all_diagonals_above_the_first_and_all_slices_that_are_left_out(text: str) -> None:
    function = eval(f"lambda x, k: {text}", {"np": np})
    fused = fuse(function, target="reference")
    x = np.arange(48.0).reshape(6, 8)
    for k in (1, 2, 3, 4, 5, 0, -1, -2, -4):
        np.testing.assert_array_equal(fused(x, k), function(x, k))
    assert fused.cache_info().traces <= 4


def test_parts_of_unequal_length_have_a_trace_for_their_number_whatever_the_extent() -> None:
    fused = fuse(lambda x, k: np.array_split(x, k), target="reference")
    for extent in (7, 8, 9, 12, 3, 2):
        for sections in (3, 5):
            x = np.arange(extent)
            for part, expected in zip(fused(x, sections), np.array_split(x, sections), strict=True):
                np.testing.assert_array_equal(part, expected)
    assert fused.cache_info().traces <= 4


@pytest.mark.parametrize("text", ["np.roll(x, k)", "np.repeat(x, k)", "np.array_split(x, k)", "np.roll(x[:, None], (k,), (0,))"])  # fmt: skip # noqa: E501
def test_a_float_is_cut_off_where_numpy_takes_its_integer(text: str) -> None:
    function = eval(f"lambda x, k: {text}", {"np": np})
    fused = fuse(function, target="reference")
    for k in (1.5, 2.0, 3, np.float32(2.9)):
        for result, expected in zip(fused(np.arange(6.0), k), function(np.arange(6.0), k), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_a_triangle_of_a_negative_number_of_rows_is_empty() -> None:
    fused = fuse(lambda x, k: np.tri(k) * x, target="reference")
    for k in (3, -1, 0, 2):
        np.testing.assert_array_equal(fused(2.0, k), np.tri(k) * 2.0)
