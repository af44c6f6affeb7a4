"""What writes the parts of a call's Python text that differ between targets.

A plan becomes one Python function; how it tests an array, allocates one and passes it to a kernel is here.

Knows: the names of variables, a device. Must not know: which targets there are, plans, programs.
"""

from __future__ import annotations

from typing import Any

from tracefuse.runtime.targets.array_device import ArrayDevice


class CallText:
    """Python expressions about arrays by the names of their variables.

    addresses: whether kernels are given addresses, not arrays.
    """

    addresses: bool = False

    def __init__(self, device: ArrayDevice) -> None:
        self.device = device

    def names(self) -> dict[str, Any]:
        """What the texts refer to."""
        device = self.device
        return {
            "is_plain": device.is_plain, "is_wide": device.is_wide, "array_type": device.array_type,
            "empty": device.empty, "copy": device.copy,
        }  # fmt: skip

    # -- tests, which every call pays for -----------------------------------------------------------------------------

    def here_text(self, name: str) -> str | None:
        """Whether the array called `name` is on this device; None where it must be."""
        return None

    def elsewhere_text(self) -> str | None:
        """Whether the current device of the thread is another one; None where there is one device."""
        return None

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        """`is_plain` of the array called `name`.

        address: the name of its address; itemsize: 1 where that is known to be a multiple of all that matters.
        """
        return f"is_plain({name})"

    def wide_text(self, name: str, address: str) -> str:
        """`is_wide` likewise."""
        return f"is_wide({name})"

    def writable_text(self, name: str) -> str | None:
        """`is_writable` likewise; None where every array is."""
        return f"{name}.flags.writeable"

    # -- launches and memory ------------------------------------------------------------------------------------------

    def argument_text(self, name: str) -> str:
        """What a kernel is given for the array called `name`."""
        return name

    def stream_text(self) -> str | None:
        """The stream of a call, where there are streams."""
        return None

    def empty_text(self, shape: str, dtype: str, size: str) -> str:
        """A fresh array, from texts of its shape, type and bytes."""
        return f"empty({shape}, {dtype})"
