"""Checks on the outputs of a definition, on those that update an input in place, and on their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import source
from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.errors import DtypeError, FusionError, ShapeError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion, Operand
from tracefuse.ir.library_kinds import Library, WholeArrayOp
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction
from tracefuse.ir.reference import evaluate
from tracefuse.runtime.devices.array_descriptions import assert_close, on_host
from tracefuse.runtime.memory.buffer_facts import returned


def aliased_input(builder: FusionBuilder, output: int, owner: Operand) -> int:
    """Returns the input that `output` updates in place, and requires their extents to be equal.

    Raises FusionError if `owner` is not an input tensor or another output already updates it; DtypeError or ShapeError
    if the dtype or rank of the output differs.
    """
    where = source.user_line()
    if not isinstance(owner, int) or owner not in builder.inputs or not builder.values[owner].is_tensor:
        named = f"T{owner}" if isinstance(owner, int) else repr(owner.value)
        raise FusionError(
            f"add_output: alias_input {named} is not an input tensor",
            hint="name a tensor of define_tensor",
            where=where,
        )
    for value, aliased in builder.aliases.items():
        if aliased == owner:
            raise FusionError(
                f"add_output: output T{value} already updates input T{owner}", hint="update each input once",
                where=where,
            )  # fmt: skip
    new, old = builder.values[output], builder.values[owner]
    if not new.is_tensor or new.dtype is not old.dtype:
        kind = str(new.dtype) if new.is_tensor else "a scalar"
        raise DtypeError(
            f"add_output: T{output} is {kind} and cannot update T{owner}, which is {old.dtype}",
            hint="cast the output", where=where,
        )  # fmt: skip
    if len(new.shape) != len(old.shape):
        raise ShapeError(
            f"add_output: T{output} has {len(new.shape)} axes and cannot update T{owner}, which has {len(old.shape)}",
            where=where,
        )
    for axis, (extent, expected) in enumerate(zip(new.shape, old.shape, strict=True)):
        message = f"add_output: T{output} has {{left}} elements on axis {axis}, T{owner}, which it updates, {{right}}"
        builder.require(extent, "==", expected, message, "broadcast the output to the shape of the input", where)
    return owner


def check_count(forms: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raises FusionError for a wrong number of output buffers."""
    if len(outputs) != len(forms):
        raise FusionError(
            f"outputs holds {len(outputs)} arrays, and the definition returns {len(forms)}",
            hint="give an array or None for each",
        )


def check_values(
    fusion: Fusion, run: Callable[[], list[Any]], inputs: Sequence[Any], reference_outputs: Sequence[Any] | None
) -> list[Any]:
    """Runs a definition, compares its outputs with `reference_outputs`, by default in float64, and returns them.

    Raises AssertionError for an output that is not close, FusionError for a wrong number of reference outputs.
    """
    hosted = [on_host(i) for i in inputs]
    bounds, values = _bounds_and_values(fusion, hosted)
    numbers = returned(fusion)
    expected_outputs = [values[number] for number in numbers] if reference_outputs is None else reference_outputs
    outputs = run()  # after the reference implementation, since it may update the inputs
    if len(outputs) != len(expected_outputs):
        raise FusionError(
            f"validate: the definition has {len(outputs)} outputs, and reference_outputs {len(expected_outputs)}",
            hint="give one reference for each output",
        )
    share = 1 if reference_outputs is None else 2  # a given reference rounds as well
    for number, output, expected in zip(numbers, outputs, expected_outputs, strict=True):
        bound = None if number not in bounds else share * bounds[number]
        assert_close(output, expected, fusion.values[number].dtype, f"output {number}", bound)
    return outputs


def _bounds_and_values(fusion: Fusion, inputs: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Returns error bounds and values in float64 of the outputs, by number; no bounds for ops that have none."""
    bounded = all(isinstance(node.op, Pointwise | Reduction | Movement | Library) for node in fusion.nodes)
    if not bounded or any(isinstance(node.op, WholeArrayOp) for node in fusion.nodes):
        return {}, dict(zip(fusion.outputs, evaluate(fusion, inputs, wide=True), strict=True))
    pairs = dict(zip(fusion.outputs, bounded_outputs(fusion, inputs), strict=True))
    return {n: bound for n, (_, bound) in pairs.items()}, {n: value for n, (value, _) in pairs.items()}
