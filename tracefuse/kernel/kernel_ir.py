"""The kernel IR: a small structured loop language for both emitters and the interpreter.

A kernel has parameters (global buffers, then integers and scalars), a grid of parallel iterations, the threads of each
grid iteration, and a body. The body is explicit: loops, loads, stores, local and shared buffers, reductions over the
threads of a warp or block. Buffers are flat and indices count elements. All names in a kernel are unique.

Target "cpu": at most one grid axis and one thread; workers run chunks of the grid in any order.
Target "cuda": one block per grid iteration and `threads` threads per block, all of which run the body. Blocks may form
clusters, whose blocks run concurrently, synchronize at cluster barriers and write each other's shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import dtypes
from tracefuse.kernel.kernel_expressions import (
    COMPARISONS as COMPARISONS,
)
from tracefuse.kernel.kernel_expressions import (
    COMPLEX_PRIMITIVES as COMPLEX_PRIMITIVES,
)
from tracefuse.kernel.kernel_expressions import (
    PRIMITIVES as PRIMITIVES,
)

# Expressions belong to the same language, so users import them from here as well.
from tracefuse.kernel.kernel_expressions import (
    Buffer as Buffer,
)
from tracefuse.kernel.kernel_expressions import (
    Call as Call,
)
from tracefuse.kernel.kernel_expressions import (
    Cast as Cast,
)
from tracefuse.kernel.kernel_expressions import (
    Constant as Constant,
)
from tracefuse.kernel.kernel_expressions import (
    Expression as Expression,
)
from tracefuse.kernel.kernel_expressions import (
    Load as Load,
)
from tracefuse.kernel.kernel_expressions import (
    Variable as Variable,
)
from tracefuse.kernel.kernel_expressions import (
    call as call,
)
from tracefuse.kernel.matrix_statements import (
    AddProducts as AddProducts,
)
from tracefuse.kernel.matrix_statements import (
    AwaitProducts as AwaitProducts,
)
from tracefuse.kernel.matrix_statements import (
    LoadMatrices as LoadMatrices,
)
from tracefuse.kernel.matrix_statements import (
    LoadPairs as LoadPairs,
)
from tracefuse.kernel.matrix_statements import (
    Matrix as Matrix,
)
from tracefuse.kernel.matrix_statements import (
    MultiplyMatrices as MultiplyMatrices,
)
from tracefuse.kernel.matrix_statements import (
    MultiplyTiles as MultiplyTiles,
)
from tracefuse.kernel.matrix_statements import (
    StorePair as StorePair,
)

CACHE_LINE = 64
"""The size of a CPU cache line, in bytes."""


# ---------------------------------------------------------------------------------------------------------------------
# statements


@dataclass(frozen=True, slots=True)
class Let:
    """Binds an immutable variable."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class Declare:
    """Declares a mutable variable with its initial value."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign:
    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class Accumulate:
    """variable = operation(variable, value); the compiler may reassociate it.

    operation: "add", "mul", "minimum", "maximum", "and", "or".
    """

    variable: Variable
    operation: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value. cache: "default" or "streaming" (not read again soon).

    block: for a shared buffer, the rank in the cluster of the block to write to, 0 to cluster - 1; None: this block.
    On the CPU, a streaming store in a vector loop bypasses the caches if the buffer is aligned to CACHE_LINE; the
    schedule must then start the loop at a cache line.
    """

    buffer: Buffer
    index: Expression
    value: Expression
    cache: str = "default"
    block: Expression | None = None


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Asks for buffer[index : index + elements] before they are read or written, on the CPU; changes no values.

    They may be outside of the buffer. In serial loops: LLVM does not vectorize one with it. writes: the elements will
    be written.
    """

    buffer: Buffer
    index: Expression
    writes: bool = False
    elements: int = 1


@dataclass(frozen=True, slots=True)
class Copy:
    """destination[destination_index + k] = source[source_index + k] for k in range(width), as one wide access.

    One side is a local buffer with a constant index. Both have the same dtype, or a float32 source is rounded to a
    destination of a half type. A guard of the caller ensures that the global side is aligned to the whole width.
    """

    destination: Buffer
    destination_index: Expression
    source: Buffer
    source_index: Expression
    width: int
    cache: str = "default"

    @property
    def rounds(self) -> bool:
        return self.source.dtype is dtypes.float32 and self.destination.dtype.is_half

    @property
    def fits(self) -> bool:
        """Whether the dtypes of the two sides are compatible."""
        return self.rounds or self.source.dtype is self.destination.dtype


@dataclass(frozen=True, slots=True)
class StartCopy:
    """destination[destination_index + k] = source[source_index + k] for k in range(width), asynchronously.

    The destination is shared, the source global. The size is 4, 8 or a multiple of 16 bytes, and both sides are aligned
    to it, at most to 16. Neither side may be accessed before `AwaitCopies` completes the copy.

    count: how many such copies it starts. steps: the elements from one to the next, on both sides. valid: how many of
    them read the source; the others set their destination to zero, and their source need not exist. None: all.
    """

    destination: Buffer
    destination_index: Expression
    source: Buffer
    source_index: Expression
    width: int
    count: int = 1
    steps: tuple[int, int] = (0, 0)
    valid: Expression | None = None


@dataclass(frozen=True, slots=True)
class EndBatch:
    """Groups the copies that this thread started since the previous EndBatch into one batch, which may be empty."""


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Waits for the copies of this thread but its last `later` batches; other threads see them after a barrier."""

    later: int = 0


@dataclass(frozen=True, slots=True)
class Transpose:
    """destination[c * to_pitch + r] = source[r * from_pitch + c] for r in range(rows), c in range(columns).

    On the CPU. Pitches and row counts of local buffers are multiples of 16, and rows and columns up to the next one may
    be moved too, with unspecified content. A global source begins at `start`, and no more of it is read. An element
    here is `width` adjacent elements of the buffers, which have one dtype.
    """

    destination: Buffer
    to_pitch: int
    source: Buffer
    from_pitch: int | Expression
    rows: Expression
    columns: Expression
    width: int = 1
    start: Expression | None = None


@dataclass(frozen=True, slots=True)
class For:
    """for variable in range(start, stop, step): body.

    kind: "serial"; "unroll" (constant bounds, fully unrolled); "vector" (iterations are independent except for
    Accumulate and are vectorized on the CPU; serial on the GPU).
    """

    variable: Variable
    start: Expression
    stop: Expression
    step: Expression
    kind: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    condition: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocate:
    """Allocates a local or shared buffer with unspecified content."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Barrier:
    """Synchronizes the threads of the block and makes earlier writes to shared memory visible to them.

    cluster: synchronizes the threads of all blocks of the cluster.
    """

    cluster: bool = False


@dataclass(frozen=True, slots=True)
class Combiner:
    """An associative function of two reduction states: `results` in terms of the variables `left` and `right`."""

    left: tuple[Variable, ...]
    right: tuple[Variable, ...]
    results: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class GroupReduce:
    """Reduces the mutable `variables` over the threads of each group in a fixed order; every thread gets the result.

    group: the number of adjacent threads in a group: a power of two up to 32 (within a warp), or the whole block.
    before: mutable variables that receive the combination of the earlier threads of the group; they hold the neutral
    element, which the first thread keeps. Without it, only the results for the group are computed. All threads of the
    block must reach the statement.
    """

    variables: tuple[Variable, ...]
    combiner: Combiner
    group: int
    before: tuple[Variable, ...] = ()


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


Statement: TypeAlias = (
    Let
    | Declare
    | Assign
    | Accumulate
    | Store
    | Prefetch
    | Copy
    | StartCopy
    | EndBatch
    | AwaitCopies
    | Transpose
    | AddProducts
    | LoadMatrices
    | LoadPairs
    | MultiplyMatrices
    | MultiplyTiles
    | AwaitProducts
    | StorePair
    | For
    | If
    | Allocate
    | Barrier
    | GroupReduce
    | Comment
)


# ---------------------------------------------------------------------------------------------------------------------
# kernels


@dataclass(frozen=True, slots=True)
class Axis:
    """A parallel axis: `variable` runs over range(extent); `extent` is an expression of parameters (index dtype)."""

    variable: Variable
    extent: Expression


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: the code and parameters of one launch.

    grid: parallel axes, outermost first (cuda: at most 3, the last is blockIdx.x; cpu: at most 1).
    threads: threads per block, a compile-time constant; thread: the variable that holds the thread's index (int32).
    cluster: blocks per cluster, adjacent along the last axis, whose extent is a multiple of it; sm_90 and later.
    blocks_per_multiprocessor: the minimum occupancy to compile for, dropped if it would spill registers.
    work: elements accessed by the whole launch, as an expression of parameters; the CPU runs small work on one thread.
    contract: a multiply and an add may be contracted to a fused multiply-add.
    fast_math: in addition, signs of zeros are ignored, and divisions, roots and functions may be approximate.
    workers: the maximum number of CPU threads, 0 for no limit.
    """

    name: str
    parameters: tuple[Buffer | Variable, ...]
    grid: tuple[Axis, ...]
    body: tuple[Statement, ...]
    target: str
    threads: int = 1
    thread: Variable | None = None
    blocks_per_multiprocessor: int | None = None
    work: Expression | None = None
    contract: bool = True
    fast_math: bool = False
    workers: int = 0
    cluster: int = 1

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.parameters if isinstance(p, Buffer))

    @property
    def scalars(self) -> tuple[Variable, ...]:
        return tuple(p for p in self.parameters if isinstance(p, Variable))


def walk_statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield every statement of the body, each before the statements nested in it."""
    for statement in body:
        yield statement
        if isinstance(statement, For):
            yield from walk_statements(statement.body)
        elif isinstance(statement, If):
            yield from walk_statements(statement.body)
            yield from walk_statements(statement.orelse)


def without_comments(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return the body without its comments, as used for cache keys."""
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Comment):
            continue
        if isinstance(statement, For):
            statement = replace(statement, body=without_comments(statement.body))
        elif isinstance(statement, If):
            statement = replace(
                statement, body=without_comments(statement.body), orelse=without_comments(statement.orelse)
            )
        result.append(statement)
    return tuple(result)
