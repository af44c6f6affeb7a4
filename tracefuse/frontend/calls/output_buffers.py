"""`out=` of a fused function: output buffers in a pytree with the structure of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.values.result_leaves import ArgumentLeaf, OutputLeaf, ResultLeaf, count_outputs
from tracefuse.frontend.tracer.values.traced import Traced


def output_buffers(structure: Any, results: Sequence[ResultLeaf], out: Any) -> list[Any]:
    """The output buffer of each output of a trace, or None.

    structure, results: of the trace. Raises TraceError if `out` has another structure, and UnsupportedError for a
    buffer in the place of a leaf that the fusion does not compute.
    """
    leaves = _leaves(structure, out)
    buffers: list[Any] = [None] * count_outputs(results)
    for result, buffer in zip(results, leaves, strict=True):
        if isinstance(result, OutputLeaf):
            buffers[result.position] = buffer
        elif buffer is not None:
            description = "an argument, returned as it is" if isinstance(result, ArgumentLeaf) else "not an array"
            raise UnsupportedError(f"out= has an array where the result is {description}", hint="give None there")
    return buffers


def write_into(out: Any, result: Any) -> Any:
    """Writes a result into `out`, whose leaves are arrays, traced values or None, and returns the filled pytree."""
    values, structure = pytrees.flatten(result)
    leaves = _leaves(structure, out)
    for position, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        if isinstance(leaf, Traced):
            leaves[position] = into(leaf, as_tensor(value))
        elif leaf is None:
            leaves[position] = value
        else:
            leaf[...] = value
    return pytrees.unflatten(structure, leaves)


def _leaves(structure: Any, out: Any) -> list[Any]:
    leaves, out_structure = pytrees.flatten(out)
    if out_structure != structure:
        raise TraceError(
            f"out= is {out_structure}, the result is {structure}",
            hint="give a pytree with the structure of the result; None stands for an array to allocate",
        )
    return leaves
