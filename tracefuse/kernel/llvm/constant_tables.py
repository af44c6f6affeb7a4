"""Kernels that differ only in constants share machine code, which reads the constants from a table.

A long program that is unrolled, as `x[k] = ...` for many k, has many kernels that differ in row numbers and factors.
LLVM compiles the first of them as it is. The second, and those after it, are compiled once more, with variables in
place of the constants, and each is linked with a table of its own.

The table holds no constant that LLVM computes with in another form, which could round otherwise (powers of two), that
bounds a loop, that divides integers, or that takes part in a reduction, whose order LLVM chooses. Nor does it hold the
distance of the elements that a vector loop accesses, without which LLVM has no vectors of them.
"""

from __future__ import annotations

import ctypes
import math
import re
from typing import Any, NamedTuple

from segments.lazy_dataclasses import replace
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir

SYMBOL = "tracefuse_constants"
"""The table: 8 bytes for each constant."""

_PREFIX = "constant_"
_OPERATIONS = frozenset(("add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne", "select", "minimum", "maximum"))
_INTEGERS = (dtypes.int32, dtypes.int64)
_FLOATS = (dtypes.float32, dtypes.float64)
_LARGEST_INTEGER = 1 << 31
MOST_CONSTANTS = 512


class SharedKernel(NamedTuple):
    """A kernel that reads variables in place of constants, and the values of these."""

    kernel: ir.Kernel
    variables: tuple[ir.Variable, ...]
    values: tuple[float, ...]

    def table(self) -> ctypes.Array[ctypes.c_char]:
        """Return the table of the values."""
        entries = b"".join(
            bytes(_TYPES[variable.dtype](value)).ljust(8, b"\0")
            for variable, value in zip(self.variables, self.values, strict=True)
        )
        return ctypes.create_string_buffer(entries, len(entries))


_TYPES: dict[dtypes.DType, Any] = {
    dtypes.int32: ctypes.c_int32,
    dtypes.int64: ctypes.c_int64,
    dtypes.float32: ctypes.c_float,
    dtypes.float64: ctypes.c_double,
}


_NUMBER = re.compile(r"(?<= )-?(?:0x[0-9A-F]+|[0-9]+)\b")


def may_share(kernel: ir.Kernel) -> bool:
    """Return whether a kernel may share code: it has no reduction."""
    return not any(isinstance(s, ir.Accumulate) for s in ir.walk_statements(kernel.body))


def family_text(canonical_text: str) -> str:
    """Return a kernel's LLVM text without numbers: equal for kernels that differ in constants, and for some others."""
    return _NUMBER.sub("#", canonical_text)


def without_constants(kernel: ir.Kernel) -> SharedKernel | None:
    """Return `kernel` with variables in place of its constants; None if it must be compiled as it is."""
    if not may_share(kernel):
        return None
    replaced = _Replaced()
    body = replaced.statements(kernel.body)
    if not 0 < len(replaced.values) <= MOST_CONSTANTS:
        return None
    variables = tuple(ir.Variable(f"{_PREFIX}{n}", dtype) for n, dtype in enumerate(replaced.dtypes))
    return SharedKernel(replace(kernel, body=body), variables, tuple(replaced.values))


def _is_in_table(constant: ir.Constant) -> bool:
    value = constant.value
    if isinstance(value, (bool, complex)):
        return False
    if constant.dtype in _INTEGERS:
        return 1 < abs(value) < _LARGEST_INTEGER
    return constant.dtype in _FLOATS and math.isfinite(value) and abs(math.frexp(value)[0]) not in (0.0, 0.5)


class _Replaced:
    """The constants that were replaced, in order. Each occurrence has a variable of its own."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.dtypes: list[dtypes.DType] = []
        # The variables of vector loops, and positions that differ between their iterations.
        self._positions: set[str] = set()

    def statements(self, body: tuple[ir.Statement, ...]) -> tuple[ir.Statement, ...]:
        return tuple(self.statement(s) for s in body if not isinstance(s, ir.Comment))

    def statement(self, s: ir.Statement) -> ir.Statement:
        match s:
            case ir.Let() | ir.Declare() | ir.Assign():
                if isinstance(s, ir.Let) and s.variable.dtype is dtypes.int64 and self._differs(s.value):
                    self._positions.add(s.variable.name)
                return replace(s, value=self.expression(s.value, False))
            case ir.Store():
                index = self.index(s.buffer, s.index)
                return replace(s, index=index, value=self.expression(s.value, True))
            case ir.For():
                if s.kind == "vector":
                    self._positions.add(s.variable.name)
                return replace(s, body=self.statements(s.body))
            case ir.If():
                condition = self.expression(s.condition, False)
                return replace(s, condition=condition, body=self.statements(s.body), orelse=self.statements(s.orelse))
        return s

    def expression(self, e: ir.Expression, is_operand: bool) -> ir.Expression:
        """Return `e` with variables. is_operand: a constant here may be replaced."""
        match e:
            case ir.Constant() if is_operand and _is_in_table(e) and not isinstance(e.value, complex):
                self.values.append(e.value)
                self.dtypes.append(e.dtype)
                return ir.Variable(f"{_PREFIX}{len(self.values) - 1}", e.dtype)
            case ir.Call():
                is_operation = e.name in _OPERATIONS and not (e.name == "mul" and any(map(self._differs, e.arguments)))
                return replace(e, arguments=tuple(self.expression(a, is_operation) for a in e.arguments))
            case ir.Cast():
                return replace(e, argument=self.expression(e.argument, False))
            case ir.Load():
                return replace(e, index=self.index(e.buffer, e.index))
        return e

    def _differs(self, e: ir.Expression) -> bool:
        """Return whether a position differs between the iterations of a vector loop."""
        waiting = [e]
        while waiting:
            part = waiting.pop()
            if isinstance(part, ir.Variable) and part.name in self._positions:
                return True
            if isinstance(part, ir.Call):
                waiting += part.arguments
            elif isinstance(part, ir.Cast):
                waiting.append(part.argument)
        return False

    def index(self, buffer: ir.Buffer, index: ir.Expression) -> ir.Expression:
        """Return an index with variables; those of local arrays stay constants, so that elements are registers."""
        return self.expression(index, False) if buffer.space == "global" else index
