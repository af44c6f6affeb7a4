"""Arrays whose inexact operations err by a few last places, to show which programs depend on last bits."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.random_programs.program_statements import words

EXACT = frozenset(
    words("""
    add subtract multiply divide sqrt negative positive absolute conjugate equal not_equal less less_equal greater
    greater_equal maximum minimum fmax fmin logical_and logical_or logical_not logical_xor isnan isinf isfinite sign
    signbit copysign floor ceil trunc rint square bitwise_and bitwise_or bitwise_xor invert left_shift right_shift
    spacing nextafter
""")
)
"""Ufuncs whose results have NumPy's bits; of others, and of sums, the last bits are free."""

ROUNDED_COMPLEX = frozenset(words("absolute sqrt divide sign"))
"""Those among them that are made of several operations for complex numbers."""


def is_exact(ufunc: np.ufunc, operands: Any) -> bool:
    """Whether a ufunc has NumPy's bits for these operands."""
    is_complex = any(np.asarray(one).dtype.kind == "c" for one in operands)
    return ufunc.__name__ in EXACT and not (is_complex and ufunc.__name__ in ROUNDED_COMPLEX)


class Noisy(np.ndarray):
    """An array whose inexact operations err by a few last places: shows which programs depend on last bits.

    phase: which elements err upwards, those at even positions (0) or at odd ones (1); None for no errors.
    """

    phase: int | None = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, Noisy) else one for one in inputs]
        keywords = {name: one.view(np.ndarray) if isinstance(one, Noisy) else one for name, one in keywords.items()}
        outputs = keywords.get("out")
        if outputs is not None:
            keywords["out"] = tuple(one.view(np.ndarray) if isinstance(one, Noisy) else one for one in outputs)
        if outputs is not None and method == "__call__" and is_rounded(ufunc, outputs):
            return self.truncated(ufunc, plain, keywords)
        result = getattr(ufunc, method)(*plain, **keywords)
        if method == "at" and not is_exact(ufunc, plain):
            result = shaken(plain[0])
            plain[0][...] = infinite(result) if ufunc.__name__ in OF_LIBRARIES else result
            return None
        is_sum = method in ("reduce", "accumulate") and ufunc.__name__ in SUMS
        if not is_exact(ufunc, plain) or is_sum:
            largest = sizes_of(plain) if is_sum or ufunc.__name__ in SUMS_OF_PRODUCTS else 0.0
            least = loop_precision(ufunc, plain, keywords.get("dtype")) if outputs is not None else 0.0
            result = tuple(map(shaken, result)) if isinstance(result, tuple) else shaken(result, largest, least)
            result = infinite(result) if ufunc.__name__ in OF_LIBRARIES else result
        if outputs is not None and result is not None and not isinstance(result, tuple):
            outputs[0].view(np.ndarray)[...] = result
            return outputs[0]
        return tuple(viewed(one) for one in result) if isinstance(result, tuple) else viewed(result)

    def truncated(self, ufunc: Any, plain: Any, keywords: Any) -> Any:
        """The result of an inexact ufunc in an array of integers, shaken before it is cast."""
        (output,), where = keywords.pop("out"), keywords.pop("where", True)
        keywords.pop("casting", None)
        own = output.view(np.ndarray)
        np.copyto(own, shaken(ufunc(*plain, **keywords)), casting="unsafe", where=where)
        return output

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        result = super().__array_function__(function, types, arguments, keywords)
        if function not in PRODUCTS:
            return result
        return infinite(shaken(result, sizes_of(arguments)), function is np.einsum and sums_alone(arguments[0]))


def is_rounded(ufunc: Any, outputs: Any) -> bool:
    """Whether integers take the result of an inexact ufunc."""
    return len(outputs) == 1 and np.asarray(outputs[0]).dtype.kind in "iub" and ufunc.__name__ not in EXACT


SUMS = ("add", "multiply", "logaddexp", "logaddexp2")
"""Ufuncs whose reductions have rounding errors relative to the sizes of the elements."""
SUMS_OF_PRODUCTS = ("matmul", "vecdot", "matvec", "vecmat")
"""Ufuncs whose rounding errors are relative to the sizes of their operands."""
OF_LIBRARIES = (*SUMS_OF_PRODUCTS, "power", "float_power", "expm1")
"""Ufuncs of which complex results that are not finite are NaN or infinite, as a library computes them."""


def sums_alone(subscripts: Any) -> bool:
    """Whether np.einsum sums an axis that one of several operands has alone."""
    given, _, result = subscripts.partition("->") if isinstance(subscripts, str) else ("", "", "")
    operands = given.split(",")
    letters = [letter for one in operands for letter in set(one) if letter.isalpha() and letter not in result]
    return "->" in subscripts and len(operands) > 1 and any(letters.count(letter) == 1 for letter in letters)


def infinite(value: Any, of_reals: bool = False) -> Any:
    """Complex numbers with those that are not finite replaced by infinity, or by NaN in the other phase.

    of_reals: whether to replace real numbers, too.
    """
    kinds = "fc" if of_reals else "c"
    if Noisy.phase is None or not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in kinds:
        return value
    other = complex(np.inf, np.inf) if Noisy.phase == 0 else complex(np.nan, np.nan)
    other = other if value.dtype.kind == "c" else other.real
    result = np.where(np.isfinite(value), value, other).astype(value.dtype)
    return result if isinstance(value, np.ndarray) else result[()]


PRODUCTS = (
    np.dot, np.inner, np.vdot, np.tensordot, np.einsum, np.trace, np.convolve, np.correlate, np.interp, np.cov,
    np.corrcoef, np.polyval, np.gradient, np.trapezoid, np.average, np.linalg.norm,
)  # fmt: skip
"""Functions of sums of products that are not made of ufuncs, or make arrays of their own."""


def sizes_of(values: Any) -> float:
    """The sum of the magnitudes of arrays: the rounding errors of a sum are relative to it."""
    arrays = [np.asarray(one) for one in values if isinstance(one, np.ndarray) and one.dtype.kind in "fciu"]
    return float(sum(np.abs(one[np.isfinite(one)]).astype(float).sum() for one in arrays))


def loop_precision(ufunc: np.ufunc, inputs: list[Any], named: Any) -> float:
    """The precision of the floats in which a ufunc computes, whatever takes its result. named: its `dtype=`."""
    dtypes = [np.asarray(one).dtype for one in inputs]
    if named is not None and np.dtype(named).kind in "fc":
        return float(np.finfo(named).eps)
    try:
        loop = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))[-1]
    except TypeError:
        return 0.0
    return float(np.finfo(loop).eps) if loop.kind in "fc" else 0.0


def shaken(value: Any, largest: float = 0.0, least: float = 0.0) -> Any:
    """Floats moved by two units in the last place, their own or that of the largest number behind. NaNs change sign."""
    phase = Noisy.phase
    if phase is None or not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "fc":
        return value
    # Up and down in turn, so that differences of neighbours move too.
    unit, real = 2 * max(float(np.finfo(value.dtype).eps), least), np.finfo(value.dtype).dtype
    signs = np.where(np.arange(value.size).reshape(np.shape(value)) % 2 == phase, unit, -unit)
    errors = (signs * min(largest, 1e30)).astype(real)  # of both parts of complex numbers
    moved = np.asarray(value) * (1 + signs).astype(real) + (errors * (1 + 1j) if value.dtype.kind == "c" else errors)
    # A NaN has a sign: one for each phase, as a sign that two operations change in turn would stay.
    nan = np.copysign(real.type(np.nan), 1 - 2 * phase) if value.dtype.kind == "f" else None
    others = value if nan is None else np.where(np.isnan(value), nan, value)
    result = np.where(np.isfinite(value), moved, others).astype(value.dtype)
    return result if isinstance(value, np.ndarray) else result[()]


def noisy(value: Any, phase: int | None) -> Any:
    """An array as a noisy one, with the phase of all noisy arrays; another value as it is."""
    Noisy.phase = phase
    return viewed(value)


def viewed(value: Any) -> Any:
    return value.view(Noisy) if isinstance(value, np.ndarray) else value


def as_noisy(value: Any) -> Any:
    """A value with noisy arrays in place of arrays, also in lists and tuples."""
    if type(value) is np.ndarray:
        return value.view(Noisy)
    if isinstance(value, (list, tuple)):
        entries = map(as_noisy, value)
        return value._make(entries) if hasattr(value, "_make") else type(value)(entries)
    return value


class NoisyFunction:
    """A function of NumPy whose operands and results are noisy arrays, whatever it makes of them inside."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        arguments = as_noisy(arguments)
        has_array = any(isinstance(one, np.ndarray) for one in (*arguments, *keywords.values()))
        if isinstance(self.function, np.ufunc) and not has_array:
            # A ufunc asks arrays alone: one operand becomes an array without axes, of the same type.
            return as_noisy(self.of_scalars(arguments, keywords))
        return as_noisy(self.function(*arguments, **{name: as_noisy(one) for name, one in keywords.items()}))

    def of_scalars(self, arguments: Any, keywords: Any) -> Any:
        place = next((k for k, one in enumerate(arguments) if isinstance(one, np.generic)), None)
        if place is None:
            return self.function(*arguments, **keywords)
        array = np.asarray(arguments[place]).view(Noisy)
        result = self.function(*arguments[:place], array, *arguments[place + 1 :], **keywords)
        return tuple(one[()] for one in result) if isinstance(result, tuple) else result[()]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.function, name)
        return NoisyFunction(value) if callable(value) else value


class NoisyModule:
    """NumPy with functions of noisy arrays."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        if isinstance(value, ModuleType):
            return NoisyModule(value)
        return NoisyFunction(value) if callable(value) and not isinstance(value, type) else value
