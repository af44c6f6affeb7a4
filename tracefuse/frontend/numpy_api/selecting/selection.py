"""NumPy's functions that select elements or compare whole arrays, on traced values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of, python_kind
from tracefuse.errors import (
    DtypeError,
    OutOfRangeError,
    ScalarError,
    ShapeError,
    UnsupportedError,
)
from tracefuse.frontend.numpy_api.arrangement.moving_elements import checked_unless_empty
from tracefuse.frontend.numpy_api.arrangement.shapes import require_array
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, as_traced, missing
from tracefuse.frontend.tracer.record.assigned_numbers import scalar_in
from tracefuse.frontend.tracer.values import settled_extents, views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.fusion import Node
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ops.roles import EXTENT, POSITIONS

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


def _as_list(values: Any) -> Sequence[Any]:
    return list(iter(values))


@implements(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """For each element, the choice of the first condition that holds."""
    conditions, choices = _as_list(condlist), _as_list(choicelist)
    for condition in conditions:
        dtype = as_array(condition).value.dtype
        if dtype.kind != "bool":
            raise DtypeError(f"np.select with a condition of {dtype}", hint="write condition != 0")
    if len(conditions) != len(choices):
        raise ShapeError(
            "list of cases must be same length as list of conditions", hint=f"{len(conditions)} and {len(choices)}"
        )
    if not conditions:
        raise ScalarError("select with an empty condition list is not possible", hint="give a condition")
    settled_extents.require_broadcast([as_array(part) for part in (*conditions, *choices)])  # before errors of types
    for choice in choices:
        _check_goes_into(choice, _promoted_dtype([*choices, default]))
    dtype = _promoted_dtype([*choices, default])
    result = _cast(default, dtype)
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = apply("where", condition, _cast(choice, dtype), result)
    return views.in_order(traced_ops.astype(result, dtype, copy=False), "C")


def _cast(choice: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a choice in the type of the result; a number of Python must be one that it holds."""
    choice = scalar_in(choice, dtype_of(dtype), as_traced(choice).recorder)
    return traced_ops.astype(as_array(choice), dtype, copy=False)


def _check_goes_into(choice: Any, dtype: np.dtype[Any]) -> None:
    """Raises DtypeError for a number of Python whose own type does not go into the type of the result."""
    number_type = _NUMBERS_OF.get(_kind_of_number(choice))
    if number_type is not None and not np.can_cast(number_type, dtype, "same_kind"):
        raise DtypeError(
            f"Cannot cast array data from {number_type.__name__} to {dtype} according to the rule 'same_kind'",
            hint=f"give the choice as np.{dtype}(number)", where=source.user_line(),
        )  # fmt: skip


def _kind_of_number(choice: Any) -> str | None:
    """Returns the kind of a number of Python, also of a size; None for other values."""
    if isinstance(choice, SymbolicSize):
        return "int"
    return choice.weak if isinstance(choice, Traced) else python_kind(choice) if type(choice) in _NUMBERS else None


_NUMBERS = (int, float, complex)
_NUMBERS_OF: dict[str | None, Any] = {"int": np.int64, "float": np.float64, "complex": np.complex128}


def _promoted_dtype(values: Sequence[Any]) -> np.dtype[Any]:
    """Returns the dtype that NumPy promotes the values to; sizes promote as Python integers."""
    return np.result_type(*(0 if isinstance(value, SymbolicSize) else _typed(value) for value in values))


def _typed(value: Any) -> Any:
    return as_traced(value) if isinstance(value, (list, tuple)) else value


@implements(np.choose)
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """For each element, the choice that `a` numbers; with mode 'raise' a number out of range is an error on the CPU."""
    options = _as_list(choices)
    if mode not in ("raise", "wrap", "clip"):
        raise ScalarError(f"clipmode not understood: {mode!r}", hint="use 'raise', 'wrap' or 'clip'")
    index = as_array(a)
    if not np.can_cast(index.value.dtype.numpy, np.int64):
        raise DtypeError(f"np.choose by numbers of {index.value.dtype}", hint="cast them with astype(int)")
    if mode == "wrap":
        index = index % len(options)
    elif mode == "raise":
        index = checked_unless_empty(index, [extent for one in (index, *options) for extent in as_array(one).extents])
        index = apply("checked_position", traced_ops.astype(index, np.int64, copy=False), len(options))
    result = traced_ops.copy(options[-1])
    for number in range(len(options) - 2, -1, -1):
        result = apply("where", apply("le", index, number), options[number], result)
    result = views.in_order(traced_ops.astype(result, _promoted_dtype(options), copy=False), "C")
    return result if out is None else into(out, traced_ops.astype(result, as_array(out).value.dtype, copy=False))


@implements(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Applies each function to all of x and selects its values where its condition holds.

    NumPy gives a function the elements where the condition holds. One that does not compute elementwise is refused, so
    that NumPy runs between two stages of the call.
    """
    traced = as_array(x)
    is_list = isinstance(condlist, (list, tuple)) or np.ndim(condlist) > 1  # rows of an array are conditions too
    conditions = [as_array(c) for c in (_as_list(condlist) if is_list else [condlist])]
    functions = list(funclist)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ShapeError(
            f"with {len(conditions)} condition(s), either {len(conditions)} or {len(conditions) + 1} functions are "
            "expected", hint="give one function for each condition, and one for the rest",
        )  # fmt: skip
    conditions = [_of_leading_axes(condition, traced) for condition in conditions]
    result: Any = np.zeros_like(traced)
    if len(functions) > len(conditions):
        result = shaping.broadcast_to(_evaluate_branch(functions.pop(), traced, args, kw), traced.shape)
    for condition, function in zip(conditions, functions, strict=True):
        result = apply("where", condition, _evaluate_branch(function, traced, args, kw), result)
    if conditions and len(traced.extents) > 1:
        views.of_new_array(result, [traced], copies=True)
    return result


def _of_leading_axes(condition: Any, x: Any) -> Any:
    """Returns a condition as the mask of the leading axes of x that NumPy indexes with it."""
    extra = len(x.extents) - len(condition.extents)
    if extra < 0:
        raise OutOfRangeError("too many indices for array: a condition has more axes", hint="give masks of its shape")
    message, hint = "boolean index did not match indexed array: {left} and {right} elements", "give masks of its shape"
    for left, right in zip(condition.extents, x.extents, strict=False):
        x.recorder.builder.require(left, "==", right, message, hint, source.user_line(), OutOfRangeError)
    mask = apply("ne", condition, False)
    return shaping.expand_dims(mask, tuple(range(-extra, 0))) if extra else mask


def _evaluate_branch(function: Any, x: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    if not callable(function):
        return assignment.elements_of(function, x)
    given = traced_ops.copy(x)  # a function that changes what it gets changes no element of x
    nodes = x.recorder.builder.nodes
    first = len(nodes)
    value = function(given, *args, **keywords)
    if isinstance(value, SymbolicSize) or not _is_elementwise(nodes[first:], given):
        raise UnsupportedError(
            "np.piecewise: a function that does not compute elementwise gets the elements where its condition holds",
            hint="select them, as in y[condition] = function(x[condition])", where=source.user_line(),
        )  # fmt: skip
    return assignment.elements_of(value, x)


def _is_elementwise(nodes: Sequence[Node], x: Traced) -> bool:
    """Whether each element that nodes compute depends on the element of x at its place alone."""
    values, like_x = x.recorder.builder.values, {x.number}
    for node in nodes:
        operands = [values[number] for number in node.inputs]
        if any(value.extent is not None for value in operands):  # the number of elements
            return False
        axes = [value.number for value in operands if value.is_tensor and value.shape]
        is_filled = isinstance(node.op, Movement) and not axes  # with one number
        is_pointwise = isinstance(node.op, Pointwise) and node.op not in (POSITIONS, EXTENT)
        if not (is_pointwise or is_filled) or not like_x.issuperset(axes):
            return False
        like_x.update(node.outputs)
    return True


# -- whole arrays -----------------------------------------------------------------------------------------------------


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """A traced bool; False if the shapes differ, which tracing knows."""
    if a1 is None or a2 is None:
        return False
    first, second = as_array(a1), as_array(a2)
    recorder = first.recorder
    same = len(first.extents) == len(second.extents) and all(
        recorder.decide(m, "==", n, "np.array_equal") for m, n in zip(first.extents, second.extents, strict=True)
    )
    if not same:
        return False
    equal = apply("eq", first, second)
    if equal_nan and all(x.value.dtype.kind in ("float", "complex") for x in (first, second)):
        equal = apply("logical_or", equal, apply("logical_and", apply("isnan", first), apply("isnan", second)))
    return traced_ops.truth(traced_ops.reduce("all", equal))


@implements(np.array_equiv)
def array_equiv(a1: Any, a2: Any) -> Any:
    """array_equal after broadcasting."""
    if a1 is None or a2 is None:
        return bool(np.size(a1 if a2 is None else a2) == 0)
    first, second = as_array(a1), as_array(a2)
    decide = first.recorder.decide
    for m, n in zip(reversed(first.extents), reversed(second.extents), strict=False):
        if not (decide(m, "==", 1, "np.array_equiv") or decide(n, "==", 1, "np.array_equiv") or decide(m, "==", n, "np.array_equiv")):  # fmt: skip # noqa: E501
            return False
    return traced_ops.truth(traced_ops.reduce("all", apply("eq", first, second)))


@implements(np.apply_over_axes)
def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    result = as_array(a)
    rank = len(result.extents)
    for axis in np.atleast_1d(np.asarray(axes)).tolist():
        dim = normalize_axis(axis, rank) if rank or axis not in (0, -1) else 0
        reduced = func(result, dim)
        result = reduced if len(reduced.extents) == rank else shaping.expand_dims(reduced, dim)
    return result


# -- queries of dtypes ------------------------------------------------------------------------------------------------


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    if isinstance(from_, Traced) and from_.weak is not None:
        raise DtypeError("can_cast() does not support numbers of Python", hint="give the type of the number")
    first, second = (x.value.dtype.numpy if isinstance(x, Traced) else x for x in (from_, to))
    return np.can_cast(first, second, casting)


@implements(np.common_type)
def common_type(*arrays: Any) -> Any:
    for x in arrays:
        require_array(x, "dtype")
    return np.common_type(*(np.empty(0, x.value.dtype.numpy) if isinstance(x, Traced) else x for x in arrays))


@implements(np.min_scalar_type)
def min_scalar_type(a: Any, /) -> Any:
    if not as_array(a).extents:
        raise missing("np.min_scalar_type of a traced scalar", "use x.dtype")
    return as_array(a).value.dtype.numpy


@implements(np.real_if_close)
def real_if_close(a: Any, tol: Any = 100) -> Any:
    """Returns the array itself, or its real part, a view: the type of the result is a question about the elements."""
    x = as_array(a)
    x = traced_ops.copy(x) if x.is_immutable else x
    if x.value.dtype.kind != "complex":
        return x
    if x.recorder.body is not None:
        raise missing("np.real_if_close of complex numbers: the type of the result depends on the data", "use np.real")
    least = float(np.finfo(x.value.dtype.numpy).eps) * tol if tol > 1 else tol
    is_close = traced_ops.reduce("all", apply("lt", apply("abs", apply("imag", x)), least))
    return x.real if bool(is_close) else x
