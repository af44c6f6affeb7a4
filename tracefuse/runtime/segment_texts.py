"""The kernels of compiled segments as text.

Must not know: plans.
"""

from __future__ import annotations

from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.runtime.compiled_segment import CompiledSegment


def texts_of(segment: CompiledSegment) -> list[str]:
    """Returns the readable text of each kernel, or the line that names the library call."""
    if segment.lowered is None:
        return [_library_text(segment)]
    return [kernel_text(launch.kernel) for launch in segment.lowered.launches]


def sources_of(segment: CompiledSegment) -> list[str]:
    """Returns the LLVM IR or CUDA C++ of each kernel, or the line that names the library call."""
    return [_library_text(segment)] if segment.lowered is None else [function.source for function in segment.functions]


def _library_text(segment: CompiledSegment) -> str:
    fusion = segment.part.fusion
    node = segment.part.library or fusion.nodes[-1]
    shapes = ", ".join(str(fusion.values[number].type) for number in node.inputs)
    library = "the target's library" if segment.part.library is not None else "the array library"
    slices = "" if segment.part.slices is None else ", slice by slice"
    return f"{node.op.name}({shapes}) by {library}{slices}"
