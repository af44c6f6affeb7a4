"""A plan written as one Python function: what every call pays for.

The function takes the arguments, reads their extents once, tests everything that the plan depends on (types, layouts,
facts about sizes) and returns None where something differs; else it allocates, launches and returns the outputs. Values
are local variables: t3 for value 3, e1 for extent -1, and on a GPU p3 for the address of value 3. It does what
`segments.Runner` does with the same program.

Knows: programs, the texts that a target gives. Must not know: how a plan is chosen or built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments import Alias, Allocate, Copy, HostOp, Instruction, Launch, Loop, Release, name_of
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import STRIDE_NAME, Strided, known_layout
from tracefuse.errors import UnsupportedError
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Extent, Symbol, product, python_text
from tracefuse.ir.fusion import Fusion, Requirement
from tracefuse.runtime.arena import Room
from tracefuse.runtime.code_lines import unless, with_shared
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.launch_code import Names
from tracefuse.runtime.memory.memory_code import MemoryCode, memory_names
from tracefuse.runtime.peak_memory import out_of_memory
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.slice_loops import SliceLoop
from tracefuse.runtime.targets.target import Target

Call: TypeAlias = Callable[[Sequence[Any]], "list[Any] | None"]
"""The outputs, or None where the plan does not fit the arguments; then nothing has run."""

_PYTHON_TYPES = {"bool": "bool", "int": "int", "uint": "int", "float": "float", "complex": "complex"}


def compile_call(
    plan: Plan, target: Target, facts: Sequence[Guard], scalars: Callable[[Sequence[Any], Mapping[int, int]], Any],
    graph: bool = False,
) -> tuple[Call, str]:  # fmt: skip
    """(the function, its text).

    facts: under which the fusion was recorded, beside the plan's own. scalars: the computed host scalars, in order,
    from the arguments and the extents. graph: kernels that follow each other are launched as one graph.
    """
    writer = CallWriter(plan, target, graph)
    text = writer.write(facts)
    names = {
        **writer.names,
        **target.calls.names(),
        **memory_names(target.device),
        "scalars": scalars,
        "layout_of": _layout_of,
    }
    names |= {"min": min, "max": max}
    names["other_device"] = target.device.on_device
    return compile_function(text, "call", names, "call"), text


def _layout_of(array: Any, aligned: Callable[[Any], bool]) -> Strided:
    return known_layout(array.shape, array.strides, array.dtype.itemsize, aligned(array))


class CallWriter:
    """The text of a call of a plan, and the names that it refers to."""

    def __init__(self, plan: Plan, target: Target, graph: bool) -> None:
        if graph:
            target.compiler.require_graphs()
            if not plan.is_straight:
                raise UnsupportedError(
                    "values on streams cannot be launched as a graph: how many iterations a loop has, and so how many "
                    "kernels and waits, is known at a call alone",
                    hint="leave graph=True out",
                )
        self.plan, self.target, self.calls, self.graph = plan, target, target.calls, graph
        self.fusion: Fusion = plan.segmentation.fusion
        self.names: dict[str, Any] = {"is_aligned": target.device.is_aligned, "stopped": self._stopped}
        self.rooms = plan.rooms
        self.shared: dict[str, str] = {}
        # The variables that hold memory.
        self.holders: dict[str, None] = {}
        self.text = ""
        self.memory = MemoryCode(
            self.fusion,
            target.device,
            target.calls,
            plan.given,
            plan.donated,
            plan.taken,
            self._name,
            self._extent,
            name_of,
            _address_of,
        )

    def _name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def _extent(self, extent: Extent) -> str:
        return python_text(extent, self._symbol)

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.id is not None:
            return name_of(symbol.id)
        found = STRIDE_NAME.fullmatch(symbol.name)
        assert found is not None
        number, axis = map(int, found.groups())
        memory = next((given.memory for given in self.plan.given if given.value == number), number)
        return f"(t{memory}.strides[{axis}] // {self.fusion.values[number].dtype.itemsize})"

    def write(self, facts: Sequence[Guard]) -> str:
        buffers = tuple(one.memory for one in self.memory.buffers)
        passed = (*self.fusion.inputs, *buffers)
        lines = ["def call(a):"]
        if passed:
            lines.append(f"    {', '.join(map(name_of, passed))}, = a")
        lines += unless([*self._types(), *self.memory.types()])
        lines += self._shapes()
        lines += self._addresses((*self.fusion.tensor_inputs, *buffers))
        lines += unless([*self._sizes(facts), *self._layouts(), *self.memory.tests()])
        elsewhere = self.calls.elsewhere_text()
        if elsewhere is not None:
            lines += [f"    if {elsewhere}:", "        return other_device(call, a)"]
        lines += self._scalars()
        for number, text in self.memory.taken_arrays():
            lines += [f"    {name_of(number)} = {text}", *self._addresses((number,))]
        if not self.plan.is_written:
            values = "".join(f"{name_of(number)}, " for number in self.plan.program.inputs)
            lines = with_shared(lines, self.shared)
            self.text = "\n".join([*lines, f"    return list({self._name('run', self.plan.runner)}(({values})))", ""])
            return self.text
        stream = self.calls.stream_text()
        if stream is not None:
            lines.append(f"    stream = {stream}")
        lines += self._run(frozenset((*self.fusion.inputs, *self.plan.memory)))
        outputs = [name_of(number) for number in self.plan.program.outputs]
        lines = with_shared(lines, self.shared)
        self.text = "\n".join([*lines, f"    return [{', '.join(outputs)}]", ""])
        return self.text

    def _run(self, inputs: frozenset[int]) -> list[str]:
        """All rooms and groups. Where one raises, what was made is let go, also by the frame that a traceback holds."""
        lines: list[str] = []
        for position, room in enumerate(self.rooms.rooms):
            if room.spans:
                lines += self._room(position, room)
        for group in self.rooms.groups:
            lines += self._group(group, inputs)
        if not self.holders:
            return lines
        failed = [f"{' = '.join(self.holders)} = None", f"stopped(error, {{{self._known()}}})", "raise"]
        return [
            "    try:", *(f"    {line}" for line in lines), "    except BaseException as error:",
            *(f"        {line}" for line in failed),
        ]  # fmt: skip

    def _held(self, name: str) -> str:
        self.holders[name] = None
        return name

    def _once(self, text: str) -> str:
        """A mark for arithmetic that is done once a call, also where several places need it."""
        return (
            text if text.isidentifier() or text.isdigit() else self.shared.setdefault(text, f"\0{len(self.shared)}\0")
        )

    def _group(self, group: Sequence[Instruction], inputs: frozenset[int]) -> list[str]:
        """The instructions in order; of a graph, its one launch after all allocations and before all releases."""
        before: list[str] = []
        launches: list[Launch] = []
        after: list[str] = []
        is_graph = self._is_graph(group)
        for instruction in group:
            match instruction:
                case Allocate(value, spec):
                    before += self._allocate(value, spec)
                case Alias(value, original):
                    before.append(f"    {self._held(name_of(value))} = {name_of(original)}")
                    before += self._addresses((value,))
                case Copy(source, target):
                    before.append(f"    copy({name_of(source)}, {name_of(target)})")
                case HostOp():
                    before += _marked(self._host_op(instruction), instruction.step)
                case Loop():
                    loop = SliceLoop(instruction, self.fusion, self.target)
                    run, stream = (
                        self._name("loop", loop.call),
                        "None" if self.calls.stream_text() is None else "stream",
                    )
                    line = f"    {run}({', '.join([stream, *map(name_of, loop.values)])})"
                    before += _marked([line], loop.segments[0])
                case Launch():
                    launches.append(instruction)
                    if not is_graph:
                        before += _marked(self._launch(instruction), instruction.step)
                case Release(value) if value not in inputs and value not in self.rooms.slots:
                    (after if is_graph else before).append(f"    {self._holder(value)} = None")
        if is_graph:
            before += _marked(self._graph(launches), launches[0].step)
        return [*before, *after]

    def _host_op(self, instruction: HostOp) -> list[str]:
        """A host operation on whole values: into what is allocated, or a new array."""
        run, label = self._name("host_op", self.target.device.host_op), self._name("op", instruction.label)
        inputs, output = "".join(f"{name_of(value)}, " for value in instruction.inputs), name_of(instruction.output)
        target = output if output in self.holders else "None"
        line = f"    {self._held(output)} = {run}({label}, [{inputs}], {target})"
        return [line, *self._addresses((instruction.output,))]

    def _is_graph(self, group: Sequence[Instruction]) -> bool:
        return self.graph and sum(isinstance(i, Launch) for i in group) > 1

    def _holder(self, value: int) -> str:
        """The variable that keeps the memory of a value alive."""
        return f"m{value}" if value in self.rooms.alone else name_of(value)

    def _addresses(self, values: Iterable[int]) -> list[str]:
        if not self.calls.addresses:
            return []
        return [f"    {_address_of(value)} = {self.calls.argument_text(name_of(value))}" for value in values]

    # -- conditions ---------------------------------------------------------------------------------------------------

    def _types(self) -> Iterable[str]:
        for number in self.fusion.inputs:
            value, name = self.fusion.values[number], name_of(number)
            if value.is_tensor:
                yield f"type({name}) is array_type"
                yield f"{name}.dtype == {self._name('d', value.dtype.numpy)}"
                yield f"{name}.ndim == {len(value.shape)}"
                here = self.calls.here_text(name)
                if here is not None:
                    yield here
            else:
                yield f"type({name}) is {_PYTHON_TYPES[value.dtype.kind]}"

    def _shapes(self) -> list[str]:
        lines = []
        ids = list(self.fusion.axis_ids())
        for number in self.fusion.tensor_inputs:
            own = [name_of(key) for key, owner, _ in ids if owner == number]
            if own:
                lines.append(f"    {', '.join(own)}, = {name_of(number)}.shape")
        return lines

    def _sizes(self, facts: Sequence[Guard]) -> Iterable[str]:
        for key, number, axis in self.fusion.axis_ids():
            extent = self.fusion.values[number].shape[axis]
            if isinstance(extent, int):
                yield f"{name_of(key)} == {extent}"
        for number in self.fusion.scalar_inputs:
            dtype = self.fusion.values[number].dtype
            if dtype.is_integer:
                limits = np.iinfo(dtype.name)
                yield f"{limits.min} <= {name_of(number)} <= {limits.max}"
        conditions: list[Guard | Requirement] = [*facts, *self.plan.segmentation.original.requirements]
        for one in (*conditions, *self.plan.guards):
            yield f"{self._extent(one.left)} {one.relation} {self._extent(one.right)}"

    def _layouts(self) -> Iterable[str]:
        for number, layout in zip(self.fusion.tensor_inputs, self.plan.layouts, strict=True):
            name, address = name_of(number), _address_of(number)
            wide = number in self.plan.aligned
            if wide:
                yield self.calls.wide_text(name, address)
            itemsize = 1 if wide else self.fusion.values[number].dtype.itemsize
            plain = self.calls.plain_text(name, address, itemsize)
            if layout is None:
                yield plain
            else:
                yield f"not ({plain})"
                yield f"layout_of({name}, is_aligned) == {self._name('l', layout)}"

    # -- what runs ----------------------------------------------------------------------------------------------------

    def _scalars(self) -> list[str]:
        made = [n.outputs[0] for n in self.fusion.nodes if not self.fusion.values[n.outputs[0]].is_tensor]
        if not made:
            return []
        return [f"    {', '.join(map(name_of, made))}, = scalars(a, {{{self._known()}}})"]

    def _known(self) -> str:
        """The extents and integer scalars, as the items of a dict."""
        integers = [n for n in self.fusion.scalar_inputs if self.fusion.values[n].extent is not None]
        known = [key for key, _, _ in self.fusion.axis_ids()] + integers
        return ", ".join(f"{key}: {name_of(key)}" for key in known)

    def _allocate(self, value: int, spec: Any) -> list[str]:
        size = self._once(self._extent(product(spec.extents) * spec.dtype.itemsize))
        if value in self.rooms.slots:
            return [f"    {_address_of(value)} = {_slot(self.rooms.slots[value])}"]
        if value in self.rooms.alone:
            return [f"    {self._held(f'm{value}')} = room({size})", f"    {_address_of(value)} = m{value}.ptr"]
        shape = f"({''.join(f'{self._once(self._extent(extent))}, ' for extent in spec.extents)})"
        made = self.calls.empty_text(shape, self._name("d", spec.dtype), size)
        return [f"    {self._held(name_of(value))} = {made}", *self._addresses((value,))]

    def _room(self, position: int, room: Room) -> Iterator[str]:
        """One allocation, and the address of each slot."""
        spans = {span: f"n{position}_{k}" for k, span in enumerate(dict.fromkeys(room.spans))}
        for span, name in spans.items():
            yield f"    {name} = {self._extent(span)}"
        size = " + ".join(spans[span] for span in room.spans)
        # What the driver has in order in a graph, launched from wherever, needs one memory for all launches.
        in_graph = self._is_graph(self.rooms.groups[position])
        make = self._name("kept", self.target.device.kept_room()) if in_graph else "room"
        yield f"    {self._held(f'r{position}')} = {make}({size})"
        address = f"r{position}.ptr"
        for slot, span in enumerate(room.spans):
            yield f"    {_slot((position, slot))} = {address}"
            address = f"{_slot((position, slot))} + {spans[span]}"

    def _launch(self, launch: Launch) -> Iterator[str]:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        if segment.code is None:
            run = self._name("run", segment.run)
            inputs = "".join(f"{name_of(value)}, " for value in launch.inputs)
            outputs = "".join(f"{self._held(name_of(value))}, " for value in launch.outputs)
            if segment.lowered is not None:
                yield f"    {run}(({inputs}), ({outputs}))"
                return
            yield f"    {outputs or '()'} = {run}(({inputs}), ())"
            yield from self._addresses(launch.outputs)
            return
        yield from self._scratch(launch.step, segment)
        if segment.code.noted:
            yield f"    {_cell(launch)} = {self._name('zeros', np.zeros)}(1, {self._name('d', np.int64)})"
        stream = [] if self.calls.stream_text() is None else ["stream"]
        for function, arguments in zip(segment.functions, self._arguments(launch), strict=True):
            run = self._name(f"run_{segment}_".replace(" ", "_"), self.target.compiler.entry(function))
            yield f"    {run}({', '.join([*stream, *arguments])})"
        yield from self._scratch_released(launch.step, segment)
        yield from segment.code.checks(self._names(launch), self._name("raise_noted", segment.code.raise_noted))

    def _arguments(self, launch: Launch) -> list[list[str]]:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        assert segment.code is not None
        given = segment.code.arguments(self._names(launch))
        return [list(map(self._once, arguments)) for arguments in given]

    def _names(self, launch: Launch) -> Names:
        tensor = _address_of if self.calls.addresses else name_of
        return Names(tensor, name_of, name_of, lambda k: self._buffer(launch.step, k), _cell(launch))

    def _buffer(self, step: int, position: int) -> str:
        found = self.rooms.scratch.get((step, position))
        return f"b{step}_{position}" if found is None else _slot(found)

    def _scratch(self, step: int, segment: CompiledSegment) -> Iterator[str]:
        """Buffers that have no slot."""
        assert segment.code is not None
        assert segment.lowered is not None
        sizes = segment.code.scratch(Names(name_of, name_of, name_of, str))
        for k, (size, scratch) in enumerate(zip(sizes, segment.lowered.scratch, strict=True)):
            if (step, k) in self.rooms.scratch:
                continue
            held = f"s{step}_{k}"
            shape, dtype = f"({size},)", self._name("d", scratch.dtype)
            made = self.calls.empty_text(shape, dtype, f"({size}) * {scratch.dtype.itemsize}")
            yield f"    {self._held(held)} = {made}"
            yield f"    {self._held(self._buffer(step, k))} = {self.calls.argument_text(held)}"

    def _scratch_released(self, step: int, segment: CompiledSegment) -> Iterator[str]:
        for k in range(len(segment.scratch)):
            if (step, k) not in self.rooms.scratch:
                yield f"    s{step}_{k} = {self._buffer(step, k)} = None"

    def _graph(self, launches: Sequence[Launch]) -> Iterator[str]:
        functions: list[Any] = []
        given: list[str] = []
        for launch in launches:
            segment = launch.label
            assert isinstance(segment, CompiledSegment)
            yield from self._scratch(launch.step, segment)
            functions += segment.functions
            given += [f"({''.join(f'{one}, ' for one in arguments)})" for arguments in self._arguments(launch)]
        run = self._name("graph", self.target.compiler.graph(functions))
        yield f"    {run}(stream, ({''.join(f'{one}, ' for one in given)}))"

    def _stopped(self, error: BaseException, sizes: Mapping[int, int]) -> None:
        """Raises what says how much memory was wanted, where there was too little."""
        if isinstance(error, MemoryError):
            assert error.__traceback__ is not None
            later = self.text.splitlines()[error.__traceback__.tb_lineno - 1 :]
            marks = (_STEP.search(line) for line in later)
            step = next((int(mark[1]) for mark in marks if mark), None)
            raise out_of_memory(self.plan, sizes, step, error) from error


def _cell(launch: Launch) -> str:
    """Where the kernels of a launch note positions outside their axis."""
    return f"c{launch.step}"


def _address_of(number: int) -> str:
    return f"p{number}"


def _slot(slot: tuple[int, int]) -> str:
    return f"q{slot[0]}_{slot[1]}"


_STEP = re.compile("  # segment (\\d+)$")


def _marked(lines: Iterable[str], step: int | None) -> list[str]:
    """The lines of a launch, the last with a comment that says of which segment they are."""
    *before, last = lines
    return [*before, last if step is None else f"{last}  # segment {step}"]
