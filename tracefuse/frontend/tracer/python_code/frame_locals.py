"""The local variables of a running function: reads and rebinds them.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

UNBOUND = object()
"""The value of a variable that is not bound."""


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Returns the bound local variables of a frame, with those of closures."""
    return dict(frame.f_locals)


def set_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Binds local variables of a running function."""
    if not values:
        return
    frame.f_locals.update(values)
    if sys.version_info < (3, 13):  # later, f_locals writes through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
