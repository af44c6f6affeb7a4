"""Reduction rows: one line an op; see ops/row.py for lift, combine and final."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import FLOATS, NUMBERS, REALS, bool_
from tracefuse.ops.row import reduction


def _sum_of_squares(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    with np.errstate(all="ignore"):
        deviation = x - np.mean(x, axis=axis, keepdims=True)
        return np.sum(deviation * deviation, axis=axis, keepdims=keepdims)


def _variance(x: Any, axis: tuple[int, ...], keepdims: bool, correction: float) -> Any:
    with np.errstate(all="ignore"):
        count = np.prod([x.shape[a] for a in axis], dtype=np.float64)
        deviation = x - np.mean(x, axis=axis, keepdims=True)
        total = np.sum(deviation * deviation, axis=axis, keepdims=keepdims)
        return total / np.maximum(count - correction, 0)


sum = reduction("sum", numpy=np.sum, combine="add", initial=0, result="sum", domain=NUMBERS, exact=True, doc="Sum over axes.")  # fmt: skip
prod = reduction("prod", numpy=np.prod, combine="mul", initial=1, result="sum", domain=NUMBERS, exact=True, doc="Product over axes.")  # fmt: skip
max = reduction("max", numpy=np.max, combine="maximum", initial="lowest", domain=(bool_, *REALS), exact=True, doc="Largest over axes; NaN where there is one.")  # fmt: skip
min = reduction("min", numpy=np.min, combine="minimum", initial="highest", domain=(bool_, *REALS), exact=True, doc="Smallest over axes; NaN where there is one.")  # fmt: skip
any = reduction("any", numpy=np.any, combine="or", initial=False, lift="a != 0", result="bool", exact=True, doc="Whether one is true over axes.")  # fmt: skip
all = reduction("all", numpy=np.all, combine="and", initial=True, lift="a != 0", result="bool", exact=True, doc="Whether all are true over axes.")  # fmt: skip
mean = reduction("mean", numpy=np.mean, combine="add", initial=0, final="a / n", result="float", domain=FLOATS, doc="Arithmetic mean over axes.")  # fmt: skip
sum_of_squares = reduction(
    "sum_of_squares", numpy=_sum_of_squares, result="float", domain=FLOATS, steps="sum((a - mean(a)) * (a - mean(a)))",
    doc="Sum over axes of the squared deviations from the mean.",
)  # fmt: skip
var = reduction(
    "var", numpy=_variance, result="float", domain=FLOATS, attributes=(("correction", 0),),
    steps="sum((a - mean(a)) * (a - mean(a))) / maximum(n - correction, 0)",
    doc="Variance over axes: the sum of squared deviations over n - correction.",
)  # fmt: skip
