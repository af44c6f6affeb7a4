"""One iteration of a `for` loop, recorded for all of them.

When the iteration begins, every array that the body may write gets a placeholder for its contents, and every variable
that the body rebinds and reads gets one for its value. When it ends, the arrays and variables that have changed are
carried by the loop. Whatever else an iteration changes raises NotInEveryIteration, so that the loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any, ClassVar

from segments.lazy_dataclasses import replace
from tracefuse import pytrees, source
from tracefuse.dtypes import int64
from tracefuse.frontend.control_flow.carried_kinds import CarriedKinds
from tracefuse.frontend.control_flow.carried_slots import CarriedSlots
from tracefuse.frontend.control_flow.carried_types import (
    LeafType,
    as_leaf,
    converted,
    is_value,
    type_of,
)
from tracefuse.frontend.control_flow.counted_iterations import CountedIterations
from tracefuse.frontend.control_flow.iteration_conditions import (
    EXACT,
    FLAG,
    IterationCondition,
    in_place,
    outside_of,
)
from tracefuse.frontend.control_flow.optional_values import is_optional, keep_numbers, number_for_none
from tracefuse.frontend.control_flow.recorded_appends import Appends
from tracefuse.frontend.control_flow.recorded_carries import (
    CarriedArray,
    CarriedVariable,
    LoopBody,
    check_apart,
    is_array,
    is_ordered,
    may_be_written,
    truth_variable,
    value_of_type,
)
from tracefuse.frontend.control_flow.retyped_variables import carried_variable, decided_type, require_type
from tracefuse.frontend.control_flow.rotated_arrays import RotatedArrays
from tracefuse.frontend.control_flow.shared_arrays import SHARED, check_value, keep_apart, shared_names
from tracefuse.frontend.control_flow.sub_recording import operands_of, record_op
from tracefuse.frontend.python_numbers.number_questions import assume
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import SharedByLoop
from tracefuse.frontend.tracer.python_code.frame_locals import UNBOUND
from tracefuse.frontend.tracer.python_code.loop_code import LoopCode
from tracefuse.frontend.tracer.questions_in_loops import begin_again_rewritten
from tracefuse.frontend.tracer.record.cut_fusions import CutFusion
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorded_loops import RecordedLoop
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, floordiv, maximum, substitute, symbol, symbol_of, symbols
from tracefuse.ir.fusion import Literal, Type, Value
from tracefuse.ops.loop_ops import range_loop


class RecordedIteration:
    """The iteration of one loop while it is recorded.

    length: the number of iterations, if no condition ends the loop. start, step: of the integers that the loop counts.
    counter_value: the integer of an iteration. undefined: the variables that hold a value after the loop that they do
    not have in Python: those without a value before a loop that may have no iteration. rebound: the variables that the
    loop carries. are_none: those that an iteration has bound to `None`. before: the variables before a loop that is
    recorded for the number of its iterations.
    """

    body_type: ClassVar[type] = LoopBody
    before: dict[str, Any] | None = None

    def __init__(
        self, recorder: Recorder, frame: FrameType, code: LoopCode, length: Extent, start: Extent, step: Extent,
        condition: IterationCondition | None = None,
    ) -> None:  # fmt: skip
        self.recorder, self.frame, self.code, self.length, self.condition = recorder, frame, code, length, condition
        self.place = (frame.f_code, frame.f_lasti)
        self.key = self.place if condition is None or condition.part_of is None else condition.part_of
        self.undefined: set[str] = set()
        self.rebound: set[str] = set()
        self.are_none: set[str] = set()
        recorder.loops.open.append(self.key)
        recorder.loops.conditional += condition is not None
        self.line = source.user_line()
        self.runs = recorder.always_holds(1, length, "a loop without iterations")
        self.runs = self.runs and (condition is None or condition.initial is None)
        self._count(start, step)
        self.carried_slots = CarriedSlots(self)
        slots = self.carried_slots.slots.keys()
        self.needed = code.needed | slots
        self.read = code.read | slots if self.runs else code.read | self.needed
        before = self.carried_slots.values()
        self.variables = self._variables(before)
        self.objects = {name: before.get(name, UNBOUND) for name in code.assigned | code.updated | slots}
        self.body = LoopBody(recorder, f"the loop at {self.line}", self)
        self.body.__enter__()
        self._add_counter(start, step)
        values = {one.name: one.enter(self.body) for one in self.variables}
        self.kinds = CarriedKinds(self)
        self.kinds.enter()
        self.steps = self._steps(before)
        self._enter_arrays({id(one.initial) for one in self.variables})
        self.carried_slots.bind({**values, **{name: wrap(extent, recorder) for name, extent in self.steps.items()}})

    # -- the counter --------------------------------------------------------------------------------------------------

    def _count(self, start: Extent, step: Extent) -> None:
        """Sets the range of the symbol that counts, and the order."""
        last = start + step * (self.length - 1)
        self.reverse = step == -1
        self.low, self.high = (start, last) if step == 1 else (last, start) if step == -1 else (0, self.length - 1)

    def _add_counter(self, start: Extent, step: Extent) -> None:
        """Adds the host scalar that counts."""
        recorder, builder = self.recorder, self.recorder.builder
        self.number = builder.new_number()
        is_natural = recorder.decide(0, "<=", self.low, "the sign of the counter of a loop")
        name = self._shown(self.code.counter)
        extent = symbol(f"{name or 'k'}{self.number}", self.number, minimum=0 if is_natural else -(2**63))
        self.symbol = symbol_of(extent)
        recorder.loops.symbols[self.symbol] = self.key
        builder.values[self.number] = Value(self.number, Type(int64, ()), "scalar", extent, None, name, self.line)
        self.body.placeholders.append(self.number)
        recorder.hints[self.number] = recorder.known(floordiv(self.low + self.high, 2))
        limits = () if self.condition is None else self.condition.limits
        recorder.counters.open(self.symbol, self.low, self.high, limits)
        self.counter_value = extent if step in (1, -1) else start + step * extent
        self.position = self.high - extent if self.reverse else extent - self.low

    @property
    def is_branch(self) -> bool:
        return self.condition is not None and self.condition.part_of is not None

    def _shown(self, name: str | None) -> str | None:
        """Returns the name of a variable of the user; None for others."""
        return name if name is not None and name.isidentifier() else None

    # -- the beginning of an iteration --------------------------------------------------------------------------------

    def _variables(self, before: dict[str, Any]) -> list[CarriedVariable]:
        """Returns the variables that have placeholders."""
        code, result = self.code, []
        for name in sorted(self.read):
            value = before.get(name, UNBOUND)
            if is_optional(name, before):
                result.append(carried_variable(self, name, None, number_for_none(self.recorder)))
            if self._counts(name, value) or not is_value(value):
                continue
            if name in code.updated and is_array(value):
                continue
            if isinstance(value, Traced) and not is_ordered(value):
                raise NotInEveryIteration(f"{name} has its axes in another order in memory")
            initial = as_leaf(self.recorder, value)
            if isinstance(value, Traced) and initial.number == value.number and is_array(value):
                initial = self.recorder.traced_type(self.recorder, initial.number)
            result.append(carried_variable(self, name, value, initial))
        return result

    def _counts(self, name: str, value: Any) -> bool:
        """Whether a variable is an integer to which each iteration adds a constant."""
        is_known = self.condition is None or self.runs
        return name in self.code.steps and is_known and (type(value) is int or isinstance(value, SymbolicSize))

    def _steps(self, before: dict[str, Any]) -> dict[str, Extent]:
        """Returns the values that such variables have when an iteration begins."""
        values: dict[str, Extent] = {}
        for name, step in self.code.steps.items():
            extent = extent_of(before.get(name)) if self._counts(name, before.get(name)) else None
            if extent is not None:
                values[name] = extent + step * self.position
        return values

    def _enter_arrays(self, apart: set[int]) -> None:
        recorder, body = self.recorder, self.body
        recorder.names[:] = [one for one in recorder.names if one() is not None]
        for reference in recorder.names[:]:
            array = reference()
            if array is None or id(array) in apart or not may_be_written(array, body.first_number):
                continue
            body.arrays.append(CarriedArray(body, array))
            body.owners.add(id(array))

    # -- the end of an iteration --------------------------------------------------------------------------------------

    def close(self, counted: CountedIterations | None = None) -> None:
        """Records the loop, and gives arrays and variables what they hold after it. counted: counts its iterations."""
        recorder = self.recorder
        after = self.carried_slots.values()
        self.are_none = keep_numbers(after, self.variables)
        begin = Appends if counted is None else counted.begin
        appends = begin(self, self.carried_slots.grown_lists(), after)
        self.carried_slots.contents.forget()
        arrays = [one for one in self.body.arrays if one.is_written]
        check_apart(self.variables, arrays)
        self.rotated = RotatedArrays(self, after)
        changed, exported = self._results(after, appends)
        needed = len(arrays) + len(changed) + len(exported) + len(self.body.conditions or ())
        appends.write(after)
        changed += self._conditions(after)
        if not needed and any(node.op.effect for node in self.body.builder.nodes[self.body.first_node :]):
            raise NotInEveryIteration("an iteration draws random numbers, and the loop has no result")
        types, cut = self._cut(after, arrays, changed, exported)
        self._leave()
        loop_results = self._record(cut, arrays, changed, types) if cut is not None and needed else []
        changed = changed if needed else []
        for array, result in zip(arrays, loop_results, strict=False):
            array.write(result.number, self.line)
        values = dict(zip([*(one.name for one in changed), *exported], loop_results[len(arrays) :], strict=True))
        values.pop(FLAG, None)
        are_exact = values.pop(EXACT, None)
        for name in shared_names(self, changed, exported, after) & values.keys():
            values[name].read_only = SharedByLoop(SHARED, self.symbol)
        self.kinds.leave(values)
        appends.fill(values, after)
        recorder.loops.open.pop()
        recorder.loops.conditional -= self.condition is not None
        self.kinds.settle(values)
        self.rotated.leave(values)
        self.carried_slots.bind({**self._restored(after, changed), **values})
        if are_exact is not None and not assume(are_exact):
            raise NotInEveryIteration("a number of Python leaves 64 bits, or a branch raises", self.symbol)

    def _results(
        self, after: dict[str, Any], appends: Appends | CountedIterations
    ) -> tuple[list[CarriedVariable], list[str]]:
        """Returns the variables that the loop carries, and those that the last iteration computes."""
        changed, exported = self._changed(after), self._exported(after)
        for variable in self.variables:
            if variable.is_shared:
                keep_apart(self, variable.name)
        self.rebound = {one.name for one in changed}
        flags, computed = self.kinds.changed(changed, exported, after)
        return changed + flags + appends.carried, exported + computed

    def _cut(
        self, after: dict[str, Any], arrays: Sequence[CarriedArray], changed: Sequence[CarriedVariable],
        exported: Sequence[str],
    ) -> tuple[list[LeafType], CutFusion | None]:  # fmt: skip
        """Cuts the body out, with the types of its outputs; there is none without outputs."""
        results = [converted(as_leaf(self.recorder, after[one.name]), one.type) for one in changed]
        exports = [as_leaf(self.recorder, after[name]) for name in exported]
        types = [type_of(one.array) for one in arrays] + [one.type for one in changed] + [type_of(e) for e in exports]
        self._check_shapes(types)
        outputs = [*(one.array for one in arrays), *results, *exports]
        cut = self.body.cut(outputs) if outputs else None
        if cut is not None:
            self.rotated.check_read(cut.read)
        return types, cut

    def _leave(self) -> None:
        recorder = self.recorder
        for one in self.body.arrays:
            one.leave()
        self.body.integers.close()
        recorder.counters.close()
        self.body.__exit__()
        end = recorder.builder.next_number
        recorder.loops.ended.append(RecordedLoop(self.key, self.symbol, self.body.first_number, end))

    def _changed(self, after: dict[str, Any]) -> list[CarriedVariable]:
        """Returns the variables that the loop carries. Raises NotInEveryIteration for a change that it cannot carry."""
        carried = {one.name for one in self.variables}
        new = list[CarriedVariable]()
        for name in sorted(self.read - carried):
            before, now = self.objects[name], after.get(name, UNBOUND)
            if name in self.steps:
                if extent_of(now) != self.steps[name] + self.code.steps[name]:
                    raise NotInEveryIteration(f"{name} is no integer to which each iteration adds the same")
            elif before is UNBOUND:
                if name in self.needed and not self.runs and now is not UNBOUND:
                    new.append(self._undefined_before(name, now))
            elif now is not before:
                begin_again_rewritten(self.recorder, self.frame)  # for variables that may be None, and strings
                raise NotInEveryIteration(f"{name} is bound to another object")
        rotated = self.rotated.changed
        changed = [one for one in self.variables if after.get(one.name) is not one.inside or one in rotated]
        for one in changed:
            if one not in rotated:
                check_value(self, one.name, after.get(one.name, UNBOUND))
            require_type(self, one, type_of(as_leaf(self.recorder, after[one.name])))
        return changed + new

    def _undefined_before(self, name: str, value: Any) -> CarriedVariable:
        """Returns a variable that has a value only after the iteration, of a branch."""
        recorder = self.recorder
        if not self.is_branch and name.isidentifier():
            raise NotInEveryIteration(f"{name} is bound in an iteration, and the loop may have none")
        check_value(self, name, value)
        own = type_of(as_leaf(recorder, value))
        leaf = decided_type(self, name, own)
        self._check_shapes([leaf])
        with outside_of(self.body):
            zero = converted(as_leaf(recorder, recorder.movement("full", [0], shape=leaf.shape)), leaf)
        one = CarriedVariable(name, UNBOUND, zero, leaf, own)
        one.enter(self.body)
        self.undefined.add(name)
        return one

    def _conditions(self, after: dict[str, Any]) -> list[CarriedVariable]:
        """Returns as carried values whether numbers have been exact so far, and last the condition of the loop."""
        result = list[CarriedVariable]()
        if self.body.conditions:
            one = truth_variable(self.body, EXACT, True)
            after[EXACT] = one.inside
            for number in list(self.body.conditions):
                holds = self.recorder.traced_type(self.recorder, number)
                after[EXACT] = traced_ops.apply("logical_and", after[EXACT], holds)
            result.append(one)
        if self.condition is not None:
            initial = self.condition.initial
            result.append(truth_variable(self.body, FLAG, True if initial is None else initial))
            after[FLAG] = self.condition.following(after)
            if self.body.conditions and not self.is_branch:  # what follows a failed assumption may never end
                after[FLAG] = traced_ops.apply("logical_and", after[EXACT], after[FLAG])
        return result

    def _exported(self, after: dict[str, Any]) -> list[str]:
        """Returns the variables that are read after the loop alone, whose values the last iteration computes."""
        result = []
        counted = {*self.steps} if self.condition is None else set[str]()
        for name in sorted(self.needed - {one.name for one in self.variables} - counted - self.undefined):
            value = after.get(name, UNBOUND)
            if isinstance(value, tuple) and any(map(self._depends_on_counter, pytrees.flatten(value)[0])):
                begin_again_rewritten(self.recorder, self.frame)  # for tuples
                raise NotInEveryIteration(f"{name} holds a size that depends on the counter")
            is_counted = self._depends_on_counter(value)
            if self.condition is not None and is_counted and self.runs:
                result.append(name)
                continue
            is_inside = isinstance(value, Traced) and value.state()[0] >= self.body.first_number
            if not is_inside or value is self.objects.get(name):
                continue
            check_value(self, name, value)
            result.append(name)
        return result

    def _depends_on_counter(self, value: Any) -> bool:
        return isinstance(value, SymbolicSize) and self.symbol in symbols(value.extent)

    def _check_shapes(self, types: Sequence[LeafType]) -> None:
        for leaf in types:
            if any(self.symbol in symbols(extent) for extent in leaf.shape):
                raise NotInEveryIteration("the shape of a result depends on the counter")

    def _restored(self, after: dict[str, Any], changed: Sequence[CarriedVariable]) -> dict[str, Any]:
        """Returns the values of variables that no result of the loop holds."""
        recorder, result = self.recorder, {}
        last = {self.symbol: self.low if self.reverse else self.high}
        for name in self.objects:
            value = after.get(name, UNBOUND)
            if self.runs and self._depends_on_counter(value) and self.condition is None:
                result[name] = wrap(substitute(value.extent, last), recorder)
        result |= {one.name: one.before for one in self.variables if one not in changed}
        for name in self.steps if self.condition is None else ():
            first = extent_of(self.objects[name])
            assert first is not None
            result[name] = wrap(first + self.code.steps[name] * maximum(0, self.length), recorder)
        return result

    # -- the op -------------------------------------------------------------------------------------------------------

    def _record(
        self, cut: CutFusion, arrays: Sequence[CarriedArray], changed: Sequence[CarriedVariable],
        types: Sequence[LeafType],
    ) -> list[Traced]:  # fmt: skip
        recorder = self.recorder
        fixed = {one.placeholder: one.number for one in self.body.arrays if one not in arrays}
        fixed |= {one.placeholder: one.initial.number for one in self.variables if one not in changed}
        fixed |= self.kinds.unchanged(changed)
        placeholders = [one.placeholder for one in arrays] + [one.placeholder for one in changed]
        initial = [one.number for one in arrays] + [one.initial.number for one in changed]
        body = replace(cut, read=tuple(fixed.get(number, number) for number in cut.read))
        before: list[Any] = [Literal(0)]
        operands, parts = operands_of(recorder, before, {"body": body}, placeholders, initial, self.number)
        first = len(operands) - len(placeholders)
        attributes = {
            "body": in_place(parts["body"], first, len(placeholders)), "start": self.low, "stop": self.high + 1,
            "reverse": self.reverse, "carried": len(placeholders), "shapes": tuple(leaf.shape for leaf in types),
        }  # fmt: skip
        if self.condition is not None:
            attributes["condition"] = len(placeholders) - 1
        names = [*(one.name for one in arrays), *(self._shown(one.name) for one in changed)]
        names += [None] * (len(types) - len(names))
        results = record_op(recorder, range_loop, operands, attributes, types, names)
        return [value_of_type(recorder, one.number, leaf) for one, leaf in zip(results, types, strict=True)]
