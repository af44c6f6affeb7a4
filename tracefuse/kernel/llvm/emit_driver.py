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
from tracefuse.kernel.llvm.driver_loops import DriverLoops
from tracefuse.kernel.llvm.emit_llvm import body_text, module_text, scratch_of
from tracefuse.kernel.llvm.entry_functions import load_parameter, store_parameter
from tracefuse.kernel.llvm.fused_operations import with_fused_operations
from tracefuse.kernel.llvm.kept_elements import PointedMemory, with_kept_elements
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

MOST_COPIED = 64
"""The bytes up to which a copy is one load and one store."""


def emit_driver(driver: LoopDriver) -> str:
    """Return the LLVM module of `driver` for this machine."""
    processor, metadata = host_processor(), Metadata()
    drive = _DriveEmitter(driver, processor, metadata)
    drive_text = drive.text()
    emitters, texts = list[Emitter](), list[str]()
    for number, kernel in enumerate(drive.kernels):
        if is_inlined(kernel):
            body = Emitter(kernel, processor, metadata)
            text = body_text(kernel, (), body, f"body{number}", "alwaysinline #1")
            texts.append(with_fused_operations(text, body.builder.declarations, reorders=False))
            emitters.append(body)
        else:
            texts.append(f"declare void @{kernel_symbol(number)}(ptr, i64, i64)")
    emitters.append(drive.emitter)
    drive.emitter.builder.declarations.update(DECLARATIONS | _LIBRARY)
    texts.append(with_fused_operations(drive_text, drive.emitter.builder.declarations))
    return module_text(texts, emitters, processor, metadata)


def kernel_symbol(number: int) -> str:
    """Return the symbol of the `chunk` of a kernel that is not inlined."""
    return f"tracefuse_kernel{number}"


def is_inlined(kernel: ir.Kernel) -> bool:
    """Return whether a driver contains a kernel: one of a few elements, whose loops have one iteration."""
    work = _constant_work(kernel)
    few = work is not None and work <= MOST_INLINED_WORK
    loops = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.For)]
    return few and not scratch_of(kernel) and all(map(has_one_iteration, loops))


def _constant_work(kernel: ir.Kernel) -> int | None:
    match kernel.work:
        case ir.Constant(int() as work):
            return work
    return None


def _emitter(processor: Processor, metadata: Metadata) -> Emitter:
    """Return an emitter of expressions that belong to no kernel."""
    return Emitter(ir.Kernel("driver", (), (), (), "cpu"), processor, metadata)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A pointer that steps exchange. address: of the stack slot that holds it."""

    address: str


class _DriveEmitter(DriverLoops):
    """Writes the function `drive`."""

    def __init__(self, driver: LoopDriver, processor: Processor, metadata: Metadata) -> None:
        super().__init__(_emitter(processor, metadata), metadata)
        self.driver, self.processor = driver, processor
        # Those of the driver, and those that loops run in place of one of them.
        self.kernels = list(driver.kernels)
        self.entry = self.emitter.entry
        self.pointers: dict[str, str | _Slot] = {}
        self.memory: dict[str, PointedMemory] = {}

    def text(self) -> str:
        """Return the text of the function."""
        builder = self.builder
        most = max((len(kernel.parameters) for kernel in self.kernels), default=1)
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
                self.memory[parameter.name] = PointedMemory(parameter.name, is_exclusive=parameter.exclusive)
            else:
                self.bind(parameter, value)
        self.statements(self.driver.body)
        self._return(self.emitter.index(self.driver.result))
        for label, result in (("failed", FAILED), ("no_choice", NO_CHOICE), ("interrupted", INTERRUPTED)):
            builder.label(f"%{label}")
            self._return(builder.literal(result, "i64"))
        return "\n".join(["define i64 @drive(ptr %arguments) #1 {", "start:", *self.entry, *builder.lines, "}"])

    def _return(self, result: LlvmValue) -> None:
        builder = self.builder
        builder.line(f"ret {builder.emit(f'call i64 @tracefuse_take_lock(ptr %thread, {result})', 'i64')}")

    # -- values -------------------------------------------------------------------------------------------------------

    def bind(self, variable: ir.Variable, value: LlvmValue) -> None:
        self.emitter.variables[variable.name] = value
        if variable.dtype.is_integer:
            self.emitter.plain.add(variable.name)

    def pointer(self, name: str) -> str:
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

    def statements(self, body: tuple[DriverStatement, ...]) -> None:
        for statement in body:
            self._statement(statement)

    def _copy_memory(self, statement: CopyMemory) -> None:
        target, source = self.pointer(statement.target), self.pointer(statement.source)
        match statement.size:
            case ir.Constant(int() as size) if size <= MOST_COPIED:
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
                self.spend(builder.literal(emit_calls.work_of(statement), "i64"))
                emit_calls.emit_call(statement, self.emitter, self.pointer)
            case LocalMemory(pointer, size):
                address = builder.name(pointer)
                self.entry.append(f"  {address} = alloca [{size} x i8], align 64")
                # Not `zeroinitializer` of bytes: LLVM would then keep eight registers for the bytes of a number.
                self.entry.append(f"  store i{8 * size} 0, ptr {address}")
                self.pointers[pointer], self.memory[pointer] = address, PointedMemory(pointer, True, True)
            case CopyMemory():
                self._copy_memory(statement)
            case StoreNumber(pointer, value):
                builder.line(f"store {self.emitter.expression(value)}, ptr {self.pointer(pointer)}")
            case LoadNumber(variable, pointer):
                self.bind(variable, builder.emit(f"load i64, ptr {self.pointer(pointer)}", "i64", variable.name))
            case OffsetPointer(pointer, base, offset, element):
                type_ = "i8" if element is None else memory_type(element)
                text = f"getelementptr {type_}, ptr {self.pointer(base)}, {self.emitter.index(offset)}"
                self.pointers[pointer] = builder.emit(text, "ptr", pointer).text
                self.memory[pointer] = self.memory[base]
            case NamePointer(pointer, value):
                address = builder.name(f"{pointer}_slot")
                self.entry.append(f"  {address} = alloca ptr")
                builder.line(f"store ptr {self.pointer(value)}, ptr {address}")
                self.pointers[pointer], self.memory[pointer] = _Slot(address), PointedMemory("")
            case ExchangePointers(first, second):
                self._exchange(first, second)
            case DefineNumber(variable, value):
                self.bind(variable, self.emitter.index(value))
            case CopyElements():
                self.copy_elements(statement)
            case ChooseStatements():
                self._choose(statement)
            case CountedSteps():
                self.counted(statement)
            case ConditionalSteps():
                self.conditional(statement)

    def _exchange(self, first: str, second: str) -> None:
        first_slot, second_slot = self.pointers[first], self.pointers[second]
        assert isinstance(first_slot, _Slot)
        assert isinstance(second_slot, _Slot)
        before, after = self.pointer(first), self.pointer(second)
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
            self.statements(statements)
            builder.line(f"br label {end}")
            builder.label(other)
        builder.line("br label %no_choice")
        builder.label(end)

    # -- kernels ------------------------------------------------------------------------------------------------------

    def _run(self, run: RunKernel) -> None:
        kernel, builder = self.kernels[run.kernel], self.builder
        inside = Emitter(kernel, self.processor, self.metadata)
        inside.builder = builder
        arguments: list[LlvmValue] = []
        for parameter, argument in zip(kernel.parameters, run.arguments, strict=True):
            if isinstance(parameter, ir.Buffer):
                assert isinstance(argument, str)
                value = LlvmValue(builder, self.pointer(argument), "ptr")
            else:
                assert not isinstance(argument, str)
                value = self._number(argument, parameter.dtype)
                inside.variables[parameter.name] = value
            arguments.append(value)
        extent = inside.index(kernel.grid[0].extent) if kernel.grid else builder.literal(1, "i64")
        work = builder.literal(1 << 40, "i64") if kernel.work is None else inside.index(kernel.work)
        self.spend(work)
        self._by_work(run.kernel, arguments, extent, work)
        if run.error_flag is not None:
            flag = builder.emit(f"load i64, ptr {self.pointer(run.error_flag)}", "i64", "flag")
            fine = builder.name("fine")
            builder.line(f"br {flag.compare('ne', 0)}, label %failed, label {fine}, !prof {self.rare()}")
            builder.label(fine)

    def _by_work(self, number: int, arguments: list[LlvmValue], extent: LlvmValue, work: LlvmValue) -> None:
        """Emit the call on this thread and the one on the worker pool."""
        builder = self.builder
        if is_inlined(self.kernels[number]):
            listed = ", ".join([*map(str, arguments), "i64 0", str(extent)])
            builder.line(f"call void @body{number}({listed})")
            return
        parameters = self.kernels[number].parameters
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

    def keep_elements(self, loop: CountedSteps) -> CountedSteps:
        """Return a loop of which `work_of_step` knows the work, with elements in registers; emit what is before it."""
        while kept := with_kept_elements(loop, self.kernels, self.memory, self.builder.name("kept")[1:]):
            self.statements(kept.before)
            self.kernels += kept.kernels
            loop = kept.loop
        return loop

    def work_of_step(self, body: tuple[DriverStatement, ...]) -> int | None:
        """Return the most work, in elements, of statements that call nothing and have no loops; None for others."""
        works = [self._work(statement) for statement in body]
        return None if None in works else sum(work for work in works if work is not None)

    def _work(self, statement: DriverStatement) -> int | None:
        match statement:
            case RunKernel(number) if is_inlined(kernel := self.kernels[number]):
                return _constant_work(kernel)
            case ChooseStatements(choices):
                works = [self.work_of_step(statements) for _, statements in choices]
                return None if None in works else max((work for work in works if work is not None), default=0)
            case CountedSteps() if statement.is_block or statement.is_conditional_block:
                return self.work_of_step(statement.body)
            case CopyMemory(_, _, ir.Constant(int() as size)):
                return 0 if size <= MOST_COPIED else None
            case LocalMemory() | StoreNumber() | LoadNumber() | OffsetPointer() | DefineNumber():
                return 0
            case NamePointer() | ExchangePointers():
                return 0
            case _:
                return None
