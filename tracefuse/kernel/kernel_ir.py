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
from dataclasses import dataclass, replace
from typing import TypeAlias

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError

# ---------------------------------------------------------------------------------------------------------------------
# primitives

# The number of arguments of each primitive. kernel/primitives.py holds the reference implementations.
# Arithmetic keeps the dtype of its arguments, which are all equal; comparisons and predicates return bool;
# `select(c, a, b)` takes a bool and two values of one dtype. Primitives are defined for all arguments: x // 0 and x % 0
# are 0, the smallest integer // -1 wraps, shifts by the width or more give 0 (or the sign), and a cast from float to
# int saturates and maps NaN to 0.
PRIMITIVES: dict[str, int] = {
    # arithmetic; `div` takes floats only; integer add, sub, mul, neg and abs wrap
    **dict.fromkeys(("add", "sub", "mul", "div"), 2),
    **dict.fromkeys(("neg", "abs"), 1),
    # integers: `floordiv` and `mod` round toward minus infinity, `truncdiv` and `truncmod` toward zero.
    # floats: `floordiv` and `mod` are NumPy's floor_divide and remainder, `truncmod` is fmod
    **dict.fromkeys(("floordiv", "mod", "truncdiv", "truncmod"), 2),
    # `minimum` and `maximum` propagate NaN from either side; the order of -0.0 and +0.0 is unspecified
    **dict.fromkeys(("minimum", "maximum"), 2),
    # comparisons; bool results
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), 2),
    # bools and integers
    **dict.fromkeys(("and", "or", "xor", "shl", "shr", "shr_logical"), 2),
    "not": 1,
    "select": 3,
    # floats
    **dict.fromkeys(
        (
            *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
            *("erf", "erfc", "erfinv", "erfcinv", "lgamma", "floor", "ceil", "round", "trunc"),
        ),
        1,
    ),
    # exp of a non-positive argument, as a term of a sum of at least 1: its relative error is up to (1 + |x|) / 2**22,
    # and a subnormal result is 0
    "exp_term": 1,
    **dict.fromkeys(("atan2", "nextafter", "copysign"), 2),
    # floats and integers; integer powers wrap, and a negative exponent gives the truncated reciprocal (0 for base 0)
    "pow": 2,
    # integers; the greatest common divisor, which is negative only if it overflows to the smallest integer
    "gcd": 2,
    **dict.fromkeys(("isnan", "isinf", "isfinite", "signbit"), 1),
    # `fma(a, b, c)` is a * b + c rounded once, regardless of `contract`
    "fma": 3,
    # reinterprets the bits of a float as an integer of the same width, or back; the call gives the result dtype
    "bitcast": 1,
}
# Primitives of complex numbers, in kernels under construction only: real part, imaginary part, complex from parts, and
# a / abs(a). Arithmetic and float functions also take complex numbers there, and `abs` of one is real.
# passes/split_complex.py replaces them by arithmetic on the parts before an emitter or the interpreter sees the kernel.
COMPLEX_PRIMITIVES: dict[str, int] = {"real": 1, "imag": 1, "complex": 2, "sign": 1}
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite", "signbit"})


CACHE_LINE = 64
"""The size of a CPU cache line, in bytes."""


# ---------------------------------------------------------------------------------------------------------------------
# expressions


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. `value` is a Python bool, int, float (also inf, nan) or complex, exact in `dtype`."""

    value: bool | int | float | complex
    dtype: DType


@dataclass(frozen=True, slots=True)
class Variable:
    """A named scalar: a parameter, a loop index, a let or a mutable."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat buffer.

    space: "global" (a parameter), "shared" (one per block) or "local" (one per thread; in registers if the size is
        constant).
    size: in elements: an int, an expression of parameters (CPU local buffers only), or None for a parameter.
    alignment: the guaranteed alignment of element 0, in bytes.
    packed: elements may be unaligned, as in a slice of raw bytes; read-only.
    written: the kernel stores to the buffer.
    exclusive: no other buffer of the kernel aliases this memory (`restrict` in C).
    """

    name: str
    dtype: DType
    space: str = "global"
    size: int | Expression | None = None
    alignment: int = 1
    written: bool = False
    exclusive: bool = True
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Element `index` of `buffer`. cache: "default" or "streaming" (read once)."""

    buffer: Buffer
    index: Expression
    cache: str = "default"

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive applied to arguments."""

    name: str
    arguments: tuple[Expression, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion by value: rounds to nearest even, saturates from float to int, compares with zero for bool."""

    argument: Expression
    dtype: DType


Expression: TypeAlias = Constant | Variable | Load | Call | Cast


def call(name: str, *arguments: Expression, dtype: DType | None = None) -> Call:
    """Return a checked Call. The primitive determines the result dtype unless `dtype` is given, as `bitcast` requires.

    Raises InternalError for a wrong number of arguments or arguments of different dtypes.
    """
    wanted = PRIMITIVES.get(name, COMPLEX_PRIMITIVES.get(name))
    if wanted != len(arguments):
        raise InternalError(f"kernel IR: {name} takes {wanted} arguments, got {len(arguments)}")
    values = arguments[1:] if name == "select" else arguments
    if len({a.dtype for a in values}) > 1:
        raise InternalError(f"kernel IR: {name} of {', '.join(a.dtype.name for a in arguments)}: types differ")
    if dtype is None:
        dtype = dtypes.bool_ if name in COMPARISONS else _result_type(name, values[0].dtype)
    return Call(name, arguments, dtype)


def _result_type(name: str, argument: DType) -> DType:
    """Return the argument's dtype, or its real or complex counterpart for primitives that change between the two."""
    if name == "complex":
        return argument.complex
    return argument.real if name in ("real", "imag", "abs") else argument


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
    """

    destination: Buffer
    destination_index: Expression
    source: Buffer
    source_index: Expression
    width: int


@dataclass(frozen=True, slots=True)
class EndBatch:
    """Groups the copies that this thread started since the previous EndBatch into one batch, which may be empty."""


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Waits for the copies that this thread started, except those of its last `later` batches.

    Other threads see the copied elements after the next barrier.
    """

    later: int = 0


@dataclass(frozen=True, slots=True)
class Transpose:
    """destination[c * to_pitch + r] = source[r * from_pitch + c] for r in range(rows), c in range(columns).

    Both sides are local buffers of one dtype, on the CPU. The pitches and row counts of both buffers are multiples of
    16, and rows and columns up to the next multiple of 16 may be moved too, with unspecified content. An element here
    is `width` adjacent elements of the buffers.
    """

    destination: Buffer
    to_pitch: int
    source: Buffer
    from_pitch: int
    rows: Expression
    columns: Expression
    width: int = 1


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
    All threads of the block must reach the statement.
    """

    variables: tuple[Variable, ...]
    combiner: Combiner
    group: int


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


Statement: TypeAlias = (
    Let
    | Declare
    | Assign
    | Accumulate
    | Store
    | Copy
    | StartCopy
    | EndBatch
    | AwaitCopies
    | Transpose
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
    kept: list[Statement] = []
    for statement in body:
        if isinstance(statement, Comment):
            continue
        if isinstance(statement, For):
            statement = replace(statement, body=without_comments(statement.body))
        elif isinstance(statement, If):
            statement = replace(
                statement, body=without_comments(statement.body), orelse=without_comments(statement.orelse)
            )
        kept.append(statement)
    return tuple(kept)
