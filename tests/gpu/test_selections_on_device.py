"""Sizes that the data decide, on a GPU: values as NumPy's at every count, traces, streams, masked reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.arrays.test_data_decided_sizes import PROGRAMS
from tests.frontend.numpy_functions.test_integers_as_sizes import USES, of_count
from tests.ways import why_not
from tracefuse import fuse, options

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402


def equal(one: Any, other: Any, rtol: float = 1e-10) -> None:
    if isinstance(other, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            equal(a, b, rtol)
        return
    ours = cupy.asnumpy(one) if isinstance(one, cupy.ndarray) else one
    assert np.shape(ours) == np.shape(other)
    assert np.asarray(ours).dtype == np.asarray(other).dtype
    np.testing.assert_allclose(ours, other, rtol=rtol, atol=1e-12)


def inputs() -> list[Any]:
    rng = np.random.default_rng(1)
    found = [rng.normal(size=size) for size in (8, 30, 3, 9, 2000)]
    return [*found, np.full(4, 0.5), -np.ones(4) - np.arange(4) / 8, np.array([-1.0, 2.0, -3.0])]


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_programs_give_what_numpy_gives_at_every_count(program: Any) -> None:
    if program.__name__ in ("pairs", "suppressed"):
        arrays = [x for x in inputs() if x.size < 100]
    else:
        arrays = inputs()
    fused = fuse(program)
    for x in arrays:
        ours, plain = cupy.asarray(x), x.copy()
        equal(fused(ours), program(plain))
        equal(ours, plain)
    known = fused.cache_info().traces
    for x in reversed(arrays):
        equal(fused(cupy.asarray(x)), program(x.copy()))
    assert fused.cache_info().traces == known


@pytest.mark.parametrize("name", USES)
def test_integers_that_data_decide_are_sizes(name: str) -> None:
    function = USES[name]
    fused = fuse(function)
    for k in (5, 3, 8, 2, 1):
        equal(fused(cupy.asarray(of_count(k))), function(of_count(k)))


def test_a_count_is_read_on_the_stream_of_the_call() -> None:
    fused = fuse(lambda x: (x[x > 0] * 2, np.nonzero(x < 0)[0]))
    x = np.random.default_rng(2).normal(size=100_000)
    expected = x[x > 0] * 2, np.nonzero(x < 0)[0]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(3):
            y = cupy.asarray(x)
            for _ in range(50):  # work that the count has to wait for
                y = y * 1.0
            result = fused(y)
            stream.synchronize()
            equal(result, expected)
    with options(check=True):
        equal(fused(cupy.asarray(x)), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("size", [3, 1000, 100_003])
def test_reductions_of_selected_elements_need_no_size(dtype: Any, size: int) -> None:
    def reduced(x: Any) -> Any:
        kept = x[x > 1]
        return kept.sum(), kept.max(), kept.min(), x[x > 1].mean(), (x > 1).sum(), x[x > 1].any(), x[x > 1].all()

    x = (np.random.default_rng(3).normal(size=size) * 3 + 2).astype(dtype)
    fused = fuse(reduced)
    equal(fused(cupy.asarray(x)), reduced(x), rtol=1e-4 if dtype == np.float32 else 1e-10)
    assert "size of" not in str(fused.explain(cupy.asarray(x)))


def test_masks_of_rows_and_writes_under_masks() -> None:
    def written(x: Any) -> Any:
        rows = x[x.sum(axis=1) > 0]
        x[x < 0] = 0
        x[x > 1] += np.arange((x > 1).sum())
        return rows * 2, rows.shape[0]

    fused = fuse(written)
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(17, 5))
        ours, plain = cupy.asarray(x), x.copy()
        equal(fused(ours), written(plain))
        equal(ours, plain)
