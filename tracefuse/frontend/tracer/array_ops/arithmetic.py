"""Operators, powers, matrix products and parts of complex numbers, on traced values."""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType, is_weak
from tracefuse.errors import DtypeError, ScalarError
from tracefuse.frontend.tracer.array_ops.in_place import check_result_type
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, as_traced, astype, missing, recorder_of
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.operands import check_range, literal
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, ViewStep
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types
from tracefuse.ir.extents import product
from tracefuse.ops import REGISTRY


def matmul(a: Any, b: Any) -> Any:
    """Returns the matrix product; the leading axes broadcast as in NumPy."""
    op = REGISTRY["matmul"]
    recorder = recorder_of((a, b))
    return recorder.library(op, [as_tensor(a), as_tensor(b)])


def binary(name: str, a: Any, b: Any) -> Any:
    """Applies a Python operator to two operands."""
    if name in _OPERATORS:
        return _OPERATORS[name][0](a, b)
    if name not in REGISTRY:
        raise missing(name, "compute it outside the fused function")
    return apply(name, a, b)


def check_types_in_place(name: str, a: Traced, b: Any) -> None:
    """Raises DtypeError if the result of `a op= b` does not go into a, before what depends on extents and values."""
    if name in _OPERATORS:
        resolved = [a.recorder.resolve(operand) for operand in (a, b)]
        loop_types(_OPERATORS[name][1], [(r.dtype, r.weak) for r in resolved], [a.value.dtype])
    elif (ufunc := getattr(REGISTRY.get(name), "loops", None)) is not None:
        check_result_type(a, _types_of(ufunc, a, b)[-1])


def repeat_list(values: Any, scalar: Traced) -> Any:
    """Returns a list repeated by a scalar, as `*` of Python's and NumPy's scalars with a list does."""
    if not scalar.value.dtype.is_integer:
        raise DtypeError(
            f"a list cannot be repeated by a {scalar.value.dtype}", hint="write x * np.asarray(values)",
            where=source.user_line(),
        )  # fmt: skip
    return values * operator.index(scalar)  # type: ignore[arg-type]


def _operator_power(a: Any, b: Any) -> Any:
    """Returns `a ** b`. NumPy computes `a ** 2` as a square, which for truth values has another type."""
    if isinstance(a, Traced) and a.value.dtype is dtypes.bool_ and a.weak is None and not a.is_immutable:
        b = int(b) if isinstance(b, SymbolicSize) else b
        if type(b) is int and b == 2:
            a = astype(a, _types_of(np.square, a)[0])
    return power(a, b)


_OPERATORS: Mapping[str, tuple[Callable[[Any, Any], Any], np.ufunc]] = MappingProxyType(
    {"pow": (_operator_power, np.power), "matmul": (matmul, np.matmul)}
)
"""Operators that are not one elementwise op: the function that records each, and its ufunc."""


def _types_of(ufunc: np.ufunc, *operands: Any) -> list[DType]:
    recorder = recorder_of(operands)
    return loop_types(ufunc, [(r.dtype, r.weak) for r in map(recorder.resolve, operands)])


def power(a: Any, b: Any) -> Any:
    """Returns a ** b.

    Small constant exponents become products, as in NumPy or with equal accuracy; 0.5 becomes a square root.
    """
    compute = _types_of(np.power, a, b)[0]
    if compute.is_integer:
        recorder = recorder_of((a, b))
        base, exponent = recorder.resolve(a), recorder.resolve(b)
        check_range(base, compute, recorder)
        is_strong = base.weak is None or exponent.weak is None
        return _integer_power(astype(as_traced(a), compute, copy=False) if is_strong else a, b)
    if isinstance(b, (bool, np.bool_)):
        b = int(b)
    if isinstance(b, np.number) and compute.is_complex and cmath.isfinite(b) and b == (whole := int(b.real)):
        special = _constant_power(astype(as_traced(a), compute, copy=False), whole)
        if special is not None:
            return special
    if isinstance(b, np.floating) and b == 0.5 and compute.name in ("float32", "float64"):  # not of halves
        return apply("sqrt", astype(as_traced(a), compute, copy=False))
    if is_weak(b) and not isinstance(b, complex):
        special = _constant_power(a, b)
        if special is not None:
            return special
    # Of float16, NumPy's operator takes it of a number of Python alone.
    has_root = compute.name in ("float32", "float64") or (
        compute.name == "float16" and isinstance(b, Traced) and b.weak == "float"
    )
    if has_root and _is_half(a, b):
        return apply("sqrt", astype(as_traced(a), compute, copy=False))
    raised = apply("pow", a, b)
    return _as_root(a, b, raised) if _is_one_element(a, b) and compute.name in ("float32", "float64") else raised


def _is_one_element(base: Any, exponent: Any) -> bool:
    """Whether one element is the exponent of several: NumPy takes the root if it is 0.5."""
    if not isinstance(exponent, Traced) or exponent.recorder.differentiated:
        return False
    is_array = isinstance(base, Traced) and base.value.dtype.is_floating and not (base.weak or base.is_immutable)
    if not is_array or any(extent != 1 for extent in exponent.extents):
        return False
    # Of two single elements NumPy's loop has the exponent's step, 0 if they have other axes.
    is_single = all(extent == 1 for extent in base.extents)
    return not exponent.extents or not is_single or len(base.extents) not in (0, len(exponent.extents))


def _as_root(base: Any, exponent: Any, power: Any) -> Any:
    """A power whose elements with the exponent 0.5 are roots: NaN of -infinity, and -0 of -0."""
    is_half = apply("eq", exponent, 0.5)
    is_least, is_zero = (apply("logical_and", is_half, apply("eq", base, one)) for one in (-math.inf, 0))
    return apply("where", is_least, math.nan, apply("where", is_zero, base, power))


def _is_half(base: Any, exponent: Any) -> bool:
    """Whether an exponent that the call gives is 0.5, of which NumPy takes the root: that of -inf is NaN; guarded."""
    if not isinstance(exponent, Traced) or exponent.read is None or exponent.value.dtype.kind != "float":
        return False
    is_array = isinstance(base, Traced) and base.weak is None and not base.is_immutable
    return is_array and not exponent.recorder.differentiated and bool(apply("eq", exponent, 0.5))


def _integer_power(a: Any, b: Any) -> Any:
    """Returns a ** b of integers. Exponents that are known while tracing are checked there, others by the kernel."""
    if isinstance(b, SymbolicSize) or (isinstance(b, Traced) and b.on_host):
        b = int(b)  # type: ignore[arg-type]
    if isinstance(b, (bool, int, np.bool_, np.integer)):
        special = _constant_power(a, int(b))
        if special is not None:
            return special
    return apply("integer_power", a, b)


_ACCURATE_FACTORS = (3, 4)
"""Whole exponents of floats whose products stay within the 2 units in the last place that `pow` has."""

_FEW_FACTORS = 100
"""NumPy multiplies complex numbers for whole exponents below this one; beyond it takes their logarithm."""


def _constant_power(a: Any, b: float) -> Any:
    x = as_traced(a)
    if isinstance(b, int) and x.value.dtype.is_integer and x.weak is None:
        _check_exponent(b, x)
    floating = x.value.dtype.kind in ("float", "complex") or x.weak == "float"
    if isinstance(b, float) and not floating:
        x = astype(x, dtypes.float64) if x.weak is None else apply("mul", x, 1.0)
    if b == 2:
        return apply("mul", x, x)
    if b == 1:
        return apply("ordered_set", x)
    if b == 0.5:
        return apply("sqrt", x)
    if b == -1 and floating:
        return apply("div", 1, x)
    if floating and not x.value.dtype.is_complex and b in _ACCURATE_FACTORS:
        return _repeated_product(x, int(b))
    if x.value.dtype.is_complex and math.isfinite(b) and b == int(b) and 0 < abs(b) < _FEW_FACTORS:
        product = _repeated_product(x, abs(int(b)))
        return product if b > 0 else apply("div", 1, product)
    if isinstance(b, int) and not floating:
        return _repeated_product(x, max(b, 0))  # a negative exponent meets no element
    return None


def _check_exponent(exponent: int, base: Traced) -> None:
    """Raises if an integer exponent is negative or does not fit the type of the base."""
    check_range(literal(exponent), base.value.dtype, base.recorder)
    if exponent < 0 and not base.recorder.decide(product(base.extents), "==", 0, "whether a base has elements"):
        raise ScalarError(
            "Integers to negative integer powers are not allowed", hint="cast the base with astype(float)",
            where=source.user_line(),
        )  # fmt: skip


def _repeated_product(x: Traced, exponent: int) -> Any:
    """Returns x ** exponent by squaring; integers wrap as in NumPy."""
    result: Any = None
    square: Any = x
    while exponent:
        if exponent & 1:
            result = square if result is None else apply("mul", result, square)
        exponent >>= 1
        if exponent:
            square = apply("mul", square, square)
    return apply("add", apply("mul", x, 0), 1) if result is None else result


def conjugate(x: Any) -> Any:
    """Returns the complex conjugate; a real array is its own conjugate."""
    traced = as_traced(x)
    if traced.value.dtype.kind != "complex":
        return traced
    return apply("conj", traced)


def real(x: Any) -> Any:
    traced = as_traced(x)
    return _part(traced, "real") if traced.value.dtype.kind == "complex" else traced


def imag(x: Any) -> Any:
    traced = as_traced(x)
    if traced.value.dtype.kind == "complex":
        return _part(traced, "imag")
    result = traced.recorder.movement("full", [0], shape=traced.extents, dtype=traced.value.dtype)
    if not traced.is_immutable:
        result.own_memory()
    views.of_new_array(result, [traced], copies=True)
    result.read_only = "the imaginary part of a real array"
    return result


def settable_imag(x: Any) -> Any:
    """Returns the imaginary parts for assignment. Raises DtypeError for real numbers."""
    if x.value.dtype.kind != "complex":
        raise DtypeError(
            "array does not have imaginary part to set", hint="make it complex: y = x.astype(complex)",
            where=source.user_line(),
        )  # fmt: skip
    return imag(x)


def _part(x: Traced, name: str) -> Traced:
    """Returns the real or the imaginary parts of complex numbers, as a view; of a NumPy scalar, as a scalar."""
    if x.is_immutable:
        return apply(name, x)  # type: ignore[no-any-return]

    def write(base: Traced, values: Traced) -> Traced:
        parts = (values, apply("imag", base)) if name == "real" else (apply("real", base), values)
        return apply("complex", *parts)  # type: ignore[no-any-return]

    step = ViewStep((name,), lambda base: apply(name, base), write)
    return views.attach(apply(name, x), x, step, lambda strides: tuple(2 * stride for stride in strides))
