"""Ops along one axis: scans, which kernels compute, and sorting and writing to positions that are data, which NumPy's or
CuPy's functions do. A sort is stable, and NaN comes after all numbers (first where the order is descending).

Must not know: kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import ALL, NUMBERS, REALS, bool_
from tracefuse.errors import ShapeError
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.derivatives import FLAT, Linear, Tangent
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.op_kinds import Pointwise, Reduction
from tracefuse.ir.scan_kind import Scan
from tracefuse.ops import pointwise, reduction, tangents, transposes
from tracefuse.ops.families import library, register

ORDERED = (bool_, *REALS)

MOST_SORTED, MOST_OF_MEDIAN = 8, 25
"""The most elements that are sorted by comparisons (passes/sorting_networks.py), and of a median: 100 to 300 ops."""


def _same_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    normalize_axis(attributes["dim"], len(shapes[0]))
    return shapes[0]


def _along_others(axis: int, shapes: Sequence[Shape], attributes: Attributes) -> dict[int, int | None] | None:
    """A row along `dim` is one of many: each is computed by itself."""
    return None if axis == normalize_axis(attributes["dim"], len(shapes[0])) else {0: axis}


# ---------------------------------------------------------------------------------------------------------------------
# scans


def _accumulate(ufunc: np.ufunc) -> Callable[..., Any]:
    return lambda x, dim: ufunc.accumulate(x, axis=dim)


def _scan(name: str, of: Reduction, numpy: Callable[..., Any], doc: str, **more: Any) -> Scan:
    return register(  # type: ignore[no-any-return]
        Scan(
            name=name, domain=ALL, shape=_same_shape, slices=_along_others, numpy=numpy, reduction=of,
            attributes=(("dim", 0),), doc=doc, **more,
        )
    )  # fmt: skip


cumsum = _scan("cumsum", reduction.sum, lambda x, dim: np.cumsum(x, axis=dim), "Sums of the elements so far along `dim`.", result="sum", derivative=Linear(transposes.cumsum))  # fmt: skip
cumprod = _scan("cumprod", reduction.prod, lambda x, dim: np.cumprod(x, axis=dim), "Products of the elements so far along `dim`.", result="sum", derivative=Tangent(tangents.cumprod))  # fmt: skip
cummax = _scan("cummax", reduction.max, _accumulate(np.maximum), "Largest of the elements so far along `dim`; NaN from the first one on.", exact=True, derivative=Tangent(tangents.running_extreme))  # fmt: skip
cummin = _scan("cummin", reduction.min, _accumulate(np.minimum), "Smallest of the elements so far along `dim`; NaN from the first one on.", exact=True, derivative=Tangent(tangents.running_extreme))  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# order


def _argsort(x: Any, dim: int, descending: bool, stable: bool, kind: Any) -> Any:
    if not descending:
        return np.argsort(x, axis=dim, kind=kind)
    # Sorted backwards and turned round, equal elements keep their order.
    order = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(order, dim)


def _sorted(x: Any, dim: int) -> Any:
    if x.dtype.kind in "biu" and x.shape[dim] >= _COUNTED.get(x.dtype.itemsize, math.inf) and type(x) is np.ndarray:
        return np.sort(x, axis=dim, kind="stable")
    return np.sort(x, axis=dim)


_COUNTED = {1: 25, 2: 1300}
"""By the bytes of an integer, the elements from which NumPy's stable sort, which counts digits, is faster than its
usual one: of equal integers, the order does not matter."""


sort = library("sort", ALL, order_statistic="all", shape=_same_shape, slices=_along_others, numpy=_sorted, attributes=(("dim", -1),), exact=True, derivative=Tangent(tangents.sort), doc="Elements in ascending order along `dim`.")  # fmt: skip
argsort = library(
    "argsort", ALL, shape=_same_shape, slices=_along_others, numpy=_argsort, result="index", exact=True,
    attributes=(("dim", -1), ("descending", False), ("stable", False), ("kind", "stable")),
    derivative=FLAT, doc="Positions of the elements in order along `dim`; equal ones keep theirs, unless `kind` is None.",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# writing to positions that are data


def _scatter_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    data, index, source = shapes
    dim = normalize_axis(attributes["dim"], len(data))
    if not len(data) == len(index) == len(source):
        raise ShapeError(
            f"scatter: {len(data)}, {len(index)} and {len(source)} axes", hint="data, index and source have one rank"
        )
    for axis, extent in enumerate(index):
        message = f"the index has {{left}} elements on axis {axis}, more than {{right}}"
        require(extent, "<=", source[axis], message, "the source covers the index")
        if axis != dim:
            require(extent, "<=", data[axis], message, f"only along axis {dim} may the index be longer than the data")
    return data


def _places(index: Any, dim: int, extent: int) -> tuple[Any, ...]:
    """Index arrays of the elements that `index` names along `dim`. Raises IndexError for one outside the axis."""
    _check_inside(index, extent)
    places = []
    for axis, length in enumerate(index.shape):
        shape = [1] * index.ndim
        shape[axis] = length
        places.append(index if axis == dim else np.arange(length, like=index).reshape(shape))
    return tuple(places)


def _check_inside(index: Any, extent: int) -> None:
    if isinstance(index, np.ndarray) and index.size and (index.min() < -extent or index.max() >= extent):
        raise IndexError(f"an index lies outside an axis of {extent} elements")


def _scatter(x: Any, index: Any, source: Any, dim: int) -> Any:
    result = x.copy()
    covered = source[tuple(slice(0, e) for e in index.shape)]
    places = _places(index.astype(np.int64), dim, x.shape[dim])
    if isinstance(x, np.ndarray):
        result[places] = covered
        return result
    position: Any = 0
    for extent, place in zip(x.shape, places, strict=True):
        position = position * extent + place % max(extent, 1)
    last = _last_of_equal(position.reshape(-1))
    result.reshape(-1)[position.reshape(-1)[last]] = covered.reshape(-1)[last]
    return result


def _last_of_equal(positions: Any) -> Any:
    """Where each distinct position occurs last. A GPU writes equal positions in no order, so only these are written."""
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    differs = ordered[1:] != ordered[:-1]
    return order[np.concatenate([differs, ordered[-1:] == ordered[-1:]])]


scatter = library(
    "scatter", ALL, shape=_scatter_shape, numpy=_scatter, arity=3, indices=(1,), attributes=(("dim", 0),), exact=True,
    derivative=Linear(transposes.scatter, operands=(0, 2)), doc="The first operand with the third's elements written to the positions along `dim` that the second holds.",
)  # fmt: skip


def _rows_shape(name: str) -> Callable[..., Shape]:
    """The shape rule of an op that writes rows of the third operand to the rows that the second names."""

    def shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
        data, index, values = shapes
        axes = attributes.get("joined_axes", 1)
        rows = (product(data[:axes]), *data[axes:])
        if len(index) != 1 or len(values) != len(rows) or not 1 <= axes <= len(data):
            raise ShapeError(
                f"{name}: an index of {len(index)} axes, values of {len(values)}",
                hint="give one row of values for each element of an index with one axis",
            )
        for axis, extent in enumerate(values):
            message = f"extents differ on axis {axis}: {{left}} and {{right}}"
            require(
                extent, "==", rows[axis] if axis else index[0], message, "values are rows of the data, one an index"
            )
        return data

    return shape


def _index_put(x: Any, index: Any, values: Any, how: str, joined_axes: int = 1) -> Any:
    """Rows are written in the order of the index: with equal inputs the bits are equal, on a GPU as well."""
    if joined_axes != 1:
        rows = x.reshape(math.prod(x.shape[:joined_axes]), *x.shape[joined_axes:])
        return _index_put(rows, index, values, how).reshape(x.shape)
    result, index = x.copy(), index.astype(np.int64)
    _check_inside(index, x.shape[0])
    index = index % max(x.shape[0], 1)
    if how == "assign":
        written = slice(None) if isinstance(x, np.ndarray) else _last_of_equal(index)
        result[index[written]] = values[written]
        return result
    update: np.ufunc = getattr(np, how)
    if isinstance(x, np.ndarray):
        update.at(result, index, values)
        return result
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    rank = np.arange(len(order), like=index) - np.searchsorted(ordered, ordered, side="left")
    for turn in range(int(rank.max()) + 1 if len(order) else 0):
        chosen = order[rank == turn]  # no two of these go to one row
        result[index[chosen]] = update(result[index[chosen]], values[chosen])
    return result


def _exact_op(name: str) -> Pointwise | None:
    """The op that computes the elements of a ufunc of two operands, bit for bit."""
    ufunc = getattr(np, name, None)
    ops = (op for op in vars(pointwise).values() if isinstance(op, Pointwise) and op.exact and op.refused is None)
    return next((op for op in ops if ufunc is not None and op.loops is ufunc and op.arity == 2), None)


index_put = library(
    "index_put", ALL, shape=_rows_shape("index_put"), numpy=_index_put, arity=3, indices=(1,),
    attributes=(("how", "assign"), ("joined_axes", 1)), row_update=lambda attributes: str(attributes["how"]),
    combiner=lambda attributes: _exact_op(attributes["how"]),
    derivative=Linear(transposes.index_put, operands=(0, 2), only=("how", ("assign", "add"))), doc="The first operand with rows of the third in the rows that the second names, in order: assigned, or combined with the row by the NumPy ufunc `how`. joined_axes: the number of axes that a row is a position in, joined.",
)  # fmt: skip
index_put_accumulate = library(
    "index_put_accumulate", NUMBERS, shape=_rows_shape("index_put_accumulate"), arity=3, indices=(1,),
    numpy=lambda x, index, values: _index_put(x, index, values, "add"), row_update=lambda attributes: "add",
    combiner=lambda attributes: _exact_op("add"),
    derivative=Linear(transposes.index_put_accumulate, operands=(0, 2)), doc="The first operand with rows of the third added to the rows that the second names.",
)  # fmt: skip
