"""Tests host programs as data: their text and their errors."""

from __future__ import annotations

import pytest

from segments import AllocateBuffer, Instruction, Launch, Program, ProgramError, Release

LAUNCH = Launch(0, (0, -1), (2,), "row_sum")


def test_a_program_prints_as_what_it_does() -> None:
    program = Program([0, -1], [2], [AllocateBuffer(2, "f32[n]"), LAUNCH, Release(0)])
    program.verify()
    assert str(program) == (
        "program(t0, e1):\n  t2 = allocate(f32[n])\n  launch row_sum(t0, e1) -> t2\n  release t0\n  return t2"
    )
    assert str(Launch(3, (), ())) == "launch segment_3()"
    assert str(AllocateBuffer(4)) == "t4 = allocate()"
    assert str(Program([], [], [])) == "program():\n  return"


def test_programs_with_the_same_instructions_are_equal() -> None:
    first, second = (Program([0, -1], [2], [LAUNCH, Release(0)]) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != Program([0, -1], [2], [LAUNCH])
    assert first != "program"


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ([Launch(0, (5,), (2,))],
         "instruction 0, `launch segment_0(t5) -> t2`: reads t5 before its definition"),
        ([Launch(0, (-9,), (2,))],
         "instruction 0, `launch segment_0(e9) -> t2`: reads e9 before its definition"),
        ([Release(0), LAUNCH],
         "instruction 1, `launch row_sum(t0, e1) -> t2`: reads t0 after its release, released at instruction 0"),
        ([AllocateBuffer(3), Launch(0, (3,), (2,))],
         "instruction 1, `launch segment_0(t3) -> t2`: reads t3, which is allocated but not yet filled by any launch"),
        ([AllocateBuffer(2), AllocateBuffer(2)], "instruction 1, `t2 = allocate()`: t2 is already allocated"),
        ([LAUNCH, AllocateBuffer(2)], "instruction 1, `t2 = allocate()`: allocates t2, which is already defined"),
        ([LAUNCH, LAUNCH], "instruction 1, `launch row_sum(t0, e1) -> t2`: produces t2, which is already defined"),
        ([Launch(0, (), (3,)), Release(3), Launch(1, (), (3,))],
         "instruction 2, `launch segment_1() -> t3`: produces t3 again, released at instruction 1"),
        ([AllocateBuffer(-1)], "instruction 0, `e1 = allocate()`: allocates e1, an extent of the inputs"),
        ([LAUNCH, Release(0), Release(0)],
         "instruction 2, `release t0`: t0 is released twice, released at instruction 1"),
        ([Release(7)], "instruction 0, `release t7`: releases t7 before its definition"),
        ([Release(-1)], "instruction 0, `release e1`: extents are integers and are never released"),
        ([LAUNCH, Release(2)], "instruction 1, `release t2`: releases t2, an output of the program"),
        ([], "output t2 is defined by no instruction and is not an input"),
        ([AllocateBuffer(2)], "output t2 is defined by no instruction and is not an input"),
        ([LAUNCH], "never released: t0; release each value after its last use"),
        ([AllocateBuffer(3), LAUNCH, Release(0)],
         "never released: t3; release each value after its last use"),
    ],
)  # fmt: skip
def test_a_program_that_breaks_a_rule_is_refused_at_the_instruction(
    instructions: list[Instruction], message: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        Program([0, -1], [2], instructions).verify()
    assert str(caught.value) == message


def test_an_input_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ProgramError, match="an input is listed twice: t0, t0"):
        Program([0, 0], [], []).verify()


def test_an_input_may_be_an_output() -> None:
    Program([0], [0], []).verify()
