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
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DtypeError
from tracefuse.frontend.numpy_api import composed_ufuncs, reductions
from tracefuse.frontend.tracer import shaping, traced_ops
from tracefuse.frontend.tracer.in_place import into
from tracefuse.frontend.tracer.operands import Resolved
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import apply, as_tensor, as_traced, missing, recorder_of, refuse
from tracefuse.frontend.tracer.ufunc_loops import loop_types
from tracefuse.ops import REGISTRY, Pointwise

# Ufuncs that a row of another name computes, once NumPy has chosen the types.
_ALIASES = {np.fabs: "abs", np.positive: "set"}


def _ufunc_rows() -> dict[np.ufunc, Pointwise]:
    rows = {row.name: row for row in REGISTRY.values() if isinstance(row, Pointwise)}
    found = {row.loops: row for row in rows.values() if row.loops is not None}
    return {**found, **{ufunc: rows[name] for ufunc, name in _ALIASES.items()}}


ROWS = _ufunc_rows()
COMPOSED = composed_ufuncs.without_rows(list(ROWS))

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
    signature = _signature(ufunc, keywords)
    casting = keywords.pop("casting", "same_kind")
    for name in ("order", "subok"):  # they change how NumPy stores a result, not its values
        keywords.pop(name, None)
    if ufunc in (getattr(np, "vecdot", None),) and "axis" in keywords:
        axis = operator.index(keywords.pop("axis"))
        inputs = [shaping.moveaxis(x, axis, -1) for x in inputs]
    refuse(f"np.{ufunc.__name__}", **keywords)
    outputs = [None if t is None else as_traced(t).value.dtype for t in targets]
    made = call_row(ufunc, inputs, signature, casting, outputs)
    results = made if isinstance(made, tuple) else (made,)
    if casting == "unsafe":
        results = tuple(r if t is None else traced_ops.astype(r, t.dtype, copy=False)
                        for r, t in zip(results, targets, strict=True))  # fmt: skip
    if where is not True:
        if any(target is None for target in targets):
            raise missing(f"np.{ufunc.__name__} with where= and no out=: elements of its result are not set",
                          "choose elements with np.where(mask, result, other)")  # fmt: skip
        results = tuple(apply("where", where, r, t) for r, t in zip(results, targets, strict=True))
    stored = tuple(r if t is None else into(t, r) for r, t in zip(results, targets, strict=True))
    return stored if isinstance(made, tuple) else stored[0]


def _signature(ufunc: np.ufunc, keywords: dict[str, Any]) -> list[DType | None] | None:
    """The types of operands and results that `dtype=` or `signature=` names."""
    dtype, named = keywords.pop("dtype", None), keywords.pop("signature", keywords.pop("sig", None))
    if named is not None:
        parts = list(named.replace("->", "")) if isinstance(named, str) else list(named)
        if len(parts) != ufunc.nin + ufunc.nout:
            raise missing(f"np.{ufunc.__name__} with the signature {named!r}", "name the types with dtype=")
        return [None if part is None else dtype_of(part) for part in parts]
    return of_results(ufunc, dtype)


def of_results(ufunc: np.ufunc, dtype: Any) -> list[DType | None] | None:
    """The signature of a ufunc whose results have a type; None for no type."""
    return None if dtype is None else [*[None] * ufunc.nin, *[dtype_of(dtype)] * ufunc.nout]


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
    x = composed_ufuncs.operands_of(ufunc, as_tensor(array), as_tensor(array))[0]
    largest = traced_ops.reduce("max", x, axis, None, None, True)
    shift = np.where(np.isfinite(largest), largest, 0)
    total = traced_ops.reduce("sum", power(x - shift), axis, None, None, keepdims)
    if not keepdims:
        shift = shaping.squeeze(shift, tuple(traced_ops.axes_of(axis, len(x.extents))))
    return logarithm(total) + shift


def _accumulate(ufunc: np.ufunc, out: Any, array: Any, axis: Any = 0, dtype: Any = None) -> Any:
    if not as_traced(array).extents:
        raise DtypeError(f"np.{ufunc.__name__}.accumulate of a scalar", hint="give an array", where=source.user_line())
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


def call_row(
    ufunc: np.ufunc, inputs: Sequence[Any], signature: Sequence[DType | None] | None = None,
    casting: str = "same_kind", outputs: Sequence[DType | None] = (),
) -> Any:  # fmt: skip
    """The result of a ufunc by its row, or by how it is written with others.

    signature: the types of operands and results that the caller names. outputs: the types of the arrays of `out=`.
    Raises DtypeError where NumPy has no loop for the types, or does not cast to those of its loop.
    """
    name = ufunc.__name__
    if ufunc is not getattr(np, name, None):
        if _SPECIAL.get(name) not in REGISTRY:
            raise missing(f"the ufunc {name}", "write it with functions of np, on whole arrays")
        return _strong(apply(_SPECIAL[name], *inputs))
    meaning, row = COMPOSED.get(ufunc), ROWS.get(ufunc)
    if meaning is None and row is None:
        raise missing(f"np.{name}", INSTEAD.get(name, f"compute np.{name} outside the fused function"))
    resolved = [recorder_of(inputs).resolve(x) for x in inputs]
    types = loop_types(
        ufunc, [(r.dtype, r.weak) for r in resolved], outputs, signature=signature, casting=casting
    )  # fmt: skip
    if signature is not None or row is None or row.loops is not ufunc:
        inputs = [_in_loop(x, r, t) for x, r, t in zip(inputs, resolved, types, strict=False)]
    if meaning is not None:
        made = meaning(*inputs)
    else:
        assert row is not None
        made = apply(row.name, *inputs, compute_in=types[0] if signature is not None else None)
    results = made if isinstance(made, tuple) else (made,)
    typed = [_typed(r, t) for r, t in zip(results, types[ufunc.nin :], strict=True)]
    return tuple(typed) if isinstance(made, tuple) else typed[0]


def _in_loop(value: Any, resolved: Resolved, dtype: DType) -> Any:
    """An operand in the type of the loop; a Python number takes it beside the others."""
    if resolved.weak is not None:
        return value
    return traced_ops.astype(as_traced(value), dtype, copy=False)


def _typed(result: Any, dtype: DType) -> Any:
    """A result in the type of the loop, strong in promotion."""
    strong = _strong(result)
    return strong if strong.weak is not None else traced_ops.astype(strong, dtype, copy=False)


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
