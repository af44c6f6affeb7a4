"""`out=` of a fused function: an array, or a tree of them like the result.

Knows: pytrees, how the leaves of a result are made. Must not know: traces, executables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.tracer.in_place import into
from tracefuse.frontend.tracer.result_leaves import ArgumentLeaf, OutputLeaf, ResultLeaf, count_outputs
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import as_tensor


def given_leaves(structure: Any, results: Sequence[ResultLeaf], out: Any) -> list[Any]:
    """For each output of a trace, the array that `out` has in its place, or None.

    structure, results: those of the trace. Raises TraceError for another structure, UnsupportedError for an array in
    the place of something that is no computed array.
    """
    leaves = _leaves(structure, out)
    buffers: list[Any] = [None] * count_outputs(results)
    for result, buffer in zip(results, leaves, strict=True):
        if isinstance(result, OutputLeaf):
            buffers[result.position] = buffer
        elif buffer is not None:
            what = "an argument, returned as it is" if isinstance(result, ArgumentLeaf) else "not an array"
            raise UnsupportedError(f"out= has an array where the result is {what}", hint="give None there")
    return buffers


def put_into(out: Any, result: Any) -> Any:
    """Writes a result into `out`, arrays or traced values, and returns the tree of both."""
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
    leaves, own = pytrees.flatten(out)
    if own != structure:
        raise TraceError(
            f"out= is {own}, the result is {structure}", hint="give a tree like the result, with None leaves"
        )
    return leaves
