"""Masked arrays that a traced function creates compute what they do in the plain program, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import UnsupportedError, fuse


def summaries(x: Any) -> Any:
    m = np.ma.masked_where(x > 0.5, x)
    return m.mean(), m.filled(0), m.count(), len(m), np.ma.median(m), np.mean(m), isinstance(m, np.ma.MaskedArray)


def equalised(x: Any) -> Any:
    counts = np.ma.masked_equal((x * 10).astype(int).cumsum(), 0)
    counts = (counts - counts.min()) * 255 / (counts.max() - counts.min())
    return np.ma.filled(counts, 0).astype("uint8")


def operators(x: Any) -> Any:
    m = np.ma.array(x, mask=x < 0.2)
    return (x + m).filled(0), (m * 2 + 1).sum(), m.mask, m.data * 2, np.exp(m).filled(0), np.ma.sqrt(m).filled(9)


def joined(x: Any) -> Any:
    valid = np.ma.masked_invalid(np.log(x - 0.3))
    rows = np.ma.masked_array(np.stack([x, x]), mask=np.stack([x < 0.3, x > 0.9]))
    joined = np.ma.concatenate([valid, valid])
    return np.sqrt(abs(valid)).filled(-1), rows.mean(axis=0).filled(0), rows[1].compressed() + 1, joined.count()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [summaries, equalised, operators, joined])
def test_masked_arrays_of_computed_arrays_give_what_the_plain_program_does(function: Callable[[Any], Any]) -> None:
    fused = fuse(function, target="reference")
    for size in (6, 6, 9):
        x = np.random.default_rng(size).random(size)
        results, expected = fused(x), function(x)
        if not isinstance(expected, tuple):
            results, expected = (results,), (expected,)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, value)
            assert np.asarray(result).dtype == np.asarray(value).dtype


def assigned(x: Any) -> Any:
    m = np.ma.masked_where(x > 0.5, x)
    m[0] = 3
    return m.sum()


def masked_anew(x: Any) -> Any:
    m = np.ma.masked_where(x > 0.5, x)
    m.mask = x > 0.2
    return m.sum()


def increased(x: Any) -> Any:
    m = k = np.ma.masked_where(x > 0.5, x)
    m += 1
    return k.sum()


def filled_in_place(x: Any) -> Any:
    np.ma.masked_where(x > 0.5, x).put([0], [1])
    return x


def written_behind(x: Any) -> Any:
    m = np.ma.array(x)
    x[0] = 5
    return m.sum()


def written_view(x: Any) -> Any:
    m = np.ma.array(x + 1)
    data = m.data
    data[0] = 5
    return m.sum()


REFUSED = [
    (assigned, r"masked_where\[...\] = ... changes a MaskedArray"), (masked_anew, r"masked_where.mask = ... changes"),
    (increased, "masked_where iadd changes"), (filled_in_place, r"masked_where.put\(\) changes"),
    (written_behind, "used after an array that it may refer to was written"),
    (written_view, "used after an array that it may refer to was written"),
    (lambda x: np.ma.masked_where(x > 0.5, x), "the result is a MaskedArray"),
    (lambda x: np.ma.masked_where(x > -1, x).mean(), "it returns np.ma.masked"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_changes_or_returns_a_masked_array_is_refused(function: Callable[[Any], Any], message: str) -> None:
    x = np.array([0.1, 0.4, 0.7])
    with pytest.raises(UnsupportedError, match=message):
        fuse(function, target="reference")(x)
    np.testing.assert_array_equal(x, [0.1, 0.4, 0.7])
