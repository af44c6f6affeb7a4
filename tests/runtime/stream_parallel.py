"""Functions and definitions with stream-parallel values, and the numbers of streams to try."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import (
    DataType,
    FusionDefinition,
    ParallelType,
    stream_parallel,
)

X = np.arange(35, dtype=np.float32).reshape(7, 5)
STREAMS = (1, 3, 4, 20)


def on_streams(tensor: Any, axis: int = 0, chunks: int | None = None) -> Any:
    if chunks is not None:
        tensor.outer_split(axis, chunks)
    tensor.axis(axis).parallelize(ParallelType.stream)
    return tensor


def sets(*marked: bool) -> FusionDefinition:
    """A chain of copies, some of them on streams."""
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for mark in marked:
            tensor = fd.ops.set(tensor)
            if mark:
                on_streams(tensor)
        fd.add_output(tensor)
    return fd


Y = np.linspace(-2, 2, 7 * 5 * 6, dtype=np.float32).reshape(7, 5, 6)
W = np.linspace(-1, 1, 36, dtype=np.float32).reshape(6, 6)


def pointwise(x: Any) -> Any:
    return stream_parallel(stream_parallel(np.exp(x), 0) * x + 1, 0)


def chunks(x: Any) -> Any:
    return stream_parallel(stream_parallel(np.sin(x), 0, 3) + x, 0, 3)


def product(x: Any) -> Any:
    return stream_parallel(x @ W, 0), stream_parallel(x @ W, 2)
