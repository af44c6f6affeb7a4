"""Requests for cache lines before they are read or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.scalar_ops import memory_type

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter


def prefetch(emitter: Emitter, s: ir.Prefetch) -> None:
    """Emit a request for each line of the elements of a statement, which may be outside of the buffer."""
    builder, pointer, type_ = emitter.builder, emitter.pointers[s.buffer.name], memory_type(s.buffer.dtype)
    first = builder.emit(f"getelementptr {type_}, ptr {pointer}, {emitter.index(s.index)}", "ptr", "ahead")
    builder.declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    for start in range(0, s.elements * s.buffer.dtype.itemsize, ir.CACHE_LINE):
        line = builder.emit(f"getelementptr i8, {first}, i64 {start}", "ptr", "line")
        builder.line(f"call void @llvm.prefetch.p0({line}, i32 {int(s.writes)}, i32 3, i32 1)")
