"""Integer functions in LLVM IR that need a loop: powers by squaring, and Euclid's algorithm.

Both loops end after as many rounds as the operands have digits that matter, so small exponents cost little.

Knows: formulas. Must not know: the kernel IR, what calls them.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import Builder, Definitions, Value

FUNCTIONS = Definitions()


class _Loop:
    """`while condition(values): values = step(values)` over named values, in the block that is open."""

    def __init__(self, *starts: Value) -> None:
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

    def enter(self, condition: Value) -> None:
        """Opens the body, run while `condition` holds."""
        self.builder.line(f"br {condition}, label {self.inside}, label {self.end}")
        self.builder.label(self.inside)

    def repeat(self, *values: Value) -> None:
        """Closes the body with the values of the next round."""
        for name, value in zip(self.nexts, values, strict=True):
            self.builder.line(f"{name} = or {value}, 0")
        self.builder.line(f"br label {self.head}")
        self.builder.label(self.end)


def _power(base: Value, exponent: Value) -> Value:
    """base ** exponent, exponent as unsigned, modulo 2 ** bits."""
    loop = _Loop(base.like(1), base, exponent)
    result, square, left = loop.values
    loop.enter(left.compare("ne", 0))
    product = result * square
    odd = (left & 1).compare("ne", 0)
    loop.repeat(odd.select(product, result), square * square, left.logical_shift(1))
    return result


def _signed_power(base: Value, exponent: Value) -> Value:
    """A negative exponent gives the reciprocal cut off: 1 for 1, 1 or -1 for -1, else 0."""
    negative = exponent.compare("slt", 0)
    unit = base.compare("eq", 1) | base.compare("eq", -1)
    # Of a unit only the last bit of the exponent matters, and it is that of its magnitude.
    counted = negative.select(exponent & 1, exponent)
    power = _power(base, counted)
    return (negative & ~unit).select(0, power)


def _divisor(a: Value, b: Value) -> Value:
    """The greatest common divisor of unsigned numbers."""
    loop = _Loop(a, b)
    first, second = loop.values
    loop.enter(second.compare("ne", 0))
    loop.repeat(second, first.binary("urem", second))
    return first


def _magnitude(x: Value) -> Value:
    return x.builder.intrinsic("abs", x, x.builder.literal(0, "i1"))


def _signed_divisor(a: Value, b: Value) -> Value:
    return _divisor(_magnitude(a), _magnitude(b))


for _bits in (8, 16, 32, 64):
    _type = f"i{_bits}"
    for _name, _build in (
        *(("pow.u", _power), ("pow.s", _signed_power)),
        *(("gcd.u", _divisor), ("gcd.s", _signed_divisor)),
    ):
        FUNCTIONS.define(f"tf.{_name}{_bits}", _type, _type, _type)(_build)
