"""`x[mask]` for a mask of truth values: its length depends on data, so no traced array can hold the elements.

The elements stay in place. Supported are elementwise operations with scalars and with elements under the same mask,
assignments under that mask, as in `x[mask] *= 2` and `x[mask] = y[mask] + 1`, and reductions. Everything else takes the
elements, which is possible for a mask that depends on captured state alone, or raises an error with the line that
selected them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tracefuse import source
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.tracer import masked_reductions
from tracefuse.frontend.tracer.masked_reductions import MaskSelection
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


class MaskedElements(MaskSelection, NDArrayOperatorsMixin):
    """A selection with NumPy's operators, functions and methods."""

    def elements(self) -> Traced:
        """Returns the elements as an array. Raises UnsupportedError if the mask depends on arguments."""
        if self.take is None:
            raise self.refusal()
        return self.take(self.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.value.dtype.numpy

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        values: Any = self.values
        return self.with_values(values.astype(dtype, order, casting, subok, copy))

    def copy(self, order: str = "C") -> Any:
        return self.with_values(self.values)

    # -- elementwise operations ---------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and self.take is None:
            return masked_reductions.dot(*inputs)
        if method != "__call__" or not all(map(self._is_beside, inputs)):
            return getattr(ufunc, method)(*map(_taken, inputs), **keywords)
        targets = keywords.pop("out", None) or (None,)
        result = ufunc(*(self._beside(value) for value in inputs), **keywords)
        if targets[0] is None:
            return tuple(map(self.with_values, result)) if isinstance(result, tuple) else self.with_values(result)
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

    # -- reductions ---------------------------------------------------------------------------------------------------

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        name = masked_reductions.METHODS.get(function)
        if self.take is None and name is not None and isinstance(arguments[0], MaskedElements):
            return masked_reductions.REDUCTIONS[name](arguments[0], *arguments[1:], **keywords)
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
        if self.take is not None:
            return getattr(self.elements(), name)
        if name in masked_reductions.REDUCTIONS and hasattr(np.ndarray, name):
            return lambda *arguments, **keywords: masked_reductions.REDUCTIONS[name](self, *arguments, **keywords)
        if name in ("size", "shape"):
            raise UnsupportedError(
                f"the {name} of elements under a boolean mask depends on the data",
                hint="count the elements with np.count_nonzero(mask)", where=source.user_line(),
            )  # fmt: skip
        raise self.refusal()

    def __repr__(self) -> str:
        return f"elements of {self.values!r} under the mask {self.mask!r}"
