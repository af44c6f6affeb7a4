"""Integers that a call computes, where they serve as sizes, bounds of slices and shifts: `np.zeros(k)`, `x[:k]`.

Such an integer is the answer to a question. What follows is symbolic in it and compiled for negative numbers, for 0,
for 1 and for more, not for each number.
"""

from __future__ import annotations

import operator
from typing import Any

from tracefuse import source
from tracefuse.dtypes import uint64
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.values.traced import Traced


def as_size(value: Any) -> Any:
    """Returns a traced integer without axes as a size; any other value as it is.

    A size is an int where it is known: 0, 1, and integers that depend on captured state alone. Where no call answers
    with an integer that is symbolic, the value is returned as it is, and `operator.index` asks for it or raises.
    """
    if not isinstance(value, Traced) or value.value.shape:
        return value
    recorder = value.recorder
    recorder.check_alive()
    if value.on_host:
        return value if value.value.extent is None else wrap(recorder.simplify(value.value.extent), recorder)
    dtype = value.value.dtype
    if not dtype.is_integer or dtype is uint64 or recorder.body is not None:
        return value
    known = recorder.contents.ask(value.number, "the value", operator.index)
    if known is not None:
        return known
    answers = recorder.answers
    if answers is None or answers.refusal is not None:
        return value
    number = _asked(recorder, value)
    answer = recorder.hints[number]
    return answer if answer in (0, 1) else _size_of(recorder, number)


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
