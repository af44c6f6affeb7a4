"""`x[mask]` for a mask of truth values: its length depends on data, so no traced array can hold the elements.

The supported operations keep the elements in place: elementwise operations with scalars and with elements under the
same mask, and assignments under that mask, as in `x[mask] *= 2` and `x[mask] = y[mask] + 1`. Everything else raises
an error with the line that selected them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tracefuse import source
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.tracer.traced import Traced


class MaskedElements(NDArrayOperatorsMixin):
    """The elements of `values` at which `mask`, of the same rank, is true."""

    def __init__(self, values: Traced, mask: Traced) -> None:
        self.values, self.mask = values, mask
        self.line = source.user_line()

    def refusal(self) -> UnsupportedError:
        return UnsupportedError(
            "indexing with a boolean mask: the size of the result depends on the data",
            hint="write np.where(mask, x, other)", where=self.line,
        )  # fmt: skip

    def has_mask(self, mask: Traced) -> bool:
        """Whether the same mask selected these elements."""
        return self.mask.recorder.builder.is_same_value(self.mask.number, mask.number)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__":
            raise self.refusal()
        targets = keywords.pop("out", None) or (None,)
        result = ufunc(*(self._beside(value) for value in inputs), **keywords)
        if targets[0] is None:
            many = isinstance(result, tuple)
            return tuple(MaskedElements(r, self.mask) for r in result) if many else MaskedElements(result, self.mask)
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

    def _refuse(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise self.refusal()

    __array_function__ = __array__ = __iter__ = __len__ = __bool__ = __getitem__ = __setitem__ = _refuse
    __int__ = __float__ = __complex__ = __index__ = __contains__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.refusal()

    def __repr__(self) -> str:
        return f"elements of {self.values!r} under the mask {self.mask!r}"
