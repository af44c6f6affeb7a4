"""One iteration of a `for` loop, recorded for all of them.

When the iteration begins, every array that the body may write gets a placeholder for its contents, and every variable
that the body rebinds and reads gets one for its value. When it ends, the arrays and variables that have changed are
carried by the loop. Whatever else an iteration changes raises NotInEveryIteration, so that the loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, ClassVar

from tracefuse import source
from tracefuse.dtypes import int64
from tracefuse.frontend.tracer import views
from tracefuse.frontend.tracer.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.carried_types import LeafType, as_leaf, converted, is_value, type_of
from tracefuse.frontend.tracer.cut_fusions import CutFusion
from tracefuse.frontend.tracer.frame_locals import UNBOUND, locals_of, set_locals
from tracefuse.frontend.tracer.loop_code import LoopCode
from tracefuse.frontend.tracer.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.reachable_contents import ReachableContents
from tracefuse.frontend.tracer.recorded_loops import RecordedLoop
from tracefuse.frontend.tracer.recorder import Recorder
from tracefuse.frontend.tracer.sub_recording import SubRecording, operands_of, record_op
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize, extent_of, wrap
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.ir.extents import Extent, floordiv, maximum, substitute, symbol, symbol_of, symbols
from tracefuse.ir.fusion import Literal, SubFusion, Type, Value
from tracefuse.ops.loop_ops import range_loop


class _LoopBody(SubRecording):
    """The recording of the body of a `for` loop. Arrays that have placeholders are written in place."""

    def __init__(self, recorder: Recorder, what: str, iteration: RecordedIteration) -> None:
        super().__init__(recorder, what, may_draw=False)
        self.iteration = iteration
        self.arrays: list[_CarriedArray] = []
        self.owners: set[int] = set()

    def new_placeholder(self, like: Traced, name: str | None) -> int:
        """Returns the number of a placeholder, in every iteration, for a value of the type of `like`."""
        number = self.builder.new_number()
        value = Value(number, Type(like.value.dtype, like.extents), "tensor", None, None, name, source.user_line())
        self.builder.values[number] = value
        self.placeholders.append(number)
        return number

    def check_inside(self, owner: Traced) -> None:
        if id(owner) not in self.owners:
            super().check_inside(owner)


class _CarriedArray:
    """An array that exists before the loop: its contents before, and those of the current iteration."""

    def __init__(self, body: _LoopBody, array: Traced) -> None:
        self.array, self.memory = array, array.memory
        self.number, self.version = array.state()
        self.name = body.builder.values[self.number].name or source.local_name(array)
        self.placeholder = body.new_placeholder(array, self.name)
        if self.memory is not None:
            self.memory.version += 1  # views read again, from the placeholder
            self.version_inside = self.memory.version
        self._set(self.placeholder)

    def _set(self, number: int) -> None:
        self.array.restore((number, 0 if self.memory is None else self.memory.version))

    @property
    def is_written(self) -> bool:
        """Whether the iteration wrote the array."""
        return self.array.number != self.placeholder

    def leave(self) -> None:
        """Restores the contents before the loop."""
        if self.memory is not None and self.memory.version == self.version_inside:
            self.memory.version -= 1  # what views have read is as it was
        elif self.memory is None and self.array.memory is not None:
            self.array.memory.version += 1
            self.array.restore((self.number, self.array.memory.version))
            return
        elif self.memory is not None:
            self.memory.version += 1
        self._set(self.number)

    def write(self, number: int, line: str | None) -> None:
        """Sets the contents after the loop."""
        memory = self.array.own_memory()
        memory.version += 1
        memory.written_at = line
        self.array.restore((number, memory.version))


class _CarriedVariable:
    """A variable that the body rebinds and reads: its value before the loop, and its value in an iteration."""

    def __init__(self, name: str, before: Any, initial: Traced, leaf: LeafType) -> None:
        self.name, self.before, self.initial, self.type = name, before, initial, leaf
        self.inside: Any = None

    def enter(self, body: _LoopBody) -> Any:
        """Returns the placeholder for the value in an iteration."""
        recorder = body.recorder
        number = body.new_placeholder(self.initial, self.name)
        self.inside = value_of_type(recorder, number, self.type)
        if self.type.shape:
            self.inside.read_only = "an array that each iteration rebinds"
        return self.inside


def value_of_type(recorder: Recorder, number: int, leaf: LeafType) -> Traced:
    """Returns the name of a value: a number of Python, or an array."""
    kind = recorder.traced_type if leaf.weak is None else recorder.number_type
    return kind(recorder, number, leaf.weak)


class RecordedIteration:
    """The iteration of one loop while it is recorded.

    length: the number of iterations. start, step: of the integers that the loop counts. counter_value: the integer of
    an iteration.
    """

    body_type: ClassVar[type] = _LoopBody

    def __init__(
        self, recorder: Recorder, frame: FrameType, code: LoopCode, length: Extent, start: Extent, step: int
    ) -> None:  # fmt: skip
        self.recorder, self.frame, self.code, self.length = recorder, frame, code, length
        self.key = (frame.f_code, frame.f_lasti)
        recorder.loops.open.append(self.key)
        self.line = source.user_line()
        self.runs = recorder.always_holds(1, length, "a loop without iterations")
        self.read = code.read if self.runs else code.read | code.needed
        self._count(start, step)
        before = locals_of(frame)
        self.contents = ReachableContents(before.values())
        self.variables = self._variables(before)
        self.objects = {name: before.get(name, UNBOUND) for name in code.assigned | code.updated}
        self.body = _LoopBody(recorder, f"the loop at {self.line}", self)
        self.body.__enter__()
        self._add_counter(start, step)
        values = {one.name: one.enter(self.body) for one in self.variables}
        self.steps = self._steps(before)
        self._enter_arrays({id(one.initial) for one in self.variables})
        set_locals(frame, {**values, **{name: wrap(extent, recorder) for name, extent in self.steps.items()}})

    # -- the counter --------------------------------------------------------------------------------------------------

    def _count(self, start: Extent, step: int) -> None:
        """Sets the range of the symbol that counts, and the order."""
        last = start + step * (self.length - 1)
        self.reverse = step == -1
        self.low, self.high = (start, last) if step == 1 else (last, start) if step == -1 else (0, self.length - 1)

    def _add_counter(self, start: Extent, step: int) -> None:
        """Adds the host scalar that counts."""
        recorder, builder = self.recorder, self.recorder.builder
        self.number = builder.new_number()
        is_natural = recorder.decide(0, "<=", self.low, "the sign of the counter of a loop")
        extent = symbol(f"{self.code.counter or 'k'}{self.number}", self.number, minimum=0 if is_natural else -(2**63))
        self.symbol = symbol_of(extent)
        recorder.loops.symbols[self.symbol] = self.key
        builder.values[self.number] = Value(
            self.number, Type(int64, ()), "scalar", extent, None, self.code.counter, self.line
        )
        self.body.placeholders.append(self.number)
        recorder.hints[self.number] = recorder.known(floordiv(self.low + self.high, 2))
        recorder.counters.open(self.symbol, self.low, self.high)
        self.counter_value = extent if step in (1, -1) else start + step * extent
        self.position = self.high - extent if self.reverse else extent - self.low

    # -- the beginning of an iteration --------------------------------------------------------------------------------

    def _variables(self, before: dict[str, Any]) -> list[_CarriedVariable]:
        """Returns the variables that have placeholders."""
        code, result = self.code, []
        for name in sorted(self.read):
            value = before.get(name, UNBOUND)
            if self._counts(name, value) or not is_value(value):
                continue
            if name in code.updated and _is_array(value):
                continue
            is_ordered = not isinstance(value, Traced) or value.layout is None or len(value.extents) < 2
            if not is_ordered and not views.is_contiguous(value, "the layout of an array that a loop rebinds"):
                raise NotInEveryIteration(f"{name} has its axes in another order in memory")
            initial = as_leaf(self.recorder, value)
            if initial.number == getattr(value, "number", None) and _is_array(value):
                initial = self.recorder.traced_type(self.recorder, initial.number)
            leaf = self.recorder.loops.decisions.types.get((self.key, name), type_of(initial))
            result.append(_CarriedVariable(name, value, converted(initial, leaf), leaf))
        return result

    def _counts(self, name: str, value: Any) -> bool:
        """Whether a variable is an integer to which each iteration adds a constant."""
        return name in self.code.steps and (type(value) is int or isinstance(value, SymbolicSize))

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
            if array is None or id(array) in apart or not _may_be_written(array, body.first_number):
                continue
            body.arrays.append(_CarriedArray(body, array))
            body.owners.add(id(array))

    # -- the end of an iteration --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Records the loop, and gives arrays and variables what they hold after it."""
        recorder = self.recorder
        after = locals_of(self.frame)
        self.contents.check()
        arrays = [one for one in self.body.arrays if one.is_written]
        changed, exported = self._changed(after), self._exported(after)
        results = [converted(as_leaf(recorder, after[one.name]), one.type) for one in changed]
        exports = [as_leaf(recorder, after[name]) for name in exported]
        types = [type_of(one.array) for one in arrays] + [one.type for one in changed] + [type_of(e) for e in exports]
        self._check_shapes(types)
        outputs = [*(one.array for one in arrays), *results, *exports]
        if any(node.op.effect for node in self.body.builder.nodes[self.body.first_node :]):
            raise NotInEveryIteration("an iteration has an effect")
        cut = self.body.cut(outputs) if outputs else None
        for one in self.body.arrays:
            one.leave()
        self._leave()
        loop_results = [] if cut is None else self._record(cut, arrays, changed, types)
        for array, result in zip(arrays, loop_results, strict=False):
            array.write(result.number, self.line)
        values = dict(zip([*(one.name for one in changed), *exported], loop_results[len(arrays) :], strict=True))
        set_locals(self.frame, {**self._restored(after, changed), **values})
        recorder.loops.open.pop()

    def _leave(self) -> None:
        recorder = self.recorder
        recorder.counters.close()
        self.body.__exit__()
        end = recorder.builder.next_number
        recorder.loops.ended.append(RecordedLoop(self.key, self.symbol, self.body.first_number, end))

    def _changed(self, after: dict[str, Any]) -> list[_CarriedVariable]:
        """Returns the variables that the loop carries. Raises NotInEveryIteration for a change that it cannot carry."""
        carried = {one.name for one in self.variables}
        for name in self.read - carried:
            before, now = self.objects[name], after.get(name, UNBOUND)
            if name in self.steps:
                if extent_of(now) != self.steps[name] + self.code.steps[name]:
                    raise NotInEveryIteration(f"{name} is no integer to which each iteration adds the same")
            elif before is UNBOUND:
                if name in self.code.needed and not self.runs:
                    raise NotInEveryIteration(f"{name} is bound in an iteration, and the loop may have none")
            elif now is not before:
                raise NotInEveryIteration(f"{name} is bound to another object")
        changed = [one for one in self.variables if after.get(one.name) is not one.inside]
        for one in changed:
            self._check_value(one.name, after.get(one.name, UNBOUND))
            self._join(one, type_of(as_leaf(self.recorder, after[one.name])))
        arrays = [id(after[one.name]) for one in changed if _is_array(after[one.name])]
        if len({*arrays}) < len(arrays):
            raise NotInEveryIteration("two variables are bound to one array")
        return changed

    def _check_value(self, name: str, value: Any) -> None:
        """Raises NotInEveryIteration unless a loop can carry a value."""
        if not is_value(value):
            raise NotInEveryIteration(f"{name} is no array and no number")
        if not isinstance(value, Traced) or value.is_python:
            return
        if _is_array(value):
            owned = value.parent is None and value.state()[0] >= self.body.first_number
            is_given = value.state()[0] in self.body.placeholders or value.layout is not None
            if not owned or is_given or (value.memory is not None and value.memory.argument is not None):
                raise NotInEveryIteration(f"{name} shares the memory of another array")
            if not self.runs:
                raise NotInEveryIteration(f"{name} is bound to an array, and the loop may have no iteration")

    def _join(self, one: _CarriedVariable, after: LeafType) -> None:
        """Begins the trace again if a number has another type after an iteration than before it."""
        if after == one.type:
            return
        if after.shape != one.type.shape:
            raise NotInEveryIteration(f"{one.name} gets another shape")
        outside: Any = self.body.outside
        while isinstance(outside, _LoopBody):  # the placeholder of a variable of a loop around this one
            around = [other for other in outside.iteration.variables if other.inside is one.before]
            if around:
                outside.iteration._join(around[0], after)
                return
            outside = outside.outside
        before = one.before
        is_zero = type(before) in (int, float) and before == 0
        is_wide = type(before) in (int, float) and after.dtype.name in ("float64", "complex128")
        is_wide |= type(before) is int and abs(before) < 2**31 and after.dtype is int64
        known = self.recorder.loops.decisions.types
        if (self.key, one.name) in known or one.type.weak is None or not (is_zero or is_wide):
            raise NotInEveryIteration(f"{one.name} gets another type")
        known[self.key, one.name] = after
        raise AnotherAttempt

    def _exported(self, after: dict[str, Any]) -> list[str]:
        """Returns the variables that are read after the loop alone, whose values the last iteration computes."""
        result = []
        for name in sorted(self.code.needed - {one.name for one in self.variables} - {*self.steps}):
            value = after.get(name, UNBOUND)
            is_inside = isinstance(value, Traced) and value.state()[0] >= self.body.first_number
            if not is_inside or value is self.objects.get(name):
                continue
            self._check_value(name, value)
            result.append(name)
        return result

    def _check_shapes(self, types: Sequence[LeafType]) -> None:
        for leaf in types:
            if any(self.symbol in symbols(extent) for extent in leaf.shape):
                raise NotInEveryIteration("the shape of a result depends on the counter")

    def _restored(self, after: dict[str, Any], changed: Sequence[_CarriedVariable]) -> dict[str, Any]:
        """Returns the values of variables that no result of the loop holds."""
        recorder, result = self.recorder, {}
        last = {self.symbol: self.low if self.reverse else self.high}
        for name in self.code.assigned | self.code.updated:
            value = after.get(name, UNBOUND)
            if self.runs and isinstance(value, SymbolicSize) and self.symbol in symbols(value.extent):
                result[name] = wrap(substitute(value.extent, last), recorder)
        result |= {one.name: one.before for one in self.variables if one not in changed}
        for name in self.steps:
            first = extent_of(self.objects[name])
            assert first is not None
            result[name] = wrap(first + self.code.steps[name] * maximum(0, self.length), recorder)
        return result

    # -- the op -------------------------------------------------------------------------------------------------------

    def _record(
        self, cut: CutFusion, arrays: Sequence[_CarriedArray], changed: Sequence[_CarriedVariable],
        types: Sequence[LeafType],
    ) -> list[Traced]:  # fmt: skip
        recorder = self.recorder
        fixed = {one.placeholder: one.number for one in self.body.arrays if one not in arrays}
        fixed |= {one.inside.state()[0]: one.initial.number for one in self.variables if one not in changed}
        placeholders = [one.placeholder for one in arrays] + [one.inside.state()[0] for one in changed]
        initial = [one.number for one in arrays] + [one.initial.number for one in changed]
        body = replace(cut, read=tuple(fixed.get(number, number) for number in cut.read))
        before: list[Any] = [Literal(0)]
        operands, parts = operands_of(recorder, before, {"body": body}, placeholders, initial, self.number)
        first = len(operands) - len(placeholders)
        attributes = {
            "body": _in_place(parts["body"], first, len(placeholders)), "start": self.low, "stop": self.high + 1,
            "reverse": self.reverse, "carried": len(placeholders), "shapes": tuple(leaf.shape for leaf in types),
        }  # fmt: skip
        names = [*(one.name for one in arrays), *(one.name for one in changed)]
        names += [None] * (len(types) - len(names))
        results = record_op(recorder, range_loop, operands, attributes, types, names)
        return [value_of_type(recorder, one.number, leaf) for one, leaf in zip(results, types, strict=True)]


def _in_place(part: SubFusion, first: int, count: int) -> SubFusion:
    """Returns the body with an alias for each carried value that it reads: the place of the value's memory.

    first: the position of the first of `count` carried values among the operands.
    """
    aliases = {}
    for place, output in enumerate(part.fusion.outputs[:count]):
        given = [n for n, position in zip(part.fusion.inputs, part.inputs, strict=True) if position == first + place]
        if given:
            aliases[output] = given[0]
    return SubFusion(replace(part.fusion, aliases=aliases), part.inputs)


def _is_array(value: Any) -> bool:
    """Whether a value can be changed in place."""
    if isinstance(value, Traced):
        return not value.is_python and value.weak is None and not value.is_immutable
    return hasattr(value, "__setitem__")


def _may_be_written(array: Traced, first_number: int) -> bool:
    """Whether the body of a loop may write an array that existed before it."""
    if array.is_unused or array.parent is not None or array.read_only is not None or array.on_host:
        return False
    recorder = array.recorder
    if recorder.capture_of(array) is not None or array.state()[0] in recorder.inside_bodies:
        return False
    return _is_array(array) and array.state()[0] < first_number
