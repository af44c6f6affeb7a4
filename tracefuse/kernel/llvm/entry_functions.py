"""The outer function of a CPU kernel's module, which the worker pool and loop drivers call.

`chunk(arguments, begin, end)` runs a chunk of the grid: it unpacks the parameters from an array of 8-byte slots,
allocates the scratch buffers and calls `body`. What Python calls is shared by all kernels
(`kernel/llvm/launch_functions.py`).
"""

from __future__ import annotations

from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.scalar_ops import cast, register_type
from tracefuse.kernel.llvm.statements import ROOM_BEHIND, Emitter
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue

# The largest scratch buffer on the stack, in bytes.
SCRATCH_ON_STACK = 1 << 17


def slot(builder: Builder, array: str, number: int) -> LlvmValue:
    """Emit the address of a parameter in an array of 8-byte slots."""
    return builder.emit(f"getelementptr i8, ptr {array}, i64 {8 * number}", "ptr", "slot")


def load_parameter(emitter: Emitter, array: str, number: int, parameter: ir.Buffer | ir.Variable) -> LlvmValue:
    """Load a parameter from its slot, where a half float is a double."""
    builder, address = emitter.builder, slot(emitter.builder, array, number)
    if isinstance(parameter, ir.Buffer):
        return builder.emit(f"load ptr, {address}", "ptr", parameter.name)
    if parameter.dtype.is_half:
        double = builder.emit(f"load double, {address}", "double", parameter.name)
        return cast(double, dtypes.float64, parameter.dtype, emitter.processor)
    type_ = register_type(parameter.dtype)
    return builder.emit(f"load {type_}, {address}", type_, parameter.name)


def store_parameter(
    emitter: Emitter, array: str, number: int, parameter: ir.Buffer | ir.Variable, value: LlvmValue
) -> None:
    """Store the value of a parameter in its slot."""
    if isinstance(parameter, ir.Variable) and parameter.dtype.is_half:
        value = cast(value, parameter.dtype, dtypes.float64, emitter.processor)
    emitter.builder.line(f"store {value}, {slot(emitter.builder, array, number)}")


def _scratch(builder: Builder, buffer: ir.Buffer, emitter: Emitter) -> tuple[LlvmValue, LlvmValue]:
    """Emit the allocation of a scratch buffer; return its address and the heap block to free, null if on the stack."""
    assert buffer.size is not None
    builder.declarations["aligned_alloc"] = "declare noalias ptr @aligned_alloc(i64, i64) nounwind"
    builder.declarations["free"] = "declare void @free(ptr) nounwind"
    elements = builder.literal(buffer.size, "i64") if isinstance(buffer.size, int) else emitter.index(buffer.size)
    size = (elements * buffer.dtype.itemsize + (63 + ROOM_BEHIND)) & -64
    small = size.compare("ule", SCRATCH_ON_STACK)
    on_stack = small.select(size, 64)
    stack = builder.emit(f"alloca i8, {on_stack}, align 64", "ptr", buffer.name)
    begin, heap, end = (builder.name(f"{buffer.name}_{part}") for part in ("stack", "heap", "ready"))
    builder.line(f"br label {begin}")
    builder.label(begin)
    builder.line(f"br {small}, label {end}, label {heap}")
    builder.label(heap)
    block = builder.emit(f"call ptr @aligned_alloc(i64 64, {size})", "ptr", "block")
    builder.line(f"br label {end}")
    builder.label(end)
    owned = builder.emit(f"phi ptr [ null, {begin} ], [ {block.text}, {heap} ]", "ptr", "owned")
    address = builder.emit(f"select {small}, {stack}, {owned}", "ptr", buffer.name)
    return address, owned


def chunk_text(kernel: ir.Kernel, scratch: tuple[ir.Buffer, ...], emitter: Emitter, streams: bool) -> str:
    """Return the text of `chunk`. streams: whether the body has non-temporal stores."""
    builder = emitter.builder
    arguments: list[LlvmValue] = []
    for number, parameter in enumerate(kernel.parameters):
        arguments.append(load_parameter(emitter, "%arguments", number, parameter))
        if isinstance(parameter, ir.Variable):
            emitter.variables[parameter.name] = arguments[-1]
    owned: list[LlvmValue] = []
    for buffer in scratch:
        address, block = _scratch(builder, buffer, emitter)
        arguments.append(address)
        owned.append(block)
    listed = ", ".join([*map(str, arguments), "i64 %begin", "i64 %end"])
    builder.line(f"call void @body({listed})")
    if streams:  # order the non-temporal stores before the chunk is reported as done
        builder.declarations["llvm.x86.sse.sfence"] = "declare void @llvm.x86.sse.sfence()"
        builder.line("call void @llvm.x86.sse.sfence()")
    for block in owned:
        builder.line(f"call void @free({block})")
    lines = ["start:", *builder.lines, "  ret void", "}"]
    return "\n".join(["define void @chunk(ptr %arguments, i64 %begin, i64 %end) #1 {", *lines])
