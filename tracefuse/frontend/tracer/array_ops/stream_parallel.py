"""`stream_parallel`: computes a value of a fused function slice by slice on streams."""

from __future__ import annotations

import operator
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse import source
from tracefuse.errors import ShapeError
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor, copy, located
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.parallel_types import StreamAxis


@located
def stream_parallel(x: Any, axis: int = 0, chunks: int | None = None) -> Any:
    """Returns `x`, with the slices along `axis` computed on streams when the fused function runs.

    chunks: the number of chunks of the axis; None makes one slice per index. Consecutive values with equal chunks
    share a stream-parallel loop. An argument is copied. Outside a fused function it returns `x` unchanged. Raises
    ShapeError if the axis does not exist or `chunks` is not positive. Compilation raises UnsupportedError if slices
    of `x` are not independent.
    """
    if not isinstance(x, Traced):
        return x
    traced = as_tensor(x)
    place = normalize_axis(operator.index(axis), len(traced.extents), "stream_parallel: axis")
    if chunks is not None and (isinstance(chunks, bool) or operator.index(chunks) < 1):
        raise ShapeError(f"stream_parallel: {chunks!r} chunks", hint="give 1 or more", where=source.user_line())
    if traced.extents[place] == 1:
        return x  # a single slice is the whole array
    builder = traced.recorder.builder
    if traced.number in builder.inputs or traced.value.stream is not None:
        traced = copy(traced)
    stream = StreamAxis(place, None if chunks is None else operator.index(chunks))
    builder.values[traced.number] = replace(traced.value, stream=stream)
    return traced
