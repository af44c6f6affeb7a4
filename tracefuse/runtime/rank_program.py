"""The host program of a fusion whose values lie on several devices, and ranks in one process that it runs over.

Every node is a host operation on the parts that a rank holds; every move between devices is a Communicate. `LoopBack`
holds the parts of all ranks side by side and moves them by copying: it is what programs are tested with where there is
one device.

Knows: resharded fusions, the NumPy meaning, parts of arrays. Must not know: kernels, GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

import segments
from segments import Communicate, HostOp, Instruction, Launch, Program, Release, Runner
from tracefuse.errors import FusionError
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.parallel_types import Sharding
from tracefuse.ir.reference import evaluate, evaluate_scalars, extent_values
from tracefuse.partition import predicates
from tracefuse.partition.resharding import Exchange, exchange_of, sharding_of, with_exchanges
from tracefuse.partition.segmentation import Part, segment_fusion
from tracefuse.partition.slicing import sliced

Parts: TypeAlias = dict[int, Any]
"""What each rank holds of a value."""


@dataclass(frozen=True, slots=True, eq=False)
class RankOp:
    """One op on the parts that each device of a mesh holds. `str` is its name."""

    name: str
    fusion: Fusion
    devices: tuple[int, ...]

    def __call__(self, inputs: Sequence[Any]) -> Parts:
        """The part that each device makes."""
        return {
            rank: evaluate(self.fusion, [i[rank] if isinstance(i, dict) else i for i in inputs])[0]
            for rank in self.devices
        }

    def __str__(self) -> str:
        return self.name


def rank_program(fusion: Fusion, ranks: int) -> tuple[Fusion, Program]:
    """(the fusion with its moves, its verified program) for `ranks` ranks.

    Raises FusionError for a mesh with other devices, UnsupportedError for an op that has no parts.
    """
    for number, value in fusion.values.items():
        if value.sharding is not None and max(value.sharding.devices) >= ranks:
            raise FusionError(
                f"T{number} lies on device {max(value.sharding.devices)} of {ranks}", hint="number devices from 0"
            )
    moving = with_exchanges(fusion, ranks)
    split = segment_fusion(moving, merge=predicates.one_op_a_segment)
    parts = [part for part in split.segments if part.segment.original_outputs]
    instructions = [_instruction(moving, part, ranks) for part in parts]
    launches = [Launch(k, p.segment.original_inputs, p.segment.original_outputs) for k, p in enumerate(parts)]
    ids = tuple(key for key, _, _ in moving.axis_ids())
    bound = tuple(dict.fromkeys((*split.steps.graph.inputs, *ids)))
    dying = segments.releases(launches, bound, moving.outputs)
    ordered: list[Instruction] = list(map(Release, dying[0]))
    for instruction, dead in zip(instructions, dying[1:], strict=True):
        ordered += [instruction, *map(Release, dead)]
    program = Program(bound, moving.outputs, ordered)
    program.verify()
    return moving, program


def _instruction(fusion: Fusion, part: Part, ranks: int) -> Instruction:
    (node,) = part.fusion.nodes
    border = part.segment
    (output,) = border.original_outputs
    original = next(n for n in fusion.nodes if output in n.outputs)
    exchange = exchange_of(fusion, original, ranks)
    if exchange is not None:
        return Communicate(exchange, border.original_inputs[0], output)
    place = sharding_of(fusion, output, ranks)
    computed = part.fusion
    if place.axis is not None and len(place.devices) > 1:
        (local,) = border.outputs
        computed = sliced(part.fusion, {local: place.axis}, len(place.devices)).fusion
    return HostOp(RankOp(node.op.name, computed, place.devices), border.original_inputs, output)


class LoopBack:
    """Ranks in one process, as the device of a program: buffers are the parts of all ranks."""

    def __init__(self) -> None:
        self.exchanges: list[str] = []

    def host_op(self, label: Any, inputs: list[Any], output: Any | None) -> Any:
        """The parts that the ranks make."""
        return label(inputs)

    def communicate(self, label: Any, source: Any, target: Any | None) -> Any:
        """The parts as the exchange leaves them."""
        assert isinstance(label, Exchange)
        self.exchanges.append(str(label))
        return spread_out(gathered(source, label.source), label.target)

    def release(self, buffer: Any) -> None:
        """Memory goes back with the last reference."""

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> NoReturn:
        """No program over ranks allocates."""
        raise NotImplementedError

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> NoReturn:
        """No program over ranks launches kernels."""
        raise NotImplementedError


def spread_out(array: Any, place: Sharding) -> Parts:
    """What each device holds: all, or its part along the axis; parts are equal but for the last ones."""
    if place.axis is None:
        return {rank: np.array(array) for rank in place.devices}
    size = -(-array.shape[place.axis] // len(place.devices))
    before = (slice(None),) * place.axis
    return {
        rank: np.array(array[(*before, slice(k * size, (k + 1) * size))]) for k, rank in enumerate(place.devices)
    }  # fmt: skip


def gathered(parts: Parts, place: Sharding) -> Any:
    """The whole array from what each device holds."""
    if place.axis is None:
        return parts[place.devices[0]]
    return np.concatenate([parts[rank] for rank in place.devices], place.axis)


def run_on_ranks(fusion: Fusion, arguments: Sequence[Any], ranks: int, device: LoopBack | None = None) -> list[Any]:
    """The outputs, whole, computed by `ranks` ranks in this process."""
    moving, program = rank_program(fusion, ranks)
    sizes = extent_values(moving, arguments)
    given: dict[int, Any] = dict(zip(moving.inputs, arguments, strict=True))
    on_host = [n for n in moving.nodes if not moving.values[n.outputs[0]].is_tensor]
    known = {number: given[number] for number in moving.scalar_inputs}
    made = evaluate_scalars(moving, on_host, known, sizes)
    given.update(zip((n.outputs[0] for n in on_host), made, strict=True))
    for number in moving.tensor_inputs:
        given[number] = spread_out(given[number], sharding_of(moving, number, ranks))
    values = [given[n] if n in given else sizes[n] for n in program.inputs]
    results = Runner(program, LoopBack() if device is None else device)(values)
    return [
        gathered(result, sharding_of(moving, number, ranks)) if isinstance(result, dict) else result
        for number, result in zip(moving.outputs, results, strict=True)
    ]
