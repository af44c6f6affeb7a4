"""Traced numbers of Python: what `float(x.sum())` and arithmetic with it give in a traced function.

A traced number has the attributes, methods and operators of Python's number of its kind. Whatever needs the number
itself asks the call for it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import PYTHON_TYPES
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import make_strong
from tracefuse.frontend.numpy_api.protocols import cupy_hook, dispatch, ufuncs
from tracefuse.frontend.python_numbers import mixed_arithmetic, number_arithmetic
from tracefuse.frontend.python_numbers.number_questions import CHOOSE, assume, number_or_raise, real
from tracefuse.frontend.python_numbers.types_of_values import type_in_numpy
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.libraries.number_calls import call_with_numbers
from tracefuse.frontend.tracer.values import later_texts
from tracefuse.frontend.tracer.values.immutable_numbers import ImmutableNumber
from tracefuse.frontend.tracer.values.traced import Traced

_KEEP = "keep it an array; np.where chooses elements"


def _binary(name: str, *, swap: bool = False) -> Callable[[Any, Any], Any]:
    @source.forwards
    def method(self: Any, other: Any) -> Any:
        if mixed_arithmetic.applies(self, other):
            return mixed_arithmetic.operator_result(name, *((other, self) if swap else (self, other)))
        if number_arithmetic.kind_of(other) is None:
            return NotImplemented
        return number_arithmetic.binary(name, *((other, self) if swap else (self, other)))

    return method


def as_array(value: Any) -> Any:
    """Returns a traced number as an array without axes, for functions of NumPy; any other value as it is."""
    if isinstance(value, TracedNumber):
        return value.recorder.traced_type(value.recorder, value.number, value.weak, value.read, value.sized)
    if isinstance(value, dict):
        return {key: as_array(entry) for key, entry in value.items()}
    return type(value)(map(as_array, value)) if type(value) in (list, tuple) else value


@source.methods_hide_own_frames
class TracedNumber(ImmutableNumber, Traced):
    """A bool, an int, a float or a complex number that the call computes; `weak` is its kind."""

    __slots__ = ()
    is_python = True
    __array_priority__ = 1001

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        is_own = source.is_internal(sys._getframe(1).f_code.co_filename)
        return type(self) if is_own else type_in_numpy(self)  # for isinstance; C code asks for the type itself

    # -- operators ----------------------------------------------------------------------------------------------------

    __add__, __radd__ = _binary("add"), _binary("add", swap=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", swap=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", swap=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", swap=True)
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", swap=True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", swap=True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", swap=True)
    __and__, __rand__ = _binary("bitwise_and"), _binary("bitwise_and", swap=True)
    __or__, __ror__ = _binary("bitwise_or"), _binary("bitwise_or", swap=True)
    __xor__, __rxor__ = _binary("bitwise_xor"), _binary("bitwise_xor", swap=True)
    __lshift__, __rlshift__ = _binary("left_shift"), _binary("left_shift", swap=True)
    __rshift__, __rrshift__ = _binary("right_shift"), _binary("right_shift", swap=True)
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return mixed_arithmetic.unary("neg", self)

    def __pos__(self) -> Any:
        return self + 0 if self.weak == "bool" else self

    def __abs__(self) -> Any:
        return mixed_arithmetic.unary("abs", self)

    def __invert__(self) -> Any:
        return number_arithmetic.inverted(self)

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None:
            return self._rounded("rint", round)
        if self.weak == "int" and digits >= 0:
            return self
        is_float = self.weak == "float"
        rounded = call_with_numbers(round, "round", (self, digits), {}) if is_float else NotImplemented
        return round(real(self), digits) if rounded is NotImplemented else rounded

    def __floor__(self) -> Any:
        return self._rounded("floor", math.floor)

    def __ceil__(self) -> Any:
        return self._rounded("ceil", math.ceil)

    def __trunc__(self) -> Any:
        return self._rounded("trunc", math.trunc)

    def _rounded(self, op: str, function: Callable[[Any], Any]) -> Any:
        """Rounds to an integer by an op; by a function of Python where the integer may not fit 64 bits."""
        if self.weak == "complex":
            return function(real(self))
        result = number_arithmetic.to_integer(self, op)
        return function(real(self)) if result is None else result

    # -- methods of Python's numbers ----------------------------------------------------------------------------------

    @property
    def real(self) -> Any:
        return number_arithmetic.number(apply("real", self), "float") if self.weak == "complex" else +self

    @property
    def imag(self) -> Any:
        return number_arithmetic.number(apply("imag", self), "float") if self.weak == "complex" else self._zero

    @property
    def _zero(self) -> Any:
        return 0.0 if self.weak == "float" else 0

    def conjugate(self) -> Any:
        return number_arithmetic.number(apply("conj", self), "complex") if self.weak == "complex" else +self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(PYTHON_TYPES[self.weak], name):
            raise AttributeError(f"{self.weak!r} object has no attribute {name!r}")
        return getattr(real(self), name)

    # -- questions ----------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        truth = self if self.weak == "bool" or self.read is None else number_arithmetic.binary("ne", self, 0)
        return bool(number_or_raise(truth, "bool()", bool, CHOOSE))

    def __int__(self) -> int:
        return int(real(self)) if self.weak != "int" else int(number_or_raise(self, "int()", int, _KEEP))

    def __float__(self) -> float:
        return float(real(self))

    def __complex__(self) -> complex:
        return complex(real(self))

    def __index__(self) -> int:
        if self.weak not in ("int", "bool"):
            raise TypeError(f"{self.weak!r} object cannot be interpreted as an integer")
        return int(number_or_raise(self, "int()", int, "index with np.take_along_axis or np.take"))

    def is_assumed(self) -> bool:
        """Whether a condition holds, which later calls may check with their results."""
        return assume(self)

    def number_now(self) -> Any:
        """Returns the number of the current call, for keys of dicts."""
        return real(self)

    _number_of_call = number_now

    def __hash__(self) -> int:
        return hash(real(self))

    def __str__(self) -> str:
        if not self.recorder.alive:
            return repr(self)
        later = later_texts.mark(self, None) if source.is_called_by_user() else None
        return str(real(self)) if later is None else later

    def __format__(self, specification: str) -> str:
        later = later_texts.mark(self, specification) if source.is_called_by_user() else None
        return format(real(self), specification) if later is None else later

    def __repr__(self) -> str:
        """The number in code of the user, as Python prints it; in messages its description."""
        if self.recorder.alive and source.is_called_by_user():
            later = later_texts.mark(self, None)
            return repr(real(self)) if later is None else later
        return f"traced {self.weak} v{self.number}"

    # -- protocols of NumPy -------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(real(self), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return ufuncs.call_ufunc(ufunc, method, as_array(inputs), as_array(keywords))

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return make_strong(dispatch.call(function, as_array(arguments), as_array(keywords)))

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        return cupy_hook.call_cupy_kernel(kernel, as_array(arguments), as_array(keywords))
