"""NumPy's ufuncs on traced values, with their methods.

A ufunc finds its op definition by identity (`op.loops is np.exp`), so an op that names its NumPy ufunc needs no entry
here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError
from tracefuse.frontend.numpy_api.formulas import composed_ufuncs, special_functions
from tracefuse.frontend.numpy_api.hints import refusals
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_strong, make_strong
from tracefuse.frontend.numpy_api.protocols.python_functions import ObjectsOfCall
from tracefuse.frontend.numpy_api.registration import array_memory, result_order
from tracefuse.frontend.numpy_api.registration.core_axes import CoreAxes, as_vectors, without_leading
from tracefuse.frontend.numpy_api.selecting import updates_at_positions
from tracefuse.frontend.numpy_api.statistics import reductions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.array_protocols import array_of_object
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, as_traced, missing, recorder_of, refuse
from tracefuse.frontend.tracer.captured.inner_objects import python_function
from tracefuse.frontend.tracer.libraries.stage_calls import call_or_refuse
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.operands import Resolved
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.ufunc_loops import check_reduction, loop_types
from tracefuse.ops import REGISTRY, Pointwise

# Ufuncs computed by an op of another name, once NumPy has chosen the types.
_ALIASES = {np.positive: "ordered_set"}


def _ops_by_ufunc() -> dict[np.ufunc, Pointwise]:
    ops = {op.name: op for op in REGISTRY.values() if isinstance(op, Pointwise)}
    by_loops = {op.loops: op for op in ops.values() if op.loops is not None}
    return {**by_loops, **{ufunc: ops[name] for ufunc, name in _ALIASES.items()}}


UFUNC_OPS = _ops_by_ufunc()
COMPOSED = composed_ufuncs.select_composed(list(UFUNC_OPS))

_REDUCES = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip


_ACCUMULATES = {np.add: "cumsum", np.multiply: "cumprod", np.maximum: "cummax", np.minimum: "cummin"}
_ACCUMULATES_BOOLS = {np.logical_and: "cummin", np.logical_or: "cummax"}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of a NumPy ufunc or of one of its methods.

    A reduction, scan or reduction of segments that no op expresses runs between two stages of a call.
    """
    if ufunc.__name__.endswith(" (vectorized)"):
        function = python_function(ufunc)
        if method == "__call__" and not keywords and ufunc.nout == 1 and isinstance(function, FunctionType):
            return ObjectsOfCall(function, 1, tuple(inputs))
        raise missing(
            f"{ufunc.__name__.partition(' ')[0]}, of which np.frompyfunc makes a ufunc, of a traced array",
            refusals.OF_ARRAYS,
        )
    inputs = tuple(map(array_of_object, inputs))
    if method not in ("reduce", "accumulate", "reduceat"):
        return _recorded(ufunc, method, inputs, keywords)
    function = getattr(ufunc, method)
    try:
        result = _recorded(ufunc, method, inputs, dict(keywords))
    except UnsupportedError as refusal:
        (out,) = _targets(keywords.pop("out", None), 1)
        all_keywords = keywords if out is None else {**keywords, "target": as_traced(out).value.dtype.numpy}
        of_rows = _is_in_rows(inputs[0])
        is_plain = out is None and not of_rows
        all_keywords = all_keywords if out is None else {**all_keywords, "of_rows": of_rows}
        computed = function if is_plain else _in_order_of_rows if out is None else _into_new_array
        operands = inputs if is_plain else (ufunc, method, *inputs)
        result = call_or_refuse(computed, f"np.{ufunc.__name__}.{method}", operands, all_keywords, refusal)
        return result_order.in_order_of(function, result, inputs, keywords) if out is None else into(out, result)
    return result if keywords.get("out") is not None else result_order.in_order_of(function, result, inputs, keywords)


def _is_in_rows(array: Any) -> bool:
    """Whether NumPy reduces in row-major order an array that a stage may give in another order of memory.

    So it does with broadcast arrays, and with those that are contiguous in this order.
    """
    if not isinstance(array, Traced):
        return False
    return (array.parent is not None and 0 in views.strides_of(array)) or array_memory.ArrayFlags(array).c_contiguous


def _in_order_of_rows(ufunc: np.ufunc, method: str, array: Any, *inputs: Any, **keywords: Any) -> Any:
    """Calls a method of a ufunc for elements in row-major order: NumPy may reduce others in their order in memory."""
    return getattr(ufunc, method)(np.asarray(array, order="C"), *inputs, **keywords)


def _into_new_array(ufunc: np.ufunc, method: str, *inputs: Any, target: Any, of_rows: bool, **keywords: Any) -> Any:
    """Calls a method of a ufunc for an array of a type that takes the result, which decides the type of the loop.

    of_rows: whether to take the elements in row-major order, as `_in_order_of_rows`.
    """
    inputs = (np.asarray(inputs[0], order="C"), *inputs[1:]) if of_rows else inputs
    placed = {name: keywords[name] for name in ("axis", "keepdims") if name in keywords}
    shaped = getattr(np.logical_or, method)(*inputs[: 3 if method == "reduceat" else 2], **placed)
    return np.asarray(getattr(ufunc, method)(*inputs, out=np.empty(np.shape(shaped), target), **keywords))


def _recorded(ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    (out,) = _targets(keywords.pop("out", None), 1) if method in ("reduce", "accumulate") else (None,)
    if method == "reduce":
        keywords = dict(reductions.named_parameters("sum", keywords))
        return _reduce(ufunc, out, *inputs, **keywords)
    if method == "accumulate":
        return _accumulate(ufunc, out, *inputs, **keywords)
    if method == "outer" and len(inputs) == 2:
        left, right = (as_strong(as_tensor(x)) for x in inputs)  # NumPy makes arrays of them
        widened = shaping.reshape(left, (*recorder_of((left,)).sizes(left.extents), *[1] * len(right.extents)))
        return call_ufunc(ufunc, "__call__", (widened, right), keywords)
    if method == "at":
        return updates_at_positions.update_at(ufunc, *inputs)
    if method != "__call__":
        raise missing(f"np.{ufunc.__name__}.{method}", "use the function itself or a reduction")
    if ufunc in (np.equal, np.not_equal) and not keywords and any(x is None for x in inputs):
        (array,) = (as_tensor(x) for x in inputs if x is not None)
        return np.full_like(array, ufunc is np.not_equal, dtype=bool)  # no number equals None
    return _call(ufunc, inputs, keywords)


def _call(ufunc: np.ufunc, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    targets = _targets(keywords.pop("out", None), ufunc.nout)
    where = keywords.pop("where", True)
    where = True if where is np._NoValue else where  # what NumPy's own functions pass on
    where = bool(where) if where is None or isinstance(where, np.bool_) else where
    signature = _signature(ufunc, keywords)
    casting = keywords.pop("casting", "same_kind")
    order, _ = keywords.pop("order", "K"), keywords.pop("subok", None)
    axes = None if ufunc.signature is None else CoreAxes(ufunc, inputs, keywords)
    inputs = inputs if axes is None else as_vectors(ufunc, axes.inputs, targets[0])
    refuse(f"np.{ufunc.__name__}", **keywords)
    outputs = [None if t is None else as_traced(t).value.dtype for t in targets]
    if where is not True and ufunc is np.power:
        inputs = _with_exponents_under(where, inputs, signature, casting, outputs)
    result = call_loop(ufunc, inputs, signature, casting, outputs)
    result = result if axes is None else axes.place(result)
    results = result if isinstance(result, tuple) else (result,)
    if ufunc.signature is not None:
        results = tuple(without_leading(ufunc, r, t) for r, t in zip(results, targets, strict=True))
        if targets[0] is not None:
            _check_core_axes(ufunc, inputs, results[0], targets[0])
    if casting == "unsafe" or where is not True:
        results = tuple(r if t is None else traced_ops.astype(r, t.dtype, copy=False)
                        for r, t in zip(results, targets, strict=True))  # fmt: skip
    if where is not True:
        if any(target is None for target in targets):
            raise missing(f"np.{ufunc.__name__} with where= and no out=: elements of its result are not set",
                          "give them with out=np.zeros_like(x), or choose elements: np.where(mask, result, other)",
                          )  # fmt: skip
        results = tuple(apply("where", where, r, t) for r, t in zip(results, targets, strict=True))
    _check_separate(ufunc, targets)
    largest = max((t for t in targets if isinstance(t, Traced)), key=lambda t: len(t.extents), default=None)
    results = tuple(array_memory.broadcast_over(r, largest) for r in results) if len(results) > 1 else results
    stored = tuple(
        _laid_out(ufunc, traced_ops.as_scalar(r), inputs, order) if t is None else array_memory.into_broadcast(t, r)
        for r, t in zip(results, targets, strict=True)
    )
    return stored if isinstance(result, tuple) else stored[0]


def _check_core_axes(ufunc: np.ufunc, inputs: Sequence[Any], result: Any, target: Any) -> None:
    """Raises ShapeError if vectors or matrices of a result are not those of `out=`: they never broadcast."""
    taken, _, given = (ufunc.signature or "").partition("->")
    cores = [part.split(",") for part in taken[1:-1].split("),(")]
    ranks = [len(as_traced(x).extents) for x in inputs]
    # An axis with a question mark is missing if its operand is a vector.
    missing_axes = {core for names, rank in zip(cores, ranks, strict=True) if rank < len(names) for core in names}
    count = sum(bool(core) and not (core.endswith("?") and core in missing_axes) for core in given[1:-1].split(","))
    own, other = as_traced(result).extents, as_traced(target).extents
    count = min(count, len(own))
    decide = as_traced(result).recorder.decide
    pairs = zip(own[len(own) - count :], other[max(len(other) - count, 0) :], strict=False)
    if len(other) < count or not all(decide(a, "==", b, f"out= of np.{ufunc.__name__}") for a, b in pairs):
        raise ShapeError(
            f"{ufunc.__name__}: out= does not have the vectors or matrices of the result",
            hint="give an array of the shape of the result", where=source.user_line(),
        )  # fmt: skip


def _check_separate(ufunc: np.ufunc, targets: Sequence[Any]) -> None:
    """Raises for two arrays of `out=` in one memory: which result NumPy writes last depends on the loop."""
    owners = [id(views.owner_of(target)) for target in targets if isinstance(target, Traced)]
    if len(set(owners)) < len(owners):
        raise UnsupportedError(
            f"np.{ufunc.__name__} with two arrays of out= in the same memory", where=source.user_line(),
            hint="write into one and use the other as it is returned: a, b = np.divmod(x, y, out=(z, None))",
        )  # fmt: skip


def _laid_out(ufunc: np.ufunc, result: Any, inputs: Sequence[Any], order: str) -> Any:
    """Returns a new result with its axes in memory in an order: "K" is that of the operands, "A" theirs if F."""
    if len(result.extents) < 2 or ufunc.signature is not None:
        return views.in_order(result, order)
    operands = [as_traced(x) for x in inputs if isinstance(x, Traced | np.ndarray | list | tuple)]
    if any(result is operand for operand in operands):
        result = traced_ops.copy(result)
    views.of_new_array(result, operands)
    return views.in_order(result, order, operands)


def _with_exponents_under(
    mask: Any, inputs: Sequence[Any], signature: Sequence[DType | None] | None, casting: str,
    outputs: Sequence[DType | None],
) -> Sequence[Any]:  # fmt: skip
    """Returns the operands of np.power with 0 in the place of exponents that a mask excludes: a negative one raises."""
    resolved = [recorder_of(inputs).resolve(x) for x in inputs]
    types = loop_types(np.power, [(r.dtype, r.weak) for r in resolved], outputs, signature=signature, casting=casting)
    if not types[1].is_integer:
        return inputs
    base, exponent = (_cast_operand(x, r, types[1], casting) for x, r in zip(inputs, resolved, strict=True))
    exponent = traced_ops.astype(as_traced(exponent), types[1], copy=False)
    return base, apply("where", mask, exponent, 0)


def _signature(ufunc: np.ufunc, keywords: dict[str, Any]) -> list[DType | None] | None:
    """Returns the types of operands and results named by `dtype=` or `signature=`; None if neither is given."""
    dtype, named = keywords.pop("dtype", None), keywords.pop("signature", keywords.pop("sig", None))
    if named is not None:
        parts = list(named.replace("->", "")) if isinstance(named, str) else list(named)
        if len(parts) != ufunc.nin + ufunc.nout:
            raise missing(f"np.{ufunc.__name__} with the signature {named!r}", "name the types with dtype=")
        return [None if part is None else dtype_of(part) for part in parts]
    return result_signature(ufunc, dtype)


def result_signature(ufunc: np.ufunc, dtype: Any) -> list[DType | None] | None:
    """Returns the signature with results of `dtype`; None for None."""
    return None if dtype is None else [*[None] * ufunc.nin, *[dtype_of(dtype)] * ufunc.nout]


def _targets(out: Any, count: int) -> tuple[Any, ...]:
    """Returns the arrays of `out=`, one entry for each result."""
    if out is None:
        return (None,) * count
    return out if isinstance(out, tuple) else (out,)


def _reduce(
    ufunc: np.ufunc, out: Any, array: Any, axis: Any = 0, dtype: Any = None, _out: Any = None, keepdims: Any = False,
    initial: Any = np._NoValue, where: Any = True,
) -> Any:  # fmt: skip
    if keepdims is not np._NoValue:
        operator.index(keepdims)  # NumPy's bool is none
    if axis not in (0, -1):
        traced_ops.axes_of(axis, len(as_traced(array).extents))
    _check_type_of_reduction(ufunc, array, dtype)
    if ufunc in _REDUCES:
        return traced_ops.reduce(_REDUCES[ufunc], array, axis, dtype, out, keepdims, initial=initial, where=where)
    refuse(f"np.{ufunc.__name__}.reduce", dtype=dtype, initial=initial, where=None if where is True else where)
    if ufunc is np.logical_xor:
        result = traced_ops.reduce("sum", apply("ne", array, 0), axis, None, None, keepdims) % 2 == 1
    elif ufunc in (np.logaddexp, np.logaddexp2):
        array_dtype = as_tensor(array).value.dtype
        first = array_dtype if out is None else as_traced(out).value.dtype
        loop = loop_types(ufunc, [(first, None), (array_dtype, None)], [first], casting="unsafe")[-1]
        result = _log_of_sum(ufunc, traced_ops.astype(as_tensor(array), loop, copy=False), axis, keepdims)
    else:
        raise missing(f"np.{ufunc.__name__}.reduce", "write it with sums, products, maxima and minima")
    return result if out is None else into(out, traced_ops.astype(result, out.dtype, copy=False))


def _check_type_of_reduction(ufunc: np.ufunc, array: Any, dtype: Any) -> None:
    """Raises DtypeError where NumPy has no loop for the type that the caller names."""
    if dtype is not None:
        array_dtype, target = as_tensor(array).value.dtype, dtype_of(dtype)
        check_reduction(ufunc, array_dtype, target)


def _log_of_sum(ufunc: np.ufunc, array: Any, axis: Any, keepdims: Any) -> Any:
    """log(sum(exp(x))), shifted by the largest element so that no exponential overflows."""
    power, logarithm = (np.exp, np.log) if ufunc is np.logaddexp else (np.exp2, np.log2)
    x = composed_ufuncs.cast_to_loop(ufunc, as_tensor(array), as_tensor(array))[0]
    axis = () if not x.extents and axis in (0, -1) else axis
    largest = traced_ops.reduce("max", x, axis, None, None, True, initial=-math.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    total = traced_ops.reduce("sum", power(x - shift), axis, None, None, keepdims)
    if not keepdims:
        shift = shaping.squeeze(shift, tuple(traced_ops.axes_of(axis, len(x.extents))))
    return logarithm(total) + shift


def _accumulate(ufunc: np.ufunc, out: Any, array: Any, axis: Any = 0, dtype: Any = None) -> Any:
    if not as_traced(array).extents:
        traced_ops.axes_of(axis, 1)
        raise DtypeError(f"np.{ufunc.__name__}.accumulate of a scalar", hint="give an array", where=source.user_line())
    axis = reductions.axis_of_scan(axis, len(as_traced(array).extents))
    _check_type_of_reduction(ufunc, array, dtype)
    if ufunc in _ACCUMULATES_BOOLS:
        return reductions.scan(_ACCUMULATES_BOOLS[ufunc], apply("ne", array, 0), axis, out=out)
    if ufunc not in _ACCUMULATES:
        raise missing(f"np.{ufunc.__name__}.accumulate", "write it with np.cumsum or np.cumprod")
    return reductions.scan(_ACCUMULATES[ufunc], array, axis, dtype, out)


def call_loop(
    ufunc: np.ufunc, inputs: Sequence[Any], signature: Sequence[DType | None] | None = None,
    casting: str = "same_kind", outputs: Sequence[DType | None] = (),
) -> Any:  # fmt: skip
    """Records a ufunc by its op definition or its decomposition, in the types of NumPy's loop.

    signature: the types of operands and results that the caller names. outputs: the dtypes of the arrays of `out=`.
    Raises DtypeError if NumPy has no loop for the types or does not cast to the types of its loop.
    """
    name = ufunc.__name__
    if ufunc not in COMPOSED and ufunc is not getattr(np, name, None):
        return special_functions.call_special(ufunc, inputs)
    compose, op = COMPOSED.get(ufunc), UFUNC_OPS.get(ufunc)
    if compose is None and op is None:
        raise missing(f"np.{name}", INSTEAD.get(name, f"compute np.{name} outside the fused function"))
    resolved = [recorder_of(inputs).resolve(x) for x in inputs]
    types = loop_types(
        ufunc, [(r.dtype, r.weak) for r in resolved], outputs, signature=signature, casting=casting
    )  # fmt: skip
    if signature is not None or op is None or op.loops is not ufunc:
        inputs = [_cast_operand(x, r, t, casting) for x, r, t in zip(inputs, resolved, types, strict=False)]
    if compose is not None:
        # Formulas call NumPy's functions, which would compute an array of constants alone.
        is_recorded = any(isinstance(x, Traced) for x in inputs)
        result = compose(*(inputs if is_recorded else map(as_traced, inputs)))
    else:
        assert op is not None
        is_named = signature is not None and op.promotion != "bool"  # truth values are computed as such
        result = apply(op.name, *inputs, compute_in=types[0] if is_named else None)
    results = result if isinstance(result, tuple) else (result,)
    typed = [_cast_result(r, t) for r, t in zip(results, types[ufunc.nin :], strict=True)]
    return tuple(typed) if isinstance(result, tuple) else typed[0]


def _cast_operand(value: Any, resolved: Resolved, dtype: DType, casting: str) -> Any:
    """Casts an operand to the type of the loop; Python numbers promote later, unless the caller names a lower type."""
    if resolved.weak is not None and not (casting == "unsafe" and _is_lower(dtype.kind, resolved.weak)):
        return value
    return traced_ops.astype(as_traced(value), dtype, copy=False)


def _is_lower(kind: str, weak: str) -> bool:
    """Whether a cast of a Python number to a kind of types loses its fraction or its imaginary part."""
    order = ("bool", "uint", "int", "float", "complex")
    return order.index(kind) < order.index(weak) and weak in ("float", "complex")


def _cast_result(result: Any, dtype: DType) -> Any:
    """Casts a result to the type of the loop; it promotes as an array, not as a Python number."""
    strong = make_strong(result)
    return strong if strong.weak is not None else traced_ops.astype(strong, dtype, copy=False)


INSTEAD = {
    "isnat": "traced arrays hold no dates; compare numbers",
}
"""Hints for ufuncs that cannot be fused."""
