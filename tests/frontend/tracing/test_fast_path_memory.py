"""Tests that the fast path writes into output buffers and donated memory, and refuses those that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.tracing.fast_calls import X, Y, equal, only_fast_paths
from tracefuse import fuse
from tracefuse.errors import DtypeError, FusionError, ShapeError, TraceError, UnsupportedError


def test_output_buffers_and_donated_arguments_take_the_fast_path() -> None:
    fused = fuse(lambda t: {"s": t[0] + t[1], "d": (t[0] - t[1], 3)})
    out = {"s": np.empty_like(X), "d": (np.empty((3, 8), np.float32)[:, ::2], None)}
    fused((X, Y), out=out)
    with only_fast_paths():
        result = fused((Y, X), out=out)
        assert result["s"] is out["s"]
        assert result["d"][0] is out["d"][0]
        equal(result["d"], (Y - X, 3))
        result = fused.into(out, (X, Y))
        equal(result, {"s": X + Y, "d": (X - Y, 3)})
    step = fuse(lambda state, x: {"w": state["w"] - x, "b": state["b"] + x}, donate_argnums=0)
    state = step({"w": X.copy(), "b": Y.copy()}, X)
    with only_fast_paths():
        for _ in range(3):
            before = state
            state = step(before, X)
            assert all(any(np.shares_memory(state[a], before[b]) for b in before) for a in state)
    np.testing.assert_array_equal(state["w"], X - 4 * X)
    with pytest.raises(FusionError, match=r"state\['b'\] was donated; its buffer now holds a result"):
        step(before, X)


def test_a_buffer_that_lies_otherwise_is_noticed() -> None:
    fused = fuse(lambda x: x + x[::-1])
    memory = np.zeros((5, 8), np.float32)

    def filled() -> Any:
        memory[1:4, 2:6] = X
        return memory[1:4, 2:6]

    buffers: list[Any] = [
        np.empty((3, 4), np.float32), memory[2:5, 2:6], memory[1:4, 2:6], memory[1:4, 1:5], memory[:3, 4:],
        np.empty((3, 8), np.float32)[:, ::2], np.empty((4, 3), np.float32).T, np.empty((3, 4), np.float32)[::-1],
        memory[3:0:-1, 2:6], np.ndarray((3, 4), np.float32, np.empty(60, np.uint8), 1),
    ]  # fmt: skip
    for _ in range(3):
        for buffer in buffers:
            assert fused(filled(), out=buffer) is buffer
            np.testing.assert_array_equal(buffer, X + X[::-1])
    with only_fast_paths():
        for buffer in buffers:
            fused(filled(), out=buffer)
            np.testing.assert_array_equal(buffer, X + X[::-1])


def frozen() -> Any:
    array = np.empty((3, 4), np.float32)
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty((4, 3), np.float32), ShapeError, r"out of output 0 has shape \(4, 3\), the result has \(3, 4\)"),
        (np.empty(12, np.float32), ShapeError, r"out of output 0 has shape \(12,\)"),
        (np.empty((3, 4)), DtypeError, "out of output 0 is float64, the result is float32"),
        (frozen(), UnsupportedError, "out of output 0 is read-only"),
        (np.broadcast_to(np.float32(0), (3, 4)), UnsupportedError, "read-only"),
        (np.lib.stride_tricks.as_strided(X.copy(), (3, 4), (0, 4)), UnsupportedError, "on axis 0 share one address"),
        (3.0, DtypeError, "out of output 0 is a float, not an array"),
        ([np.empty((3, 4), np.float32)], TraceError, "give a pytree with the structure of the result"),
    ],
    ids=["shape", "rank", "dtype", "read-only", "broadcast", "stride 0", "number", "tree"],
)
def test_buffers_that_do_not_fit_are_refused_after_fast_calls_too(out: Any, error: Any, message: str) -> None:
    fused = fuse(lambda x, y: x * y)
    for buffer in (np.empty((3, 4), np.float32), np.empty((3, 8), np.float32)[:, ::2]):
        fused(X, Y, out=buffer)
        with only_fast_paths():
            fused(X, Y, out=buffer)
        with pytest.raises(error, match=message):
            fused(X, Y, out=out)


def test_donated_memory_that_cannot_be_taken_is_told_of_at_every_call() -> None:
    fused = fuse(lambda x, y: x + y, donate_argnums=0)
    fused(X.copy(), Y), fused(X.copy(), Y)
    locked, wide = X.copy(), np.zeros((3, 8), np.float32)
    locked.setflags(write=False)
    for donated, reason in ((locked, "it is read-only"), (wide[:, ::2], "it is not contiguous"), (Y, "shares its")):
        for _ in range(2):
            before = donated.copy()
            with pytest.warns(UserWarning, match=f"donated buffers are not reused .*{reason}"):
                np.testing.assert_array_equal(fused(donated, Y), before + Y)
            np.testing.assert_array_equal(donated, before)
    with only_fast_paths():
        fused(X.copy(), Y)
