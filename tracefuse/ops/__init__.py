"""The op rows: one row an op, in one file a kind. REGISTRY holds them all by name."""

from tracefuse.ops import library, movement, ordering, pointwise, random, reduction
from tracefuse.ops.row import REGISTRY, Library, Movement, Pointwise, Reduction, Source, Within

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
    "ordering",
    "pointwise",
    "random",
    "reduction",
]
