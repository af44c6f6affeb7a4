"""The compiler: from a fusion to an executable that holds what was compiled.

A fusion is rewritten by FUSION_PASSES, partitioned, and compiled for the sizes that it meets. An Executable keeps its
plans and runs the first whose layouts and guards fit the call. Nothing here depends on where the fusion came from.

Knows: passes, plans, targets. Must not know: tracing, user functions.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import segments
from tracefuse import config
from tracefuse.compiler.concretizations import Concretizations
from tracefuse.compiler.plan_cache import CallablePlan, PlanCache
from tracefuse.config import Options, ResizeExtents
from tracefuse.diagnostics.dumping import Dump
from tracefuse.diagnostics.progress import say_plan, why_made
from tracefuse.diagnostics.watching import watching
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.guard_failures import FailureCounts, GuardFailure, first_failure
from tracefuse.dynamic.guards import Guard, compile_guards
from tracefuse.errors import InternalError
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import check_requirements, evaluate_scalars
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.logs import say
from tracefuse.partition import predicates
from tracefuse.partition.segmentation import Segmentation, for_sizes, segment_fusion
from tracefuse.partition.slicing import Sliced
from tracefuse.passes.pipeline import FUSION_PASSES, PassChange, collect_changes, run_passes
from tracefuse.runtime.call_code import compile_call
from tracefuse.runtime.donated_arrays import Donation
from tracefuse.runtime.memory.buffer_facts import (
    NO_BUFFER_USE,
    NO_OUTPUT_BUFFERS,
    OutputBuffers,
    OutputBufferUse,
    read_output_buffers,
    returned,
)
from tracefuse.runtime.memory.call_facts import CallFacts, read_facts
from tracefuse.runtime.memory.donation import Donated
from tracefuse.runtime.peak_memory import memory_of
from tracefuse.runtime.plan import Plan, build_plan
from tracefuse.runtime.stream_worker_code import compile_stream_worker, worker_scratch_bytes
from tracefuse.runtime.streams.slices import Computation, StreamWorker
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.runtime.targets.resolution import target_for
from tracefuse.runtime.targets.target import Target


def merge_of(options: Options, merge: segments.Predicate | None) -> segments.Predicate | None:
    """The predicate that a fusion is split with: the user's, unless fusing is turned off."""
    return predicates.one_op_a_segment if options.disables("fusion") else merge


def compile_fusion(
    fusion: Fusion, *, target: str = "cpu", merge: segments.Predicate | None = None,
    options: Options | None = None, device: int = 0, facts: Sequence[Guard] = (), disk: DiskCache | None = None,
    name: str = "fusion", sizes: Mapping[int, int] | None = None,
) -> Executable:  # fmt: skip
    """`fusion`, rewritten, split and ready to be called; kernels are compiled for the first sizes that come.

    target: "cpu" (NumPy arrays) or "cuda" (CuPy arrays of GPU `device`; where there is no GPU, kernels are only
    written, to be read). merge, sizes: see `segment_fusion`. facts: what was assumed while it was
    recorded; a plan runs only where they hold. options: by default those in force. disk: where compiled kernels are
    kept; by default as the options say. name: what the log and dumps call it.
    """
    options = config.resolve() if options is None else options
    with collect_changes() as changes:
        rewritten = run_passes(FUSION_PASSES, fusion, options)
        segmentation = segment_fusion(rewritten, merge=merge_of(options, merge), sizes=sizes, options=options)
    return Executable(
        segmentation, target_for(target, device), options=options, facts=facts, disk=disk, name=name, changes=changes
    )


class Executable:
    """A segmented fusion that can be called with arrays.

    compiles: how many plans were built. changes: what the passes changed that ran before, for the option `dump`.
    """

    def __init__(
        self, segmentation: Segmentation, target: Target | None = None, *, options: Options | None = None,
        facts: Sequence[Guard] = (), disk: DiskCache | None = None, name: str = "fusion",
        changes: Sequence[PassChange] = (),
    ) -> None:  # fmt: skip
        self.segmentation, self.facts, self.name = segmentation, tuple(facts), name
        self.options = config.resolve() if options is None else options
        self.concretizations = Concretizations(segmentation, self.options)
        self.disk = disk_cache.for_options(self.options) if disk is None else disk
        self.target = cpu_target() if target is None else target
        self.fusion = fusion = segmentation.original
        self.changes = tuple(changes)
        self.compiles = 0
        self.guard_failures = FailureCounts()
        self.plans: PlanCache[Executable] = PlanCache(self.target.device)
        self._host = tuple(n for n in fusion.nodes if not fusion.values[n.outputs[0]].is_tensor)

    def __call__(
        self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None, donated: Sequence[int] = (),
        kept: Collection[int] = (),
    ) -> list[Any]:  # fmt: skip
        """The outputs that update no argument, for arguments in the order of the fusion's inputs.

        outputs: the array that each goes into, or None for a new one; what was given is returned. Where an argument is
        updated, or `outputs` overlap arguments, every argument is read as it was before the call.
        donated: inputs whose memory may be taken; what is not used is reported as the option `donation` says. kept:
        those of them that are returned as they are.
        Raises FusionError, ShapeError or DtypeError for arguments that the fusion does not take or whose sizes break
        what it requires, and for `outputs` that do not fit, DeviceError for arrays of another device, UnsupportedError
        for memory that cannot be written; nothing has run then.
        """
        found = self.plans.attempt(arguments) if outputs is None and not donated else None
        if found is None:
            facts = read_facts(self.fusion, self.target.device, arguments)
            given = self._given(facts, outputs)
            donation = (
                Donation(self.fusion, self.target.device, facts, donated, kept, given.buffers) if donated else None
            )
            use = OutputBufferUse.of(outputs, donated, kept)
            ready = self._for(facts, given, use, donation.usable if donation else ())
            if donation:
                donation.report(ready.plan, self.options.donation)
            found = ready.call([*facts.arguments, *given.buffers])
            if found is None:
                raise InternalError("a plan does not fit the call that it was made for", hint=ready.text)
            if donation:
                donation.finish(ready.plan, arguments, found, spoils=self.options.check)
            if given.objects:
                objects = zip(returned(self.fusion), found, strict=True)
                return [given.objects.get(number, made) for number, made in objects]
        return found

    def steps(
        self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None
    ) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs, yielding what is live before the first segment and after each one; returns the outputs."""
        facts = read_facts(self.fusion, self.target.device, arguments)
        given = self._given(facts, outputs)
        plan = self._for(facts, given, OutputBufferUse.of(outputs)).plan
        values = [*facts.arguments, *self._scalars(facts.arguments, facts.values)]
        values += [facts.values[key] for key, _, _ in self.fusion.axis_ids()] + list(given.buffers)
        named = dict(zip(plan.program.inputs, values, strict=True))
        inputs = {k: v for k, v in named.items() if k >= 0}
        manager = segments.ArgumentManager(inputs, {k: v for k, v in named.items() if k < 0})
        return list((yield from plan.runner.steps(manager)))

    def stream_worker(self, arguments: Sequence[Any], outputs: Sequence[Any], arrays: bool = False) -> StreamWorker:
        """How arguments like these and those that follow are computed into memory like `outputs`; see `Computation`."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        given = self._given(facts, outputs, apart=True)
        ready = self._for(facts, given, OutputBufferUse.of(outputs))
        values = [*facts.arguments, *given.buffers]
        code = None
        if not arrays:
            code = self.plans.slice_code(ready, lambda: compile_stream_worker(ready.plan, self.target))
        if code is not None:
            return StreamWorker(
                self.target.calls.addresses,
                code.bind(values),
                worker_scratch_bytes(ready.plan, facts.values),
                ready.plan,
            )
        inputs = self.fusion.inputs
        tensors = [k for k, number in enumerate(inputs) if self.fusion.values[number].is_tensor]
        loose = [k for k, n in enumerate(inputs) if k not in tensors and not self.fusion.values[n].dtype.is_integer]
        places = [*tensors, *range(len(inputs), len(values)), *loose]
        # The arrays themselves are not kept.
        fixed = [None if k in places else value for k, value in enumerate(values)]

        def on_arrays(*given: Any) -> None:
            own = list(fixed)
            for place, value in zip(places, given, strict=True):
                own[place] = value
            if ready.call(own) is None:
                self(own[: len(inputs)], own[len(inputs) :])

        return StreamWorker(False, lambda stream: on_arrays, memory_of(ready.plan, facts.values).peak, ready.plan)

    def plan_for(self, arguments: Sequence[Any]) -> tuple[Plan, Mapping[int, int]]:
        """The plan that a call with these arguments would run (compiled if need be), and the extent values.

        Arguments may be `ShapeDtype`s, which stand for contiguous, aligned arrays; nothing runs.
        """
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        return self._for(facts, self._given(facts)).plan, facts.values

    def call_text(self, arguments: Sequence[Any]) -> str:
        """The Python function that such a call runs; arguments as for `plan_for`."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        return self._for(facts, self._given(facts)).text

    def _scalars(self, arguments: Sequence[Any], values: Mapping[Any, int]) -> list[Any]:
        """The computed host scalars, in order; `arguments` may go on with the memory of results."""
        if not self._host:
            return []
        numbers = zip(self.fusion.inputs, arguments, strict=False)
        known = {k: v for k, v in numbers if not self.fusion.values[k].is_tensor}
        return evaluate_scalars(self.fusion, self._host, known, values)

    def _given(self, facts: CallFacts, outputs: Sequence[Any] | None = None, *, apart: bool = False) -> OutputBuffers:
        """The memory that results go into. Raises ShapeError where sizes break what the fusion requires, and as
        `read_output_buffers`, which says what `apart` is."""
        check_requirements(self.fusion, facts.values)
        if outputs is None and not self.fusion.aliases:
            return NO_OUTPUT_BUFFERS
        return read_output_buffers(self.fusion, self.target.device, facts, outputs, apart=apart)

    def _for(
        self,
        facts: CallFacts,
        given: OutputBuffers,
        use: OutputBufferUse = NO_BUFFER_USE,
        donated: tuple[Donated, ...] = (),
    ) -> CallablePlan:
        """The plan for a call, built if need be."""
        with self.plans.lock:
            kept = self.plans.plans(use)
            for ready in kept:
                if ready.fits(facts, given, donated):
                    check_requirements(ready.plan.segmentation.original, facts.values)
                    return ready
            cause = self._cause(kept, facts)
            if cause is not None:
                say(self.options, 1, lambda: str(cause))
            made = self._made(facts, given, "" if cause is None else str(cause), use, donated)
            self.plans.add(made, use)
        if cause is not None:
            self.guard_failures.add(cause, warn=self.options.dynamic and self.options.resizes is not ResizeExtents.ON)
        return made

    def _cause(self, kept: Sequence[CallablePlan], facts: CallFacts) -> GuardFailure | None:
        """Why no plan of these layouts serves the call: the guard that failed of the one that was used last."""
        for ready in kept:
            if ready.plan.layouts == facts.layouts:
                return first_failure(self.fusion, ready.plan.guards, ready.values, facts.values)
        return None

    def concretization(self, arguments: Sequence[Any]) -> Concretization:
        """What the fusion becomes for such a call; arguments as for `plan_for`, and nothing is compiled."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        check_requirements(self.fusion, facts.values)
        return self.concretizations.peek(facts.values)

    def _made(
        self, facts: CallFacts, given: OutputBuffers, cause: str, use: OutputBufferUse, donated: tuple[Donated, ...]
    ) -> CallablePlan:
        with collect_changes(self.changes) as changes:
            return self._compile(facts, given, cause, use, donated, changes)

    def _compile(
        self, facts: CallFacts, given: OutputBuffers, cause: str, use: OutputBufferUse, donated: tuple[Donated, ...],
        changes: Sequence[PassChange],
    ) -> CallablePlan:  # fmt: skip
        """As `_made`, with the changes that passes make on the way."""
        start = time.perf_counter()
        segmentation, concrete = self.concretizations.at(facts.values)
        dump = Dump(self.options, self.name, changes)
        dump.before(self.fusion, facts.arguments, concrete)
        with dump.passes():
            segmentation, guards = for_sizes(segmentation, facts.values, self.options)
            watch = watching(self.options, self.target, self._run_alone)
            # The bounds that check mode compares with hold for IEEE arithmetic.
            options = self.options.replaced(fast_math=False) if self.options.check else self.options
            plan = build_plan(
                segmentation, self.target, facts.layouts, facts.values, {**facts.strides, **(given.strides or {})},
                guards=(*concrete.guards, *guards), aligned=facts.aligned, options=options, disk=self.disk,
                output_buffers=given.key, watch=watch, slices_of=self._slices_of, donated=donated,
            )  # fmt: skip
        plan = replace(plan, cause=cause)
        self.compiles += 1
        facts_used = (*self.facts, *concrete.guards)
        call, text = compile_call(plan, self.target, facts_used, self._scalars, self.options.graph)
        dump.after(plan, facts.values, text)
        if self.options.debug:
            why = why_made([ready.plan for ready in self.plans.plans(use)], facts, given)
            say_plan(self.options, self.name, plan, why, time.perf_counter() - start)
        is_silent = not use.donated or self._is_silent(plan, len(use.donated))
        return CallablePlan(
            plan, call, text, compile_guards(plan.guards), facts.values, is_silent, plan.donated_results
        )

    def _is_silent(self, plan: Plan, donated: int) -> bool:
        """Whether there is nothing to say of the donated memory, and no rest of it to fill."""
        is_used = len(plan.reused) == donated
        is_ignored = len(plan.donated) == donated and self.options.donation == "ignore"
        return not self.options.check and (is_used or is_ignored)

    def _run_alone(self, fusion: Fusion, arguments: Sequence[Any]) -> Sequence[Any]:
        """Compiles and runs another fusion likewise, with nothing checked."""
        plain = self.options.replaced(check=False, debug=0, dump="")
        return Executable(segment_fusion(fusion, options=plain), self.target, options=plain, disk=self.disk)(arguments)

    def _slices_of(self, sliced: Sliced) -> Computation:
        """What computes one slice of a segment."""

        def make() -> Executable:
            quiet = self.options.replaced(debug=0, dump="")  # each slice is checked, and none is logged
            return Executable(segment_fusion(sliced.fusion, options=quiet), self.target, options=quiet, disk=self.disk)

        return self.plans.computes_slice(sliced, make)
