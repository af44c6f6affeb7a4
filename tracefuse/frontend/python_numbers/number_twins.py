"""Functions of Python that make or compare numbers, while a function is traced: twins that record.

`float(x.sum())` gives a traced number. With other arguments, and where a twin cannot record what Python computes, the
function itself runs, which asks for the numbers.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.frontend.python_numbers import number_arithmetic
from tracefuse.frontend.python_numbers.number_arithmetic import kind_of, number
from tracefuse.frontend.python_numbers.number_questions import real
from tracefuse.frontend.python_numbers.types_of_values import is_instance, is_scalar, stands_for_object, type_in_numpy
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.array_ops.number_where import choice, is_mixed
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, astype
from tracefuse.frontend.tracer.effects.printed_values import print_call
from tracefuse.frontend.tracer.libraries.number_calls import call_with_numbers, is_computed
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.state.container_records import RECORDS
from tracefuse.frontend.tracer.state.settled_methods import recorded_method
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import maximum, minimum

Twin = Callable[..., Any]

CALLED: dict[int, Twin] = {}
"""Twins of types in calls, by the id of the type."""

FUNCTIONS: dict[int, Twin] = {}
"""Twins of functions, by the id of the function."""

_METHODS = MappingProxyType({bool: "__bool__", int: "__int__", float: "__float__", complex: "__complex__"})
"""The methods that make numbers of objects, by the type that is called."""

_ABSENT = object()


def replaces(original: Any, table: dict[int, Twin]) -> Callable[[Twin], Twin]:
    """Registers a twin: a function that returns NotImplemented where the original has to run."""

    has_method = original in _METHODS

    def register(record: Twin) -> Twin:
        @source.forwards
        def call(*arguments: Any, **keywords: Any) -> Any:
            if has_method and len(arguments) == 1 and not keywords:
                arguments = (_by_method(original, *arguments),)
            result = record(*arguments, **keywords)
            return original(*arguments, **keywords) if result is NotImplemented else result

        functools.update_wrapper(call, original, assigned=("__name__", "__qualname__", "__doc__", "__module__"))
        table[id(original)] = call
        return record

    return register


def _by_method(kind: type, value: Any) -> Any:
    """Returns the traced number that an object's method for a type of numbers gives; any other value as it is."""
    method = recorded_method(value, _METHODS[kind])
    if method is None:
        return value
    number = method(value)
    if isinstance(number, (Traced, SymbolicSize)) and type_in_numpy(number) is kind:
        return number
    return type(type(value).__name__, (), {_METHODS[kind]: lambda self: number})()  # Python judges what it returned


def _is_real(value: Any) -> bool:
    return is_computed(value) and not value.value.dtype.is_complex


@replaces(type, CALLED)
def _type(value: Any = _ABSENT, *more: Any, **keywords: Any) -> Any:
    if more or keywords:
        return NotImplemented
    if stands_for_object(value):
        return type(value).python_type
    return type_in_numpy(value) if isinstance(value, (Traced, SymbolicSize)) else NotImplemented


@replaces(isinstance, FUNCTIONS)
def _isinstance(value: Any = _ABSENT, classes: Any = _ABSENT, *more: Any) -> Any:
    """Asks the type that a value has in NumPy, CuPy and Python: classes such as `Iterable` look for methods."""
    return NotImplemented if more else is_instance(value, classes)


@replaces(hasattr, FUNCTIONS)
def _hasattr(value: Any = _ABSENT, name: Any = _ABSENT, *more: Any) -> Any:
    return hasattr(type_in_numpy(value), name) if is_scalar(value) and not more else NotImplemented


def _real_of_scalar(value: Any) -> Any:
    """The real part of a complex scalar of NumPy, which warns of it; any other value as it is."""
    if not is_computed(value) or not value.value.dtype.is_complex or not value.is_immutable or value.weak is not None:
        return value
    kind = {"complex64": np.float32, "complex128": np.float64}[value.value.dtype.name]
    return astype(value, kind)


@replaces(float, CALLED)
def _float(value: Any = _ABSENT, *more: Any, **keywords: Any) -> Any:
    if isinstance(value, SymbolicSize) and not more and not keywords:
        return number_arithmetic.size_to_float(value)
    value = _real_of_scalar(value)
    if more or keywords or not _is_real(value):
        return NotImplemented
    return number_arithmetic.to_float(value)


@replaces(int, CALLED)
def _int(value: Any = _ABSENT, *more: Any, **keywords: Any) -> Any:
    if isinstance(value, SymbolicSize) and not more and not keywords:
        return value
    value = _real_of_scalar(value)
    if more or keywords or not _is_real(value):
        return NotImplemented
    if value.weak == "int":
        return value
    result = number_arithmetic.to_integer(value)
    return NotImplemented if result is None else result


@replaces(bool, CALLED)
def _bool(value: Any = _ABSENT, *more: Any, **keywords: Any) -> Any:
    if more or keywords or not is_computed(value):
        return NotImplemented
    return value if value.weak == "bool" else number(apply("ne", value, 0), "bool")


@replaces(complex, CALLED)
def _complex(value: Any = _ABSENT, *more: Any, **keywords: Any) -> Any:
    if len(more) == 1 and not keywords and any(map(_is_real, (value, *more))):
        return number_arithmetic.complex_of(value, *more)
    if more or keywords or not is_computed(value):
        return NotImplemented
    return number_arithmetic.of_kind(value, "complex", dtypes.complex128)


def _with_numbers(kind: type, *arguments: Any, **keywords: Any) -> Any:
    """Calls a type, written in C, that takes numbers of Python alone: the call goes on after their values."""
    leaves = [*arguments, *keywords.values()]
    if not any(isinstance(leaf, (Traced, SymbolicSize)) for leaf in leaves):
        return NotImplemented
    return kind(*map(_value_now, arguments), **{name: _value_now(one) for name, one in keywords.items()})


def _value_now(value: Any) -> Any:
    is_scalar = isinstance(value, Traced) and (value.weak is not None or value.is_immutable)
    return value.number_now() if is_scalar else real(value)


MODULES = (decimal, datetime)
for _kind in (decimal.Decimal, datetime.timedelta):
    replaces(_kind, CALLED)(functools.partial(_with_numbers, _kind))


def item_of(value: Traced) -> Any:
    """Returns the number of Python that `item()` of an array without axes gives, traced; or NotImplemented."""
    kind = value.value.dtype.kind
    if kind == "bool":
        return _bool(value)
    if kind == "complex":
        return _complex(value)
    return _float(value) if kind == "float" else _int(value)


# -- max, min, sum ----------------------------------------------------------------------------------------------------


def _first_extreme(relation: str, values: list[Any]) -> Any:
    """The first of the largest or smallest values; NotImplemented if their types differ.

    In a recorded loop, numbers of Python beside those of NumPy are NumPy's.
    """
    if not all(map(_is_one, values)) or not any(map(is_computed, values)):
        return NotImplemented
    if len({*map(_type_of, values)}) > 1 and not _join_in_loop(values):
        return NotImplemented
    is_long = any(type(value) is int and not -(2**63) <= value < 2**63 for value in values)
    if is_long or kind_of(values[0]) == "complex":
        return NotImplemented
    result = values[0]
    for value in values[1:]:
        is_next = apply(relation, value, result)
        chosen = apply("where", is_next, value, result)
        kind = kind_of(result)
        if len({*map(_type_of, (result, value))}) > 1 or is_mixed(value) or is_mixed(result):
            result = choice(is_next, value, result, chosen)
        else:
            result = chosen if kind is None else number(chosen, kind)
    return result


def _join_in_loop(values: list[Any]) -> bool:
    """Whether a recorded loop gives values of several types one type: that of NumPy with 64 bits among them."""
    recorder = next(value.recorder for value in values if isinstance(value, Traced))
    strong = {value.value.dtype for value in values if kind_of(value) is None}
    weak = {kind for kind in map(kind_of, values) if kind is not None}
    if not recorder.loops.open or len(strong) != 1 or not strong <= {dtypes.float64, dtypes.int64} or "bool" in weak:
        return False
    return dtypes.promote_numpy([*strong], [*weak]) in strong


def _is_one(value: Any) -> bool:
    """Whether a value is a number, of which a copy is no other value."""
    return kind_of(value) is not None or (isinstance(value, Traced) and value.is_immutable)


def _type_of(value: Any) -> Any:
    kind = kind_of(value)
    return value.value.dtype if kind is None else kind


def _extreme_of_sizes(relation: str, values: Sequence[Any]) -> Any:
    """The largest or smallest size, if that differs between the iterations of a recorded loop."""
    sizes = [extent_of(value) for value in values]
    extents = [extent for extent in sizes if extent is not None]
    recorder = current.get()
    if recorder is None or len(extents) < len(values) or any(isinstance(value, bool) for value in values):
        return NotImplemented
    if not recorder.counters.occur_in(*extents):
        return NotImplemented
    return wrap(functools.reduce(maximum if relation == "gt" else minimum, extents), recorder)


def _extreme_twin(relation: str) -> Twin:
    def extreme(*values: Any, **keywords: Any) -> Any:
        if keywords or not values:
            return NotImplemented
        if len(values) == 1:
            if not isinstance(values[0], (list, tuple)) or not values[0]:
                return NotImplemented
            values = tuple(values[0])
        if not any(isinstance(value, Traced) for value in values):
            return _extreme_of_sizes(relation, values)
        return _first_extreme(relation, list(values))

    return extreme


replaces(max, FUNCTIONS)(_extreme_twin("gt"))
replaces(min, FUNCTIONS)(_extreme_twin("lt"))


_MOST_SORTED = 64
"""Most numbers that one call sorts between two stages: each is an input of what follows."""


@replaces(sorted, FUNCTIONS)
def _sorted(values: Any = _ABSENT, *more: Any, reverse: Any = False, **keywords: Any) -> Any:
    """Computed numbers in order: Python compares them between two stages."""
    if more or keywords or not isinstance(values, (list, tuple)) or not 1 < len(values) <= _MOST_SORTED:
        return NotImplemented
    return call_with_numbers(sorted, "sorted", (values,), {"reverse": reverse})


replaces(print, FUNCTIONS)(print_call)


@replaces(np.isscalar, FUNCTIONS)
def _isscalar(element: Any) -> Any:
    if not isinstance(element, Traced):
        return True if isinstance(element, SymbolicSize) else NotImplemented
    return element.weak is not None or element.is_immutable


@replaces(np.mintypecode, FUNCTIONS)
def _mintypecode(typechars: Any = _ABSENT, *more: Any, **keywords: Any) -> Any:
    """The character of the smallest type; an array among the characters stands for its own."""
    if not isinstance(typechars, (list, tuple)) or not any(isinstance(one, Traced) for one in typechars):
        return NotImplemented
    characters = [one.value.dtype.numpy.char if isinstance(one, Traced) else one for one in typechars]
    return np.mintypecode(characters, *more, **keywords)


@replaces(np.result_type, FUNCTIONS)
def _result_type(*values: Any) -> Any:
    """The type of a promotion, in which a size is an integer of Python."""
    if not any(isinstance(value, SymbolicSize) for value in values):
        return NotImplemented
    return np.result_type(*(0 if isinstance(value, SymbolicSize) else value for value in values))


@replaces(len, FUNCTIONS)
def _len(value: Any = _ABSENT, *more: Any) -> Any:
    """The length of a traced array is a size; that of elements under a mask is a number that the call computes.

    That of a list that the function appends to is a number of the state.
    """
    if isinstance(value, MaskedElements) and not value.first:
        return value.length()
    record = None if more else RECORDS.get(id(value))
    if record is not None:
        return record.length()
    if isinstance(value, Traced) and not more:
        return wrap(value.extents[0], value.recorder) if value.value.shape else NotImplemented
    method = getattr(type(value), "__len__", None)
    if isinstance(method, FunctionType) and not more:
        size = method(value)  # what it returns may be a size
        return size if isinstance(size, SymbolicSize) or (type(size) is int and size >= 0) else NotImplemented
    return NotImplemented


@replaces(sum, FUNCTIONS)
def _sum(values: Any, start: Any = 0, **keywords: Any) -> Any:
    """From Python 3.12 on, a sum of floats is compensated for the rounding of each addition."""
    if keywords or sys.version_info < (3, 12) or isinstance(values, Traced):
        return NotImplemented
    return _compensated(iter(values), start)


def _compensated(values: Iterator[Any], total: Any) -> Any:
    """The sum that Python computes: exact for integers, compensated once a float has come."""
    correction: Any = 0.0
    is_float = kind_of(total) == "float"
    for value in values:
        kind = kind_of(value)
        if is_float and kind == "float":
            following = total + value
            swaps = abs(total) >= abs(value)
            if isinstance(swaps, Traced):
                large, small = (
                    number(apply("where", swaps, *pair), "float") for pair in ((total, value), (value, total))
                )
            else:
                large, small = (total, value) if swaps else (value, total)
            correction = correction + ((large - following) + small)
            total = following
            continue
        if is_float and kind == "int" and not isinstance(value, SymbolicSize):
            total = total + value
            continue
        if is_float:
            return functools.reduce(lambda a, b: a + b, values, _corrected(total, correction) + value)
        total = total + value
        is_float = kind_of(total) == "float"
    return _corrected(total, correction) if is_float else total


def _corrected(total: Any, correction: Any) -> Any:
    """A total with its correction, unless that is no finite number other than 0."""
    if not isinstance(correction, Traced):
        return (
            total + correction if correction and abs(correction) != float("inf") and correction == correction else total
        )
    is_used = apply("isfinite", correction)
    return number(apply("where", is_used, total + correction, total), "float")
