"""A segment as a plan has it: with its kernels and how it is run alone, or with what a library runs in their place.

Knows: segments, lowered kernels, what libraries compute, slices. Must not know: programs, how a plan is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Extent
from tracefuse.partition.segmentation import Part, segment_fusion
from tracefuse.partition.slicing import Sliced
from tracefuse.runtime.host_ops import HostCall
from tracefuse.runtime.launch_code import Border, LaunchCode, Names
from tracefuse.runtime.streams.slices import Computation, OnSlices
from tracefuse.runtime.streams.stream_plan import HostSlices, host_op_of
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.library_calls import library_launch
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.launch_spec import Lowered

Run: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], "Sequence[Any] | None"]
"""Called with what a segment reads and the memory of its results, or nothing for results that it makes and returns."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSegment:
    """A segment with its kernels. functions: one compiled kernel a launch. run: the segment alone, from its inputs and
    the memory of its outputs. code: what its kernels are given, None where a call runs the segment by `run`; lowered is
    None for a library call."""

    part: Part
    lowered: Lowered | None
    functions: tuple[Any, ...]
    run: Run
    inputs: tuple[int, ...]
    name: str
    code: LaunchCode | None = None

    @property
    def scratch(self) -> tuple[tuple[DType, Extent], ...]:
        """The type and the count of elements, in the fusion's extents, of each buffer that it needs while it runs."""
        if self.code is None or self.lowered is None:
            return ()
        sizes = zip(self.code.scratch_extents(), self.lowered.scratch, strict=True)
        return tuple((scratch.dtype, size) for size, scratch in sizes)

    @property
    def template(self) -> str:
        if self.part.slices is not None:
            return "stream"
        return "library" if self.lowered is None else self.lowered.template

    def __str__(self) -> str:
        return self.name


Watch: TypeAlias = Callable[[CompiledSegment, int], CompiledSegment]
"""What runs in place of a segment, from it and its position."""


def kernel_segment(
    border: Border, lowered: Lowered, functions: tuple[Any, ...], position: int, target: Target
) -> CompiledSegment:
    """A segment with the compiled kernels of its launches, in order."""
    code = LaunchCode(border, lowered)
    inputs = code.inputs()
    run = _run(code, inputs, functions, target)
    name = f"{lowered.template}{position}"
    return CompiledSegment(border.part, lowered, functions, run, inputs, name, code)


def _run(code: LaunchCode, inputs: tuple[int, ...], functions: tuple[Any, ...], target: Target) -> Run:
    """The segment alone: a function of its inputs and of the memory of its outputs."""
    where = {number: f"i[{k}]" for k, number in enumerate(inputs)}
    where |= {number: f"o[{k}]" for k, number in enumerate(code.border.part.segment.original_outputs)}
    calls = target.calls
    names = Names(lambda n: calls.argument_text(where[n]), where.__getitem__, where.__getitem__, lambda k: f"b{k}")
    lines = ["def run(i, o):"]
    for k, size in enumerate(code.scratch(names)):
        lines += [f"    s{k} = empty(({size},), d{k})", f"    b{k} = {calls.argument_text(f's{k}')}"]
    lines += ["    c = zeros(1, int64)"] if code.noted else []
    stream = calls.stream_text()
    for k, arguments in enumerate(code.arguments(names)):
        lines.append(f"    k{k}({', '.join([*([] if stream is None else [stream]), *arguments])})")
    lines += code.checks(names, "raise_noted")
    scope: dict[str, Any] = {f"k{k}": target.compiler.entry(function) for k, function in enumerate(functions)}
    scope |= {f"d{k}": scratch.dtype for k, scratch in enumerate(code.lowered.scratch)}
    scope |= {**calls.names(), "min": min, "max": max, "raise_noted": code.raise_noted}
    scope |= {"zeros": np.zeros, "int64": np.int64}
    return compile_function("\n".join(lines), "run", scope, "segment")  # type: ignore[no-any-return]


def _nothing(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[()]:
    return ()


def called_segment(
    part: Part, position: int, target: Target, slices_of: Callable[[Sliced], Computation] | None, watch: Watch | None
) -> CompiledSegment:
    """A segment without kernels of its own: slices, one operation of the array library, or a library call.

    slices_of: compiles what computes one slice. watch: what runs in place of what the array library computes in slices.
    """
    inputs = part.segment.original_inputs
    if part.slices is not None:
        assert slices_of is not None
        watched = None if watch is None else _watched_slices(part, part.slices, position, watch)
        run = OnSlices.of(watched or slices_of(part.slices), part.slices)
        return CompiledSegment(part, None, (), run, inputs, f"slices{position}")
    operation = None if part.library is not None else host_op_of(part)
    if operation is None:
        return _library_segment(part, position, target)
    return CompiledSegment(part, None, (), _host_run(operation, part, target.device), inputs, f"{operation}{position}")


def _watched_slices(part: Part, slices: Sliced, position: int, watch: Watch) -> Computation | None:
    """Slices that the array library computes, watched one by one; None where it does not."""
    operation = host_op_of(part)
    if operation is None:
        return None
    (slice_part,) = segment_fusion(slices.fusion).segments
    inputs, name = slice_part.segment.original_inputs, f"{operation}{position}"
    watched = watch(CompiledSegment(slice_part, None, (), _host_run(operation, slice_part), inputs, name), position)
    return HostSlices(watched.run, slices.fusion, watched.inputs)


def _host_run(operation: HostCall, part: Part, device: ArrayDevice | None = None) -> Run:
    """A segment that the array library computes: into given memory, or on `device` into new arrays."""
    (node,) = part.fusion.nodes
    inputs, index_map = part.segment.original_inputs, part.segment.index_map
    places = [inputs.index(index_map[o]) for o in node.operands if isinstance(o, int)]

    def run(given: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        operands = [given[place] for place in places]
        if device is not None:
            return (device.host_op(operation, operands, None),)
        operation(operands, outputs[0])
        return None

    return run


def _library_segment(part: Part, position: int, target: Target) -> CompiledSegment:
    assert part.library is not None
    # A result that nothing reads is not computed.
    run = library_launch(part.fusion, part.library, target.library) if part.segment.outputs else _nothing
    inputs = part.segment.original_inputs
    return CompiledSegment(part, None, (), run, inputs, f"{part.library.op.name}{position}")
