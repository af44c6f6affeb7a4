"""Integer functions in LLVM IR that need a loop: exponentiation by squaring and Euclid's algorithm.

The number of iterations grows with the significant digits of the operands, so small exponents are cheap.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import Builder, LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()


class _Loop:
    """`while condition(values): values = step(values)`, appended to the current block."""

    def __init__(self, *starts: LlvmValue) -> None:
        self.starts = starts
        self.builder: Builder = starts[0].builder
        name = self.builder.name
        self.before, self.head, self.inside, self.end = (name(part) for part in ("before", "head", "inside", "end"))
        self.nexts = [name("following") for _ in starts]
        for label in (self.before, self.head):
            self.builder.line(f"br label {label}")
            self.builder.label(label)
        self.values = [
            self.builder.emit(f"phi {s.type} [ {s.text}, {self.before} ], [ {following}, {self.inside} ]", s.type)
            for s, following in zip(starts, self.nexts, strict=True)
        ]

    def enter(self, condition: LlvmValue) -> None:
        """Start the body, which runs while `condition` is true."""
        self.builder.line(f"br {condition}, label {self.inside}, label {self.end}")
        self.builder.label(self.inside)

    def repeat(self, *values: LlvmValue) -> None:
        """End the body with the values of the next iteration."""
        for name, value in zip(self.nexts, values, strict=True):
            self.builder.line(f"{name} = or {value}, 0")
        self.builder.line(f"br label {self.head}")
        self.builder.label(self.end)


def _power(base: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    """Return base ** exponent modulo 2 ** bits, with an unsigned exponent."""
    loop = _Loop(base.like(1), base, exponent)
    result, square, left = loop.values
    loop.enter(left.compare("ne", 0))
    product = result * square
    odd = (left & 1).compare("ne", 0)
    loop.repeat(odd.select(product, result), square * square, left.logical_shift(1))
    return result


def _signed_power(base: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    """Return base ** exponent; a negative exponent gives the truncated reciprocal: 1 for 1, 1 or -1 for -1, else 0."""
    negative = exponent.compare("slt", 0)
    unit = base.compare("eq", 1) | base.compare("eq", -1)
    # For base 1 or -1 only the exponent's parity matters, which negation keeps.
    counted = negative.select(exponent & 1, exponent)
    power = _power(base, counted)
    return (negative & ~unit).select(0, power)


def _divisor(a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """Return the greatest common divisor of unsigned integers."""
    loop = _Loop(a, b)
    first, second = loop.values
    loop.enter(second.compare("ne", 0))
    loop.repeat(second, first.binary("urem", second))
    return first


def _magnitude(x: LlvmValue) -> LlvmValue:
    return x.builder.intrinsic("abs", x, x.builder.literal(0, "i1"))


def _signed_divisor(a: LlvmValue, b: LlvmValue) -> LlvmValue:
    return _divisor(_magnitude(a), _magnitude(b))


for _bits in (8, 16, 32, 64):
    _type = f"i{_bits}"
    for _name, _build in (
        *(("pow.u", _power), ("pow.s", _signed_power)),
        *(("gcd.u", _divisor), ("gcd.s", _signed_divisor)),
    ):
        FUNCTIONS.define(f"tf.{_name}{_bits}", _type, _type, _type)(_build)
