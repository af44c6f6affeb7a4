"""The CUDA emitter: kernels as CUDA C++ for NVRTC, without headers, one statement per line.

Each block runs one iteration of the grid: the last axis is blockIdx.x, the one before it y, then z. Shared buffers are
static up to 48 KiB in total; above that they share one dynamic allocation of `shared_bytes(kernel)` bytes, which the
launch must request. Local buffers become registers if their indices are constant after unrolling.

`kernel.contract` selects a compiler option and does not change the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.dtypes import float32, float64
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_expressions import RESERVED, SUM, data_variables, has_load, identifiers, variables_of
from tracefuse.kernel.cuda.device_functions import prelude
from tracefuse.kernel.cuda.group_reductions import WARP
from tracefuse.kernel.cuda.lane_quotients import quotients, write_quotients
from tracefuse.kernel.cuda.matrix_writer import MatrixWriter
from tracefuse.kernel.cuda.tile_products import multiplies_tiles
from tracefuse.kernel.infix import Text

STATIC_SHARED = 48 * 1024  # bytes that a kernel may declare statically
_ALIGNMENT = 16
_BLOCK_INDEX = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


def _shared_size(buffer: ir.Buffer, alignment: int) -> int:
    if not isinstance(buffer.size, int):
        raise InternalError(f"buffer {buffer.name} needs a constant size on the GPU, has {buffer.size}")
    return -(-buffer.size * buffer.dtype.itemsize // alignment) * alignment


def _shared_buffers(kernel: ir.Kernel) -> list[ir.Buffer]:
    allocated = (s.buffer for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Allocate))
    return [b for b in allocated if b.space == "shared"]


def _exchange_bytes(kernel: ir.Kernel) -> int:
    """Return the static shared memory that block-wide group reductions use, in bytes."""
    total = 0
    for statement in ir.walk_statements(kernel.body):
        if isinstance(statement, ir.GroupReduce) and statement.group > WARP:
            total += sum(v.dtype.itemsize * (statement.group // WARP) for v in statement.variables)
    return total


def shared_bytes(kernel: ir.Kernel) -> int:
    """Return the bytes of dynamic shared memory that a launch needs; 0 if static shared memory suffices."""
    alignment = ir.MultiplyTiles.ALIGNMENT if multiplies_tiles(kernel) else _ALIGNMENT
    buffers = sum(_shared_size(b, alignment) for b in _shared_buffers(kernel))
    return buffers if buffers + _exchange_bytes(kernel) > STATIC_SHARED else 0


def entry_name(kernel: ir.Kernel) -> str:
    """Return the kernel's function name in its source."""
    return identifiers([kernel.name], RESERVED)[kernel.name]


def _names(kernel: ir.Kernel) -> list[str]:
    names = [p.name for p in kernel.parameters] + [axis.variable.name for axis in kernel.grid]
    if kernel.thread is not None:
        names.append(kernel.thread.name)
    for statement in ir.walk_statements(kernel.body):
        match statement:
            case ir.Let(variable, _) | ir.Declare(variable, _):
                names.append(variable.name)
            case ir.For():
                names.append(statement.variable.name)
            case ir.Allocate(buffer):
                names.append(buffer.name)
            case ir.GroupReduce(_, combiner):
                names.extend(v.name for v in (*combiner.left, *combiner.right))
    return list(dict.fromkeys(names))


def _accesses_cluster(body: tuple[ir.Statement, ...]) -> bool:
    """Return whether statements synchronize the cluster or write another block's shared memory."""
    return any(
        (isinstance(s, ir.Barrier) and s.cluster) or (isinstance(s, ir.Store) and s.block is not None)
        for s in ir.walk_statements(body)
    )


class CudaEmitter(MatrixWriter):
    """Emits one kernel's function. block: what the index of the innermost grid axis is, blockIdx.x in a kernel."""

    def __init__(self, kernel: ir.Kernel, *, anonymous: bool = False, block: str = "blockIdx.x") -> None:
        if kernel.target != "cuda" or len(kernel.grid) > 3:
            raise InternalError(f"kernel {kernel.name} is for {kernel.target}, with {len(kernel.grid)} grid axes")
        entry = "kernel" if anonymous else entry_name(kernel)
        numbered = {name: f"v{k}" for k, name in enumerate(_names(kernel))}
        super().__init__(kernel, entry, numbered if anonymous else identifiers(numbered, {*RESERVED, entry}))
        self.anonymous, self.block_indices = anonymous, (block, *_BLOCK_INDEX[1:])
        self.data = data_variables(kernel.body)
        self.mutable = {
            s.variable.name for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Assign | ir.Accumulate)
        } | {
            v.name
            for s in ir.walk_statements(kernel.body) if isinstance(s, ir.GroupReduce)
            for v in (*s.variables, *s.before)
        }  # fmt: skip
        self.dynamic = shared_bytes(kernel) > 0
        self.multiplies_tiles = multiplies_tiles(kernel)
        self.alignment = ir.MultiplyTiles.ALIGNMENT if self.multiplies_tiles else _ALIGNMENT
        self.dynamic_used = 0

    def value_for(self, variable: ir.Variable, value: ir.Expression) -> Text:
        return self.printer.top(value, index=variable.name not in self.data)

    def condition(self, expression: ir.Expression) -> Text:
        """Return a bound or condition, printed with index arithmetic unless it depends on data."""
        reads_data = has_load(expression) or any(name in self.data for name in variables_of(expression))
        return self.printer.top(expression, index=not reads_data)

    # the function

    def function(self) -> str:
        kernel = self.kernel
        self.prologue()
        reached = self.start_cluster()
        self.body(kernel.body[:reached])
        if kernel.cluster > 1:
            self.line(f"{self.printer.use('wait_for_cluster')}();")
        self.body(kernel.body[reached:])
        bounds = str(kernel.threads)
        if kernel.blocks_per_multiprocessor is not None:
            bounds += f", {kernel.blocks_per_multiprocessor}"
        parameters = ", ".join(self.parameter(p) for p in kernel.parameters)
        cluster = f"__cluster_dims__({kernel.cluster}, 1, 1) " if kernel.cluster > 1 else ""
        head = f'extern "C" __global__ void {cluster}__launch_bounds__({bounds})\n{self.entry}({parameters}) {{\n'
        return head + "\n".join(self.lines) + "\n}\n"

    def device_function(self) -> str:
        """Returns the body of the kernel as a function of the index of a block and the parameters."""
        self.prologue()
        self.body(self.kernel.body)
        parameters = ", ".join(
            (f"const unsigned {self.block_indices[0]}", *map(self.parameter, self.kernel.parameters))
        )
        return f"__device__ __forceinline__ void {self.entry}({parameters}) {{\n" + "\n".join(self.lines) + "\n}\n"

    def parameter(self, parameter: ir.Buffer | ir.Variable) -> str:
        kind = self.printer.type(parameter.dtype)
        if isinstance(parameter, ir.Variable):
            return f"{'' if parameter.name in self.mutable else 'const '}{kind} {self.name(parameter)}"
        constant = "" if parameter.written else "const "
        alone = "__restrict__ " if parameter.exclusive else ""
        return f"{constant}{kind}* {alone}{self.name(parameter)}"

    def prologue(self) -> None:
        if self.dynamic:
            self.line(f"extern __shared__ __align__({self.alignment}) unsigned char dynamic_shared[];")
        for axis, source in zip(reversed(self.kernel.grid), self.block_indices, strict=False):
            self.line(f"const {self.printer.type(axis.variable.dtype)} {self.name(axis.variable)} = {source};")
        if self.kernel.thread is not None:
            thread = self.kernel.thread
            self.line(f"const {self.printer.type(thread.dtype)} {self.name(thread)} = threadIdx.x;")

    def start_cluster(self) -> int:
        """Arrive at the cluster's start barrier; return the index of the first statement that must wait for it."""
        if self.kernel.cluster == 1:
            return 0
        self.line(f"{self.printer.use('start_in_cluster')}();")
        return next((k for k, s in enumerate(self.kernel.body) if _accesses_cluster((s,))), len(self.kernel.body))

    # statements

    def body(self, body: Sequence[ir.Statement]) -> None:
        position = 0
        while position < len(body):
            together = [] if self.kernel.fast_math else quotients(body[position:])
            if together:
                write_quotients(self, together)
            else:
                self.statement(body[position])
            position += max(len(together), 1)

    def set_variable(self, statement: ir.Let | ir.Declare | ir.Assign | ir.Accumulate) -> str:
        """Returns the line that defines a variable or gives it another value."""
        match statement:
            case ir.Let(variable, value):
                kind = self.printer.type(variable.dtype)
                return f"const {kind} {self.name(variable)} = {self.value_for(variable, value)};"
            case ir.Declare(variable, value):
                kind = self.printer.type(variable.dtype)
                return f"{kind} {self.name(variable)} = {self.value_for(variable, value)};"
            case ir.Assign(variable, value):
                return f"{self.name(variable)} = {self.value_for(variable, value)};"
            case ir.Accumulate(variable, "add" | "mul" as operation, value) if variable.dtype in (float32, float64):
                sign = "+=" if operation == "add" else "*="
                return f"{self.name(variable)} {sign} {self.printer.value(value)};"
            case ir.Accumulate(variable, operation, value):
                combined = ir.call(operation, variable, value)
                return f"{self.name(variable)} = {self.value_for(variable, combined)};"

    def statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Let() | ir.Declare() | ir.Assign() | ir.Accumulate():
                self.line(self.set_variable(statement))
            case ir.Store():
                self.store(statement)
            case ir.Copy():
                self.copy(statement)
            case ir.StartCopy():
                self.start_copy(statement)
            case ir.EndBatch():
                self.line(f"{self.printer.use('end_batch')}();")
            case ir.AwaitCopies(later):
                name = self.printer.use("await_batches" if later else "await_copies")
                self.line(f"{name}<{later}>();" if later else f"{name}();")
                if self.multiplies_tiles:
                    self.line(f"{self.printer.use('show_copies')}();")
            case ir.Transpose() | ir.AddProducts() | ir.Prefetch():
                contains = f"{self.kernel.name} contains {type(statement).__name__}"
                raise InternalError(f"kernel IR: {contains}, which CUDA kernels do not support")
            case (
                ir.LoadMatrices() | ir.LoadPairs() | ir.MultiplyMatrices() | ir.MultiplyTiles() | ir.AwaitProducts()
                | ir.StorePair()
            ):  # fmt: skip
                self.matrices(statement)
            case ir.For():
                self.loop(statement)
            case ir.If():
                self.branch(statement)
            case ir.Allocate(buffer):
                self.allocate(buffer)
            case ir.Barrier(cluster):
                self.line(f"{self.printer.use('meet_cluster')}();" if cluster else "__syncthreads();")
            case ir.GroupReduce():
                self.group_reduce(statement)
            case ir.Comment(text):
                for part in () if self.anonymous else text.splitlines():
                    self.line(f"// {part.rstrip(chr(92))}")  # a trailing backslash would continue the comment

    def store(self, statement: ir.Store) -> None:
        name, where = self.name(statement.buffer), self.printer.index(statement.index)
        streaming = statement.cache == "streaming" and statement.buffer.space == "global"
        if statement.block is not None:
            self.store_to_block(statement, name, where)
            return
        if not streaming:
            self.line(f"{name}[{where}] = {self.printer.value(statement.value)};")
            return
        writer = self.printer.use("write_streaming")
        kind = self.printer.type(statement.buffer.dtype)
        value = self.printer.print(statement.value, False)
        self.line(f"{writer}<{kind}>({self.address(name, where)}, {value});")

    def store_to_block(self, statement: ir.Store, name: str, where: Text) -> None:
        """Store to another block's shared memory. The wait for the prologue's barrier ensures that it has started."""
        assert statement.block is not None
        value = self.printer.print(statement.value, False)
        block = self.printer.index(statement.block)
        self.line(f"*{self.printer.use('in_block')}({self.address(name, where)}, {block}) = {value};")

    def copy(self, statement: ir.Copy) -> None:
        source, destination = statement.source, statement.destination
        if (source.space == "local") is (destination.space == "local") or not statement.fits:
            raise InternalError(
                f"copy between {source.name} and {destination.name}: exactly one must be local, with compatible dtypes"
            )
        size = statement.width * destination.dtype.itemsize
        if size & (size - 1) if size <= 16 else size % 16:
            raise InternalError(
                f"copy of {statement.width} {source.dtype}: the size must be 1, 2, 4, 8 or n * 16 bytes, not {size}"
            )
        name = self.access(statement, source, destination)
        to = self.address(self.name(destination), self.printer.index(statement.destination_index))
        origin = self.address(self.name(source), self.printer.index(statement.source_index))
        self.line(f"{self.printer.use(name)}<{statement.width}>({to}, {origin});")

    def start_copy(self, statement: ir.StartCopy) -> None:
        source, destination = statement.source, statement.destination
        size = statement.width * source.dtype.itemsize
        if (source.space, destination.space) != ("global", "shared") or (size not in (4, 8) and size % 16):
            raise InternalError(
                f"asynchronous copy of {size} bytes from {source.name} to {destination.name}: it must go from global "
                f"to shared memory and have 4, 8 or n * 16 bytes"
            )
        to = self.address(self.name(destination), self.printer.index(statement.destination_index))
        origin = self.address(self.name(source), self.printer.index(statement.source_index))
        if statement.count == 1 and statement.valid is None:
            self.line(f"{self.printer.use('start_copy')}<{size}>({to}, {origin});")
            return
        steps = ", ".join(str(step * source.dtype.itemsize) for step in statement.steps)
        valid = statement.count if statement.valid is None else self.printer.index(statement.valid)
        places = f"(unsigned int)__cvta_generic_to_shared({to}), {origin}, {valid}"
        self.line(f"{self.printer.use('start_copies')}<{size}, {steps}, {statement.count}>({places});")

    def access(self, statement: ir.Copy, source: ir.Buffer, destination: ir.Buffer) -> str:
        """Return the name of the device function that performs a copy."""
        streaming = statement.cache == "streaming" and "global" in (source.space, destination.space)
        if destination.space != "local":
            if statement.rounds:
                self.printer.use(f"rounded_pair_{destination.dtype.name}")
            return ("round_wide" if statement.rounds else "write_wide") + ("_streaming" if streaming else "")
        if source.space != "global":
            return "read_wide"
        if source.written or not source.exclusive:
            return "read_wide_streaming" if streaming else "read_wide"
        return "read_wide_once" if streaming else "read_wide_constant"

    def loop(self, loop: ir.For) -> None:
        name, kind = self.name(loop.variable), self.printer.type(loop.variable.dtype)
        if not isinstance(loop.step, ir.Constant) and loop.step.dtype.kind != "uint":
            down = False
        else:
            down = isinstance(loop.step, ir.Constant) and int(loop.step.value.real) < 0
        start = self.printer.top(loop.start, index=loop.variable.name not in self.data)
        stop, step = self.bound(loop.stop, f"{name}_stop"), self.bound(loop.step, f"{name}_step")
        advance = f"++{name}" if step == "1" else f"{name} += {step}"
        if loop.kind == "unroll":
            if not all(isinstance(e, ir.Constant) for e in (loop.start, loop.stop, loop.step)):
                raise InternalError(f"loop {name} is unrolled, but its bounds are not constant")
            self.line("#pragma unroll")
        self.loops.append(loop)
        with self.block(f"for ({kind} {name} = {start}; {name} {'>' if down else '<'} {stop}; {advance})"):
            self.body(loop.body)
        self.loops.pop()

    def bound(self, expression: ir.Expression, name: str) -> str:
        """Return a loop's stop or step, evaluated before the loop if the body might change its value."""
        text = self.condition(expression)
        if has_load(expression) or any(v in self.mutable for v in variables_of(expression)):
            fixed = self.fresh(name)
            self.line(f"const {self.printer.type(expression.dtype)} {fixed} = {text};")
            return fixed
        return text.at(SUM)

    def branch(self, statement: ir.If) -> None:
        with self.block(f"if ({self.condition(statement.condition)})"):
            self.body(statement.body)
        if statement.orelse:
            self.lines.pop()
            with self.block("} else"):
                self.body(statement.orelse)

    def allocate(self, buffer: ir.Buffer) -> None:
        kind, name = self.printer.type(buffer.dtype), self.name(buffer)
        if buffer.space == "shared":
            size = _shared_size(buffer, self.alignment)
            if self.dynamic:
                place = f"dynamic_shared + {self.dynamic_used}" if self.dynamic_used else "dynamic_shared"
                self.line(f"{kind}* const {name} = ({kind}*)({place});")
                self.dynamic_used += size
                return
            self.line(f"__shared__ __align__({self.alignment}) {kind} {name}[{buffer.size}];")
            return
        if buffer.space != "local" or not isinstance(buffer.size, int):
            raise InternalError(f"buffer {name} in {buffer.space} memory of size {buffer.size} on the GPU")
        self.line(f"{kind} {name}[{buffer.size}];")


def emit_unit(kernels: Sequence[ir.Kernel]) -> str:
    """Return one translation unit of CUDA C++ for several kernels with distinct names."""
    emitters = [CudaEmitter(kernel) for kernel in kernels]
    names = [e.entry for e in emitters]
    if len(set(names)) != len(names):
        raise InternalError(f"kernels of one translation unit share a name: {sorted(names)}")
    functions = [e.function() for e in emitters]
    used = sorted(set().union(*(e.printer.used for e in emitters)))
    return prelude(used) + "\n".join(functions)


def emit_cuda(kernel: ir.Kernel) -> str:
    """Return the complete CUDA C++ source of one kernel.

    Raises InternalError for a malformed kernel and for complex numbers, which passes/split_complex.py must remove.
    """
    return emit_unit([kernel])


def canonical_cuda(kernel: ir.Kernel) -> str:
    """Return the kernel's source with canonical names and without comments, for use as a cache key.

    Kernels that differ only in names and comments have equal text. Together with the compiler options and architecture
    it determines the machine code except for the entry name.
    """
    emitter = CudaEmitter(kernel, anonymous=True)
    function = emitter.function()
    return prelude(sorted(emitter.printer.used)) + function
