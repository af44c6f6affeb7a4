"""Integers that a call computes, where they serve as sizes, bounds of slices and shifts: `np.zeros(k)`, `x[:k]`.

An integer that depends on elements is the answer to a question. What follows is symbolic in it and compiled for
negative numbers, for 0, for 1 and for more, not for each number. An integer that the host computes from numbers and
sizes of the call, `int(rate * x.size)`, is an input of the trace, which holds for all such integers above 1.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import uint64
from tracefuse.errors import DtypeError
from tracefuse.frontend.tracer.record.assumptions import ScalarGuard
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.host_numbers import ConstantNumber, HeldNumber
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.values.traced import Traced


def cut_off(value: Any) -> Any:
    """Returns the integer that `int` makes of a float, also of one that the call passes; any other value as it is."""
    is_float = isinstance(value, (float, np.floating))
    if isinstance(value, Traced):
        is_float = value.on_host and value.value.dtype.kind == "float"
    return int(value) if is_float else value


def _is_truth(value: Any) -> bool:
    return type(value) is bool or (isinstance(value, Traced) and value.weak == "bool")


def as_count(value: Any) -> Any:
    """Returns a truth value of Python, which is a count in NumPy, as an integer; any other value as it is."""
    return int(value) if _is_truth(value) else value


def as_extent(value: Any) -> Any:
    """Returns an entry of a shape as `as_size` does. Raises DtypeError for a truth value, which NumPy does not take."""
    if _is_truth(value) or (isinstance(value, Traced) and value.value.dtype.kind == "bool"):
        raise DtypeError("an integer is required as a size, not a truth value", hint="write int(size)")
    return as_size(value)


def as_size(value: Any, pins: bool = True) -> Any:
    """Returns a traced integer without axes as a size; any other value as it is.

    pins: whether an integer that depends on sizes alone is the one of this call, which pins the sizes.

    A size is an int where it is known: 0, 1, and integers that depend on captured state alone. Where no call answers
    with an integer that is symbolic, the value is returned as it is, and `operator.index` asks for it or raises.
    """
    if not isinstance(value, Traced) or value.value.shape:
        return value
    recorder = value.recorder
    recorder.check_alive()
    if value.on_host:
        extent = value.value.extent
        return _host_size(recorder, value) if extent is None else wrap(recorder.simplify(extent), recorder)
    dtype = value.value.dtype
    if not dtype.is_integer or dtype is uint64:
        return value
    if recorder.body is not None:
        asked = recorder.equal_calls.find(as_size, {}, [value.number], recorder.builder.is_same_value)
        return value if asked is None else _answered(recorder, asked[0])
    asks = pins or not recorder.contents.follows_sizes(value.number)
    known = recorder.contents.ask(value.number, "the value", operator.index) if asks else None
    if known is not None:
        return known
    answers = recorder.answers
    if answers is None or answers.refusal is not None:
        return value
    return _answered(recorder, _asked(recorder, value))


def _answered(recorder: Recorder, number: int) -> Any:
    """Returns the size that is the answer to a question, whose input has a number."""
    answer = recorder.hints[number]
    return answer if answer in (0, 1) else _size_of(recorder, number)


def _host_size(recorder: Recorder, value: Traced) -> Any:
    """Returns an integer that the host computes as a size if it is above 1; else the value as it is, which is guarded.

    In a body and with `graph=True` the value is guarded, too.
    """
    read, dtype, answers = value.read, value.value.dtype, recorder.answers
    if read is None or isinstance(read, ConstantNumber) or not dtype.is_integer or dtype is uint64:
        return value
    if recorder.body is not None or answers is None or answers.refusal is not None:
        return value
    integer = int(read(recorder.hints))
    if integer < 2:
        return value
    operands = [value.number]
    known = recorder.equal_calls.find(_host_size, {}, operands, recorder.builder.is_same_value)
    if known is not None:
        return _size_of(recorder, known[0])
    where = source.user_line()
    number = recorder.size_input(integer, where)
    recorder.host_sizes[number] = read
    recorder.scalar_guards.append(ScalarGuard(HeldNumber(read, 1, float("inf")), True, "a size above 1", where))
    recorder.equal_calls.add(_host_size, {}, operands, [number])
    return _size_of(recorder, number)


def _asked(recorder: Recorder, value: Traced) -> int:
    """Returns the number of the input that holds an integer; equal integers are asked for once."""
    operands = [value.number]
    known = recorder.equal_calls.find(as_size, {}, operands, recorder.builder.is_same_value)
    if known is not None:
        return known[0]
    where = source.user_line()
    assert recorder.answers is not None
    answer = recorder.answers.ask_integer(recorder, value, where)
    number = recorder.size_input(answer, where)
    recorder.equal_calls.add(as_size, {}, operands, [number])
    return number


def _size_of(recorder: Recorder, number: int) -> Any:
    extent = recorder.builder.values[number].extent
    return SymbolicSize(extent, recorder)  # type: ignore[arg-type]
