"""Liveness: the last use of each value, and the placement of releases in a program.

A value (numbered from 0) is released right after its last reader. A value without readers is released right after the
launch that produces it, and an input without readers before the first launch. Outputs of the program are not released,
nor are extents: they are integers and hold no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segments.index_map import Segment
from segments.instructions import AllocateBuffer, Instruction, Launch, Release
from segments.program import Program


def last_uses(launches: Sequence[Launch], inputs: Sequence[int]) -> dict[int, int]:
    """Return the position of each value's last reader, for values from 0 up.

    A value without readers has the position of the launch that produces it; an input without readers has -1.
    """
    last = {value: -1 for value in inputs if value >= 0}
    for position, launch in enumerate(launches):
        for value in (*launch.inputs, *launch.outputs):
            if value >= 0:
                last[value] = position
    return last


def releases(launches: Sequence[Launch], inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the values to release before the first launch (item 0) and after launch i (item i + 1), ascending."""
    dead_after: list[list[int]] = [[] for _ in range(len(launches) + 1)]
    never_released = frozenset(outputs)
    for value, position in last_uses(launches, inputs).items():
        if value not in never_released:
            dead_after[position + 1].append(value)
    return [tuple(sorted(values)) for values in dead_after]


def build_program(
    segments: Sequence[Segment],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    extents: Sequence[int] = (),
    spec_of: Callable[[int], object] | None = None,
    label_of: Callable[[int], object] | None = None,
) -> Program:
    """Build and verify the program that runs `segments` in order and releases each value after its last use.

    `inputs` and `outputs` are the graph's; `extents` are the negative numbers bound in addition to the inputs. With
    `spec_of(value)`, each output of a launch is allocated right before it; otherwise the launch returns its outputs.
    `label_of(position)` labels the launch of a segment.

    Raises ProgramError when a segment reads a value that no earlier segment produces and that is not an input.
    """
    launches = [
        Launch(position, segment.original_inputs, segment.original_outputs, label_of(position) if label_of else None)
        for position, segment in enumerate(segments)
    ]
    bound = tuple(dict.fromkeys((*inputs, *extents)))
    dead_after = releases(launches, bound, outputs)
    instructions: list[Instruction] = [Release(value) for value in dead_after[0]]
    for launch, dead in zip(launches, dead_after[1:], strict=True):
        if spec_of is not None:
            instructions.extend(AllocateBuffer(value, spec_of(value)) for value in launch.outputs)
        instructions.append(launch)
        instructions.extend(map(Release, dead))
    program = Program(bound, outputs, instructions)
    program.verify()
    return program
