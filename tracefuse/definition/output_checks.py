"""Checks on the outputs of a definition, and on outputs that update an input in place."""

from __future__ import annotations

from tracefuse import source
from tracefuse.errors import DtypeError, FusionError, ShapeError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion, Operand


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
