"""Builds the host program of a plan: its allocations, launches, copies and releases, in order.

If the plan allows it, the kernel that computes a result writes it straight into the output buffer, through an Alias.
Otherwise the result has a buffer of its own, and a Copy follows the last reader of any argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import segments
from segments import Alias, AllocateBuffer, CopyBuffer, Launch, Program, Release
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_expression, made_when_called
from tracefuse.ir.extents import python_text, symbols
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.runtime.exchange_steps import ExchangeStep, wait_positions
from tracefuse.runtime.memory.buffer_facts import OutputBuffer


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of a value. shape: computes its shape from live values by id."""

    dtype: DType
    extents: Shape
    shape: Callable[[Mapping[int, Any]], tuple[int, ...]]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class _Results:
    """The output buffers. direct: those that a kernel writes, by value. copied: those that a Copy fills."""

    direct: Mapping[int, OutputBuffer]
    copied: tuple[OutputBuffer, ...]


def returned_memory(fusion: Fusion, copied: Sequence[OutputBuffer]) -> tuple[int, ...]:
    """Returns the values that a program returns. copied: the output buffers that a Copy fills."""
    memory = {buffer.value: buffer.memory for buffer in copied}
    return tuple(memory.get(number, number) for number in fusion.outputs if number not in fusion.aliases)


def build_host_program(
    fusion: Fusion, graph: segments.Graph, launches: Sequence[Launch], fills: Sequence[bool],
    output_buffers: Sequence[OutputBuffer], direct: frozenset[int], may_raise: Sequence[bool],
    exchanges: Mapping[int, ExchangeStep] = MappingProxyType({}),
) -> Program:  # fmt: skip
    """Builds and verifies the program.

    fills: for each launch, whether it writes to allocated buffers; otherwise it returns new arrays. direct: the values
    that their launch writes straight into an output buffer. may_raise: for each launch, whether it can raise; copies
    into output buffers come after it. exchanges: the launches that exchange data between ranks.
    """
    results = _Results(
        {buffer.value: buffer for buffer in output_buffers if buffer.value in direct},
        tuple(buffer for buffer in output_buffers if buffer.value not in direct),
    )
    ids = tuple(key for key, _, _ in fusion.axis_ids())
    bound = tuple(dict.fromkeys((*graph.inputs, *ids, *(buffer.memory for buffer in output_buffers))))
    last = _last_before_copies(launches, set(bound), results.copied, may_raise)
    waits = wait_positions(launches, exchanges, last if results.copied else -1)
    events = _events(fusion, launches, results, exchanges, waits, last)
    outputs = returned_memory(fusion, results.copied)
    dying = segments.releases(events, bound, outputs)
    instructions: list[segments.Instruction] = [Release(value) for value in dying[0]]
    started = _StartedExchanges(exchanges, waits)
    for event, dead in zip(events, dying[1:], strict=True):
        if event.label is COPYING:
            instructions += [CopyBuffer(buffer.value, buffer.memory) for buffer in results.copied]
        elif event.label is WAITING:
            instructions += started.wait(event.step)
        else:
            instructions += _allocate_outputs(fusion, launches[event.step], fills[event.step], results)
            instructions += started.start(event.step) if event.label is STARTING else [launches[event.step]]
        instructions += [Release(value) for value in dead]
    program = Program(bound, outputs, instructions)
    program.verify()
    return program


class _StartedExchanges:
    """Numbers the exchanges of a program in the order in which they start. waits: see `wait_positions`."""

    def __init__(self, exchanges: Mapping[int, ExchangeStep], waits: Mapping[int, Sequence[int]]) -> None:
        self._exchanges, self._waits = exchanges, waits
        self._first: dict[int, int] = {}  # by step, the number of its first exchange
        self._count = 0

    def start(self, step: int) -> Sequence[segments.Instruction]:
        self._first[step] = self._count
        self._count += len(self._exchanges[step].labels)
        overlaps = step not in self._waits.get(step + 1, ())
        return self._exchanges[step].communicate(step, self._first[step], overlaps)

    def wait(self, step: int) -> Sequence[segments.Instruction]:
        return self._exchanges[step].wait(self._first[step])


STARTING, WAITING, COPYING = "starts an exchange", "waits for an exchange", "copies into output buffers"


def _events(
    fusion: Fusion, launches: Sequence[Launch], results: _Results, exchanges: Mapping[int, ExchangeStep],
    waits: Mapping[int, Sequence[int]], last: int,
) -> list[Launch]:  # fmt: skip
    """Returns what reads and writes values, in order. last: the position of the launch before all copies.

    In the order of releases, a launch also reads the buffers that it writes, and all copies together are one launch.
    """
    copied = tuple(n for buffer in results.copied for n in (buffer.value, buffer.memory))
    events: list[Launch] = []
    for k, launch in enumerate([*launches, None]):
        events += [_event(fusion, launches[step], results, WAITING) for step in waits.get(k, ())]
        if k == last + 1:
            events.append(Launch(-1, copied, (), COPYING))
        if launch is not None:
            events.append(_event(fusion, launch, results, STARTING if k in exchanges else None))
    return events


def _event(fusion: Fusion, launch: Launch, results: _Results, exchange: str | None) -> Launch:
    """Returns a launch with all values that it accesses; an exchange has two events, and ends with the second."""
    accessed = (*launch.inputs, *_written_buffers(launch, results), *scalars_in_shapes(fusion, launch.outputs))
    return Launch(launch.step, accessed, () if exchange is STARTING else launch.outputs, exchange)


def _written_buffers(launch: Launch, results: _Results) -> tuple[int, ...]:
    return tuple(results.direct[value].memory for value in launch.outputs if value in results.direct)


def _last_before_copies(
    launches: Sequence[Launch], bound: set[int], copied: Sequence[OutputBuffer], may_raise: Sequence[bool]
) -> int:
    """Returns the position of the last launch that reads an argument, computes a copied result or can raise."""
    values = {buffer.value for buffer in copied}
    positions = (
        k
        for k, launch in enumerate(launches)
        if values and (values.intersection(launch.outputs) or _reads_memory(launch, bound) or may_raise[k])
    )
    return max(positions, default=-1)


def _reads_memory(launch: Launch, bound: set[int]) -> bool:
    return any(value >= 0 and value in bound for value in launch.inputs)


def scalars_in_shapes(fusion: Fusion, numbers: Sequence[int]) -> tuple[int, ...]:
    """Returns the host scalars in the shapes of values, which their allocation reads."""
    extents = (extent for number in numbers for extent in fusion.shape_of(number))
    return tuple(dict.fromkeys(s.id for e in extents for s in symbols(e) if s.id is not None and s.id >= 0))


def _allocate_outputs(fusion: Fusion, launch: Launch, fills: bool, results: _Results) -> list[segments.Instruction]:
    if not fills:
        return []
    return [
        Alias(value, results.direct[value].memory)
        if value in results.direct
        else AllocateBuffer(value, allocation(fusion, value))
        for value in launch.outputs
    ]


def allocation(fusion: Fusion, number: int) -> Allocation:
    """Returns the allocation of a value."""
    value = fusion.values[number]
    extents = fusion.shape_of(number)
    shape = [python_text(extent, lambda s: f"v[{s.id}]") for extent in extents]
    text = f"({''.join(f'{e}, ' for e in shape)})"
    shape_of = made_when_called(lambda: compile_expression("v", text, "shape"))
    return Allocation(value.dtype, extents, shape_of, str(value.type))
