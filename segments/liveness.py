"""When values die: last uses, and where the releases of a program go.

The rules: a value from 0 up is released right after its last reader. One that is made and that nothing reads is
released right after it is made, and an input that nothing reads before the first launch, so that nothing lives
without a reader to come. Outputs of the program stay, and so do extents, which are integers and cost nothing.

This module knows the order of reads and writes. It must not know devices or what a value is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segments.index_map import Segment
from segments.instructions import Allocate, Instruction, Launch, Release
from segments.program import Program


def last_uses(launches: Sequence[Launch], inputs: Sequence[int]) -> dict[int, int]:
    """Return, for every value from 0 up, the position of its last reader.

    A value that nothing reads has the position of the launch that makes it, and an input that nothing reads has -1.
    """
    last = {value: -1 for value in inputs if value >= 0}
    for position, launch in enumerate(launches):
        for value in (*launch.inputs, *launch.outputs):
            if value >= 0:
                last[value] = position
    return last


def releases(launches: Sequence[Launch], inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the values to release before the first launch (item 0) and after launch i (item i + 1), ascending."""
    dying: list[list[int]] = [[] for _ in range(len(launches) + 1)]
    stay = frozenset(outputs)
    for value, position in last_uses(launches, inputs).items():
        if value not in stay:
            dying[position + 1].append(value)
    return [tuple(sorted(values)) for values in dying]


def build_program(
    segments: Sequence[Segment],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    extents: Sequence[int] = (),
    spec_of: Callable[[int], object] | None = None,
    label_of: Callable[[int], object] | None = None,
) -> Program:
    """Build the program that runs `segments` in order, with each release in its place, and verify it.

    `inputs` and `outputs` are the graph's, `extents` the negative numbers that are bound beside the inputs. With
    `spec_of(value)` each output of a launch is allocated right before it; without it launches make what they return.
    `label_of(position)` names the launch of a segment.

    Raises ProgramError when a segment reads what neither an earlier one makes nor the inputs and extents hold.
    """
    launches = [
        Launch(position, segment.original_inputs, segment.original_outputs, label_of(position) if label_of else None)
        for position, segment in enumerate(segments)
    ]
    bound = tuple(dict.fromkeys((*inputs, *extents)))
    dying = releases(launches, bound, outputs)
    instructions: list[Instruction] = [Release(value) for value in dying[0]]
    for launch, dead in zip(launches, dying[1:], strict=True):
        if spec_of is not None:
            instructions.extend(Allocate(value, spec_of(value)) for value in launch.outputs)
        instructions.append(launch)
        instructions.extend(map(Release, dead))
    program = Program(bound, outputs, instructions)
    program.verify()
    return program
