"""The two outer functions of a CPU kernel's module: what the worker pool calls and what Python calls.

`chunk(arguments, begin, end)` runs a chunk of the grid: it unpacks the parameters from an array of 8-byte slots,
allocates the scratch buffers and calls `body`. `launch` is a C function with the METH_FASTCALL signature. It reads data
pointers from NumPy arrays and scalars from Python numbers, evaluates the grid's extent and the kernel's work, and runs
the grid on this thread or on the worker pool. It releases the GIL if the work is large enough.

The offset of an array's data pointer is checked by `kernel/llvm/cpu_functions.py` before the first compile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.scalar_ops import cast, register_type
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import FLOAT_BITS, Builder, LlvmValue

# The last word of an object's header is its type; the data pointer of an array follows the header.
HEADER_BYTES = object.__basicsize__
# Work, in elements, below which the GIL is kept, and below which the calling thread runs the whole grid.
KEEP_LOCK_BELOW = 8_192
SERIAL_BELOW = 100_000
# The minimum work of a chunk of the grid, in elements.
CHUNK_WORK = 16_384
# The largest scratch buffer on the stack, in bytes.
SCRATCH_ON_STACK = 1 << 17

DECLARATIONS = {
    "PyLong_AsVoidPtr": "declare ptr @PyLong_AsVoidPtr(ptr)",
    "PyLong_AsUnsignedLongLongMask": "declare i64 @PyLong_AsUnsignedLongLongMask(ptr)",
    "PyFloat_AsDouble": "declare double @PyFloat_AsDouble(ptr)",
    "PyObject_IsTrue": "declare i32 @PyObject_IsTrue(ptr)",
    "PyType_IsSubtype": "declare i32 @PyType_IsSubtype(ptr, ptr)",
    "PyErr_Occurred": "declare ptr @PyErr_Occurred()",
    "PyErr_SetString": "declare void @PyErr_SetString(ptr, ptr)",
    "PyEval_SaveThread": "declare ptr @PyEval_SaveThread()",
    "PyEval_RestoreThread": "declare void @PyEval_RestoreThread(ptr)",
    "Py_IncRef": "declare void @Py_IncRef(ptr)",
    "_Py_NoneStruct": "@_Py_NoneStruct = external global i8",
    "PyExc_SystemError": "@PyExc_SystemError = external global ptr",
    "PyExc_TypeError": "@PyExc_TypeError = external global ptr",
    "tracefuse_array_type": "@tracefuse_array_type = external global i8",
    "tracefuse_parallel_for": "declare void @tracefuse_parallel_for(ptr, ptr, i64, i64)",
    "aligned_alloc": "declare noalias ptr @aligned_alloc(i64, i64) nounwind",
    "free": "declare void @free(ptr) nounwind",
}

ADDRESS = f"""\
define internal ptr @address(ptr %object) alwaysinline {{
start:
  %place = getelementptr i8, ptr %object, i64 {HEADER_BYTES - 8}
  %type = load ptr, ptr %place
  %exact = icmp eq ptr %type, @tracefuse_array_type
  br i1 %exact, label %array, label %other
other:
  %answer = call i32 @PyType_IsSubtype(ptr %type, ptr @tracefuse_array_type)
  %derived = icmp ne i32 %answer, 0
  br i1 %derived, label %array, label %number
array:
  %field = getelementptr i8, ptr %object, i64 {HEADER_BYTES}
  %data = load ptr, ptr %field
  ret ptr %data
number:
  %given = call ptr @PyLong_AsVoidPtr(ptr %object)
  ret ptr %given
}}"""


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


def _scalar(builder: Builder, parameter: ir.Variable, number: LlvmValue) -> LlvmValue:
    """Convert a Python number to the parameter's type."""
    dtype, type_ = parameter.dtype, register_type(parameter.dtype)
    if dtype.kind == "bool":
        return builder.call("PyObject_IsTrue", "i32", [number]).compare("ne", 0)
    if dtype.is_integer:
        value = builder.call("PyLong_AsUnsignedLongLongMask", "i64", [number])
        return value if type_ == "i64" else value.convert("trunc", type_)
    return builder.call("PyFloat_AsDouble", "double", [number])


def convert_arguments(
    parameters: Sequence[ir.Buffer | ir.Variable], emitter: Emitter, streamed: Collection[str]
) -> LlvmValue | None:
    """Store the Python arguments into the slots; return the bitwise or of the streamed buffers' addresses."""
    builder = emitter.builder
    addresses: LlvmValue | None = None
    builder.line(f"%slots = alloca [{max(len(parameters), 1)} x i64], align 16")
    for number, parameter in enumerate(parameters):
        argument = builder.emit(f"load ptr, {slot(builder, '%arguments', number)}", "ptr", "given")
        if isinstance(parameter, ir.Buffer):
            value = builder.call("address", "ptr", [argument])
        else:
            value = _scalar(builder, parameter, argument)
            if value.type in FLOAT_BITS:
                value = cast(value, dtypes.float64, parameter.dtype, emitter.processor)
            emitter.variables[parameter.name] = value
        builder.line(f"store {value}, {slot(builder, '%slots', number)}")
        if parameter.name in streamed:
            address = value.convert("ptrtoint", "i64")
            addresses = address if addresses is None else addresses | address
    return addresses


def _run(kernel: ir.Kernel, emitter: Emitter, extent: LlvmValue) -> None:
    """Run the grid on this thread with the GIL held, on this thread without it, or on the worker pool."""
    builder = emitter.builder
    work = builder.literal(1 << 62, "i64") if kernel.work is None else emitter.index(kernel.work)
    builder.line(f"br {work.compare('slt', KEEP_LOCK_BELOW)}, label %here, label %released")
    builder.label("%here")
    builder.line(f"call void @chunk(ptr %slots, i64 0, {extent})")
    builder.line("br label %done")
    builder.label("%released")
    state = builder.call("PyEval_SaveThread", "ptr", [])
    builder.line(f"br {work.compare('slt', SERIAL_BELOW)}, label %serial, label %parallel")
    builder.label("%serial")
    builder.line(f"call void @chunk(ptr %slots, i64 0, {extent})")
    builder.line("br label %restore")
    builder.label("%parallel")
    chunks = work.binary("sdiv", CHUNK_WORK)
    grain = extent.binary("sdiv", chunks) + 1
    builder.line(f"call void @tracefuse_parallel_for(ptr @chunk, ptr %slots, {extent}, {grain})")
    builder.line("br label %restore")
    builder.label("%restore")
    builder.line(f"call void @PyEval_RestoreThread({state})")
    builder.line("br label %done")
    builder.label("%done")


def refuse(builder: Builder, wrong: LlvmValue, kind: str, message: str) -> None:
    """Raise a Python exception if `wrong` is true."""
    refused, fine = builder.name("refused"), builder.name("fine")
    builder.line(f"br {wrong}, label {refused}, label {fine}")
    builder.label(refused)
    exception = builder.emit(f"load ptr, ptr @{kind}", "ptr", "kind")
    builder.line(f"call void @PyErr_SetString({exception}, ptr @{message})")
    builder.line("ret ptr null")
    builder.label(fine)


def return_errors(builder: Builder) -> None:
    """Return if the conversion of an argument has raised."""
    builder.line("%error = call ptr @PyErr_Occurred()")
    builder.line("%fine = icmp eq ptr %error, null")
    builder.line("br i1 %fine, label %run, label %failed")
    builder.label("%failed")
    builder.line("ret ptr null")
    builder.label("%run")


def text_constant(name: str, text: str) -> str:
    """Return a global constant with a zero-terminated string."""
    data = text.encode() + b"\0"
    spelled = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data)
    return f'@{name} = private constant [{len(data)} x i8] c"{spelled}"'


def _launch(kernel: ir.Kernel, emitter: Emitter, streamed: Collection[str]) -> str:
    builder = emitter.builder
    count = len(kernel.parameters)
    texts = [text_constant("wrong_count", f"{kernel.name} takes {count} arguments")]
    refuse(builder, LlvmValue(builder, "%count", "i64").compare("ne", count), "PyExc_TypeError", "wrong_count")
    addresses = convert_arguments(kernel.parameters, emitter, streamed)
    return_errors(builder)
    extent = emitter.index(kernel.grid[0].extent) if kernel.grid else builder.literal(1, "i64")
    if addresses is not None:
        texts.append(text_constant("wrong_place", f"{kernel.name} needs its outputs aligned to cache lines"))
        outside = (addresses & (ir.CACHE_LINE - 1)).compare("ne", 0) & extent.compare("ne", 0)
        refuse(builder, outside, "PyExc_SystemError", "wrong_place")
    _run(kernel, emitter, extent)
    builder.line("call void @Py_IncRef(ptr @_Py_NoneStruct)")
    parameters = "ptr %self, ptr %arguments, i64 %count"
    return "\n".join(texts) + "\n\n" + define("ptr", "launch", parameters, builder, "ret ptr @_Py_NoneStruct")


def emit(
    kernel: ir.Kernel, scratch: tuple[ir.Buffer, ...], emitter: Emitter, streamed: Collection[str] = ()
) -> list[str]:
    """Return the texts of `chunk` and `launch`, and add their declarations to the emitter.

    streamed: the buffers with non-temporal stores, whose addresses `launch` checks for cache line alignment.
    """
    emitter.builder.declarations.update(DECLARATIONS)
    return [
        _chunk(kernel, scratch, emitter, bool(streamed)), ADDRESS, _launch(kernel, emitter, streamed),
    ]  # fmt: skip
