"""Wraps the segments of a plan: with timing under `debug`, with comparisons under `check`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.config import Options
from tracefuse.diagnostics.checking import RunAlone, checked
from tracefuse.logs import say
from tracefuse.runtime.compiled_segment import CompiledSegment, progress_of
from tracefuse.runtime.targets.target import Target


def watching(
    options: Options, target: Target, run_alone: RunAlone
) -> Callable[[CompiledSegment, int], CompiledSegment] | None:
    """A function that wraps a segment, or None if the options need no wrapper."""
    if not options.check and not options.debug:
        return None

    def watch(segment: CompiledSegment, position: int) -> CompiledSegment:
        if options.debug:
            segment = _timed(segment, position, options, target)
        return checked(segment, position, target, run_alone) if options.check else segment

    return watch


def _timed(segment: CompiledSegment, position: int, options: Options, target: Target) -> CompiledSegment:
    """The segment with the time of each run logged, measured from idle device to idle device."""
    run = segment.run

    def timed(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        target.device.synchronize()
        start = time.perf_counter()
        new_outputs = run(inputs, outputs)
        target.device.synchronize()
        seconds = time.perf_counter() - start
        compiled = "".join(f"; {text}" for text in progress_of(segment, target))
        say(options, 1, lambda: f"segment {position} ({segment.template}) ran in {1e6 * seconds:.1f} us{compiled}")
        return new_outputs

    return replace(segment, run=timed, code=None)
