"""Conditions of iterations that are recorded once, and what the op of their loop needs besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.frontend.control_flow.sub_recording import SubRecording
from tracefuse.frontend.tracer.record.recorded_loops import LoopKey
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import SubFusion

FLAG = "(condition)"
"""The name of the condition among the carried variables."""

EXACT = "(exact)"
"""The variable that is true while all numbers of Python have been exact."""

UNKNOWN_LENGTH = 1 << 62
"""The length of a loop that only its condition ends."""


@dataclass(frozen=True, slots=True)
class IterationCondition:
    """What must be true for an iteration to run, besides the number of iterations.

    initial: before the first one, a traced bool; None for true. following: returns it after an iteration, from the
    local variables. limits: what is at least 0 in an iteration. part_of: the key of the loop of which the iteration is
    a branch; None for a loop.
    """

    initial: Traced | None
    following: Callable[[dict[str, Any]], Any]
    limits: Sequence[Extent] = ()
    part_of: LoopKey | None = None


@contextmanager
def outside_of(body: SubRecording) -> Iterator[None]:
    """Records what follows before the body that is being recorded."""
    builder, recorder = body.builder, body.recorder
    inside, builder.nodes[body.first_node :] = builder.nodes[body.first_node :], []
    recorder.body = body.outside
    try:
        yield
    finally:
        recorder.body = body
        body.first_node = len(builder.nodes)
        builder.nodes += inside


def in_place(part: SubFusion, first: int, count: int) -> SubFusion:
    """Returns the body with an alias for each carried value that it reads: the place of the value's memory.

    first: the position of the first of `count` carried values among the operands.
    """
    aliases = {}
    for place, output in enumerate(part.fusion.outputs[:count]):
        carried = [n for n, position in zip(part.fusion.inputs, part.inputs, strict=True) if position == first + place]
        if carried:
            aliases[output] = carried[0]
    return SubFusion(replace(part.fusion, aliases=aliases), part.inputs)
