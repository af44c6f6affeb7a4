"""How many vectors a vector loop processes at a time: several if its body is short, to hide latency, else one.

Short bodies that carry a value from one iteration to the next, or evaluate a polynomial or a division, wait for
results; the processor overlaps iterations of others by itself, and two vectors fill a cache line.

A long body has independent work of its own. Copies of it spill registers, and LLVM's time grows with them. Functions
with rare paths (`kernel/llvm/rare_paths.py`) are long enough, and the branch of each copy ends a block.
"""

from __future__ import annotations

from collections.abc import Iterator

from segments.lazy_dataclasses import replace
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import float32_math

MOST = 4
LONG_BODY = 160
"""Instructions of a body, about, that run one vector at a time; shorter ones run up to MOST."""

MOST_AT_ONCE = 8
"""The vectors of a short loop of a known length that run as one iteration, so that its local arrays are registers."""

SHORT_VECTOR, LEAST_TRIPS = 8, 16
"""The trips of a short loop that are vectors, and the fewest trips of a loop that LLVM vectorizes with a remainder."""

_FUNCTION = 24
SLOW_INTEGERS = frozenset(("floordiv", "mod", "truncdiv", "truncmod"))
PLAIN = frozenset((
    "add", "sub", "mul", "rounded_product", "neg", "abs", "sqrt", "fma", "minimum", "maximum", "select", "div", "and",
    "or", "xor", "not", *ir.COMPARISONS,
))  # fmt: skip


def interleave_count(loop: ir.For, vector_bytes: int, *, in_vectors: bool = False) -> int:
    """Return the number of vectors that an iteration of a vector loop processes, a power of two.

    vector_bytes: of the processor's vectors. in_vectors: the loop is written in vectors, of which sums of functions
    need more to be as fast.
    """
    length, trips = _length_of(loop.body), known_trips(loop)
    if in_vectors and trips is None and _FUNCTION <= length <= LONG_BODY // 4 and _accumulates(loop.body):
        return 2 * MOST
    count = MOST if length <= LONG_BODY // 2 else MOST // 2 if length <= LONG_BODY else 1
    if trips is None:
        return count if _waits(loop.body) else min(count, MOST // 2)
    lanes = vector_bytes // widest(loop.body)
    if in_vectors and trips % lanes:
        # With the last ones masked; those of short bodies only if all have elements.
        vectors = -(-trips // lanes)
        at_once = 1 << (vectors - 1).bit_length()
        if at_once <= (MOST_AT_ONCE if count == MOST else count) and (at_once == vectors or length >= _FUNCTION):
            return at_once
    # A loop of fewer iterations than its vectors hold would run scalar code alone.
    vectors = trips // lanes
    all_at_once = count == MOST and vectors <= MOST_AT_ONCE and vectors.bit_count() == 1
    return vectors if all_at_once else max(1, min(count, vectors))


def has_long_body(loop: ir.For) -> bool:
    """Return whether the body of a loop has a function, or as many instructions as one."""
    return _length_of(loop.body) >= _FUNCTION


def split_short(loop: ir.For) -> tuple[ir.For, ...]:
    """Return a vector loop of a few trips as one of SHORT_VECTOR trips and an unrolled one of the rest.

    LLVM gives a loop of fewer than LEAST_TRIPS no remainder, and so leaves one that needs a remainder scalar. It does
    not unroll every loop with branches, and says so on stderr: the rest of such a loop stays a loop.
    """
    trips = known_trips(loop)
    if trips is None or not SHORT_VECTOR < trips < LEAST_TRIPS:
        return (loop,)
    assert isinstance(loop.start, ir.Constant)
    middle = replace(loop.start, value=int(loop.start.value.real) + SHORT_VECTOR)
    branches = any(isinstance(s, ir.If) for s in ir.walk_statements(loop.body))
    return replace(loop, stop=middle), replace(loop, start=middle, kind="serial" if branches else "unroll")


def _length_of(body: tuple[ir.Statement, ...]) -> int:
    """Return about how many instructions the statements have, unrolled loops included."""
    total = 0
    for s in body:
        match s:
            case ir.For():
                total += _length_of(s.body) * _trips(s)
            case ir.If():
                total += _of_expression(s.condition) + _length_of(s.body) + _length_of(s.orelse)
            case ir.Let() | ir.Declare() | ir.Assign() | ir.Accumulate() | ir.Store():
                total += 1 + _of_expression(s.value)
    return total


def _accumulates(body: tuple[ir.Statement, ...]) -> bool:
    return any(isinstance(s, ir.Accumulate) and s.operation == "add" for s in body)


def _waits(body: tuple[ir.Statement, ...]) -> bool:
    """Return whether statements carry values between iterations, or have an operation of many cycles."""
    for s in ir.walk_statements(body):
        if isinstance(s, ir.Accumulate | ir.Assign | ir.If):
            return True
        if isinstance(s, ir.Let | ir.Declare | ir.Store) and any(map(_is_slow, _calls(s.value))):
            return True
    return False


def has_functions(body: tuple[ir.Statement, ...]) -> bool:
    """Return whether statements evaluate functions of many instructions."""
    return any(
        _of_call(call) > 1
        for s in ir.walk_statements(body) if isinstance(s, ir.Let | ir.Declare | ir.Store | ir.Accumulate)
        for call in _calls(s.value)
    )  # fmt: skip


def is_long(body: tuple[ir.Statement, ...]) -> bool:
    """Return whether statements compare elements or evaluate functions: many instructions for a single element."""
    values = (
        s.value for s in ir.walk_statements(body) if isinstance(s, ir.Let | ir.Declare | ir.Store | ir.Accumulate)
    )
    return any(_of_call(call) > 1 or call.name in ir.COMPARISONS for value in values for call in _calls(value))


def _is_slow(call: ir.Call) -> bool:
    return call.name in ("div", "sqrt") or _of_call(call) > 1 or call.name in SLOW_INTEGERS


def _trips(loop: ir.For) -> int:
    trips = known_trips(loop)
    return 1 if loop.kind != "unroll" or trips is None else trips


def known_trips(loop: ir.For) -> int | None:
    """Return the number of iterations of a loop if its bounds are constants."""
    start, stop = loop.start, loop.stop
    if not (isinstance(start, ir.Constant) and isinstance(stop, ir.Constant)):
        return None
    return max(int(stop.value.real) - int(start.value.real), 0)


def widest(body: tuple[ir.Statement, ...]) -> int:
    """Return the size in bytes of the largest elements that statements load, store or accumulate.

    LLVM chooses the length of vectors by it.
    """
    sizes = [1]
    for s in body:
        match s:
            case ir.Store():
                sizes += (s.buffer.dtype.itemsize, *_loaded(s.value))
            case ir.Accumulate():
                sizes += (s.variable.dtype.itemsize, *_loaded(s.value))
            case ir.Let() | ir.Declare() | ir.Assign():
                sizes += _loaded(s.value)
            case ir.For():
                sizes.append(widest(s.body))
            case ir.If():
                sizes += (*_loaded(s.condition), widest(s.body), widest(s.orelse))
    return max(sizes)


def _loaded(e: ir.Expression) -> Iterator[int]:
    """Yield the sizes of the elements that an expression loads; not of indices."""
    waiting = [e]
    while waiting:
        expression = waiting.pop()
        match expression:
            case ir.Call():
                waiting += expression.arguments
            case ir.Cast():
                waiting.append(expression.argument)
            case ir.Load():
                yield expression.dtype.itemsize


def _calls(e: ir.Expression) -> Iterator[ir.Call]:
    waiting = [e]
    while waiting:
        expression = waiting.pop()
        match expression:
            case ir.Call():
                yield expression
                waiting += expression.arguments
            case ir.Cast():
                waiting.append(expression.argument)


def _of_expression(e: ir.Expression) -> int:
    total, waiting = 0, [e]
    while waiting:
        expression = waiting.pop()
        match expression:
            case ir.Call():
                total += _of_call(expression)
                waiting += expression.arguments
            case ir.Cast():
                total += 1
                waiting.append(expression.argument)
            case ir.Load():
                total += 1
    return total


def _of_call(call: ir.Call) -> int:
    if call.name in PLAIN or call.dtype.is_integer:
        return 1
    return LONG_BODY + 1 if float32_math.has_rare_path(call.name, call.dtype) else _FUNCTION
