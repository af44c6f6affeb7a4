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


def linear_algebra_in_a_loop(a: Any, b: Any) -> Any:
    rows = np.zeros((len(b), 12))
    for k in range(len(b)):
        m = a + 0.1 * b[k] * np.eye(len(a))
        x = np.linalg.solve(m, m[0])
        spd = m @ m.T + np.eye(len(a))
        values, vectors = np.linalg.eigh(spd)
        left, singular, right = np.linalg.svd(m)
        sign, logarithm = np.linalg.slogdet(m)
        numbers = (
            x.sum(), np.linalg.inv(m)[0, 1], np.linalg.cholesky(spd)[1, 0], np.linalg.solve(m, spd)[1, 2],
            values[0] + np.linalg.eigvalsh(spd, UPLO="U")[1], abs(vectors).sum(), singular[1],
            (left * singular @ right)[1, 0], np.linalg.det(m), sign, logarithm, np.linalg.svd(m, compute_uv=False)[0],
        )  # fmt: skip
        for place, number in enumerate(numbers):
            rows[k, place] = number
    return rows


def transforms_in_a_loop(a: Any, b: Any) -> Any:
    wave, total = a[0] + 1j * a[1], np.zeros(len(b))
    for k in range(len(b)):
        wave = np.fft.ifft(np.exp(-0.1j * b[k]) * np.fft.fft(wave))
        table = np.fft.fft2(np.outer(wave, wave), norm="forward")
        real = np.fft.irfft(np.fft.rfft(wave.real, norm="ortho"), 7) + np.fft.irfft(np.fft.rfft(wave.imag, 5), n=7)
        real = real + np.fft.fft(wave, 7).real + np.fft.ifft(wave, 3, norm="forward")[0].imag
        columns = np.fft.ifft(table, axis=0) + np.fft.rfft2(a)[0, 0]
        total[k] = abs(table).sum() + real.sum() + abs(columns).sum() + abs(np.fft.ifft2(table)).max()
    return total, wave


def products_in_a_loop(a: Any, b: Any) -> Any:
    total, stack = np.zeros(len(b)), np.stack([a, a.T, a + 1])
    for k in range(len(b)):
        c = (a + b[k]) @ a.T
        d = np.tensordot(stack, c, axes=([1], [0])) + np.einsum("ijk,ikl->ijl", stack, stack.transpose(0, 2, 1))
        total[k] = c.sum() + d.sum() + a[0] @ c @ a[1]
    return total


@pytest.mark.parametrize(
    "program", [linear_algebra_in_a_loop, transforms_in_a_loop, products_in_a_loop], ids=lambda p: p.__name__
)
def test_a_compiled_loop_calls_the_functions_behind_numpys_ufuncs(
    program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fused, random = fuse(program, target="cpu"), np.random.default_rng(3)
    with caplog.at_level("DEBUG", logger="tracefuse"), options(debug=1):
        for size in (4, 6):
            a, b = random.normal(size=(size, size)) + size * np.eye(size), random.normal(size=20)
            for result, expected in zip(fused(a, b), program(a, b), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)
    texts = [record.getMessage() for record in caplog.records]
    assert sum("one compiled function runs its steps" in text for text in texts) >= 1
    assert not any("the host runs its steps" in text for text in texts)


def test_a_singular_matrix_in_a_compiled_loop_raises_as_numpy_does() -> None:
    def shrinking(a: Any, count: int) -> Any:
        total = np.zeros(count)
        for i in range(count):
            total[i] = np.linalg.inv(a * (30 - i))[0, 0]
        return total

    fused, a = fuse(shrinking, target="cpu"), np.eye(3) + 0.1
    assert np.array_equal(fused(a, 30), shrinking(a, 30))
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        fused(a, 31)
    a[0, 0] = np.nan
    np.testing.assert_array_equal(fused(a, 30), shrinking(a, 30))


def test_a_branch_of_a_while_loop_writes_one_element_and_copies_no_array(caplog: pytest.LogCaptureFixture) -> None:
    def merged(points: Any, edges: Any) -> Any:
        index = np.zeros(len(points), dtype=int)
        i = j = 0
        while i < len(points):
            if points[i] < edges[j]:
                index[i] = j
                i += 1
            else:
                j += 1
        return index

    points, edges = np.sort(np.random.default_rng(3).random(40)), np.linspace(0, 1, 21)[1:]
    with caplog.at_level("DEBUG", logger="tracefuse"), options(debug=3):
        assert np.array_equal(fuse(merged, target="cpu")(points, edges), np.searchsorted(edges, points, "right"))
    driver = next(text for text in (record.getMessage() for record in caplog.records) if "driver range_loop" in text)
    step = driver.split("  stop unless", 1)[1].split("let ")[0]
    table = next(line.split(" of ")[0] for line in driver.splitlines() if " of a4 to " in line)
    assert table.strip() not in step
