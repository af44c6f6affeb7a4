"""`tune`: measures the best few tilings of each segment on the arrays of a call, before its plan is built.

The segments run once in order. Each one with several tilings is timed on its inputs with each of them, in turns, into
separate results; then it runs as usual, so that later segments read what they would read in a call. Nothing that the
caller holds is written: arguments that the function updates are copied.

Must not know: tracing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.partition.segmentation import Segmentation
from tracefuse.runtime.compile_all import wait_for_compilation
from tracefuse.runtime.compiled_segment import CompiledSegment, Run, Watch
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.target import Target
from tracefuse.runtime.tuned_tilings import TuningRecords
from tracefuse.schedule.tiling_choice import PricedTiling, TilingChooser
from tracefuse.schedule.tilings import Tiling
from tracefuse.waiting import counted_steps

MOST_MEASURED = 5
"""The most tilings of a segment that are measured: the cheapest by the model."""

SECONDS = 0.1
MOST_ROUNDS = 50
LEAST_ROUNDS = 3
"""Rounds over the tilings of a segment: about SECONDS together, after one round that is not counted."""

CLEARLY = 0.98
"""Another tiling is used in place of the model's choice if it takes less than this fraction of its time."""

_measuring = threading.Lock()
"""Held while tilings are measured: two measurements at once would disturb each other."""

Build = Callable[[TilingChooser, Watch | None], Plan]


def has_effects(segmentation: Segmentation) -> bool:
    """Whether a run of the segments does more than compute results, or takes part in an exchange between ranks."""
    return any(node.op.effect for node in segmentation.steps.nodes)


@dataclass(slots=True)
class Tuner:
    """Finds the tilings of the segments of a plan.

    build: builds the plan with a chooser, each segment wrapped. run: runs a plan on the arrays of the call. times: what
    was measured, now or earlier, by the name of a problem, in microseconds.
    """

    target: Target
    records: TuningRecords
    build: Build
    times: dict[str, Mapping[Tiling, float]] = field(default_factory=dict)

    def from_records(self) -> dict[str, str]:
        """Looks up the segments of the plan that the model chooses; returns the keys of those without a record."""
        plan = self.build(TilingChooser(self.records.rates, own_classes=True), None)
        missing = {}
        for segment in plan.segments:
            for name, offered in self._offers(segment):
                assert segment.lowered is not None
                kernels = [self.target.compiler.identity(launch.kernel) for launch in segment.lowered.launches]
                key = self.records.key((name.partition("_")[2], *kernels), segment.lowered)
                times = self.records.load(key, offered)
                if times is None:
                    missing[name] = key
                else:
                    self.times[name] = times
        return missing

    def measure(self, missing: Mapping[str, str], run: Callable[[Plan], Any]) -> None:
        """Measures the segments in `missing`, and stores what it finds."""
        with _measuring, counted_steps("measuring tilings", len(missing)) as count:
            plan = self.build(TilingChooser(self.records.rates, own_classes=True), None)
            variants = self._variants(plan, missing)

            def watch(segment: CompiledSegment, position: int) -> CompiledSegment:
                runs = {name: variants[name] for name, _ in self._offers(segment) if name in variants}
                return segment if not runs else replace(segment, run=self._timed(segment.run, runs, count), code=None)

            measured = self.build(TilingChooser(self.records.rates, own_classes=True), watch)
            wait_for_compilation()  # of kernels that plans without tuning have in common
            run(measured)
        for name, key in missing.items():
            if name in self.times:
                self.records.store(key, self.times[name])

    def chooser(self) -> TilingChooser:
        """Returns the chooser of the fastest tilings that are known."""
        fastest = {name: self._fastest(times) for name, times in self.times.items()}
        return TilingChooser(self.records.rates, fastest, own_classes=True, measured=self.times)

    @staticmethod
    def _fastest(times: Mapping[Tiling, float]) -> Tiling:
        first = next(iter(times))
        best = min(times, key=times.__getitem__)
        return best if times[best] < CLEARLY * times[first] else first

    def _offers(self, segment: CompiledSegment) -> Iterable[tuple[str, tuple[PricedTiling, ...]]]:
        """Yields the names and the tilings of a segment's problems; of an equal segment, those of the first one."""
        return () if segment.lowered is None else segment.lowered.tilings.items()

    def _candidates(self, offered: Sequence[PricedTiling]) -> list[Tiling]:
        """Returns the tilings to measure: the model's choice first, then others by their price."""
        (chosen,) = (candidate for candidate in offered if candidate.is_chosen)
        allowed = [
            candidate
            for candidate in offered
            if self.records.any_order or candidate.tiling.order == offered[0].tiling.order
        ]
        alternatives = sorted(
            (candidate for candidate in allowed if not candidate.is_chosen), key=lambda candidate: candidate.price.total
        )
        return [chosen.tiling, *(candidate.tiling for candidate in alternatives)][:MOST_MEASURED]

    def _variants(self, plan: Plan, names: Collection[str]) -> dict[str, dict[Tiling, Run]]:
        """Compiles each segment with each of its tilings: as many plans as a segment has tilings to measure."""
        candidates: dict[str, list[Tiling]] = {}
        for segment in plan.segments:
            candidates.update((name, self._candidates(o)) for name, o in self._offers(segment) if name in names)
        result: dict[str, dict[Tiling, Run]] = {name: {} for name in candidates}
        for place in range(max(map(len, candidates.values()), default=0)):
            forced = {name: tilings[place] for name, tilings in candidates.items() if place < len(tilings)}
            built = self.build(TilingChooser(self.records.rates, forced, own_classes=True), None)
            for segment in built.segments:
                for name, _ in self._offers(segment):
                    if name in forced:
                        result[name].setdefault(forced[name], segment.run)
        return result

    def _timed(self, run: Run, variants: Mapping[str, Mapping[Tiling, Run]], count: Callable[..., None]) -> Run:
        """Returns a function that measures a segment the first time that it runs, and then runs it."""

        def measured(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
            for name, runs in variants.items():
                if name not in self.times and all(output.flags.c_contiguous for output in outputs):
                    self.times[name] = self._measure(runs, inputs, [output.copy() for output in outputs])
                    count(name)
            return run(inputs, outputs)

        return measured

    def _measure(
        self, runs: Mapping[Tiling, Run], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> dict[Tiling, float]:
        """Returns the least microseconds of each run, which take turns."""
        best = dict.fromkeys(runs, float("inf"))
        started = time.perf_counter()
        for number in range(MOST_ROUNDS + 1):
            for tiling, run in runs.items():
                self.target.device.synchronize()
                start = time.perf_counter()
                run(inputs, outputs)
                self.target.device.synchronize()
                if number:
                    best[tiling] = min(best[tiling], 1e6 * (time.perf_counter() - start))
            if number >= LEAST_ROUNDS and time.perf_counter() - started > SECONDS:
                break
        return best
