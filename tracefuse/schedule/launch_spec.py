"""The result of lowering a region: launches, the scratch memory between them, and the guards on its decisions.

Must not know: arrays, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from segments import Verdict
from segments.lazy_dataclasses import dataclass, replace
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
from tracefuse.schedule.body import POSITION_ERROR, Body
from tracefuse.schedule.cost import Price
from tracefuse.schedule.tiling_choice import PricedTiling

ERROR_FLAG = Buffer("positions_outside", int64, written=True, alignment=8)
"""The error flag: one int64, which the caller sets to 0. A kernel stores the number of a node with an out-of-range
index."""

_ZERO = Constant(0, int64)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory that carries data from one launch of a segment to the next. size: in elements."""

    dtype: DType
    size: Extent


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A kernel and its arguments, in the order of its parameters.

    tensors: value numbers of the segment's inputs and outputs. scratch: positions in the list of scratch buffers.
    integers: the symbols of the integer parameters. scalars: value numbers of host scalars; a complex scalar is passed
    as two numbers. checked_nodes: by number, the nodes whose indices the kernel checks. If there are any, an int64
    error flag follows the scratch buffers; the kernel stores the number of a node with an out-of-range index there.
    inverses: the integers that are inverses of divisors, with their definitions. work: in elements, None if unknown.
    """

    kernel: Kernel
    tensors: tuple[int, ...]
    scratch: tuple[int, ...]
    integers: tuple[Symbol, ...]
    scalars: tuple[int, ...]
    checked_nodes: Mapping[int, Node] = field(default_factory=dict)
    inverses: Mapping[Symbol, Extent] = field(default_factory=dict)
    work: Extent | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template's offer for a segment at the sizes of one call, with one of its tilings.

    refusal: why the template does not support the segment, or "". is_chosen: the template that the call uses.
    least_bytes: a lower bound of the bytes that it moves: each input and output once, scratch memory written and read.
    launches: the shape of each launch, as text. The bound and the launches of a refused template are 0 and empty.
    tiling: the tiling as text, "" for a template with a single one. price: of the cost model, None if it has no model.
    """

    template: str
    refusal: str
    is_chosen: bool
    least_bytes: int = 0
    launches: tuple[str, ...] = ()
    tiling: str = ""
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered segment.

    derived: integer parameters that are computed from other symbols. refused: by name, the verdict of each template
    that was tried before this one. candidates: what every template offers for the segment; it lowers the segment again.
    tilings: those that the template offers, priced, by the names of the problems of the segment's parts.
    """

    template: str
    launches: tuple[LaunchSpec, ...]
    guards: tuple[Guard, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    derived: Mapping[Symbol, Extent] = field(default_factory=dict)
    refused: Mapping[str, Verdict] = field(default_factory=dict)
    candidates: Callable[[], tuple[Candidate, ...]] = field(default=tuple, compare=False)
    tilings: Mapping[str, tuple[PricedTiling, ...]] = field(default_factory=dict, compare=False)

    def with_arithmetic(self, fast_math: bool, workers: int) -> Lowered:
        """Returns a copy whose kernels use fast math, if set, and at most `workers` workers (0: all workers)."""
        if not fast_math and not workers:
            return self
        launches = (
            replace(launch, kernel=replace(launch.kernel, fast_math=fast_math, workers=workers))
            for launch in self.launches
        )
        return replace(self, launches=tuple(launches))


def make_launch(
    body: Body, name: str, target: str, grid: Sequence[tuple[Extent, Extent]], *,
    scratch: Sequence[tuple[int, Buffer]] = (), work: Extent = 1, contract: bool = True,
    threads: int = 1, thread: Variable | None = None, blocks_per_multiprocessor: int | None = None, cluster: int = 1,
) -> LaunchSpec:  # fmt: skip
    """Makes the launch of a finished body: parameters in the order tensors, scratch, error flag, integers, scalars.

    KERNEL_PASSES run on the kernel after the whole segment is lowered.

    grid: (index, extent) of each parallel axis, outermost first.
    """
    body.index.inverts = False  # the host computes the extents of the grid
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
        *([ERROR_FLAG] if body.checked_nodes else []),
        *(body.index.parameters[s] for s in symbols),
        *(body.scalars[s] for s in scalars),
    )
    statements: tuple[Statement, ...] = tuple(body.levels[0].statements)
    if body.checked_nodes:
        report = If(call("ne", POSITION_ERROR, _ZERO), (Store(ERROR_FLAG, _ZERO, POSITION_ERROR),))
        statements = (Declare(POSITION_ERROR, _ZERO), *statements, report)
    kernel = Kernel(
        name, parameters, tuple(axes), statements, target, threads, thread, blocks_per_multiprocessor, work_code,
        contract,
        cluster=cluster,
    )  # fmt: skip
    buffers = tuple(k for k, _ in scratch)
    return LaunchSpec(kernel, tensors, buffers, symbols, scalars, body.checked_nodes, body.index.inverses, work)
