"""The parts of a call's generated Python text that differ between targets.

A plan becomes one Python function. This class writes the expressions that test an array, allocate one and pass one to
a kernel. It receives the names of the variables that hold the arrays, not the arrays.

Must not know: plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.dtypes import DType
from tracefuse.runtime.targets.array_device import ArrayDevice


class CallText:
    """Writes Python expressions about arrays, given the names of their variables.

    addresses: whether kernels take the addresses of arrays instead of the arrays.
    """

    addresses: bool = False

    def __init__(self, device: ArrayDevice) -> None:
        self.device = device

    def names(self) -> dict[str, Any]:
        """Returns the globals that the expressions refer to."""
        device = self.device
        return {
            "is_plain": device.is_plain, "is_wide": device.is_wide, "array_type": device.array_type,
            "empty": device.empty, "copy": device.copy, "address_of": device.address,
        }  # fmt: skip

    # -- tests, which run in every call --------------------------------------------------------------------------------

    def here_text(self, name: str) -> str | None:
        """Returns a test whether the array `name` is on this device, or None if it always is."""
        return None

    def elsewhere_text(self) -> str | None:
        """Returns a test whether the thread's current device is another one, or None if there is only one device."""
        return None

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        """Returns an expression for `ArrayDevice.is_plain` of the array `name`.

        address: the name of the variable of its address; itemsize: the alignment to test, or 1 if the address is known
        to be aligned.
        """
        return f"is_plain({name})"

    def wide_text(self, name: str, address: str) -> str:
        """Returns an expression for `ArrayDevice.is_wide` of the array `name`."""
        return f"is_wide({name})"

    def all_wide_text(self, arrays: Sequence[tuple[str, str]]) -> str:
        """Returns an expression for `ArrayDevice.is_wide` of arrays, given as (name, address) of `wide_text`."""
        return " and ".join(self.wide_text(name, address) for name, address in arrays)

    def writable_text(self, name: str) -> str | None:
        """Returns an expression for `ArrayDevice.is_writable` of the array `name`, or None if all arrays are."""
        return f"{name}.flags.writeable"

    def address_text(self, name: str, address: str) -> str:
        """Returns an expression for the address of the array `name`. address: its variable, if the target has them."""
        return f"address_of({name})"

    def apart_text(self, first: str, first_address: str, second: str, second_address: str) -> str:
        """Returns a test whether two C-contiguous arrays are apart, which may be False for arrays of no elements."""
        return f"not may_share({first}, {second})"

    # -- launches and memory ------------------------------------------------------------------------------------------

    def argument_text(self, name: str) -> str:
        """Returns the expression for the kernel argument of the array `name`."""
        return name

    def stream_text(self) -> str | None:
        """Returns the expression for the stream of a call, or None if the target has no streams."""
        return None

    def empty_text(self, shape: str, dtype: DType, name: str, size: str) -> str:
        """Returns an expression for a new array, from expressions for its shape and its size in bytes.

        name: the variable of the dtype.
        """
        return f"empty({shape}, {name})"

    most_together: int = 1
    """The most arrays that `several_text` makes."""

    def several_text(self, asked: Sequence[tuple[str, DType, str, str]]) -> str | None:
        """Returns an expression for new arrays that launches write together, None to make them one by one.

        asked: the arguments of `empty_text` for each. The expression gives the arrays, then their addresses.
        """
        return None
