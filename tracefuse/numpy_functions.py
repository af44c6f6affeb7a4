"""NumPy's functions on traced values: the table behind `__array_function__`.

Knows: which modules have a part of the table. Must not know: any function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import (
    numpy_calculus,
    numpy_elements,
    numpy_elementwise,
    numpy_grids,
    numpy_nan,
    numpy_norms,
    numpy_order,
    numpy_products,
    numpy_reductions,
    numpy_refusals,
    numpy_selection,
    numpy_shapes,
)
from tracefuse.operations import missing

_MODULES = (
    numpy_elementwise, numpy_reductions, numpy_shapes, numpy_elements, numpy_products, numpy_nan, numpy_order,
    numpy_calculus, numpy_grids, numpy_selection, numpy_norms,
)  # fmt: skip

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    function: meaning for module in _MODULES for function, meaning in module.FUNCTIONS.items()
}
"""What `__array_function__` calls, by NumPy's function object."""


def call(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a NumPy function that is no ufunc does on traced operands."""
    implementation = FUNCTIONS.get(function)
    if implementation is None:
        name = getattr(function, "__name__", str(function))
        module = getattr(function, "__module__", "numpy").replace("numpy", "np")
        raise missing(f"{module}.{name}", numpy_refusals.INSTEAD.get(name, numpy_refusals.OUTSIDE))
    return implementation(*arguments, **keywords)
