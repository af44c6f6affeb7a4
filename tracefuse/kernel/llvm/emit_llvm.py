"""The LLVM emitter: a kernel of target "cpu" as the text of an LLVM module.

The module has two functions: `body` runs a range of the grid with typed parameters (`kernel/llvm/statements.py`);
`chunk` does the same for the worker pool, with its parameters behind one pointer, and allocates the scratch buffers
(`kernel/llvm/entry_functions.py`). The math functions that they use follow (`kernel/llvm/float32_math.py`); others are
declared (`kernel/llvm/linked_functions.py`). What Python calls is no part of it (`kernel/llvm/launch_functions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import entry_functions, float32_math
from tracefuse.kernel.llvm.constant_tables import SYMBOL
from tracefuse.kernel.llvm.fused_operations import with_fused_operations
from tracefuse.kernel.llvm.half_conversions import TRUNCATE
from tracefuse.kernel.llvm.launch_functions import LaunchFacts, facts_of
from tracefuse.kernel.llvm.loop_metadata import IN_VECTORS, Metadata
from tracefuse.kernel.llvm.nested_loops import has_loop
from tracefuse.kernel.llvm.scalar_ops import register_type
from tracefuse.kernel.llvm.statements import Emitter, is_scratch
from tracefuse.kernel.llvm.text_builder import LlvmValue, Processor, host_processor


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


def body_text(
    kernel: ir.Kernel, scratch: tuple[ir.Buffer, ...], emitter: Emitter, name: str = "body", attributes: str = "#0"
) -> str:
    """Return the text of `body`, which runs iterations grid_begin to grid_end."""
    listed = [_parameter(p) for p in kernel.parameters]
    listed += [f"ptr noalias align 64 %{buffer.name}" for buffer in scratch]
    listed += ["i64 %grid_begin", "i64 %grid_end"]
    builder = emitter.builder
    emitter.pointers.update({b.name: f"%{b.name}" for b in (*kernel.buffers, *scratch)})
    for scalar in kernel.scalars:
        emitter.variables[scalar.name] = LlvmValue(builder, f"%{scalar.name}", register_type(scalar.dtype))
    if kernel.thread is not None:
        emitter.variables[kernel.thread.name] = builder.literal(0, register_type(kernel.thread.dtype))
    if kernel.grid and kernel.grid[0].extent == ir.Constant(1, kernel.grid[0].variable.dtype):
        variable = kernel.grid[0].variable
        emitter.bind_position(variable, builder.literal(0, register_type(variable.dtype)))
        emitter.statements(kernel.body)
    elif kernel.grid:
        variable = kernel.grid[0].variable
        type_ = register_type(variable.dtype)
        begin, end = (LlvmValue(builder, f"%grid_{end}", "i64") for end in ("begin", "end"))
        if type_ != "i64":
            begin, end = begin.convert("trunc", type_), end.convert("trunc", type_)
        emitter.divisions.begin_loop(emitter, variable, kernel.body)
        emitter.loop(variable, (begin, end, builder.literal(1, type_)), kernel.body, "", "")
    else:
        emitter.statements(kernel.body)
    lines = ["start:", *emitter.entry, *builder.lines, "  ret void"]
    return "\n".join([f"define internal void @{name}({', '.join(listed)}) {attributes} {{", *lines, "}"])


def _read_constants(emitter: Emitter, constants: Sequence[ir.Variable]) -> None:
    """Emit the loads of a kernel's constants from its table."""
    builder = emitter.builder
    if constants:
        builder.declarations[SYMBOL] = f"@{SYMBOL} = external constant [{len(constants)} x i64]"
    for number, variable in enumerate(constants):
        type_, address = register_type(variable.dtype), entry_functions.slot(builder, f"@{SYMBOL}", number)
        emitter.variables[variable.name] = builder.emit(f"load {type_}, {address}", type_, variable.name)
        if variable.dtype.is_integer:
            emitter.plain.add(variable.name)


def scratch_of(kernel: ir.Kernel) -> tuple[ir.Buffer, ...]:
    """Return the scratch buffers of a kernel, which `chunk` allocates."""
    return tuple(
        s.buffer for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Allocate) and is_scratch(s.buffer)
    )


class KernelText(NamedTuple):
    """A kernel's LLVM module, and what launches need to know."""

    source: str
    facts: LaunchFacts


def emit_llvm(kernel: ir.Kernel, processor: Processor | None = None) -> str:
    """Return the LLVM module of `kernel`; see `emit_kernel`."""
    return emit_kernel(kernel, processor).source


def emit_kernel(
    kernel: ir.Kernel, processor: Processor | None = None, constants: Sequence[ir.Variable] = ()
) -> KernelText:
    """Return the LLVM module of `kernel` for `processor`, by default this machine's, and the facts for launches.

    constants: variables that the kernel reads from a table (`kernel/llvm/constant_tables.py`), in its order.
    Raises InternalError for a malformed kernel and for complex numbers, which passes/split_complex.py must remove.
    """
    if kernel.target != "cpu" or kernel.threads != 1 or len(kernel.grid) > 1:
        raise InternalError(f"kernel IR: {kernel.name} is not a kernel for the CPU: one thread, at most one grid axis")
    processor = processor or host_processor()
    metadata = Metadata()
    scratch = scratch_of(kernel)
    body = Emitter(kernel, processor, metadata)
    _read_constants(body, constants)
    text, in_vectors = body_text(kernel, scratch, body), has_loop(kernel.body) and not metadata.has_loops_for_passes
    if in_vectors:
        metadata.lines.append(f"!{IN_VECTORS} = !{{}}")
    texts = [with_fused_operations(text, body.builder.declarations, reorders=not in_vectors)]
    outer = Emitter(kernel, processor, metadata)
    texts.append(entry_functions.chunk_text(kernel, scratch, outer, bool(body.streamed)))
    return KernelText(module_text(texts, [body, outer], processor, metadata), facts_of(kernel, body.streamed))


def module_text(texts: Sequence[str], emitters: Sequence[Emitter], processor: Processor, metadata: Metadata) -> str:
    """Return the module of functions and of what they use. emitters: wrote the functions."""
    declarations = {symbol: text for emitter in emitters for symbol, text in emitter.builder.declarations.items()}
    declarations.update(declaration for emitter in emitters for declaration in emitter.linked.items())
    narrows = any(
        "fptrunc float" in line and line.endswith("to half")
        for text in texts if "fptrunc float" in text for line in text.splitlines()
    )  # fmt: skip
    used = [symbol for emitter in emitters for symbol in emitter.builder.functions]
    support = float32_math.functions([*used, *([TRUNCATE] if narrows else [])], declarations, processor)
    if narrows:
        support.append(f'@llvm.compiler.used = appending global [1 x ptr] [ptr @{TRUNCATE}], section "llvm.metadata"')
    width = f'"prefer-vector-width"="{processor.vector_bits}"'
    # A loop that copies stays a loop: memcpy of a tile takes ten times as long for some pairs of addresses.
    attributes = [
        f'attributes #0 = {{ noinline nounwind "no-builtins" {width} }}',
        f"attributes #1 = {{ nounwind {width} }}",
    ]
    last = "\n".join(attributes + metadata.lines)
    return "\n\n".join(["\n".join(sorted(declarations.values())), *texts, *support, last]) + "\n"
