"""The stages of a function over a mesh that asks about computed values: each is placed and compiled for its operands.

Values between stages are sharded arrays; a value that all ranks have in full is a plain array. An answer is read from
such a value, and is that of the first rank, so that all ranks go on alike.

Must not know: options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.calls.compiled_stages import Compile, StageCompiler
from tracefuse.frontend.ranks.rank_variants import RankVariants
from tracefuse.frontend.ranks.sharded_array import ShardedArray
from tracefuse.frontend.tracer.effects.questions import Question, Stage
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion, Value
from tracefuse.ir.shardings import DeviceMesh, MeshAxis, Sharding
from tracefuse.partition.over_ranks.exchange_recorder import PlannedExchange
from tracefuse.partition.over_ranks.placements import Spec
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.rank_groups import RankGroup
from tracefuse.runtime.devices.shape_dtype import ShapeDtype

MOST_PLACED = 16
register(Cache(
    "frontend.ranks.rank_stages.RankStage._by_specs", "placed versions of a stage", "shardings of its operands",
    f"{MOST_PLACED}, the oldest go", "a stage over a mesh", "with the stage",
))  # fmt: skip


@dataclass(frozen=True)
class WholeArgument(ShapeDtype):
    """An array argument of a function over a mesh, with the shape of the whole array, and this rank's part of it."""

    local: Any = None
    sharding: Sharding | None = None

    @property
    def has_elements(self) -> bool:
        return not isinstance(self.local, ShapeDtype)


class RankStage:
    """One stage, called with sharded arrays, plain arrays and scalars. compile_local, pipelined: see `RankVariants`."""

    def __init__(
        self, fusion: Fusion, mesh: DeviceMesh, compile_local: Callable[[Fusion], Executable], pipelined: str
    ) -> None:
        self.fusion, self.mesh = fusion, mesh
        self._compile_local, self._pipelined = compile_local, pipelined
        self._by_specs: BoundedTable[tuple[Spec, ...], RankVariants] = BoundedTable(MOST_PLACED)
        self._axes = [(key, fusion.inputs.index(number), axis) for key, number, axis in fusion.axis_ids()]
        self._scalars = [(number, fusion.inputs.index(number)) for number in fusion.scalar_inputs]
        self._wanted = [() if not fusion.values[number].shape else None for number in fusion.outputs]

    @property
    def compiles(self) -> int:
        """The number of plans built."""
        return sum(variants.compiles for variants in self._by_specs.values())

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Returns the results: plain arrays where all ranks have them in full, otherwise sharded arrays."""
        sizes = {key: arguments[position].shape[axis] for key, position, axis in self._axes}
        sizes.update((number, arguments[position]) for number, position in self._scalars)
        variant = self._variants(arguments).variant(sizes)
        parts = [argument.local if is_sharded(argument) else argument for argument in arguments]
        place = self.mesh.coordinates(current_world().rank)
        outputs = variant.executable([*parts, *place, *(sizes[key] for key in variant.whole_ids)])
        return [
            ShardedArray.known(output, Sharding(self.mesh, spec), tuple(evaluate(e, sizes) for e in shape))
            if any(spec)
            else output
            for output, spec, shape in zip(outputs, variant.local.outputs, variant.shapes, strict=True)
        ]

    def _variants(self, arguments: Sequence[Any]) -> RankVariants:
        inputs = {
            number: spec_of(argument)
            for number, argument in zip(self.fusion.inputs, arguments, strict=True)
            if is_sharded(argument)
        }
        key = tuple(inputs.get(number, ()) for number in self.fusion.inputs)
        known = self._by_specs.get(key)
        if known is None:
            known = self._by_specs[key] = RankVariants(
                self.fusion, self.mesh, inputs, self._wanted, self._compile_local, self._pipelined
            )
        return known

    @property
    def exchanges(self) -> tuple[Any, ...]:
        """The exchanges of the versions so far."""
        return tuple(exchange for variants in self._by_specs.values() for exchange in variants.exchanges)


class RankStageCompiler(StageCompiler):
    """Compiles stages over a mesh, and reads the answers that the first rank has."""

    def __init__(self, compile_fusion: Compile, target: str, gpu: int | None, mesh: DeviceMesh) -> None:
        super().__init__(compile_fusion, target, gpu)
        self.mesh = mesh

    def answer(self, question: Question, values: Mapping[int, Any]) -> Any:
        """Returns the first rank's answer to a question, on every rank.

        Raises UnsupportedError for elements that are decided along an axis that is split over ranks.
        """
        read = {number: self._of_first_rank(question, values[number]) for number in question.reads}
        return question.answer({**values, **read})

    def exchanges_of(self, stage: Stage) -> list[PlannedExchange]:
        """Returns the exchanges that make the answer to the question of a stage that of the first rank."""
        assert stage.question is not None
        names = [name for name in self.mesh.names if self.mesh.size(name) > 1]
        values = [(number, stage.values[number]) for number in stage.question.reads]
        planned = []
        for number, value in values:
            size, reason = value.dtype.itemsize * _elements(value), "the first rank decides"
            planned += [PlannedExchange("Broadcast", name, number, size, stage.where, reason) for name in names]
        return planned

    def _of_first_rank(self, question: Question, value: Any) -> Any:
        if is_sharded(value):
            if not value.sharding.is_replicated:
                raise UnsupportedError(
                    f"{question.title}: its operand of shape {list(value.shape)} is split over ranks, {value.sharding}",
                    hint="call tracefuse.unshard(x) and pass the result with the sharding None, or compute with a mask "
                    "as in np.where(mask, x, 0)",
                    where=question.where,
                )
            value = value.local
        for name in self.mesh.names:
            group = RankGroup(MeshAxis(self.mesh, name))
            if group.size > 1:
                value = group.run("broadcast_from", value, value.shape, {"root": 0}, question.where)
        return value


def _elements(value: Value) -> int:
    """Returns the number of elements of a value of known extents, 0 of one whose extents a call decides."""
    return math.prod(extent if isinstance(extent, int) else 0 for extent in value.shape)


def is_sharded(value: Any) -> bool:
    """Whether a value has a part on each rank."""
    return isinstance(value, (ShardedArray, WholeArgument))


def spec_of(value: Any) -> Spec:
    """Returns the sharding of a value that has a part on each rank, by axis."""
    return tuple(value.sharding.names(axis) for axis in range(len(value.shape)))
