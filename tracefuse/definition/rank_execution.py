"""Execution of a definition over ranks: its values are on a mesh, and every rank of a job runs its parts.

Inputs and results are the parts of this rank, as their marks say; a value without a mesh is equal on all ranks. The
marks of other values are wishes: propagation decides what no result needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable, compile_fusion
from tracefuse.errors import FusionError, ShapeError
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.shardings import Sharding
from tracefuse.partition.over_ranks.local_fusion import localize
from tracefuse.partition.over_ranks.placements import Spec
from tracefuse.runtime.communicators.current_world import known_world
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.rank_groups import RankGroup
from tracefuse.runtime.devices import arrays

MOST_SHAPES = 64
register(Cache(
    "definition.rank_execution.RankExecution._executables", "executables of a rank", "shapes of whole arrays",
    f"{MOST_SHAPES}, the oldest go", "a `FusionDefinition`", "with the definition",
))  # fmt: skip


def runs_over_ranks(fusion: Fusion) -> bool:
    """Whether values of a fusion are on a mesh, in a job of several ranks."""
    world = known_world()
    return world is not None and world.size > 1 and any(value.sharding for value in fusion.values.values())


class RankExecution:
    """The executables of one rank. Raises FusionError for values on several meshes."""

    def __init__(self, fusion: Fusion) -> None:
        meshes = {value.sharding.mesh for value in fusion.values.values() if value.sharding is not None}
        if len(meshes) != 1:
            raise FusionError(
                f"the values of a definition are on {len(meshes)} meshes", hint="place all of them on one mesh"
            )
        if fusion.aliases:
            raise FusionError("a definition over ranks updates an input", hint="return the new value instead")
        self.fusion, self.mesh = fusion, meshes.pop()
        self._executables: BoundedTable[Any, tuple[Executable, list[int]]] = BoundedTable(MOST_SHAPES)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Runs the definition on this rank's parts and returns its parts of the results.

        Raises FusionError on a rank that is not in the mesh.
        """
        rank = current_world().rank
        if rank not in self.mesh.ranks:
            raise FusionError(f"rank {rank} is not in {self.mesh}", hint="execute on the ranks of the mesh")
        shapes = {
            number: self._whole_shape(number, part.shape)
            for number, part in zip(self.fusion.inputs, inputs, strict=True)
            if self.fusion.values[number].is_tensor
        }
        device = arrays.place_of([(part, "an input") for part in inputs if hasattr(part, "shape")])[1]
        scalars = {n: v for n, v in zip(self.fusion.inputs, inputs, strict=True) if n not in shapes}
        key = device, tuple(shapes.values()), tuple(scalars.values())
        known = self._executables.get(key)
        if known is None:
            known = self._executables[key] = self._compile(shapes, scalars, device)
        executable, wholes = known
        return executable([*inputs, *self.mesh.coordinates(rank), *wholes])

    def _sharding(self, number: int) -> Sharding:
        return self.fusion.values[number].sharding or Sharding(self.mesh)

    def _spec(self, number: int) -> Spec:
        sharding = self._sharding(number)
        return tuple(sharding.names(axis) for axis in range(len(self.fusion.values[number].shape)))

    def _whole_shape(self, number: int, part: Sequence[int]) -> tuple[int, ...]:
        sharding = self._sharding(number)
        if len(sharding.spec) > len(part):
            raise ShapeError(f"T{number} is {sharding}, and the input has {len(part)} axes", hint="pass its part")
        return tuple(extent * sharding.parts(axis) for axis, extent in enumerate(part))

    def _compile(
        self, shapes: dict[int, tuple[int, ...]], scalars: dict[int, Any], device: int | None
    ) -> tuple[Executable, list[int]]:
        """Returns the executable of a rank, and the extents of whole axes that it takes."""
        fusion = self.fusion
        sizes = {key: shapes[value][axis] for key, value, axis in fusion.axis_ids()} | scalars
        inputs = {number: self._spec(number) for number in fusion.tensor_inputs}
        outputs = [self._spec(number) for number in fusion.outputs]
        marks = {
            number: self._spec(number)
            for node in fusion.nodes
            for number in node.outputs
            if fusion.values[number].sharding is not None
        }
        local = localize(fusion, self.mesh, sizes, inputs, outputs, RankGroup, marks)
        target = "cpu" if device is None else "cuda"
        wholes = [shapes[number][axis] for number, axis in local.wholes]
        return compile_fusion(local.fusion, target=target, device=device or 0), wholes
