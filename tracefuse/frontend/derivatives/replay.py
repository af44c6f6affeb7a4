"""Records the nodes of a sub-fusion once more, on other values of a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, as_symbol, input_extent, scalar_extent, substitute
from tracefuse.ir.extents import as_symbol as symbol_of
from tracefuse.ir.fusion import Fusion, Operand, SubFusion
from tracefuse.ir.subfusion import map_extents


def replay(recorder: Recorder, part: SubFusion, operands: Sequence[Any]) -> list[Traced]:
    """Records the nodes of `part` on the operands of its op, and returns its outputs.

    operands: traced values and Python numbers; None for one that the part does not read.
    """
    fusion = part.fusion
    arguments = [recorder.resolve(operand) for operand in part.select(operands)]
    values: dict[int, Operand] = {
        number: argument.operand for number, argument in zip(fusion.inputs, arguments, strict=True)
    }
    extents = _extents(recorder, fusion, values)
    for node in fusion.nodes:
        numbers = recorder.builder.node(
            node.op,
            [values[operand] if isinstance(operand, int) else operand for operand in node.operands],
            {name: map_extents(value, lambda e: substitute(e, extents)) for name, value in node.attributes.items()},
            node.compute, [fusion.values[number].dtype for number in node.outputs], where=node.where,
            extents=[_scalar_extent(fusion, number, extents) for number in node.outputs],
        )  # fmt: skip
        values.update(zip(node.outputs, numbers, strict=True))
    return [_traced(recorder, values[number]) for number in fusion.outputs]


def _traced(recorder: Recorder, operand: Operand) -> Traced:
    return recorder.traced_type(recorder, operand)  # type: ignore[arg-type]


def _extents(recorder: Recorder, fusion: Fusion, values: Mapping[int, Operand]) -> dict[Any, Extent]:
    """Returns the extent of the recording for each symbol of the fusion."""
    known: dict[Any, Extent] = {}
    for key, number, axis in fusion.axis_ids():
        operand = values[number]
        assert isinstance(operand, int)
        known[symbol_of(input_extent(-key - 1))] = recorder.simplify(recorder.builder.values[operand].shape[axis])
    for number in fusion.scalar_inputs:
        extent_of_scalar = fusion.values[number].extent
        if extent_of_scalar is not None:
            operand = values[number]
            extent = recorder.builder.values[operand].extent if isinstance(operand, int) else operand.value
            known[as_symbol(extent_of_scalar) or symbol_of(scalar_extent(number))] = extent  # type: ignore[assignment]
    return known


def _scalar_extent(fusion: Fusion, number: int, extents: Mapping[Any, Extent]) -> Extent | None:
    extent = fusion.values[number].extent
    return None if extent is None else substitute(extent, extents)
