"""The LLVM emitter of loop drivers: one module with the kernels of a loop and the function that runs its steps.

`drive` runs the loop. Scalar kernels are inlined, so that values which steps carry in local memory stay in registers;
their texts say which operations are fused, so that results are rounded as each kernel rounds them. Other kernels are
called in the machine code that launches from Python run. One with little work runs on the calling thread, a larger one
on the worker pool: compiled code decides it in each step.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import emit_calls
from tracefuse.kernel.llvm.emit_llvm import body_text, module_text, scratch_of
from tracefuse.kernel.llvm.entry_functions import load_parameter, store_parameter
from tracefuse.kernel.llvm.fused_operations import with_fused_operations
from tracefuse.kernel.llvm.hoisted_conditions import without_conditions
from tracefuse.kernel.llvm.loop_metadata import Metadata
from tracefuse.kernel.llvm.nested_loops import has_one_iteration
from tracefuse.kernel.llvm.scalar_ops import memory_type
from tracefuse.kernel.llvm.shared_functions import DECLARATIONS, INTERRUPTED, KEEP_LOCK_BELOW, SERIAL_BELOW
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import LlvmValue, Processor, host_processor
from tracefuse.kernel.loop_driver import (
    FAILED,
    NO_CHOICE,
    CallFunction,
    CallInnerLoop,
    CallPython,
    ChooseStatements,
    ConditionalSteps,
    CopyElements,
    CopyMemory,
    CountedSteps,
    DefineNumber,
    DriverStatement,
    ExchangePointers,
    LoadNumber,
    LocalMemory,
    LoopDriver,
    NamePointer,
    OffsetPointer,
    RequireNumber,
    RunKernel,
    StoreNumber,
)

_LIBRARY = {
    "memmove": "declare ptr @memmove(ptr, ptr, i64) nounwind",
    "tracefuse_parallel_for": "declare void @tracefuse_parallel_for(ptr, ptr, i64, i64)",
}

MOST_INLINED_WORK = 32
"""The work, in elements, up to which a kernel becomes part of its driver."""


def emit_driver(driver: LoopDriver) -> str:
    """Return the LLVM module of `driver` for this machine."""
    processor, metadata = host_processor(), Metadata()
    emitters, texts = list[Emitter](), list[str]()
    for number, kernel in enumerate(driver.kernels):
        if is_inlined(kernel):
            body = Emitter(kernel, processor, metadata)
            text = body_text(kernel, (), body, f"body{number}", "alwaysinline #1")
            texts.append(with_fused_operations(text, body.builder.declarations, reorders=False))
            emitters.append(body)
        else:
            texts.append(f"declare void @{kernel_symbol(number)}(ptr, i64, i64)")
    emitters.append((drive := _DriveEmitter(driver, processor, metadata)).emitter)
    drive.emitter.builder.declarations.update(DECLARATIONS | _LIBRARY)
    texts.append(with_fused_operations(drive.text(), drive.emitter.builder.declarations))
    return module_text(texts, emitters, processor, metadata)


def kernel_symbol(number: int) -> str:
    """Return the symbol of the `chunk` of a kernel that is not inlined."""
    return f"tracefuse_kernel{number}"


def is_inlined(kernel: ir.Kernel) -> bool:
    """Return whether a driver contains a kernel: one of a few elements, whose loops have one iteration."""
    few = isinstance(kernel.work, ir.Constant) and kernel.work.value <= MOST_INLINED_WORK  # type: ignore[operator]
    loops = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.For)]
    return few and not scratch_of(kernel) and all(map(has_one_iteration, loops))


def _emitter(processor: Processor, metadata: Metadata) -> Emitter:
    """Return an emitter of expressions that belong to no kernel."""
    return Emitter(ir.Kernel("driver", (), (), (), "cpu"), processor, metadata)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A pointer that steps exchange. address: of the stack slot that holds it."""

    address: str


class _DriveEmitter:
    """Writes the function `drive`."""

    def __init__(self, driver: LoopDriver, processor: Processor, metadata: Metadata) -> None:
        self.driver, self.processor, self.metadata = driver, processor, metadata
        self.emitter = _emitter(processor, metadata)
        self.builder = self.emitter.builder
        self.entry = self.emitter.entry
        self.pointers: dict[str, str | _Slot] = {}

    def text(self) -> str:
        """Return the text of the function."""
        builder = self.builder
        most = max((len(kernel.parameters) for kernel in self.driver.kernels), default=1)
        self.entry += [
            "  %thread = alloca ptr",
            "  %budget = alloca i64",
            f"  %passed = alloca [{most} x i64], align 16",
        ]
        builder.line("store ptr null, ptr %thread")
        builder.line(f"store i64 {KEEP_LOCK_BELOW}, ptr %budget")
        for number, parameter in enumerate(self.driver.parameters):
            value = load_parameter(self.emitter, "%arguments", number, parameter)
            if isinstance(parameter, ir.Buffer):
                self.pointers[parameter.name] = value.text
            else:
                self._bind(parameter, value)
        self._statements(self.driver.body)
        self._return(self.emitter.index(self.driver.result))
        for label, result in (("failed", FAILED), ("no_choice", NO_CHOICE), ("interrupted", INTERRUPTED)):
            builder.label(f"%{label}")
            self._return(builder.literal(result, "i64"))
        return "\n".join(["define i64 @drive(ptr %arguments) #1 {", "start:", *self.entry, *builder.lines, "}"])

    def _return(self, result: LlvmValue) -> None:
        builder = self.builder
        builder.line(f"ret {builder.emit(f'call i64 @tracefuse_take_lock(ptr %thread, {result})', 'i64')}")

    # -- values -------------------------------------------------------------------------------------------------------

    def _bind(self, variable: ir.Variable, value: LlvmValue) -> None:
        self.emitter.variables[variable.name] = value
        if variable.dtype.is_integer:
            self.emitter.plain.add(variable.name)

    def _pointer(self, name: str) -> str:
        pointer = self.pointers[name]
        if isinstance(pointer, _Slot):
            return self.builder.emit(f"load ptr, ptr {pointer.address}", "ptr", name).text
        return pointer

    def _number(self, value: ir.Expression, dtype: DType) -> LlvmValue:
        """Emit a number in the register type of `dtype`."""
        if value.dtype is dtype:
            return self.emitter.expression(value)
        return self.emitter.expression(ir.Cast(value, dtype))

    # -- statements ---------------------------------------------------------------------------------------------------

    def _statements(self, body: tuple[DriverStatement, ...]) -> None:
        for statement in body:
            self._statement(statement)

    def _copy_memory(self, statement: CopyMemory) -> None:
        target, source = self._pointer(statement.target), self._pointer(statement.source)
        match statement.size:
            case ir.Constant(int() as size) if size <= 64:
                value = self.builder.emit(f"load i{8 * size}, ptr {source}, align 1", f"i{8 * size}")
                self.builder.line(f"store {value}, ptr {target}, align 1")
            case size:
                operands = f"ptr {target}, ptr {source}, {self.emitter.index(size)}"
                self.builder.emit(f"call ptr @memmove({operands})", "ptr")

    def _statement(self, statement: DriverStatement) -> None:
        builder = self.builder
        match statement:
            case RunKernel():
                self._run(statement)
            case CallFunction() | CallInnerLoop() | CallPython() | RequireNumber():
                self._spend(builder.literal(emit_calls.work_of(statement), "i64"))
                emit_calls.emit_call(statement, self.emitter, self._pointer)
            case LocalMemory(pointer, size):
                address = builder.name(pointer)
                self.entry.append(f"  {address} = alloca [{size} x i8], align 64")
                self.entry.append(f"  store [{size} x i8] zeroinitializer, ptr {address}")
                self.pointers[pointer] = address
            case CopyMemory():
                self._copy_memory(statement)
            case StoreNumber(pointer, value):
                builder.line(f"store {self.emitter.expression(value)}, ptr {self._pointer(pointer)}")
            case LoadNumber(variable, pointer):
                self._bind(variable, builder.emit(f"load i64, ptr {self._pointer(pointer)}", "i64", variable.name))
            case OffsetPointer(pointer, base, offset, element):
                type_ = "i8" if element is None else memory_type(element)
                text = f"getelementptr {type_}, ptr {self._pointer(base)}, {self.emitter.index(offset)}"
                self.pointers[pointer] = builder.emit(text, "ptr", pointer).text
            case NamePointer(pointer, value):
                address = builder.name(f"{pointer}_slot")
                self.entry.append(f"  {address} = alloca ptr")
                builder.line(f"store ptr {self._pointer(value)}, ptr {address}")
                self.pointers[pointer] = _Slot(address)
            case ExchangePointers(first, second):
                self._exchange(first, second)
            case DefineNumber(variable, value):
                self._bind(variable, self.emitter.index(value))
            case CopyElements():
                self._copy_elements(statement)
            case ChooseStatements():
                self._choose(statement)
            case CountedSteps():
                self._counted(*without_conditions(statement))
            case ConditionalSteps():
                self._conditional(statement)

    def _exchange(self, first: str, second: str) -> None:
        first_slot, second_slot = self.pointers[first], self.pointers[second]
        assert isinstance(first_slot, _Slot)
        assert isinstance(second_slot, _Slot)
        before, after = self._pointer(first), self._pointer(second)
        self.builder.line(f"store ptr {after}, ptr {first_slot.address}")
        self.builder.line(f"store ptr {before}, ptr {second_slot.address}")

    def _choose(self, choose: ChooseStatements) -> None:
        builder, end = self.builder, self.builder.name("chosen")
        for conditions, statements in choose.choices:
            other = builder.name("other")
            for condition in conditions:
                holds = builder.name("holds")
                builder.line(f"br {self.emitter.expression(condition)}, label {holds}, label {other}")
                builder.label(holds)
            self._statements(statements)
            builder.line(f"br label {end}")
            builder.label(other)
        builder.line("br label %no_choice")
        builder.label(end)

    def _copy_elements(self, copy: CopyElements) -> None:
        """Emit loops over all axes."""
        builder, loops = self.builder, list[tuple[LlvmValue, _Labels]]()
        pointers = [self._pointer(copy.target), self._pointer(copy.source)]
        for axis, extent in enumerate(copy.shape):
            stop = self.emitter.index(extent)
            strides = [
                self.emitter.index(strides_of_axis[axis])
                for strides_of_axis in (copy.target_strides, copy.source_strides)
            ]
            index, labels = self._begin("axis", builder.literal(0, "i64"))
            builder.line(f"br {index.compare('slt', stop)}, label {labels.inside}, label {labels.end}")
            builder.label(labels.inside)
            offsets = [index.binary("mul", stride) for stride in strides]
            pointers = [
                builder.emit(f"getelementptr i8, ptr {pointer}, {offset}", "ptr", "element").text
                for pointer, offset in zip(pointers, offsets, strict=True)
            ]
            loops.append((index, labels))
        type_ = f"i{8 * copy.itemsize}"
        value = builder.emit(f"load {type_}, ptr {pointers[1]}, align 1", type_)
        builder.line(f"store {value}, ptr {pointers[0]}, align 1")
        for index, labels in reversed(loops):
            self._next(index, labels)

    # -- loops --------------------------------------------------------------------------------------------------------

    def _counted(self, conditions: tuple[DriverStatement, ...], loop: CountedSteps) -> None:
        builder = self.builder
        self._statements(conditions)
        start, stop = self.emitter.index(loop.start), self.emitter.index(loop.stop)
        index, labels = self._begin(loop.counter.name, start)
        if loop.flag is not None:
            tests = builder.name("tests")
            builder.line(f"br {index.compare('slt', stop)}, label {tests}, label {labels.end}")
            builder.label(tests)
            self._test(loop.flag, labels)
        else:
            builder.line(f"br {index.compare('slt', stop)}, label {labels.inside}, label {labels.end}")
        builder.label(labels.inside)
        counter = index
        if loop.reverse:
            counter = start.binary("add", stop.binary("sub", index, "nsw ").binary("sub", 1, "nsw "), "nsw ")
        self._bind(loop.counter, counter)
        self._statements(loop.body)
        self._end(index, labels)
        if loop.count is not None:
            self._bind(loop.count, index.binary("sub", start, "nsw "))

    def _conditional(self, loop: ConditionalSteps) -> None:
        builder = self.builder
        index, labels = self._begin(loop.count.name, builder.literal(0, "i64"))
        self._bind(loop.count, index)
        self._statements(loop.condition)
        self._test(loop.flag, labels)
        builder.label(labels.inside)
        self._statements(loop.body)
        self._end(index, labels)

    def _test(self, pointer: str, labels: _Labels) -> None:
        """Branch to the body of a loop if a bool is true, else to its end."""
        flag = self.builder.emit(f"load i8, ptr {self._pointer(pointer)}", "i8", pointer)
        self.builder.line(f"br {flag.compare('ne', 0)}, label {labels.inside}, label {labels.end}")

    def _begin(self, name: str, start: LlvmValue) -> tuple[LlvmValue, _Labels]:
        """Begin a loop; return the index of the current step."""
        builder = self.builder
        labels = _Labels(
            *(builder.name(f"{name}_{part}") for part in ("head", "body", "back", "end", "next", "before"))
        )
        builder.line(f"br label {labels.before}")
        builder.label(labels.before)
        builder.line(f"br label {labels.head}")
        builder.label(labels.head)
        text = f"phi i64 [ {start.text}, {labels.before} ], [ {labels.following}, {labels.back} ]"
        return builder.emit(text, "i64", name), labels

    def _end(self, index: LlvmValue, labels: _Labels) -> None:
        """End a step: after enough work, let Python handle signals."""
        builder = self.builder
        left = builder.emit("load i64, ptr %budget", "i64", "left") - 1
        builder.line(f"store {left}, ptr %budget")
        polls, again = builder.name("poll"), builder.name("again")
        builder.line(f"br {left.compare('slt', 0)}, label {polls}, label {labels.back}, !prof {self._rare()}")
        builder.label(polls)
        budget = builder.emit("call i64 @tracefuse_poll(ptr %thread)", "i64", "budget")
        builder.line(f"br {budget.compare('slt', 0)}, label %interrupted, label {again}")
        builder.label(again)
        builder.line(f"store {budget}, ptr %budget")
        self._next(index, labels)

    def _next(self, index: LlvmValue, labels: _Labels) -> None:
        """End a loop whose block ends here."""
        builder = self.builder
        builder.line(f"br label {labels.back}")
        builder.label(labels.back)
        builder.line(f"{labels.following} = add nsw {index}, 1")
        builder.line(f"br label {labels.head}")
        builder.label(labels.end)

    def _rare(self) -> str:
        return self.metadata.add('!{{!"branch_weights", i32 1, i32 100000}}')

    # -- kernels ------------------------------------------------------------------------------------------------------

    def _run(self, run: RunKernel) -> None:
        kernel, builder = self.driver.kernels[run.kernel], self.builder
        inside = Emitter(kernel, self.processor, self.metadata)
        inside.builder = builder
        arguments: list[LlvmValue] = []
        for parameter, argument in zip(kernel.parameters, run.arguments, strict=True):
            if isinstance(parameter, ir.Buffer):
                assert isinstance(argument, str)
                value = LlvmValue(builder, self._pointer(argument), "ptr")
            else:
                assert not isinstance(argument, str)
                value = self._number(argument, parameter.dtype)
                inside.variables[parameter.name] = value
            arguments.append(value)
        extent = inside.index(kernel.grid[0].extent) if kernel.grid else builder.literal(1, "i64")
        work = builder.literal(1 << 40, "i64") if kernel.work is None else inside.index(kernel.work)
        self._spend(work)
        self._by_work(run.kernel, arguments, extent, work)
        if run.error_flag is not None:
            flag = builder.emit(f"load i64, ptr {self._pointer(run.error_flag)}", "i64", "flag")
            fine = builder.name("fine")
            builder.line(f"br {flag.compare('ne', 0)}, label %failed, label {fine}, !prof {self._rare()}")
            builder.label(fine)

    def _spend(self, work: LlvmValue) -> None:
        left = self.builder.emit("load i64, ptr %budget", "i64", "left") - work
        self.builder.line(f"store {left}, ptr %budget")

    def _by_work(self, number: int, arguments: list[LlvmValue], extent: LlvmValue, work: LlvmValue) -> None:
        """Emit the call on this thread and the one on the worker pool."""
        builder = self.builder
        if is_inlined(self.driver.kernels[number]):
            listed = ", ".join([*map(str, arguments), "i64 0", str(extent)])
            builder.line(f"call void @body{number}({listed})")
            return
        parameters = self.driver.kernels[number].parameters
        for position, (parameter, value) in enumerate(zip(parameters, arguments, strict=True)):
            store_parameter(self.emitter, "%passed", position, parameter, value)
        serial, parallel, done = (builder.name(hint) for hint in ("serial", "parallel", "done"))
        builder.line(f"br {work.compare('slt', SERIAL_BELOW)}, label {serial}, label {parallel}")
        builder.label(serial)
        builder.line(f"call void @{kernel_symbol(number)}(ptr %passed, i64 0, {extent})")
        builder.line(f"br label {done}")
        builder.label(parallel)
        operands = f"ptr @{kernel_symbol(number)}, ptr %passed, {extent}, {work}, ptr @tracefuse_parallel_for"
        builder.line(f"call void @tracefuse_run_released({operands}, ptr %thread)")
        builder.line(f"br label {done}")
        builder.label(done)


@dataclass(frozen=True, slots=True)
class _Labels:
    """The labels of a loop. following: the index of the next step."""

    head: str
    inside: str
    back: str
    end: str
    following: str
    before: str
