"""Generates the Python function that runs a call of a plan.

The function reads the extents of the arguments once and checks everything that the plan depends on: types, layouts,
guards on sizes. It returns None if a check fails. Otherwise it allocates, launches and returns the outputs. Each value
is a local variable: t3 is value 3, e1 is extent -1, and on a GPU p3 is the address of value 3. The function has the
semantics of `segments.Runner` on the same program, at a fraction of the host time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import segments
from segments import Alias, AllocateBuffer, CopyBuffer, HostLoop, HostOp, Instruction, Launch, Release, name_of
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import STRIDE_NAME, Strided, known_layout
from tracefuse.errors import UnsupportedError
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Extent, Symbol, python_text
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.scalar_text import NAMES, scalar_texts
from tracefuse.runtime.allocation_code import AllocationCode
from tracefuse.runtime.arena import slot_name
from tracefuse.runtime.arena_code import ArenaCode
from tracefuse.runtime.call_checks import CallChecks, address_of
from tracefuse.runtime.code_lines import first_segment, share_expressions, tagged, unless
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.exchange_code import ExchangeCode
from tracefuse.runtime.graph_code import exact, graph_lines, launches_of_graph
from tracefuse.runtime.graph_order import LaunchOrder, launch_order
from tracefuse.runtime.joined_launches import JoinedAllocations, JoinedLaunches, join_allocations, join_launches
from tracefuse.runtime.launch_code import ArgumentNames, error_flag_name
from tracefuse.runtime.memory.memory_code import MemoryCode, memory_names
from tracefuse.runtime.peak_memory import out_of_memory
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.stream_loops import StreamLoop
from tracefuse.runtime.targets.kernel_compiler import LaunchGraph
from tracefuse.runtime.targets.target import Target

Call: TypeAlias = Callable[[Sequence[Any]], "list[Any] | None"]
"""Returns the outputs, or None if the arguments do not fit the plan; then nothing has run."""


def compile_call(
    writer: CallWriter, facts: Sequence[Guard], scalars: Callable[[Sequence[Any], Mapping[int, int]], Any]
) -> tuple[Call, str]:
    """Compiles the function of a call and returns it with its text.

    facts: the guards that the trace recorded, in addition to the plan's own. scalars: computes the host scalars, in
    order, from the arguments and the extents.
    """
    target, text = writer.target, writer.write(facts)
    names = {**writer.names, **target.calls.names(), **memory_names(target.device), "compute_scalars": scalars}
    names |= {"min": min, "max": max, "layout_of": _layout_of, "other_device": target.device.on_device}
    return compile_function(text, "call", names, "call"), text


def _layout_of(array: Any, aligned: Callable[[Any], bool]) -> Strided:
    return known_layout(array.shape, array.strides, array.dtype.itemsize, aligned(array))


class CallWriter:
    """Writes the text of a call of a plan and collects the objects that the text refers to.

    graph: launch consecutive kernels as one CUDA graph. plain: runs calls in which its intermediates take more than
    `most_kept` bytes. graphs: those of the call. launches: of kernels outside of graphs, joined ones counted once.
    """

    def __init__(
        self, plan: Plan, target: Target, graph: bool, plain: Call | None = None, most_kept: int | None = None
    ) -> None:
        if graph:
            target.compiler.require_graphs()
            if not plan.is_straight:
                raise UnsupportedError(
                    "a plan with stream-parallel loops cannot be launched as a CUDA graph: the number of iterations, "
                    "and so of kernels and waits, is known only at the call",
                    hint="leave graph=True out",
                )
        self.plan, self.target, self.calls, self.graph = plan, target, target.calls, graph
        self.graphs: list[LaunchGraph] = []
        self.launches = 0
        self.fusion: Fusion = plan.segmentation.fusion
        self.names: dict[str, Any] = {"is_aligned": target.device.is_aligned, "report_failure": self._report_failure}
        self.arena_plan = plan.arena_plan
        self.shared: dict[str, str] = {}
        # The variables that keep allocations alive, in order.
        self.holders: dict[str, None] = {}
        self.text = ""
        self.arenas = ArenaCode(
            plan.arena_plan, target.device, self._name, self.extent, self._hold, plain, most_kept
        )  # fmt: skip
        self.allocations = AllocationCode(
            self.arena_plan, target.calls, self._name, lambda extent: self._once(self.extent(extent)), self._hold,
            self._addresses,
        )  # fmt: skip
        self.exchanges = ExchangeCode(target.device, self._name, self._hold, self._addresses)
        self.checks = CallChecks(plan, target.calls, self._name, self.extent)
        self.memory = MemoryCode(
            self.fusion,
            target.device,
            target.calls,
            plan.output_buffers,
            plan.donated,
            plan.reused,
            {n for n, layout in zip(self.fusion.tensor_inputs, plan.layouts, strict=True) if layout is None},
            self._name,
            self.extent,
            name_of,
            address_of,
        )

    def _name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def extent(self, extent: Extent) -> str:
        """Returns the text of an extent."""
        return python_text(extent, self._symbol)

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.id is not None:
            return name_of(symbol.id)
        match = STRIDE_NAME.fullmatch(symbol.name)
        assert match is not None
        number, axis = map(int, match.groups())
        memory = next((buffer.memory for buffer in self.plan.output_buffers if buffer.value == number), number)
        return f"(t{memory}.strides[{axis}] // {self.fusion.values[number].dtype.itemsize})"

    def write(self, facts: Sequence[Guard]) -> str:
        buffers = tuple(buffer.memory for buffer in self.memory.buffers)
        parameters = (*self.fusion.inputs, *buffers)
        lines = ["def call(a):", *([f"    {', '.join(map(name_of, parameters))}, = a"] if parameters else [])]
        lines += unless([*self.checks.types(), *self.memory.types()])
        lines += self.checks.shapes()
        lines += self._addresses((*self.fusion.tensor_inputs, *buffers))
        lines += self.checks.size_lines(facts)
        for number, text in self.memory.slices():
            lines += [f"    {name_of(number)} = {text}", *self._addresses((number,))]
        lines += unless([*self.checks.strides_of_slices(facts), *self.checks.layouts(), *self.memory.tests()])
        is_elsewhere = self.calls.elsewhere_text()
        if is_elsewhere is not None:
            lines += [f"    if {is_elsewhere}:", "        return other_device(call, a)"]
        lines += self.scalar_lines()
        for number, text in self.memory.reused_arrays():
            lines += [f"    {name_of(number)} = {text}", *self._addresses((number,))]
        if not self.plan.is_written:
            values = "".join(f"{name_of(number)}, " for number in self.plan.program.inputs)
            lines = share_expressions(lines, self.shared)
            self.text = "\n".join([*lines, f"    return list({self._name('run', self.plan.runner)}(({values})))", ""])
            return self.text
        stream = self.calls.stream_text()
        if stream is not None:
            lines.append(f"    stream = {stream}")
        lines += self._run(frozenset((*self.fusion.inputs, *self.plan.memory)))
        outputs = [name_of(number) for number in self.plan.program.outputs]
        lines = share_expressions(lines, self.shared)
        self.text = "\n".join([*lines, f"    return [{', '.join(outputs)}]", ""])
        return self.text

    def _run(self, inputs: frozenset[int]) -> list[str]:
        """Writes all arenas and groups.

        If a line raises, the function drops its allocations, so that the frame in the traceback does not keep them
        alive.
        """
        lines: list[str] = []
        for position, arena in enumerate(self.arena_plan.arenas):
            if arena.slot_sizes:
                lines += self.arenas.allocation(position, self._is_graph(self.arena_plan.groups[position]))
        for position, group in enumerate(self.arena_plan.groups):
            lines += self._group(position, group, inputs)
        if not self.holders:
            return lines
        cleanup = [f"{' = '.join(self.holders)} = None", f"report_failure(error, {{{self._extent_items()}}})", "raise"]
        return [
            "    try:", *(f"    {line}" for line in lines), "    except BaseException as error:",
            *(f"        {line}" for line in cleanup),
        ]  # fmt: skip

    def _hold(self, name: str) -> str:
        """Records that a variable keeps an allocation alive."""
        self.holders[name] = None
        return name

    def _once(self, text: str) -> str:
        """Returns a placeholder for arithmetic that a call does once, even if several lines need the result."""
        if text.isidentifier() or text.isdigit():
            return text
        return self.shared.setdefault(text, f"\0{len(self.shared)}\0")

    def _group(self, position: int, group: Sequence[Instruction], inputs: frozenset[int]) -> list[str]:
        """Writes the instructions in order, with independent launches of equal kernels as one.

        A CUDA graph is one launch, after all allocations and before all releases.
        """
        before: list[str] = []
        launches: list[Launch] = []
        after: list[str] = []
        is_graph = self._is_graph(group)
        for instruction in group if is_graph else self.joined(group):
            match instruction:
                case Launch():
                    launches.append(instruction)
                    if not is_graph:
                        before += tagged(self._launch(instruction), instruction.step)
                case Release(value):
                    if value not in inputs and value not in self.arena_plan.slots:
                        (after if is_graph else before).append(f"    {self._holder(value)} = None")
                case _:
                    before += self._instruction(instruction)
        if is_graph:
            order = launch_order(group, self.arena_plan, self.plan.memory)
            before += tagged(self._graph(launches, order, position), launches[0].step)
        return [*before, *after]

    def joined(self, group: Sequence[Instruction]) -> Iterator[Instruction | JoinedLaunches | JoinedAllocations]:
        """Returns the instructions with independent launches of equal kernels together, and allocations for these."""
        together = join_launches(group, self._kernel_of, self.arena_plan.slots, self.memory.overlaps())
        return join_allocations(together, self.calls.most_together)

    def _instruction(self, instruction: Instruction | JoinedLaunches | JoinedAllocations) -> Iterable[str]:
        """Writes an instruction that is neither a single launch nor a release."""
        match instruction:
            case AllocateBuffer(value, spec):
                return self.allocations.one(value, spec)
            case JoinedAllocations(allocations):
                return self.allocations.together(allocations)
            case Alias(value, original):
                same = [(address_of(value), address_of(original))] if self.calls.addresses else []
                pairs = [(self._hold(name_of(value)), name_of(original)), *same]
                return [f"    {name} = {other}" for name, other in pairs]
            case CopyBuffer(source, target):
                return [f"    copy({name_of(source)}, {name_of(target)})"]
            case segments.Communicate():
                return tagged(self.exchanges.start(instruction), instruction.step)
            case segments.WaitRequest(request):
                return self.exchanges.wait(request)
            case segments.StartCoalescing():
                return [f"    {self._name('group', self.target.device.start_coalescing)}()"]
            case segments.EndCoalescing():
                return [f"    {self._name('group', self.target.device.end_coalescing)}()"]
            case HostOp():
                return tagged(self.exchanges.host_op(instruction, self.holders), instruction.step)
            case HostLoop():
                loop = StreamLoop(instruction, self.fusion, self.target)
                run = self._name("loop", loop.call)
                stream = "None" if self.calls.stream_text() is None else "stream"
                line = f"    {run}({', '.join([stream, *map(name_of, loop.values)])})"
                return tagged([line], loop.segments[0])
            case JoinedLaunches(joined):
                return tagged(self._joined(joined), joined[0].step)
            case _:  # instructions of streams, which `is_written` leaves to the runner
                return []

    def _is_graph(self, group: Sequence[Instruction]) -> bool:
        """Whether a group of instructions is launched as one graph."""
        return self.graph and len(launches_of_graph(group)) > 1

    def _holder(self, value: int) -> str:
        """Returns the variable that keeps the memory of a value alive."""
        return f"m{value}" if value in self.arena_plan.kernel_only else name_of(value)

    def _addresses(self, values: Iterable[int]) -> list[str]:
        if not self.calls.addresses:
            return []
        return [f"    {address_of(value)} = {self.calls.argument_text(name_of(value))}" for value in values]

    # -- instructions -------------------------------------------------------------------------------------------------

    def scalar_lines(self) -> list[str]:
        """Returns the lines that compute the scalars of the host."""
        nodes = [node for node in self.fusion.nodes if not self.fusion.values[node.outputs[0]].is_tensor]
        if not nodes:
            return []
        scalars = ", ".join(name_of(node.outputs[0]) for node in nodes)
        in_full = f"{scalars}, = compute_scalars(a, {{{self._extent_items()}}})"
        texts = scalar_texts(self.fusion, nodes, name_of, self._symbol, self.names)
        if texts is None:
            return [f"    {in_full}"]
        self.names |= {name: NAMES[name] for name in NAMES if name not in ("min", "max")}
        return ["    try:", *(f"        {text}" for text in texts), "    except RAISED:", f"        {in_full}"]

    def _extent_items(self) -> str:
        """Returns the extents and integer scalars as the items of a dict display."""
        integers = [n for n in self.fusion.scalar_inputs if self.fusion.values[n].extent is not None]
        keys = [key for key, _, _ in self.fusion.axis_ids()] + integers
        return ", ".join(f"{key}: {name_of(key)}" for key in keys)

    def _launch(self, launch: Launch) -> Iterator[str]:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        if segment.code is None:
            run = self._name("run", segment.run)
            inputs = "".join(f"{name_of(value)}, " for value in launch.inputs)
            outputs = "".join(f"{self._hold(name_of(value))}, " for value in launch.outputs)
            if segment.is_launched:
                yield f"    {run}(({inputs}), ({outputs}))"
                return
            yield f"    {outputs or '()'} = {run}(({inputs}), ())"
            yield from self._addresses(launch.outputs)
            return
        yield from self._scratch(launch.step, segment)
        if segment.code.checked_nodes:
            zeros, dtype = self._name("zeros", np.zeros), self._name("d", np.int64)
            yield f"    {error_flag_name(launch.step)} = {zeros}(1, {dtype})"
        stream = [] if self.calls.stream_text() is None else ["stream"]
        for function, arguments in zip(segment.functions, self._arguments(launch), strict=True):
            run = self._name(f"run_{segment}_".replace(" ", "_"), self.target.compiler.entry(function))
            self.launches += 1
            yield f"    {run}({', '.join([*stream, *arguments])})"
        yield from self._release_scratch(launch.step, segment)
        yield from segment.code.checks(self._names(launch), self._name("raise_error", segment.code.raise_error))

    def _kernel_of(self, launch: Launch) -> int | None:
        """Returns what identifies the kernel of a launch that others of it can join, None for other launches."""
        function = launch.label.only_function if isinstance(launch.label, CompiledSegment) else None
        return id(function) if function is not None and self.target.compiler.can_join(function) else None

    def _joined(self, launches: Sequence[Launch]) -> Iterator[str]:
        first = launches[0].label
        assert isinstance(first, CompiledSegment)
        run = self._name("run_joined", self.target.compiler.joined(first.functions[0]))
        self.launches += 1
        texts = (f"({', '.join(arguments)},)" for launch in launches for arguments in self._arguments(launch))
        yield f"    {run}(stream, ({', '.join(texts)}))"

    def _arguments(self, launch: Launch) -> list[list[str]]:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        assert segment.code is not None
        texts = segment.code.arguments(self._names(launch))
        return [list(map(self._once, arguments)) for arguments in texts]

    def _names(self, launch: Launch) -> ArgumentNames:
        return ArgumentNames(
            self._place_of, name_of, name_of, lambda k: self._buffer(launch.step, k), error_flag_name(launch.step)
        )

    def _place_of(self, value: int) -> str:
        """Returns the kernel argument of a tensor: the address of its slot or its own, or the array."""
        slot = self.arena_plan.slots.get(value)
        if slot is not None:
            return slot_name(slot)
        return address_of(value) if self.calls.addresses else name_of(value)

    def _buffer(self, step: int, position: int) -> str:
        slot = self.arena_plan.scratch.get((step, position))
        return f"b{step}_{position}" if slot is None else slot_name(slot)

    def _scratch(self, step: int, segment: CompiledSegment) -> Iterator[str]:
        """Writes the allocations of scratch buffers that have no slot."""
        assert segment.code is not None
        sizes = segment.code.scratch(ArgumentNames(name_of, name_of, name_of, str))
        for k, (size, scratch) in enumerate(zip(sizes, segment.code.lowered.scratch, strict=True)):
            if (step, k) in self.arena_plan.scratch:
                continue
            array = f"s{step}_{k}"
            dtype, name = scratch.dtype, self._name("d", scratch.dtype)
            allocation = self.calls.empty_text(f"({size},)", dtype, name, f"({size}) * {dtype.itemsize}")
            yield f"    {self._hold(array)} = {allocation}"
            yield f"    {self._hold(self._buffer(step, k))} = {self.calls.argument_text(array)}"

    def _release_scratch(self, step: int, segment: CompiledSegment) -> Iterator[str]:
        for k in range(len(segment.scratch)):
            if (step, k) not in self.arena_plan.scratch:
                yield f"    s{step}_{k} = {self._buffer(step, k)} = None"

    def _graph(self, launches: Sequence[Launch], order: LaunchOrder, position: int) -> Iterator[str]:
        """Writes the launch of a graph. position: of its arena."""
        functions: list[Any] = []
        arguments: list[list[str]] = []
        for launch in launches:
            segment = launch.label
            assert isinstance(segment, CompiledSegment)
            yield from self._scratch(launch.step, segment)
            functions += segment.functions
            arguments += self._arguments(launch)
        self.graphs.append(self.target.compiler.graph(functions, order))
        graph, exact_name = self._name("graph", self.graphs[-1]), self._name("exact", exact)
        texts = {mark: text for text, mark in self.shared.items()}
        yield from graph_lines(
            graph, arguments, texts, exact_name, self.arenas.key(position), list(self.arenas.slots(position))
        )  # fmt: skip

    def _report_failure(self, error: BaseException, sizes: Mapping[int, int]) -> None:
        """Raises OutOfMemoryError with the memory that the call needs if `error` is a MemoryError."""
        if isinstance(error, MemoryError):
            assert error.__traceback__ is not None
            later = self.text.splitlines()[error.__traceback__.tb_lineno - 1 :]
            raise out_of_memory(self.plan, sizes, first_segment(later), error) from error
