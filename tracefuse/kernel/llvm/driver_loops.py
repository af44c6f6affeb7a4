"""The loops of a loop driver in LLVM: which blocks they have, and when their steps let Python handle signals.

A driver counts the work of its steps down from a budget. A loop whose steps all do the same work runs in strips, of as
many steps as the budget pays for. The inner loop then has no calls and mostly one exit, so that LLVM's passes over
loops apply to it. Every other loop tests the budget in each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from segments.lazy_dataclasses import dataclass
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.hoisted_conditions import without_conditions
from tracefuse.kernel.llvm.loop_metadata import Metadata
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import LlvmValue
from tracefuse.kernel.loop_driver import ConditionalSteps, CopyElements, CountedSteps, DriverStatement

_SMALLEST = "declare i64 @llvm.smin.i64(i64, i64)"
_LARGEST = "declare i64 @llvm.smax.i64(i64, i64)"


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a loop. following: the index of the next step."""

    head: str
    inside: str
    back: str
    end: str
    following: str
    before: str


class DriverLoops(ABC):
    """Emits the loops of a driver; what their steps do is up to the subclass."""

    def __init__(self, emitter: Emitter, metadata: Metadata) -> None:
        self.emitter, self.metadata = emitter, metadata
        self.builder = emitter.builder
        # Whether the strip around the current statement has accounted for their work.
        self.is_paid = False

    @abstractmethod
    def statements(self, body: tuple[DriverStatement, ...]) -> None:
        """Emit statements."""

    @abstractmethod
    def bind(self, variable: ir.Variable, value: LlvmValue) -> None:
        """Make `value` what `variable` means from here on."""

    @abstractmethod
    def pointer(self, name: str) -> str:
        """Return the value of a pointer."""

    @abstractmethod
    def work_of_step(self, body: tuple[DriverStatement, ...]) -> int | None:
        """Return the most work, in elements, of statements that call nothing and have no loops; None for others."""

    @abstractmethod
    def keep_elements(self, loop: CountedSteps) -> CountedSteps:
        """Return a loop of which `work_of_step` knows the work, with elements in registers; emit what is before it."""

    # -- loops --------------------------------------------------------------------------------------------------------

    def counted(self, loop: CountedSteps) -> None:
        """Emit a loop over a range."""
        if loop.is_block:
            self.bind(loop.counter, self.emitter.index(loop.start))
            self.statements(loop.body)
            return
        if loop.is_conditional_block:
            self._block_if(loop)
            return
        conditions, loop = without_conditions(loop)
        self.statements(conditions)
        work = None if self.is_paid or loop.flag is not None else self.work_of_step(loop.body)
        if work is not None:
            loop = self.keep_elements(loop)
        start, stop = self.emitter.index(loop.start), self.emitter.index(loop.stop)
        index = self._steps(loop, start, stop) if work is None else self._strips(loop, start, stop, work + 1)
        if loop.count is not None:
            self.bind(loop.count, index.binary("sub", start, "nsw "))

    def conditional(self, loop: ConditionalSteps) -> None:
        """Emit a loop that a bool ends."""
        index, labels = self._begin(loop.count.name, self.builder.literal(0, "i64"))
        self.bind(loop.count, index)
        self.statements(loop.condition)
        assert loop.flag is not None
        self._test(loop.flag, labels.inside, labels.end)
        self.builder.label(labels.inside)
        self.statements(loop.body)
        self._end(index, labels)

    def copy_elements(self, copy: CopyElements) -> None:
        """Emit loops over all axes."""
        builder, loops = self.builder, list[tuple[LlvmValue, Labels]]()
        pointers = [self.pointer(copy.target), self.pointer(copy.source)]
        for axis, extent in enumerate(copy.shape):
            stop = self.emitter.index(extent)
            strides = [
                self.emitter.index(strides_of_axis[axis])
                for strides_of_axis in (copy.target_strides, copy.source_strides)
            ]
            index, labels = self._begin("axis", builder.literal(0, "i64"))
            self._enter(index, stop, labels)
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

    def spend(self, work: LlvmValue) -> None:
        """Account for work, unless the strip around it does."""
        if not self.is_paid:
            self._pay(self.builder.emit("load i64, ptr %budget", "i64", "left") - work)

    def rare(self) -> str:
        """Return the mark of a branch that is hardly ever taken."""
        return self.metadata.add('!{{!"branch_weights", i32 1, i32 100000}}')

    # -- their parts --------------------------------------------------------------------------------------------------

    def _block_if(self, loop: CountedSteps) -> None:
        """Emit the one step of a loop that a bool may leave out."""
        inside, end = (self.builder.name(f"{loop.counter.name}_{part}") for part in ("body", "end"))
        assert loop.flag is not None
        self._test(loop.flag, inside, end)
        self.builder.label(inside)
        self.bind(loop.counter, self.emitter.index(loop.start))
        self.statements(loop.body)
        self.builder.line(f"br label {end}")
        self.builder.label(end)

    def _steps(self, loop: CountedSteps, start: LlvmValue, stop: LlvmValue) -> LlvmValue:
        """Emit a loop that tests the budget in each step; return the index of its end."""
        index, labels = self._begin(loop.counter.name, start)
        if loop.flag is not None:
            tests = self.builder.name("tests")
            self.builder.line(f"br {index.compare('slt', stop)}, label {tests}, label {labels.end}")
            self.builder.label(tests)
            self._test(loop.flag, labels.inside, labels.end)
            self.builder.label(labels.inside)
        else:
            self._enter(index, stop, labels)
        self._bind_counter(loop, index, start, stop)
        self.statements(loop.body)
        if self.is_paid:
            self._next(index, labels)
        else:
            self._end(index, labels)
        return index

    def _strips(self, loop: CountedSteps, start: LlvmValue, stop: LlvmValue, work: int) -> LlvmValue:
        """Emit a loop over strips of steps, which do `work` each; return the index of its end."""
        builder, name = self.builder, loop.counter.name
        first, strips = self._begin(f"{name}_strip", start)
        self._enter(first, stop, strips)
        left = builder.emit("load i64, ptr %budget", "i64", "left")
        until = self._end_of_strip(first, stop, left, work)
        index, labels = self._begin(name, first)
        self._enter(index, until, labels)
        self._bind_counter(loop, index, start, stop)
        self.is_paid = True
        self.statements(loop.body)
        self.is_paid = False
        self._next(index, labels)
        self._pay(left - until.binary("sub", first, "nsw ").binary("mul", work, "nsw "))
        self._poll(strips)
        self._back(strips, until.text, 0)
        return first

    def _end_of_strip(self, first: LlvmValue, stop: LlvmValue, left: LlvmValue, work: int) -> LlvmValue:
        """Return the end of a strip from step `first`: after the step that spends the budget, or `stop`."""
        builder = self.builder
        builder.declarations |= {"llvm.smin.i64": _SMALLEST, "llvm.smax.i64": _LARGEST}
        paid = builder.emit(f"call i64 @llvm.smax.i64({left}, i64 0)", "i64")
        last = first.binary("add", paid.binary("sdiv", work).binary("add", 1, "nsw "), "nsw ")
        return builder.emit(f"call i64 @llvm.smin.i64({last}, {stop})", "i64", "until")

    def _bind_counter(self, loop: CountedSteps, index: LlvmValue, start: LlvmValue, stop: LlvmValue) -> None:
        counter = index
        if loop.reverse:
            counter = start.binary("add", stop.binary("sub", index, "nsw ").binary("sub", 1, "nsw "), "nsw ")
        self.bind(loop.counter, counter)

    def _begin(self, name: str, start: LlvmValue) -> tuple[LlvmValue, Labels]:
        """Begin a loop; return the index of the current step."""
        builder = self.builder
        labels = Labels(*(builder.name(f"{name}_{part}") for part in ("head", "body", "back", "end", "next", "before")))
        builder.line(f"br label {labels.before}")
        builder.label(labels.before)
        builder.line(f"br label {labels.head}")
        builder.label(labels.head)
        text = f"phi i64 [ {start.text}, {labels.before} ], [ {labels.following}, {labels.back} ]"
        return builder.emit(text, "i64", name), labels

    def _enter(self, index: LlvmValue, stop: LlvmValue, labels: Labels) -> None:
        """Branch to the body of a loop before its end is reached, which begins here."""
        self.builder.line(f"br {index.compare('slt', stop)}, label {labels.inside}, label {labels.end}")
        self.builder.label(labels.inside)

    def _test(self, pointer: str, inside: str, end: str) -> None:
        """Branch to `inside` if a bool is true, else to `end`."""
        flag = self.builder.emit(f"load i8, ptr {self.pointer(pointer)}", "i8", pointer)
        self.builder.line(f"br {flag.compare('ne', 0)}, label {inside}, label {end}")

    def _end(self, index: LlvmValue, labels: Labels) -> None:
        """End a step: after enough work, let Python handle signals."""
        self._pay(self.builder.emit("load i64, ptr %budget", "i64", "left") - 1)
        self._poll(labels)
        self._next(index, labels)

    def _pay(self, left: LlvmValue) -> None:
        self.builder.line(f"store {left}, ptr %budget")

    def _poll(self, labels: Labels) -> None:
        """Let Python handle signals if the budget is spent, and go on."""
        builder = self.builder
        left = builder.emit("load i64, ptr %budget", "i64", "left")
        polls, again = builder.name("poll"), builder.name("again")
        builder.line(f"br {left.compare('slt', 0)}, label {polls}, label {labels.back}, !prof {self.rare()}")
        builder.label(polls)
        budget = builder.emit("call i64 @tracefuse_poll(ptr %thread)", "i64", "budget")
        builder.line(f"br {budget.compare('slt', 0)}, label %interrupted, label {again}")
        builder.label(again)
        builder.line(f"store {budget}, ptr %budget")

    def _next(self, index: LlvmValue, labels: Labels) -> None:
        """End a loop whose block ends here."""
        self._back(labels, index.text, 1)

    def _back(self, labels: Labels, index: str, step: int) -> None:
        """Go back to the head of a loop, `step` after an index."""
        builder = self.builder
        builder.line(f"br label {labels.back}")
        builder.label(labels.back)
        builder.line(f"{labels.following} = add nsw i64 {index}, {step}")
        builder.line(f"br label {labels.head}")
        builder.label(labels.end)
