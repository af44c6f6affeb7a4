"""The table behind `__array_function__`: NumPy's functions on traced values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.frontend.numpy_api import (
    calculus,
    elementwise,
    grids,
    moving_elements,
    nan_reductions,
    norms,
    order_statistics,
    products,
    reductions,
    refusals,
    selection,
    shapes,
)
from tracefuse.frontend.tracer.traced_ops import missing

_MODULES = (
    elementwise, reductions, shapes, moving_elements, products, nan_reductions, order_statistics,
    calculus, grids, selection, norms,
)  # fmt: skip

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    function: implementation for module in _MODULES for function, implementation in module.FUNCTIONS.items()
}
"""Implementations by NumPy's function object."""


def call(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of a NumPy function that is not a ufunc. Raises UnsupportedError with a hint for others."""
    implementation = FUNCTIONS.get(function)
    if implementation is None:
        name = getattr(function, "__name__", str(function))
        module = getattr(function, "__module__", "numpy").replace("numpy", "np")
        raise missing(f"{module}.{name}", refusals.INSTEAD.get(name, refusals.OUTSIDE))
    return implementation(*arguments, **keywords)
