"""The two outer functions of a CPU kernel's module: what the worker pool calls and what Python calls.

`chunk(arguments, begin, end)` runs a chunk of the grid: it unpacks the parameters from an array of 8-byte slots,
allocates the scratch buffers and calls `body`. `launch` is a C function with the METH_FASTCALL signature. It evaluates
the grid's extent and the kernel's work; functions that all kernels share (`kernel/llvm/shared_functions.py`) convert
the arguments of Python and run the grid.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import shared_functions
from tracefuse.kernel.llvm.scalar_ops import cast, register_type
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue

# The largest scratch buffer on the stack, in bytes.
SCRATCH_ON_STACK = 1 << 17

DECLARATIONS = {
    "PyErr_SetString": "declare void @PyErr_SetString(ptr, ptr)",
    "PyExc_SystemError": "@PyExc_SystemError = external global ptr",
    "tracefuse_parallel_for": "declare void @tracefuse_parallel_for(ptr, ptr, i64, i64)",
    "aligned_alloc": "declare noalias ptr @aligned_alloc(i64, i64) nounwind",
    "free": "declare void @free(ptr) nounwind",
    **shared_functions.DECLARATIONS,
}


def slot(builder: Builder, array: str, number: int) -> LlvmValue:
    """Emit the address of a parameter in an array of 8-byte slots."""
    return builder.emit(f"getelementptr i8, ptr {array}, i64 {8 * number}", "ptr", "slot")


def parameter_type(parameter: ir.Buffer | ir.Variable) -> str:
    """Return the LLVM type of a parameter."""
    return "ptr" if isinstance(parameter, ir.Buffer) else register_type(parameter.dtype)


def _scratch(builder: Builder, buffer: ir.Buffer, emitter: Emitter) -> tuple[LlvmValue, LlvmValue]:
    """Emit the allocation of a scratch buffer; return its address and the heap block to free, null if on the stack."""
    assert buffer.size is not None
    elements = builder.literal(buffer.size, "i64") if isinstance(buffer.size, int) else emitter.index(buffer.size)
    size = (elements * buffer.dtype.itemsize + 63) & -64
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


def _chunk(kernel: ir.Kernel, scratch: tuple[ir.Buffer, ...], emitter: Emitter, streams: bool) -> str:
    builder = emitter.builder
    arguments: list[LlvmValue] = []
    for number, parameter in enumerate(kernel.parameters):
        type_ = parameter_type(parameter)
        value = builder.emit(f"load {type_}, {slot(builder, '%arguments', number)}", type_, parameter.name)
        arguments.append(value)
        if isinstance(parameter, ir.Variable):
            emitter.variables[parameter.name] = value
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
    return define("void", "chunk", "ptr %arguments, i64 %begin, i64 %end", builder, "ret void")


def define(result: str, name: str, parameters: str, builder: Builder, last: str) -> str:
    """Return the text of a function of the builder's lines, which it takes; `last` ends them."""
    lines = ["start:", *builder.lines, f"  {last}", "}"]
    builder.lines = []
    return "\n".join([f"define {result} @{name}({parameters}) #1 {{", *lines])


def _kind(parameter: ir.Buffer | ir.Variable) -> str:
    """Return how the argument of a parameter is converted."""
    if isinstance(parameter, ir.Buffer):
        return shared_functions.ADDRESS
    if parameter.dtype.kind == "bool":
        return shared_functions.BOOL
    return shared_functions.INTEGER if parameter.dtype.is_integer else shared_functions.FLOAT


def _scalar(emitter: Emitter, parameter: ir.Variable, address: LlvmValue) -> LlvmValue:
    """Load a parameter from its slot, which has a double for every float type: store it in its own type there."""
    builder, dtype, type_ = emitter.builder, parameter.dtype, register_type(parameter.dtype)
    if not dtype.is_floating or dtype is dtypes.float64:
        return builder.emit(f"load {type_}, {address}", type_, parameter.name)
    double = builder.emit(f"load double, {address}", "double", parameter.name)
    value = cast(double, dtypes.float64, dtype, emitter.processor)
    builder.line(f"store {value}, {address}")
    return value


def convert_arguments(name: str, parameters: Sequence[ir.Buffer | ir.Variable], emitter: Emitter) -> str:
    """Emit the conversion of the Python arguments into `%slots`; return the constants that it uses.

    name: of the kernel, for error messages.
    """
    builder = emitter.builder
    builder.line(f"%slots = alloca [{max(len(parameters), 1)} x i64], align 16")
    constants = f"ptr @kinds, i64 {len(parameters)}, ptr @kernel_name"
    builder.line(f"%fine = call i1 @tracefuse_convert(ptr %arguments, i64 %count, ptr %slots, {constants})")
    builder.line("br i1 %fine, label %run, label %failed")
    builder.label("%failed")
    builder.line("ret ptr null")
    builder.label("%run")
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, ir.Variable):
            emitter.variables[parameter.name] = _scalar(emitter, parameter, slot(builder, "%slots", number))
    kinds = "".join(map(_kind, parameters))
    return "\n".join([text_constant("kinds", kinds), text_constant("kernel_name", name)])


def _check_alignment(kernel: ir.Kernel, emitter: Emitter, streamed: Collection[str], extent: LlvmValue) -> str:
    """Emit the refusal of streamed buffers that are not aligned to cache lines; return the constant that it uses."""
    builder = emitter.builder
    addresses = builder.literal(0, "i64")
    for number, parameter in enumerate(kernel.parameters):
        if parameter.name in streamed:
            addresses = addresses | builder.emit(f"load i64, {slot(builder, '%slots', number)}", "i64", parameter.name)
    wrong = (addresses & (ir.CACHE_LINE - 1)).compare("ne", 0) & extent.compare("ne", 0)
    builder.line(f"br {wrong}, label %refused, label %aligned")
    builder.label("%refused")
    builder.line("%exception = load ptr, ptr @PyExc_SystemError")
    builder.line("call void @PyErr_SetString(ptr %exception, ptr @wrong_place)")
    builder.line("ret ptr null")
    builder.label("%aligned")
    return text_constant("wrong_place", f"{kernel.name} needs its outputs aligned to cache lines")


def text_constant(name: str, text: str) -> str:
    """Return a global constant with a zero-terminated string."""
    data = text.encode() + b"\0"
    spelled = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data)
    return f'@{name} = private constant [{len(data)} x i8] c"{spelled}"'


def _launch(kernel: ir.Kernel, emitter: Emitter, streamed: Collection[str]) -> str:
    builder = emitter.builder
    constants = [convert_arguments(kernel.name, kernel.parameters, emitter)]
    extent = emitter.index(kernel.grid[0].extent) if kernel.grid else builder.literal(1, "i64")
    if streamed:
        constants.append(_check_alignment(kernel, emitter, streamed, extent))
    work = builder.literal(1 << 62, "i64") if kernel.work is None else emitter.index(kernel.work)
    operands = f"ptr @chunk, ptr %slots, {extent}, {work}, ptr @tracefuse_parallel_for"
    builder.line(f"%none = call ptr @tracefuse_run({operands})")
    parameters = "ptr %self, ptr %arguments, i64 %count"
    return "\n".join(constants) + "\n\n" + define("ptr", "launch", parameters, builder, "ret ptr %none")


def emit(
    kernel: ir.Kernel, scratch: tuple[ir.Buffer, ...], emitter: Emitter, streamed: Collection[str] = ()
) -> list[str]:
    """Return the texts of `chunk` and `launch`, and add their declarations to the emitter.

    streamed: the buffers with non-temporal stores, whose addresses `launch` checks for cache line alignment.
    """
    emitter.builder.declarations.update(DECLARATIONS)
    return [_chunk(kernel, scratch, emitter, bool(streamed)), _launch(kernel, emitter, streamed)]
