"""The compiler: turns a fusion into an executable.

FUSION_PASSES rewrite the fusion, the partitioner splits it into segments, and the segments are compiled for the sizes
that calls bring. An Executable keeps the resulting plans and runs the first one whose layouts and guards fit the call.
The origin of the fusion, a trace or a definition, makes no difference.

Must not know: tracing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

import segments
from segments.lazy_dataclasses import replace
from tracefuse import config
from tracefuse.compiler.calls_on_arrays import call_on_arrays, step_options
from tracefuse.compiler.concretizations import Concretizations
from tracefuse.compiler.plan_cache import CallablePlan, PlanCache
from tracefuse.compiler.tuning import Tuner, has_effects
from tracefuse.config import Options, ResizeExtents
from tracefuse.diagnostics.dumping import Dump
from tracefuse.diagnostics.progress import explain_new_plan, say_plan
from tracefuse.diagnostics.watching import watching
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.concretize import depends_on_sizes
from tracefuse.dynamic.guard_failures import FailureCounts, GuardFailure, first_failure
from tracefuse.dynamic.guards import Guard, compile_guards
from tracefuse.errors import InternalError
from tracefuse.ir.fusion import Fusion, SubFusion
from tracefuse.ir.reference import check_requirements, evaluate_scalars
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.logs import say
from tracefuse.partition.deferred_segmentation import DeferredSegmentation, merge_of
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.partition.segments_for_sizes import SegmentationForSizes, SizedChoices, for_sizes
from tracefuse.partition.slicing import Sliced
from tracefuse.passes.pipeline import FUSION_PASSES, PassChange, collect_changes, run_passes
from tracefuse.runtime.automatic_graphs import repeatable_call
from tracefuse.runtime.compiled_segment import Watch
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
from tracefuse.runtime.product_segments import epilogue_refusals
from tracefuse.runtime.stream_worker_code import compile_stream_worker, worker_scratch_bytes
from tracefuse.runtime.streams.slices import Computation, StreamWorker
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.runtime.targets.resolution import target_for
from tracefuse.runtime.targets.target import Target
from tracefuse.runtime.tuned_tilings import TuningRecords
from tracefuse.schedule.tiling_choice import TilingChooser
from tracefuse.young_objects import keeps_objects_young

MOST_PLANS_OF_CLASSES = 8
"""Plans of a function, after which the size classes of the cost model lead to no more: kernels have usual tilings."""


def compile_fusion(
    fusion: Fusion, *, target: str = "cpu", merge: segments.Predicate | None = None,
    options: Options | None = None, device: int = 0, facts: Sequence[Guard] = (), disk: DiskCache | None = None,
    name: str = "fusion", sizes: Mapping[int, int] | None = None, orders_results: bool = False,
) -> Executable:  # fmt: skip
    """Rewrites and partitions `fusion`. Its kernels are compiled at the first call, for the sizes of that call.

    target: "cpu" (NumPy arrays) or "cuda" (CuPy arrays on GPU `device`; without a GPU it only generates the source of
    the kernels). merge, sizes: see `segment_fusion`. facts: guards assumed by the recording; a plan runs only if they
    hold. options: by default those in force. disk: the cache of compiled kernels; by default as the options say. name:
    of logs and dumps. orders_results: as for `Executable`.
    """
    options = config.resolve() if options is None else options
    with collect_changes() as changes:
        rewritten = run_passes(FUSION_PASSES, fusion, options)
        deferred = DeferredSegmentation(rewritten, merge_of(options, merge), options, sizes)
        segmentation = deferred.segmentation if deferred.merge or not depends_on_sizes(rewritten) else deferred
    placed = target_for(target, device)
    executable = Executable(segmentation, placed, options=options, facts=facts, disk=disk, name=name, changes=changes)
    executable.orders_results = orders_results and placed.templates.orders_results
    return executable


class Executable:
    """A segmented fusion that can be called with arrays.

    compiles: the number of plans built. changes: the changes of the passes that ran so far, for the option `dump`.
    tilings: chooses those of its segments; by default the cost model. orders_results: whether results of elementwise
    functions have the operands' order in memory; if not, all are C-contiguous.
    """

    def __init__(
        self, segmentation: Segmentation | DeferredSegmentation, target: Target | None = None, *,
        options: Options | None = None, facts: Sequence[Guard] = (), disk: DiskCache | None = None,
        name: str = "fusion", changes: Sequence[PassChange] = (), tilings: TilingChooser | None = None,
    ) -> None:  # fmt: skip
        self.tilings = tilings
        self.facts, self.name = tuple(facts), name
        self.options = config.resolve() if options is None else options
        self.concretizations = Concretizations(DeferredSegmentation.of(segmentation), self.options)
        self.disk = disk_cache.for_options(self.options) if disk is None else disk
        self.target = cpu_target() if target is None else target
        # A step of a loop has other products that become sums, and sizes that differ from call to call.
        self.is_step = self.orders_results = False
        self.fusion = fusion = segmentation.original
        self.changes = tuple(changes)
        self.compiles = 0
        self.guard_failures = FailureCounts()
        self.plans: PlanCache[Executable] = PlanCache(self.target.device)
        self._host = tuple(n for n in fusion.nodes if not fusion.values[n.outputs[0]].is_tensor)

    @property
    def segmentation(self) -> Segmentation:
        return self.concretizations.original.segmentation

    def __call__(
        self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None, donated: Sequence[int] = (),
        unchanged: Collection[int] = (),
    ) -> list[Any]:  # fmt: skip
        """Runs the fusion and returns its outputs, except those that update an argument.

        arguments: in the order of the fusion's inputs. outputs: an output buffer for each output, or None to allocate
        it; buffers are returned as the results. Every argument is read as it was before the call, even if the fusion
        updates it or it overlaps an output buffer. donated: inputs whose buffers may be reused; the option `donation`
        selects what happens to those that are not reused. unchanged: donated inputs that are also results.
        Raises, before anything runs, FusionError, ShapeError or DtypeError for arguments that the fusion does not take,
        for sizes that violate its requirements and for `outputs` that do not fit, DeviceError for arrays on another
        device, and UnsupportedError for a read-only output buffer.
        """
        results = self.plans.attempt(arguments) if outputs is None and not donated else None
        if results is None:
            facts = read_facts(self.fusion, self.target.device, arguments)
            buffers = self._output_buffers(facts, outputs)
            details = (self.fusion, self.target.device, facts, donated, unchanged, buffers.passed)
            donation = Donation(*details) if donated else None
            use = OutputBufferUse.of(outputs, donated, unchanged)
            ready = self._find_or_build(facts, buffers, use, donation.usable if donation else (), runs=True)
            if donation:
                donation.report(ready.plan, self.options.donation)
            results = ready.call([*facts.arguments, *buffers.passed])
            if results is None:
                raise InternalError("a plan does not fit the call that it was built for", hint=ready.text)
            if donation:
                donation.finish(ready.plan, arguments, results, spoils=self.options.check)
            if buffers.objects:
                objects = zip(returned(self.fusion), results, strict=True)
                return [buffers.objects.get(number, result) for number, result in objects]
        return results

    def steps(
        self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None
    ) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs segment by segment: yields the live values before the first and after each one, returns the outputs."""
        facts = read_facts(self.fusion, self.target.device, arguments)
        buffers = self._output_buffers(facts, outputs)
        plan = self._find_or_build(facts, buffers, OutputBufferUse.of(outputs), runs=True).plan
        return list((yield from self._run_steps(plan, facts, buffers)))

    def _run_steps(
        self, plan: Plan, facts: CallFacts, buffers: OutputBuffers
    ) -> Generator[dict[int, Any], None, tuple[Any, ...]]:
        values = [*facts.arguments, *self._scalars(facts.arguments, facts.values)]
        values += [facts.values[key] for key, _, _ in self.fusion.axis_ids()] + list(buffers.buffers)
        named = dict(zip(plan.program.inputs, values, strict=True))
        inputs = {k: v for k, v in named.items() if k >= 0}
        return plan.runner.steps(segments.ArgumentManager(inputs, {k: v for k, v in named.items() if k < 0}))

    def stream_worker(self, arguments: Sequence[Any], outputs: Sequence[Any], arrays: bool = False) -> StreamWorker:
        """Compiles calls with arguments and output buffers like these for one stream worker; see `Computation`."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        buffers = self._output_buffers(facts, outputs, apart=True)
        ready = self._find_or_build(facts, buffers, OutputBufferUse.of(outputs))
        values = [*facts.arguments, *buffers.passed]
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
        on_arrays = call_on_arrays(self.fusion, values, ready.call, self)
        return StreamWorker(False, lambda stream: on_arrays, memory_of(ready.plan, facts.values).peak, ready.plan)

    def step_plan(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> tuple[Plan, Sequence[Any]]:
        """The plan of a call with output buffers, compiled if necessary, and the slices of arguments it updates."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        buffers = self._output_buffers(facts, outputs)
        plan = self._find_or_build(facts, buffers, OutputBufferUse.of(outputs)).plan
        return plan, buffers.buffers[: len(buffers.buffers) - len(buffers.passed)]

    def plan_for(
        self, arguments: Sequence[Any], use: OutputBufferUse = NO_BUFFER_USE
    ) -> tuple[Plan, Mapping[int, int]]:
        """The plan that a call with these arguments would run, compiled if necessary, and the extent values.

        Arguments may be `ShapeDtype`s, which represent contiguous, aligned arrays. use: the arguments that the call
        donates. Nothing runs.
        """
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        donation = Donation(self.fusion, self.target.device, facts, use.donated, use.returned, ())
        return self._find_or_build(facts, self._output_buffers(facts), use, donation.usable).plan, facts.values

    def has_plan(self, arguments: Sequence[Any], use: OutputBufferUse = NO_BUFFER_USE) -> bool:
        """Whether a compiled plan fits a call; use: the arguments that it donates. Raises as a call does."""
        facts = read_facts(self.fusion, self.target.device, arguments)
        donated = Donation(self.fusion, self.target.device, facts, use.donated, use.returned, ()).usable
        buffers = self._output_buffers(facts)
        return any(ready.fits(facts, buffers, donated) for ready in self.plans.plans(use))

    def call_text(self, arguments: Sequence[Any]) -> str:
        """The source of the Python function that such a call runs; arguments as for `plan_for`."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        return self._find_or_build(facts, self._output_buffers(facts)).text

    def _scalars(self, arguments: Sequence[Any], values: Mapping[Any, int]) -> list[Any]:
        """The computed host scalars, in order. Output buffers may follow the fusion's inputs in `arguments`."""
        if not self._host:
            return []
        numbers = zip(self.fusion.inputs, arguments, strict=False)
        known = {k: v for k, v in numbers if not self.fusion.values[k].is_tensor}
        return evaluate_scalars(self.fusion, self._host, known, values)

    def _output_buffers(
        self, facts: CallFacts, outputs: Sequence[Any] | None = None, *, apart: bool = False
    ) -> OutputBuffers:
        """Checks the output buffers of a call. apart, and most errors: see `read_output_buffers`.

        Raises ShapeError for sizes that violate a requirement of the fusion.
        """
        check_requirements(self.fusion, facts.values)
        if outputs is None and not self.fusion.aliases:
            return NO_OUTPUT_BUFFERS
        return read_output_buffers(self.fusion, self.target.device, facts, outputs, apart=apart)

    def _find_or_build(
        self,
        facts: CallFacts,
        buffers: OutputBuffers,
        use: OutputBufferUse = NO_BUFFER_USE,
        donated: tuple[Donated, ...] = (),
        *,
        runs: bool = False,
    ) -> CallablePlan:
        """The plan for a call, built if none fits. runs: the arguments are arrays on which tilings may be measured.

        A plan with tilings that are yet to be measured is not kept, so that the next call measures them.
        """
        with self.plans.lock:
            plans = self.plans.plans(use)
            for ready in plans:
                if ready.fits(facts, buffers, donated):
                    check_requirements(ready.plan.segmentation.original, facts.values)
                    return ready
            cause = self._find_guard_failure(plans, facts)
            if cause is not None:
                say(self.options, 1, lambda: str(cause))
            tilings, is_final = self._tilings(facts, len(plans), runs)
            ready = self._build(facts, buffers, "" if cause is None else str(cause), use, donated, tilings)
            if is_final:
                self.plans.add(ready, use)
        if cause is not None:
            warns = not self.is_step and self.options.dynamic and self.options.resizes is not ResizeExtents.ON
            self.guard_failures.add(cause, warn=warns)
        return ready

    def _find_guard_failure(self, plans: Sequence[CallablePlan], facts: CallFacts) -> GuardFailure | None:
        """The guard failure of the most recently used plan with the layouts of the call; None without such a plan."""
        for ready in plans:
            if ready.plan.layouts == facts.layouts:
                return first_failure(self.fusion, ready.plan.guards, ready.values, facts.values)
        return None

    def concretization(self, arguments: Sequence[Any]) -> Concretization:
        """The concretized fusion for such a call; arguments as for `plan_for`. Nothing is compiled."""
        facts = read_facts(self.fusion, self.target.device, arguments, described=True)
        check_requirements(self.fusion, facts.values)
        return self.concretizations.peek(facts.values)

    def _tilings(self, facts: CallFacts, plans: int, runs: bool) -> tuple[TilingChooser | None, bool]:
        """The chooser of a new plan, and whether it stays the same: nothing is left to measure.

        plans: how many there are. runs: tilings may be measured on the arrays of the call.
        """
        rates = self.target.templates.rates(self.options)
        if plans >= MOST_PLANS_OF_CLASSES:
            return TilingChooser(rates, generic=True), True
        if self.options.tune == "off" or self.options.check or self.tilings is not None:
            return self.tilings, True
        # Arguments that the fusion updates stay as they are, and output buffers are not written.
        updated = set(self.fusion.aliases.values() if runs else ())
        numbered = zip(self.fusion.inputs, facts.arguments, strict=True)
        arguments = [value.copy() if number in updated else value for number, value in numbered]
        facts = read_facts(self.fusion, self.target.device, arguments, described=not runs)
        buffers = self._output_buffers(facts)
        segmentation, _ = self._for_sizes(self.concretizations.at(facts.values)[0], facts, NO_BUFFER_USE)
        strides = {**facts.strides, **(buffers.strides or {})}

        def build(tilings: TilingChooser, watch: Watch | None) -> Plan:
            return build_plan(
                segmentation, self.target, facts.layouts, facts.values, strides, aligned=facts.aligned, watch=watch,
                options=self.options, disk=self.disk, output_buffers=buffers.key, slices_of=self._slices_of,
                computation_of=self._computation_of, tilings=tilings,
            )  # fmt: skip

        tuner = Tuner(self.target, TuningRecords(self.disk, rates, self.options.tune == "any_order"), build)
        missing = tuner.from_records()
        if missing and runs and not has_effects(segmentation):
            tuner.measure(missing, lambda plan: deque(self._run_steps(plan, facts, buffers), 0))
        return tuner.chooser(), runs or not missing

    def _for_sizes(self, original: Segmentation, facts: CallFacts, use: OutputBufferUse) -> SegmentationForSizes:
        layouts, values, options = facts.layouts, facts.values, self.options
        refused = epilogue_refusals(self.target, original.fusion, layouts, values, options)
        choices = SizedChoices.of_target(self.target.templates, self.is_step, refused)
        strides = facts.strides if self.orders_results and use == NO_BUFFER_USE else None
        return for_sizes(original, values, options, choices, layouts=layouts, aligned=facts.aligned, strides=strides)

    def _build(
        self, facts: CallFacts, buffers: OutputBuffers, cause: str, use: OutputBufferUse, donated: tuple[Donated, ...],
        tilings: TilingChooser | None,
    ) -> CallablePlan:  # fmt: skip
        with collect_changes(self.changes) as changes:
            return self._compile(facts, buffers, cause, use, donated, tilings, changes)

    @keeps_objects_young
    def _compile(
        self, facts: CallFacts, buffers: OutputBuffers, cause: str, use: OutputBufferUse, donated: tuple[Donated, ...],
        tilings: TilingChooser | None, changes: Sequence[PassChange],
    ) -> CallablePlan:  # fmt: skip
        """Builds a plan. changes: collects the changes of the passes that run."""
        start = time.perf_counter()
        segmentation, concrete = self.concretizations.at(facts.values)
        dump = Dump(self.options, self.name, changes)
        dump.before(self.fusion, facts.arguments, concrete)
        with dump.passes():
            segmentation, guards = self._for_sizes(segmentation, facts, use)
            watch = watching(self.options, self.target, self._run_alone)
            # The bounds that check mode compares with hold for IEEE arithmetic.
            options = self.options.replaced(fast_math=False) if self.options.check else self.options
            segmented = time.perf_counter()
            plan = build_plan(
                segmentation, self.target, facts.layouts, facts.values, {**facts.strides, **(buffers.strides or {})},
                guards=(*concrete.guards, *guards), aligned=facts.aligned, options=options, disk=self.disk,
                output_buffers=buffers.key, watch=watch, slices_of=self._slices_of, donated=donated,
                computation_of=self._computation_of, tilings=tilings,
            )  # fmt: skip
        plan = replace(plan, cause=cause)
        self.compiles += 1
        call, text = repeatable_call(plan, self.target, (*self.facts, *concrete.guards), self._scalars, self.options)
        dump.after(plan, facts.values, text)
        if self.options.debug:
            why = explain_new_plan([ready.plan for ready in self.plans.plans(use)], facts, buffers)
            say_plan(self.options, self.name, plan, why, segmented - start, time.perf_counter() - start)
        is_silent = not use.donated or self._is_silent(plan, len(use.donated))
        holds = compile_guards(plan.guards)
        return CallablePlan(plan, call, text, holds, facts.values, is_silent, plan.donated_results)

    def _is_silent(self, plan: Plan, donated: int) -> bool:
        """Whether a call needs neither a warning about donated arrays nor a fill of those that hold no result."""
        is_ignored = len(plan.donated) == donated and self.options.donation == "ignore"
        return not self.options.check and (len(plan.reused) == donated or is_ignored)

    def _run_alone(self, fusion: Fusion, arguments: Sequence[Any]) -> Sequence[Any]:
        """Compiles and runs another fusion with the same options, without checks."""
        return self._part(fusion, self.options.replaced(check=False, debug=0, dump=""))(arguments)

    def _part(self, fusion: Fusion, options: Options) -> Executable:
        return Executable(segment_fusion(fusion, options=options), self.target, options=options, disk=self.disk)

    def _slices_of(self, sliced: Sliced) -> Computation:
        """The executable that computes one slice of a stream-parallel segment, checked but not logged."""
        quiet = self.options.replaced(debug=0, dump="")
        return self.plans.computes_slice(sliced, lambda: self._part(sliced.fusion, quiet))

    def _computation_of(self, part: SubFusion) -> Executable:
        """The executable of a sub-fusion of a control-flow op."""

        def make() -> Executable:
            quiet = step_options(self.options, part.fusion)
            rewritten = run_passes(FUSION_PASSES, part.fusion, quiet)
            split = segment_fusion(rewritten, merge=merge_of(quiet, self.concretizations.original.merge), options=quiet)
            step = Executable(split, self.target, options=quiet, disk=self.disk)
            step.is_step = True
            return step

        return self.plans.computes_part(part, make)
