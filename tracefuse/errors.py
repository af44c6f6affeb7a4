"""The one error tree.

Every refusal of tracefuse is a `TracefuseError` and also the built-in kind that users expect. A message says what, the
values, the user's line and what to do:

    ShapeError: add: extents differ on axis 1: 4 (x, model.py:8) and 5 (y, model.py:9)
      hint: broadcasting needs one of them to be 1

Knows: kinds of errors and how a message is laid out. Must not know: anything else of tracefuse.
"""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np

__all__ = [
    "AxisError",
    "CompileError",
    "ConcretizationError",
    "DeviceError",
    "DtypeError",
    "FusionError",
    "IntegerRangeError",
    "InternalError",
    "OptionError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "ReadOnlyError",
    "ScalarError",
    "ShapeError",
    "TraceError",
    "TracefuseError",
    "UnsupportedError",
]


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return super().repr_instance(x, level)
        except Exception:
            return f"a {type(x).__name__}"

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 256 else f"an integer of {x.bit_length()} bits"


_SHORTENED = _Shortened()


def shown(value: Any) -> str:
    """A value as messages show it: short, an array by its type and shape, a class or function by its name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of {value.dtype} with shape {tuple(shape)}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return _SHORTENED.repr(value)


class TracefuseError(Exception):
    """What every error of tracefuse is. `hint` says what to do, `where` the user's own line (`file.py:12`)."""

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        self.message, self.hint, self.where = message, hint, where
        super().__init__(self._text())

    def _text(self) -> str:
        text = self.message if self.where is None else f"{self.message} ({self.where})"
        return text if self.hint is None else f"{text}\n  hint: {self.hint}"

    def locate(self, where: str | None) -> None:
        """Says where, if that is not said yet."""
        if self.where is None and where is not None:
            self.where = where
            self.args = (self._text(),)

    def within(self, name: str) -> None:
        """Says which call it is about, if the message does not begin with that."""
        if not self.message.startswith((f"{name}:", f"{name} ")):
            self.message = f"{name}: {self.message}"
            self.args = (self._text(),)


class ShapeError(TracefuseError, ValueError):
    """Shapes, axes or extents that do not fit an operation."""


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that an array does not have; NumPy's own AxisError, and so an IndexError too."""

    def __str__(self) -> str:
        return self._text()


class DtypeError(TracefuseError, TypeError):
    """An element type that an operation does not take."""


class FusionError(TracefuseError, ValueError):
    """A definition that is malformed: an unknown value, a value made twice, an output that nothing makes."""


class TraceError(TracefuseError, TypeError):
    """Something that cannot be recorded: a leaked tracer, `bool()` of a traced array, a generator function."""


class ScalarError(TracefuseError, ValueError):
    """A host scalar with a value that its use does not allow."""


class IntegerRangeError(ScalarError, OverflowError):
    """A Python integer that an integer type does not hold."""


class ConcretizationError(TracefuseError, ValueError):
    """A reshape or resize that has no meaning for the given sizes."""


class UnsupportedError(TracefuseError, NotImplementedError):
    """An input or operation that tracefuse refuses, with what to write instead."""


class ReadOnlyError(UnsupportedError, ValueError):
    """An in-place change of an array that cannot be written, as NumPy refuses it, or of one that a trace only reads."""


class DeviceError(TracefuseError, RuntimeError):
    """No such device, arrays on several devices, or a device that failed."""


class OutOfMemoryError(DeviceError, MemoryError):
    """No room for what a call allocates. What the call had allocated is released by then."""


class CompileError(TracefuseError, RuntimeError):
    """A kernel that its compiler refused; carries the log."""


class OptionError(TracefuseError, ValueError):
    """An unknown option or a value that it does not take."""


class OutOfRangeError(TracefuseError, IndexError):
    """An index outside of the axis that it is for, for an axis that is not there, or of a kind that is no index."""


class InternalError(TracefuseError, RuntimeError):
    """Two layers of tracefuse disagree: a bug in tracefuse, never the user's mistake."""
