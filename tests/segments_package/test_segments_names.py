"""An alias gives a value of a program another name, under rules that the verifier checks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from segments import (
    Alias,
    AllocateBuffer,
    CopyBuffer,
    GetStream,
    HostLoop,
    HostOp,
    Integer,
    Launch,
    PoolStream,
    Program,
    ProgramBuilder,
    ProgramError,
    Release,
    Runner,
    Select,
    SetStream,
    Synchronize,
    integer_of,
)
from tests.segments_package.array_device import EXTENT, OWN, ROWS, ArrayDevice, on_streams, twice

REUSED = Integer("t3 % 2", (3,), lambda values: values[3] % 2)  # type: ignore[operator]


def test_slots_are_written_in_the_order_of_their_stream() -> None:
    """A slot that two iterations share is right where they share a stream, and refused where they do not."""
    slot = Integer("t3 % 3", (3,), lambda values: values[3] % 3)  # type: ignore[operator]

    def program(index: Integer) -> Program:
        body = [
            Select(4, 0, 0, integer_of(3)), Select(5, 2, 0, index), Launch(0, (4,), (5,), twice),
            Select(6, 1, 0, integer_of(3)), Launch(1, (5,), (6,), twice),
        ]  # fmt: skip
        slots, result = AllocateBuffer(2, (3, 3)), AllocateBuffer(1, lambda values: (values[-1], 3))
        return Program([0, -1], [1], [slots, result, on_streams(3, EXTENT, body), Release(0), Release(2)])

    x = np.arange(30.0).reshape(10, 3)
    np.testing.assert_array_equal(Runner(program(slot), ArrayDevice())([x, 10])[0], 4 * x)
    with pytest.raises(ProgramError, match=r"writes t5 without waiting for another stream"):
        program(REUSED).verify()


def test_names_resolve_through_chains() -> None:
    builder = ProgramBuilder()
    builder.add_input(0)
    builder.mark_alias(2, 3)
    builder.mark_alias(1, 2)
    builder.append(
        AllocateBuffer(1, (3,)), HostOp(np.negative, (0,), 3), HostOp(np.square, (2,), 4), Release(0), Release(3)
    )
    builder.add_output(4)
    program = builder.build()
    assert program.instructions[1] == HostOp(np.negative, (0,), 1)
    assert program.instructions[-1] == Release(1)
    np.testing.assert_array_equal(Runner(program, ArrayDevice())([np.arange(3.0)])[0], [0, 1, 4])


def test_an_input_may_get_another_name() -> None:
    builder = ProgramBuilder()
    builder.mark_alias(0, 1)
    builder.add_input(0)
    builder.append(HostOp(np.negative, (1,), 2), Release(1))
    builder.add_output(2)
    np.testing.assert_array_equal(Runner(builder.build(), ArrayDevice())([np.ones(2)])[0], [-1, -1])


@pytest.mark.parametrize("first", [True, False])
def test_an_input_is_no_other_name_of_anything(first: bool) -> None:
    builder = ProgramBuilder()
    steps: list[Callable[[], None]] = [lambda: builder.add_input(0), lambda: builder.mark_alias(1, 0)]
    for step in steps if first else reversed(steps):
        step()
    with pytest.raises(ProgramError) as caught:
        builder.build()
    assert str(caught.value) == "Inputs cannot be aliased"


def test_names_are_given_once_and_to_tensors() -> None:
    builder = ProgramBuilder()
    builder.mark_alias(0, 1)
    with pytest.raises(ProgramError, match="t1 is already an alias of t0"):
        builder.mark_alias(2, 1)
    with pytest.raises(ProgramError, match="t0 would be an alias of itself"):
        builder.mark_alias(1, 0)
    with pytest.raises(ProgramError, match="only tensors can be aliased"):
        builder.mark_alias(-1, 3)
    builder.append(AllocateBuffer(1))
    with pytest.raises(ProgramError, match="t1 is an alias of t0 and is also defined by an instruction"):
        builder.build()


def test_a_name_in_a_loop_is_resolved() -> None:
    builder = ProgramBuilder()
    builder.add_input(0)
    builder.add_input(-1)
    builder.mark_alias(0, 7)
    builder.append(
        AllocateBuffer(1, lambda values: (values[-1], 3)),
        HostLoop(3, 0, EXTENT, 1, (Select(4, 7, 0, integer_of(3)), *ROWS[1:])),
        Release(7),
    )
    builder.add_output(1)
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(Runner(builder.build(), ArrayDevice())([x, 2])[0], 2 * x)


def test_alias_and_copy_work_on_streams() -> None:
    program = Program(
        [0, 1], [1], [Launch(0, (0,), (2,), twice), GetStream(0), SetStream(PoolStream(1)), Synchronize(OWN),
                      CopyBuffer(2, 1), SetStream(OWN), Synchronize(PoolStream(1)), Release(2), Release(0)]
    )  # fmt: skip
    target = np.zeros(3)
    (result,) = Runner(program, ArrayDevice())([np.arange(3.0), target])
    assert result is target
    np.testing.assert_array_equal(target, [0, 2, 4])
    Program([0], [2], [Alias(1, 0), Launch(0, (1,), (2,)), Release(1), Release(0)]).verify()
