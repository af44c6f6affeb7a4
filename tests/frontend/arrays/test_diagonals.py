"""Diagonals, and integer arrays that count on: read and written as NumPy does, and in place in an argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segments import Alias, AllocateBuffer
from tracefuse import fuse


def added_on_the_diagonal(x: Any, s: Any) -> None:
    i = np.arange(x.shape[0])
    x[i, i] += s


def beside_the_diagonal(x: Any, s: Any) -> None:
    i = np.arange(x.shape[0] - 1)
    x[i, i + 1] = x[i + 1, i] * s
    x[i + 1, i] = s


def filled(x: Any, s: Any) -> None:
    np.fill_diagonal(x, s)
    np.fill_diagonal(x[1:], [s, 2, 3])


def scaled_view(x: Any, s: Any) -> None:
    diagonal = np.einsum("ii->i", x)
    diagonal *= s
    diagonal[1:3] += 1


def view_of_a_view(x: Any, s: Any) -> None:
    diagonal = np.einsum("ii->i", x.T[::-1])
    diagonal -= s


def of_indices(x: Any, s: Any) -> None:
    x[np.diag_indices_from(x)] = s


def updated_by_ufuncs(x: Any, s: Any) -> None:
    i = np.arange(1, 4)
    np.add.at(x, (i, i), s)
    np.multiply.at(x, 2 * i - 1, s)


def rows_in_steps(x: Any, s: Any) -> None:
    i = np.arange(0, x.shape[0], 2)
    x[i] += s
    x[:, 5 - np.arange(3)] = s  # the positions count down
    x[i, 2] = [1, 2, 3]


def read(x: Any, s: Any) -> Any:
    i = np.arange(3)
    taken = x[i, i]
    taken += s  # a copy
    return taken, x[:, i + 1], x[[1, 2, 3]], x[2 * i, 5 - i], x[-i], x[i - 1], np.diagonal(x, 1), np.trace(x, -2)


UPDATES = [added_on_the_diagonal, beside_the_diagonal, filled, scaled_view, view_of_a_view, of_indices]
FUNCTIONS = [*UPDATES, updated_by_ufuncs, rows_in_steps, read]
LAYOUTS = (np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::-2])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_diagonals_are_read_and_written_as_numpy_does(function: Any) -> None:
    fused = fuse(function, target="reference")
    for arrange in LAYOUTS:
        x, expected = (arrange(np.random.default_rng(1).random((6, 6))) for _ in range(2))
        result, wanted = fused(x, 0.5), function(expected, 0.5)
        np.testing.assert_array_equal(x, expected)
        for one, other in zip(result or (), wanted or (), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("function", [added_on_the_diagonal, of_indices], ids=lambda f: f.__name__)
def test_a_diagonal_of_an_argument_is_written_in_place_at_every_size(function: Any) -> None:
    fused = fuse(function)
    for size in (6, 9):
        x, expected = np.ones((size, size)), np.ones((size, size))
        fused(x, 0.5)
        function(expected, 0.5)
        np.testing.assert_array_equal(x, expected)
    assert fused.cache_info().traces == 1
    instructions = fused.host_program(np.ones((8, 8)), 0.5).program.instructions
    assert any(isinstance(one, Alias) for one in instructions)
    assert not any(isinstance(one, AllocateBuffer) for one in instructions)


def column_doubled(x: Any) -> None:
    x[:, 3] *= 2


def column_beside_another(x: Any) -> None:
    x[:, 3] += x[:, 4]


def middle_matrix(x: Any) -> None:
    x[:, 2, 1:] -= 1


def turned(x: Any) -> None:
    x[1:5, 1:5] = x[1:5, 1:5].T * 2


@pytest.mark.parametrize(
    ("function", "rank", "in_place"),
    [(column_doubled, 2, True), (column_beside_another, 2, True), (middle_matrix, 3, True), (turned, 2, False)],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_a_slice_with_dropped_axes_is_written_in_place(function: Any, rank: int, in_place: bool) -> None:
    fused = fuse(function)
    for arrange in LAYOUTS[:2]:
        x, expected = (arrange(np.random.default_rng(4).random((6,) * rank)) for _ in range(2))
        fused(x)
        function(expected)
        np.testing.assert_array_equal(x, expected)
    instructions = fused.host_program(np.ones((6,) * rank)).program.instructions
    assert any(isinstance(one, AllocateBuffer) for one in instructions) is not in_place


def test_diagonals_of_several_axes() -> None:
    def function(x: Any) -> Any:
        i = np.arange(4)
        x[i, :, i] += 1
        x[:, i, i + 1] = x[i, i, i]
        np.fill_diagonal(x[:, :, 1:], [1, 2])
        return x[i, 0], x[0, i, i], x[i, :, i]

    x, expected = (np.random.default_rng(2).random((4, 4, 5)) for _ in range(2))
    for one, other in zip(fuse(function, target="reference")(x), function(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(x, expected)


def swapped(x: Any, i: Any, j: Any) -> None:
    x[i] = x[j]


def accumulated(x: Any, i: Any, j: Any) -> None:
    np.add.at(x, (i, j), x[j, i])


def assigned(x: Any, i: Any, j: Any) -> Any:
    total = x.sum()
    x[i, j] = x[0, j] * 2
    return total


@pytest.mark.parametrize("function", [swapped, accumulated, assigned], ids=lambda f: f.__name__)
def test_elements_at_positions_are_updated_in_place_after_what_is_read(function: Any) -> None:
    fused = fuse(function)
    for arrange in LAYOUTS[:2]:
        x, expected = (arrange(np.random.default_rng(3).random((6, 6))) for _ in range(2))
        i, j = np.array([[1, -5, 3, 1], [2, 2, 0, -1]])
        result, wanted = fused(x, i, j), function(expected, i, j)
        np.testing.assert_array_equal(x, expected)
        if wanted is not None:
            np.testing.assert_allclose(result, wanted)
        before = x.copy()
        with pytest.raises(IndexError):
            fused(x, i + 6, j)
        np.testing.assert_array_equal(x, before)
    program = fused.host_program(np.ones((6, 6)), i, j)
    assert any(isinstance(one, Alias) for one in program.program.instructions)


def test_positions_outside_raise_as_in_numpy() -> None:
    def function(x: Any) -> None:
        i = np.arange(x.shape[0])
        x[i, i + 1] = 0

    with pytest.raises(IndexError):
        fuse(function)(np.ones((4, 4)))
