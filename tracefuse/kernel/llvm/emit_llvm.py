"""The LLVM emitter: a kernel of target "cpu" as the text of an LLVM module.

The module has three functions: `body` runs a range of the grid with typed parameters (`kernel/llvm/statements.py`);
`chunk` does the same for the worker pool, with its parameters behind one pointer, and allocates the scratch buffers;
`launch` is what Python calls (both in `kernel/llvm/entry_functions.py`). The math functions that they use follow
(`kernel/llvm/float32_math.py`).
"""

from __future__ import annotations

from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import entry_functions, float32_math
from tracefuse.kernel.llvm.half_conversions import TRUNCATE
from tracefuse.kernel.llvm.scalar_ops import register_type
from tracefuse.kernel.llvm.statements import Emitter, Metadata, is_scratch
from tracefuse.kernel.llvm.text_builder import LlvmValue, Processor, host_processor
from tracefuse.kernel.llvm.tile_transpose import transpose_function


def _parameter(parameter: ir.Buffer | ir.Variable) -> str:
    if isinstance(parameter, ir.Variable):
        return f"{register_type(parameter.dtype)} %{parameter.name}"
    attributes = ["ptr"]
    if parameter.exclusive:
        attributes.append("noalias")
    if not parameter.written:
        attributes.append("readonly")
    attributes.append(f"align {parameter.alignment}")
    return f"{' '.join(attributes)} %{parameter.name}"


def _body(kernel: ir.Kernel, scratch: tuple[ir.Buffer, ...], emitter: Emitter) -> str:
    """Return the text of `body`, which runs iterations grid_begin to grid_end."""
    listed = [_parameter(p) for p in kernel.parameters]
    listed += [f"ptr noalias align 64 %{buffer.name}" for buffer in scratch]
    listed += ["i64 %grid_begin", "i64 %grid_end"]
    builder = emitter.builder
    emitter.pointers.update({b.name: f"%{b.name}" for b in (*kernel.buffers, *scratch)})
    emitter.variables.update({s.name: LlvmValue(builder, f"%{s.name}", register_type(s.dtype)) for s in kernel.scalars})
    if kernel.thread is not None:
        emitter.variables[kernel.thread.name] = builder.literal(0, register_type(kernel.thread.dtype))
    if kernel.grid:
        variable = kernel.grid[0].variable
        type_ = register_type(variable.dtype)
        begin, end = (LlvmValue(builder, f"%grid_{end}", "i64") for end in ("begin", "end"))
        if type_ != "i64":
            begin, end = begin.convert("trunc", type_), end.convert("trunc", type_)
        emitter.loop(variable, (begin, end, builder.literal(1, type_)), kernel.body, "", "")
    else:
        emitter.statements(kernel.body)
    lines = ["start:", *emitter.entry, *builder.lines, "  ret void"]
    return "\n".join([f"define internal void @body({', '.join(listed)}) #0 {{", *lines, "}"])


def emit_llvm(kernel: ir.Kernel, processor: Processor | None = None) -> str:
    """Return the LLVM module of `kernel` for `processor`, by default this machine's.

    Raises InternalError for a malformed kernel and for complex numbers, which passes/split_complex.py must remove.
    """
    if kernel.target != "cpu" or kernel.threads != 1 or len(kernel.grid) > 1:
        raise InternalError(f"kernel IR: {kernel.name} is not a kernel for the CPU: one thread, at most one grid axis")
    processor = processor or host_processor()
    metadata = Metadata()
    scratch = tuple(
        s.buffer for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Allocate) and is_scratch(s.buffer)
    )
    body = Emitter(kernel, processor, metadata)
    texts = [_body(kernel, scratch, body)]
    outer = Emitter(kernel, processor, metadata)
    texts += entry_functions.emit(kernel, scratch, outer, tuple(body.streamed))
    declarations = {**body.builder.declarations, **outer.builder.declarations}
    texts += [transpose_function(bits, processor.vector_bits) for bits in body.transposes]
    narrows = any("fptrunc float" in line and line.endswith("to half") for line in body.builder.lines)
    support = (TRUNCATE,) if narrows else ()
    texts += float32_math.functions(
        (*body.builder.functions, *outer.builder.functions, *support), declarations, processor.scales
    )
    if narrows:
        texts.append(f'@llvm.compiler.used = appending global [1 x ptr] [ptr @{TRUNCATE}], section "llvm.metadata"')
    width = f'"prefer-vector-width"="{processor.vector_bits}"'
    attributes = [f"attributes #0 = {{ noinline nounwind {width} }}", f"attributes #1 = {{ nounwind {width} }}"]
    return (
        "\n\n".join(["\n".join(sorted(declarations.values())), *texts, "\n".join(attributes + metadata.lines)]) + "\n"
    )
