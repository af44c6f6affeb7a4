"""The plans of one executable, and the compiled code that belongs to them.

A call tries the plans in order; each one tests the arguments itself. The plan that ran last comes first, since sizes
that changed once tend to stay.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.ir.fusion import SubFusion
from tracefuse.partition.slicing import Sliced
from tracefuse.runtime.call_code import Call
from tracefuse.runtime.donated_arrays import record_donated_results
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE, OutputBuffers, OutputBufferUse
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.memory.donation import Donated
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.stream_worker_code import StreamWorkerCode
from tracefuse.runtime.targets.array_device import ArrayDevice

SliceExecutable = TypeVar("SliceExecutable")

MOST_PLANS = 64
"""Plans per set of output buffers and donated arguments; the least recently used is evicted first."""

MOST_USES = 64
"""Sets of output buffers and donated arguments with plans; the oldest is evicted first."""

_KEY = "layouts of the arguments, guards on extents and strides, output buffers, donated arguments"
_OWNER, _CLEARED = "an executable", "with the executable"
_BOUND = f"{MOST_PLANS} for each of {MOST_USES} sets of buffers"
for _attribute, _keeps, _key, _bound in (
    ("_plans", "plans, with their call functions", _KEY, f"{MOST_PLANS}, least recently used"),
    ("_for_use", "the same, for calls with output buffers or donated arguments", _KEY, _BOUND),
    ("_slices", "executables of slices of a stream-parallel loop", "sliced segment", "segments of the plans"),
    ("_parts", "executables of the sub-fusions of loops and branches", "sub-fusion", "sub-fusions of the fusion"),
    ("_slice_code", "the Python functions that run slice after slice", "plan", "the plans"),
):
    register(Cache(f"compiler.plan_cache.PlanCache.{_attribute}", _keeps, _key, _bound, _OWNER, _CLEARED))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CallablePlan:
    """A plan with its call function. text: the source of that function.

    holds: whether the guards hold, for extents by id and strides by name. values: the extents and integer scalars of
    the call that the plan was built for. is_silent: a call with donated arguments needs no warning and no fill of their
    memory; it only does what `donated_results` says (see `Plan`).
    """

    plan: Plan
    call: Call
    text: str
    holds: Callable[[Mapping[Any, int]], bool]
    values: Mapping[int, int]
    is_silent: bool
    donated_results: tuple[tuple[int, int], ...]

    def fits(self, facts: CallFacts, buffers: OutputBuffers, donated: tuple[Donated, ...]) -> bool:
        """Whether layouts, alignment, output buffers, donated arguments and guards fit a call."""
        plan = self.plan
        layouts = plan.layouts == facts.layouts and plan.aligned <= facts.aligned
        layouts = layouts and plan.output_buffers == buffers.key and plan.donated == donated
        return layouts and self.holds({**facts.values, **facts.strides, **(buffers.strides or {})})


def _call_no_plan(arguments: Sequence[Any]) -> None:
    """The first plan while there is none."""


class PlanCache(Generic[SliceExecutable]):
    """The plans of one executable, by output buffers and donated arguments. Writers hold `lock`; readers need no lock.

    first: the call function of the plan that ran last without output buffers or donated arguments. The fast path tries
    it before `attempt`.
    """

    def __init__(self, device: ArrayDevice) -> None:
        # Reentrant: a signal handler may call the executable that it interrupted.
        self.lock = threading.RLock()
        self.first: Call = _call_no_plan
        self._device = device
        self._plans: list[CallablePlan] = []
        self._for_use: BoundedTable[OutputBufferUse, list[CallablePlan]] = BoundedTable(MOST_USES)
        self._slices: weakref.WeakKeyDictionary[Sliced, SliceExecutable] = weakref.WeakKeyDictionary()
        self._parts: weakref.WeakKeyDictionary[SubFusion, SliceExecutable] = weakref.WeakKeyDictionary()
        self._slice_code: weakref.WeakKeyDictionary[CallablePlan, StreamWorkerCode | None] = weakref.WeakKeyDictionary()

    def attempt(self, arguments: Sequence[Any]) -> list[Any] | None:
        """Runs the first plan that fits and returns its outputs; None, with nothing run, if none fits.

        arguments: any sequence; the plans test its length and its elements.
        """
        for position, ready in enumerate(self._plans):
            outputs = ready.call(arguments)
            if outputs is not None:
                if position:
                    self._put_first(ready, NO_BUFFER_USE)
                return outputs
        return None

    def attempt_into(self, arguments: Sequence[Any], use: OutputBufferUse) -> list[Any] | None:
        """As `attempt`, for a call with output buffers, which end `arguments`, or donated arguments."""
        for position, ready in enumerate(self._for_use.get(use, ())):
            outputs = ready.call(arguments) if ready.is_silent else None
            if outputs is not None:
                if position:
                    self._put_first(ready, use)
                if ready.donated_results:
                    record_donated_results(self._device, ready.donated_results, arguments, outputs)
                return outputs
        return None

    def plans(self, use: OutputBufferUse = NO_BUFFER_USE) -> list[CallablePlan]:
        """The plans for a set of output buffers and donated arguments, most recently used first."""
        return self._plans if use == NO_BUFFER_USE else self._for_use.get(use, [])

    def add(self, ready: CallablePlan, use: OutputBufferUse) -> None:
        """Adds a plan in front. The caller holds `lock`."""
        self._replace([ready, *self.plans(use)], use)

    def computes_slice(self, sliced: Sliced, make: Callable[[], SliceExecutable]) -> SliceExecutable:
        """The executable of one slice of a stream-parallel segment, created at the first request."""
        executable = self._slices.get(sliced)
        if executable is None:
            executable = self._slices[sliced] = make()
        return executable

    def computes_part(self, part: SubFusion, make: Callable[[], SliceExecutable]) -> SliceExecutable:
        """The executable of a sub-fusion, created at the first request."""
        executable = self._parts.get(part)
        if executable is None:
            executable = self._parts[part] = make()
        return executable

    def slice_code(self, ready: CallablePlan, make: Callable[[], StreamWorkerCode | None]) -> StreamWorkerCode | None:
        """The code that runs a plan slice by slice, generated at the first request; None if the plan has none."""
        if ready not in self._slice_code:
            self._slice_code[ready] = make()
        return self._slice_code[ready]

    def _put_first(self, ready: CallablePlan, use: OutputBufferUse) -> None:
        with self.lock:
            self._replace([ready, *(other for other in self.plans(use) if other is not ready)], use)

    def _replace(self, plans: list[CallablePlan], use: OutputBufferUse) -> None:
        """Stores a new list, so that readers in other threads never see a list while it changes."""
        if use == NO_BUFFER_USE:
            self._plans, self.first = plans[:MOST_PLANS], plans[0].call
        else:
            self._for_use[use] = plans[:MOST_PLANS]
