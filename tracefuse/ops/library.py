"""Library rows: ops that BLAS and cuBLAS run better than a kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import NUMBERS
from tracefuse.errors import ShapeError
from tracefuse.extents import Extent
from tracefuse.ir import Attributes, Require, Shape
from tracefuse.ops.row import broadcast_shapes, library


def _matmul_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    a, b = shapes
    if not a or not b:
        raise ShapeError("matmul: an operand has no axes", hint="multiply by a scalar with *")
    inner: Extent = b[-2] if len(b) > 1 else b[0]
    require(
        a[-1], "==", inner, "inner extents differ: {left} and {right}", "columns of the first are rows of the second"
    )
    batch = broadcast_shapes((a[:-2], b[:-2]), require)
    return (*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))


matmul = library(
    "matmul", NUMBERS, shape=_matmul_shape, numpy=np.matmul, arity=2, in_halves=True,
    doc="Matrix product, as NumPy's matmul.",
)  # fmt: skip


def _linear_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    a, weight = shapes[:2]
    if len(weight) not in (1, 2) or not a:
        raise ShapeError(f"linear: a weight with {len(weight)} axes", hint="the weight is (out, in) or (in,)")
    require(a[-1], "==", weight[-1], "inner extents differ: {left} and {right}", "the weight is (out, in)")
    if len(shapes) > 2 and len(weight) == 2:
        require(shapes[2][0], "==", weight[0], "bias has {left} elements, not {right}", "the bias is (out,)")
    return (*a[:-1], *weight[:-1])


def _linear(a: Any, weight: Any, bias: Any = None) -> Any:
    product = a @ weight.T
    return product if bias is None else product + bias


linear = library(
    "linear", NUMBERS, shape=_linear_shape, numpy=_linear, arity=None, in_halves=True,
    doc="a @ weight.T, plus bias where there is one.",
)  # fmt: skip
