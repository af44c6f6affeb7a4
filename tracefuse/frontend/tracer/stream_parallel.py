"""`stream_parallel`: in a fused function, a value that is computed slice by slice on streams.

Knows: the recorder, marks of values. Must not know: how slices are made or run.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from tracefuse import source
from tracefuse.errors import ShapeError
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import as_tensor, copy, located
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.parallel_types import StreamAxis


@located
def stream_parallel(x: Any, axis: int = 0, pieces: int | None = None) -> Any:
    """`x`, whose slices along `axis` are computed on streams when the fused function runs.

    pieces: into how many parts the axis is cut; None is one slice an index. Values that follow each other and are cut
    alike share a loop. An argument is copied. Outside of a fused function `x` comes back as it is. Raises ShapeError
    for an axis that there is not or for no pieces; UnsupportedError, when the function is compiled, where slices of `x`
    are not independent.
    """
    if not isinstance(x, Traced):
        return x
    traced = as_tensor(x)
    place = normalize_axis(operator.index(axis), len(traced.extents), "stream_parallel: axis")
    if pieces is not None and (isinstance(pieces, bool) or operator.index(pieces) < 1):
        raise ShapeError(f"stream_parallel: {pieces!r} pieces", hint="give 1 or more", where=source.user_line())
    if traced.extents[place] == 1:
        return x  # one slice is the whole
    builder = traced.recorder.builder
    if traced.number in builder.inputs or traced.value.stream is not None:
        traced = copy(traced)
    stream = StreamAxis(place, None if pieces is None else operator.index(pieces))
    builder.values[traced.number] = replace(traced.value, stream=stream)
    return traced
