"""`x[mask]` for a mask of truth values: its length depends on data, so no traced array can hold the elements.

The supported operations keep the elements in place: elementwise operations with scalars and with elements under the
same mask, and assignments under that mask, as in `x[mask] *= 2` and `x[mask] = y[mask] + 1`. Everything else takes
the elements, which is possible for a mask that depends on captured state alone, or raises an error with the line that
selected them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tracefuse import source
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.tracer.traced import Traced


def _of_elements(name: str) -> Callable[..., Any]:
    """Returns a method that takes the elements and calls theirs."""

    def method(self: MaskedElements, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.elements(), name)(*arguments, **keywords)

    return method


def _taken(value: Any) -> Any:
    """Returns nested values with arrays in place of elements under masks."""
    if isinstance(value, MaskedElements):
        return value.elements()
    if isinstance(value, dict):
        return {key: _taken(entry) for key, entry in value.items()}
    return type(value)(map(_taken, value)) if type(value) in (list, tuple) else value


class MaskedElements(NDArrayOperatorsMixin):
    """The elements of `values` at which `mask`, of the same rank, is true.

    take: returns the selected elements of an array like `values`; None if the mask depends on arguments.
    """

    def __init__(self, values: Traced, mask: Traced, take: Callable[[Traced], Traced] | None = None) -> None:
        self.values, self.mask, self.take = values, mask, take
        self.line = source.user_line()

    def elements(self) -> Traced:
        """Returns the elements as an array. Raises UnsupportedError if the mask depends on arguments."""
        if self.take is None:
            raise self.refusal()
        return self.take(self.values)

    def refusal(self) -> UnsupportedError:
        return UnsupportedError(
            "indexing with a boolean mask: the size of the result depends on the data",
            hint="write np.where(mask, x, other)", where=self.line,
        )  # fmt: skip

    def has_mask(self, mask: Traced) -> bool:
        """Whether the same mask selected these elements."""
        return self.mask.recorder.builder.is_same_value(self.mask.number, mask.number)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__" or not all(map(self._is_beside, inputs)):
            return getattr(ufunc, method)(*map(_taken, inputs), **keywords)
        targets = keywords.pop("out", None) or (None,)
        result = ufunc(*(self._beside(value) for value in inputs), **keywords)
        if targets[0] is None:
            many = isinstance(result, tuple)
            results = [MaskedElements(r, self.mask, self.take) for r in (result if many else (result,))]
            return tuple(results) if many else results[0]
        (target,) = targets
        if target is not self or isinstance(result, tuple):
            raise self.refusal()
        dtype = self.values.value.dtype
        if not np.can_cast(result.value.dtype.numpy, dtype.numpy, "same_kind"):
            raise DtypeError(
                f"an in-place operation gives {result.value.dtype}, which does not go into {dtype}",
                hint="write y[mask] = y[mask] + x", where=source.user_line(),
            )  # fmt: skip
        self.values = result.astype(dtype.numpy, copy=False)
        return self

    def _is_beside(self, value: Any) -> bool:
        """Whether an operand fits without taking the elements, or cannot be combined with them at all."""
        if isinstance(value, MaskedElements):
            return self.has_mask(value.mask) or self.take is None or value.take is None
        return not np.ndim(value) or self.take is None

    def _beside(self, value: Any) -> Any:
        """Returns an operand at every position, selected or not."""
        if isinstance(value, MaskedElements):
            if self.has_mask(value.mask):
                return value.values
            raise UnsupportedError(
                "elements under two boolean masks in one operation: which element meets which depends on the data",
                hint="use one mask for both, or np.where on whole arrays", where=source.user_line(),
            )  # fmt: skip
        if np.ndim(value):
            raise UnsupportedError(
                "elements under a boolean mask beside an array: which element meets which depends on the data",
                hint="select with the same mask, as in x[mask] + y[mask], or write np.where(mask, x + y, x)",
                where=source.user_line(),
            )  # fmt: skip
        return value

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        self.elements()
        return function(*_taken(arguments), **_taken(keywords))

    __array__, __iter__, __len__ = _of_elements("__array__"), _of_elements("__iter__"), _of_elements("__len__")
    __bool__, __int__, __float__ = _of_elements("__bool__"), _of_elements("__int__"), _of_elements("__float__")
    __complex__, __index__ = _of_elements("__complex__"), _of_elements("__index__")
    __getitem__, __setitem__ = _of_elements("__getitem__"), _of_elements("__setitem__")
    __contains__ = _of_elements("__contains__")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.elements(), name)

    def __repr__(self) -> str:
        return f"elements of {self.values!r} under the mask {self.mask!r}"
