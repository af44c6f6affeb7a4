"""Log messages of compilations: new traces, new plans with the reason for each, their segments and kernels."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tracefuse.config import Options
from tracefuse.dynamic.guards import compile_guards
from tracefuse.dynamic.layouts import Strided
from tracefuse.ir.extents import Extent, evaluate, substitute, symbols
from tracefuse.logs import say
from tracefuse.partition import segment_table
from tracefuse.runtime.argument_leaves import Leaf
from tracefuse.runtime.memory.buffer_facts import OutputBuffers
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.plan import Plan


def say_trace(options: Options, name: str, leaves: Sequence[Leaf], seconds: float) -> None:
    """Logs a trace at level 1. seconds: the time it took."""
    arrays = (leaf for leaf in leaves if leaf.is_array)
    shown = (f"{leaf.dtype}[{', '.join(map(str, leaf.value.shape))}]" for leaf in arrays)
    say(options, 1, lambda: f"{name}: traced for {', '.join(shown) or 'no arrays'} in {1e3 * seconds:.1f} ms")


def say_plan(options: Options, name: str, plan: Plan, why: str, segmenting: float, seconds: float) -> None:
    """Logs a new plan: segments, reason, times at level 1, its IR and boundaries at 2, its kernels at 3.

    segmenting: the seconds until the segments were known; seconds: in all.
    """
    say(options, 1, lambda: f"{name}: {_times_text(plan, segmenting)}")
    templates = ", ".join(f"{k} {segment.template}" for k, segment in enumerate(plan.segments))
    duration = f"{1e3 * seconds:.1f} ms"
    say(options, 1, lambda: f"{name}: compiled {len(plan.segments)} segments ({templates}) in {duration}: {why}")
    say(options, 2, lambda: f"{name}: its fusion is\n{plan.segmentation.fusion}")
    boundaries = plan.segmentation.partition.boundaries
    if boundaries:
        say(options, 2, lambda: f"{name}: its segments are not one, because\n{segment_table.reasons_text(boundaries)}")
    for position, segment in enumerate(plan.segments):
        for function in segment.functions:
            say(options, 3, functools.partial(_source_text, name, position, function))


def _times_text(plan: Plan, segmenting: float) -> str:
    times = plan.times
    if times is None:
        return f"segmenting {1e3 * segmenting:.1f} ms"
    stages = (
        ("segmenting", segmenting), ("choosing loops", times.choosing_loops),
        ("compiling kernels", times.compiling_kernels), ("host program", times.host_program),
    )  # fmt: skip
    durations = ", ".join(f"{stage} {1e3 * seconds:.1f} ms" for stage, seconds in stages)
    new, disk, memory = times.kernels
    quick = sum(map(len, plan.progress))
    first = f"; {quick} compiled quickly first" if quick else ""
    return f"{durations}; kernels: {new} new, {disk} from disk, {memory} from memory{first}"


def _source_text(name: str, position: int, function: Any) -> str:
    return f"{name}: segment {position} is\n{getattr(function, 'source', function)}"


def explain_new_plan(plans: Sequence[Plan], facts: CallFacts, buffers: OutputBuffers) -> str:
    """Why no plan fits a call. plans: the most recently used first. buffers: the output buffers of the call."""
    if not plans:
        return "the first call"
    latest = plans[0]
    values: dict[Any, int] = {**facts.values, **facts.strides, **(buffers.strides or {})}
    inputs = latest.segmentation.fusion.tensor_inputs
    for number, old, new in zip(inputs, latest.layouts, facts.layouts, strict=True):
        if old != new:
            return f"the layout of input T{number} was {_layout_text(old)}, now it is {_layout_text(new)}"
    for guard in latest.guards:
        if not compile_guards([guard])(values):
            left, right = _value(guard.left, values), _value(guard.right, values)
            return f"a guard failed, {guard}; now they are {left} and {right}"
    if not latest.aligned <= facts.aligned:
        number = min(latest.aligned - facts.aligned)
        return f"input T{number} started at a multiple of 16 bytes, now it does not"
    return "the output buffers differ in layout" if latest.output_buffers != buffers.key else "its sizes are new"


def _value(extent: Extent, values: Mapping[Any, int]) -> int:
    """Evaluates an extent. values: sizes by id, strides by name."""
    sizes = {symbol: values[symbol.name if symbol.id is None else symbol.id] for symbol in symbols(extent)}
    return evaluate(substitute(extent, sizes), {})


def _layout_text(layout: Strided | None) -> str:
    if layout is None:
        return "contiguous"
    return f"strided {layout.axes!r}" + ("" if layout.aligned else ", misaligned")
