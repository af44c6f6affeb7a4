"""Snapshots hold the bytes of captured arrays, so that only equal contents serve a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse.frontend.tracer.captured.bypassed_arrays import ContentsBefore
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import to
from tracefuse.frontend.tracer.captured.snapshots import Snapshot, checksum


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5.0), np.array(2.0), np.zeros((0, 3)), np.arange(60_000.0).reshape(200, 300).T,
        np.arange(90_000.0).reshape(300, 300)[::2, ::-3], np.zeros(40_001, np.float16), np.ones(9000, complex)[::2],
        np.array([None, "a"], object), np.zeros(50_000, "S3"), np.broadcast_to(np.arange(4.0), (5000, 4)),
    ],
)  # fmt: skip
def test_a_snapshot_holds_the_same_bytes_alone(array: Any) -> None:
    snapshot, before = Snapshot(array), checksum(array)
    assert snapshot.holds(array)
    assert snapshot.holds(array.copy())
    assert checksum(np.ascontiguousarray(array).reshape(array.shape)) == before
    assert not snapshot.holds(array[None])
    if array.dtype != object:
        assert not snapshot.holds(array.astype("S9"))
    if array.size:
        other = array.copy()
        other[(-1,) * array.ndim] = 7
        assert not snapshot.holds(other)
        assert checksum(other) != before


def test_zeros_of_different_sign_and_nans_are_different_contents() -> None:
    assert not Snapshot(np.zeros(3)).holds(-np.zeros(3))
    assert Snapshot(np.full(3, np.nan)).holds(np.full(3, np.nan))


def test_contents_that_changed_since_before_the_trace_serve_no_call() -> None:
    array = np.arange(4.0)
    place = Place("array", to(array).then("call", lambda value: value), array)
    before = ContentsBefore([place])
    assert before.compared([place])[0].unchanged(None)
    array[0] = 1
    assert not before.compared([place])[0].unchanged(None)
