"""Launches are joined only where no launch can tell: results, memory and order stay those of the program."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from segments import Alias, AllocateBuffer, HostOp, Instruction, Launch, Release
from tracefuse.runtime.joined_launches import (
    LEAST,
    JoinedAllocations,
    JoinedLaunches,
    join_allocations,
    join_launches,
)

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


@given(st.data())
def test_launches_into_the_callers_memory_run_in_order_where_they_overlap(data: st.DataObject) -> None:
    # Values 0 to 5 are arguments. A result lies in memory that one or two of them share, or in memory of its own.
    program: list[Instruction] = []
    memory: dict[int, frozenset[int]] = {value: frozenset({value}) for value in range(6)}
    placed: set[int] = set()
    for step in range(data.draw(st.integers(0, 20))):
        value, inputs = 6 + step, tuple(data.draw(st.lists(st.sampled_from(sorted(memory)), max_size=2)))
        if data.draw(st.booleans()):
            shared = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=2))
            memory[value] = frozenset(shared)
            placed.add(value)
            program.append(Alias(value, shared[0]))
        else:
            memory[value] = frozenset({value})
            program.append(AllocateBuffer(value))
        program.append(Launch(step, inputs, (value,), "ab"[step % 2]))
    overlaps = {v: [w for w, m in memory.items() if m & memory[v] and w != v] for v in placed}
    place: dict[int, int] = {}
    for position, item in enumerate(join_launches(program, lambda launch: launch.label, (), overlaps)):
        for launch in item.launches if isinstance(item, JoinedLaunches) else (item,):
            if isinstance(launch, Launch):
                place[launch.step] = position
    launches = [i for i in program if isinstance(i, Launch)]
    assert place.keys() == {launch.step for launch in launches}
    for later in launches:
        for earlier in launches[: later.step]:
            (old,), (new,) = earlier.outputs, later.outputs
            touched = frozenset[int]().union(*(memory[v] for v in (*earlier.inputs, old)))
            if touched & memory[new] or any(memory[old] & memory[v] for v in later.inputs):
                assert place[earlier.step] < place[later.step]


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


def test_updates_in_place_become_one_launch() -> None:
    program: list[Instruction] = []
    for k in range(9):
        program += [Alias(100 + k, k), Launch(k, (k, 50 + k), (100 + k,), "a"), Release(100 + k)]
    items = list(join_launches(program, lambda launch: launch.label, (), {100 + k: (k,) for k in range(9)}))
    (together,) = (item for item in items if isinstance(item, JoinedLaunches))
    assert [launch.step for launch in together.launches] == list(range(9))


@given(programs(), st.integers(1, 5))
def test_allocations_are_joined_for_launches_of_one_kernel_and_before_them(
    program: list[Instruction], most: int
) -> None:
    before, after = joined(program), list(join_allocations(joined(program), most))
    groups = {value: k for k, item in enumerate(before) if isinstance(item, JoinedLaunches)
              for launch in item.launches for value in launch.outputs}  # fmt: skip
    allocated: list[int] = []
    for item in after:
        if isinstance(item, JoinedAllocations):
            values = [one.value for one in item.allocations]
            assert 2 <= len(values) <= most
            assert len({groups[value] for value in values}) == 1
            allocated += values
        elif isinstance(item, AllocateBuffer):
            allocated.append(item.value)
        elif isinstance(item, JoinedLaunches):
            assert all(set(allocated).issuperset(launch.outputs) for launch in item.launches)
    others = [item for item in after if not isinstance(item, AllocateBuffer | JoinedAllocations)]
    assert others == [item for item in before if not isinstance(item, AllocateBuffer)]
    assert sorted(allocated) == [item.value for item in before if isinstance(item, AllocateBuffer)]
