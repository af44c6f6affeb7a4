"""Symbolic sizes: the values of `x.shape[0]` and of a Python int argument while a function is traced.

Integer arithmetic, `//`, `%`, min and max stay symbolic. A comparison guards its outcome, never the values. An
operation that needs the number itself (`int()`, `range`, `hash`, `math.*`) guards the value. Combined with a float or
a tensor, a size becomes a weak scalar of the graph.

Must not know: ops, fusions.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError
from tracefuse.frontend.tracer.values import later_texts
from tracefuse.frontend.tracer.values.immutable_numbers import ImmutableNumber
from tracefuse.ir.extents import Expression, Extent, evaluate, floordiv, is_nonnegative, maximum, minimum, mod


class Decisions(Protocol):
    """The part of the recorder's interface that a size uses."""

    hints: dict[int, int]
    alive: bool

    def decide(self, left: Extent, relation: str, right: Extent, reason: str) -> bool:
        """Returns the outcome of a comparison, and guards it unless it is proved."""

    def pin(self, extent: Extent, reason: str) -> int:
        """Returns the value of an extent and guards it."""

    def scalar(self, extent: Extent) -> Any:
        """Returns the extent as a weak scalar of the graph."""

    def counts_in(self, *extents: Extent) -> bool:
        """Whether extents depend on the counter of a loop that is being recorded."""

    def check_alive(self) -> None:
        """Raises TraceError once the trace is over."""


class SymbolicSize(ImmutableNumber):
    """An integer that is known only at the call: an extent of an argument, or integer arithmetic on extents."""

    __slots__ = ("_hashed", "_recorder", "extent")
    __array_priority__ = 1000

    def __init__(self, extent: Expression, recorder: Decisions) -> None:
        self.extent = extent
        self._recorder = recorder
        self._hashed: int | None = None  # its value, once it may be the key of an entry that outlives the trace

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def _with(self, other: object, operation: Any) -> Any:
        extent = extent_of(other)
        if extent is None:
            return NotImplemented
        self._recorder.check_alive()
        return wrap(operation(self.extent, extent), self._recorder)

    def _scalar_with(self, other: object, name: str) -> Any:
        """Applies the operation to this size as a weak scalar; NotImplemented if `other` is not an operand."""
        if not isinstance(other, (float, complex, SymbolicSize, int)):
            return NotImplemented
        right = other._recorder.scalar(other.extent) if isinstance(other, SymbolicSize) else other
        return getattr(self._recorder.scalar(self.extent), name)(right)

    def __add__(self, other: object) -> Any:
        result = self._with(other, lambda a, b: a + b)
        return self._scalar_with(other, "__add__") if result is NotImplemented else result

    def __radd__(self, other: object) -> Any:
        result = self._with(other, lambda a, b: b + a)
        return self._scalar_with(other, "__radd__") if result is NotImplemented else result

    def __sub__(self, other: object) -> Any:
        result = self._with(other, lambda a, b: a - b)
        return self._scalar_with(other, "__sub__") if result is NotImplemented else result

    def __rsub__(self, other: object) -> Any:
        result = self._with(other, lambda a, b: b - a)
        return self._scalar_with(other, "__rsub__") if result is NotImplemented else result

    def __mul__(self, other: object) -> Any:
        if isinstance(other, (tuple, list)):
            return other * int(self)
        result = self._with(other, lambda a, b: a * b)
        return self._scalar_with(other, "__mul__") if result is NotImplemented else result

    def __rmul__(self, other: object) -> Any:
        if isinstance(other, (tuple, list)):
            return other * int(self)
        result = self._with(other, lambda a, b: b * a)
        return self._scalar_with(other, "__rmul__") if result is NotImplemented else result

    def _divided(self, dividend: Extent, divisor: Extent, operation: Any) -> Any:
        """Returns a quotient or remainder.

        The normal form requires a positive divisor. For any other divisor the values are guarded.
        """
        recorder = self._recorder
        if not is_nonnegative(divisor - 1) and not recorder.decide(1, "<=", divisor, "a positive divisor"):
            dividend = recorder.pin(dividend, "a division by a size below 1")
            divisor = recorder.pin(divisor, "a division by a size below 1")
        return wrap(operation(dividend, divisor), recorder)

    def __floordiv__(self, other: object) -> Any:
        extent = extent_of(other)
        if extent is None:
            return self._scalar_with(other, "__floordiv__")
        return self._divided(self.extent, extent, floordiv)

    def __rfloordiv__(self, other: object) -> Any:
        extent = extent_of(other)
        if extent is None:
            return self._scalar_with(other, "__rfloordiv__")
        return self._divided(extent, self.extent, floordiv)

    def __mod__(self, other: object) -> Any:
        extent = extent_of(other)
        return self._scalar_with(other, "__mod__") if extent is None else self._divided(self.extent, extent, mod)

    def __rmod__(self, other: object) -> Any:
        extent = extent_of(other)
        return self._scalar_with(other, "__rmod__") if extent is None else self._divided(extent, self.extent, mod)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> Any:
        return self.__rfloordiv__(other), self.__rmod__(other)

    def __truediv__(self, other: object) -> Any:
        return self._scalar_with(other, "__truediv__")

    def __rtruediv__(self, other: object) -> Any:
        return self._scalar_with(other, "__rtruediv__")

    def __pow__(self, other: object) -> Any:
        if isinstance(other, int) and not isinstance(other, bool) and 0 <= other <= 8:
            result: Extent = 1
            for _ in range(other):
                result = result * self.extent
            return wrap(result, self._recorder)
        if isinstance(other, (int, SymbolicSize)):
            return int(self) ** int(other)
        return self._scalar_with(other, "__pow__")

    def __rpow__(self, other: object) -> Any:
        if isinstance(other, int):
            return other ** int(self)
        return self._scalar_with(other, "__rpow__")

    def __neg__(self) -> Any:
        return wrap(-self.extent, self._recorder)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        if self._recorder.counts_in(self.extent, 0):  # it may have either sign
            return wrap(maximum(self.extent, -self.extent), self._recorder)
        return self if self >= 0 else -self

    def _bits(self, other: object, name: str, operation: Any) -> Any:
        """Operates on bits of two numbers by their values; in the trace where the result fits, and beside an array."""
        if isinstance(other, int) and type(other) not in (int, bool):
            return operation(int(self), other)  # a flag gives a flag
        if name in _WITHIN and isinstance(other, int) and -(2**63) <= other < 2**63:
            return self._scalar_with(other, name)
        if isinstance(other, (int, SymbolicSize)) and self._recorder.counts_in(self.extent, extent_of(other) or 0):
            return self._scalar_with(other, name)
        if isinstance(other, (int, np.integer, SymbolicSize)):
            return operation(int(self), int(other) if isinstance(other, SymbolicSize) else other)
        return self._scalar_with(other, name)

    def __lshift__(self, other: object) -> Any:
        is_counted = self._recorder.counts_in(self.extent)
        if type(other) is int and 0 <= other < 32 and not is_counted and 0 <= self < 1 << (62 - other):
            return self * (1 << other)
        return self._bits(other, "__lshift__", operator.lshift)

    def __rlshift__(self, other: object) -> Any:
        return self._bits(other, "__rlshift__", lambda a, b: b << a)

    def __rshift__(self, other: object) -> Any:
        return self._bits(other, "__rshift__", operator.rshift)

    def __rrshift__(self, other: object) -> Any:
        return self._bits(other, "__rrshift__", lambda a, b: b >> a)

    def __and__(self, other: object) -> Any:
        return self._bits(other, "__and__", operator.and_)

    def __or__(self, other: object) -> Any:
        return self._bits(other, "__or__", operator.or_)

    def __xor__(self, other: object) -> Any:
        return self._bits(other, "__xor__", operator.xor)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def bit_length(self) -> int:
        """The number of bits, a constant of the trace for all sizes that have as many."""
        bits = self.hint.bit_length()
        if bits and not self._recorder.counts_in(self.extent) and (1 << (bits - 1)) <= self < (1 << bits):
            return bits
        return int(self).bit_length()

    def __invert__(self) -> Any:
        return wrap(-self.extent - 1, self._recorder)

    # -- comparisons guard their outcome ---------------------------------------------------------------------------

    def _compare(self, other: object, relation: str, *, swap: bool = False, shift: int = 0) -> Any:
        extent = extent_of(other)
        if extent is None:
            if isinstance(other, float):
                name = {("<=", False, 0): "__le__", ("<=", True, 0): "__ge__", ("<=", False, 1): "__lt__"}
                key = (relation, swap, shift)
                if relation == "==":
                    return self._recorder.scalar(self.extent).__eq__(other)
                return getattr(self._recorder.scalar(self.extent), name.get(key, "__gt__"))(other)
            return NotImplemented
        left, right = (extent, self.extent) if swap else (self.extent, extent)
        return self._recorder.decide(left + shift, relation, right, "a comparison")

    def __eq__(self, other: object) -> Any:
        if self._hashed is not None and not self._recorder.alive:
            return self._hashed == other
        return self._compare(other, "==")

    def __ne__(self, other: object) -> Any:
        result = self._compare(other, "==")
        return result if result is NotImplemented else not result

    def __le__(self, other: object) -> Any:
        return self._compare(other, "<=")

    def __lt__(self, other: object) -> Any:
        return self._compare(other, "<=", shift=1)

    def __ge__(self, other: object) -> Any:
        return self._compare(other, "<=", swap=True)

    def __gt__(self, other: object) -> Any:
        return self._compare(other, "<=", swap=True, shift=1)

    def __bool__(self) -> bool:
        return not self._recorder.decide(self.extent, "==", 0, "bool() of a size")

    # -- conversions to a number guard the value -------------------------------------------------------------------

    def __index__(self) -> int:
        return self._recorder.pin(
            self.extent,
            "the value of a size was asked for; tracefuse.xp and np.zeros_like keep sizes symbolic, and "
            "x = tracefuse.fori_loop(0, n, lambda i, x: f(x), x) repeats n times for every n",
        )

    __int__ = __index__
    __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __complex__(self) -> complex:
        return complex(self.__index__())

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None or digits >= 0 else round(int(self), digits)

    def __floor__(self) -> Any:
        return self

    __ceil__ = __floor__

    def __hash__(self) -> int:
        self._hashed = self._recorder.pin(self.extent, "hash of a size")
        return hash(self._hashed)

    def __iter__(self) -> Any:
        raise TraceError(
            f"'{self.extent}' is a size, which cannot be iterated", hint="write range(n) to count up to it"
        )

    @property
    def hint(self) -> int:
        """The value in the current call; reading it records nothing."""
        return evaluate(self.extent, self._recorder.hints)

    @property
    def real(self) -> Any:
        return self

    @property
    def imag(self) -> int:
        return 0

    def conjugate(self) -> Any:
        return self

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        is_own = source.is_internal(sys._getframe(1).f_code.co_filename)
        return type(self) if is_own else int  # for isinstance; C code asks for the type itself

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.__index__(), name)

    def __format__(self, specification: str) -> str:
        """The number in code of the user, as Python prints it, which guards it; in messages the expression."""
        if not source.is_called_by_user():
            return format(str(self.extent), specification)
        later = later_texts.mark_size(self, self._recorder, specification)
        return format(self.__index__(), specification) if later is None else later

    def __str__(self) -> str:
        if not source.is_called_by_user():
            return str(self.extent)
        later = later_texts.mark_size(self, self._recorder, None)
        return str(self.__index__()) if later is None else later

    def __repr__(self) -> str:
        return str(self.__index__()) if source.is_called_by_user() else str(self.extent)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(int(self), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        return self._recorder.scalar(self.extent).__array_ufunc__(ufunc, method, *_as_scalars(inputs), **keywords)

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *inputs: Any, **keywords: Any) -> Any:
        scalar = self._recorder.scalar(self.extent)
        return scalar.__cupy_override_elementwise_kernel__(kernel, *_as_scalars(inputs), **keywords)


def _as_scalars(inputs: Sequence[Any]) -> list[Any]:
    return [i._recorder.scalar(i.extent) if isinstance(i, SymbolicSize) else i for i in inputs]


_WITHIN = frozenset({"__and__", "__or__", "__xor__", "__rshift__"})
"""Operations on bits whose results fit 64 bits."""


def wrap(extent: Extent, recorder: Decisions) -> Any:
    """Returns an extent as a size, or as an int if it is constant."""
    return extent if isinstance(extent, int) else SymbolicSize(extent, recorder)


def extent_of(value: object) -> Extent | None:
    """Returns the extent of a size or an int; None for any other value."""
    if isinstance(value, SymbolicSize):
        return value.extent
    return int(value) if isinstance(value, int) else None


def rank_of(value: Any) -> int:
    """Returns the number of axes of a value; a size has none."""
    return 0 if isinstance(value, SymbolicSize) else int(np.ndim(value))


def smallest(a: Any, b: Any, recorder: Decisions) -> Any:
    """Returns min(a, b) of sizes, symbolic."""
    return wrap(minimum(_known(a), _known(b)), recorder)


def largest(a: Any, b: Any, recorder: Decisions) -> Any:
    """Returns max(a, b) of sizes, symbolic."""
    return wrap(maximum(_known(a), _known(b)), recorder)


def _known(value: Any) -> Extent:
    extent = extent_of(value)
    if extent is None:
        raise TraceError(f"{type(value).__name__} is not a size", hint="give an int or an entry of a shape")
    return extent


def plain_key(key: Any) -> Any:
    """Returns the key of a dict with the values of sizes and numbers, which this asks for, in place of them."""
    if isinstance(key, SymbolicSize):
        return int(key)
    if getattr(type(key), "python_type", None) is range:
        return key.loop.integers()
    if type(key) is tuple:
        parts = tuple(map(plain_key, key))
        return key if all(part is own for part, own in zip(parts, key, strict=True)) else parts
    return key.number_now() if hasattr(type(key), "number_now") else key
