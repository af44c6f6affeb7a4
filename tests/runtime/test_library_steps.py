"""Loops whose compiled steps call functions of libraries through Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options


def reactions(rates: Any, uniforms: Any) -> Any:
    history, state = np.zeros(len(uniforms), dtype=int), np.ones(3)
    for k in range(len(uniforms)):
        chances = np.cumsum(rates * state)
        chosen = np.searchsorted(chances, uniforms[k] * chances[-1])
        state[chosen] += 1.0
        history[k] = chosen
    return history, state


def counts_of_columns(labels: Any, bins: int) -> Any:
    counts = np.zeros((bins, labels.shape[1]), dtype=int)
    for column in range(labels.shape[1]):
        counts[:, column] = np.bincount(labels[::-1, column], minlength=bins)
    return counts


def sorted_rows(table: Any, shift: Any) -> Any:
    for k in range(len(table)):
        row = np.sort(table[k, ::-1] * shift)
        table[k] = np.interp(table[k], row, np.arange(row.size)) + np.median(row)
    return table


def parts_of_growing_length(x: Any) -> Any:
    medians = np.zeros(len(x))
    for k in range(1, len(x)):
        medians[k] = np.median(x[:k]) + k
    return medians


RANDOM = np.random.default_rng(5)
CASES: dict[str, Any] = {
    "searchsorted": (reactions, lambda n: (RANDOM.random(3), RANDOM.random(n))),
    "bincount": (counts_of_columns, lambda n: (RANDOM.integers(0, 7, (40, n)), 7)),
    "sort, interp and median": (sorted_rows, lambda n: (RANDOM.random((n, 9)), 0.75)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_loop_calls_functions_of_libraries(name: str, caplog: pytest.LogCaptureFixture) -> None:
    program, make = CASES[name]
    fused = fuse(program, target="cpu")
    with caplog.at_level("DEBUG", logger="tracefuse"), options(debug=1):
        for count in (30, 50):
            arguments = make(count)
            copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
            np.testing.assert_equal(fused(*arguments), program(*copies))
            np.testing.assert_equal(arguments, tuple(copies))
    texts = [record.getMessage() for record in caplog.records]
    assert any("one compiled function runs its steps" in text for text in texts)
    assert not any("the host runs its steps" in text for text in texts)


def test_a_library_that_gets_an_array_whose_shape_depends_on_the_counter_runs_on_the_host() -> None:
    x = RANDOM.random(25)
    np.testing.assert_equal(fuse(parts_of_growing_length, target="cpu")(x)[1:], parts_of_growing_length(x)[1:])


def test_an_exception_of_a_library_in_a_compiled_loop_is_raised_and_arguments_are_unchanged() -> None:
    fused, labels = fuse(counts_of_columns, target="cpu"), RANDOM.integers(0, 7, (40, 30))
    np.testing.assert_equal(fused(labels, 7), counts_of_columns(labels, 7))
    labels[3, 20] = -1
    with pytest.raises(ValueError, match="negative"):
        fused(labels, 7)
    labels[3, 20] = 2
    np.testing.assert_equal(fused(labels, 7), counts_of_columns(labels, 7))


def test_linear_algebra_of_growing_matrices_in_a_loop_is_that_of_each_matrix() -> None:
    def determinants(a: Any) -> Any:
        found = np.zeros(len(a))
        for k in range(1, len(a)):
            found[k] = np.linalg.det(a[:k, :k])
        return found

    a = RANDOM.random((25, 25)) + 3 * np.eye(25)
    np.testing.assert_allclose(fuse(determinants, target="cpu")(a), determinants(a), rtol=1e-12)
