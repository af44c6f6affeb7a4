"""Infinities that a kernel selects instead of elements before it looks for an extreme, hidden from LLVM.

LLVM makes `c ? old : max(old, x)` of `max(old, c ? -inf : x)`. Such a choice between states is not vectorized, so the
maximum under a mask ran at a fifteenth of the speed of the maximum. A number that is read back from memory stays as it
is.
"""

from __future__ import annotations

from math import isinf

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue


class HiddenInfinities:
    """The infinities of one function. entry: the instructions at its beginning."""

    def __init__(self, kernel: ir.Kernel, builder: Builder, entry: list[str]) -> None:
        self._builder, self._entry = builder, entry
        self._values: dict[str, LlvmValue] = {}
        self._finds_extremes = any(
            isinstance(s, ir.Accumulate) and s.operation in ("minimum", "maximum") and s.variable.dtype.is_floating
            for s in ir.walk_statements(kernel.body)
        )

    def hidden(self, call: ir.Call, argument: ir.Expression, value: LlvmValue) -> LlvmValue:
        """Return the value of an argument of a call, hidden if it is an infinity that is selected."""
        if not (self._finds_extremes and call.name == "select" and isinstance(argument, ir.Constant)):
            return value
        if not argument.dtype.is_floating or argument.dtype.is_half or not isinf(argument.value.real):
            return value
        literal = str(value)
        if literal not in self._values:
            slot, hidden = self._builder.name("infinity"), self._builder.name("infinity")
            self._entry += [f"  {slot} = alloca {value.type}", f"  store volatile {value}, ptr {slot}"]
            self._entry += [f"  {hidden} = load volatile {value.type}, ptr {slot}"]
            self._values[literal] = LlvmValue(self._builder, hidden, value.type)
        return self._values[literal]
