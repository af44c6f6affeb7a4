"""NumPy's counts and histograms of several coordinates, on traced values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.frontend.numpy_api.registry import Functions
from tracefuse.frontend.numpy_api.whole_array_calls import as_operand, call_whole, op_named
from tracefuse.frontend.tracer import shaping
from tracefuse.frontend.tracer.traced_ops import missing

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    if isinstance(minlength, int) and minlength == 0:
        raise missing(
            "np.bincount without minlength: the largest element decides the size of its result",
            "give minlength, larger than every element",
        )
    given = {"x": x, "weights": weights, "minlength": minlength}
    return call_whole(op_named("bincount"), "np.bincount", given)


@implements(np.histogramdd)
def histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    points = shaping.transpose(as_operand(sample)) if isinstance(sample, (list, tuple)) else as_operand(sample)
    points = shaping.expand_dims(points, 1) if len(points.extents) == 1 else points
    count = points.recorder.pin(points.extents[1], "the coordinates of np.histogramdd")
    given = {"sample": points, "bins": bins, "range": range, "density": density, "weights": weights}
    counts, *edges = call_whole(op_named("histogramdd"), "np.histogramdd", {**given, "coordinates": count})
    return counts, list(edges)
