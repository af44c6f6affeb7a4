"""Result types of functions on whole arrays: those of a call on small arrays, and those of linear algebra."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DtypeError, ScalarError, TracefuseError
from tracefuse.ir.fusion import Attributes
from tracefuse.ir.library_kinds import ResultTypes

_CAST = "cast the operands with astype first"


def fixed(*results: DType) -> ResultTypes:
    """The same types for all operands."""
    return lambda operands, attributes: results


def first(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
    """The type of the first operand."""
    return (operands[0],)


def of_sample(sample: Callable[..., Any]) -> ResultTypes:
    """The types that a call on small arrays has. sample: called with the types of the operands and the attributes.

    Raises DtypeError where the sample raises a TypeError, and ScalarError where it raises a ValueError.
    """

    def types(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = sample([dtype.numpy for dtype in operands], attributes)
        except TracefuseError:
            raise
        except TypeError as error:
            raise DtypeError(str(error), hint=_CAST) from None
        except ValueError as error:
            raise ScalarError(str(error)) from None
        each = results if isinstance(results, (tuple, list)) else (results,)
        return tuple(dtype_of(np.asarray(dtype).dtype) for dtype in each)

    return types


def linear_algebra(operands: Sequence[DType]) -> DType:
    """The type in which NumPy's linear algebra computes: that of the operands, float64 if one holds integers.

    Raises DtypeError for halves, as NumPy does.
    """
    for dtype in operands:
        if dtype.is_half:
            raise DtypeError(f"array type {dtype} is unsupported in linalg", hint="cast it to float32 or float64")
    wide = any(dtype.name not in ("float32", "complex64") for dtype in operands)
    if any(dtype.is_complex for dtype in operands):
        return dtypes.complex128 if wide else dtypes.complex64
    return dtypes.float64 if wide else dtypes.float32
