"""Reductions, one line each; see ir/op_kinds.py for lift, combine and final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.dtypes import COMPLEXES, FLOATS, NUMBERS, int64
from tracefuse.ir.derivatives import FLAT, Linear, Tangent
from tracefuse.ir.error_models import deviations_error, exponentials_error, mean_error
from tracefuse.ir.op_kinds import Reduction, StatePart
from tracefuse.ops import tangents, transposes
from tracefuse.ops.array_functions import min_into, reduction_into
from tracefuse.ops.families import reduction


def _flat_positions(function: Callable[..., Any]) -> Callable[..., Any]:
    """np.argmax or np.argmin over several axes at once."""

    def positions(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        outer_axes = [k for k in range(x.ndim) if k not in axis]
        count = int(np.prod([x.shape[k] for k in axis], dtype=np.int64))
        rows = np.transpose(x, (*outer_axes, *axis)).reshape(*(x.shape[k] for k in outer_axes), count)
        result = np.asarray(function(rows, axis=-1))
        return np.expand_dims(result, axis) if keepdims else result

    return positions


def register_extreme(name: str, relation: str, numpy: Callable[..., Any], initial: str, doc: str) -> Reduction:
    """An op that returns the position of the extreme element. NaN is more extreme than any number; of equals the first counts,
    so that the order of combining does not matter."""
    more = f"~(later_a {'<=' if relation == '>' else '>='} a) & (a == a)"
    as_much = f"(later_a {relation}= a) | (later_a != later_a)"
    better = f"{more} | ({as_much}) & (later_place < place)"
    # If no element is more extreme than the initial state, all are equal to it, and the first one has place 0.
    parts = (
        StatePart("a", "a", f"later_a if {better} else a", initial, None, f"later_a if {more} else a"),
        StatePart(
            "place", "index", f"later_place if {better} else place", 0, int64, f"later_place if {more} else place"
        ),
    )
    return reduction(
        name, numpy=_flat_positions(numpy), parts=parts, selects="maximum" if relation == ">" else "minimum", final="place", initial=initial, result="index",
        exact=True, derivative=FLAT, doc=doc,
    )  # fmt: skip


def _sum_of_squares(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    with np.errstate(all="ignore"):
        deviation = x - np.mean(x, axis=axis, keepdims=True)
        return np.sum(deviation * deviation, axis=axis, keepdims=keepdims)


def _sum_of_exponentials(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    with np.errstate(all="ignore"):
        return np.sum(np.exp(x - np.max(x, axis=axis, keepdims=True)), axis=axis, keepdims=keepdims)


def _variance(x: Any, axis: tuple[int, ...], keepdims: bool, correction: float) -> Any:
    with np.errstate(all="ignore"):
        count = np.prod([x.shape[a] for a in axis], dtype=np.float64)
        deviation = x - np.mean(x, axis=axis, keepdims=True)
        total = np.sum(deviation * deviation, axis=axis, keepdims=keepdims)
        return total / np.maximum(count - correction, 0)


sum = reduction("sum", numpy=np.sum, additive=((0,),), combine="add", initial=0, result="sum", domain=NUMBERS, exact=True, into=reduction_into("sum", typed=True), derivative=Linear(transposes.sum), doc="Sum over axes.")  # fmt: skip
prod = reduction("prod", numpy=np.prod, combine="mul", initial=1, result="sum", domain=NUMBERS, exact=True, into=reduction_into("prod", typed=True), derivative=Tangent(tangents.prod), doc="Product over axes.")  # fmt: skip
max = reduction("max", numpy=np.max, combine="maximum", initial="lowest", exact=True, into=reduction_into("max"), derivative=Tangent(tangents.extreme), doc="Largest over axes; NaN where there is one.")  # fmt: skip
min = reduction("min", numpy=np.min, combine="minimum", initial="highest", exact=True, into=min_into, derivative=Tangent(tangents.extreme), doc="Smallest over axes; NaN where there is one.")  # fmt: skip
any = reduction("any", numpy=np.any, combine="or", initial=False, lift="a != 0", result="bool", exact=True, derivative=FLAT, doc="Whether one is true over axes.")  # fmt: skip
all = reduction("all", numpy=np.all, combine="and", initial=True, lift="a != 0", result="bool", exact=True, derivative=FLAT, doc="Whether all are true over axes.")  # fmt: skip
argmax = register_extreme("argmax", ">", np.argmax, "lowest", "Position of the first largest over axes, row-major; of the first NaN where there is one.")  # fmt: skip
argmin = register_extreme("argmin", "<", np.argmin, "highest", "Position of the first smallest over axes, row-major; of the first NaN where there is one.")  # fmt: skip
sum_of_exponentials = reduction(
    "sum_of_exponentials", numpy=_sum_of_exponentials, result="float", domain=FLOATS, initial="lowest",
    parts=(
        StatePart("a", "a", "maximum(a, later_a)", "lowest"),
        StatePart(
            "s", "1",
            "gap = 1.0 if a == later_a else exp(-abs(a - later_a))\n"
            "(s if later_a <= a else later_s) + (later_s if later_a <= a else s) * gap", 0,
        ),
    ),
    # Terms over an infinite largest do not matter: a sum over -inf is of none but zeros, the result over inf is NaN.
    term="exp_term(x - over)", over="a if a - a == 0 else 0.0", final="s + (a - a)", decomposed="sum(exp(a - max(a)))",
    error=exponentials_error,
    derivative=Tangent(tangents.sum_of_exponentials), doc="Sum over axes of e to the power of what an element lies below the largest: sums at a smaller largest are scaled "
    "down when they meet one at a larger (Milakov and Gimelshein, 2018). NaN where the largest is infinite.",
)  # fmt: skip
mean = reduction("mean", numpy=np.mean, additive=((0,),), combine="add", initial=0, final="a / n", result="float", domain=(*FLOATS, *COMPLEXES), error=mean_error, derivative=Linear(transposes.mean), doc="Arithmetic mean over axes.")  # fmt: skip
_SHARE = "share = later_count / (count + later_count) if later_count > 0 else 0.0\n"
sum_of_squares = reduction(
    "sum_of_squares", numpy=_sum_of_squares, result="float", domain=FLOATS,
    steps="sum((a - mean(a)) * (a - mean(a)))", decomposed="sum((a - mean(a)) * (a - mean(a)))",
    # Count, mean and sum of two parts of the elements give those of both (Chan, Golub and LeVeque, 1979).
    parts=(
        StatePart("count", "1", "count + later_count", 0),
        StatePart("middle", "a", f"{_SHARE}middle + (later_middle - middle) * share", 0),
        StatePart("total", "0", f"{_SHARE}gap = later_middle - middle\ntotal + later_total + gap * gap * count * share", 0),
    ),
    final="total + (middle - middle)",  # NaN where an element is infinite
    error=deviations_error,
    derivative=Tangent(tangents.sum_of_squares), doc="Sum over axes of the squared deviations from the mean.",
)  # fmt: skip
var = reduction(
    "var", numpy=_variance, result="float", domain=FLOATS, attributes=(("correction", 0),),
    steps="sum((a - mean(a)) * (a - mean(a))) / maximum(n - correction, 0)",
    error=deviations_error, derivative=Tangent(tangents.var), doc="Variance over axes: the sum of squared deviations over n - correction.",
)  # fmt: skip
