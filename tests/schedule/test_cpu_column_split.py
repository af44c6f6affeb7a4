"""Tests column sums in chunks of rows: values, order of summation, and small sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.schedule.cpu import cpu_column_chunks

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: np.sum(x, axis=-2),
    "largest and where": lambda x: (np.max(x, axis=-2), np.argmax(x, axis=-2)),
    "variance and a root": lambda x: (np.var(x, axis=-2), np.sqrt(np.sum(x * x, axis=-2))),
    "over two axes": lambda x: np.sum(x, axis=(0, -2)) * 2,
}
SHAPES = ((1, 5), (7, 3), (40, 37), (129, 20), (3, 50, 6))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_WORK", 1), ("CHUNK", 32), ("MOST_CHUNKS", 5)):
        monkeypatch.setattr(cpu_column_chunks, name, value)


def flat(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("interpreted", [False, True], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_chunks_of_rows_give_numpys_values(name: str, interpreted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if interpreted:
        monkeypatch.setattr(CpuKernelCompiler, "compile", lambda self, kernel, *_: kernel)
        monkeypatch.setattr(
            CpuKernelCompiler, "entry", lambda self, made: lambda *arguments: interpret(made, arguments)
        )
    fused = fuse(FUNCTIONS[name])
    shapes = SHAPES if name != "over two axes" else SHAPES[-1:]
    for shape in shapes[1::2] if interpreted else shapes:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for own, known in zip(flat(fused(x)), flat(FUNCTIONS[name](x.astype(np.float64))), strict=True):
            np.testing.assert_allclose(own, known, rtol=0, atol=3e-6 * max(1.0, float(np.abs(known).max())))
    if name in ("sum", "largest and where"):
        (segment,) = fused.segments(x[0] if x.ndim > 2 else x)
        assert len(segment.launches) == 2


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_large_sums_have_the_same_bits_on_any_number_of_threads(dtype: Any) -> None:
    x = np.random.default_rng(1).standard_normal((3001, 701), dtype=np.float32).astype(dtype)
    sums = [fuse(FUNCTIONS["sum"], threads=count)(x) for count in (1, 2)]
    assert sums[0].tobytes() == sums[1].tobytes()
    known = x.astype(np.float64).sum(0)
    assert (
        np.abs(sums[0].astype(np.float64) - known).max()
        <= (3e-6 if dtype is np.float32 else 5e-3) * np.abs(known).max()
    )


def test_wide_matrices_have_no_chunks() -> None:
    assert len(fuse(FUNCTIONS["sum"]).segments(np.ones((70, 20_000), np.float32))[0].launches) == 1
    assert len(fuse(lambda x: x - x.max(0)).segments(np.ones((500, 3000), np.float32))[0].launches) == 1


def test_each_phase_of_one_tile_of_columns_is_divided_into_chunks_of_rows() -> None:
    assert len(fuse(lambda x: x - x.max(0)).segments(np.ones((3000, 500), np.float32))[0].launches) == 2
