"""How many vectors a vector loop processes at a time: several if its body is short, to hide latency, else one.

A long body has independent work of its own. Copies of it spill registers, and LLVM's time grows with them.
"""

from __future__ import annotations

from tracefuse.kernel import kernel_ir as ir

MOST = 4
LONG_BODY = 160
"""Instructions of a body, about, that run one vector at a time; shorter ones run up to MOST."""

LANES = 16
"""Elements of a vector, about: a loop of fewer iterations than its vectors hold would run scalar code alone."""

_FUNCTION = 24
_PLAIN = frozenset(
    ("add", "sub", "mul", "neg", "abs", "sqrt", "fma", "minimum", "maximum", "select", "div", "and", "or", "xor", "not")
) | frozenset(ir.COMPARISONS)


def interleave_count(loop: ir.For) -> int:
    """Return the number of vectors that an iteration of a vector loop processes: 1, 2 or 4."""
    length = _length_of(loop.body)
    count = MOST if length <= LONG_BODY // 2 else MOST // 2 if length <= LONG_BODY else 1
    trips = _known_trips(loop)
    return count if trips is None or trips >= count * LANES else 1


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


def _trips(loop: ir.For) -> int:
    trips = _known_trips(loop)
    return 1 if loop.kind != "unroll" or trips is None else trips


def _known_trips(loop: ir.For) -> int | None:
    start, stop = loop.start, loop.stop
    if not (isinstance(start, ir.Constant) and isinstance(stop, ir.Constant)):
        return None
    return max(int(stop.value.real) - int(start.value.real), 0)


def _of_expression(e: ir.Expression) -> int:
    total, waiting = 0, [e]
    while waiting:
        expression = waiting.pop()
        match expression:
            case ir.Call():
                total += 1 if expression.name in _PLAIN or expression.dtype.is_integer else _FUNCTION
                waiting += expression.arguments
            case ir.Cast():
                total += 1
                waiting.append(expression.argument)
            case ir.Load():
                total += 1
    return total
