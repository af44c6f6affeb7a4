"""The host program of a plan: what is allocated, launched, copied and released, in which order.

A result that goes into given memory is written there by the kernel that makes it, through an Alias, where the plan says
so; else it is made in memory of its own, and a Copy follows the last reader of anything that was passed in.

Knows: compiled segments by the values that they read and make, given memory. Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import segments
from segments import Alias, Allocate, Copy, Launch, Program, Release
from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_expression
from tracefuse.ir.extents import python_text, symbols
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.runtime.memory.given_buffers import Given


@dataclass(frozen=True, slots=True)
class Allocation:
    """What to allocate for a value: its type and extents, and its shape from the live values by id."""

    dtype: DType
    extents: Shape
    shape: Callable[[Mapping[int, Any]], tuple[int, ...]]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class _Results:
    """Where results go. direct: those that their kernel writes into given memory; copied: the others."""

    direct: Mapping[int, Given]
    copied: tuple[Given, ...]


def returned_memory(fusion: Fusion, copied: Sequence[Given]) -> tuple[int, ...]:
    """What a program returns: an output for each that updates no argument. copied: those in given memory by a copy."""
    memory = {given.value: given.memory for given in copied}
    return tuple(memory.get(number, number) for number in fusion.outputs if number not in fusion.aliases)


def build_host_program(
    fusion: Fusion, graph: segments.Graph, launches: Sequence[Launch], fills: Sequence[bool], given: Sequence[Given],
    direct: frozenset[int], may_raise: Sequence[bool],
) -> Program:  # fmt: skip
    """The verified program.

    fills: of each launch, whether it fills memory that is allocated for it, or makes its results. given: the memory of
    results; direct: the values among them that their launch writes there. may_raise: of each launch, whether it may
    refuse what it is given, so that nothing is copied into given memory before.
    """
    results = _Results(
        {g.value: g for g in given if g.value in direct}, tuple(g for g in given if g.value not in direct)
    )
    ids = tuple(key for key, _, _ in fusion.axis_ids())
    bound = tuple(dict.fromkeys((*graph.inputs, *ids, *(g.memory for g in given))))
    last = _last_reader_of_arguments(launches, set(bound), results.copied)
    last = max([last, *(k for k, raises in enumerate(may_raise) if raises and results.copied)])
    # For the order of releases, a launch also reads the memory that it writes, and the copies are one more launch.
    events = [
        Launch(k, (*one.inputs, *_memories(one, results), *scalars_in_shapes(fusion, one.outputs)), one.outputs)
        for k, one in enumerate(launches)
    ]
    copying = Launch(-1, tuple(n for g in results.copied for n in (g.value, g.memory)), ())
    events.insert(last + 1, copying)
    outputs = returned_memory(fusion, results.copied)
    dying = segments.releases(events, bound, outputs)
    instructions: list[segments.Instruction] = [Release(value) for value in dying[0]]
    for event, dead in zip(events, dying[1:], strict=True):
        if event is copying:
            instructions += [Copy(g.value, g.memory) for g in results.copied]
        else:
            instructions += _before(fusion, launches[event.step], fills[event.step], results)
            instructions.append(launches[event.step])
        instructions += [Release(value) for value in dead]
    program = Program(bound, outputs, instructions)
    program.verify()
    return program


def _memories(launch: Launch, results: _Results) -> tuple[int, ...]:
    return tuple(results.direct[value].memory for value in launch.outputs if value in results.direct)


def _last_reader_of_arguments(launches: Sequence[Launch], bound: set[int], copied: Sequence[Given]) -> int:
    """The position of the last launch that reads what was passed in, or makes what is copied there."""
    made = {given.value for given in copied}
    positions = (
        k for k, one in enumerate(launches) if made and (made.intersection(one.outputs) or _reads_memory(one, bound))
    )
    return max(positions, default=-1)


def _reads_memory(launch: Launch, bound: set[int]) -> bool:
    return any(value >= 0 and value in bound for value in launch.inputs)


def scalars_in_shapes(fusion: Fusion, numbers: Sequence[int]) -> tuple[int, ...]:
    """The host scalars that the shapes of values depend on, which allocating them reads."""
    extents = (extent for number in numbers for extent in fusion.shape_of(number))
    return tuple(dict.fromkeys(s.id for e in extents for s in symbols(e) if s.id is not None and s.id >= 0))


def _before(fusion: Fusion, launch: Launch, fills: bool, results: _Results) -> list[segments.Instruction]:
    if not fills:
        return []
    return [
        Alias(value, results.direct[value].memory)
        if value in results.direct
        else Allocate(value, allocation(fusion, value))
        for value in launch.outputs
    ]


def allocation(fusion: Fusion, number: int) -> Allocation:
    """What is allocated for a value."""
    value = fusion.values[number]
    extents = fusion.shape_of(number)
    shape = [python_text(extent, lambda s: f"v[{s.id}]") for extent in extents]
    text = f"({''.join(f'{e}, ' for e in shape)})"
    return Allocation(value.dtype, extents, compile_expression("v", text, "shape"), str(value.type))
