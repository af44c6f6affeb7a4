"""The function of a call: its text, the arguments that it rejects, and that it matches the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segments
from tests.random_programs.random_fusions import fusions
from tests.session.samples import times
from tracefuse import fuse
from tracefuse.compiler.executable import Executable, compile_fusion
from tracefuse.partition.segmentation import segment_fusion

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.ones((3, 4), np.float32)


def executable_of(function: Any, *arguments: Any) -> Executable:
    return compile_fusion(fuse(function).definition(*arguments).fusion)


def test_a_call_is_one_function_that_reads_as_the_program() -> None:
    executable = executable_of(lambda x, y: (x * y).sum(1), X, Y)
    executable([X, Y])
    text = executable.call_text([X, Y])
    assert "e1, e2, = t0.shape" in text
    assert "e1 == e3 and e2 == e4" in text
    assert text.splitlines()[-1] == "    return [t3]"


@pytest.mark.parametrize(
    "arguments",
    [(X, Y[:2]), (X, Y.astype(np.float64)), (X[0], Y[0]), (X.T.copy().T, Y), ("x", Y), (None, None), (X, 2.0)],
    ids=["sizes", "dtype", "rank", "layout", "string", "none", "number"],
)
def test_what_the_plan_was_not_made_for_is_refused_and_nothing_runs(arguments: tuple[Any, Any]) -> None:
    executable = executable_of(lambda x, y: x * y, X, Y)
    assert executable.plans.attempt((X, Y)) is None
    executable([X, Y])
    assert executable.plans.attempt((X, Y)) is not None
    assert executable.plans.attempt(arguments) is None


def test_the_plan_used_last_is_tried_first() -> None:
    executable = executable_of(lambda x: x + 1, X)
    executable([X])
    executable([X.T])
    assert executable.compiles == 2
    for _ in range(2):
        np.testing.assert_array_equal(executable([X])[0], X + 1)
        assert executable.plans.plans()[0].call((X,)) is not None
    assert executable.compiles == 2


@settings(max_examples=times(20), deadline=None)
@given(st.data())
def test_the_function_gives_what_the_program_gives_step_by_step(data: st.DataObject) -> None:
    fusion, arguments = data.draw(fusions("mixed"))
    executable = Executable(segment_fusion(fusion))
    outputs = executable(arguments)
    steps = executable.steps(arguments)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            expected = done.value
            break
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, wanted)


def test_a_value_is_dropped_right_after_its_last_reader() -> None:
    executable = executable_of(lambda x, y: ((x @ y) @ y) @ y, np.ones((3, 3)), np.ones((3, 3)))
    text = executable.call_text([np.ones((3, 3)), np.ones((3, 3))])
    plan, _ = executable.plan_for([np.ones((3, 3)), np.ones((3, 3))])
    released = [i.value for i in plan.program.instructions if isinstance(i, segments.Release)]
    dropped = [line.strip() for line in text.splitlines() if line.endswith(" = None")]
    assert dropped == [
        *(f"t{value} = None" for value in released if value not in (0, 1)),
        "t2 = t3 = t4 = None",  # where a launch raises
    ]
