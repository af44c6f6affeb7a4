"""What a rank runs for a trace over a mesh: one executable for all sizes that lead to the same exchanges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable
from tracefuse.config import Options
from tracefuse.ir.fusion import Fusion, Node, Shape, SubFusion
from tracefuse.ir.shardings import DeviceMesh
from tracefuse.partition.over_ranks.exchange_recorder import PlannedExchange
from tracefuse.partition.over_ranks.local_fusion import LocalFusion, localize
from tracefuse.partition.over_ranks.placements import Spec
from tracefuse.passes.pipeline import FUSION_PASSES, SEGMENT_PASSES, run_passes
from tracefuse.passes.rewriter import with_nodes
from tracefuse.runtime.communicators.rank_groups import RankGroup

MOST_VARIANTS, MOST_SIZES = 16, 256
register(Cache(
    "frontend.ranks.rank_variants.RankVariants._variants", "executables of a rank", "answers about sizes",
    f"{MOST_VARIANTS}, the oldest go", "a trace over a mesh", "with the trace",
))  # fmt: skip
register(Cache(
    "frontend.ranks.rank_variants.RankVariants._by_sizes", "executables of a rank", "sizes",
    f"{MOST_SIZES}, the oldest go", "a trace over a mesh", "with the trace",
))  # fmt: skip


_BEFORE_EXCHANGES = tuple(
    one for one in (*SEGMENT_PASSES, *FUSION_PASSES) if one.name in ("decompose", "merge_common", "drop_dead")
)
"""The passes that run before exchanges are placed: a composite reduction is several exchanges."""


def prepared(fusion: Fusion, options: Options) -> Fusion:
    """Returns a fusion, and the bodies in it, in the form in which exchanges are placed."""
    fusion = run_passes(_BEFORE_EXCHANGES, fusion, options)
    return with_nodes(fusion, [_with_prepared_bodies(node, options) for node in fusion.nodes])


def _with_prepared_bodies(node: Node, options: Options) -> Node:
    parts = {
        name: replace(part, fusion=prepared(part.fusion, options))
        for name, part in node.attributes.items()
        if isinstance(part, SubFusion)
    }
    return replace(node, attributes={**node.attributes, **parts}) if parts else node


class RankVariant:
    """One executable. shapes: of the whole outputs. whole_ids: the extents that it takes after the rank's place."""

    def __init__(
        self, local: LocalFusion, executable: Executable, shapes: Sequence[Shape], ids: Mapping[Any, int]
    ) -> None:
        self.local, self.executable, self.shapes = local, executable, shapes
        self.whole_ids = tuple(ids[place] for place in local.wholes)


class RankVariants:
    """The executables of a trace. inputs: the sharding of inputs by value. wanted: that of each output, None for any.

    compile_local: compiles the fusion of a rank. pipelined: see `localize`.
    """

    def __init__(
        self, fusion: Fusion, mesh: DeviceMesh, inputs: Mapping[int, Spec], wanted: Sequence[Spec | None],
        compile_local: Callable[[Fusion], Executable], pipelined: str = "off",
    ) -> None:  # fmt: skip
        self.fusion, self.mesh, self._inputs, self._wanted = fusion, mesh, inputs, wanted
        self._compile_local, self._pipelined = compile_local, pipelined
        self._ids = {(value, axis): key for key, value, axis in fusion.axis_ids()}
        self._scalars = fusion.scalar_inputs
        self._variants: BoundedTable[int, RankVariant] = BoundedTable(MOST_VARIANTS)
        self._by_sizes: BoundedTable[tuple[Any, ...], RankVariant] = BoundedTable(MOST_SIZES)
        self._lock, self._count = threading.Lock(), 0
        self._keys = tuple(self._ids.values())

    @property
    def compiles(self) -> int:
        """The number of plans built."""
        return sum(variant.executable.compiles for variant in self._variants.values())

    @property
    def exchanges(self) -> tuple[PlannedExchange, ...]:
        """The exchanges of all executables."""
        return tuple(exchange for variant in self._variants.values() for exchange in variant.local.exchanges)

    def variant(self, sizes: Mapping[int, Any]) -> RankVariant:
        """Returns the executable for these extents and scalars, by id; compiles it if none fits."""
        key = tuple(sizes[size] for size in (*self._keys, *self._scalars))
        known = self._by_sizes.get(key)
        if known is None:
            with self._lock:
                known = self._find(sizes)
                self._by_sizes[key] = known
        return known

    def _find(self, sizes: Mapping[int, Any]) -> RankVariant:
        for variant in self._variants.values():
            if variant.local.facts.hold(sizes):
                return variant
        wanted, pipelined = self._wanted, self._pipelined
        local = localize(self.fusion, self.mesh, sizes, self._inputs, wanted, RankGroup, pipelined=pipelined)
        shapes = [self.fusion.values[number].shape for number in self.fusion.outputs]
        variant = RankVariant(local, self._compile_local(local.fusion), shapes, self._ids)
        self._variants[self._count] = variant
        self._count += 1
        return variant
