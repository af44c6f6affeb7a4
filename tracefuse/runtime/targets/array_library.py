"""The array library of a target: NumPy or CuPy, and what it calls for products of matrices.

Knows: arrays. Must not know: which targets there are, ops, segments, plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracefuse.dtypes import DType


class ArrayLibrary:
    """What computes library calls on the arrays of a target.

    has_halves: whether its products take float16 and bfloat16.
    """

    has_halves: bool = False

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        """A function of two matrices of a type, and whether the second is transposed, that beats NumPy's or CuPy's.

        It gives None where it cannot take them.
        """
        return None

    def as_result(self, array: Any, dtype: DType) -> Any:
        """What a library made as a result: C-contiguous, as aligned as the arrays of `ArrayDevice.empty`."""
        return array if not hasattr(array, "flags") or array.flags.c_contiguous else array.copy(order="C")
