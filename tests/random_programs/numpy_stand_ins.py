"""Functions of NumPy as tracefuse computes them, for random programs whose results are compared.

They stand in for those whose results NumPy leaves open, or computes in float16 where kernels compute in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def reciprocal(x: Any, out: Any = None, *, where: Any = True, casting: str = "same_kind", **keywords: Any) -> Any:
    """np.reciprocal, which of the integer 0 is 0."""
    result = np.reciprocal(x, casting=casting, **keywords)  # type: ignore[call-overload]
    if result.dtype.kind in "biu":
        result = np.where(np.asarray(x).astype(result.dtype) == 0, 0, result).astype(result.dtype)
    if out is None:
        return result
    (target,) = out if isinstance(out, tuple) else (out,)
    np.copyto(target, result, casting="unsafe", where=where)
    return target


def negative(x: Any, out: Any = None, *, where: Any = True, casting: str = "same_kind", **keywords: Any) -> Any:
    """np.negative, which into an array with steps is wrong in NumPy 2.4 for operands with steps of 4 or 8 elements."""
    result = np.negative(x, casting=casting, **keywords)  # type: ignore[call-overload]
    if out is None:
        return result
    (target,) = out if isinstance(out, tuple) else (out,)
    np.copyto(target, result, casting="unsafe", where=where)
    return target


def in_floats(function: Any) -> Any:
    """A sum, product or variance that is computed in float32 for float16, as kernels compute it."""

    names = ("indices", "axis", "dtype", "out") if function.__name__ == "reduceat" else ("axis", "dtype", "out")

    def wide(x: Any, *arguments: Any, **keywords: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **keywords}
        out = given.pop("out", None)
        dtype = given.get("dtype")
        if np.dtype(dtype or np.asarray(x).dtype) != np.float16 or len(arguments) > len(names):
            return function(x, *arguments, **keywords)
        result = function(x, **{**given, "dtype": np.float32}).astype(np.float16)
        if out is None:
            return result
        np.copyto(out, result, casting="unsafe")
        return out

    return wide


def in_type_of_ones(function: Any) -> Any:
    """A quantile of the type that it has of ones, whatever the elements are."""

    def typed(a: Any, q: Any, *arguments: Any, **keywords: Any) -> Any:
        result = function(a, q, *arguments, **keywords)
        if keywords.get("out") is not None or len(arguments) > 1:
            return result
        return result.astype(function(np.ones_like(a), q, *arguments, **keywords).dtype)

    return typed


SUMS_OF_HALVES = (
    *(f"{nan}{name}" for name in ("sum", "prod", "mean", "var", "std", "cumsum", "cumprod") for nan in ("", "nan")),
    *(name for name in ("cumulative_sum", "cumulative_prod") if hasattr(np, name)),
)
"""Functions that kernels compute in float32 for float16."""


class InOrder:
    """A ufunc that reduces copies of its arrays, whose elements lie in memory in their order."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self.ufunc = ufunc

    def reduce(self, array: Any, *arguments: Any, **keywords: Any) -> Any:
        return self.ufunc.reduce(np.array(array, order="C"), *arguments, **keywords)

    def reduceat(self, array: Any, *arguments: Any, **keywords: Any) -> Any:
        return self.ufunc.reduceat(np.array(array, order="C"), *arguments, **keywords)
