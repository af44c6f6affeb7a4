"""The body of a CPU kernel as LLVM IR: statements, loops and memory accesses.

Loop nests are emitted as scalar code. LLVM's loop vectorizer vectorizes the loops that metadata marks as vector loops
with independent iterations. Mutable variables are stack slots in the entry block, which LLVM promotes to registers.

Floating-point flags: `contract` if the kernel allows it (`kernel/llvm/fused_operations.py`), `reassoc` on a reduction's
accumulator, which LLVM may vectorize, and `nsz arcp afn` with fast math.
"""

from __future__ import annotations

from segments.lazy_dataclasses import replace
from tracefuse import dtypes
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import linked_calls, scalar_ops
from tracefuse.kernel.llvm.hidden_infinities import HiddenInfinities
from tracefuse.kernel.llvm.hidden_invariants import HiddenInvariants, hide, is_invariant
from tracefuse.kernel.llvm.hoisted_divisions import HoistedDivisions
from tracefuse.kernel.llvm.interleaving import interleave_count, split_short
from tracefuse.kernel.llvm.loop_metadata import Metadata
from tracefuse.kernel.llvm.masked_rests import masked_vectors
from tracefuse.kernel.llvm.masked_vectors import MaskedVectors
from tracefuse.kernel.llvm.nested_loops import carries_states, has_loop, has_one_iteration, has_vector_loop
from tracefuse.kernel.llvm.prefetched_lines import prefetch
from tracefuse.kernel.llvm.scalar_ops import memory_type, register_type
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue, Mutable, Processor, vector_type
from tracefuse.kernel.llvm.vector_loops import emit_in_vectors

_ACCUMULATE = {"add": "fadd", "mul": "fmul"}
# A constant-size buffer larger than this, in bytes, is a scratch buffer of `chunk` instead of on the stack of `body`.
LARGEST_STACK_BUFFER = 1 << 16
# The bytes behind a local array that the last of its vectors may reach (`kernel/llvm/masked_vectors.py`).
ROOM_BEHIND = 64
# Index arithmetic with constants below this cannot overflow for any array that fits in memory.
_LARGEST_INDEX_CONSTANT = 1 << 31
_INDEX_OPERATIONS = {"add": "add", "sub": "sub", "mul": "mul"}
_CHOICES = ("select", "minimum", "maximum")


def is_scratch(buffer: ir.Buffer) -> bool:
    """Return whether `chunk` allocates a local buffer: its size is not constant or too large for the stack."""
    return not isinstance(buffer.size, int) or buffer.size * buffer.dtype.itemsize > LARGEST_STACK_BUFFER


def alignment(buffer: ir.Buffer) -> int:
    """Return the guaranteed alignment of one element; NumPy arrays may be unaligned."""
    item = buffer.dtype.itemsize
    return item if buffer.space == "local" else min(item, buffer.alignment)


class Emitter:
    """Emits one function. `variables` and `pointers` map names of the kernel to LLVM values."""

    def __init__(self, kernel: ir.Kernel, processor: Processor, metadata: Metadata) -> None:
        self.kernel, self.processor, self.metadata = kernel, processor, metadata
        self.flags = ("nsz arcp afn " if kernel.fast_math else "") + ("contract " if kernel.contract else "")
        self.builder = Builder()
        self.entry: list[str] = []
        self.variables: dict[str, LlvmValue | Mutable] = {}
        self.pointers: dict[str, str] = {}
        self.access_group: str | None = None
        # Of the innermost vector loop that is being emitted.
        self.invariants: HiddenInvariants | None = None
        # The loops of the kernel around the statement that is being emitted.
        self.enclosing = 0
        self.divisions = HoistedDivisions(kernel)
        # The accesses of the iteration of a vector loop that is being emitted in vectors.
        self.vectors: MaskedVectors | None = None
        # The declarations of functions that move and multiply tiles, by symbol.
        self.linked: dict[str, str] = {}
        # Buffers with non-temporal stores.
        self.streamed: dict[str, None] = {}
        # Integers that are positions or extents rather than data.
        self.plain = {s.name for s in kernel.scalars if s.dtype.is_integer}
        self.infinities = HiddenInfinities(kernel, self.builder, self.entry)
        # Names of values that are equal for all elements.
        self.invariant = {s.name for s in kernel.scalars}

    # expressions

    def expression(self, e: ir.Expression, *, index: bool = False) -> LlvmValue:
        """Emit an expression. index: its arithmetic does not overflow."""
        match e:
            case ir.Constant():
                return scalar_ops.constant(self.builder, e.value, e.dtype)
            case ir.Variable():
                return self.read(e)
            case ir.Load():
                return self._load(e)
            case ir.Cast():
                value = self.expression(e.argument, index=index)
                return scalar_ops.cast(value, e.argument.dtype, e.dtype, self.processor)
            case ir.Call() if (known := self.divisions.value(e)) is not None:
                return known
            case ir.Call():
                if index and e.name in _INDEX_OPERATIONS and self.is_plain_index(e):
                    a, b = (self.expression(argument, index=True) for argument in e.arguments)
                    return a.binary(_INDEX_OPERATIONS[e.name], b, "nsw ")
                arguments = [self.infinities.hidden(e, a, self.expression(a, index=index)) for a in e.arguments]
                if e.name in _CHOICES and self.access_group and self.processor.slow_masked_stores:
                    # Else LLVM stores the choice between a new value and the one in memory under a mask.
                    arguments = [self.builder.emit(f"freeze {a}", a.type) for a in arguments]
                return scalar_ops.primitive(
                    *(e.name, arguments, e.arguments[-1].dtype, e.dtype),
                    flags=self.flags, processor=self.processor, invariant=is_invariant(e.arguments[-1], self.invariant),
                )  # fmt: skip

    def is_plain_index(self, e: ir.Expression) -> bool:
        """Return whether `e` is 64-bit arithmetic on extents, loop variables and small constants.

        A schedule's indices have this form. Arithmetic on data may wrap.
        """
        if isinstance(e, ir.Variable):
            return e.name in self.plain
        if isinstance(e, ir.Constant):
            return isinstance(e.value, int) and abs(e.value) < _LARGEST_INDEX_CONSTANT
        if isinstance(e, ir.Call):
            return e.dtype is dtypes.int64 and all(map(self.is_plain_index, e.arguments))
        return isinstance(e, ir.Cast) and e.dtype is dtypes.int64 and self.is_plain_index(e.argument)

    def index(self, e: ir.Expression) -> LlvmValue:
        """Emit an index or a loop bound as an i64."""
        value = self.expression(e, index=True)
        if value.type == "i64":
            return value
        return value.convert("sext" if e.dtype.kind == "int" else "zext", "i64")

    def read(self, variable: ir.Variable) -> LlvmValue:
        value = self.variables.get(variable.name)
        if value is None:
            raise InternalError(f"kernel IR: {self.kernel.name} reads {variable.name} before it is defined")
        if isinstance(value, Mutable):
            type_ = register_type(value.dtype)
            text = f"load {vector_type(type_, value.lanes)}, ptr {value.pointer}"
            return self.builder.emit(text, type_, variable.name, value.lanes)
        return value

    def address(self, buffer: ir.Buffer, index: ir.Expression) -> LlvmValue:
        index = index if self.vectors is None else self.vectors.place(index)
        position = self.index(index) if self.invariants is None else self.invariants.position(index)
        text = f"getelementptr inbounds {memory_type(buffer.dtype)}, ptr {self._pointer(buffer)}, {position}"
        return self.builder.emit(text, "ptr", "address")

    def _pointer(self, buffer: ir.Buffer) -> str:
        pointer = self.pointers.get(buffer.name)
        if pointer is None:
            raise InternalError(f"kernel IR: {self.kernel.name} uses buffer {buffer.name} before it is allocated")
        return pointer

    def _group(self) -> str:
        return f", !llvm.access.group {self.access_group}" if self.access_group else ""

    def _load(self, e: ir.Load) -> LlvmValue:
        type_, aligned = memory_type(e.dtype), alignment(e.buffer)
        value = None if self.vectors is None else self.vectors.load(e, self._pointer(e.buffer), aligned)
        if self.vectors is not None and value is not None and not value.lanes:
            return value
        if value is None:
            address = self.address(e.buffer, e.index)
            text = f"load {type_}, {address}, align {aligned}{self._group()}"
            value = self.builder.emit(text, type_, e.buffer.name)
        return value.compare("ne", 0) if e.dtype.kind == "bool" else value

    # statements

    def statements(self, body: tuple[ir.Statement, ...]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, s: ir.Statement) -> None:
        match s:
            case ir.Let():
                self.variables[s.variable.name] = self.expression(s.value)
                if self.is_plain_index(s.value):
                    self.plain.add(s.variable.name)
                if is_invariant(s.value, self.invariant):
                    self.invariant.add(s.variable.name)
            case ir.Declare():
                self._declare(s.variable)
                self.assign(s.variable, self.expression(s.value))
            case ir.Assign():
                self.assign(s.variable, self.expression(s.value))
            case ir.Accumulate():
                value = self.expression(s.value)
                if self.vectors is not None:
                    self.vectors.accumulate(s, value)
                else:
                    self.assign(s.variable, self.accumulated(s, self.read(s.variable), value))
            case ir.Store():
                self._store(s)
            case ir.Prefetch():
                prefetch(self, s)
            case ir.Copy():
                self._copy(s)
            case ir.Transpose():
                linked_calls.call_transpose(self, s)
            case ir.AddProducts():
                linked_calls.call_products(self, s)
            case ir.For():
                self._for(s)
            case ir.If():
                self._if(s)
            case ir.Allocate():
                self._allocate(s.buffer)
            case ir.Comment():
                self.builder.lines.extend(f"  ; {line}" for line in s.text.splitlines())
            case ir.Barrier() | ir.GroupReduce():
                # CPU kernels have one thread per grid iteration: nothing to wait for or to combine.
                pass

    def _declare(self, variable: ir.Variable) -> None:
        name = self.builder.name(variable.name)
        lanes = 0 if self.vectors is None else self.vectors.lanes
        self.entry.append(f"  {name} = alloca {vector_type(register_type(variable.dtype), lanes)}")
        self.variables[variable.name] = Mutable(name, variable.dtype, lanes)

    def assign(self, variable: ir.Variable, value: LlvmValue) -> None:
        target = self.variables.get(variable.name)
        if not isinstance(target, Mutable):
            raise InternalError(f"kernel IR: {self.kernel.name} assigns to {variable.name}, which is not mutable")
        value = self.builder.repeat(value, target.lanes) if target.lanes > value.lanes else value
        self.builder.line(f"store {value}, ptr {target.pointer}")

    def accumulated(self, s: ir.Accumulate, current: LlvmValue, value: LlvmValue) -> LlvmValue:
        """Emit what an accumulator becomes."""
        dtype = s.variable.dtype
        if dtype.is_floating and not dtype.is_half and s.operation in _ACCUMULATE:
            return current.binary(_ACCUMULATE[s.operation], value, f"reassoc {self.flags}")
        if dtype.is_floating and not dtype.is_half and s.operation in ("minimum", "maximum"):
            return scalar_ops.extremum_in_any_order(s.operation, current, value)
        return scalar_ops.primitive(*(s.operation, [current, value], dtype, dtype), flags="", processor=self.processor)

    def _store(self, s: ir.Store) -> None:
        value = self.expression(s.value)
        if value.type == "i1":
            value = value.convert("zext", "i8")
        aligned = alignment(s.buffer)
        if self.vectors is not None:
            self.vectors.store(s, value, aligned, s.cache == "streaming" and self._is_streamed(s.buffer))
            return
        address = self.address(s.buffer, s.index)
        group = self._streaming_group(s.buffer) if s.cache == "streaming" else self._group()
        self.builder.line(f"store {value}, {address}, align {aligned}{group}")

    def _is_streamed(self, buffer: ir.Buffer) -> bool:
        """Return whether this processor has non-temporal stores of whole lines of a buffer; count it if so."""
        if buffer.alignment < ir.CACHE_LINE or not self.processor.streaming_stores:
            return False
        self.streamed[buffer.name] = None
        return True

    def _streaming_group(self, buffer: ir.Buffer) -> str:
        """Mark a store in a vector loop as non-temporal if the processor supports it."""
        if not (self.access_group and self._is_streamed(buffer)):
            return self._group()
        return f", !llvm.access.group {self.metadata.mark_streaming(self.access_group)}"

    def _copy(self, s: ir.Copy) -> None:
        dtype = s.source.dtype
        type_, group = f"<{s.width} x {memory_type(dtype)}>", self._group()
        source = self.address(s.source, s.source_index)
        value = self.builder.emit(f"load {type_}, {source}, align {alignment(s.source)}{group}", type_)
        destination = self.address(s.destination, s.destination_index)
        self.builder.line(f"store {value}, {destination}, align {alignment(s.destination)}{group}")

    def _allocate(self, buffer: ir.Buffer) -> None:
        if is_scratch(buffer):
            return  # a parameter of the body
        assert isinstance(buffer.size, int)
        name = self.builder.name(buffer.name)
        elements = buffer.size + ROOM_BEHIND // buffer.dtype.itemsize
        self.entry.append(f"  {name} = alloca [{elements} x {memory_type(buffer.dtype)}], align 64")
        self.pointers[buffer.name] = name

    def _if(self, s: ir.If) -> None:
        condition = self.expression(s.condition)
        yes, no, end = (self.builder.name(hint) for hint in ("then", "else", "endif"))
        replaces = not s.orelse and all(isinstance(e, ir.Let | ir.Assign) for e in s.body)
        hint = self.metadata.rare_branch() if replaces else ""
        self.builder.line(f"br {condition}, label {yes}, label {no if s.orelse else end}{hint}")
        self.builder.label(yes)
        self.statements(s.body)
        self.builder.line(f"br label {end}")
        if s.orelse:
            self.builder.label(no)
            self.statements(s.orelse)
            self.builder.line(f"br label {end}")
        self.builder.label(end)

    def bind_position(self, variable: ir.Variable, value: LlvmValue) -> None:
        """Give a loop's variable its value."""
        self.variables[variable.name] = value
        self.plain.add(variable.name)

    def _for(self, s: ir.For) -> None:
        if self.vectors is not None:
            self.vectors.unrolled(s)
            return
        if has_one_iteration(s):
            self.bind_position(s.variable, self.expression(s.start, index=True))
            self.statements(s.body)
            return
        outer = self.divisions.begin_loop(self, s.variable, s.body)
        self.enclosing += 1
        self._loop(s)
        self.enclosing -= 1
        self.divisions.end_loop(outer)

    def _loop(self, s: ir.For) -> None:
        if linked_calls.call_plain(self, s) or (s.kind == "vector" and emit_in_vectors(self, s)):
            return
        s = replace(s, kind="serial") if s.kind == "vector" and carries_states(s) else s
        masked = self._masked_vectors(s) if s.kind == "vector" else 0
        parts = split_short(s) if s.kind == "vector" and not masked else (s,)
        if len(parts) > 1:
            self.statements(parts)
            return
        start, stop, step = (self.expression(e, index=True) for e in (s.start, s.stop, s.step))
        if s.kind == "vector":
            group = self.metadata.access_group()
            count = masked or interleave_count(s, self.processor.vector_bits // 8)
            metadata = self.metadata.vector_loop(group, count, masked=masked > 0)
            if step.text == "1" and stop.type == "i64" and self.is_plain_index(s.start):
                self._vector_loop(s, start, stop, metadata, group)
                return
        else:
            group = self.access_group or ""
            for_passes, marks = not (has_loop(s.body) or carries_states(s)), self.metadata
            metadata = marks.unrolled_loop() if s.kind == "unroll" else marks.serial_loop(for_passes=for_passes)
        self.loop(s.variable, (start, stop, step), s.body, metadata, group)

    def _masked_vectors(self, s: ir.For) -> int:
        """Return how many vectors a loop is that runs at once with its last ones masked; 0 for another loop."""
        if not self.processor.masks:
            return 0
        self.plain.add(s.variable.name)
        invariants = HiddenInvariants(s, self.builder, self.is_plain_index, self.index)
        return masked_vectors(s, self.processor.vector_bits // 8, invariants.step)

    def _vector_loop(self, s: ir.For, start: LlvmValue, stop: LlvmValue, metadata: str, group: str) -> None:
        """Emit a vector loop from zero on, with its invariant index arithmetic before it."""
        zero, one = self.builder.literal(0, "i64"), self.builder.literal(1, "i64")
        if start.text.startswith("%") or stop.text.startswith("%"):
            trips = hide(self.builder, stop if start.text == "0" else stop.binary("sub", start, "nsw "), "trips")
        else:
            trips = self.builder.literal(int(stop.text) - int(start.text), "i64")
        outer, place = self.invariants, len(self.builder.lines)
        self.invariants = HiddenInvariants(s, self.builder, self.is_plain_index, self.index)
        self.loop(s.variable, (zero, trips, one), s.body, metadata, group, start)
        self.builder.lines[place:place] = self.invariants.lines
        self.invariants = outer

    def loop(
        self, variable: ir.Variable, bounds: tuple[LlvmValue, LlvmValue, LlvmValue], body: tuple[ir.Statement, ...],
        metadata: str, group: str, shift: LlvmValue | None = None,
    ) -> None:  # fmt: skip
        """Emit `for variable in range(*bounds): body`, with its loads and stores in access group `group`.

        shift: added to the loop's counter; the counter itself goes to `invariants`.
        """
        start, stop, step = bounds
        before, head, inside, end = (
            self.builder.name(f"{variable.name}_{part}") for part in ("before", "head", "body", "end")
        )
        index, following = self.builder.name(variable.name), self.builder.name(f"{variable.name}_next")
        for label in (before, head):
            self.builder.line(f"br label {label}")
            self.builder.label(label)
        # The phi needs the latch's name before the body is emitted, so the latch is a separate block.
        back = self.builder.name(f"{variable.name}_back")
        self.builder.line(f"{index} = phi {start.type} [ {start.text}, {before} ], [ {following}, {back} ]")
        current = LlvmValue(self.builder, index, start.type)
        predicate = "slt" if variable.dtype.kind == "int" else "ult"
        self.builder.line(f"br {current.compare(predicate, stop)}, label {inside}, label {end}")
        self.builder.label(inside)
        if variable.dtype is dtypes.int64 and has_vector_loop(body):
            current = hide(self.builder, current, variable.name)
        counter = current
        if shift is not None and self.invariants is not None:
            self.invariants.counter = counter
            current = current if shift.text == "0" else shift.binary("add", current, "nsw ")
        self.bind_position(variable, current)
        outer, self.access_group = self.access_group, group or None
        self.statements(body)
        self.access_group = outer
        self.builder.line(f"br label {back}")
        self.builder.label(back)
        wrap = "nsw" if variable.dtype.kind == "int" else "nuw"
        self.builder.line(f"{following} = add {wrap} {counter}, {step.text}")
        self.builder.line(f"br label {head}" + (f", !llvm.loop {metadata}" if metadata else ""))
        self.builder.label(end)
