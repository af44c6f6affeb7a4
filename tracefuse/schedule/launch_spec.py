"""What lowering a region gives: launches, the scratch memory between them, and the guards of its choices.

Knows: kernels and what their parameters stand for. Must not know: arrays, devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from segments import Verdict
from tracefuse.dtypes import DType, int64
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, Symbol
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import (
    Axis,
    Buffer,
    Constant,
    Declare,
    Expression,
    If,
    Kernel,
    Statement,
    Store,
    Variable,
    call,
)
from tracefuse.schedule.body import NOTED, Body

CELL = Buffer("positions_outside", int64, written=True, alignment=8)
"""Where a kernel leaves what it noted."""

_ZERO = Constant(0, int64)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory between two launches of a segment: `size` elements."""

    dtype: DType
    size: Extent


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A kernel and what to pass it, in the order of its parameters.

    tensors: value numbers of the segment's inputs and outputs; scratch: positions in the list of scratch buffers;
    integers: the symbols of the integer parameters; scalars: value numbers of host scalars, of which a complex one is
    passed as two numbers. noted: by number, the nodes whose positions the kernel looks at; where there are some, a cell
    of int64 follows the scratch buffers, which gets the number of a node with a position outside its axis.
    """

    kernel: Kernel
    tensors: tuple[int, ...]
    scratch: tuple[int, ...]
    integers: tuple[Symbol, ...]
    scalars: tuple[int, ...]
    noted: Mapping[int, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered segment.

    derived: the integer parameters that stand for an expression of other symbols. refused: why each template that was
    asked before this one does not take the segment, by name.
    """

    template: str
    launches: tuple[LaunchSpec, ...]
    guards: tuple[Guard, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    derived: Mapping[Symbol, Extent] = field(default_factory=dict)
    refused: Mapping[str, Verdict] = field(default_factory=dict)

    def with_arithmetic(self, fast_math: bool, workers: int) -> Lowered:
        """The same with kernels that may use fast math and at most so many workers; 0 for all of them."""
        if not fast_math and not workers:
            return self
        kernels = (replace(one.kernel, fast_math=fast_math, workers=workers) for one in self.launches)
        launches = (replace(one, kernel=kernel) for one, kernel in zip(self.launches, kernels, strict=True))
        return replace(self, launches=tuple(launches))


def make_launch(
    body: Body, name: str, target: str, grid: Sequence[tuple[Extent, Extent]], *,
    scratch: Sequence[tuple[int, Buffer]] = (), work: Extent = 1, contract: bool = True,
    threads: int = 1, thread: Variable | None = None, blocks_per_multiprocessor: int | None = None, cluster: int = 1,
) -> LaunchSpec:  # fmt: skip
    """The launch that a finished body is: parameters in the order tensors, scratch, integers, scalars.

    KERNEL_PASSES run on its kernel once the whole segment is lowered.

    grid: (index, extent) of each parallel axis, outermost first.
    """
    axes = []
    for index, extent in grid:
        variable = body.index.code(index)
        assert isinstance(variable, Variable)
        axes.append(Axis(variable, body.index.code(extent)))
    work_code: Expression = body.index.code(work)
    tensors = tuple(sorted(body.buffers))
    symbols = tuple(sorted(body.index.parameters, key=lambda s: s.name))
    scalars = tuple(sorted(body.scalars))
    parameters: tuple[Buffer | Variable, ...] = (
        *(body.buffers[t] for t in tensors),
        *(buffer for _, buffer in scratch),
        *([CELL] if body.noted else []),
        *(body.index.parameters[s] for s in symbols),
        *(body.scalars[s] for s in scalars),
    )
    statements: tuple[Statement, ...] = tuple(body.levels[0].statements)
    if body.noted:
        statements = (Declare(NOTED, _ZERO), *statements, If(call("ne", NOTED, _ZERO), (Store(CELL, _ZERO, NOTED),)))
    kernel = Kernel(
        name, parameters, tuple(axes), statements, target, threads, thread, blocks_per_multiprocessor, work_code,
        contract,
        cluster=cluster,
    )  # fmt: skip
    return LaunchSpec(kernel, tensors, tuple(k for k, _ in scratch), symbols, scalars, body.noted)
