"""`for i, j in np.ndindex(n, m)` and `itertools.product(range(n), x)`: loops in one another with one body.

Each of the loops is recorded as an iteration of its own, around the same body, see `recorded_ranges.py`.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np

from segments.lazy_dataclasses import replace
from tracefuse.frontend.control_flow.iterated_entries import entries_of
from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
from tracefuse.frontend.control_flow.recorded_ranges import LoopRange, loop_of, recorded_code
from tracefuse.frontend.control_flow.unrolled_loops import Unrolling
from tracefuse.frontend.tracer.python_code.loop_code import LoopCode, makes_iterator
from tracefuse.frontend.tracer.values.symbolic_size import wrap
from tracefuse.ir.extents import product


class NestOfCall:
    """What `np.ndindex` or `itertools.product` return in a trace: an iterator, or loops that can be recorded.

    call: returns what the function does.
    """

    def __init__(self, loops: Sequence[LoopRange], call: Callable[[], Iterator[Any]]) -> None:
        self.loops, self.call = loops, call
        self.iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        if self.iterator is None and makes_iterator(frame.f_code, frame.f_lasti):
            self.iterator = _NestIterator(self.loops)
        return self if self.iterator is None else self.iterator

    def __next__(self) -> Any:
        if self.iterator is None:
            self.iterator = self.call()
        return next(self.iterator)


class _NestIterator:
    """Gives the tuples of a nest one by one, or one that stands for all of them."""

    def __init__(self, loops: Sequence[LoopRange]) -> None:
        self.loops, self.recorder = loops, loops[0].recorder
        self.iterations: list[RecordedIteration] = []
        self.rest: Iterator[Any] | None = None
        self.unrolling: Unrolling | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.iterations:
            for iteration in reversed(self.iterations):
                iteration.close()
            raise StopIteration
        if self.rest is None:
            frame = sys._getframe(1)
            if any(self.recorder.always_holds(one.length(), 0, "a loop without iterations") for one in self.loops):
                raise StopIteration
            code = recorded_code(self.recorder, frame, product(one.length() for one in self.loops))
            if code is not None:
                return self._open(frame, code)
            self.rest = self._unrolled(frame)
        for entry in self.rest:
            if self.unrolling is not None:
                self.unrolling.begin_step()
            return entry
        if self.unrolling is not None:
            self.unrolling.end()
        raise StopIteration

    def _open(self, frame: FrameType, code: LoopCode) -> tuple[Any, ...]:
        entries = []
        for position, loop in enumerate(self.loops):
            if position < len(self.loops) - 1:  # an iteration of this loop adds for each one of those in it
                part = replace(code, steps={})
            else:
                part = code
            iteration = RecordedIteration(self.recorder, frame, part, loop.length(), loop.start, loop.step)
            self.iterations.append(iteration)
            entries.append(loop.at(wrap(iteration.counter_value, self.recorder)))
        return tuple(entries)

    def _unrolled(self, frame: FrameType) -> Iterator[Any]:
        steps = [loop.integers() for loop in self.loops]
        self.unrolling = Unrolling(self.recorder, self, (frame.f_code, frame.f_lasti))
        self.unrolling.count(product(map(len, steps)))  # type: ignore[arg-type]
        return itertools.product(*(map(loop.at, one) for loop, one in zip(self.loops, steps, strict=True)))


def _indices(*shape: Any) -> list[LoopRange | None]:
    """Returns the loops over the indices of an array of a shape."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return [loop_of((size,)) for size in sizes]


def _pairs(*values: Any) -> list[LoopRange | None]:
    return [entries_of(value) for value in values]


def _twin(function: Callable[..., Any], loops_of: Callable[..., list[LoopRange | None]]) -> Callable[..., Any]:
    """Returns what calls of a function run in place of it."""

    def twin(*arguments: Any, **keywords: Any) -> Any:
        call = functools.partial(function, *arguments, **keywords)
        loops = [] if keywords else loops_of(*arguments)
        known = [one for one in loops if one is not None]
        return NestOfCall(known, call) if len(known) == len(loops) > 0 else call()

    return twin


CALLED: Mapping[int, Any] = MappingProxyType({
    id(np.ndindex): _twin(np.ndindex, _indices), id(itertools.product): _twin(itertools.product, _pairs),
})  # fmt: skip
"""Twins of types whose results loops iterate over, in calls, by the id of each."""
