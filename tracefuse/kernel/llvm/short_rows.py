"""Elements at positions that are data in a short row, which registers hold: picked by instructions on vectors.

Elements at arbitrary places are loaded one by one. An instruction of AVX-512 picks an element of two registers for each
lane of a third one, which has their numbers: all elements of a row of 32 floats in the time of one or two loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue, Processor, shuffled, vector_type

REGISTER_BYTES = 64
"""The bytes of a register of a processor that has these instructions."""

MOST_REGISTERS = 8
"""The registers of the longest row: from as many on, picking elements takes as long as loading them."""

_ELEMENTS = {"float": "ps", "double": "pd", "i32": "d", "i64": "q"}
_ELEMENTS_OF_ONE = {"float": "sf", "double": "df", "i32": "si", "i64": "di"}
"""By type of memory, what the instructions on two registers and on one are called."""


@dataclass(frozen=True, slots=True)
class ShortRow:
    """The row that a load at a position that is data reads: `count` elements from the index `start` on."""

    start: ir.Expression
    position: ir.Variable
    count: int


def fits_registers(processor: Processor, dtype: dtypes.DType, count: int) -> bool:
    """Return whether a processor picks elements of so long a row in registers."""
    has_type = dtype.itemsize in (4, 8) and not dtype.is_complex
    return (
        processor.masks
        and processor.vector_bits == 8 * REGISTER_BYTES
        and has_type
        and count * dtype.itemsize <= MOST_REGISTERS * REGISTER_BYTES
    )


def bound_of(e: ir.Expression) -> int | None:
    """Return the largest value of a position that is clamped to the end of a row of known length, else None."""
    while isinstance(e, ir.Cast):
        e = e.argument
    if isinstance(e, ir.Call) and e.name == "minimum" and e.dtype.is_integer and e.dtype.kind != "int":
        return next((bound for bound in map(_constant, e.arguments) if bound is not None), None)
    return None


def _constant(e: ir.Expression) -> int | None:
    """Return the value of arithmetic on integer constants, else None."""
    match e:
        case ir.Constant():
            return int(e.value.real)
        case ir.Cast(argument):
            return _constant(argument)
        case ir.Call("add" | "sub", (left, right)):
            one, other = _constant(left), _constant(right)
            if one is not None and other is not None:
                return one + other if e.name == "add" else one - other
    return None


def picked(builder: Builder, row: Sequence[LlvmValue], places: LlvmValue) -> LlvmValue:
    """Emit a vector of elements of a row. places: of the elements, for each lane, as 64-bit integers.

    row: its registers; what is behind its last element is never picked.
    """
    each, type_ = row[0].lanes, row[0].type
    places = places.convert("trunc", "i32") if each == REGISTER_BYTES // 4 else places
    parts = [
        _picked(builder, row, shuffled(builder, places, None, _padded(range(begin, places.lanes), each)))
        for begin in range(0, places.lanes, each)
    ]
    while len(parts) > 1:
        whole = range(2 * parts[0].lanes)
        parts = [shuffled(builder, one, other, whole) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    if parts[0].lanes > places.lanes:
        return shuffled(builder, parts[0], None, range(places.lanes))
    assert parts[0].type == type_
    return parts[0]


def _padded(lanes: range, count: int) -> list[int | None]:
    return [*lanes[:count], *[None] * max(0, count - len(lanes))]


def _picked(builder: Builder, row: Sequence[LlvmValue], places: LlvmValue) -> LlvmValue:
    """Emit a register of elements of a row: those of each two registers, chosen among by the next bit of places."""
    found = [_of_two(builder, row[k : k + 2], places) for k in range(0, len(row), 2)]
    bit = 2 * row[0].lanes
    while len(found) > 1:
        is_second = (places & bit).compare("ne", 0)
        ends = found[len(found) // 2 * 2 :]
        found = [is_second.select(second, first) for first, second in zip(found[::2], found[1::2], strict=False)] + ends
        bit *= 2
    return found[0]


def _of_two(builder: Builder, registers: Sequence[LlvmValue], places: LlvmValue) -> LlvmValue:
    first, lanes = registers[0], registers[0].lanes
    whole, numbers = vector_type(first.type, lanes), vector_type(places.type, lanes)
    if len(registers) == 1:
        symbol = f"llvm.x86.avx512.permvar.{_ELEMENTS_OF_ONE[first.type]}.512"
        builder.declarations[symbol] = f"declare {whole} @{symbol}({whole}, {numbers})"
        return builder.call(symbol, first.type, (first, places))
    symbol = f"llvm.x86.avx512.vpermi2var.{_ELEMENTS[first.type]}.512"
    builder.declarations[symbol] = f"declare {whole} @{symbol}({whole}, {numbers}, {whole})"
    return builder.call(symbol, first.type, (first, places, registers[1]))


def row_of(
    load: ir.Load, index: ir.Expression, bounds: Mapping[str, int], is_fixed: Callable[[ir.Expression], bool],
    processor: Processor,
) -> ShortRow | None:  # fmt: skip
    """Return the short row that a load reads, else None: its index is one of the loop's positions and what is fixed.

    Iterations have no branch, so a row is in memory as a whole: data decide which of its elements are read.
    bounds: the largest values of positions, by name. is_fixed: whether all iterations have one value of an expression.
    """
    position, waiting = None, [index]
    while waiting:
        term = waiting.pop()
        if is_fixed(term):
            continue
        if isinstance(term, ir.Call) and term.name == "add":
            waiting += term.arguments
        elif isinstance(term, ir.Variable) and term.name in bounds and position is None:
            position = term
        else:
            return None
    if position is None:
        return None
    count = bounds[position.name] + 1
    return ShortRow(index, position, count) if fits_registers(processor, load.dtype, count) else None
