"""The common parts of devices with NumPy arrays: the CPU, and a GPU target without a GPU.

They differ in how they allocate memory and run work.

Must not know: kernels, segments, plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.runtime.targets.array_device import ArrayDevice

PLAIN = 0x101
"""C-contiguous and aligned: NPY_ARRAY_C_CONTIGUOUS (1) and NPY_ARRAY_ALIGNED (0x100) of NumPy's C interface."""


class NumpyDevice(ArrayDevice):
    """Implements the tests and addresses of NumPy arrays."""

    array_type = np.ndarray

    def is_plain(self, array: Any) -> bool:
        return array.flags.num & PLAIN == PLAIN  # type: ignore[no-any-return]

    def is_aligned(self, array: Any) -> bool:
        return bool(array.flags.aligned)

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])
