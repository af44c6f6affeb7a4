"""The array library of a target: NumPy or CuPy, with faster matrix products if the target has them.

Library segments call it for ops that no kernel computes.

Must not know: ops, segments, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import DType
from tracefuse.passes.product_epilogues import Epilogue
from tracefuse.runtime.devices.gemm_calls import ProductForm

_NUMBERS = (bool, int, float, complex, np.generic)


class ArrayLibrary:
    """Computes library calls on the arrays of a target.

    has_halves: whether its matrix products support float16 and bfloat16. has_epilogues: whether it computes products
    with epilogues. array_type: the type of its arrays.
    """

    has_halves: bool = False
    has_epilogues: bool = False
    array_type: type = np.ndarray

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        """Returns a matrix product for a dtype that is faster than NumPy's or CuPy's, or None if there is none.

        The function takes two matrices or stacks of matrices, and whether the last two axes of the second are
        transposed. It returns None for operands that it does not support.
        """
        return None

    def prepared_product(self, dtype: DType, form: ProductForm) -> Any | None:
        """Returns a product of two contiguous arrays of a dtype that the target launches like a compiled kernel.

        The kernel compiler's `entry` and `graph` take it. Its arguments are both operands, the result, which is
        contiguous, too, and the extents of both operands. None if the library has none.
        """
        return None

    def epilogue_refusal(
        self, dtype: DType, form: ProductForm, epilogue: Epilogue, left: Sequence[int], right: Sequence[int]
    ) -> str | None:  # fmt: skip
        """Returns why the library does not compute a product with an epilogue, None if `epilogue_product` does.

        left, right: the shapes of the operands in this call. A product that is computed at some sizes is at all.
        """
        return "the target's library computes products alone"

    def epilogue_product(self, dtype: DType, form: ProductForm, epilogue: Epilogue) -> Any:
        """Returns a product as `prepared_product`, with an epilogue.

        Its arguments are both operands, the bias and the residual if there are any, the result, and the extents of both
        operands.
        """
        raise NotImplementedError

    def row_update(self, combine: str, dtype: DType) -> Callable[[Any, Any, Any], Any] | None:
        """Returns a function that combines rows of a table with other rows, or None if the op's own is as fast.

        The function takes a table, int64 positions along its first axis, which wrap, and one row for each position, and
        returns a new table. combine: "assign", or the ufunc that combines a row of the table with each row for it.
        """
        return None

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Returns a new array with uninitialized content, as `ArrayDevice.empty`."""
        raise NotImplementedError

    def product_into(self) -> Callable[[Any, Any, Any], Any] | None:
        """Returns a function that writes the product of two arrays into a third, for all types; None if there is none.

        Axes are those of NumPy's matmul.
        """
        return None

    def as_array(self, result: Any, dtype: DType, operands: Sequence[Any]) -> Any:
        """Returns a result of a function as an array that shares no memory with its operands.

        Functions return Python and NumPy scalars for results without axes, and now and then an operand or a view of it.
        """
        if isinstance(result, _NUMBERS):
            return np.asarray(result, None if isinstance(result, np.generic) else dtype.numpy)
        root = _root(result)
        return result.copy() if any(_root(operand) is root for operand in operands) else result

    def as_result(self, array: Any, dtype: DType) -> Any:
        """Returns an array of the library, or a copy, that is C-contiguous and aligned as by `ArrayDevice.empty`."""
        return array if not hasattr(array, "flags") or array.flags.c_contiguous else array.copy(order="C")


def _root(array: Any) -> Any:
    """Returns the array at the end of the chain of bases, which all views of it refer to."""
    while isinstance(getattr(array, "base", None), type(array)):
        array = array.base
    return array
