"""Tests the runner over devices that count and hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments import (
    AllocateBuffer,
    ArgumentManager,
    Launch,
    Program,
    ProgramError,
    Release,
    Runner,
    build_program,
    build_segment,
    build_segments,
    execute,
    execute_steps,
    partition,
)
from tests.segments_package.segments_strategies import (
    EXTENTS,
    HashDevice,
    content,
    extents_of,
    graphs,
    rules,
    run_directly,
)
from tests.segments_package.test_segments_index_map import WORKED, WORKED_EXTENTS
from tests.session.samples import times


@given(st.data(), st.booleans())
@settings(max_examples=times(60), deadline=None)
def test_a_segmented_program_gives_what_the_graph_gives_directly(data: st.DataObject, allocates: bool) -> None:
    graph = data.draw(graphs())
    split = partition(graph, data.draw(rules(graph)))
    needs = data.draw(st.sets(st.sampled_from(sorted(EXTENTS))))
    segments = build_segments(graph, split, extents_of=extents_of, needs_extents=lambda steps: needs)
    spec_of = str if allocates else None
    program = build_program(segments, graph.inputs, graph.outputs, extents=sorted(EXTENTS), spec_of=spec_of)
    inputs = {value: 100 + value for value in graph.inputs}
    expected = run_directly(graph, inputs)
    device = HashDevice(graph, segments, allocates)

    results = execute(program, ArgumentManager(inputs, EXTENTS), device)
    assert list(map(content, results)) == [expected[value] for value in graph.outputs]
    made = {value for value in graph.outputs if graph.producer(value) is not None}
    assert len(device.alive) == len(made), "the device got back all but the outputs"
    assert device.launched == list(range(len(segments)))

    runner = Runner(program, device)
    arguments = [EXTENTS[value] if value < 0 else inputs[value] for value in program.inputs]
    for _ in range(2):
        assert list(map(content, runner(arguments))) == [expected[value] for value in graph.outputs]

    manager = ArgumentManager(inputs, EXTENTS)
    states = list(execute_steps(program, manager, device))
    assert len(states) == len(segments) + 1 if segments else len(states) == 1
    for state in states:
        assert all(content(held) == expected[value] for value, held in state.items())
    assert set(states[-1]) == {*graph.outputs, *EXTENTS}


class Recorder:
    """Returns a text for each output that it is not given room for, and notes the calls."""

    def __init__(self, made: Mapping[int, int] | None = None) -> None:
        self.calls: list[str] = []
        self.made = made or {}

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        self.calls.append(f"allocate {spec}")
        return [spec]

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> Sequence[object] | None:
        self.calls.append(f"launch {step} {label} {inputs} {outputs}")
        if label == "broken":
            raise RuntimeError("the kernel failed")
        count = self.made.get(step, 0)
        return [f"result {step}.{place}" for place in range(count)] if count else None

    def release(self, buffer: object) -> None:
        self.calls.append(f"release {buffer}")


def test_the_worked_example_yields_its_live_values_step_by_step() -> None:
    segments = [build_segment(WORKED, steps, extents_of=WORKED_EXTENTS.__getitem__) for steps in ((0, 1), (2,))]
    program = build_program(segments, WORKED.inputs, WORKED.outputs, extents=(-1, -2, -3, -4))
    manager = ArgumentManager({0: "x", 1: "y"}, {-1: 2, -2: 3, -3: 2, -4: 3})
    states = [list(state) for state in execute_steps(program, manager, Recorder({0: 1, 1: 1}))]
    assert states == [[0, 1, -1, -2, -3, -4], [1, 3, -1, -2, -3, -4], [4, -1, -2, -3, -4]]
    assert manager.outputs(program.outputs) == ("result 1.0",)


def test_inputs_are_dropped_and_never_given_to_the_device() -> None:
    program = Program(
        [0, 1],
        [3],
        [Release(1), AllocateBuffer(2, "a"), Launch(0, (0,), (2,)), Release(0), Launch(1, (2,), (3,)), Release(2)],
    )
    device = Recorder({1: 1})
    assert execute(program, ArgumentManager({0: "x", 1: "y"}), device) == ("result 1.0",)
    assert device.calls == ["allocate a", "launch 0 None ['x'] [['a']]", "launch 1 None [['a']] []", "release ['a']"]


def test_allocations_may_come_long_before_the_launch_that_fills_them() -> None:
    program = Program(
        [0],
        [2, 4],
        [AllocateBuffer(4, "d"), AllocateBuffer(2, "b"), AllocateBuffer(5, "e"), Launch(0, (0,), (2, 3)), Release(0),
         Release(5), Launch(1, (3,), (4,)), Release(3)],
    )  # fmt: skip
    device = Recorder({0: 1})
    assert Runner(program, device)(["x"]) == (["b"], ["d"])
    assert device.calls[3:] == [
        "launch 0 None ['x'] [['b']]",
        "release ['e']",
        "launch 1 None ['result 0.0'] [['d']]",
        "release result 0.0",
    ]


@pytest.mark.parametrize("allocates", [True, False])
def test_a_launch_that_raises_leaves_the_values_of_earlier_launches(allocates: bool) -> None:
    room = [AllocateBuffer(3, "c")] if allocates else []
    program = Program(
        [0, 1, -1],
        [3],
        [Launch(0, (0,), (2,)), Release(0), *room, Launch(1, (1, 2), (3,), "broken"), Release(1), Release(2)],
    )
    manager = ArgumentManager({0: "x", 1: "y"}, {-1: 5})
    with pytest.raises(RuntimeError, match="the kernel failed"):
        execute(program, manager, Recorder({0: 1}))
    assert manager.live == {1: "y", 2: "result 0.0", -1: 5}

    manager = ArgumentManager({0: "x", 1: "y"}, {-1: 5})
    states = execute_steps(program, manager, Recorder({0: 1}))
    assert list(next(states)) == [0, 1, -1]
    assert list(next(states)) == [1, 2, -1]
    with pytest.raises(RuntimeError, match="the kernel failed"):
        next(states)
    assert list(manager.live) == [1, 2, -1]


@pytest.mark.parametrize(
    ("made", "message"), [(0, "returned nothing, expected 1"), (2, "returned 2 values, expected 1")]
)
def test_a_launch_that_returns_the_wrong_number_of_values_is_an_error(made: int, message: str) -> None:
    program = Program([0], [1], [Launch(0, (0,), (1,), "exp"), Release(0)])
    manager = ArgumentManager({0: "x"})
    with pytest.raises(ProgramError, match=message):
        execute(program, manager, Recorder({0: made}))
    assert manager.live == {0: "x"}


def test_a_launch_that_returns_values_for_filled_outputs_is_an_error() -> None:
    program = Program([0], [1], [AllocateBuffer(1), Launch(0, (0,), (1,)), Release(0)])
    with pytest.raises(ProgramError, match="returned 1 values, expected 0"):
        execute(program, ArgumentManager({0: "x"}), Recorder({0: 1}))


def test_arguments_that_do_not_fit_the_program_are_named() -> None:
    program = Program([0, -1], [0], [])
    with pytest.raises(ProgramError, match=r"the program takes 2 arguments \(t0, e1\), got 1"):
        Runner(program, Recorder())(["x"])
    with pytest.raises(ProgramError, match="missing e1, unexpected t5"):
        execute(program, ArgumentManager({0: "x", 5: "z"}), Recorder())


def test_a_program_that_does_not_verify_is_not_run() -> None:
    with pytest.raises(ProgramError, match="output t1 is defined by no instruction"):
        Runner(Program([0], [1], [Release(0)]), Recorder())


def test_a_program_without_a_launch_has_one_state() -> None:
    manager = ArgumentManager({0: "x", 1: "y"})
    states = list(execute_steps(Program([0, 1], [1], [Release(0)]), manager, Recorder()))
    assert states == [{1: "y"}]
