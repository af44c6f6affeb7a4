"""Launches are joined only where no launch can tell: results, memory and order stay those of the program."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from segments import AllocateBuffer, HostOp, Instruction, Launch, Release
from tracefuse.runtime.joined_launches import LEAST, JoinedLaunches, join_launches

VALUES = 12
"""The values that exist before the first launch."""


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """Launches of three kernels and host operations over earlier values, with a release after the last use of some."""
    instructions: list[Instruction] = []
    live, next_value = list(range(VALUES)), VALUES
    for step in range(draw(st.integers(0, 30))):
        inputs = tuple(draw(st.lists(st.sampled_from(live), max_size=2)))
        kernel = draw(st.sampled_from("aaaabbc-"))
        instructions.append(AllocateBuffer(next_value))
        if kernel == "-":
            instructions.append(HostOp("op", inputs, next_value))
        else:
            instructions.append(Launch(step, inputs, (next_value,), kernel))
        live.append(next_value)
        next_value += 1
        if len(live) > 1 and draw(st.booleans()):
            dead = live.pop(draw(st.integers(0, len(live) - 1)))
            instructions.append(Release(dead))
    return instructions


def joined(program: list[Instruction], shared: tuple[int, ...] = ()) -> list[Any]:
    return list(join_launches(program, lambda launch: None if launch.label == "c" else launch.label, shared))


@given(programs())
def test_every_launch_runs_once_after_what_it_reads_and_before_releases(program: list[Instruction]) -> None:
    known, released, ran = set(range(VALUES)), set(), []
    for item in joined(program):
        if isinstance(item, AllocateBuffer):
            continue
        if isinstance(item, Release):
            assert item.value not in released
            released.add(item.value)
            continue
        launches = item.launches if isinstance(item, JoinedLaunches) else (item,)
        for launch in launches:
            assert known.issuperset(launch.inputs)
            assert released.isdisjoint(launch.inputs)
        for launch in launches:
            ran.append(launch)
            known.update(launch.outputs if isinstance(launch, Launch) else (launch.output,))
        if isinstance(item, JoinedLaunches):
            assert len({launch.label for launch in launches}) == 1
            assert len(launches) >= LEAST
    work = [i for i in program if isinstance(i, Launch | HostOp)]
    assert sorted(map(str, ran)) == sorted(map(str, work))
    assert released == {i.value for i in program if isinstance(i, Release)}


@given(programs())
def test_memory_that_a_launch_uses_is_released_after_it(program: list[Instruction]) -> None:
    touched: dict[int, int] = {}
    position_of: dict[int, int] = {}
    for position, item in enumerate(joined(program)):
        if isinstance(item, Release):
            position_of[item.value] = position
        elif not isinstance(item, AllocateBuffer):
            for launch in item.launches if isinstance(item, JoinedLaunches) else (item,):
                outputs = launch.outputs if isinstance(launch, Launch) else (launch.output,)
                touched.update(dict.fromkeys((*launch.inputs, *outputs), position))
    assert all(position > touched.get(value, -1) for value, position in position_of.items())


def updates(count: int) -> list[Instruction]:
    return [
        instruction
        for k in range(count)
        for instruction in (AllocateBuffer(100 + k), Launch(k, (k,), (100 + k,), "a"), Release(k))
    ]


def test_independent_launches_of_one_kernel_become_one() -> None:
    (together,) = (item for item in joined(updates(9)) if isinstance(item, JoinedLaunches))
    assert [launch.step for launch in together.launches] == list(range(9))
    assert not any(isinstance(item, JoinedLaunches) for item in joined(updates(LEAST - 1)))


def test_launches_into_shared_memory_stay_apart() -> None:
    shared = tuple(range(100, 109))
    assert not any(isinstance(item, JoinedLaunches) for item in joined(updates(9), shared))


def test_memory_for_a_launch_is_allocated_after_what_it_waits_for_has_released_memory() -> None:
    program: list[Instruction] = []
    for step, kernel in enumerate("acacac"):
        program += [AllocateBuffer(step + 1), Launch(step, (step,), (step + 1,), kernel), Release(step)]
    live, most = {0}, 0
    for item in joined(program):
        if isinstance(item, AllocateBuffer):
            live.add(item.value)
        elif isinstance(item, Release):
            live.discard(item.value)
        else:
            assert live.issuperset((*item.inputs, *item.outputs))
        most = max(most, len(live))
    assert most == 2
