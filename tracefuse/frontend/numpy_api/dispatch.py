"""The table behind `__array_function__`: NumPy's functions on traced values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.numpy_api import (
    calculus,
    elementwise,
    grids,
    moving_elements,
    nan_reductions,
    norms,
    order_statistics,
    packed_bits,
    products,
    reductions,
    refusals,
    selection,
    shapes,
)
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import missing

_MODULES = (
    elementwise, reductions, shapes, moving_elements, products, nan_reductions, order_statistics,
    calculus, grids, packed_bits, selection, norms,
)  # fmt: skip

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    function: implementation for module in _MODULES for function, implementation in module.FUNCTIONS.items()
}
"""Implementations by NumPy's function object."""


def call(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of a NumPy function that is not a ufunc. Raises UnsupportedError with a hint for others.

    A call that cannot be recorded is repeated with the elements of those operands that depend on no argument.
    """
    try:
        return _recorded(function, arguments, keywords)
    except UnsupportedError:
        known = _with_known_elements([arguments, keywords])
        if known is None:
            raise
        return function(*known[0], **known[1])


def _with_known_elements(values: Any) -> Any:
    """Nested values with traced ones replaced by their elements where these are known; None where none is."""
    if isinstance(values, Traced):
        return values.recorder.contents.of(values.number, None)
    if isinstance(values, dict):
        inner = _with_known_elements(list(values.values()))
        return None if inner is None else dict(zip(values, inner, strict=True))
    if not isinstance(values, (list, tuple)):
        return None
    found = [_with_known_elements(value) for value in values]
    if all(value is None for value in found):
        return None
    return type(values)(old if new is None else new for old, new in zip(values, found, strict=True))


def _recorded(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    implementation = FUNCTIONS.get(function)
    if implementation is None:
        name = getattr(function, "__name__", str(function))
        module = getattr(function, "__module__", "numpy").replace("numpy", "np")
        raise missing(f"{module}.{name}", refusals.INSTEAD.get(name, refusals.OUTSIDE))
    return implementation(*arguments, **keywords)
