"""NumPy's elementwise functions, type queries and `*_like` constructors, on traced values."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, IntegerRangeError, ScalarError
from tracefuse.frontend.numpy_api.formulas.composed_ufuncs import CLIP, clip_between, extreme
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_strong
from tracefuse.frontend.numpy_api.registration.array_memory import into_broadcast
from tracefuse.frontend.numpy_api.registration.registry import Functions, functions
from tracefuse.frontend.numpy_api.selecting.element_writes import copied_value
from tracefuse.frontend.tracer.array_ops import arithmetic, selections, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import filling
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, as_tensor, as_traced
from tracefuse.frontend.tracer.record.assigned_numbers import without_none
from tracefuse.frontend.tracer.record.computed_numbers import is_computed
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.operands import RANGE
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types
from tracefuse.ir.extents import product
from tracefuse.ops import REGISTRY, Pointwise

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.where)
def where(condition: Any, x: Any = np._NoValue, y: Any = np._NoValue) -> Any:
    if x is np._NoValue and y is np._NoValue:
        return selections.positions_along_axes(condition, "np.where with one argument")
    if x is np._NoValue or y is np._NoValue:
        raise ScalarError("np.where has one of x and y", hint="give both, or the condition alone for its positions")
    return apply("where", condition, x, y)


@implements(np.clip)
def clip(
    a: Any, a_min: Any = np._NoValue, a_max: Any = np._NoValue, out: Any = None, *,
    min: Any = np._NoValue, max: Any = np._NoValue, **more: Any,
) -> Any:  # fmt: skip
    low, high = (None if v is np._NoValue else v for v in _bounds_of_clip(a_min, a_max, min, max))
    a = as_strong(a)
    low, high = _clip_bound(a, low, lower=True), _clip_bound(a, high, lower=False)
    if more:
        return _clip_with(a, low, high, **({} if out is None else {"out": out}), **more)
    result = a
    if low is not None and high is not None:
        recorder = as_traced(a).recorder
        resolved = [recorder.resolve(operand) for operand in (a, low, high)]
        loop = loop_types(CLIP, [(r.dtype, r.weak) for r in resolved])
        strong = (x if r.weak is not None else traced_ops.astype(as_traced(x), t, copy=False)
                  for x, r, t in zip((a, low, high), resolved, loop, strict=False))  # fmt: skip
        result = clip_between(*strong)
    elif low is not None:
        result = extreme("maximum")(result, low)
    elif high is not None:
        result = extreme("minimum")(result, high)
    result = np.positive(as_array(a)) if low is high is None else result
    return result if out is None else into_broadcast(out, result)


def _bounds_of_clip(low: Any, high: Any, least: Any, most: Any) -> tuple[Any, Any]:
    """The bounds by position, or both by keywords. Raises for one of each kind, as NumPy does."""
    if low is np._NoValue and high is np._NoValue:
        return least, most
    for name, bound in (("a_min", low), ("a_max", high)):
        if bound is np._NoValue:
            message = f"clip() missing 1 required positional argument: {name!r}"
            raise DtypeError(message, hint="give both bounds, None for one that is open", where=source.user_line())
    if least is not np._NoValue or most is not np._NoValue:
        message = "Passing `min` or `max` keyword argument when `a_min` and `a_max` are provided is forbidden."
        raise ScalarError(message, hint="give the bounds once", where=source.user_line())
    return low, high


def _clip_with(a: Any, low: Any, high: Any, **keywords: Any) -> Any:
    """np.clip with keywords of ufuncs, as NumPy calls one."""
    if low is None:
        return np.positive(a, **keywords) if high is None else np.minimum(a, high, **keywords)
    return np.maximum(a, low, **keywords) if high is None else CLIP(a, low, high, **keywords)


def _clip_bound(a: Any, bound: Any, *, lower: bool) -> Any:
    """Returns a bound of np.clip; None for an integer or size outside the range of the array's integer type.

    A computed integer of Python outside that range becomes its end.
    """
    traced = as_traced(a)
    dtype = traced.value.dtype
    if not dtype.is_integer:
        return bound
    limits = np.iinfo(dtype.name)
    if isinstance(bound, Traced) and bound.weak == "int" and is_computed(bound) and dtype.itemsize < 8:
        return apply("maximum", bound, int(limits.min)) if lower else apply("minimum", bound, int(limits.max))
    number = extent_of(bound)
    if number is None:
        return bound
    ends = (number, int(limits.min)) if lower else (int(limits.max), number)
    return None if traced.recorder.decide(ends[0], "<=", ends[1], RANGE) else bound


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    second = as_traced(b)
    b = traced_ops.astype(second, result_type(second, 1.0), copy=False) if second.weak is None else apply("mul", b, 1.0)
    close = apply("le", apply("abs", apply("sub", a, b)), apply("add", atol, apply("mul", rtol, apply("abs", b))))
    close = apply("logical_and", close, apply("isfinite", b))
    close = apply("logical_or", close, apply("eq", a, b))
    if equal_nan:
        close = apply("logical_or", close, apply("logical_and", apply("isnan", a), apply("isnan", b)))
    return close


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    return traced_ops.truth(traced_ops.reduce("all", isclose(a, b, rtol, atol, equal_nan)))


@implements(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    traced = as_traced(x)
    if not copy and traced.is_immutable:
        raise ScalarError("Unable to avoid copy of a scalar", hint="write np.nan_to_num(x)", where=source.user_line())
    if not copy:
        changed = into(traced, nan_to_num(traced, True, nan, posinf, neginf))
        return changed if traced.extents else shaping.getitem(changed, ())
    if traced.value.dtype.is_complex:
        parts = (nan_to_num(apply(part, traced), True, nan, posinf, neginf) for part in ("real", "imag"))
        return apply("complex", *parts)
    if not traced.value.dtype.is_floating:
        return traced_ops.copy(traced, "K")
    limits: Any = ml_dtypes.finfo(traced.value.dtype.name)  # it knows NumPy's types as well
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    nan, high, low = (copied_value(traced, value) for value in (nan, high, low))
    result = apply("where", apply("isnan", traced), nan, traced)
    result = apply("where", apply("eq", traced, float("inf")), high, result)
    return apply("where", apply("eq", traced, float("-inf")), low, result)


@implements(np.round, np.around)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Scales, rounds to even and scales back, as NumPy does."""
    x = as_traced(a)
    size = as_size(decimals)
    digits = size if isinstance(size, SymbolicSize) else operator.index(size)
    if out is None:
        return _rounded(x, digits)
    sizes = (product(x.extents), "==", product(as_traced(out).extents))
    x.recorder.builder.require(*sizes, "invalid output shape", "give an array of the same shape", source.user_line())
    if digits == 0 or x.value.dtype.is_complex or (x.value.dtype.is_integer and digits > 0):
        return into_broadcast(out, _rounded(x, digits))
    # In the array itself, as in NumPy: of a wider type it holds what the type of the elements does not.
    scale = _power_of_ten(abs(digits))
    first, last = (np.multiply, np.divide) if digits > 0 else (np.divide, np.multiply)
    steps: Any = ((first, (x, scale)), (np.rint, (out,)), (last, (out, scale)))
    for function, arguments in steps:
        function(*arguments, out=out)
    return out


def _power_of_ten(digits: Any) -> Any:
    """Returns 10.0**digits as NumPy computes it: beyond 22, products with 10 round. Larger sizes are guarded."""
    if isinstance(digits, SymbolicSize) and digits <= EXACT_TENS:
        return 10.0**digits
    if int(digits) > np.iinfo(np.intc).max:
        raise IntegerRangeError("signed integer is greater than maximum", hint="give fewer decimals")
    scale = 10.0 ** min(int(digits), EXACT_TENS)
    for _ in range(EXACT_TENS, min(int(digits), MOST_TENS)):
        scale *= 10.0
    return scale


EXACT_TENS = 22
"""The largest power of 10 that is a float64."""
MOST_TENS = 400
"""A power of 10 that is infinity."""


def _rounded(x: Traced, digits: Any) -> Any:
    """The elements rounded to a number of decimals, as a new array."""
    dtype = x.value.dtype
    if dtype.is_integer and digits < 0:
        scale = _power_of_ten(abs(digits))
        tens = apply("mul", np.rint(apply("div", x, scale)), scale)
        # What 8 or 16 bits do not hold wraps, as in NumPy; a float that is cast directly saturates.
        return traced_ops.astype(traced_ops.astype(tens, np.int64) if dtype.itemsize < 4 else tens, dtype)
    if dtype.is_integer:
        return traced_ops.copy(x, "K")
    if dtype.kind == "bool" and digits:
        raise DtypeError(
            f"np.round(decimals={digits}) of bool", hint="cast the truth values with astype(int)",
            where=source.user_line(),
        )  # fmt: skip
    if digits == 0 and (x.weak is None or x.weak == "bool"):
        return np.rint(as_array(x))
    if digits == 0:
        return apply("round", x)
    if dtype.is_complex:  # each part, whose sign a complex product with the scale would lose
        return apply("complex", *(round_(part(x), digits) for part in (arithmetic.real, arithmetic.imag)))
    scale = _power_of_ten(abs(digits))
    scale_op, unscale_op = ("mul", "div") if digits > 0 else ("div", "mul")
    return apply(unscale_op, apply("round", apply(scale_op, x, scale)), scale)


@implements(np.fix)
def fix(x: Any, out: Any = None) -> Any:
    result = apply("trunc", x)
    return result if out is None else into_broadcast(out, result)


@implements(np.sinc)
def sinc(x: Any) -> Any:
    traced = as_traced(x)
    traced = traced if traced.value.dtype.kind in ("float", "complex") else traced_ops.astype(traced, np.float64)
    near = float(ml_dtypes.finfo(traced.value.dtype.name).eps) if traced.value.dtype.is_half else 1e-20
    y = apply("mul", apply("where", apply("eq", traced, 0), near, traced), np.pi)
    return apply("div", apply("sin", y), y)


@implements(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    x: Any = as_traced(z)
    is_complex = x.value.dtype.is_complex
    result = np.arctan2(arithmetic.imag(x), arithmetic.real(x)) if is_complex else np.arctan2(0, x)
    return apply("mul", result, 180 / np.pi) if deg else result


@implements(np.iscomplex)
def iscomplex(x: Any) -> Any:
    return apply("ne", arithmetic.imag(x), 0)


@implements(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    if not isinstance(order, str):
        raise DtypeError(f"order must be str, not {type(order).__name__}", hint="give 'C', 'F', 'A' or 'K'")
    return views.in_order(traced_ops.copy(a, order), order)


@implements(*functions("astype"))
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    return traced_ops.astype(as_traced(x), dtype, copy=copy)


@implements(np.real)
def real(val: Any) -> Any:
    return arithmetic.real(_without_truth(val))


def _without_truth(value: Any) -> Any:
    """Returns a truth value of Python, whose parts are integers, as an integer; any other value as it is."""
    return traced_ops.astype(value, np.int64) if isinstance(value, Traced) and value.weak == "bool" else value


@implements(np.imag)
def imag(val: Any) -> Any:
    return arithmetic.imag(_without_truth(val))


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


def _like(prototype: Any, value: Any, dtype: Any, shape: Any, device: Any, order: str) -> Any:
    traced = as_traced(prototype)
    recorder = traced.recorder
    recorder.require_device(device)
    target = traced.value.dtype if dtype is None else dtype_of(dtype)
    extents = traced.extents if shape is None else shaping.new_shape(shape, recorder)
    value = without_none(value, target)
    filled = value if not isinstance(value, (np.ndarray, list, tuple)) else as_tensor(value)
    if isinstance(filled, (complex, np.complexfloating, Traced)):
        traced_ops.warn_of_lost_parts(as_traced(filled).value.dtype, target)
    if isinstance(filled, Traced) and filled.extents:
        return views.in_order(traced_ops.copy(filling(filled, extents, target, traced)), order)
    result = recorder.movement("full", [filled], shape=extents, dtype=target)
    if shape is None and len(extents) > 1:
        views.of_new_array(result, [traced], copies=True)
    return views.in_order(result, order)


@implements(np.zeros_like)
def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(a, 0, dtype, shape, device, order)


@implements(np.ones_like)
def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(a, 1, dtype, shape, device, order)


@implements(np.empty_like)
def empty_like(prototype: Any, /, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(prototype, 0, dtype, shape, device, order)


@implements(np.full_like)
def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _like(a, fill_value, dtype, shape, device, order)


def _apply_by_name(name: str) -> Any:
    def elementwise(*operands: Any) -> Any:
        return apply(name, *operands)

    return elementwise


def _apply_into(name: str) -> Any:
    def elementwise(x: Any, out: Any = None) -> Any:
        result = apply(name, x)
        return result if out is None else into_broadcast(out, result)

    return elementwise


# Ops that name a NumPy function which is not a ufunc register themselves.
for _op in REGISTRY.values():
    _function = _op.numpy if isinstance(_op, Pointwise) else None
    _public = None if _function is None else getattr(np, getattr(_function, "__name__", ""), None)
    _is_other = _public is not None and _public is _function and not isinstance(_function, np.ufunc)
    if _is_other and _function not in FUNCTIONS:
        implements(_function)((_apply_into if _function in (np.isposinf, np.isneginf) else _apply_by_name)(_op.name))
