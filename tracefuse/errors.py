"""The exceptions of tracefuse.

Every error that tracefuse raises is a `TracefuseError` and also the built-in exception that a user would expect. Its
message states what is wrong, the values, the user's line, and what to do:

    ShapeError: add: extents differ on axis 1: 4 (x, model.py:8) and 5 (y, model.py:9)
      hint: broadcasting needs one of them to be 1
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

__all__ = [
    "AxisError",
    "CommunicationError",
    "CompileError",
    "ConcretizationError",
    "DeviceError",
    "DtypeError",
    "FusionError",
    "IndexTypeError",
    "IntegerRangeError",
    "InternalError",
    "NoAttributeError",
    "NoElementsError",
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
    """A short text of a value for messages: an array by type and shape, a class or function by name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of {value.dtype} with shape {tuple(shape)}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return _SHORTENED.repr(value)


class TracefuseError(RuntimeError):
    """The base of every tracefuse error. hint: what to do. where: the user's line, such as `file.py:12`.

    It is a RuntimeError, as nvFuser's errors are; subclasses are also the built-in exception of their kind. given_to:
    the library whose function was given a traced array, if that is the error. is_refusal: whether the plain program
    would not raise. runs_function: whether a call may run the function itself instead, which is so for each
    UnsupportedError unless its place says otherwise: one of tracefuse's own functions that is called wrongly.
    is_of_first_calls: whether later calls may do without what is refused, as those of a function that keeps it may.
    """

    is_refusal = False
    leaves_calls: ClassVar[bool] = False
    """The `runs_function` of errors that do not give it."""

    notice: ClassVar[Callable[[TracefuseError], None] | None] = None
    """Called with each refusal that is created, by what records a trace."""

    given_to: str | None = None
    is_of_first_calls = False

    def __init__(
        self, message: str, *, hint: str | None = None, where: str | None = None,
        runs_function: bool | None = None,
    ) -> None:  # fmt: skip
        self.message, self.hint, self.where = message, hint, where
        self.runs_function = self.leaves_calls if runs_function is None else runs_function
        super().__init__(self._text())
        if self.is_refusal and TracefuseError.notice is not None:
            TracefuseError.notice(self)

    def _text(self) -> str:
        text = self.message if self.where is None else f"{self.message} ({self.where})"
        return text if self.hint is None else f"{text}\n  hint: {self.hint}"

    def locate(self, where: str | None) -> None:
        """Adds the user's line, unless the error has one."""
        if self.where is None and where is not None:
            self.where = where
            self.args = (self._text(),)

    def within(self, name: str) -> None:
        """Prefixes the message with the name of a call, unless it begins with that name."""
        if not self.message.startswith((f"{name}:", f"{name} ")):
            self.message = f"{name}: {self.message}"
            self.args = (self._text(),)


class ShapeError(TracefuseError, ValueError):
    """Shapes, axes or extents that do not fit an operation."""


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that an array does not have. Also NumPy's AxisError, and so an IndexError."""

    def __str__(self) -> str:
        return self._text()


class MatrixError(ShapeError, np.linalg.LinAlgError):
    """An array that is no matrix, no square one, or no system of equations. Also NumPy's LinAlgError."""


class DtypeError(TracefuseError, TypeError):
    """An element type that an operation does not take."""


class IndexTypeError(DtypeError, IndexError):
    """An index that is no integer and no truth value. Also an IndexError, as NumPy's error is."""


class FusionError(TracefuseError, ValueError):
    """A malformed definition: an unknown value, a value defined twice, an output that no op computes."""


class TraceError(TracefuseError, TypeError):
    """Something that cannot be recorded: a leaked tracer, `bool()` of a traced array, a generator function."""

    is_refusal = True


class OperandError(TraceError, ValueError):
    """An operand that is no number and no array, for which functions of NumPy raise a TypeError or a ValueError."""


class ScalarError(TracefuseError, ValueError):
    """A host scalar whose value is not allowed where it is used."""


class NoElementsError(ScalarError, ZeroDivisionError):
    """An average of no elements, which NumPy divides by their number."""


class IntegerRangeError(ScalarError, OverflowError):
    """A Python integer outside the range of an integer type."""


class ConcretizationError(TracefuseError, ValueError):
    """A reshape or resize that is impossible for the sizes of a call."""


class UnsupportedError(TracefuseError, NotImplementedError):
    """An input or operation that tracefuse does not support; the hint names what to write instead."""

    is_refusal = True
    leaves_calls = True


class NoAttributeError(TracefuseError, AttributeError):
    """A traced array lacks an attribute, as NumPy's arrays do."""


class ReadOnlyError(UnsupportedError, ValueError):
    """An in-place update of a read-only array, as in NumPy, or of a captured array, which a trace only reads."""

    is_refusal = False
    leaves_calls = False


class DeviceError(TracefuseError, RuntimeError):
    """No such device, arrays on several devices, or a device that failed."""


class CommunicationError(DeviceError):
    """An exchange between ranks that cannot finish: the ranks differ, one ended, or the connection failed."""


class OutOfMemoryError(DeviceError, MemoryError):
    """Not enough memory for the allocations of a call. Memory that the call had allocated is released first."""


class CompileError(TracefuseError, RuntimeError):
    """A kernel that does not compile; the message contains the compiler's log."""


class OptionError(TracefuseError, ValueError):
    """An unknown option or a value that it does not take."""


class OutOfRangeError(TracefuseError, IndexError):
    """An index that is out of range, for an axis that does not exist, or of a type that cannot index."""


class InternalError(TracefuseError, RuntimeError):
    """Two layers of tracefuse disagree: a bug in tracefuse, never the user's mistake."""
