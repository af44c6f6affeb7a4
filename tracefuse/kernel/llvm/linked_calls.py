"""The calls of functions that kernels are linked with (`kernel/llvm/linked_functions.py`), and their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.plain_loops import plain_declaration, plain_loop
from tracefuse.kernel.llvm.tile_product import product_declaration, product_symbol
from tracefuse.kernel.llvm.tile_transpose import transpose_declaration, transpose_symbol

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter


def call_transpose(emitter: Emitter, s: ir.Transpose) -> None:
    """Emit the call of a transpose."""
    symbol = transpose_symbol(8 * s.source.dtype.itemsize * s.width, within=s.start is not None)
    emitter.linked[symbol] = transpose_declaration(symbol)
    source = f"ptr {emitter.pointers[s.source.name]}"
    if s.start is not None:
        source = f"{emitter.address(s.source, ir.call('mul', s.start, ir.Constant(s.width, s.start.dtype)))}"
    pitch = f"i64 {s.from_pitch}" if isinstance(s.from_pitch, int) else emitter.index(s.from_pitch)
    sides = f"{emitter.index(s.rows)}, {emitter.index(s.columns)}, i64 {s.to_pitch}, {pitch}"
    emitter.builder.line(f"call void @{symbol}(ptr {emitter.pointers[s.destination.name]}, {source}, {sides})")


def call_products(emitter: Emitter, s: ir.AddProducts) -> None:
    """Emit the call of a product of tiles."""
    symbol = product_symbol(s, emitter.flags)
    emitter.linked[symbol] = product_declaration(symbol)
    sums, left, right = (emitter.address(o.buffer, o.start) for o in s.matrices)
    arguments = [
        f"{sums}, i64 {s.sums.row_pitch}, {left}, i64 {s.left.row_pitch}, i64 {s.left.column_pitch}",
        f"{right}, i64 {s.right.row_pitch}, {emitter.index(s.rows)}, {emitter.index(s.terms)}",
        *([] if s.scales is None else [f"ptr {emitter.pointers[s.scales.name]}"]),
    ]
    emitter.builder.line(f"call void @{symbol}({', '.join(arguments)})")


def call_plain(emitter: Emitter, s: ir.For) -> bool:
    """Emit a loop as the call of a linked function; return False for one that none does."""
    plain = None if emitter.access_group else plain_loop(s, emitter.processor.vector_bits)
    if plain is None:
        return False
    to, read = emitter.address(plain.buffer, plain.start), plain.value
    other = emitter.address(read.buffer, read.index) if isinstance(read, ir.Load) else emitter.expression(read)
    pitches, sides = (map(emitter.index, extents) for extents in (plain.pitches, (plain.rows, plain.count)))
    arguments = [part for pair in zip((to, other), pitches, strict=True) for part in pair]
    emitter.linked[plain.symbol] = plain_declaration(plain.symbol)
    emitter.builder.line(f"call void @{plain.symbol}({', '.join(map(str, [*arguments, *sides]))})")
    return True
