"""Definitions whose sizes are known at the call alone, and what the tests of them count."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import DataType, FusionDefinition
from tracefuse.kernel.llvm import cpu_functions


def ramp(*shape: int) -> Any:
    """1, 2, 3, ... in float32."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def compiled() -> int:
    """Kernels that LLVM has compiled, or that were read from disk, since the process started."""
    counts = cpu_functions.statistics()
    return counts.compiled + counts.from_disk


def reshaping(rank: int, target: int) -> FusionDefinition:
    """A reshape by `target` scalar inputs, plus 1."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.reshape(x, fd.define_vector(target)), 1.0))
    return fd


def plans(fd: FusionDefinition) -> int:
    """How many plans a definition has compiled."""
    return sum(executable.compiles for executable in fd._split().executables)


def example() -> FusionDefinition:
    """T3 = T1 * pad(T0) with run-time widths."""
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1] * 5, contiguity=True)
        t1 = fd.define_tensor([-1] * 5, contiguity=True)
        widths = [fd.define_scalar(dtype=DataType.Int) for _ in range(10)]
        t2 = fd.ops.pad(t0, [w for axis in reversed(range(5)) for w in widths[2 * axis : 2 * axis + 2]])
        fd.add_output(fd.ops.mul(t1, t2))
    return fd


WIDTHS = (0, 0, -1, -1, 1, 1, 0, -4, 0, -1)


def padded(t0: Any) -> Any:
    return np.pad(t0[:, 1:-1, :, :-4, :-1], ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))


def arguments(i0: int = 7, axis1: int = 3, axis2: int = 2, axis3: int = 5) -> list[Any]:
    t0 = ramp(i0, axis1, axis2, axis3, 6)
    return [t0, ramp(i0, 4 if axis1 == 3 else axis1 - 2, axis2 + 2, 3 if axis3 == 5 else axis3 - 4, 5), *WIDTHS]
