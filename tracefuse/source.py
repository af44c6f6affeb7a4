"""Where in the user's own code something happened, and how an error looks from there.

A line is `file.py:12`: the innermost frame that belongs neither to tracefuse nor to NumPy. The frames of tracefuse are
taken out of tracebacks at the border of a fused function, so that the last frame shown is the user's.

Knows: frames, tracebacks, code objects. Must not know: what is being traced.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any

import numpy as np

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
# Libraries whose functions call back into the tracer.
_LIBRARIES = tuple(f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("jax", "cupy", "cupyx", "torch"))
_internal: dict[str, bool] = {}


def is_internal(filename: str) -> bool:
    """Whether a file belongs to tracefuse or NumPy (whose Python wrappers stand between the user and the tracer)."""
    known = _internal.get(filename)
    if known is None:
        # "<__array_function__ internals>" is what NumPy calls code that it makes.
        known = filename.startswith((_OWN, _NUMPY, "<__array_function__"))
        known = known or any(library in filename for library in _LIBRARIES)
        _internal[filename] = known
    return known


def user_frame() -> FrameType | None:
    """The innermost frame of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line() -> str | None:
    """`file.py:12` of the innermost frame of the user's code."""
    frame = user_frame()
    return None if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def line_of(code: CodeType) -> str:
    """`file.py:12` of the line where `code` begins."""
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def local_name(value: Any) -> str | None:
    """The name that the user's innermost frame has for this very object, if it has one."""
    frame = user_frame()
    if frame is None or frame.f_code.co_name == "<module>":
        return None
    return next((name for name, held in frame.f_locals.items() if held is value and name.isidentifier()), None)


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback with the frames of tracefuse left out."""
    if traceback is None:
        return None
    rest = without_own_frames(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_OWN):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
