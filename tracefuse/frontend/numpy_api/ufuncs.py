"""NumPy's ufuncs on traced values, with their methods.

A ufunc finds its row by identity (`row.numpy is np.exp`), so a new row that is a NumPy ufunc needs no entry here.

Knows: ufuncs and their parameters. Must not know: NumPy's other functions, how values are recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import DtypeError
from tracefuse.frontend.numpy_api import composed_ufuncs as composed
from tracefuse.frontend.numpy_api import reductions
from tracefuse.frontend.tracer import shaping, traced_ops
from tracefuse.frontend.tracer.in_place import into
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import apply, as_tensor, as_traced, missing, recorder_of, refuse
from tracefuse.ops import REGISTRY, Pointwise

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
COMPOSED = composed.without_rows(list(ROWS))

# scipy.special's ufuncs, by name.
_SPECIAL = {
    "erf": "erf", "erfc": "erfc", "erfcinv": "erfcinv", "erfinv": "erfinv", "expit": "sigmoid", "gammaln": "lgamma",
}  # fmt: skip

_REDUCES = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip


_ACCUMULATES = {np.add: "cumsum", np.multiply: "cumprod", np.maximum: "cummax", np.minimum: "cummin"}
_ACCUMULATES_BOOLS = {np.logical_and: "cummin", np.logical_or: "cummax"}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a NumPy ufunc, or a method of it, does on traced operands."""
    (out,) = _targets(keywords.pop("out", None), 1) if method in ("reduce", "accumulate") else (None,)
    if method == "reduce":
        return _reduce(ufunc, out, *inputs, **keywords)
    if method == "accumulate":
        return _accumulate(ufunc, out, *inputs, **keywords)
    if method == "outer" and len(inputs) == 2:
        left, right = as_tensor(inputs[0]), as_tensor(inputs[1])
        widened = shaping.reshape(left, (*recorder_of((left,)).sizes(left.extents), *[1] * len(right.extents)))
        return call_ufunc(ufunc, "__call__", (widened, right), keywords)
    if method == "at" and ufunc in (np.add, np.subtract) and len(inputs) == 3:
        return _at(ufunc, *inputs)
    if method != "__call__":
        raise missing(f"np.{ufunc.__name__}.{method}", "use the function itself or a reduction")
    return _call(ufunc, inputs, keywords)


def _call(ufunc: np.ufunc, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    targets = _targets(keywords.pop("out", None), ufunc.nout)
    where = keywords.pop("where", True)
    dtype = keywords.pop("dtype", None)
    for name in ("casting", "order", "subok"):  # they change where and how NumPy stores a result, not its values
        keywords.pop(name, None)
    if ufunc in (getattr(np, "vecdot", None),) and "axis" in keywords:
        axis = operator.index(keywords.pop("axis"))
        inputs = [shaping.moveaxis(x, axis, -1) for x in inputs]
    refuse(f"np.{ufunc.__name__}", **keywords)
    made = call_row(ufunc, inputs, dtype)
    results = made if isinstance(made, tuple) else (made,)
    if where is not True:
        if any(target is None for target in targets):
            raise missing(f"np.{ufunc.__name__} with where= and no out=: elements of its result are not set",
                          "choose elements with np.where(mask, result, other)")  # fmt: skip
        results = tuple(apply("where", where, r, t) for r, t in zip(results, targets, strict=True))
    stored = tuple(r if t is None else into(t, r) for r, t in zip(results, targets, strict=True))
    return stored if isinstance(made, tuple) else stored[0]


def _targets(out: Any, count: int) -> tuple[Any, ...]:
    """What `out=` names, one entry a result."""
    if out is None:
        return (None,) * count
    return out if isinstance(out, tuple) else (out,)


def _reduce(
    ufunc: np.ufunc, out: Any, array: Any, axis: Any = 0, dtype: Any = None, _out: Any = None, keepdims: Any = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    if ufunc in _REDUCES:
        return traced_ops.reduce(_REDUCES[ufunc], array, axis, dtype, out, keepdims, initial=initial, where=where)
    refuse(f"np.{ufunc.__name__}.reduce", dtype=dtype, initial=initial, where=None if where is True else where)
    if ufunc is np.logical_xor:
        result = traced_ops.reduce("sum", apply("ne", array, 0), axis, None, None, keepdims) % 2 == 1
    elif ufunc in (np.logaddexp, np.logaddexp2):
        result = _log_of_sum(ufunc, array, axis, keepdims)
    else:
        raise missing(f"np.{ufunc.__name__}.reduce", "write it with sums, products, maxima and minima")
    return result if out is None else into(out, result)


def _log_of_sum(ufunc: np.ufunc, array: Any, axis: Any, keepdims: Any) -> Any:
    """log(sum(exp(x))), with the largest element taken out so that no exponential overflows."""
    power, logarithm = (np.exp, np.log) if ufunc is np.logaddexp else (np.exp2, np.log2)
    x = composed.operands_of(ufunc, as_tensor(array), as_tensor(array))[0]
    largest = traced_ops.reduce("max", x, axis, None, None, True)
    shift = np.where(np.isfinite(largest), largest, 0)
    total = traced_ops.reduce("sum", power(x - shift), axis, None, None, keepdims)
    if not keepdims:
        shift = shaping.squeeze(shift, tuple(traced_ops.axes_of(axis, len(x.extents))))
    return logarithm(total) + shift


def _accumulate(ufunc: np.ufunc, out: Any, array: Any, axis: Any = 0, dtype: Any = None) -> Any:
    if ufunc in _ACCUMULATES_BOOLS:
        return reductions.scan(_ACCUMULATES_BOOLS[ufunc], apply("ne", array, 0), axis, out=out)
    if ufunc not in _ACCUMULATES:
        raise missing(f"np.{ufunc.__name__}.accumulate", "write it with np.cumsum or np.cumprod")
    return reductions.scan(_ACCUMULATES[ufunc], array, axis, dtype, out)


def _at(ufunc: np.ufunc, target: Any, indices: Any, values: Any) -> None:
    """np.add.at and np.subtract.at: rows of the first axis, several times the same one included."""
    if isinstance(indices, tuple):
        raise missing(f"np.{ufunc.__name__}.at with several indices", "flatten the axes that they index")
    x, index = as_tensor(target), as_tensor(np.asarray(indices) if isinstance(indices, (list, int)) else indices)
    if not index.value.dtype.is_integer:
        raise DtypeError(f"an index array has dtype {index.value.dtype}", hint="cast it to an integer type")
    recorder, rest = x.recorder, x.extents[1:]
    rows = shaping.broadcast_to(values, recorder.sizes((*index.extents, *rest)))
    rows = shaping.reshape(traced_ops.astype(rows, x.value.dtype, copy=False), recorder.sizes((-1, *rest)))
    rows = apply("neg", rows) if ufunc is np.subtract else rows
    flat = shaping.reshape(index, -1)
    into(target, recorder.library(REGISTRY["index_put_accumulate"], [x, flat, rows]))


def call_row(ufunc: np.ufunc, inputs: Sequence[Any], dtype: Any) -> Any:
    """The result of a ufunc by its row, or by how it is written with others."""
    composed = COMPOSED.get(ufunc)
    if composed is not None:
        if dtype is not None:
            inputs = [traced_ops.astype(as_traced(x), dtype, copy=False) for x in inputs]
        return composed(*inputs)
    name = ufunc.__name__
    row = ROWS.get(ufunc)
    if row is None and ufunc is not getattr(np, name, None) and _SPECIAL.get(name) in REGISTRY:
        row = REGISTRY[_SPECIAL[name]]  # type: ignore[assignment]
    if row is None:
        if ufunc is not getattr(np, name, None):
            raise missing(f"the ufunc {name}", "write it with functions of np, on whole arrays")
        raise missing(f"np.{name}", INSTEAD.get(name, f"compute np.{name} outside the fused function"))
    result = apply(row.name, *inputs, compute_in=dtype)
    taken = as_traced(inputs[0]).value.dtype if ufunc is np.fabs else result.value.dtype
    if ufunc is np.fabs and (taken.is_complex or not result.value.dtype.is_floating):
        raise DtypeError(f"fabs does not take {taken}", hint="use np.abs", where=source.user_line())
    return _strong(result)


def _strong(result: Any) -> Any:
    """NumPy's functions give NumPy scalars, which are strong in promotion; made from sizes alone they stay weak."""
    if isinstance(result, Traced) and result.weak is not None and not result.sized:
        result.weak = None
    return result


INSTEAD = {
    "frexp": "write e = np.floor(np.log2(abs(x))) + 1 and m = x / np.exp2(e)",
    "isnat": "traced arrays hold no dates; compare numbers",
    "ldexp": "write x * np.exp2(n)",
}
"""What to write for a ufunc that does not record."""
