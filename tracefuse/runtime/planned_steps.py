"""Statements of a driver for one step of a loop: what the plans of its sub-fusion do.

A step whose sizes depend on counters may have several plans. The driver chooses among them by their guards, and ends if
none fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from segments import Alias, AllocateBuffer, CopyBuffer, Instruction, Launch, Release
from segments.lazy_dataclasses import replace
from tracefuse.dtypes import int64
from tracefuse.dynamic.layouts import BROADCAST, axis_within
from tracefuse.errors import TracefuseError
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.extents import Extent, input_extent, product
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.library_kinds import Library
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.kernel.loop_driver import (
    ChooseStatements,
    CopyElements,
    CopyMemory,
    DefineNumber,
    DriverStatement,
)
from tracefuse.ops.native_ufuncs import NativeUfuncs
from tracefuse.runtime.dead_memory import dying_pointers
from tracefuse.runtime.driver_parameters import (
    DriverParameters,
    NotCompiled,
    StepTensor,
    VaryingExtent,
)
from tracefuse.runtime.kernel_steps import add_kernels
from tracefuse.runtime.library_steps import add_library_call
from tracefuse.runtime.memory.buffer_facts import OutputBuffer, slice_bounds
from tracefuse.runtime.native_steps import add_draw, add_ufuncs
from tracefuse.runtime.segment_lowering import SegmentExtents
from tracefuse.runtime.step_integers import (
    Number,
    Operand,
    StepIntegers,
    sample_of,
    sizes_of_samples,
    varying_extents,
)

MOST_PLANS = 12
"""The number of plans of a step that a driver chooses among."""
_RELATIONS = {"==": "eq", "!=": "ne", "<=": "le", "<": "lt"}


class StepBuilder(Protocol):
    """The builder of the loop around a step; see `DriverBuilder`."""

    parameters: DriverParameters
    samples: int
    active: list[int]
    is_in_branch: bool

    @property
    def error_flag(self) -> str: ...

    def next_number(self) -> int: ...

    def copy(self, target: StepTensor, source: StepTensor) -> CopyMemory: ...

    def offset_pointer(
        self, base: StepTensor, positions: Sequence[ir.Expression], out: list[DriverStatement],
        strides: Sequence[ir.Expression] = (),
    ) -> str: ...  # fmt: skip

    def inner_loop(
        self, run: Any, inputs: Sequence[Operand], dying: Collection[str], out: list[DriverStatement]
    ) -> list[StepTensor]: ...


def add_planned_step(
    builder: StepBuilder, computation: Any, arguments: Sequence[Operand], outputs: Sequence[StepTensor],
    out: list[DriverStatement],
) -> None:  # fmt: skip
    """Adds the statements of a step. computation: compiles it. arguments: its inputs. Raises NotCompiled."""
    active = builder.active
    waiting = list(active)
    choices: list[tuple[tuple[ir.Expression, ...], tuple[DriverStatement, ...]]] = []
    while waiting and len(choices) < MOST_PLANS:
        sample = waiting.pop(0)
        try:
            plan, slices = computation.step_plan(
                [sample_of(operand, sample) for operand in arguments], [o.at(sample) for o in outputs]
            )
        except TracefuseError:
            continue  # The step raises on the host, if it is reached.
        planned = _PlannedStep(builder, plan, arguments, outputs, slices, sample)
        conditions, holds = planned.conditions()
        statements: list[DriverStatement] = []
        builder.active = [k for k in waiting if holds[k]] + [sample]
        planned.add(statements)
        choices.append((tuple(conditions), tuple(statements)))
        waiting = [k for k in waiting if not holds[k]]
        if not conditions:
            break
    builder.active = active
    if not choices and not builder.is_in_branch:  # the sampled steps may not reach a branch
        raise NotCompiled("no sampled step has a plan")
    if len(choices) == 1 and not choices[0][0]:
        out += choices[0][1]
    else:
        out.append(ChooseStatements(tuple(choices)))


class _PlannedStep:
    """The statements of one plan. places: the operands of its values, by number."""

    def __init__(
        self, builder: StepBuilder, plan: Any, arguments: Sequence[Operand], outputs: Sequence[StepTensor],
        slices: Sequence[Any], sample: int,
    ) -> None:  # fmt: skip
        self.builder, self.parameters, self.plan = builder, builder.parameters, plan
        self.fusion: Fusion = plan.segmentation.fusion
        self.varying = [(id, extent.values[sample]) for id, _, extent in varying_extents(self.fusion, arguments)]
        self.integers = StepIntegers(
            self.parameters, self.fusion, arguments, builder.samples, builder.next_number()
        )  # fmt: skip
        # guards are in the extents of the fusion before concretization
        before = sizes_of_samples(plan.segmentation.original, arguments, builder.samples)
        for sizes, argument_sizes in zip(self.integers.sizes, before, strict=True):
            sizes.update({**argument_sizes, **sizes})
        self.places: dict[int, Operand] = dict(zip(self.fusion.inputs, arguments, strict=True))
        self.places.update(self.integers.computed_scalars(self.places))
        passed = [buffer for buffer in plan.output_buffers if buffer.memory not in self.fusion.inputs]
        self.slices: Sequence[OutputBuffer] = [buffer for buffer in passed if buffer.owner is not None]
        self.places.update(
            (buffer.memory, place)
            for buffer, place in zip([b for b in passed if b.owner is None], outputs, strict=True)
        )
        arrays = {buffer.memory: array for buffer, array in zip(self.slices, slices, strict=True)}
        for buffer in plan.output_buffers:
            array = arrays[buffer.memory] if buffer.memory in arrays else self._place(buffer.memory).array
            self.integers.arrays[buffer.value] = array
        self.slice_arrays = arrays
        self.allocated: set[int] = set()
        # Pointers to memory that has a second name, which may be read after the first is released.
        self.shared: set[str] = set()

    # -- conditions ---------------------------------------------------------------------------------------------------

    def conditions(self) -> tuple[list[ir.Expression], list[bool]]:
        """Returns what must hold at a step that runs the plan, and whether it holds at each sampled step."""
        expressions: list[ir.Expression] = []
        holds = [True] * self.builder.samples
        for left, relation, right in self._relations():
            condition = self.integers.condition(left, _RELATIONS[relation], right)
            if condition is not None:
                expressions.append(condition[0])
                holds = [h and _compare(a, relation, b) for h, (a, b) in zip(holds, condition[1], strict=True)]
        return list(dict.fromkeys(expressions)), holds

    def _relations(self) -> Iterator[tuple[Extent, str, Extent]]:
        for guard in self.plan.guards:
            yield guard.left, guard.relation, guard.right
        for fusion in (self.plan.segmentation.original, self.fusion):
            for required in fusion.requirements:
                yield required.left, required.relation, required.right
        for id, value in self.varying:  # layouts of axes of one element and of empty arrays are others
            extent = input_extent(-id - 1)
            yield (extent, "==", value) if value < 2 else (1, "<", extent)
        for buffer in self.slices:
            yield from self._layout(buffer)

    def _layout(self, buffer: OutputBuffer) -> Iterator[tuple[Extent, str, Extent]]:
        """Yields what the layout of a slice of an argument depends on."""
        array, shape = self.slice_arrays[buffer.memory], self.fusion.shape_of(buffer.value)
        if buffer.layout is None:
            inner: Extent = array.itemsize
            for extent, stride in zip(reversed(shape), reversed(array.strides), strict=True):
                if extent != 1:
                    yield inner, "==", stride
                inner = stride * extent
            return
        letters = buffer.layout.axes
        for axis in reversed(range(len(shape))):
            yield shape[axis], "==" if letters[axis] == BROADCAST else "!=", 1
            within = axis_within(letters, axis)
            if within is not None:
                yield array.strides[within] * shape[within], "==", array.strides[axis]

    # -- statements ---------------------------------------------------------------------------------------------------

    def add(self, out: list[DriverStatement]) -> None:
        """Adds the statements of the plan."""
        for buffer in self.slices:
            self.places[buffer.memory] = self._slice(buffer, out)
        instructions = self.plan.program.instructions
        for position, instruction in enumerate(instructions):
            match instruction:
                case AllocateBuffer(value, spec):
                    self.places[value] = self._allocate(spec)
                    self.allocated.add(value)
                case Alias(value, original):
                    self.places[value] = self.places[original]
                    self.shared.add(self._place(original).pointer)
                case CopyBuffer(source, target):
                    self._copy(source, target, out)
                case Release(value):
                    if value in self.allocated and self._place(value).pointer not in self.shared:
                        self.parameters.release(self._place(value))
                case Launch():
                    self._launch(instruction, instructions[position + 1 :], out)
                case _:
                    raise NotCompiled(f"a step runs `{instruction}`")

    def _slice(self, buffer: OutputBuffer, out: list[DriverStatement]) -> StepTensor:
        """Adds the pointer to the slice of an argument that the plan updates."""
        owner = self._place(buffer.owner)
        if any(extent.axis for extent in owner.varying):
            raise NotCompiled("an inner loop updates a slice of an array whose strides depend on a counter")
        starts = [self.integers.code(start) for start, _, _ in slice_bounds(self.fusion, buffer.value)]
        assert buffer.owner is not None
        shape = self.fusion.shape_of(buffer.owner)
        strides = [self.integers.code(product(shape[axis + 1 :])) for axis in range(len(shape))]
        is_contiguous = owner.array.flags.c_contiguous
        pointer = self.builder.offset_pointer(owner, starts, out, strides if is_contiguous else ())
        return StepTensor(pointer, self.slice_arrays[buffer.memory], owner.dtype)

    def _allocate(self, spec: Any) -> StepTensor:
        shape = [self.integers.most(extent) for extent in spec.extents]
        is_constant = all(isinstance(extent, int) for extent in spec.extents)
        return self.parameters.memory(shape, spec.dtype, is_constant=is_constant)

    def _copy(self, source: int, target: int, out: list[DriverStatement]) -> None:
        source_place, target_place = self._place(source), self._place(target)
        if source_place.pointer == target_place.pointer:
            return
        buffer = next((b for b in self.plan.output_buffers if b.memory == target), None)
        shape = self.fusion.shape_of(source)
        if buffer is None or (buffer.owner is None and not self.integers.varies(*shape)):
            out.append(self.builder.copy(target_place, source_place))
            return
        itemsize = target_place.array.itemsize
        strides = [self.integers.code(product(shape[axis + 1 :]) * itemsize) for axis in range(len(shape))]
        fixed = [self._fixed(stride) for stride in target_place.array.strides]
        out.append(
            CopyElements(
                target_place.pointer,
                source_place.pointer,
                itemsize,
                tuple(map(self.integers.code, shape)),
                tuple(strides if target_place.varying else fixed),
                tuple(strides),
            )
        )

    def _fixed(self, value: int) -> ir.Expression:
        return self.parameters.integer(value, ("number", value))

    def _place(self, number: int | None) -> StepTensor:
        assert number is not None
        place = self.places[number]
        assert isinstance(place, StepTensor)
        return place

    def _launch(self, launch: Launch, later: Sequence[Instruction], out: list[DriverStatement]) -> None:
        segment: Any = launch.label
        if segment.code is not None:
            add_kernels(self, segment, out)
            return
        library = segment.part.library
        if library is not None and isinstance(library.op, Library):
            native = library.op.native(library.attributes)
            if native is not None:
                self._native(native, segment, launch, out)
                return
        if library is None or not isinstance(library.op, ControlFlow):
            self._library(library, segment, launch, out)
            return
        if not hasattr(segment.run, "parts"):
            raise NotCompiled(f"a step runs {library.op.name}")
        inputs = [self._input(number, out) for number in launch.inputs]
        results = self.builder.inner_loop(segment.run, inputs, dying_pointers(self, launch, later), out)
        self.places.update(zip(launch.outputs, results, strict=True))
        self.shared |= {place.pointer for place in results}  # an inner loop may update its operands

    def _input(self, number: int, out: list[DriverStatement]) -> Operand:
        """Returns an input of an inner loop; adds numbers for its extents that depend on counters.

        number: of a value, or the id of an extent of an array that the inner loop does not have.
        """
        if number not in self.places:
            return self._extent(input_extent(-number - 1), out)
        place = self.places[number]
        if not isinstance(place, StepTensor):
            return place
        extents = enumerate(self.fusion.shape_of(number))
        depending = [(axis, extent) for axis, extent in extents if self.integers.varies(extent)]
        if not depending:
            return place
        if number not in self.allocated and not place.varying:
            raise NotCompiled("an inner loop has a slice of an array whose shape depends on a counter")
        varying = list[VaryingExtent]()
        for axis, extent in depending:
            variable = Variable(f"e{self.builder.next_number()}", int64)
            out.append(DefineNumber(variable, self.integers.code(extent)))
            varying.append(VaryingExtent(axis, variable, tuple(self.integers.values(extent))))
        return replace(place, varying=tuple(varying))

    def _extent(self, extent: Extent, out: list[DriverStatement]) -> Number:
        """Returns an extent as a host scalar."""
        if not self.integers.varies(extent):
            return Number((self.integers.values(extent)[0],))
        variable = Variable(f"e{self.builder.next_number()}", int64)
        out.append(DefineNumber(variable, self.integers.code(extent)))
        return Number(tuple(self.integers.values(extent)), None, variable, self.integers.most(extent))

    def _library(self, library: Any, segment: Any, launch: Launch, out: list[DriverStatement]) -> None:
        """Adds a call of a segment that Python runs."""
        is_plain = library is not None and isinstance(library.op, Library) and not library.op.effect
        if not is_plain or segment.exchange is not None or "ordered" in library.attributes:
            raise NotCompiled(f"a step runs {segment.template if library is None else library.op.name}")
        self._add_results(launch)
        inputs = [
            self.places[number] if number in self.places else self.integers.code(input_extent(-number - 1))
            for number in launch.inputs
        ]
        results = [self._place(number) for number in launch.outputs]
        add_library_call(self.parameters, segment.run, inputs, results, out)

    def _native(self, native: Any, segment: Any, launch: Launch, out: list[DriverStatement]) -> None:
        """Adds a call of C functions. The last result of a draw, the token, has no value."""
        self._add_results(launch)
        library, index_map = segment.part.library, segment.part.segment.index_map
        operands = [
            self.places[index_map[operand]] if isinstance(operand, int) else Number((operand.value,))
            for operand in library.operands[library.attributes.get("ordered", 0) :]
        ]
        if isinstance(native, NativeUfuncs):
            results = [self._place(number) for number in launch.outputs]
            add_ufuncs(self.builder, native, operands, results, out)
            return
        extents = SegmentExtents(self.plan.segmentation, segment.part, {})

        def code(extent: Extent) -> ir.Expression:
            return self.integers.code(extents.to_original(extent))

        add_draw(self.builder, native, operands, code, self._place(launch.outputs[0]), out)

    def _add_results(self, launch: Launch) -> None:
        """Adds memory for the results of a library. Its arrays have the same shapes in all steps."""
        for number in (*launch.inputs, *launch.outputs):
            if number >= 0 and self.integers.varies(*self.fusion.shape_of(number)):
                raise NotCompiled("a library gets or computes an array whose shape depends on a counter")
        for number in launch.outputs:
            if number not in self.places:
                shape = self.fusion.shape_of(number)
                self.places[number] = self.parameters.memory(
                    [self.integers.most(extent) for extent in shape], self.fusion.values[number].dtype,
                    is_constant=all(isinstance(extent, int) for extent in shape),
                )  # fmt: skip


def _compare(left: int, relation: str, right: int) -> bool:
    return {"==": left == right, "!=": left != right, "<=": left <= right, "<": left < right}[relation]
