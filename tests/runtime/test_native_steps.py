"""Loops whose compiled steps call C functions of NumPy: the draws of a generator are those of its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options


def draws_of_each_method(generator: Any, count: int) -> Any:
    table, total, picked, level = np.zeros((count, 3)), 0.0, np.zeros(count, dtype=int), 0.5
    for i in range(count):
        table[i] = generator.normal(size=3)
        total = total + generator.uniform(-2, 3)
        table[i, 0] += generator.standard_normal()
        if generator.random() < 0.5:
            picked[i] = generator.integers(0, 10)
        elif generator.random() < 0.2:
            picked[i] = generator.integers(-5, 2**40)
        level = generator.normal(level, 0.25)
        picked[i] += generator.integers(i + 1)
        table[i] += generator.exponential(2.0, size=3)
    return table, total, picked, level


GENERATORS: tuple[Callable[[int], Any], ...] = (
    np.random.default_rng,
    lambda seed: np.random.Generator(np.random.MT19937(seed)),
)


@pytest.mark.parametrize("make", GENERATORS, ids=["PCG64", "MT19937"])
def test_a_compiled_loop_draws_the_numbers_of_the_methods(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    fused = fuse(draws_of_each_method, target="cpu")
    with caplog.at_level("DEBUG", logger="tracefuse"), options(debug=1):
        for count in (40, 60):
            ours, theirs = make(count), make(count)
            for result, expected in zip(fused(ours, count), draws_of_each_method(theirs, count), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-13)
            assert ours.random() == theirs.random()
    texts = [record.getMessage() for record in caplog.records]
    assert any("one compiled function runs its steps" in text for text in texts)
    assert not any("the host runs its steps" in text for text in texts)


def test_a_draw_that_raises_leaves_the_generator_as_numpy_does() -> None:
    def shrinking(generator: Any, count: int) -> Any:
        total = np.zeros(count)
        for i in range(count):
            total[i] = generator.random() + generator.integers(0, 20 - i)
        return total

    fused = fuse(shrinking, target="cpu")
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    assert np.array_equal(fused(ours, 18), shrinking(theirs, 18))
    for function, generator in ((fused, ours), (shrinking, theirs)):
        with pytest.raises(ValueError, match="high"):
            function(generator, 25)
    assert ours.random() == theirs.random()
