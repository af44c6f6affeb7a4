"""Checks on the outputs of a definition, on those that update an input in place, and on their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import source
from tracefuse.errors import DtypeError, FusionError, ShapeError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion, Operand
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


def check_outputs(fusion: Fusion) -> None:
    """Raises FusionError if an output is an input that another output updates."""
    for value, owner in fusion.aliases.items():
        if owner in fusion.outputs:
            raise FusionError(
                f"input T{owner} is an output, and output T{value} updates its buffer",
                hint=f"add a copy: fd.add_output(fd.ops.set(T{owner}))",
            )


def check_values(
    fusion: Fusion, run: Callable[[], Sequence[Any]], inputs: Sequence[Any], reference_outputs: Sequence[Any] | None
) -> None:
    """Runs a definition and compares its outputs with `reference_outputs`, by default those of `evaluate` in float64.

    Raises AssertionError for an output that is not close, FusionError for a wrong number of reference outputs.
    """
    expected_outputs = reference_outputs
    if expected_outputs is None:
        values = evaluate(fusion, [on_host(i) for i in inputs], wide=True)
        pairs = zip(fusion.outputs, values, strict=True)
        expected_outputs = [value for number, value in pairs if number not in fusion.aliases]
    outputs = run()  # after the reference implementation, since it may update the inputs
    if len(outputs) != len(expected_outputs):
        raise FusionError(
            f"validate: the definition has {len(outputs)} outputs, and reference_outputs {len(expected_outputs)}",
            hint="give one reference for each output",
        )
    for number, output, expected in zip(returned(fusion), outputs, expected_outputs, strict=True):
        assert_close(output, expected, fusion.values[number].dtype, f"output {number}")
