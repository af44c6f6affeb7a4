"""scipy.special on traced values: ufuncs by op definitions or formulas, the others by SciPy itself; and softmax.

Formulas compute in the type of SciPy's loop, within a few units in the last place.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, op_named
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_traced, missing, recorder_of
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.values.operands import Resolved
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types

Formula = Callable[..., Any]


def _choose(condition: Any, chosen: Any, otherwise: Any) -> Any:
    return np.where(condition, chosen, otherwise)


def _xlogy(x: Any, y: Any) -> Any:
    return _choose((x == 0) & ~np.isnan(y), 0, x * np.log(y))


def _xlog1py(x: Any, y: Any) -> Any:
    return _choose((x == 0) & ~np.isnan(y), 0, x * np.log1p(y))


def _entr(x: Any) -> Any:
    return _choose(x > 0, -x * np.log(x), _choose(x == 0, 0, _choose(np.isnan(x), x, -np.inf)))


def _rel_entr(x: Any, y: Any) -> Any:
    inside = _choose((x == 0) & (y >= 0), 0, np.inf)
    product = _choose((x > 0) & (y > 0), x * np.log(x / y), inside)
    return _choose(np.isnan(x) | np.isnan(y), np.nan, product)


def _kl_div(x: Any, y: Any) -> Any:
    inside = _choose((x == 0) & (y >= 0), y, np.inf)
    product = _choose((x > 0) & (y > 0), x * np.log(x / y) - x + y, inside)
    return _choose(np.isnan(x) | np.isnan(y), np.nan, product)


def _logit(p: Any) -> Any:
    doubled = 2 * (p - 0.5)
    near_half = np.log1p(doubled) - np.log1p(-doubled)
    return _choose((p < 0.3) | (p > 0.65), np.log(p / (1 - p)), near_half)


def _ndtr(x: Any) -> Any:
    return 0.5 * apply("erfc", x * -math.sqrt(0.5))


def _log_expit(x: Any) -> Any:
    return _choose(x < 0, x - np.log1p(np.exp(x)), -np.log1p(np.exp(-x)))


def _ufunc(name: str) -> Formula:
    return getattr(np, name)  # type: ignore[no-any-return]


FORMULAS: dict[str, Formula] = {
    "xlogy": _xlogy, "xlog1py": _xlog1py, "entr": _entr, "rel_entr": _rel_entr, "kl_div": _kl_div, "logit": _logit,
    "ndtr": _ndtr, "log_expit": _log_expit, "exp10": lambda x: np.power(10.0, x),
    **{name: _ufunc(name) for name in ("expm1", "log1p", "exp2", "cbrt")},
    **{
        name: lambda x, op=op: apply(op, x)
        for name, op in (
            ("erf", "erf"), ("erfc", "erfc"), ("erfcinv", "erfcinv"), ("erfinv", "erfinv"), ("expit", "sigmoid"),
        )
    },
    "gammaln": lambda x: _choose(x == -np.inf, x, apply("lgamma", x)),
}  # fmt: skip
"""Formulas of scipy.special's real ufuncs, by name."""


def call_special(ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
    """Records a ufunc of scipy.special, in the types of its loop."""
    name = ufunc.__name__.lstrip("_")  # zeta calls _zeta
    recorder = recorder_of(inputs)
    resolved = [recorder.resolve(x) for x in inputs]
    types = loop_types(ufunc, [(r.dtype, r.weak) for r in resolved])
    if name in FORMULAS and not any(t.is_complex for t in types):
        operands = [traced_ops.astype(as_traced(x), t, copy=False) for x, t in zip(inputs, types, strict=False)]
        return traced_ops.astype(FORMULAS[name](*operands), types[-1], copy=False)
    if not _is_of_scipy(ufunc, name):
        raise missing(f"the ufunc {name}", "write it with functions of np, on whole arrays")
    numbers = tuple(x if isinstance(x, (int, float, complex)) and not isinstance(x, np.generic) else None for x in inputs)  # fmt: skip # noqa: E501
    arrays = [as_operand(x) if r.weak is None else x for x, r, n in zip(inputs, resolved, numbers, strict=True) if n is None]  # fmt: skip # noqa: E501
    results = record_whole(
        recorder, op_named("special_function"), arrays, function=name, results=tuple(types[ufunc.nin :]),
        numbers=numbers,
    )  # fmt: skip
    return results[0] if len(results) == 1 else results


def call_with_loops(name: str, loops: Sequence[str], inputs: Sequence[Any]) -> Any:
    """Records a function of scipy.special in the types of the first loop that takes its operands.

    loops: of the library that computes it, as `types` of a ufunc. Raises DtypeError if none takes the operands.
    """
    recorder = recorder_of(inputs)
    resolved = [recorder.resolve(x) for x in inputs]
    loop = next((loop for loop in loops if _takes(loop, resolved)), None)
    if loop is None:
        given = ", ".join(str(r.dtype) for r in resolved)
        raise DtypeError(f"scipy.special.{name} of {given}", hint="cast the operands with astype first",
                         where=source.user_line())  # fmt: skip
    types, results = ([dtype_of(code) for code in codes] for codes in loop.split("->"))
    operands = [traced_ops.astype(as_traced(x), t, copy=False) for x, t in zip(inputs, types, strict=True)]
    if name in FORMULAS and not any(t.is_complex for t in types):
        return traced_ops.astype(FORMULAS[name](*operands), results[0], copy=False)
    computed = record_whole(
        recorder, op_named("special_function"), list(map(as_operand, operands)), function=name, results=tuple(results),
        numbers=(None,) * len(operands),
    )  # fmt: skip
    return computed[0] if len(computed) == 1 else computed


def _takes(loop: str, resolved: Sequence[Resolved]) -> bool:
    """Whether every operand is cast to its type in a loop without loss; a Python number to a type of its kind."""
    return all(
        code in _TYPES_OF_WEAK[r.weak]
        if r.weak is not None
        else r.dtype is not None and np.can_cast(r.dtype.numpy, code)
        for r, code in zip(resolved, loop.partition("->")[0], strict=False)
    )


_TYPES_OF_WEAK = {"bool": "?bBhHiIlLqQefdFD", "int": "bBhHiIlLqQefdFD", "float": "efdFD", "complex": "FD"}


def _is_of_scipy(ufunc: np.ufunc, name: str) -> bool:
    """Whether scipy.special has this ufunc, or a function that calls it, under a name."""
    special = sys.modules.get("scipy.special")
    ours = getattr(special, ufunc.__name__, getattr(getattr(special, "_ufuncs", None), ufunc.__name__, None))
    return ours is ufunc and hasattr(special, name)


# ---------------------------------------------------------------------------------------------------------------------
# functions that are no ufuncs


def _floating(x: Any) -> Any:
    array = as_operand(x)
    if array.value.dtype.is_complex:
        raise UnsupportedError("softmax of complex numbers cannot be fused", hint="compute it outside")
    return array if array.value.dtype.is_floating else traced_ops.astype(array, np.float64)


def softmax(x: Any, axis: Any = None) -> Any:
    array = _floating(x)
    power = np.exp(array - traced_ops.reduce("max", array, axis, None, None, True))
    return power / traced_ops.reduce("sum", power, axis, None, None, True)


def softplus(x: Any, **keywords: Any) -> Any:
    array = as_operand(x)
    if keywords or not array.value.dtype.is_floating:
        return np.logaddexp(0, x, **keywords)
    return apply("softplus", array)


def log_softmax(x: Any, axis: Any = None) -> Any:
    array = _floating(x)
    largest = traced_ops.reduce("max", array, axis, None, None, True)
    below = array - np.where(np.isfinite(largest), largest, 0)
    return below - np.log(traced_ops.reduce("sum", np.exp(below), axis, None, None, True))


def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    array = _floating(a)
    if b is not None:
        weights = as_operand(b)
        array = traced_ops.astype(array, np.result_type(array.dtype, weights.dtype), copy=False)
        array, weights = np.broadcast_arrays(np.where(weights == 0, -np.inf, array), weights)
    largest = traced_ops.reduce("max", array, axis, None, None, True)
    shift: Any = np.where(np.isfinite(largest), largest, 0)
    power = np.exp(array - shift)
    total: Any = traced_ops.reduce("sum", power if b is None else weights * power, axis, None, None, True)
    sign = np.sign(total)
    result = np.log(abs(total) if return_sign else total) + shift
    if not keepdims:
        axes = tuple(traced_ops.axes_of(axis, len(array.extents)))
        result, sign = (shaping.squeeze(value, axes) for value in (result, sign))
    return (result, sign) if return_sign else result
