"""The segments of a plan: compiled kernels, library calls, host operations and stream-parallel slices.

Each has a `run` function that runs the segment by itself, from its inputs and the buffers of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.config import Options
from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_function, made_when_called
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.extents import Extent
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.partition.segmentation import Part, segment_fusion
from tracefuse.partition.slicing import Sliced
from tracefuse.passes.product_epilogues import EpilogueMatch
from tracefuse.runtime.control_flow_calls import ComputationOf, ControlFlowRun
from tracefuse.runtime.exchange_steps import ExchangeStep, exchange_step
from tracefuse.runtime.host_ops import HostCall
from tracefuse.runtime.launch_code import ArgumentNames, LaunchCode, SegmentInterface
from tracefuse.runtime.product_segments import ProductCode
from tracefuse.runtime.streams.slices import Computation, OnSlices
from tracefuse.runtime.streams.stream_plan import HostSlices, host_op_of
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.library_calls import library_launch
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.launch_spec import Lowered

Run: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], "Sequence[Any] | None"]
"""Called with a segment's inputs and output buffers. Without output buffers it returns new arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSegment:
    """A segment that is ready to run.

    lowered: its kernels, None for a library call. functions: for each launch, the compiled kernel or the function of
    the library that is launched like one. run: runs the segment by itself. inputs: the values that it reads, by number
    in the fusion. code: writes the arguments of launches, None if a call runs the segment through `run`. exchange: the
    exchange that it is, which the program starts and waits for.
    """

    part: Part
    lowered: Lowered | None
    functions: tuple[Any, ...]
    run: Run
    inputs: tuple[int, ...]
    name: str
    code: LaunchCode | None = None
    exchange: ExchangeStep | None = None

    @property
    def scratch(self) -> tuple[tuple[DType, Extent], ...]:
        """The dtype and number of elements of each scratch buffer, in the extents of the fusion."""
        if self.code is None or self.lowered is None:
            return ()
        sizes = zip(self.code.scratch_extents(), self.lowered.scratch, strict=True)
        return tuple((scratch.dtype, size) for size, scratch in sizes)

    @property
    def has_error_flag(self) -> bool:
        """Whether its kernels set a flag for an index out of range."""
        return self.code is not None and bool(self.code.checked_nodes)

    @property
    def is_launched(self) -> bool:
        """Whether it consists of launches that write to allocated buffers, not of a call that returns new arrays."""
        return self.lowered is not None or bool(self.functions)

    @property
    def only_function(self) -> Any:
        """The kernel of a segment that only launches one, without scratch buffers and checks; None for others."""
        is_plain = self.lowered is not None and not self.scratch and not self.has_error_flag
        return self.functions[0] if is_plain and len(self.functions) == 1 else None

    @property
    def template(self) -> str:
        if self.part.slices is not None:
            return "stream"
        if self.lowered is not None:
            return self.lowered.template
        return "library" if self.part.library is None else self.part.template

    def __str__(self) -> str:
        return self.name


def progress_of(segment: CompiledSegment, target: Target) -> list[str]:
    """Returns how far those kernels of a segment are compiled that run quickly compiled code first."""
    functions = () if segment.lowered is None else segment.functions
    return [text for text in map(target.compiler.progress, functions) if text]


def product_segment(
    interface: SegmentInterface, match: EpilogueMatch, function: Any, position: int, target: Target
) -> CompiledSegment:
    """Builds the segment of a product that a function of the library computes from addresses."""
    code = ProductCode(interface, match)
    inputs = code.inputs()
    run = _run(code, inputs, (function,), target)
    name = f"{match.product.op.name}{position}"
    return CompiledSegment(interface.part, None, (function,), run, inputs, name, code)


Watch: TypeAlias = Callable[[CompiledSegment, int], CompiledSegment]
"""Wraps a segment, given its position, and returns the segment to run instead."""


def kernel_segment(
    interface: SegmentInterface, lowered: Lowered, functions: tuple[Any, ...], position: int, target: Target
) -> CompiledSegment:
    """Builds the segment of compiled kernels. functions: one for each launch, in order."""
    code = LaunchCode(interface, lowered)
    inputs = code.inputs()
    run = _run(code, inputs, functions, target)
    name = f"{lowered.template}{position}"
    return CompiledSegment(interface.part, lowered, functions, run, inputs, name, code)


def _run(code: LaunchCode, inputs: tuple[int, ...], functions: tuple[Any, ...], target: Target) -> Run:
    """Returns the function that runs a segment by itself, from its inputs and output buffers. Calls seldom use it."""
    return made_when_called(lambda: _compiled_run(code, inputs, functions, target))


def _compiled_run(code: LaunchCode, inputs: tuple[int, ...], functions: tuple[Any, ...], target: Target) -> Run:
    where = {number: f"i[{k}]" for k, number in enumerate(inputs)}
    where |= {number: f"o[{k}]" for k, number in enumerate(code.interface.part.segment.original_outputs)}
    calls = target.calls
    array = where.__getitem__
    names = ArgumentNames(lambda n: calls.argument_text(where[n]), array, array, lambda k: f"b{k}")
    lines = ["def run(i, o):"]
    for k, size in enumerate(code.scratch(names)):
        lines += [f"    s{k} = empty(({size},), d{k})", f"    b{k} = {calls.argument_text(f's{k}')}"]
    lines += ["    c = zeros(1, int64)"] if code.checked_nodes else []
    stream = calls.stream_text()
    for k, arguments in enumerate(code.arguments(names)):
        lines.append(f"    k{k}({', '.join([*([] if stream is None else [stream]), *arguments])})")
    lines += code.checks(names, "raise_error")
    scope: dict[str, Any] = {f"k{k}": target.compiler.entry(function) for k, function in enumerate(functions)}
    scope |= {f"d{k}": scratch.dtype for k, scratch in enumerate(code.lowered.scratch)}
    scope |= {**calls.names(), "min": min, "max": max, "raise_error": code.raise_error}
    scope |= {"zeros": np.zeros, "int64": np.int64}
    return compile_function("\n".join(lines), "run", scope, "segment")  # type: ignore[no-any-return]


def _return_nothing(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[()]:
    return ()


def called_segment(
    part: Part, position: int, target: Target, slices_of: Callable[[Sliced], Computation] | None, watch: Watch | None,
    computation_of: ComputationOf | None = None, disk: DiskCache | None = None, options: Options | None = None,
) -> CompiledSegment:  # fmt: skip
    """Builds a segment without kernels: stream-parallel slices, one operation of the array library, or a library call.

    slices_of: compiles the computation of one slice. computation_of: compiles a sub-fusion. watch: wraps the segments
    of slices that the array library computes. disk: the cache of loop drivers. options: select whether
    drivers run loops, and what is logged of them; by default those in force.
    """
    inputs = part.segment.original_inputs
    if part.library is not None and isinstance(part.library.op, ControlFlow) and part.segment.outputs:
        assert computation_of is not None
        run_node = ControlFlowRun(
            part.fusion, part.library, part.segment.outputs, target, computation_of, disk, options
        )
        return CompiledSegment(part, None, (), run_node, inputs, f"{part.library.op.name}{position}")
    if part.slices is not None:
        assert slices_of is not None
        watched = None if watch is None else _watch_slices(part, part.slices, position, watch)
        run = OnSlices.of(watched or slices_of(part.slices), part.slices)
        return CompiledSegment(part, None, (), run, inputs, f"slices{position}")
    operation = None if part.library is not None else host_op_of(part)
    if operation is None:
        return _library_segment(part, position, target)
    return CompiledSegment(
        part, None, (), _run_host_op(operation, part, target.device), inputs, f"{operation}{position}"
    )


def _watch_slices(part: Part, slices: Sliced, position: int, watch: Watch) -> Computation | None:
    """Wraps each slice that the array library computes, None if kernels compute them."""
    operation = host_op_of(part)
    if operation is None:
        return None
    (slice_part,) = segment_fusion(slices.fusion).segments
    inputs, name = slice_part.segment.original_inputs, f"{operation}{position}"
    watched = watch(CompiledSegment(slice_part, None, (), _run_host_op(operation, slice_part), inputs, name), position)
    return HostSlices(watched.run, slices.fusion, watched.inputs)


def _run_host_op(operation: HostCall, part: Part, device: ArrayDevice | None = None) -> Run:
    """Returns the function of a segment that the array library computes.

    It writes to the output buffer, or if there is a `device`, returns a new array of it.
    """
    (node,) = part.fusion.nodes
    inputs, index_map = part.segment.original_inputs, part.segment.index_map
    places = [inputs.index(index_map[o]) for o in node.operands if isinstance(o, int)]

    def run(arguments: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        operands = [arguments[place] for place in places]
        if device is not None:
            return (device.host_op(operation, operands, None),)
        operation(operands, outputs[0])
        return None

    return run


def _library_segment(part: Part, position: int, target: Target) -> CompiledSegment:
    assert part.library is not None
    # A library call whose result has no reader runs only for its effect.
    runs = bool(part.segment.outputs) or part.library.op.effect
    run = library_launch(part.fusion, part.library, target.library) if runs else _return_nothing
    inputs = part.segment.original_inputs
    name = f"{part.library.op.name}{position}"
    return CompiledSegment(part, None, (), run, inputs, name, exchange=exchange_step(part))
