"""Host programs of fusions whose values are sharded over devices, and a simulation of the ranks in one process.

Every node is a host operation on the shards of a rank. Every transfer between devices is a Communicate. `LoopBack`
holds the shards of all ranks side by side and transfers them by copying, so that programs can be tested on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

import segments
from segments import Communicate, HostOp, Instruction, Launch, Program, Release, Runner
from tracefuse.errors import FusionError
from tracefuse.ir.fusion import Fusion, Op
from tracefuse.ir.parallel_types import Sharding
from tracefuse.ir.reference import evaluate, evaluate_scalars, extent_values
from tracefuse.partition import predicates
from tracefuse.partition.resharding import Exchange, exchange_of, sharding_of, with_exchanges
from tracefuse.partition.segmentation import Part, segment_fusion
from tracefuse.partition.slicing import slice_fusion

Shards: TypeAlias = dict[int, Any]
"""The shard of a value on each rank."""


@dataclass(frozen=True, slots=True, eq=False)
class RankOp:
    """One op on the shards of each device of a mesh. `str` returns the name of the op."""

    op: Op
    fusion: Fusion
    devices: tuple[int, ...]

    def __call__(self, inputs: Sequence[Any]) -> Shards:
        """Computes the shard of each device."""
        return {
            rank: evaluate(self.fusion, [i[rank] if isinstance(i, dict) else i for i in inputs])[0]
            for rank in self.devices
        }

    def __str__(self) -> str:
        return self.op.name


def rank_program(fusion: Fusion, ranks: int) -> tuple[Fusion, Program]:
    """Returns the fusion with its transfers and its verified program for `ranks` ranks.

    Raises FusionError for a mesh with a device that is not a rank, UnsupportedError for an op that cannot be sharded.
    """
    for number, value in fusion.values.items():
        if value.sharding is not None and max(value.sharding.devices) >= ranks:
            raise FusionError(
                f"T{number} is on device {max(value.sharding.devices)}, and there are {ranks} ranks",
                hint="number devices from 0",
            )
    resharded = with_exchanges(fusion, ranks)
    split = segment_fusion(resharded, merge=predicates.one_op_a_segment)
    parts = [part for part in split.segments if part.segment.original_outputs]
    instructions = [_instruction(resharded, part, ranks) for part in parts]
    launches = [Launch(k, p.segment.original_inputs, p.segment.original_outputs) for k, p in enumerate(parts)]
    ids = tuple(key for key, _, _ in resharded.axis_ids())
    bound = tuple(dict.fromkeys((*split.steps.graph.inputs, *ids)))
    dying = segments.releases(launches, bound, resharded.outputs)
    ordered: list[Instruction] = list(map(Release, dying[0]))
    for instruction, dead in zip(instructions, dying[1:], strict=True):
        ordered += [instruction, *map(Release, dead)]
    program = Program(bound, resharded.outputs, ordered)
    program.verify()
    return resharded, program


def _instruction(fusion: Fusion, part: Part, ranks: int) -> Instruction:
    (node,) = part.fusion.nodes
    interface = part.segment
    (output,) = interface.original_outputs
    original = next(n for n in fusion.nodes if output in n.outputs)
    exchange = exchange_of(fusion, original, ranks)
    if exchange is not None:
        return Communicate(exchange, interface.original_inputs[0], output)
    place = sharding_of(fusion, output, ranks)
    computed = part.fusion
    if place.axis is not None and len(place.devices) > 1:
        (local,) = interface.outputs
        computed = slice_fusion(part.fusion, {local: place.axis}, len(place.devices)).fusion
    return HostOp(RankOp(node.op, computed, place.devices), interface.original_inputs, output)


class LoopBack:
    """The ranks of one process as the device of a program. A buffer holds the shards of all ranks."""

    def __init__(self) -> None:
        self.exchanges: list[str] = []

    def host_op(self, label: Any, inputs: list[Any], output: Any | None) -> Any:
        """Computes the shards of all ranks."""
        return label(inputs)

    def communicate(self, label: Any, source: Any, target: Any | None) -> Any:
        """Returns the shards after the exchange."""
        assert isinstance(label, Exchange)
        self.exchanges.append(str(label))
        return shard(gather(source, label.source), label.target)

    def release(self, buffer: Any) -> None:
        """Does nothing: Python frees a buffer with its last reference."""

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> NoReturn:
        """Raises NotImplementedError, since programs over ranks do not allocate."""
        raise NotImplementedError

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> NoReturn:
        """Raises NotImplementedError, since programs over ranks do not launch kernels."""
        raise NotImplementedError


def shard(array: Any, place: Sharding) -> Shards:
    """Splits an array over the devices of a mesh, or replicates it. Shards are equal except for the last ones."""
    if place.axis is None:
        return {rank: np.array(array) for rank in place.devices}
    size = -(-array.shape[place.axis] // len(place.devices))
    before = (slice(None),) * place.axis
    return {
        rank: np.array(array[(*before, slice(k * size, (k + 1) * size))]) for k, rank in enumerate(place.devices)
    }  # fmt: skip


def gather(shards: Shards, place: Sharding) -> Any:
    """Returns the whole array from its shards."""
    if place.axis is None:
        return shards[place.devices[0]]
    return np.concatenate([shards[rank] for rank in place.devices], place.axis)


def run_on_ranks(fusion: Fusion, arguments: Sequence[Any], ranks: int, device: LoopBack | None = None) -> list[Any]:
    """Runs a fusion on `ranks` ranks of this process and returns the whole outputs."""
    resharded, program = rank_program(fusion, ranks)
    sizes = extent_values(resharded, arguments)
    values: dict[int, Any] = dict(zip(resharded.inputs, arguments, strict=True))
    on_host = [n for n in resharded.nodes if not resharded.values[n.outputs[0]].is_tensor]
    scalars = {number: values[number] for number in resharded.scalar_inputs}
    computed = evaluate_scalars(resharded, on_host, scalars, sizes)
    values.update(zip((n.outputs[0] for n in on_host), computed, strict=True))
    for number in resharded.tensor_inputs:
        values[number] = shard(values[number], sharding_of(resharded, number, ranks))
    inputs = [values[n] if n in values else sizes[n] for n in program.inputs]
    results = Runner(program, LoopBack() if device is None else device)(inputs)
    return [
        gather(result, sharding_of(resharded, number, ranks)) if isinstance(result, dict) else result
        for number, result in zip(resharded.outputs, results, strict=True)
    ]
