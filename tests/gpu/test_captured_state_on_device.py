"""Captured CuPy arrays that change between calls: questions, prologue steps, and arrays that bypass recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ways import why_not
from tracefuse import fuse
from tracefuse.frontend.tracer.captured.snapshots import Snapshot
from tracefuse.frontend.tracer.record.recorder import current

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402

W, K, M = cupy.ones(5), cupy.eye(4) * 4, cupy.array([True, False, True, True])


def traced(array: Any) -> Any:
    """The traced value of a captured array, during a trace."""
    recorder = current.get()
    return array if recorder is None or hasattr(array, "recorder") else recorder.capture(array)


def doubled_or_raised(x: Any) -> Any:
    return x * 2 if traced(W).sum() > 6 else x + float(traced(W)[0])


@pytest.mark.parametrize(
    ("function", "array", "contents", "traces"),
    [
        (lambda x: x[:5] + W.sum(), W, 7, 1),
        (doubled_or_raised, W, 2, 2),
        (lambda x: x[:5] + traced(W), W, 2, 1),
        (lambda x: np.linalg.cholesky(traced(K) * 1) @ x[:4], K, cupy.eye(4) * 9, 1),
        (lambda x: x[:4][traced(M)], M, cupy.array([False, True, False, True]), 1),
        (lambda x: x[:4][np.nonzero(traced(M))[0]], M, cupy.array([False, True, True, True]), 1),
    ],
)
def test_every_call_gives_the_value_for_the_contents_at_that_call(
    function: Callable[[Any], Any], array: Any, contents: Any, traces: int
) -> None:
    before, x, fused = array.copy(), cupy.arange(5.0), fuse(function)
    for now in (before, contents, contents):
        array[...] = now
        result, expected = fused(x), function(x)
        assert type(result) is cupy.ndarray
        assert cupy.allclose(result, expected)
    assert fused.cache_info().traces == traces
    array[...] = before


def test_a_snapshot_holds_the_same_bytes_alone() -> None:
    for array in (
        cupy.arange(6.0).reshape(2, 3).T,
        cupy.ones(5, np.float16)[::2],
        cupy.array(2.0),
        cupy.ones(3, complex),
    ):
        snapshot = Snapshot(array)
        assert snapshot.holds(array)
        assert snapshot.holds(array.copy())
        other = array.copy()
        other[(-1,) * other.ndim] = 7
        assert not snapshot.holds(other)
    assert Snapshot(cupy.zeros((0, 2))).holds(cupy.zeros((0, 2)))
