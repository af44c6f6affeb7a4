"""Whether a value is a masked array, asked without importing numpy.ma.

NumPy imports numpy.ma at its first use, which would take a sixth of the first call of a process whose kernels are on
disk. A process that has not imported it has no masked arrays.
"""

from __future__ import annotations

import sys
from typing import Any


def is_masked_class(cls: type) -> bool:
    """Return whether a class is numpy.ma.MaskedArray or derives from it."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and issubclass(cls, masked.MaskedArray)


def is_masked_array(value: Any) -> bool:
    """Return whether a value is a masked array."""
    return is_masked_class(type(value))


def is_masked_constant(value: Any) -> bool:
    """Return whether a value is numpy.ma.masked."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and value is masked.masked
