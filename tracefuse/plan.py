"""A plan: the segments of a fusion compiled for the layouts and the size facts of a call, and the program to run them.

Every fact about sizes that lowering used is a guard of the plan, in terms of the fusion's own extents. A call whose
sizes keep the guards runs the plan as it is: kernels take extents as arguments.

Knows: segments, lowering, kernels of a device, the host program. Must not know: frontends, caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import segments
from segments import Program, Runner
from tracefuse.compile_all import compile_all
from tracefuse.dtypes import DType
from tracefuse.extents import Expression, Extent, Symbol, as_symbol, evaluate, python_text, substitute, symbol, symbols
from tracefuse.guards import Guard
from tracefuse.ir import Fusion, Shape
from tracefuse.kernel.disk_cache import DiskCache
from tracefuse.layouts import STRIDE_NAME, LayoutKey, stride_name, symbolic_strides
from tracefuse.library import library_launch
from tracefuse.schedule.launches import LaunchSpec, Lowered
from tracefuse.schedule.lower import lower
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes
from tracefuse.segmentation import Part, Segmentation
from tracefuse.targets import Backend


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSegment:
    """A segment with its kernels. lowered is None for a library call; functions: one compiled kernel a launch."""

    part: Part
    lowered: Lowered | None
    functions: tuple[Any, ...]
    run: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any] | None]
    inputs: tuple[int, ...]
    name: str

    @property
    def template(self) -> str:
        return "library" if self.lowered is None else self.lowered.template

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Allocation:
    """What to allocate for a value: its type and extents, and its shape from the live values by id."""

    dtype: DType
    extents: Shape
    shape: Callable[[Mapping[int, Any]], tuple[int, ...]]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What runs a call whose layouts are these and whose sizes keep the guards (in the fusion's own extents).

    aligned: the arguments that must start at a multiple of 16 bytes.
    """

    segmentation: Segmentation
    layouts: LayoutKey
    aligned: frozenset[int]
    guards: tuple[Guard, ...]
    segments: tuple[CompiledSegment, ...]
    program: Program
    runner: Runner


def build_plan(
    segmentation: Segmentation, backend: Backend, layouts: LayoutKey, values: Mapping[int, int],
    strides: Mapping[str, int], *, guards: Sequence[Guard] = (), aligned: frozenset[int] = frozenset(),
    contract: bool = True, disk: DiskCache | None = None,
) -> Plan:  # fmt: skip
    """Lowers and compiles every segment for the sizes of a call; several segments compile at once.

    values: extents and integer scalars by id. strides: of arguments that are not contiguous, by symbol name.
    guards: those of the segmentation itself. aligned: arguments whose memory starts at a multiple of 16 bytes.
    disk: where compiled kernels are kept. Raises CompileError, naming the segment.
    """
    fusion = segmentation.fusion
    layout_of = dict(zip(fusion.tensor_inputs, layouts, strict=True))
    found = list(guards)
    lowerings: dict[int, tuple[_Border, Lowered]] = {}
    for position, part in enumerate(segmentation.segments):
        if part.library is not None:
            continue
        border = _Border(segmentation, part, layout_of)
        sizes = border.sizes(values, strides)
        lowered = lower(
            part.written, part.rule, border.strides, sizes, backend.target, name=f"s{position}", contract=contract,
            aligned=border.aligned(aligned), misaligned=border.misaligned(),
        )  # fmt: skip
        found += [border.original_guard(guard) for guard in lowered.guards]
        lowerings[position] = border, lowered
    functions = compile_all({k: lowered for k, (_, lowered) in lowerings.items()}, backend, disk)
    compiled = [
        _kernel_segment(*lowerings[position], functions[position], position, backend)
        if position in lowerings
        else _library_segment(part, position, backend)
        for position, part in enumerate(segmentation.segments)
    ]
    program = _program(segmentation, compiled)
    runner = Runner(program, backend)
    return Plan(segmentation, layouts, aligned, tuple(dict.fromkeys(found)), tuple(compiled), program, runner)


class _Border:
    """How a segment's own symbols and numbers read in the fusion that it is a part of."""

    def __init__(self, segmentation: Segmentation, part: Part, layout_of: Mapping[int, Any]) -> None:
        self.fusion, self.part = segmentation.fusion, part
        self.layout_of = layout_of
        self.original: dict[Symbol, Extent] = {}
        local = part.written
        for key, number, axis in local.axis_ids():
            shape = self.fusion.values[part.segment.index_map[number]].shape
            self.original[Symbol(f"i{-key - 1}", key)] = self.fusion.canonical(shape[axis])
        for number in local.scalar_inputs:
            extent = local.values[number].extent
            own = None if extent is None else as_symbol(extent)
            if own is not None:
                self.original.setdefault(own, self._scalar_extent(number))
        self.strides: dict[int, Shape] = {n: self._strides(n) for n in local.tensor_inputs}

    def _scalar_extent(self, number: int) -> Extent:
        original = self.part.segment.index_map[number]
        if original < 0:
            return self.fusion.canonical(symbol(f"i{-original - 1}", original))
        extent = self.fusion.values[original].extent
        return 0 if extent is None else self.fusion.canonical(extent)

    def _layout(self, number: int) -> Any:
        return self.layout_of.get(self.part.segment.index_map[number])

    def _strides(self, number: int) -> Shape:
        shape, layout = self.part.written.shape_of(number), self._layout(number)
        return contiguous_strides(shape) if layout is None else symbolic_strides(layout, shape, number)

    def aligned(self, arguments: frozenset[int]) -> frozenset[int]:
        """The tensor inputs that start at a multiple of 16 bytes: those arguments, and all intermediates."""
        own = self.part.written.tensor_inputs
        index_map, inputs = self.part.segment.index_map, set(self.fusion.inputs)
        return frozenset(n for n in own if index_map[n] in arguments or index_map[n] not in inputs)

    def misaligned(self) -> frozenset[int]:
        """The tensor inputs whose elements are not at multiples of their size."""
        layouts = ((n, self._layout(n)) for n in self.part.written.tensor_inputs)
        return frozenset(n for n, layout in layouts if layout is not None and not layout.aligned)

    def to_original(self, extent: Extent) -> Extent:
        """An expression of the segment's symbols in the fusion's."""
        return substitute(extent, {**self.original, **self._stride_names(extent)})

    def _stride_names(self, extent: Extent) -> dict[Symbol, Extent]:
        own = {stride_name(n, a): (n, a) for n in self.strides for a in range(len(self.strides[n]))}
        found = [s for s in symbols(extent) if s.name in own]
        index_map = self.part.segment.index_map
        return {s: symbol(stride_name(index_map[own[s.name][0]], own[s.name][1])) for s in found}

    def original_guard(self, guard: Guard) -> Guard:
        return replace(guard, left=self.to_original(guard.left), right=self.to_original(guard.right))

    def sizes(self, values: Mapping[int, int], strides: Mapping[str, int]) -> Sizes:
        """The actual values of the segment's symbols."""
        own = {s.id: evaluate(e, values) for s, e in self.original.items() if s.id is not None}
        index_map = self.part.segment.index_map
        named = {
            stride_name(n, a): strides[stride_name(index_map[n], a)]
            for n in self.strides
            for a in range(len(self.strides[n]))
            if stride_name(index_map[n], a) in strides
        }
        return Sizes(own, named)


def _kernel_segment(
    border: _Border, lowered: Lowered, functions: tuple[Any, ...], position: int, backend: Backend
) -> CompiledSegment:
    inputs, text = _RunText(border, lowered).write()
    names: dict[str, Any] = {f"k{k}": backend.entry(function) for k, function in enumerate(functions)}
    names |= {f"d{k}": scratch.dtype for k, scratch in enumerate(lowered.scratch)}
    names |= {"empty": backend.empty, "min": min, "max": max}
    exec(text, names)
    return CompiledSegment(border.part, lowered, functions, names["run"], inputs, f"{lowered.template}{position}")


class _RunText:
    """Writes the Python function that launches a segment's kernels, all argument arithmetic in it."""

    def __init__(self, border: _Border, lowered: Lowered) -> None:
        self.border, self.lowered = border, lowered
        segment = border.part.segment
        self.index_map = segment.index_map
        self.outputs = {number: position for position, number in enumerate(segment.outputs)}
        self.inputs: dict[int, int] = {}

    def _input(self, original: int) -> str:
        return f"i[{self.inputs.setdefault(original, len(self.inputs))}]"

    def write(self) -> tuple[tuple[int, ...], str]:
        """(the values to pass, by original number; the source of `run(i, o)`)."""
        for number in self.border.part.written.tensor_inputs:
            self._input(self.index_map[number])
        lines = [
            f"    s{k} = empty(({self._extent(scratch.size)},), d{k})" for k, scratch in enumerate(self.lowered.scratch)
        ]
        for k, launch in enumerate(self.lowered.launches):
            lines.append(f"    k{k}({', '.join(self._arguments(launch))})")
        return tuple(self.inputs), "\n".join(["def run(i, o):", *lines])

    def _arguments(self, launch: LaunchSpec) -> list[str]:
        tensors = [
            f"o[{self.outputs[t]}]" if t in self.outputs else self._input(self.index_map[t]) for t in launch.tensors
        ]
        scratch = [f"s{k}" for k in launch.scratch]
        integers = [self._extent(Expression((((s,), 1),))) for s in launch.integers]
        scalars = [self._input(self.index_map[number]) for number in launch.scalars]
        return [*tensors, *scratch, *integers, *scalars]

    def _tensor(self, number: int) -> str:
        place = self.outputs.get(number)
        return self._input(self.index_map[number]) if place is None else f"o[{place}]"

    def _extent(self, extent: Extent) -> str:
        return python_text(substitute(extent, self.lowered.derived), self._symbol)

    def _symbol(self, own: Symbol) -> str:
        original = self.border.original.get(own)
        if original is not None:
            return python_text(original, lambda s: self._input(s.id if s.id is not None else 0))
        found = STRIDE_NAME.fullmatch(own.name)
        assert found is not None
        number, axis = found.groups()
        array = self._input(self.index_map[int(number)])
        return f"({array}.strides[{axis}] // {self.border.part.written.values[int(number)].dtype.itemsize})"


def _nothing(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[()]:
    return ()


def _library_segment(part: Part, position: int, backend: Backend) -> CompiledSegment:
    assert part.library is not None
    # A result that nothing reads is not computed.
    run = library_launch(part.fusion, part.library, backend) if part.segment.outputs else _nothing
    inputs = part.segment.original_inputs
    return CompiledSegment(part, None, (), run, inputs, f"{part.library.op.name}{position}")


def _program(segmentation: Segmentation, compiled: Sequence[CompiledSegment]) -> Program:
    """Allocate, launch, release: with the extents and scalars that each launch takes."""
    fusion, graph = segmentation.fusion, segmentation.steps.graph
    ids = tuple(key for key, _, _ in fusion.axis_ids())
    launches = [segments.Launch(k, c.inputs, c.part.segment.original_outputs, c) for k, c in enumerate(compiled)]
    bound = tuple(dict.fromkeys((*graph.inputs, *ids)))
    dying = segments.releases(launches, bound, fusion.outputs)
    instructions: list[segments.Instruction] = [segments.Release(value) for value in dying[0]]
    for launch, dead in zip(launches, dying[1:], strict=True):
        if compiled[launch.step].lowered is not None:
            instructions += [segments.Allocate(v, _allocation(fusion, v)) for v in launch.outputs]
        instructions.append(launch)
        instructions += [segments.Release(value) for value in dead]
    program = Program(bound, fusion.outputs, instructions)
    program.verify()
    return program


def _allocation(fusion: Fusion, number: int) -> Allocation:
    value = fusion.values[number]
    extents = fusion.shape_of(number)
    shape = [python_text(extent, lambda s: f"v[{s.id}]") for extent in extents]
    text = f"lambda v: ({''.join(f'{e}, ' for e in shape)})"
    return Allocation(value.dtype, extents, eval(text, {"min": min, "max": max}), str(value.type))
