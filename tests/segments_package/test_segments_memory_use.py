"""Tests the memory use of programs against a device that counts allocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments import (
    Alias,
    AllocateBuffer,
    ArgumentManager,
    CopyBuffer,
    HostLoop,
    Launch,
    MemoryUse,
    Program,
    Release,
    Runner,
    Select,
    build_program,
    build_segments,
    memory_timeline,
    memory_use,
    partition,
)
from tests.segments_package.segments_strategies import EXTENTS, extents_of, graphs, rules
from tests.session.samples import times


def size_of(value: int) -> int:
    return 3 + value * value % 11


class Counting:
    """A device whose buffers are sizes; the most that was out at one time, and at which launch."""

    def __init__(self) -> None:
        self.out = self.peak = 0
        self.step: int | None = None

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        assert isinstance(spec, int)
        self.out += spec
        return spec

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> Sequence[object] | None:
        if self.out > self.peak:
            self.peak, self.step = self.out, step
        return None

    def release(self, buffer: object) -> None:
        assert isinstance(buffer, int)
        self.out -= buffer


@given(st.data())
@settings(max_examples=times(50), deadline=None)
def test_the_count_is_that_of_a_device(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    segments = build_segments(graph, partition(graph, data.draw(rules(graph))), extents_of=extents_of)
    program = build_program(segments, graph.inputs, graph.outputs, extents=sorted(EXTENTS), spec_of=size_of)
    device = Counting()
    inputs = dict.fromkeys(graph.inputs, 0)
    Runner(program, device).run(ArgumentManager(inputs, dict.fromkeys(EXTENTS, 1)))
    assert memory_use(program, size_of) == MemoryUse(device.peak, device.step, device.out)
    timeline = list(memory_timeline(program, size_of))
    assert tuple(instruction for instruction, _ in timeline) == program.instructions
    assert max((live for instruction, live in timeline if isinstance(instruction, Launch)), default=0) == device.peak
    assert [live for _, live in timeline][-1:] in ([], [device.out])


def test_aliases_and_slices_add_no_memory_and_keep_their_buffer() -> None:
    program = Program(
        [0],
        [3],
        [
            AllocateBuffer(1), Launch(0, (0,), (1,)), Alias(2, 1), Release(1), Release(0),
            AllocateBuffer(3), Launch(1, (2,), (3,)), Release(2),
        ],
    )  # fmt: skip
    assert memory_use(program, lambda value: 10) == MemoryUse(20, 1, 10)


def test_memory_that_is_passed_in_is_not_counted() -> None:
    program = Program([0, 1], [1], [Alias(2, 1), Launch(0, (0,), (2,)), Release(0), Release(2)])
    assert memory_use(program, lambda value: 10) == MemoryUse(0, None, 0)
    copied = Program([0, 1], [1], [Launch(0, (0,), (2,)), CopyBuffer(2, 1), Release(0), Release(2)])
    assert memory_use(copied, lambda value: 10) == MemoryUse(10, 0, 0)


@pytest.mark.parametrize("slots", [1, 5])
def test_a_loop_takes_what_one_iteration_takes(slots: int) -> None:
    body = (
        Select(2, 1, 0, 0), AllocateBuffer(3), Launch(0, (2,), (3,)), AllocateBuffer(4), Launch(1, (3,), (4,)),
        Release(3),
    )  # fmt: skip
    program = Program([0], [1], [AllocateBuffer(1), Launch(2, (0,), (1,)), HostLoop(9, 0, slots, 1, body), Release(0)])
    assert memory_use(program, lambda value: 10, lambda launch: 5 if launch.step == 1 else 0) == MemoryUse(35, 1, 10)
