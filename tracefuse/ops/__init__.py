"""Op definitions, in modules by kind. REGISTRY holds them all by name."""

from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction, Source, Within
from tracefuse.ir.scan_kind import Scan
from tracefuse.ops import (
    collectives,
    fourier,
    host_primitives,
    jax_primitives,
    library,
    linear_algebra,
    movement,
    movement_diagonals,
    movement_positions,
    movement_resizes,
    ordering,
    pointwise,
    random_bits,
    random_draws,
    reduction,
    sampled_calls,
    scipy_functions,
    searching,
    statistics,
)
from tracefuse.ops.families import REGISTRY

__all__ = [
    "REGISTRY",
    "Library",
    "Movement",
    "Pointwise",
    "Reduction",
    "Scan",
    "Source",
    "Within",
    "collectives",
    "fourier",
    "host_primitives",
    "jax_primitives",
    "library",
    "linear_algebra",
    "movement",
    "movement_diagonals",
    "movement_positions",
    "movement_resizes",
    "ordering",
    "pointwise",
    "random_bits",
    "random_draws",
    "reduction",
    "sampled_calls",
    "scipy_functions",
    "searching",
    "statistics",
]
