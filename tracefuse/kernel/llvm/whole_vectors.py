"""Vector loops whose iterations fill vector registers, as instructions on vectors.

The tile of a matrix product is two dozen registers: loops of as many iterations as a register has elements, with a
statement for each register. LLVM's vectorizer makes instructions on vectors of them, which takes longer than all its
other passes over such a kernel. Arithmetic on adjacent elements needs no vectorizer.
"""

from __future__ import annotations

from collections.abc import Callable

from tracefuse.dtypes import DType
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.hidden_invariants import HiddenInvariants
from tracefuse.kernel.llvm.scalar_ops import memory_type
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue

MOST_REGISTERS = 4
"""The registers that an iteration of a loop fills, at most, for each value."""

_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul"}


class WholeVectors:
    """The statements of a vector loop as instructions on vectors of all of its iterations.

    address, scalar: emit the address of an element and a value that is equal in all iterations. aligned: the alignment
    of the elements of a buffer.
    """

    def __init__(
        self, loop: ir.For, invariants: HiddenInvariants, builder: Builder, flags: str,
        address: Callable[[ir.Buffer, ir.Expression], LlvmValue], scalar: Callable[[ir.Expression], LlvmValue],
        aligned: Callable[[ir.Buffer], int],
    ) -> None:  # fmt: skip
        self._loop, self._invariants, self._builder, self._flags = loop, invariants, builder, flags
        self._address, self._scalar, self._aligned = address, scalar, aligned
        self._values: dict[str, LlvmValue] = {}
        self._repeated: dict[str, LlvmValue] = {}
        dtypes = {s.buffer.dtype for s in loop.body if isinstance(s, ir.Store)}
        self._dtype: DType | None = next(iter(dtypes)) if len(dtypes) == 1 else None
        self._lanes = trips_from_zero(loop)

    def fill_registers(self, vector_bits: int) -> bool:
        """Return whether all statements are arithmetic on elements that fill whole registers."""
        dtype = self._dtype
        if dtype is None or dtype.kind != "float" or dtype.is_half:
            return False
        registers, rest = divmod(self._lanes * dtype.itemsize * 8, vector_bits)
        if rest or not 1 <= registers <= MOST_REGISTERS:
            return False
        return all(map(self._is_possible, self._loop.body))

    def _is_possible(self, s: ir.Statement) -> bool:
        if isinstance(s, ir.Let):
            return self._is_arithmetic(s.value)
        if not isinstance(s, ir.Store) or s.cache == "streaming":
            return False
        return self._invariants.step(s.index) == 1 and self._is_arithmetic(s.value)

    def _is_arithmetic(self, e: ir.Expression) -> bool:
        if e.dtype is not self._dtype:
            return False
        match e:
            case ir.Load():
                return self._invariants.step(e.index) in (0, 1)
            case ir.Call():
                return e.name in _ARITHMETIC and all(map(self._is_arithmetic, e.arguments))
        return isinstance(e, ir.Constant | ir.Variable)

    def emit(self) -> None:
        """Emit the statements."""
        for s in self._loop.body:
            if isinstance(s, ir.Let):
                self._values[s.variable.name] = self._vector(s.value)
            elif isinstance(s, ir.Store):
                value, address = self._vector(s.value), self._address(s.buffer, s.index)
                self._builder.line(f"store {value}, {address}, align {self._aligned(s.buffer)}")

    def _vector(self, e: ir.Expression) -> LlvmValue:
        if isinstance(e, ir.Variable) and e.name in self._values:
            return self._values[e.name]
        if isinstance(e, ir.Load) and self._invariants.step(e.index) == 1:
            type_ = f"<{self._lanes} x {memory_type(e.dtype)}>"
            address = self._address(e.buffer, e.index)
            return self._builder.emit(f"load {type_}, {address}, align {self._aligned(e.buffer)}", type_, e.buffer.name)
        if isinstance(e, ir.Call):
            left, right = map(self._vector, e.arguments)
            return left.binary(_ARITHMETIC[e.name], right, self._flags)
        return self._repeat(self._scalar(e))

    def _repeat(self, value: LlvmValue) -> LlvmValue:
        """Return a vector of equal elements."""
        if value.text not in self._repeated:
            type_ = f"<{self._lanes} x {value.type}>"
            if value.text.startswith("%"):
                first = self._builder.emit(f"insertelement {type_} poison, {value}, i64 0", type_)
                mask = f"<{self._lanes} x i32> zeroinitializer"
                vector = self._builder.emit(f"shufflevector {first}, {type_} poison, {mask}", type_)
            else:
                vector = LlvmValue(self._builder, f"<{', '.join([str(value)] * self._lanes)}>", type_)
            self._repeated[value.text] = vector
        return self._repeated[value.text]


def trips_from_zero(loop: ir.For) -> int:
    """Return the number of iterations of a loop from zero to a constant in steps of one; 0 for another loop."""
    bounds = [int(e.value.real) if isinstance(e, ir.Constant) else None for e in (loop.start, loop.stop, loop.step)]
    return bounds[1] if bounds[0] == 0 and bounds[1] is not None and bounds[2] == 1 else 0
