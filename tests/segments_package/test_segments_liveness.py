"""Tests the placement of releases against an independent simulation."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from segments import (
    AllocateBuffer,
    Graph,
    Launch,
    Program,
    Release,
    Step,
    build_program,
    build_segments,
    last_uses,
    partition,
    releases,
)
from tests.segments_package.segments_strategies import EXTENTS, extents_of, graphs, rules
from tests.session.samples import times


def check_releases(program: Program) -> None:
    """No value is read after its release; after each launch and its releases all that lives has a use to come."""
    live = set(program.inputs)
    instructions = program.instructions
    for position, instruction in enumerate(instructions):
        if isinstance(instruction, Launch):
            assert live.issuperset(instruction.inputs)
            live.update(instruction.outputs)
        elif isinstance(instruction, Release):
            assert instruction.value in live
            live.remove(instruction.value)
        following = instructions[position + 1] if position + 1 < len(instructions) else None
        if isinstance(following, Release) or isinstance(instruction, AllocateBuffer):
            continue
        to_come = {
            value
            for later in instructions[position + 1 :]
            if isinstance(later, Launch)
            for value in (*later.inputs, *later.outputs)
        }
        dead = {value for value in live if value >= 0} - to_come - set(program.outputs)
        assert not dead, f"{dead} should be released by instruction {position}"
    assert set(program.outputs) <= live
    assert {value for value in live if value >= 0} == {value for value in program.outputs if value >= 0}


@given(st.data())
@settings(max_examples=times(40), deadline=None)
def test_nothing_is_read_after_its_release_and_nothing_dead_lives_on(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    split = partition(graph, data.draw(rules(graph)))
    segments = build_segments(graph, split, extents_of=extents_of)
    spec_of = data.draw(st.sampled_from([None, str]))
    program = build_program(segments, graph.inputs, graph.outputs, extents=sorted(EXTENTS), spec_of=spec_of)
    check_releases(program)


def test_an_input_that_nothing_reads_is_released_before_the_first_launch() -> None:
    assert releases([Launch(0, (0,), (2,))], [0, 1], [2]) == [(1,), (0,)]


def test_a_value_that_nothing_reads_is_released_right_after_its_launch() -> None:
    assert releases([Launch(0, (0,), (2, 3)), Launch(1, (0,), (4,))], [0], [2]) == [(), (3,), (0, 4)]


def test_outputs_and_extents_are_never_released() -> None:
    assert releases([Launch(0, (0, -1), (2,))], [0, -1, -2], [2, 0]) == [(), ()]
    assert last_uses([Launch(0, (0, -1), (2,))], [0, -1]) == {0: 0, 2: 0}


def test_a_built_program_allocates_names_and_releases() -> None:
    graph = Graph([Step((0,), (1,)), Step((1, 2), (3,))], [0, 2, 9], [3])

    class Apart:
        def facts(self, step: int) -> object:
            return None

        merge = accepts = facts

        def cheap(self, step: int) -> bool:
            return False

        movement = cheap

        def alone(self, step: int) -> bool:
            return True

    split = partition(graph, Apart())  # type: ignore[arg-type]
    segments = build_segments(graph, split, extents_of=lambda value: ())
    program = build_program(
        segments,
        graph.inputs,
        graph.outputs,
        spec_of=lambda value: f"spec of {value}",
        label_of=["exp", "add"].__getitem__,
    )
    assert str(program).splitlines() == [
        "program(t0, t2, t9):",
        "  release t9",
        "  t1 = allocate(spec of 1)",
        "  launch exp(t0) -> t1",
        "  release t0",
        "  t3 = allocate(spec of 3)",
        "  launch add(t1, t2) -> t3",
        "  release t1",
        "  release t2",
        "  return t3",
    ]
