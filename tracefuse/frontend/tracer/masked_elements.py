"""`x[mask]` for a mask of truth values: its length depends on data, so no traced array can hold the elements.

The elements stay in place. Supported are elementwise operations with scalars and with elements under the same mask,
assignments under that mask, as in `x[mask] *= 2` and `x[mask] = y[mask] + 1`, and reductions. Everything else raises
an error with the line that selected them.

Must not know: keys, how an assignment is recorded.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tracefuse import source
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.tracer import masked_reductions
from tracefuse.frontend.tracer.masked_reductions import MaskSelection


class MaskedElements(MaskSelection, NDArrayOperatorsMixin):
    """A selection with NumPy's operators, functions and methods."""

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
        if ufunc is np.matmul and method == "__call__" and len(inputs) == 2:
            return masked_reductions.dot(*inputs)
        if method != "__call__":
            raise self.refusal()
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
        if name is None or not arguments or not isinstance(arguments[0], MaskedElements):
            raise self.refusal()
        return masked_reductions.REDUCTIONS[name](arguments[0], *arguments[1:], **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in masked_reductions.REDUCTIONS and hasattr(np.ndarray, name):
            return lambda *arguments, **keywords: masked_reductions.REDUCTIONS[name](self, *arguments, **keywords)
        if name in ("size", "shape"):
            raise UnsupportedError(
                f"the {name} of elements under a boolean mask depends on the data",
                hint="count the elements with np.count_nonzero(mask)", where=source.user_line(),
            )  # fmt: skip
        raise self.refusal()

    def _refuse(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise self.refusal()

    __array__ = __iter__ = __len__ = __bool__ = __getitem__ = __setitem__ = _refuse
    __int__ = __float__ = __complex__ = __index__ = __contains__ = _refuse

    def __repr__(self) -> str:
        return f"elements of {self.values!r} under the mask {self.mask!r}"
