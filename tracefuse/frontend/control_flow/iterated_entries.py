"""What `for` loops over arrays, `zip`, `pairwise` and the like iterate over: an entry for each position of a range.

So such a loop is recorded, or unrolled, like one over a range; see `recorded_ranges.py`.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from tracefuse import source
from tracefuse.frontend.control_flow.recorded_ranges import (
    LoopIterator,
    LoopRange,
    SymbolicRange,
    begin_comprehension,
    loop_of,
)
from tracefuse.frontend.tracer.array_ops.assignment import getitem
from tracefuse.frontend.tracer.array_ops.state_calls import depends_on_state
from tracefuse.frontend.tracer.python_code.loop_code import is_iterated_by_comprehension, makes_iterator
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.symbolic_size import extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent

MOST_TRACED_ELEMENTS = 64
"""Most captured floats that an iteration records one by one."""

ROWS = "iteration over an axis"
"""Why an unrolled loop over an array needs its extent."""


def entries_of(value: Any) -> LoopRange | None:
    """Returns the loop over the entries of a value, from position 0 on; None if Python has to iterate over it."""
    recorder = current.get()
    if recorder is None:
        return None
    if isinstance(value, EntriesOfCall):
        return _from_zero(value.loop) if value.iterator is None else None
    if isinstance(value, SymbolicRange):
        return _from_zero(value.loop)
    if isinstance(value, range):
        loop = loop_of((value.start, value.stop, value.step))
        return None if loop is None else _from_zero(loop)
    if not isinstance(value, Traced) or not value.value.shape:
        return None
    # Captured integers are mostly positions, which Python asks for.
    if len(value.extents) == 1 and depends_on_state(value) and value.value.dtype.kind not in ("float", "complex"):
        return None
    return LoopRange(recorder, 0, value.extents[0], entry=functools.partial(getitem, value), reason=ROWS)


def iterator_over(array: Traced) -> Iterator[Any]:
    """Returns an iterator over the entries of a traced array: a recorded loop, elements of captured state, or rows."""
    frame, recorder = source.user_frame(), array.recorder
    loop = None
    if frame is not None and is_iterated_by_comprehension(frame.f_code, frame.f_lasti):
        iterated = entries_of(array)
        if iterated is not None:
            begin_comprehension(iterated, frame)
    if frame is not None and makes_iterator(frame.f_code, frame.f_lasti):
        loop = entries_of(array)
    if loop is not None:
        return iter(loop)
    if len(array.extents) == 1 and not _gives_traced_elements(array):
        known = recorder.contents.ask(array.number, ROWS)
        if known is not None:
            return iter(known)
    return (getitem(array, k) for k in range(recorder.pin(array.extents[0], ROWS)))


def _gives_traced_elements(array: Traced) -> bool:
    """Whether iteration gives traced elements although their values are known.

    Captured floats are mostly coefficients: recorded, they may change without a new trace. Integers and truth values
    are mostly positions and choices, which Python asks for.
    """
    if not depends_on_state(array) or array.value.dtype.kind not in ("float", "complex"):
        return False
    return array.recorder.known(array.extents[0]) <= MOST_TRACED_ELEMENTS


def _from_zero(loop: LoopRange) -> LoopRange:
    """Returns a loop over positions from 0 on for another one."""
    if (loop.start, loop.step) == (0, 1):
        return loop
    start, step = wrap(loop.start, loop.recorder), wrap(loop.step, loop.recorder)
    return LoopRange(
        loop.recorder, 0, loop.length(), entry=lambda position: loop.at(start + position * step), reason=loop.reason
    )


def loop_over(function: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> LoopRange | None:
    """Returns the loop over what a function returns, or over the only argument if there is no function.

    None if Python has to iterate.
    """
    if function is None:
        return entries_of(*arguments)
    if function is range:
        return loop_of(arguments)
    combine = _COMBINED.get(id(function))
    return None if combine is None else combine(*arguments)


class EntriesOfCall:
    """What `enumerate` or `zip`, say, return in a trace: an iterator, or a loop that can be recorded.

    call: returns what Python's function does.
    """

    is_of_loop = True

    def __init__(self, loop: LoopRange, call: Callable[[], Iterator[Any]]) -> None:
        self.loop, self.call = loop, call
        self.iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        if self.iterator is None and is_iterated_by_comprehension(frame.f_code, frame.f_lasti):
            begin_comprehension(self.loop, frame)
        if self.iterator is None and makes_iterator(frame.f_code, frame.f_lasti):
            self.iterator = LoopIterator(self.loop)
        return self if self.iterator is None else self.iterator

    def __next__(self) -> Any:
        if self.iterator is None:
            self.iterator = self.call()
        return next(self.iterator)


class EntriesOfList(EntriesOfCall):
    """The entries of a list, in order or reversed."""

    def __reversed__(self) -> Iterator[Any]:
        return iter([*self.call()][::-1])


def _enumerated(values: Any, start: Any = 0) -> LoopRange | None:
    inner = entries_of(values)
    first = extent_of(start)
    if inner is None or first is None or isinstance(start, bool):
        return None
    return LoopRange(
        inner.recorder, 0, inner.stop, entry=lambda position: (start + position, inner.at(position)),
        reason=inner.reason,
    )  # fmt: skip


def _zipped(*values: Any, strict: bool = False) -> LoopRange | None:
    loops = [loop for loop in map(entries_of, values) if loop is not None]
    if not loops or len(loops) < len(values):
        return None
    first = loops[0]
    stop: Extent = first.stop
    for other in loops[1:]:
        if first.recorder.decide(stop, "==", other.stop, "the lengths of what zip() gets"):
            continue
        if strict:
            return None  # zip raises
        if not first.recorder.decide(stop, "<=", other.stop, "the lengths of what zip() gets"):
            stop = other.stop
    reason = next((loop.reason for loop in loops if loop.reason is not None), None)
    return LoopRange(
        first.recorder, 0, stop, entry=lambda position: tuple(loop.at(position) for loop in loops), reason=reason
    )


def _reversed(values: Any) -> LoopRange | None:
    inner = None if isinstance(values, EntriesOfCall) and not isinstance(values, EntriesOfList) else entries_of(values)
    if inner is None:
        return None
    return LoopRange(inner.recorder, inner.stop - 1, -1, -1, inner.at, inner.reason)


def _pairs(values: Any) -> LoopRange | None:
    inner = entries_of(values)
    if inner is None:
        return None
    return LoopRange(
        inner.recorder, 0, inner.stop - 1, entry=lambda position: (inner.at(position), inner.at(position + 1)),
        reason=inner.reason,
    )  # fmt: skip


_FUNCTIONS: Mapping[Callable[..., Any], Callable[..., LoopRange | None]] = MappingProxyType({
    enumerate: _enumerated, zip: _zipped, reversed: _reversed, itertools.pairwise: _pairs,
})  # fmt: skip
"""What returns the loop over a result of a function of Python."""

_COMBINED = MappingProxyType({id(function): combine for function, combine in _FUNCTIONS.items()})

_KEYWORDS = {"enumerate": "start", "zip": "strict"}


def _twin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what calls of a function run in place of it."""
    combine = _COMBINED[id(function)]

    def twin(*arguments: Any, **keywords: Any) -> Any:
        accepted = _KEYWORDS.get(function.__name__, "")
        loop = combine(*arguments, **keywords) if arguments and set(keywords) <= {accepted} else None
        if loop is None:
            return function(*arguments, **keywords)
        return EntriesOfCall(loop, functools.partial(function, *arguments, **keywords))

    twin.__wrapped__ = function  # type: ignore[attr-defined]
    return twin


CALLED: Mapping[int, Any] = MappingProxyType({id(one): _twin(one) for one in _FUNCTIONS})
"""Twins of types whose results loops iterate over, in calls, by the id of each."""
