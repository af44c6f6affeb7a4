"""Rules of elementwise primitives, conversions, reductions and scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import dtype_of
from tracefuse.frontend.jax_api.jaxpr_recording import PRIMITIVES, Equation, Rule, primitive
from tracefuse.frontend.tracer.values.traced import Traced

SAME = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "neg": "neg", "max": "maximum", "min": "minimum",
    "exp": "exp", "exp2": "exp2", "log": "log", "log1p": "log1p", "expm1": "expm1", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "sqrt": "sqrt", "rsqrt": "rsqrt", "abs": "abs",
    "sign": "sign", "floor": "floor", "ceil": "ceil", "logistic": "sigmoid", "erf": "erf", "erfc": "erfc",
    "erf_inv": "erfinv", "lgamma": "lgamma", "atan2": "atan2", "pow": "pow", "is_finite": "isfinite",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not", "eq": "eq", "ne": "ne",
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "real": "real", "imag": "imag", "conj": "conj",
    "complex": "complex", "nextafter": "nextafter", "shift_left": "left_shift",
    "shift_right_arithmetic": "right_shift", "shift_right_logical": "logical_right_shift",
}  # fmt: skip
"""Primitives that are an op, by name."""


def _op(name: str) -> Rule:
    return lambda e: e.emit(name, *e.inputs)


PRIMITIVES.update((name, _op(op)) for name, op in SAME.items())


@primitive(
    "stop_gradient", "copy", "copy_p", "optimization_barrier", "pvary", "name", "layout_constraint",
    "sharding_constraint", "reshard", "device_put",
)  # fmt: skip
def _identity(e: Equation) -> Any:
    return list(e.inputs)


@primitive("div")
def _div(e: Equation) -> Any:
    if not dtype_of(e.results[0].dtype).is_integer:
        return e.emit("div", *e.inputs)
    return _unless_zero(e, e.emit("trunc_divide", *e.inputs), e.emit("bitwise_not", e.emit("mul", e.inputs[0], 0)))


@primitive("rem")
def _rem(e: Equation) -> Any:
    result = e.emit("fmod", *e.inputs)
    return _unless_zero(e, result, e.inputs[0]) if dtype_of(e.results[0].dtype).is_integer else result


def _unless_zero(e: Equation, result: Any, otherwise: Any) -> Any:
    """Returns the result where the divisor is not 0: there XLA has a quotient of ones and the dividend as remainder."""
    divisor = e.inputs[1]
    if not isinstance(divisor, Traced):
        return result if divisor else otherwise
    return e.emit("where", e.emit("eq", divisor, 0), otherwise, result)


@primitive("square")
def _square(e: Equation) -> Any:
    return e.emit("mul", e.inputs[0], e.inputs[0])


@primitive("one_minus_square")
def _one_minus_square(e: Equation) -> Any:
    """(1 - x) (1 + x), which keeps its precision near 1; the derivative of tanh since JAX 0.11."""
    x = e.inputs[0]
    return e.emit("mul", e.emit("sub", 1, x), e.emit("add", 1, x))


@primitive("integer_pow")
def _integer_pow(e: Equation) -> Any:
    """Repeated squaring, as XLA does it."""
    power, x = abs(e.parameters["y"]), e.inputs[0]
    result = None
    while power:
        if power % 2:
            result = x if result is None else e.emit("mul", result, x)
        power //= 2
        if power:
            x = e.emit("mul", x, x)
    if result is None:
        return e.emit(
            "where", e.emit("eq", x, x), np.ones((), x.value.dtype.numpy)[()], np.ones((), x.value.dtype.numpy)[()]
        )
    return e.emit("reciprocal", result) if e.parameters["y"] < 0 else result


@primitive("cbrt")
def _cbrt(e: Equation) -> Any:
    return np.cbrt(e.inputs[0])


@primitive("round")
def _round(e: Equation) -> Any:
    x = e.inputs[0]
    if int(e.parameters["rounding_method"]) == 1:
        return e.emit("round", x)
    size = e.emit("abs", x)
    below = e.emit("trunc", size)
    return e.emit("copysign", e.emit("where", size - below >= 0.5, below + 1, below), x)


@primitive("clamp")
def _clamp(e: Equation) -> Any:
    low, x, high = e.inputs
    return e.emit("minimum", e.emit("maximum", x, low), high)


@primitive("select_n")
def _select_n(e: Equation) -> Any:
    selector, *cases = e.inputs
    if isinstance(selector, Traced) and selector.value.dtype.kind == "bool":
        return e.emit("where", selector, cases[1], cases[0])
    result = cases[0]
    for position, case in enumerate(cases[1:], 1):
        result = e.emit("where", selector == position, case, result)
    return result


@primitive("convert_element_type")
def _convert(e: Equation) -> Any:
    target, x = dtype_of(e.parameters["new_dtype"]), e.inputs[0]
    if isinstance(x, Traced) and x.value.dtype.is_complex and not target.is_complex:
        x = e.emit("real", x)
    if target.kind == "bool":
        return e.emit("ne", x, 0)
    return e.emit("cast", x, dtype=target)


@primitive("dim_as_value")
def _dim_as_value(e: Equation) -> Any:
    return e.recorder.scalar(e.extent(e.parameters["dim"]))


# ---------------------------------------------------------------------------------------------------------------------
# reductions, scans, order


def _reduction(op: str) -> Rule:
    return lambda e: e.emit(op, e.inputs[0], dims=tuple(int(axis) for axis in e.parameters["axes"]), keepdim=False)


PRIMITIVES.update(
    (f"reduce_{name}", _reduction(op))
    for name, op in (("sum", "sum"), ("prod", "prod"), ("max", "max"), ("min", "min"))
)
PRIMITIVES.update((name, _reduction(name)) for name in ("argmax", "argmin"))


def _logical_reduction(op: str) -> Rule:
    """Of booleans; JAX reduces the bits of integers."""
    of_booleans = _reduction(op)
    return lambda e: of_booleans(e) if dtype_of(e.operands[0].dtype).kind == "bool" else e.by_jax()


PRIMITIVES.update((f"reduce_{name}", _logical_reduction(op)) for name, op in (("and", "all"), ("or", "any")))


def _scan_of(op: str) -> Rule:
    def rule(e: Equation) -> Any:
        axis, x = int(e.parameters["axis"]), e.inputs[0]
        if not e.parameters["reverse"]:
            return e.emit(op, x, dim=axis)
        return e.emit("flip", e.emit(op, e.emit("flip", x, dims=(axis,)), dim=axis), dims=(axis,))

    return rule


PRIMITIVES.update((name, _scan_of(name)) for name in ("cumsum", "cumprod", "cummax", "cummin"))


@primitive("sort")
def _sort(e: Equation) -> Any:
    """Sorts by the first operands, the keys; the others follow."""
    dim, keys = int(e.parameters["dimension"]), int(e.parameters["num_keys"])
    if len(e.inputs) == 1:
        return e.emit("sort", e.inputs[0], dim=dim)
    operands = list(e.inputs)
    for key in reversed(range(keys)):
        order = e.emit("argsort", operands[key], dim=dim, descending=False, stable=True, kind="stable")
        operands = [e.emit("take_along_axis", operand, order, dim=dim) for operand in operands]
    return operands


@primitive("top_k")
def _top_k(e: Equation) -> Any:
    x = e.inputs[0]
    rank, k = len(x.extents), e.extent(e.parameters["k"])
    dim = int(e.parameters.get("axis", -1)) % rank
    order = e.emit("argsort", x, dim=dim, descending=True, stable=True, kind="stable")
    ends = tuple(k if axis == dim else extent for axis, extent in enumerate(x.extents))
    order = e.emit("slice", order, start_indices=(0,) * len(ends), end_indices=ends, strides=(1,) * len(ends))
    return [e.emit("take_along_axis", x, order, dim=dim), order]
