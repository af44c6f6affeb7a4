"""What a definition may put out, and which input an output may update.

Knows: the builder, shapes and types of values. Must not know: how anything runs.
"""

from __future__ import annotations

from tracefuse import source
from tracefuse.errors import DtypeError, FusionError, ShapeError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion, Operand


def aliased_input(builder: FusionBuilder, output: int, owner: Operand) -> int:
    """The input whose memory `output` updates; records that their extents are equal.

    Raises FusionError for what is no input tensor or is updated already, DtypeError or ShapeError where the output does
    not fit.
    """
    where = source.user_line()
    if not isinstance(owner, int) or owner not in builder.inputs or not builder.values[owner].is_tensor:
        named = f"T{owner}" if isinstance(owner, int) else repr(owner.value)
        raise FusionError(
            f"add_output: alias_input {named} is no input tensor", hint="name a tensor of define_tensor", where=where
        )
    for value, taken in builder.aliases.items():
        if taken == owner:
            raise FusionError(
                f"add_output: input T{owner} is updated by output T{value} already", hint="update each input once",
                where=where,
            )  # fmt: skip
    made, own = builder.values[output], builder.values[owner]
    if not made.is_tensor or made.dtype is not own.dtype:
        kind = str(made.dtype) if made.is_tensor else "a scalar"
        raise DtypeError(
            f"add_output: T{output} is {kind} and cannot update T{owner}, which is {own.dtype}",
            hint="cast the output", where=where,
        )  # fmt: skip
    if len(made.shape) != len(own.shape):
        raise ShapeError(
            f"add_output: T{output} has {len(made.shape)} axes and cannot update T{owner}, which has {len(own.shape)}",
            where=where,
        )
    for axis, (extent, expected) in enumerate(zip(made.shape, own.shape, strict=True)):
        message = f"add_output: T{output} has {{left}} elements on axis {axis}, T{owner}, which it updates, {{right}}"
        builder.require(extent, "==", expected, message, "broadcast the output to the shape of the input", where)
    return owner


def check_outputs(fusion: Fusion) -> None:
    """Raises FusionError where an output is an input that another output updates."""
    for value, owner in fusion.aliases.items():
        if owner in fusion.outputs:
            raise FusionError(
                f"input T{owner} is an output, and output T{value} updates its memory",
                hint=f"add a copy: fd.add_output(fd.ops.set(T{owner}))",
            )
