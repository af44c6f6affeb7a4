"""NumPy's reductions on traced values, with NumPy's signatures.

Knows: NumPy's functions that reduce axes. Must not know: how values are recorded.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import operations, shaping
from tracefuse.dtypes import dtype_of
from tracefuse.errors import ShapeError
from tracefuse.in_place import into
from tracefuse.numpy_table import Functions
from tracefuse.operations import apply, as_tensor, as_traced, located, missing, refuse
from tracefuse.ops import REGISTRY, Reduction
from tracefuse.ops.row import normalize_axis

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


def _reduction(function: Any, name: str, *, with_dtype: bool) -> None:
    if with_dtype:

        def with_type(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
            return operations.reduce(name, a, axis, dtype, out, keepdims, initial=initial, where=where)

        FUNCTIONS[function] = located(with_type)
    else:

        def without_type(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
            return operations.reduce(name, a, axis, None, out, keepdims, initial=initial, where=where)

        FUNCTIONS[function] = located(without_type)


for _function, _name, _typed in (
    (np.sum, "sum", True), (np.prod, "prod", True), (np.max, "max", False), (np.min, "min", False),
    (np.amax, "max", False), (np.amin, "min", False), (np.any, "any", False), (np.all, "all", False),
):  # fmt: skip
    _reduction(_function, _name, with_dtype=_typed)


@implements(np.mean)
def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = None
) -> Any:
    return operations.reduce("mean", a, axis, dtype, out, keepdims, where=where)


FUNCTIONS[np.var] = located(operations.var)


FUNCTIONS[np.std] = located(operations.std)


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    largest = operations.reduce("max", a, axis, None, None, keepdims)
    result = apply("sub", largest, operations.reduce("min", a, axis, None, None, keepdims))
    return result if out is None else into(out, result)


@implements(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    return operations.reduce("sum", apply("ne", a, 0), axis, None, None, keepdims)


@implements(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False) -> Any:
    if weights is None:
        refuse("np.average", returned=returned or None)
        return operations.reduce("mean", a, axis, None, None, keepdims)
    if returned or len(as_traced(weights).extents) != len(as_traced(a).extents):
        raise missing("np.average with these parameters", "write np.sum(a * w, axis) / np.sum(w, axis)")
    total = operations.reduce("sum", weights, axis, None, None, keepdims)
    return apply("div", operations.reduce("sum", apply("mul", a, weights), axis, None, None, keepdims), total)


def by_row(name: str, a: Any, axis: Any, keepdims: Any) -> Any:
    """A reduction or scan whose row may not be there."""
    row = REGISTRY.get(name)
    if not isinstance(row, Reduction):
        raise missing(f"np.{name}", f"compute np.{name} outside the fused function")
    return operations.reduce(name, a, axis, None, None, keepdims)


def scan(name: str, a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """A running reduction along one axis, of all elements in row-major order where none is given."""
    x = as_tensor(a)
    if axis is None:
        x, axis = shaping.reshape(x, -1), 0
    dim = normalize_axis(operator.index(axis), len(x.extents))
    result = x.recorder.library(REGISTRY[name], [x], dtype=None if dtype is None else dtype_of(dtype), dim=dim)
    return result if out is None else into(out, result)


@implements(np.cumsum)
def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return scan("cumsum", a, axis, dtype, out)


@implements(np.cumprod)
def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return scan("cumprod", a, axis, dtype, out)


def _cumulative(name: str) -> Any:
    def cumulative(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False) -> Any:  # fmt: skip # noqa: E501
        refuse(f"np.{name}", include_initial=include_initial or None)
        if axis is None and len(as_tensor(x).extents) != 1:
            raise ShapeError(f"{name} of an array with several axes needs an axis", hint="name one, as axis=0")
        return scan({"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}[name], x, axis, dtype, out)

    return cumulative


for _name in ("cumulative_sum", "cumulative_prod"):
    if hasattr(np, _name):  # with NumPy 2.1
        FUNCTIONS[getattr(np, _name)] = located(_cumulative(_name))


def _along(name: str, a: Any, axis: Any, kind: Any, order: Any, **attributes: Any) -> Any:
    """Sorting by a library row; every kind of sort is stable."""
    refuse(f"np.{name}", order=order)
    x = as_tensor(a)
    if axis is None:
        x, axis = shaping.reshape(x, -1), 0
    dim = normalize_axis(operator.index(axis), len(x.extents))
    return x.recorder.library(REGISTRY[name], [x], dim=dim, **attributes)


@implements(np.sort)
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    return _along("sort", a, axis, kind, order)


@implements(np.argsort)
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    return _along("argsort", a, axis, kind, order)


for _later in (np.argmax, np.argmin):

    def _absent(a: Any, axis: Any = None, *more: Any, _row: str = _later.__name__, keepdims: Any = False, **rest: Any) -> Any:  # fmt: skip # noqa: E501
        return by_row(_row, a, axis, keepdims)

    FUNCTIONS[_later] = _absent
