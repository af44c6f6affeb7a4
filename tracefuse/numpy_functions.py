"""NumPy's functions on traced values: the tables behind `__array_ufunc__`, `__array_function__` and CuPy's hook.

A ufunc finds its row by identity (`row.numpy is np.exp`), so a new row that is a NumPy ufunc needs no entry here. The
other functions are registered by NumPy's function object and have NumPy's signatures.

Knows: NumPy's functions and parameters. Must not know: protocols of other libraries, how values are recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse import dtypes, operations, source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, ShapeError
from tracefuse.operations import apply, as_tensor, as_traced, located, missing, recorder_of, refuse
from tracefuse.ops import REGISTRY, Pointwise, Reduction
from tracefuse.ops.row import normalize_axis
from tracefuse.recorder import Traced

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""What `__array_function__` calls, by NumPy's function object."""

# Ufuncs whose row has a meaning of its own (integers by zero), or that are written with other rows.
_ALIASES = {
    np.floor_divide: "floor_divide", np.remainder: "remainder", np.abs: "abs", np.fabs: "abs", np.invert: "bitwise_not",
    np.positive: "set",
}  # fmt: skip


def _ufunc_rows() -> dict[np.ufunc, Pointwise]:
    rows = {row.numpy: row for row in REGISTRY.values() if isinstance(row, Pointwise)}
    found = {f: row for f, row in rows.items() if isinstance(f, np.ufunc)}
    for ufunc, name in _ALIASES.items():
        if name in REGISTRY:
            found.setdefault(ufunc, REGISTRY[name])  # type: ignore[arg-type]
    return found


_ROWS = _ufunc_rows()
_REDUCES = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a NumPy ufunc does on traced operands."""
    if method == "reduce" and ufunc in _REDUCES:
        keywords.pop("out", None)
        return operations.reduce(_REDUCES[ufunc], inputs[0], keywords.pop("axis", 0), **keywords)
    if method == "outer" and len(inputs) == 2:
        left, right = as_tensor(inputs[0]), as_tensor(inputs[1])
        widened = operations.reshape(left, (*recorder_of((left,)).sizes(left.extents), *[1] * len(right.extents)))
        return call_ufunc(ufunc, "__call__", (widened, right), keywords)
    if method != "__call__":
        raise missing(f"np.{ufunc.__name__}.{method}", "use the function itself or a reduction")
    out = keywords.pop("out", None)
    where = keywords.pop("where", True)
    dtype = keywords.pop("dtype", None)
    keywords.pop("casting", None)
    refuse(f"np.{ufunc.__name__}", where=None if where is True else where, **keywords)
    result = _call_row(ufunc, inputs, dtype)
    if out is None or out == (None,):
        return result
    (target,) = out if isinstance(out, tuple) else (out,)
    return operations.into(target, result)


def _call_row(ufunc: np.ufunc, inputs: Sequence[Any], dtype: Any) -> Any:
    composed = _COMPOSED.get(ufunc)
    if composed is not None:
        return composed(*inputs) if dtype is None else operations.astype(composed(*inputs), dtype)
    row = _ROWS.get(ufunc)
    if row is None:
        name = ufunc.__name__
        raise missing(f"np.{name}", _INSTEAD.get(name, f"compute np.{name} outside the fused function"))
    result = apply(row.name, *inputs, compute_in=dtype)
    if ufunc is np.fabs and result.value.dtype.kind not in ("float",):
        raise DtypeError(f"fabs does not take {result.value.dtype}", hint="use np.abs", where=source.user_line())
    return _strong(result)


def _strong(result: Any) -> Any:
    """NumPy's functions give NumPy scalars, which are strong in promotion; made from sizes alone they stay weak."""
    if isinstance(result, Traced) and result.weak is not None and not result.sized:
        result.weak = None
    return result


_INSTEAD = {
    "expm1": "write np.exp(x) - 1 where the loss of digits near 0 does not matter",
    "log1p": "write np.log(1 + x) where the loss of digits near 0 does not matter",
    "hypot": "write np.sqrt(x * x + y * y)",
    "divmod": "write x // y and x % y",
    "modf": "write x % 1 and x // 1",
}


def _square(x: Any) -> Any:
    return apply("mul", x, x)


def _reciprocal(x: Any) -> Any:
    traced = as_traced(x)
    return apply("floor_divide" if traced.value.dtype.is_integer else "div", 1, traced)


def _sign(x: Any) -> Any:
    if "sign" in REGISTRY:
        return apply("sign", x)
    traced = as_traced(x)
    if traced.value.dtype.kind in ("complex", "bool"):
        raise missing(f"np.sign of {traced.value.dtype}", "compute it outside the fused function")
    ones = apply("where", apply("gt", traced, 0), 1, apply("where", apply("lt", traced, 0), -1, traced))
    if traced.value.dtype.kind == "uint":
        ones = apply("minimum", traced, 1)
    return ones


def _logical_xor(a: Any, b: Any) -> Any:
    return apply("ne", apply("ne", a, 0), apply("ne", b, 0))


def _isinf(x: Any) -> Any:
    x = as_traced(x)
    return apply("logical_not", apply("logical_or", apply("isfinite", x), apply("isnan", x)))


def _fmax(name: str) -> Callable[[Any, Any], Any]:
    def call(a: Any, b: Any) -> Any:
        chosen = apply(name, a, b)
        if not chosen.value.dtype.is_floating:
            return chosen
        return apply("where", apply("isnan", a), b, apply("where", apply("isnan", b), a, chosen))

    return call


def _degrees(factor: float) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        traced = as_traced(x)
        floating = traced if traced.value.dtype.is_floating else operations.astype(traced, dtypes.float64)
        return apply("mul", floating, factor)

    return call


_COMPOSED: dict[np.ufunc, Callable[..., Any]] = {
    np.square: _square, np.reciprocal: _reciprocal, np.sign: _sign, np.power: operations.power,
    np.float_power: lambda a, b: operations.power(operations.astype(as_traced(a), dtypes.float64), b),
    np.matmul: operations.matmul, np.logical_xor: _logical_xor, np.conjugate: operations.conjugate,
    np.degrees: _degrees(180 / np.pi), np.rad2deg: _degrees(180 / np.pi), np.radians: _degrees(np.pi / 180),
    np.deg2rad: _degrees(np.pi / 180),
}  # fmt: skip
for _other, _written in ((np.isinf, _isinf), (np.fmax, _fmax("maximum")), (np.fmin, _fmax("minimum"))):
    if _other not in _ROWS:
        _COMPOSED[_other] = _written
for _ufunc in [f for f in _COMPOSED if f in _ROWS and f not in (np.power, np.matmul)]:
    del _COMPOSED[_ufunc]


# ---------------------------------------------------------------------------------------------------------------------
# __array_function__


def call(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a NumPy function that is no ufunc does on traced operands."""
    implementation = FUNCTIONS.get(function)
    if implementation is None:
        name = getattr(function, "__name__", str(function))
        module = getattr(function, "__module__", "numpy").replace("numpy", "np")
        raise missing(f"{module}.{name}", "compute it outside the fused function, or write it with supported functions")
    return implementation(*arguments, **keywords)


def implements(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the meaning of NumPy functions; errors without a line get the user's."""

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        placed = located(implementation)
        for function in functions:
            FUNCTIONS[function] = placed
        return placed

    return register


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


FUNCTIONS[np.var] = operations.located(operations.var)
FUNCTIONS[np.std] = operations.located(operations.std)


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    largest = operations.reduce("max", a, axis, None, None, keepdims)
    result = apply("sub", largest, operations.reduce("min", a, axis, None, None, keepdims))
    return result if out is None else operations.into(out, result)


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


for _later in (np.argmax, np.argmin, np.cumsum, np.cumprod, np.median, np.sort, np.argsort):

    def _absent(a: Any, axis: Any = None, *more: Any, _row: str = _later.__name__, keepdims: Any = False, **rest: Any) -> Any:  # fmt: skip # noqa: E501
        return by_row(_row, a, axis, keepdims)

    FUNCTIONS[_later] = _absent


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        raise missing("np.where with one argument: the size of its result depends on the data", "give all three")
    return apply("where", condition, x, y)


@implements(np.clip)
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None, **more: Any) -> Any:  # fmt: skip # noqa: E501
    refuse("np.clip", **more)
    low, high = (None if v is np._NoValue else v for v in (a_min, a_max))
    low, high = min if low is None else low, max if high is None else high
    result = a
    if low is not None:
        result = apply("maximum", result, low)
    if high is not None:
        result = apply("minimum", result, high)
    result = operations.copy(a) if result is a else result
    return result if out is None else operations.into(out, result)


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    close = apply("le", apply("abs", apply("sub", a, b)), apply("add", atol, apply("mul", rtol, apply("abs", b))))
    close = apply("logical_and", close, apply("isfinite", b))
    close = apply("logical_or", close, apply("eq", a, b))
    if equal_nan:
        close = apply("logical_or", close, apply("logical_and", apply("isnan", a), apply("isnan", b)))
    return close


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    return operations.reduce("all", isclose(a, b, rtol, atol, equal_nan))


@implements(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    traced = as_traced(x)
    if not traced.value.dtype.is_floating:
        return operations.copy(traced)
    limits: Any = ml_dtypes.finfo(traced.value.dtype.name)  # it knows NumPy's types as well
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    kept = apply("where", apply("isnan", traced), nan, traced)
    kept = apply("where", apply("eq", traced, float("inf")), high, kept)
    return apply("where", apply("eq", traced, float("-inf")), low, kept)


@implements(np.round, np.around)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    if "round" not in REGISTRY or decimals:
        raise missing(f"np.round(decimals={decimals})", "compute it outside the fused function")
    return apply("round", a)


# -- axes and shapes


@implements(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None) -> Any:
    return operations.reshape(a, newshape if shape is None else shape, order)


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    return operations.reshape(a, -1, "C" if order in ("K", "A") else order)


@implements(np.transpose, np.permute_dims)
def transpose(a: Any, axes: Any = None) -> Any:
    return operations.transpose(a, axes)


@implements(np.matrix_transpose)
def matrix_transpose(x: Any, /) -> Any:
    return operations.swapaxes(x, -1, -2)


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: Any, axis2: Any) -> Any:
    return operations.swapaxes(a, axis1, axis2)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    return operations.moveaxis(a, source, destination)


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    rank = len(as_traced(a).extents)
    axis, start = normalize_axis(axis, rank), normalize_axis(start, rank + 1)
    return operations.moveaxis(a, axis, start - 1 if axis < start else start)


@implements(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    return operations.squeeze(a, axis)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    return operations.expand_dims(a, axis)


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    return operations.broadcast_to(array, shape)


@implements(np.broadcast_arrays)
def broadcast_arrays(*arrays: Any, subok: bool = False) -> Any:
    parts = [as_tensor(a) for a in arrays]
    recorder = parts[0].recorder
    settled = recorder._settled([recorder.resolve(p) for p in parts])
    shape = operations.broadcast_shape([r.shape for r in settled], recorder)
    return tuple(operations.broadcast_to(r.traced, recorder.sizes(shape)) for r in settled)


@implements(np.atleast_1d)
def atleast_1d(*arrays: Any) -> Any:
    parts = [a if as_tensor(a).extents else operations.reshape(a, (1,)) for a in arrays]
    return parts[0] if len(parts) == 1 else tuple(parts)


@implements(np.atleast_2d)
def atleast_2d(*arrays: Any) -> Any:
    parts = []
    for a in arrays:
        rank = len(as_tensor(a).extents)
        parts.append(a if rank >= 2 else operations.expand_dims(a, tuple(range(2 - rank))))
    return parts[0] if len(parts) == 1 else tuple(parts)


@implements(np.shape)
def shape(a: Any) -> Any:
    return a.shape


@implements(np.ndim)
def ndim(a: Any) -> int:
    return len(as_traced(a).extents)


@implements(np.size)
def size(a: Any, axis: Any = None) -> Any:
    return a.size if axis is None else a.shape[axis]


@implements(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    return operations.copy(a)


@implements(np.astype)
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    return operations.astype(as_traced(x), dtype, copy=copy)


@implements(np.real)
def real(val: Any) -> Any:
    return operations.real(val)


@implements(np.imag)
def imag(val: Any) -> Any:
    return operations.imag(val)


@implements(np.iscomplexobj)
def iscomplexobj(x: Any) -> bool:
    return bool(as_traced(x).value.dtype.kind == "complex")


@implements(np.isrealobj)
def isrealobj(x: Any) -> bool:
    return not iscomplexobj(x)


@implements(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    plain: list[Any] = []
    for a in arrays_and_dtypes:
        if isinstance(a, Traced) and a.weak is not None:
            plain.append({"bool": False, "int": 0, "float": 0.0, "complex": 0j}[a.weak])
        else:
            plain.append(a.value.dtype.numpy if isinstance(a, Traced) else a)
    return np.result_type(*plain)


# -- several arrays


@implements(np.concatenate)
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    result = operations.concatenate(arrays, axis, dtype)
    return result if out is None else operations.into(out, result)


@implements(np.stack)
def stack(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    result = operations.stack(arrays, axis, dtype)
    return result if out is None else operations.into(out, result)


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    return operations.concatenate([atleast_2d(a) for a in tup], 0, dtype)


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    parts = [atleast_1d(a) for a in tup]
    return operations.concatenate(parts, 0 if len(as_traced(parts[0]).extents) == 1 else 1, dtype)


@implements(np.column_stack)
def column_stack(tup: Any) -> Any:
    parts = [operations.expand_dims(a, 1) if len(as_traced(a).extents) == 1 else a for a in tup]
    return operations.concatenate(parts, 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    return operations.concatenate([arr, values], axis)


def _pieces(ary: Any, indices_or_sections: Any, axis: Any, *, equal: bool) -> list[Any]:
    traced = as_tensor(ary)
    recorder = traced.recorder
    dim = normalize_axis(operator.index(axis), len(traced.extents))
    extent = recorder.sizes(traced.extents)[dim]
    if isinstance(indices_or_sections, (list, tuple, np.ndarray)):
        cuts = [0, *indices_or_sections, extent]
    else:
        count = operator.index(indices_or_sections)
        if count < 1:
            raise ShapeError("number sections must be larger than 0.")
        if equal:
            message = f"split: axis {dim} does not divide into {count} equal parts: {{left}} elements are left over"
            over = traced.extents[dim] % count
            recorder.builder.require(over, "==", 0, message, "use np.array_split", source.user_line())
        each, extra = extent // count, extent % count
        cuts = [0]
        for k in range(count):
            longer = not equal and bool(extra > k)
            cuts.append(cuts[-1] + each + int(longer))
        cuts[-1] = extent
    before = (slice(None),) * dim
    return [operations.getitem(traced, (*before, slice(cuts[k], cuts[k + 1]))) for k in range(len(cuts) - 1)]


@implements(np.split)
def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    return _pieces(ary, indices_or_sections, axis, equal=True)


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    return _pieces(ary, indices_or_sections, axis, equal=False)


@implements(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> Any:
    return split(ary, indices_or_sections, 0 if len(as_traced(ary).extents) == 1 else 1)


@implements(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> Any:
    return split(ary, indices_or_sections, 0)


@implements(np.unstack)
def unstack(x: Any, /, *, axis: int = 0) -> Any:
    traced = as_tensor(x)
    dim = normalize_axis(axis, len(traced.extents))
    count = traced.recorder.pin(traced.extents[dim], "np.unstack")
    return tuple(operations.getitem(traced, (*(slice(None),) * dim, k)) for k in range(count))


# -- elements moved


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    traced = as_tensor(m)
    dims = operations.axes_of(axis, len(traced.extents))
    return traced.recorder.movement("flip", [traced], view_of=traced, dims=dims)


@implements(np.flipud)
def flipud(m: Any) -> Any:
    return flip(m, 0)


@implements(np.fliplr)
def fliplr(m: Any) -> Any:
    return flip(m, 1)


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    traced = as_tensor(a)
    recorder = traced.recorder
    if axis is None:
        shape = recorder.sizes(traced.extents)
        return operations.reshape(roll(operations.reshape(traced, -1), shift, 0), shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    axes = axes * len(shifts) if len(axes) == 1 else axes
    result = traced
    for amount, one in zip(shifts, axes, strict=True):
        dim = normalize_axis(operator.index(one), len(traced.extents))
        (extent,) = operations.new_shape_entries((amount,), recorder)
        result = recorder.movement("roll", [result], shift=extent, dim=dim)
    return result


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **keywords: Any) -> Any:
    if mode != "constant":
        raise missing(f"np.pad with mode={mode!r}", "use mode='constant'")
    value = keywords.pop("constant_values", 0)
    refuse("np.pad", **keywords)
    traced = as_tensor(array)
    rank = len(traced.extents)
    if isinstance(value, (tuple, list, np.ndarray)):
        flat = np.unique(np.asarray(value))
        if flat.size != 1:
            raise missing("np.pad with several constant_values", "pad one axis after the other")
        value = flat[0]
    value = operations._number(value)
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    entries = operations.new_shape_entries(_pad_pairs(pad_width, rank), traced.recorder)
    for entry in entries:
        message = "pad: a width of {right} is negative"
        traced.recorder.builder.require(0, "<=", entry, message, "slice to remove elements", source.user_line())
    return traced.recorder.movement(
        "pad", [traced], pad_widths=entries, value=traced.value.dtype.numpy.type(value).item()
    )


def _pad_pairs(width: Any, rank: int) -> list[Any]:
    """NumPy's spellings of pad widths (n, (n,), (before, after), one pair an axis) as before, after per axis."""
    if isinstance(width, dict):
        pairs = {normalize_axis(k, rank): v for k, v in width.items()}
        return [e for k in range(rank) for e in _pair(pairs.get(k, 0))]
    if not isinstance(width, (tuple, list, np.ndarray)):
        return [width] * (2 * rank)
    rows = list(width)
    if rows and not isinstance(rows[0], (tuple, list, np.ndarray)):
        return list(_pair(tuple(rows))) * rank
    if len(rows) == 1:
        return list(_pair(tuple(rows[0]))) * rank
    if len(rows) != rank:
        raise ShapeError(f"pad: {len(rows)} pairs of widths for {rank} axes", hint="give one pair per axis")
    return [e for row in rows for e in _pair(tuple(row))]


def _pair(width: Any) -> tuple[Any, Any]:
    if not isinstance(width, tuple):
        return width, width
    return (width[0], width[0]) if len(width) == 1 else (width[0], width[1])


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    traced, index = as_tensor(arr), as_tensor(indices)
    if axis is None:
        traced, axis = operations.reshape(traced, -1), 0
    if not index.value.dtype.is_integer:
        raise DtypeError(f"`indices` must be an integer array, not {index.value.dtype}", hint="cast it to an integer")
    dim = normalize_axis(operator.index(axis), len(traced.extents))
    return traced.recorder.movement("take_along_axis", [traced, index], dim=dim)


@implements(np.take)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    refuse("np.take", mode=None if mode == "raise" else mode)
    result = operations.take(a, indices, axis)
    return result if out is None else operations.into(out, result)


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Each element `repeats` times: a new axis, expanded and joined with the one before."""
    if isinstance(repeats, (list, tuple, np.ndarray)) and np.size(repeats) == 1:
        repeats = np.asarray(repeats).item()
    if isinstance(repeats, (list, tuple, np.ndarray)) or (isinstance(repeats, Traced) and not repeats.on_host):
        raise missing("np.repeat with one count per element", "use one count")
    traced = as_tensor(a) if axis is not None else operations.reshape(as_tensor(a), -1)
    recorder = traced.recorder
    dim = normalize_axis(0 if axis is None else operator.index(axis), len(traced.extents))
    own = recorder.sizes(traced.extents)
    wide = operations.broadcast_to(operations.expand_dims(traced, dim + 1), (*own[: dim + 1], repeats, *own[dim + 1 :]))
    return operations.reshape(wide, (*own[:dim], own[dim] * repeats, *own[dim + 1 :]))


@implements(np.tile)
def tile(A: Any, reps: Any) -> Any:
    traced = as_tensor(A)
    recorder = traced.recorder
    counts = list(reps) if isinstance(reps, (tuple, list)) else [reps]
    rank = max(len(counts), len(traced.extents))
    traced = operations.expand_dims(traced, tuple(range(rank - len(traced.extents)))) if rank > len(traced.extents) else traced  # fmt: skip # noqa: E501
    counts = [1] * (rank - len(counts)) + counts
    own = recorder.sizes(traced.extents)
    between = operations.expand_dims(traced, tuple(range(0, 2 * rank, 2)))
    wide = operations.broadcast_to(between, [e for c, n in zip(counts, own, strict=True) for e in (c, n)])
    return operations.reshape(wide, tuple(c * n for c, n in zip(counts, own, strict=True)))


@implements(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    refuse("np.diff", prepend=prepend, append=append)
    result = as_tensor(a)
    dim = normalize_axis(axis, len(result.extents))
    before = (slice(None),) * dim
    for _ in range(n):
        later = operations.getitem(result, (*before, slice(1, None)))
        earlier = operations.getitem(result, (*before, slice(None, -1)))
        result = apply("ne" if result.value.dtype.kind == "bool" else "sub", later, earlier)
    return result


@implements(np.tril)
def tril(m: Any, k: Any = 0) -> Any:
    return _triangle(m, k, lower=True)


@implements(np.triu)
def triu(m: Any, k: Any = 0) -> Any:
    return _triangle(m, k, lower=False)


def _triangle(m: Any, k: Any, *, lower: bool) -> Any:
    """m with zeros above (below) its k-th diagonal: rows and columns are compared as numbers."""
    traced = as_tensor(m)
    rank = len(traced.extents)
    if rank < 2:
        raise ShapeError(f"{'tril' if lower else 'triu'} of an array with {rank} axes", hint="give a matrix")
    recorder = traced.recorder
    rows = iota(recorder, 0, 1, traced.extents[-2], dtypes.int64)
    columns = iota(recorder, 0, 1, traced.extents[-1], dtypes.int64)
    line = apply("add", operations.expand_dims(rows, 1), k)
    keep = apply("le" if lower else "ge", operations.expand_dims(columns, 0), line)
    return apply("where", keep, traced, False if traced.value.dtype.kind == "bool" else 0)


def iota(recorder: Any, start: Any, step: Any, length: Any, dtype: Any) -> Any:
    """start, start + step, ... : `length` elements of `dtype`."""
    row = REGISTRY["iota"]
    assert isinstance(row, Pointwise)
    return recorder.pointwise(row, (start, step), compute_in=dtype, length=recorder.plain(length))


# -- arrays like another


def _like(prototype: Any, value: Any, dtype: Any, shape: Any) -> Any:
    traced = as_traced(prototype)
    recorder = traced.recorder
    target = traced.value.dtype if dtype is None else dtype_of(dtype)
    extents = traced.extents if shape is None else operations.new_shape(shape, recorder)
    filled = value if not isinstance(value, (np.ndarray, list, tuple)) else as_tensor(value)
    if isinstance(filled, Traced) and filled.extents:
        return operations.broadcast_to(operations.astype(filled, target), recorder.sizes(extents))
    return recorder.movement("full", [filled], shape=extents, dtype=target)


@implements(np.zeros_like)
def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(a, 0, dtype, shape)


@implements(np.ones_like)
def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(a, 1, dtype, shape)


@implements(np.empty_like)
def empty_like(prototype: Any, /, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(prototype, 0, dtype, shape)


@implements(np.full_like)
def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(a, fill_value, dtype, shape)


# -- linear algebra


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    result = operations.dot(a, b)
    return result if out is None else operations.into(out, result)


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    left, right = as_tensor(a), as_tensor(b)
    if not left.extents or not right.extents:
        return apply("mul", left, right)
    if len(right.extents) > 2:
        raise missing("np.inner of more than two axes", "use np.einsum")
    return operations.matmul(left, operations.transpose(right))


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    left, right = operations.reshape(a, -1), operations.reshape(b, -1)
    return apply("mul", operations.expand_dims(left, 1), operations.expand_dims(right, 0))


@implements(np.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    return operations.matmul(operations.reshape(operations.conjugate(a), -1), operations.reshape(b, -1))


@implements(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    raise missing("np.trace", "write np.sum(a * np.eye(n))")


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    traced = as_tensor(x)
    if ord not in (None, 2, "fro") or (ord == 2 and axis is None and len(traced.extents) > 1):
        raise missing(f"np.linalg.norm with ord={ord!r}", "write it with np.abs, np.sum and np.max")
    if not traced.value.dtype.is_floating:
        traced = operations.astype(traced, dtypes.float64)
    return apply("sqrt", operations.reduce("sum", apply("mul", traced, traced), axis, None, None, keepdims))


# ---------------------------------------------------------------------------------------------------------------------
# CuPy's hook

# Kernels of CuPy whose name is not "cupy_" and the name of a NumPy ufunc.
_CUPY_ROWS = {
    "cupy_copy": "set", "cupy_where": "where", "cupyx_scipy_special_erf": "erf", "cupyx_scipy_special_expit": "sigmoid",
    "cupyx_scipy_expit": "sigmoid", "cupyx_scipy_special_erfc": "erfc",
}  # fmt: skip


def call_cupy_kernel(kernel: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a CuPy ufunc does on traced operands: `kernel` is the ufunc, known by its name.

    CuPy passes its arguments as they were given; outputs may stand after the `nin` inputs.
    """
    name = getattr(kernel, "name", type(kernel).__name__)
    count = getattr(kernel, "nin", len(arguments))
    inputs, outs = arguments[:count], arguments[count:]
    out, dtype = keywords.pop("out", None), keywords.pop("dtype", None)
    keywords.pop("casting", None)
    refuse(name, where=keywords.pop("_where", None), **keywords)
    row, ufunc = _CUPY_ROWS.get(name), getattr(np, name.removeprefix("cupy_"), None)
    if name == "cupy_clip":
        result = clip(*inputs)
    elif row in REGISTRY:
        result = apply(str(row), *inputs, compute_in=dtype)
    elif name.startswith("cupy_") and isinstance(ufunc, np.ufunc):
        result = _call_row(ufunc, inputs, dtype)
    else:
        raise missing(
            f"the CuPy kernel {name}", "write it with NumPy's functions, or call it outside the fused function"
        )
    target = (out[0] if isinstance(out, tuple) else out) if out is not None else (outs[0] if outs else None)
    return result if target is None else operations.into(target, result)
