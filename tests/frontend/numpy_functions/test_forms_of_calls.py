"""Parameters, positions and masks that NumPy takes beside the usual ones: results, updated arguments and errors."""

from __future__ import annotations

import functools
import json
import warnings
import zlib
from typing import Any

import numpy as np
import pytest

from tests.frontend.compared_calls import why_different
from tests.programs.comparison import difference
from tracefuse import fuse

X = np.arange(12.0).reshape(3, 4)
X[1, 2] = np.nan
INTS = np.array([0, 2, 1, 0])
OUTSIDE = np.array([1, 3, -1])
BELOW = np.array([[-np.inf, -0.0, 4, 2], [0.0, 1, -3, np.nan], [-np.inf, 1, -0.0, -np.inf]])
NOTHING = np.zeros(0, bool)
BYTES = np.array([[1, 200], [3, 4]], np.uint8)

CALLS: dict[str, tuple[Any, ...]] = {
    # positions out of range
    "np.choose(a, [b, 1, 2])": (INTS, X),
    "np.choose(a, [1, 2, 3])": (OUTSIDE,),
    "np.choose(a, [1, 2, 3], mode='wrap')": (OUTSIDE,),
    "np.choose(a, [1, 2], mode='clip')": (OUTSIDE,),
    "np.unravel_index(a, (2, 2))": (OUTSIDE,),
    "np.unravel_index(a, (2, 3), order='F')": (INTS,),
    "np.ravel_multi_index((a, 1), (2, 3))": (OUTSIDE,),
    "np.ravel_multi_index((a, a), (3, 4), order='F')": (INTS,),
    "np.ravel_multi_index((a, a), (3, 4, 5))": (INTS,),
    "np.partition(a, 9)": (X,),
    "np.partition(a, 1, axis=None)": (X,),
    "np.argpartition(a, [0, 1], axis=None).shape": (X,),
    "np.compress([True, False], a, axis=0)": (INTS[:0].reshape(0, 3, 0),),
    # masks without elements
    "a[b]": (X, NOTHING),
    "a[:, b]": (X, NOTHING),
    "(a.__setitem__(b, 2), a + 0)[1]": (X, NOTHING),
    "a[np.zeros((0, 4), bool)]": (X,),
    "a[np.zeros((0, 3), bool)]": (X,),
    "isinstance(a[a > 0], np.ndarray)": (X,),
    # indices without axes
    "(y := a[b], y.fill(7), a + 0)[2]": (X, np.array(1)),
    "(y := a[:, b], y.fill(7), a + 0)[2]": (X, np.array(1)),
    "(y := a[np.int64(1)], y.fill(7), a + 0)[2]": (X,),
    # arrays that take results
    "np.nanmax(a, 0, b)": (X, np.zeros(4, np.int16)),
    "np.nanmedian(a, 0, b)": (X, np.zeros(4, np.int64)),
    "np.nanmean(a, 0, out=b)": (X, np.zeros(4, np.int64)),
    "np.nanargmin(a, 0, b)": (X, np.zeros(4, np.uint16)),
    "np.nanargmin(a, 0, b) ": (X, np.zeros(4)),
    "np.isneginf(a, b)": (X, np.ones((3, 4), np.int8)),
    "np.subtract.accumulate(a, 1, None, b)": (BYTES, np.zeros((2, 2), np.int64)),
    "np.gcd.reduce(a, 0, out=b)": (BYTES, np.zeros(2, np.int16)),
    "np.nanmedian(a, axis=1, keepdims=True, out=b)": (X, np.zeros((2, 3, 4), np.float32)),
    "(np.percentile(b, 30, axis=0, keepdims=True, out=a), a + 0)[1]": (np.zeros((2, 3)), X[:2, :3]),
    "np.median(a, keepdims=True, out=b) is b": (INTS, np.zeros(3)),
    "(y := a * 1, np.concatenate([[7, 8], y[:-2]], out=y), y)[2]": (INTS,),
    "(y := a * 1, np.stack([y[2:], y[:2]], 1, out=y.reshape(2, 2)), y)[2]": (INTS,),
    "np.logaddexp2(1.5, 0.5, out=a)": (X,),
    "np.hypot(np.float32(1), 2, out=a, where=a > 3)": (X,),
    # elements in the memory that takes them
    "(y := a * 1, np.place(y, y > 0, y), y)[2]": (INTS,),
    "(y := a * 1, y.flat.__setitem__([3, 2, 1], y), y)[2]": (INTS,),
    "(y := a * 1, y.flat.__setitem__(slice(None), y[::-1] * 1), y)[2]": (INTS,),
    "(y := a > 1, y.flat.__setitem__(0, b), y)[2]": (INTS, np.ones((1, 1))),
    "a.flat.__setitem__(2, b)": (X, np.ones(1)),
    # no elements, no axes
    "np.nanquantile(a, [0.5, 0.1])": (X[:0],),
    "np.nanpercentile(a, [10, 20], axis=1)": (INTS[:0].reshape(3, 0),),
    "np.logaddexp.reduce(a)": (np.array(2.0),),
    "np.nonzero(a)": (np.array(2.0),),
    "np.where(a)": (np.array(2.0),),
    "(y := np.nan_to_num(a, copy=False), isinstance(y, np.ndarray), a + 0)": (np.array(np.inf),),
    "np.linalg.pinv(a)": (INTS[:0].reshape(0, 3),),
    "np.nanquantile(a, [[0.5, 0.1]], axis=())": (X,),
    "np.nanpercentile(a, [[50], [10]], axis=(0, -1), keepdims=True)": (X.reshape(3, 2, 2),),
    "[np.var(a, ddof=1, dtype=complex), np.std(a, ddof=1, mean=b, dtype=complex)]": (INTS[:1] > 0, X[:1, 1]),
    # exponents of one element, of which NumPy takes the root
    "[a ** b, np.power(a, b), np.float_power(a, b), np.power.outer(a, b)]": (BELOW, np.array(0.5)),
    "[a ** b, np.power(a * 1, b * 1), np.float_power(a, b), np.power.outer(a, b)]": (BELOW, np.array([0.5])),
    "[a ** b, a[:2] ** b, a[0, 0] ** b, a[:1, 0] ** b[:1]]": (BELOW, np.array([0.5, 2, 0.5, 0.5])),
    "[a ** b, np.power(a, b), np.power(a, np.float16(b)), a ** 0.5]": (np.array([-np.inf, -0.0, 2], np.float16), 0.5),
    # other parameters
    "np.logical_xor(a, 1 << 63)": (INTS,),
    "np.cumsum(a, True)": (X,),
    "np.concatenate([a, a], axis=False)": (X,),
    "np.take(a, 0, axis=True)": (X,),
    "np.diff(a, axis=True)": (X,),
    "np.median(a, axis=np.True_)": (X,),
    "np.gradient(a, axis=(0, -2))": (X,),
    "np.vecdot(a, a, axis=True)": (X,),
    "np.zeros((bool(a[0] > 9), 2))": (INTS,),
    "a.reshape(-1, True)": (X,),
    "np.tile(a, True)": (X,),
    "np.roll(a, True)": (X,),
    "np.roll(a, (True, 2), (0, 1))": (X,),
    "np.ix_(a, a[0])": (INTS,),
    "np.gradient(a[0, 0], a[0])": (X,),
    "np.linspace(a[0], range(4), 3)": (X,),
    "[a.astype(np.float64(2)), a.astype(np.float32(2))]": (X,),
    "[np.fabs(a.shape[0]), np.fabs(a.ndim), np.fabs(b), np.fabs(a.astype(np.int8))]": (INTS, -3),
    "[np.reciprocal(bool(a[0] > 9)), np.reciprocal(a > 0)]": (INTS,),
    "np.trapezoid(a[0], (a[1], a[2]))": (X[:, :2].repeat(2, 1),),
    "np.tril(a, 1.5)": (X,),
    "np.clip(a, 1, min=None, max=None)": (X,),
    "np.nanmedian(a, keepdims=np.True_)": (X[:0],),
    "np.count_nonzero(a, keepdims=np.False_)": (X,),
    "np.clip(a, a_max=1)": (X,),
    "np.clip(a, 1, 2, max=3)": (X,),
    "np.clip(a, max=b)": (X, 3),
    "np.clip(a, None, b)": (X, 3),
    "np.take_along_axis(a.tolist(), a, 0)": (INTS,),
    "np.take_along_axis(float(a.sum()), a, 0)": (INTS,),
    "(y := a.reshape(-1, copy=True), y.fill(7), a + 0)[2]": (INTS,),
    "np.require(a, requirements=['W', 'F']).T.ravel()": (X,),
    "np.unpackbits(a, axis=1, count=20)": (BYTES,),
    "np.unpackbits(a, count=-3)": (BYTES,),
    "np.unpackbits(a, count=-99)": (BYTES,),
    "np.einsum('ij->j', a, dtype=np.float32)": (X,),
    "np.einsum('ij->j', a, dtype=np.float32, casting='same_kind')": (X,),
    "np.trace(a, 0, 1, -1)": (X,),
    "np.polysub(a, [[1], [2], [3]])": (X,),
    "np.errstate(all='ignore')(lambda v: v / 0)(a)": (X,),
    "np.errstate(all='raise')(lambda v: v / 2)(a)": (X,),
    "[np.power(a, b), np.sign(b), np.divide(b, np.sign(b)), np.divide(b, 2)]": (INTS, 2),
    "np.select([a > 1, a > 0], [a, b], -200)": (INTS.astype(np.int16), INTS.astype(np.uint8)),
    "np.unwrap(a, period=7)": (INTS.astype(np.int8),),
    "np.unwrap(a)": (INTS.astype(np.uint8),),
    "np.average(a, 0, a)": (X[:0],),
    "np.nanquantile(a, 1.5)": (X[:0],),
    "np.add.reduce(a, dtype=np.float32)": (INTS + 1j,),
    "json.dumps({'total': [float(a.sum())], 'size': a.shape[0]}, indent=2)": (INTS,),
    "json.dumps(a)": (INTS,),
    # updates that NumPy casts one by one
    "(y := a * 1, np.add.at(y, b, 1.5), y)[2]": (INTS, INTS),
    "(y := a * 1, np.multiply.at(y, (b, b), 0.5), y)[2]": (BYTES, np.array([0, 1, 1])),
}  # fmt: skip
REFUSED = {
    "(y := a * 1, np.place(y, y > 0, y), y)[2]": "write np.place(x, mask, values.copy())",
    "(y := a * 1, y.flat.__setitem__([3, 2, 1], y), y)[2]": "write x.flat[key] = values.copy()",
    "np.errstate(all='raise')(lambda v: v / 2)(a)": "check the result",
}
"""What to write instead of calls that are refused."""


@pytest.mark.parametrize("text", CALLS)
def test_calls_are_those_of_numpy(text: str) -> None:
    function = eval(f"lambda {', '.join('ab'[: len(CALLS[text])])}: {text.strip()}", {"np": np, "json": json})
    make = functools.partial(
        lambda values: tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values), CALLS[text]
    )
    why = why_different(function, make)
    if text in REFUSED:
        assert why is not None
        assert REFUSED[text] in why
    else:
        assert why is None


def logarithm_or_message(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.log(x)
        except RuntimeWarning as warning:
            return str(warning)


def number_of_warnings(x: Any) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.log(x)
    return len(caught)


@pytest.mark.parametrize("function", [logarithm_or_message, number_of_warnings])
def test_a_function_that_reads_numpys_warnings_runs_as_it_is(function: Any) -> None:
    fused = fuse(function)
    with pytest.warns(UserWarning, match="checks no floating-point errors: from there on, calls run the function"):
        fused(np.ones(3))
    assert fused(np.zeros(3)) == function(np.zeros(3))


def digests(x: Any) -> Any:
    text = json.dumps([round(float(v), 3) for v in x[:2]])
    return zlib.crc32((x * 2).tobytes()), np.frombuffer(x[::2].tobytes()) + 1, len(x.T.tobytes("F")), text


def test_bytes_and_texts_of_a_call_are_those_of_numpy() -> None:
    fused = fuse(digests, target="reference")
    for seed in (0, 1, 0):
        x = np.random.default_rng(seed).random(6)
        assert difference(fused(x), digests(x), "result") is None
    assert fused.cache_info().traces == 2
