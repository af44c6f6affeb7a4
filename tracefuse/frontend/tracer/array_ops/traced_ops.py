"""Ops, reductions and conversions on traced values: the building blocks of every traced method and function.

Each function takes traced values and NumPy's parameters, normalises them by NumPy's rules, and records ops.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, bool_, dtype_of
from tracefuse.errors import (
    DtypeError,
    NoElementsError,
    ScalarError,
    ShapeError,
    TraceError,
    TracefuseError,
    UnsupportedError,
)
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.initial_values import JOINS, check_order, filled, is_empty
from tracefuse.frontend.tracer.record.assigned_numbers import (
    check_has_no_axes,
    host_number_in,
    is_number,
    number_in,
    scalar_in,
)
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.operands import check_range
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, ViewStep, holds_traced
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ops import REGISTRY, Pointwise, Reduction


def recorder_of(values: Sequence[Any]) -> Recorder:
    """Returns the recorder of the first traced value among `values`, or the trace in progress."""
    for value in values:
        if isinstance(value, Traced):
            value.recorder.check_alive()
            return value.recorder
        if isinstance(value, (list, tuple)) and value:
            for inner in value:
                if isinstance(inner, Traced):
                    inner.recorder.check_alive()
                    return inner.recorder
    recorder = current.get()
    if recorder is None:
        raise TraceError("no trace is in progress", hint="call this inside a fused function")
    return recorder


def apply(name: str, *operands: Any, compute_in: Any = None, **attributes: Any) -> Any:
    """Records a pointwise op by name. compute_in: the compute type in place of the promoted one."""
    op = REGISTRY[name]
    assert isinstance(op, Pointwise)
    chosen = None if compute_in is None else dtype_of(compute_in)
    return recorder_of(operands).pointwise(op, operands, compute_in=chosen, **attributes)


def missing(feature: str, instead: str) -> UnsupportedError:
    """Returns the error for an operation that no op expresses."""
    return UnsupportedError(f"{feature} cannot be fused yet", hint=instead, where=source.user_line())


def refuse(function: str, **arguments: Any) -> None:
    """Raises UnsupportedError for the first parameter that differs from its default."""
    for name, value in arguments.items():
        if value is not None and value is not np._NoValue:
            raise UnsupportedError(
                f"{function}: the parameter {name} is not supported", hint=f"call {function} without {name}",
                where=source.user_line(),
            )  # fmt: skip


def located(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the user's line to axis and shape errors from lower layers that do not know it."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TracefuseError as error:
            if error.where is None:
                raise type(error)(
                    error.message, hint=error.hint, where=source.user_line(), runs_function=error.runs_function
                ) from None
            raise

    call.__name__, call.__doc__, call.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]
    return call


def as_traced(value: Any) -> Traced:
    """Returns `value` as a traced value: itself, a captured array, or a literal filled into a 0-d array."""
    if isinstance(value, Traced):
        return value
    recorder = recorder_of((value,))
    resolved = recorder.resolve(value)
    if resolved.traced is not None:
        return resolved.traced  # type: ignore[no-any-return]
    return recorder.movement("full", [value], shape=())  # type: ignore[no-any-return]


def as_tensor(value: Any) -> Traced:
    """Returns `value` as a traced tensor; a host scalar and a number of Python become 0-d arrays."""
    traced = as_traced(value)
    if traced.is_python and not traced.on_host:
        return traced.recorder.traced_type(traced.recorder, traced.number)
    if not traced.on_host:
        return traced
    filled: Traced = traced.recorder.movement("full", [traced], shape=())
    if traced.memory is not None:  # an array without axes that is an argument
        filled.become_view(traced, _FILLED)
    return filled


_FILLED = ViewStep(
    ("full",), lambda base: base.recorder.movement("full", [base], shape=()), lambda base, values: values
)
"""The step from an array argument without axes, which is a host scalar, to its tensor."""


def truth(value: Traced) -> Traced:
    """Returns a value without axes as a bool of Python; on a GPU, where CuPy returns an array, as it is."""
    return value if value.recorder.device is not None else value.recorder.python_number(value, "bool")


def holds_everywhere(condition: Traced) -> bool:
    """Whether a condition holds for all elements: asked, or assumed and checked with the results of each call."""
    number: Any = condition.recorder.python_number(reduce("all", condition), "bool")
    return bool(number.is_assumed())


def as_array(value: Any) -> Any:
    """Returns as_tensor(value), typed for callers that continue with NumPy's functions and operators."""
    return as_tensor(value)


def as_written(value: Any) -> Any:
    """Returns a new result without axes as an array that can be written, where it would be a NumPy scalar."""
    if not isinstance(value, Traced) or value.extents or value.memory is not None:
        return value
    tensor = as_tensor(value)
    result = views.alias(tensor) if tensor is value else tensor
    result.own_memory()
    return result


def as_scalar(value: Any) -> Any:
    """Returns a new result without axes as a NumPy scalar; views stay arrays."""
    if not isinstance(value, Traced) or value.extents or value.memory is None or value.parent is not None:
        return value
    return value.recorder.traced_type(value.recorder, value.number, value.weak, value.read, value.sized)


def astype(x: Any, dtype: Any, *, copy: bool = True) -> Any:
    """Converts x to a type; returns the same value if it already has the type.

    Converting complex numbers to a real type drops the imaginary part, with NumPy's ComplexWarning once per trace.
    """
    target = dtype_of(dtype)
    if x.value.dtype is target and x.weak is None:
        if not copy:
            return x
        return apply("ordered_set", x)
    warn_of_lost_parts(x.value.dtype, target)
    return apply("cast", x, dtype=target)


def warn_of_lost_parts(source_dtype: DType, target: DType) -> None:
    """Issues NumPy's ComplexWarning where a conversion drops imaginary parts."""
    if source_dtype.is_complex and not target.is_complex and target.kind != "bool":
        warn_of_parts()


def warn_of_parts() -> None:
    """Issues NumPy's ComplexWarning, with the user's line."""
    message = f"Casting complex values to real discards the imaginary part ({source.user_line()})"
    warnings.warn(np.exceptions.ComplexWarning(message), stacklevel=3)


def copy(x: Any, order: str | None = "C") -> Any:
    """Returns a copy: a new value. order: as np.copy takes it."""
    return apply("set" if order in ("C", "F") else "ordered_set", as_traced(x))


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """Normalises NumPy's axis parameter (None, an integer, a tuple) to sorted non-negative axes."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, (tuple, list)):
        return normalize_axes([operator.index(a) for a in axis], rank)
    return (normalize_axis(operator.index(axis), rank),)


@located
def reduce(
    name: str, x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *,
    initial: Any = None, where: Any = None, **attributes: Any,
) -> Any:  # fmt: skip
    """Records a reduction op by name, with the parameters of NumPy's reductions."""
    op = REGISTRY[name]
    assert isinstance(op, Reduction)
    keepdims = bool(operator.index(keepdims)) if keepdims is not np._NoValue else False
    has_identity = initial is not NO_IDENTITY
    initial = None if initial is np._NoValue or not has_identity else initial
    where = None if where is True or where is np._NoValue else as_mask(where)
    x = as_tensor(x)
    chosen = None if dtype is None else dtype_of(dtype)
    if chosen is not None:
        warn_of_lost_parts(x.value.dtype, chosen)
        x = as_elements(x, chosen)
    if out is not None and dtype is None and name in SUM_LOOPS:
        chosen = loop_type_for(name, x, out)
    elif out is not None and name in EXTREME_LOOPS and x.value.dtype is not as_traced(out).value.dtype:
        x = astype(x, loop_type_for(name, x, out), copy=False)
    axes = _reduced_axes(op, axis, len(x.extents))
    if not has_identity and (where is not None or is_empty(x, axes)):
        raise NoElementsError(f"{name} with initial=None has no identity", hint="leave initial= out, or give a number")
    if where is not None:
        _check_mask(x, where)
    if initial is not None:
        initial = _initial(op, x, chosen, initial)
        initial = initial if out is None else _as_stored(initial, as_traced(out).value.dtype)
        if op.needs_elements and is_empty(x, axes):
            result = filled(x, axes, keepdims, initial)
            return result if out is None else into(out, astype(result, out.dtype, copy=False))
    if initial is not None or where is not None:
        check_order(name, op.result_type(x.value.dtype, "numpy", chosen), initial)
    if where is not None:
        x = apply("where", where, x, _neutral(op, initial))
    result = x.recorder.reduction(op, x, axes, keepdims, chosen, **attributes)
    if initial is not None:
        result = apply(JOINS[name], initial, result)
    if out is None:
        return result
    # As in NumPy, the result of a ufunc's reduction is cast without a check.
    return into(out, astype(result, out.dtype, copy=False) if name in JOINS else result)


def _neutral(op: Reduction, initial: Any) -> Any:
    """Returns what stands for elements that where= leaves out. Raises TracefuseError for a reduction without it."""
    if op.initial is None:
        raise missing(f"{op.name} with where=", "select with np.where(mask, x, other) before the reduction")
    if isinstance(op.initial, str) and initial is None:
        hint = "give initial=, or select with np.where(mask, x, other) before the reduction"
        raise ScalarError(f"{op.name} has no identity: with where= it needs initial=", hint=hint)
    return initial if isinstance(op.initial, str) else op.initial


def as_elements(x: Any, chosen: DType) -> Any:
    """Casts the elements of a reduction to the half type that the caller names: NumPy rounds each of them first."""
    is_rounded = chosen.is_half and x.value.dtype is not chosen and x.value.dtype is not bool_
    return astype(x, chosen) if is_rounded else x


NO_IDENTITY = object()
"""`initial=None` of a sum or a product, which then needs an element as extremes do."""


SUM_LOOPS = {"sum": np.add, "cumsum": np.add, "prod": np.multiply, "cumprod": np.multiply}
"""The ufuncs of sums and products, which NumPy computes in a wider type unless an array takes the result."""

EXTREME_LOOPS = {"max": np.maximum, "min": np.minimum}
"""The ufuncs of extremes, which NumPy computes in the common type with the array that takes the result."""


def loop_type_for(name: str, x: Traced, out: Any) -> DType:
    """Returns the type in which a sum, a product or an extreme that an array takes is computed."""
    out_dtype = as_traced(out).value.dtype
    ufunc = {**SUM_LOOPS, **EXTREME_LOOPS}[name]
    return loop_types(ufunc, [(out_dtype, None), (x.value.dtype, None)], [out_dtype], casting="unsafe")[-1]


def as_mask(where: Any) -> Any:
    """Returns `where=` as a mask: NumPy tests its numbers and lists for being nonzero, arrays have to hold bool."""
    if isinstance(where, Traced):
        return where if not where.is_immutable or where.value.dtype is bool_ else apply("ne", where, 0)
    if isinstance(where, SymbolicSize):
        return apply("ne", where, 0)
    is_plain = isinstance(where, (bool, int, float, complex, np.generic))
    is_list = isinstance(where, (list, tuple)) and not holds_traced(where)
    return np.asarray(where, bool) if is_plain or is_list else where


def _check_mask(x: Traced, where: Any) -> None:
    """Raises DtypeError for a `where=` of another type than bool, ShapeError for one that does not broadcast to x."""
    mask = as_traced(where)
    if len(mask.extents) > len(x.extents):
        raise ShapeError(
            f"where= has {len(mask.extents)} axes, more than the {len(x.extents)} of the array",
            hint="give a mask that broadcasts to the array", where=source.user_line(),
        )  # fmt: skip
    for axis, (extent, operand_extent) in enumerate(zip(reversed(mask.extents), reversed(x.extents), strict=False), 1):
        if extent != operand_extent and not x.recorder.decide(extent, "==", 1, "the shape of where="):
            message = f"where= has {{left}} elements on axis -{axis}, the array has {{right}}"
            hint = "give a mask that broadcasts to the array"
            x.recorder.builder.require(extent, "==", operand_extent, message, hint, source.user_line())
    dtype = mask.value.dtype
    if dtype is not bool_:
        raise DtypeError(
            f"Cannot cast where= from {dtype} to bool according to the rule 'safe'", hint="write where=mask != 0",
            where=source.user_line(),
        )  # fmt: skip


def _reduced_axes(op: Reduction, axis: Any, rank: int) -> tuple[int, ...]:
    """Normalises the axes of a reduction.

    NumPy's ufuncs also reduce a 0-d array over axis 0 or -1; its functions that divide by a count do not.
    """
    names = axis if isinstance(axis, tuple) else (axis,)
    if any(isinstance(name, (bool, list)) for name in names):
        raise DtypeError(f"an integer is required as the axis of a reduction, not {axis!r}", hint="write axis=(0, 1)")
    axis = operator.index(axis) if isinstance(axis, Traced) and not axis.extents else axis  # type: ignore[arg-type]
    if rank == 0 and op.result != "float" and isinstance(axis, (int, np.integer)) and axis in (0, -1):
        return ()
    return axes_of(axis, rank)


def _as_stored(initial: Any, target: DType) -> Any:
    """Returns an initial value as NumPy reads it back from `out=`, where it stores it first."""
    if isinstance(initial, Traced):
        kind = initial.value.dtype
        return initial if kind is target else astype(astype(initial, target), kind)
    real = initial.real if np.iscomplexobj(initial) and target.kind in ("int", "uint", "float") else initial
    with np.errstate(all="ignore"):
        return initial.dtype.type(np.asarray(real).astype(target.numpy)[()])


def _initial(op: Reduction, x: Traced, chosen: DType | None, initial: Any) -> Any:
    """Returns the initial value of a reduction, in the type of its result."""
    dtype = op.result_type(x.value.dtype, "numpy", chosen)
    if isinstance(initial, SymbolicSize):
        check_range(x.recorder.resolve(initial), dtype, x.recorder)
    elif isinstance(initial, Traced) and is_number(initial):
        return astype(host_number_in(initial, dtype), dtype)
    check_has_no_axes(initial, dtype)
    initial = scalar_in(initial, dtype, x.recorder)
    if not isinstance(initial, (bool, int, float, complex, np.generic)):
        return astype(as_traced(initial), dtype, copy=False)
    if isinstance(initial, np.complexfloating) and not dtype.is_complex and dtype is not bool_:
        warn_of_parts()
        initial = initial.real
    if not isinstance(initial, np.generic):
        initial = number_in(initial, dtype, x.recorder)
    return dtype.numpy.type(initial)


def sum_of_products(x: Any, axes: tuple[int, ...]) -> Any:
    """Sums over axes in the type of x itself, as matrix products do; for truth values, whether any is true."""
    dtype = as_tensor(x).value.dtype
    return reduce("any", x, axes) if dtype.kind == "bool" else reduce("sum", x, axes, dtype)


def as_number(value: Any) -> Any:
    """Returns a parameter that must be a number; reads and guards a host scalar, or one that is known."""
    if isinstance(value, SymbolicSize):
        return int(value)
    if isinstance(value, Traced) and value.read is not None:
        return value.recorder.value_of(value, "a parameter that is no array")
    if isinstance(value, Traced):
        return np.asarray(value)[()]
    return value


def number_at_trace(value: Any, function: str, name: str) -> Any:
    """Returns a parameter as `as_number` does. function, name: of the function and the parameter, in messages.

    Raises UnsupportedError for a float of the call if the function can run between two stages, which take it as it is:
    each float would be a trace of its own.
    """
    if isinstance(value, Traced) and value.on_host and value.read is not None and value.value.dtype.is_floating:
        recorder = value.recorder
        answers = recorder.answers
        is_possible = answers is not None and answers.refusal is None and recorder.body is None
        if is_possible and recorder.device is None and not recorder.differentiated:
            raise missing(f"{function} with a float of the call as {name}", f"give {name} as a constant")
    return as_number(value)


def iota(recorder: Recorder, start: Any, step: Any, length: Any, dtype: Any) -> Any:
    """Returns start, start + step, ... : `length` elements of `dtype`."""
    op = REGISTRY["iota"]
    assert isinstance(op, Pointwise)
    return recorder.pointwise(op, (start, step), compute_in=dtype, length=recorder.plain(length))
