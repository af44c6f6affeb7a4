"""NumPy's ufuncs on traced values.

A ufunc finds its row by identity (`row.numpy is np.exp`), so a new row that is a NumPy ufunc needs no entry here.

Knows: ufuncs and their parameters. Must not know: NumPy's other functions, how values are recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import arithmetic, dtypes, numpy_reductions, operations, shaping, source
from tracefuse.errors import DtypeError
from tracefuse.in_place import into
from tracefuse.operations import apply, as_tensor, as_traced, missing, recorder_of, refuse
from tracefuse.ops import REGISTRY, Pointwise
from tracefuse.recorder import Traced

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


ROWS = _ufunc_rows()


_REDUCES = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip


_ACCUMULATES = {np.add: "cumsum", np.multiply: "cumprod", np.maximum: "cummax", np.minimum: "cummin"}


def vecdot(x1: Any, x2: Any, axis: Any = -1) -> Any:
    """The sum of the products of conj(x1) and x2 along an axis."""
    left, right = (shaping.moveaxis(x, operator.index(axis), -1) for x in (x1, x2))
    made = apply("mul", arithmetic.conjugate(left), right)
    return operations.sum_of_products(made, (-1,))


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a NumPy ufunc does on traced operands."""
    if method == "reduce" and ufunc in _REDUCES:
        (out,) = keywords.pop("out", (None,))
        return operations.reduce(_REDUCES[ufunc], inputs[0], keywords.pop("axis", 0), out=out, **keywords)
    if method == "accumulate" and ufunc in _ACCUMULATES:
        (out,) = keywords.pop("out", (None,))
        return numpy_reductions.scan(_ACCUMULATES[ufunc], inputs[0], keywords.pop("axis", 0), out=out, **keywords)
    if method == "outer" and len(inputs) == 2:
        left, right = as_tensor(inputs[0]), as_tensor(inputs[1])
        widened = shaping.reshape(left, (*recorder_of((left,)).sizes(left.extents), *[1] * len(right.extents)))
        return call_ufunc(ufunc, "__call__", (widened, right), keywords)
    if method != "__call__":
        raise missing(f"np.{ufunc.__name__}.{method}", "use the function itself or a reduction")
    (target,) = keywords.pop("out", (None,))
    where = keywords.pop("where", True)
    dtype = keywords.pop("dtype", None)
    keywords.pop("casting", None)
    if ufunc is np.vecdot and "axis" in keywords:
        axis = operator.index(keywords.pop("axis"))
        inputs = [shaping.moveaxis(x, axis, -1) for x in inputs]
    refuse(f"np.{ufunc.__name__}", where=None if where is True else where, **keywords)
    result = call_row(ufunc, inputs, dtype)
    return result if target is None else into(target, result)


def call_row(ufunc: np.ufunc, inputs: Sequence[Any], dtype: Any) -> Any:
    composed = _COMPOSED.get(ufunc)
    if composed is not None:
        return composed(*inputs) if dtype is None else operations.astype(composed(*inputs), dtype)
    row = ROWS.get(ufunc)
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
    return apply("trunc_divide" if traced.value.dtype.is_integer else "div", 1, traced)


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


def _matvec(matrix: Any, vector: Any) -> Any:
    return shaping.squeeze(arithmetic.matmul(matrix, shaping.expand_dims(vector, -1)), -1)


def _vecmat(vector: Any, matrix: Any) -> Any:
    row = shaping.expand_dims(arithmetic.conjugate(vector), -2)
    return shaping.squeeze(arithmetic.matmul(row, matrix), -2)


_COMPOSED: dict[np.ufunc, Callable[..., Any]] = {
    np.square: _square, np.reciprocal: _reciprocal, np.sign: _sign, np.power: arithmetic.power,
    np.float_power: lambda a, b: arithmetic.power(operations.astype(as_traced(a), dtypes.float64), b),
    np.matmul: arithmetic.matmul, np.logical_xor: _logical_xor, np.conjugate: arithmetic.conjugate,
    np.degrees: _degrees(180 / np.pi), np.rad2deg: _degrees(180 / np.pi), np.radians: _degrees(np.pi / 180),
    np.deg2rad: _degrees(np.pi / 180),
}  # fmt: skip


for _other, _written in ((np.isinf, _isinf), (np.fmax, _fmax("maximum")), (np.fmin, _fmax("minimum"))):
    if _other not in ROWS:
        _COMPOSED[_other] = _written


for _name, _meaning in (("vecdot", vecdot), ("matvec", _matvec), ("vecmat", _vecmat)):
    if hasattr(np, _name):  # the last two came with NumPy 2.2
        _COMPOSED[getattr(np, _name)] = _meaning
for _ufunc in [f for f in _COMPOSED if f in ROWS and f not in (np.power, np.matmul)]:
    del _COMPOSED[_ufunc]
