"""The kernel IR: a small structured loop language that both emitters print and the interpreter runs.

A kernel has parameters (global buffers, then integers and scalars), a grid of parallel iterations, the threads of one
grid iteration, and a body. Inside, everything is explicit: loops, loads, stores, local and shared buffers, reductions
over the threads of a warp or a block. Buffers are flat; an index counts elements. All names in a kernel are unique.

Target "cpu": one grid axis at most, one thread; the grid is cut into pieces that workers run in any order.
Target "cuda": a block per grid iteration, `threads` threads in a block, all running the body. Blocks may form clusters,
which run at the same time, meet at barriers of their own and write each other's shared memory.

Knows: loops, memory, scalars, and which primitive functions exist. Must not know: ops, fusions, arrays.
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

# Every primitive function by name, with its number of arguments. Its meaning is the one in kernel/primitives.py.
# Arithmetic keeps the type of its arguments (all equal); comparisons and predicates give bool; `select(c, a, b)` takes
# a bool and two values of one type. No argument makes a primitive undefined: x // 0 and x % 0 are 0, the smallest
# integer // -1 wraps, shifts by the width or more give 0 (or the sign), a cast from float to int saturates
# and takes NaN to 0.
PRIMITIVES: dict[str, int] = {
    # arithmetic on numbers; `div` on floats only; integer add, sub, mul, neg and abs wrap
    **dict.fromkeys(("add", "sub", "mul", "div"), 2),
    **dict.fromkeys(("neg", "abs"), 1),
    # integers: `floordiv`, `mod` round to minus infinity; `truncdiv`, `truncmod` to zero. Floats: `floordiv`, `mod` as
    # NumPy's floor_divide and remainder, `truncmod` as fmod
    **dict.fromkeys(("floordiv", "mod", "truncdiv", "truncmod"), 2),
    # `minimum`, `maximum` pass NaN on (either side); on floats, -0.0 < +0.0 is not asked for
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
    # exp of what is not positive, as a term of a sum of at least 1: off by up to (1 + |x|) / 2**22 of itself, and 0
    # where it is subnormal
    "exp_term": 1,
    **dict.fromkeys(("atan2", "nextafter", "copysign"), 2),
    # floats and integers; of integers it wraps, and a negative exponent gives the reciprocal cut off, of 0 too: 0
    "pow": 2,
    # integers; the largest that divides both, not negative but for the smallest integer's own magnitude
    "gcd": 2,
    **dict.fromkeys(("isnan", "isinf", "isfinite", "signbit"), 1),
    # `fma(a, b, c)` is a * b + c rounded once, whatever `contract` says
    "fma": 3,
    # the bits of a float as the integer of its width, and back; the result type is the call's own
    "bitcast": 1,
}
# Of complex numbers, in kernels that are being made: the parts of one, one from its parts, a / abs(a). There,
# arithmetic and the functions of floats take complex numbers as well, and `abs` of one is real. What reaches an emitter
# or the interpreter computes with the parts (passes/split_complex.py) and has none of these.
COMPLEX_PRIMITIVES: dict[str, int] = {"real": 1, "imag": 1, "complex": 2, "sign": 1}
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite", "signbit"})


CACHE_LINE = 64
"""Bytes of a line of the CPU's caches."""


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
    """A flat run of elements.

    space: "global" (a parameter), "shared" (one for a block) or "local" (one for a thread; constant size: registers).
    size: elements; an int, or an expression of parameters (cpu locals only), or None for a parameter.
    alignment: bytes that the address of element 0 is known to be a multiple of.
    packed: elements may lie at addresses that are no multiple of their size, as in a slice of raw bytes; read only.
    written: the kernel stores to it. exclusive: nothing else in the kernel refers to the same memory (C's restrict).
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
    """Element `index` of `buffer`. cache: "default", "streaming" (read once)."""

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
    """Conversion of value: rounds to nearest even, float to int saturates, to bool compares with zero."""

    argument: Expression
    dtype: DType


Expression: TypeAlias = Constant | Variable | Load | Call | Cast


def call(name: str, *arguments: Expression, dtype: DType | None = None) -> Call:
    """A checked Call; the result type follows from the primitive unless `dtype` gives it (`bitcast` needs it)."""
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
    """Arithmetic keeps the type, but for what leads from complex numbers to real ones and back."""
    if name == "complex":
        return argument.complex
    return argument.real if name in ("real", "imag", "abs") else argument


# ---------------------------------------------------------------------------------------------------------------------
# statements


@dataclass(frozen=True, slots=True)
class Let:
    """Names a value that does not change."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class Declare:
    """A mutable variable with its first value."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign:
    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class Accumulate:
    """variable = operation(variable, value), in an order that the compiler may choose.

    operation: "add", "mul", "minimum", "maximum", "and", "or".
    """

    variable: Variable
    operation: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value. cache: "default", "streaming" (not read again soon).

    block: of a shared buffer, the block of the cluster whose memory is meant, 0 to cluster - 1; None: the own one.
    On the CPU a streaming store in a vector loop goes past the caches where the buffer's alignment is a CACHE_LINE;
    the caller makes sure that the loop then starts at such a line.
    """

    buffer: Buffer
    index: Expression
    value: Expression
    cache: str = "default"
    block: Expression | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """destination[destination_index + k] = source[source_index + k] for k in range(width), as one wide access.

    One side is a local buffer, with a constant index. Both have one dtype, or the source is of float32 and the
    destination of a half type, to which the elements are rounded. The global side is aligned to the whole width by the
    caller's guard.
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
        """Whether the elements of one side may stand on the other."""
        return self.rounds or self.source.dtype is self.destination.dtype


@dataclass(frozen=True, slots=True)
class StartCopy:
    """destination[destination_index + k] = source[source_index + k] for k in range(width), done by `AwaitCopies`.

    destination is shared, source global; 4, 8 or a multiple of 16 bytes, to which both sides are aligned (16 at most).
    Until then neither side may be touched.
    """

    destination: Buffer
    destination_index: Expression
    source: Buffer
    source_index: Expression
    width: int


@dataclass(frozen=True, slots=True)
class EndBatch:
    """The copies that this thread started since the last such statement, perhaps none, are one batch."""


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """The copies that this thread started are done, but for those of its last `later` batches.

    Other threads see them after the next barrier.
    """

    later: int = 0


@dataclass(frozen=True, slots=True)
class Transpose:
    """destination[c * to_pitch + r] = source[r * from_pitch + c] for r in range(rows), c in range(columns).

    Between local buffers of one type, on the CPU. Pitches and the rows of both buffers are multiples of 16: rows and
    columns up to the next such multiple may be moved too, whatever they hold. An element here is `width` neighbouring
    ones of the buffers.
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

    kind: "serial"; "unroll" (constant bounds; unrolled fully); "vector" (iterations are independent but for
    Accumulate, and meant for the vector unit; on the GPU the same as serial).
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
    """Makes a local or shared buffer; its content is unspecified."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the block meet; shared memory written before is seen after. cluster: those of all its blocks."""

    cluster: bool = False


@dataclass(frozen=True, slots=True)
class Combiner:
    """An associative function of two states: `results` in terms of the variables `left` and `right`."""

    left: tuple[Variable, ...]
    right: tuple[Variable, ...]
    results: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class GroupReduce:
    """Combines the mutable `variables` of all threads of a group in a fixed order; then every thread has the result.

    group: threads in the group: neighbouring ones; a power of two up to 32 (within a warp), or the whole block's count.
    All threads of the block reach it.
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
    """One launch.

    grid: parallel axes, outermost first (cuda: at most 3, of which the last is blockIdx.x; cpu: at most 1).
    threads: threads of a block, known at compile time; thread: the variable that numbers them (int32).
    cluster: blocks of a cluster, neighbours along the last axis, whose extent is a multiple; sm_90 and later.
    blocks_per_multiprocessor: how many should fit on one at once; given up where the registers do not hold the kernel.
    work: elements touched by the whole launch, as an expression of parameters: the CPU runs small work on one thread.
    contract: multiplies and adds may become fused multiply-adds. fast_math: besides, signs of zeros do not count, and
    divisions, roots and functions may be approximate. workers: CPU threads that run it at most, 0 for all.
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
    """Every statement, outer ones first."""
    for statement in body:
        yield statement
        if isinstance(statement, For):
            yield from walk_statements(statement.body)
        elif isinstance(statement, If):
            yield from walk_statements(statement.body)
            yield from walk_statements(statement.orelse)


def without_comments(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The body with its comments left out: what the cache key is made from."""
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
