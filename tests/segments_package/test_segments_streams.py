"""Tests loops, slices, streams, host operations and exchanges: text, rules, and results on NumPy arrays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments import (
    Alias,
    AllocateBuffer,
    Communicate,
    GetStream,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    PoolStream,
    Program,
    ProgramError,
    Release,
    Runner,
    Select,
    SetStream,
    Synchronize,
    Wait,
    WaitRequest,
    integer_of,
    spread,
)
from segments.run_streams import RunStreams
from tests.segments_package.array_device import EXTENT, OWN, ROWS, ArrayDevice, on_streams, twice
from tests.session.samples import times


def rows_program(loop: HostLoop, outputs: Sequence[int] = (1,)) -> Program:
    shape = AllocateBuffer(1, lambda values: (values[-1], 3))
    return Program([0, -1], outputs, [shape, loop, Release(0)])


def test_a_loop_prints_with_its_body_indented() -> None:
    program = Program(
        [0, -1],
        [1],
        [AllocateBuffer(1, "f32[n, 3]"), on_streams(3, EXTENT, [*ROWS[:2], Launch(0, (4,), (5,))]), Release(0)],
    )
    program.verify()
    assert str(program) == (
        "program(t0, e1):\n"
        "  t1 = allocate(f32[n, 3])\n"
        "  for t3 in range(0, e1, 1):\n"
        "    s0 = current stream\n"
        "    set stream stream (t3 % 3)\n"
        "    synchronize s0\n"
        "    t4 = select(t0, axis 0, index t3)\n"
        "    t5 = select(t1, axis 0, index t3)\n"
        "    launch segment_0(t4) -> t5\n"
        "    set stream s0\n"
        "    synchronize stream (t3 % 3)\n"
        "  release t0\n"
        "  return t1"
    )
    assert str(HostOp("add", (1, 2), 3)) == "t3 = add(t1, t2)"
    assert str(Communicate(5, "allgather", (1,), (2,))) == "r5 = communicate allgather(t1) -> t2"
    assert str(Select(4, 0, 1, 2, size=5)) == "t4 = select(t0, axis 1, index 2, size 5)"
    assert str(Wait(3)) == "wait for t3"


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_a_loop_over_slices_on_streams_gives_what_one_stream_gives(rows: int) -> None:
    device = ArrayDevice()
    x = np.arange(rows * 3.0).reshape(rows, 3)
    (result,) = Runner(rows_program(on_streams(3, EXTENT, ROWS)), device)([x, rows])
    np.testing.assert_array_equal(result, 2 * x)
    assert device.allocations == 1
    assert len(device.threads) == min(rows, 3)
    assert threading.get_ident() not in device.threads


def test_slices_of_several_elements_are_cut_to_the_axis() -> None:
    body = [Select(4, 0, 0, integer_of(3), 4), Select(5, 1, 0, integer_of(3), 4), Launch(0, (4,), (5,), twice)]
    x = np.arange(30.0).reshape(10, 3)
    (result,) = Runner(rows_program(on_streams(3, 3, body)), ArrayDevice())([x, 10])
    np.testing.assert_array_equal(result, 2 * x)


def test_slices_of_slices_fill_their_value() -> None:
    inner = HostLoop(
        6, 0, 3, 1, (Select(7, 4, 0, integer_of(6)), Select(8, 5, 0, integer_of(6)), Launch(0, (7,), (8,), twice))
    )
    x = np.arange(12.0).reshape(4, 3)
    (result,) = Runner(rows_program(HostLoop(3, 0, EXTENT, 1, (*ROWS[:2], inner))), ArrayDevice())([x, 4])
    np.testing.assert_array_equal(result, 2 * x)


def test_what_work_on_a_stream_raises_reaches_the_caller() -> None:
    def fails(x: Any) -> Any:
        if x[0] == 6:
            raise ZeroDivisionError("row 2")
        return x

    x = np.arange(30.0).reshape(10, 3)
    runner = Runner(rows_program(on_streams(3, EXTENT, [*ROWS[:2], Launch(0, (4,), (5,), fails)])), ArrayDevice())
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="row 2"):
        runner([x, 10])
    assert threading.active_count() == before
    np.testing.assert_array_equal(runner([x[:2], 2])[0], x[:2])


def test_results_of_one_stream_are_available_to_others_after_a_wait() -> None:
    instructions: list[Instruction] = [
        GetStream(0), SetStream(PoolStream(0)), Synchronize(OWN), Launch(0, (0,), (1,), twice),
        SetStream(PoolStream(1)), Synchronize(OWN), Launch(1, (0,), (2,), np.square),
        Wait(1), Launch(2, (1, 2), (3,), np.add), SetStream(OWN), Wait(3), Release(1), Release(2), Release(0),
    ]  # fmt: skip
    instructions[-3:] = [Synchronize(PoolStream(0)), Synchronize(PoolStream(1)), *instructions[-3:]]
    x = np.arange(5.0)
    (result,) = Runner(Program([0], [3], instructions), ArrayDevice())([x])
    np.testing.assert_array_equal(result, 2 * x + x * x)


@pytest.mark.parametrize(
    ("bound", "allocations"),
    [(True, 1), (False, 0)],
)
def test_a_host_operation_writes_what_it_is_bound_to(bound: bool, allocations: int) -> None:
    device = ArrayDevice()
    before = [AllocateBuffer(2, (3,))] if bound else []
    program = Program([0, 1], [2], [*before, HostOp(np.add, (0, 1), 2), Release(0), Release(1)])
    (result,) = Runner(program, device)([np.ones(3), np.arange(3.0)])
    np.testing.assert_array_equal(result, [1, 2, 3])
    assert device.allocations == allocations


def test_a_host_operation_writes_a_slice() -> None:
    body = (*ROWS[:2], HostOp(np.negative, (4,), 5))
    x = np.arange(6.0).reshape(2, 3)
    (result,) = Runner(rows_program(HostLoop(3, 0, EXTENT, 1, body)), ArrayDevice())([x, 2])
    np.testing.assert_array_equal(result, -x)


def test_an_exchange_is_an_instruction() -> None:
    program = Program([0], [1], [Communicate(0, np.sum, (0,), (1,)), WaitRequest(0), Release(0)])
    assert Runner(program, ArrayDevice())([np.arange(4.0)]) == (6.0,)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([*ROWS[:2], Launch(0, (4, 1), (5,))],
         "`launch segment_0(t4, t1) -> t5`: reads t1, which is allocated but not yet filled by any launch"),
        ([*ROWS, Launch(1, (1,), (9,)), Release(9)],
         "`launch segment_1(t1) -> t9`: reads t1, which the loop is still filling slice by slice"),
        ([*ROWS, Release(0)], "`release t0`: a loop releases t0, which is defined outside its body"),
        ([*ROWS[:2], Launch(0, (4,), (1,))], "`launch segment_0(t4) -> t1`: produces t1, which is already defined"),
        ([Select(0, 1, 0, 0)], "`t0 = select(t1, axis 0, index 0)`: t0 is an input and cannot be redefined as a slice"),
        ([Select(4, -1, 0, 0)], "`t4 = select(e1, axis 0, index 0)`: extents have no memory"),
        ([Select(4, 0, 0, integer_of(8))], "`t4 = select(t0, axis 0, index t8)`: reads t8 before its definition"),
        ([Wait(7)], "`wait for t7`: reads t7 before its definition"),
    ],
)  # fmt: skip
def test_loops_have_rules(body: list[Instruction], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        rows_program(HostLoop(3, 0, EXTENT, 1, tuple(body))).verify()
    assert message in str(caught.value)
    assert str(caught.value).startswith("instruction 1.")


def without(loop: HostLoop, kind: type) -> HostLoop:
    return HostLoop(
        loop.index, loop.start, loop.stop, loop.step, tuple(i for i in loop.body if not isinstance(i, kind))
    )


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ([AllocateBuffer(1), without(on_streams(3, EXTENT, ROWS), Synchronize), Release(0)],
         "reads t4 without waiting for another stream, on which the caller wrote that memory"),
        ([AllocateBuffer(1), HostLoop(3, 0, EXTENT, 1, on_streams(3, EXTENT, ROWS).body[:-1]), Release(0)],
         "`release t0`: releases t0 without waiting for another stream"),
        ([GetStream(0), SetStream(PoolStream(0)), Synchronize(OWN), Launch(0, (0,), (1,)), SetStream(PoolStream(1)),
          Synchronize(OWN), Launch(1, (1,), (2,))],
         "instruction 6, `launch segment_1(t1) -> t2`: reads t1 without waiting for another stream, on which "
         "instruction 3, `launch segment_0(t0) -> t1` wrote that memory"),
        ([GetStream(0), SetStream(PoolStream(0)), Synchronize(OWN), Launch(0, (0,), (1,)), Release(0),
          SetStream(OWN)],
         "the end: reads t1 without waiting for another stream"),
        ([SetStream(OWN)], "instruction 0, `set stream s0`: no earlier instruction defines stream s0"),
        ([GetStream(0), SetStream(PoolStream(0)), Synchronize(OWN), Launch(0, (0,), (1,)), Release(0)],
         "the program does not end on the caller's stream"),
    ],
)  # fmt: skip
def test_a_stream_reads_values_of_another_only_after_a_wait(instructions: list[Instruction], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        Program([0, -1], [1], instructions).verify()
    assert message in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# any program on streams


@given(st.data())
@settings(max_examples=times(30), deadline=None)
def test_a_program_on_streams_gives_what_it_gives_on_one(data: st.DataObject) -> None:
    """Each step reads some earlier values on a stream of its own choice, with a wait for each that crosses."""
    count = data.draw(st.integers(1, 12))
    steps = [
        (data.draw(st.lists(st.integers(0, k), min_size=1, max_size=3)), data.draw(st.integers(0, 3)))
        for k in range(count)
    ]
    instructions: list[Instruction] = [GetStream(0)]
    for k, (inputs, stream) in enumerate(steps):
        instructions += [SetStream(PoolStream(stream)), Synchronize(OWN), *(Wait(v) for v in sorted(set(inputs)))]
        instructions += [Launch(k, tuple(inputs), (k + 1,), lambda *values: sum(values) % 97)]
    instructions += [SetStream(OWN), *(Synchronize(PoolStream(k)) for k in sorted({s for _, s in steps}))]
    instructions += [Release(v) for v in range(count)]
    program = Program([0], [count], instructions)
    serial = [i for i in instructions if isinstance(i, Launch | Release)]
    x = np.arange(4.0)
    expected = Runner(Program([0], [count], serial), ArrayDevice())([x])[0]
    np.testing.assert_array_equal(Runner(program, ArrayDevice())([x])[0], expected)


def test_independent_launches_go_to_streams_of_their_own() -> None:
    launches = [Launch(0, (0,), (1,)), Launch(1, (0,), (2,)), Launch(2, (1,), (3,)), Launch(3, (2, 3), (4,))]
    program = Program([0], [4], [*launches, *map(Release, (0, 1, 2, 3))])
    spread_out = spread(program, 4)
    lines = str(spread_out).split("\n")
    assert lines[1:-6] == [
        "  s0 = current stream",
        "  set stream stream (0)", "  synchronize s0", "  launch segment_0(t0) -> t1",
        "  set stream stream (1)", "  synchronize s0", "  launch segment_1(t0) -> t2",
        "  set stream stream (0)", "  launch segment_2(t1) -> t3",
        "  set stream stream (1)", "  wait for t3", "  launch segment_3(t2, t3) -> t4",
        "  set stream s0", "  synchronize stream (0)",
    ]  # fmt: skip
    assert spread(program, 1) is program
    chain = Program([0], [2], [Launch(0, (0,), (1,)), Release(0), Launch(1, (1,), (2,)), Release(1)])
    assert spread(chain, 4) is chain


def test_a_second_write_to_memory_waits_for_its_readers() -> None:
    program = Program(
        [0], [1, 3], [Launch(0, (0,), (1,), lambda x: x.copy()), Launch(1, (0,), (2,), twice), Alias(3, 0),
                      Launch(2, (2,), (3,), twice), Release(0), Release(2)]
    )  # fmt: skip
    spread_out = spread(program, 3)
    assert "synchronize stream (0)" in str(spread_out).partition("launch <function twice")[2]
    x = np.arange(4.0)
    copied, _ = Runner(spread_out, ArrayDevice())([x])
    np.testing.assert_array_equal(copied, np.arange(4.0))
    np.testing.assert_array_equal(x, 4 * np.arange(4.0))


@given(st.data())
@settings(max_examples=times(50), deadline=None)
def test_any_graph_spread_over_streams_gives_what_it_gives_on_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    instructions: list[Instruction] = []
    for k in range(count):
        inputs = tuple(data.draw(st.lists(st.integers(0, k), min_size=1, max_size=3)))
        if data.draw(st.booleans()):
            instructions.append(AllocateBuffer(k + 1, (4,)))
        instructions.append(Launch(k, inputs, (k + 1,), lambda *values: sum(values) % 97))
    outputs = sorted(data.draw(st.sets(st.integers(1, count), min_size=1)))
    instructions += [Release(v) for v in range(count + 1) if v not in outputs]
    program = Program([0], outputs, instructions)
    x = np.arange(4.0)
    expected = Runner(program, ArrayDevice())([x])
    results = Runner(spread(program, data.draw(st.integers(1, 5))), ArrayDevice())([x])
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


class RecordedStreams:
    """Streams that only note what they are asked. An event is the stream and the work submitted to it before."""

    def __init__(self) -> None:
        self.submitted: dict[object, int] = {}
        self.waits: list[tuple[object, object]] = []

    def current(self) -> object:
        return "caller"

    def pool(self, index: int) -> object:
        return f"pool {index}"

    def run(self, stream: object, work: Any) -> None:
        self.submitted[stream] = self.submitted.get(stream, 0) + 1

    def record(self, stream: object) -> object:
        return stream, self.submitted.get(stream, 0)

    def wait(self, stream: object, event: object) -> None:
        self.waits.append((stream, event))

    def finish(self, failed: bool) -> None:
        pass


@pytest.mark.parametrize("values", [(1, 2), (2, 1)])
def test_of_two_waits_for_one_stream_the_later_point_counts(values: tuple[int, int]) -> None:
    streams = RecordedStreams()
    run = RunStreams(streams, frozenset({1, 2}))
    run.set(streams.pool(1))
    run.submit(lambda: None, (1,))
    run.submit(lambda: None, (2,))
    run.set(streams.pool(0))
    for value in values:
        run.wait(value)
    run.submit(lambda: None)
    assert streams.waits == [("pool 0", ("pool 1", 2))]
