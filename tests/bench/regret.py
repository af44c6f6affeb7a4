"""What the cost model's choice of tilings costs: random regions, every legal tiling measured.

    python -m tests.bench.regret [--family permutation,axes] [--seed 0] [--n 10] [--megabytes 1,16,100] [--gpu]

Draws functions of families.py that are one segment with several tilings, compiles each tiling, and times them in turns
in one process. The regret is the time of the model's choice over that of the best tiling that keeps the order of
reductions. Prints a line for each draw, then the median, the 95th percentile and the worst of the regrets, and the same
for the first tiling, which is used without the model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from families import FAMILIES, Sample
from sweep import closed, device_array, host_array, listed

from tracefuse import config, fuse, wait_for_compilation
from tracefuse.compiler.executable import Executable
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.targets.resolution import target_for
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.tiling_choice import PricedTiling, TilingChooser

TILED = ("permutation", "pointwise", "axes", "many_outputs", "copies", "rows", "tiny_axis", "shifts")
SECONDS = 0.6
"""The time that all rounds of a draw take, about."""

LEAST_ROUNDS = 12


def segmentation_of(sample: Sample, arguments: Sequence[Any]) -> Segmentation:
    """Returns the segments of a function."""
    fusion = fuse(closed(sample, np)).definition(*arguments).fusion
    return segment_fusion(run_passes(FUSION_PASSES, fusion, config.resolve()))


def tilings_of(segmentation: Segmentation, target: Target, arguments: Sequence[Any]) -> tuple[PricedTiling, ...]:
    """Returns the priced tilings of a function that is one segment with one choice; none for others."""
    plan, _ = Executable(segmentation, target).plan_for(arguments)
    lowered = [segment.lowered for segment in plan.segments]
    if len(lowered) != 1 or lowered[0] is None or len(lowered[0].tilings) != 1:
        return ()
    (priced,) = lowered[0].tilings.values()
    same = [one for one in priced if one.tiling.order == priced[0].tiling.order]
    return tuple(same) if len(same) > 1 else ()


def times_of(
    segmentation: Segmentation, target: Target, arguments: Sequence[Any], priced: Sequence[PricedTiling]
) -> list[float]:
    """Returns the fastest call with each tiling, in seconds. Values must be those of the first one."""
    calls: list[Callable[[], Any]] = []
    expected: list[Any] | None = None
    for one in priced:
        executable = Executable(segmentation, target, tilings=TilingChooser(forced={"s0": one.tiling}))
        results = [np.asarray(target.device.on_host(r)) for r in listed(executable(arguments))]
        expected = expected or results
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, value)
        calls.append(lambda executable=executable: executable(arguments))
    wait_for_compilation()
    best = [float("inf")] * len(calls)
    rounds, started = 0, time.perf_counter()
    while rounds < LEAST_ROUNDS or time.perf_counter() - started < SECONDS:
        for place, call in enumerate(calls):
            target.device.synchronize()
            start = time.perf_counter()
            call()
            target.device.synchronize()
            best[place] = min(best[place], time.perf_counter() - start)
        rounds += 1
    return best


def summary(name: str, regrets: Sequence[float]) -> str:
    ordered = sorted(regrets)
    high = ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]
    median, worst = statistics.median(ordered), ordered[-1]
    return f"{name}: {len(ordered)} regions, median {median:.3f}, 95th {high:.3f}, worst {worst:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default=",".join(TILED))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--megabytes", default="2,16,100")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    target = target_for("cuda" if options.gpu else "cpu", 0)
    sizes = [float(text) * 1e6 for text in options.megabytes.split(",")]
    chosen, first = [], []
    for family in options.family.split(","):
        random = np.random.default_rng([options.seed, sum(map(ord, family))])
        for draw in range(options.n):
            sample = FAMILIES[family](random, int(sizes[draw % len(sizes)]))
            if options.gpu:
                import cupy

                arguments = [device_array(cupy, a, cupy.random.RandomState(0)) for a in sample.arrays]
            else:
                arguments = [host_array(a, np.random.default_rng(0)) for a in sample.arrays]
            segmentation = segmentation_of(sample, arguments)
            priced = tilings_of(segmentation, target, arguments)
            if not priced:
                continue
            times = times_of(segmentation, target, arguments, priced)
            best = min(times)
            regret = next(t for t, one in zip(times, priced, strict=True) if one.is_chosen) / best
            chosen.append(regret)
            first.append(times[0] / best)
            tilings = "; ".join(
                f"{one.tiling}{' *' if one.is_chosen else ''} {1e6 * t:.0f} us (model {one.price.total:.0f})"
                for t, one in zip(times, priced, strict=True)
            )
            print(f"{regret:.2f}  {family}: {sample.text}: {tilings}", flush=True)
    if chosen:
        print(summary("chosen", chosen))
        print(summary("first ", first))


if __name__ == "__main__":
    main()
