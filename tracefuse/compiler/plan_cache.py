"""The plans of one executable, and the compiled code that belongs to them.

A call tries the plans in order; each tests the arguments itself. The plan that ran last comes first, since sizes that
changed once tend to stay.

Knows: plans that can be called. Must not know: how a plan is built or chosen.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.partition.slicing import Sliced
from tracefuse.runtime.call_code import Call
from tracefuse.runtime.donated_arrays import record_donated_results
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE, OutputBuffers, OutputBufferUse
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.memory.donation import Donated
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.stream_worker_code import StreamWorkerCode
from tracefuse.runtime.targets.array_device import ArrayDevice

Computes = TypeVar("Computes")

MOST_PLANS = 64
"""Plans kept for calls with the same use of memory; the one that ran longest ago goes first."""

MOST_USES = 64
"""Uses of memory that plans are kept for, beside calls that provide none; the oldest goes first."""

_KEY = "layouts of the arguments, guards on extents and strides, output buffers, donated arguments"
_OWNER, _CLEARED = "an executable", "with the executable"
_BOUND = f"{MOST_PLANS} for a use of memory, {MOST_USES} uses"
for _attribute, _keeps, _key, _bound in (
    ("_plans", "plans, with their call functions", _KEY, f"{MOST_PLANS}, least recently used"),
    ("_for_use", "the same, for calls with output buffers or donated arguments", _KEY, _BOUND),
    ("_slices", "executables of slices of a stream-parallel loop", "sliced segment", "segments of the plans"),
    ("_slice_code", "the Python functions that run slice after slice", "plan", "the plans"),
):
    register(Cache(f"compiler.plan_cache.PlanCache.{_attribute}", _keeps, _key, _bound, _OWNER, _CLEARED))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CallablePlan:
    """A plan that can be called. holds: whether its guards do, for extents by id and strides by name.

    values: the extents and integer scalars of the call that it was made for. is_silent: a call that it fits neither
    warns nor writes to donated memory afterwards; all that is left to do is what `donated_results` says (see `Plan`).
    """

    plan: Plan
    call: Call
    text: str
    holds: Callable[[Mapping[Any, int]], bool]
    values: Mapping[int, int]
    is_silent: bool
    donated_results: tuple[tuple[int, int], ...]

    def fits(self, facts: CallFacts, given: OutputBuffers, donated: tuple[Donated, ...]) -> bool:
        """Whether it serves a call with these facts."""
        plan = self.plan
        layouts = plan.layouts == facts.layouts and plan.aligned <= facts.aligned
        layouts = layouts and plan.output_buffers == given.key and plan.donated == donated
        return layouts and self.holds({**facts.values, **facts.strides, **(given.strides or {})})


def _call_no_plan(arguments: Sequence[Any]) -> None:
    """Stands for the first plan while there is none."""


class PlanCache(Generic[Computes]):
    """The plans of one executable, by what memory a call provides. Writers hold `lock`; readers need no lock.

    first: the call of the plan that ran last among those of calls that provide no memory. A caller that counts every
    microsecond tries it before `attempt`.
    """

    def __init__(self, device: ArrayDevice) -> None:
        # A signal handler may call the executable that it interrupted.
        self.lock = threading.RLock()
        self.first: Call = _call_no_plan
        self._device = device
        self._plans: list[CallablePlan] = []
        self._for_use: BoundedTable[OutputBufferUse, list[CallablePlan]] = BoundedTable(MOST_USES)
        self._slices: weakref.WeakKeyDictionary[Sliced, Computes] = weakref.WeakKeyDictionary()
        self._slice_code: weakref.WeakKeyDictionary[CallablePlan, StreamWorkerCode | None] = weakref.WeakKeyDictionary()

    def attempt(self, arguments: Sequence[Any]) -> list[Any] | None:
        """The outputs, or None where no plan fits; nothing has run then.

        Any sequence of the right length will do, whatever is in it.
        """
        for position, ready in enumerate(self._plans):
            outputs = ready.call(arguments)
            if outputs is not None:
                if position:
                    self._put_first(ready, NO_BUFFER_USE)
                return outputs
        return None

    def attempt_into(self, arguments: Sequence[Any], use: OutputBufferUse) -> list[Any] | None:
        """As `attempt`, for a call that provides memory. arguments: the output buffers follow them, in order."""
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
        """The plans for a use of memory, the one that ran last first."""
        return self._plans if use == NO_BUFFER_USE else self._for_use.get(use, [])

    def add(self, ready: CallablePlan, use: OutputBufferUse) -> None:
        """Adds a plan, in front. To be called under `lock`."""
        self._replace([ready, *self.plans(use)], use)

    def computes_slice(self, sliced: Sliced, make: Callable[[], Computes]) -> Computes:
        """What computes one slice of a segment, made at the first request."""
        found = self._slices.get(sliced)
        if found is None:
            found = self._slices[sliced] = make()
        return found

    def slice_code(self, ready: CallablePlan, make: Callable[[], StreamWorkerCode | None]) -> StreamWorkerCode | None:
        """The code that runs a plan for slice after slice, made at the first request; None where it has none."""
        if ready not in self._slice_code:
            self._slice_code[ready] = make()
        return self._slice_code[ready]

    def _put_first(self, ready: CallablePlan, use: OutputBufferUse) -> None:
        with self.lock:
            self._replace([ready, *(other for other in self.plans(use) if other is not ready)], use)

    def _replace(self, plans: list[CallablePlan], use: OutputBufferUse) -> None:
        """Stores a new list, so that a reader in another thread never sees one half changed."""
        if use == NO_BUFFER_USE:
            self._plans, self.first = plans[:MOST_PLANS], plans[0].call
        else:
            self._for_use[use] = plans[:MOST_PLANS]
