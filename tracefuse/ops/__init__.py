"""The op rows: one row an op, in files by kind. REGISTRY holds them all by name."""

from tracefuse.ops import (
    library,
    movement,
    movement_positions,
    movement_resizes,
    ordering,
    pointwise,
    random,
    reduction,
)
from tracefuse.ops.families import REGISTRY
from tracefuse.ops.row import Library, Movement, Pointwise, Reduction, Source, Within

__all__ = [
    "REGISTRY",
    "Library",
    "Movement",
    "Pointwise",
    "Reduction",
    "Source",
    "Within",
    "library",
    "movement",
    "movement_positions",
    "movement_resizes",
    "ordering",
    "pointwise",
    "random",
    "reduction",
]
