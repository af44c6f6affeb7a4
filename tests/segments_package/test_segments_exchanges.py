"""Exchanges in host programs: what the verifier refuses between the start of an exchange and its wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segments import (
    AllocateBuffer,
    Communicate,
    EndCoalescing,
    HostLoop,
    Instruction,
    Launch,
    Program,
    ProgramError,
    Release,
    Runner,
    Select,
    StartCoalescing,
    WaitRequest,
    integer_of,
)
from tests.segments_package.array_device import ArrayDevice

START = Communicate(7, np.negative, (0,), (1,))
WAIT = WaitRequest(7)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([START, Release(0), WAIT], "releases t0 before the wait for r7, which reads t0"),
        ([AllocateBuffer(2), Communicate(7, np.negative, (0,), (2,)), Release(2), WAIT],
         "releases t2 before the wait for r7, which writes t2"),
        ([START, Launch(0, (1,), (2,)), WAIT, Release(2)], "reads t1 before its definition"),
        ([AllocateBuffer(1), START, Launch(0, (0,), (1,)), WAIT], "writes t1 before the wait for r7, which writes t1"),
        ([AllocateBuffer(1), START], "nothing waits for r7"),
        ([START, WAIT, WAIT], "no exchange r7 is in progress"),
        ([START, Communicate(7, np.negative, (0,), (2,)), WAIT], "r7 is still in progress, started by instruction 0"),
        ([StartCoalescing(), START, WAIT, EndCoalescing()], "waits within the group that instruction 0"),
        ([WAIT], "no exchange r7 is in progress"),
        ([EndCoalescing(), START, WAIT], "no group has begun"),
        ([StartCoalescing(), Launch(0, (0,), (2,)), EndCoalescing()], "a group contains only exchanges"),
        ([HostLoop(3, 0, 2, 1, (START,)), WAIT], "nothing waits for r7"),
    ],
)  # fmt: skip
def test_memory_of_an_exchange_is_left_alone_until_its_wait(body: list[Instruction], message: str) -> None:
    with pytest.raises(ProgramError, match=r".*") as caught:
        Program([0], [1] if "releases t0" in message else [0, 1], body).verify()
    assert message in str(caught.value)


@pytest.mark.parametrize("preallocated", [False, True])
def test_work_between_the_start_and_the_wait_runs(preallocated: bool) -> None:
    before: list[Instruction] = [AllocateBuffer(1, (3,))] if preallocated else []
    launch = Launch(0, (0,), (2,), lambda inputs, outputs: [inputs[0] + 1])
    body = [*before, StartCoalescing(), START, EndCoalescing(), launch, WAIT, Release(0)]
    program = Program([0], [1, 2], body)
    negated, added = Runner(program, Exchanging())([np.arange(3.0)])
    np.testing.assert_array_equal(negated, [0, -1, -2])
    np.testing.assert_array_equal(added, [1, 2, 3])


class Exchanging(ArrayDevice):
    """A device whose exchanges compute when they are waited for."""

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Any:
        return label(inputs, outputs)

    def communicate(self, label: Any, sources: list[Any], targets: list[Any]) -> Any:
        return label, sources, targets

    def finish_request(self, handle: Any) -> Any:
        label, sources, targets = handle
        return [label(source, out=target) for source, target in zip(sources, targets, strict=True)]

    def start_coalescing(self) -> None:
        """Does nothing: exchanges compute when they are waited for."""

    end_coalescing = start_coalescing


def test_targets_may_be_slices_of_one_buffer_in_flight_together() -> None:
    index = integer_of(3)
    body = (Select(4, 0, 0, index), Select(5, 1, 0, index), Communicate(7, np.negative, (4,), (5,)), WAIT)
    program = Program([0, -1], [1], [AllocateBuffer(1, (4, 2)), HostLoop(3, 0, integer_of(-1), 1, body), Release(0)])
    (result,) = Runner(program, Exchanging())([np.arange(8.0).reshape(4, 2), 4])
    np.testing.assert_array_equal(result, -np.arange(8.0).reshape(4, 2))
