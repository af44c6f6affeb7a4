"""`fd.ops` of nvFuser scripts: refuses what nvFuser refuses, where a definition of tracefuse takes more.

The messages begin with nvFuser's words, which scripts compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.definition.handles import Tensor
from tracefuse.definition.operations import Operations
from tracefuse.definition.signatures import records
from tracefuse.errors import DtypeError, ShapeError, TracefuseError, UnsupportedError
from tracefuse.ir.extents import Expression
from tracefuse.ops.roles import CHOICE


class ScriptOperations(Operations):
    """The operations of one definition of an nvFuser script."""

    @records
    def slice(
        self, arg: Tensor, start_indices: Any, end_indices: Any, strides: Any = None,
        manual_normalization: bool = False, dtype: Any = None, compute: Any = None,
    ) -> Any:  # fmt: skip
        """Elements from start up to end, exclusive, on every axis; bounds are clamped to the axis.

        Raises ShapeError for a negative start, an end before its start, and lists of different lengths, and
        UnsupportedError for strides other than 1, as nvFuser does.
        """
        steps = [1] * len(start_indices) if strides is None else strides
        _check_slice(arg.ndim, start_indices, end_indices, steps)
        return super().slice(arg, start_indices, end_indices, None, manual_normalization, dtype, compute)

    @records
    def where(self, a: Any, b: Any, c: Any, *, dtype: Any = None, compute: Any = None) -> Any:
        """b where a is true, else c. Raises DtypeError for a condition that is no truth value."""
        if self.recording.dtype_kind(a) != "bool":
            kind = a.dtype if hasattr(a, "dtype") else type(a).__name__
            raise DtypeError(f"where: Condition should be of DataType Bool, not {kind}", hint="fd.ops.ne(a, 0)")
        return self._pointwise(CHOICE, a, b, c, dtype=dtype, compute=compute)


def _check_slice(rank: int, starts: Sequence[Any], ends: Sequence[Any], steps: Sequence[Any]) -> None:
    def refuse(message: str, hint: str, error: type[TracefuseError] = ShapeError) -> None:
        raise error(
            f"{message} start_indices {list(starts)}, end_indices {list(ends)}, strides {list(steps)}", hint=hint
        )

    if len(starts) != len(steps):
        refuse("Slice start_indices and strides don't match!", "give one of each for every axis")
    if len(starts) != len(ends):
        refuse("Slice indexing attribute dimensions don't match!", "give one of each for every axis")
    if len(starts) != rank:
        refuse(f"Number of tensor dimensions does not match slice dimensions! {rank} axes,", "give one for every axis")
    for start, end, step in zip(starts, ends, steps, strict=True):
        if isinstance(start, int) and start < 0:
            refuse("Slice operation start_indices must be greater than or equal to 0.", "count from the front")
        if not isinstance(start, Expression) and not isinstance(end, Expression) and end < start:
            refuse("Slice operation end_indices must be greater than or equal to start_indices.", "exchange the two")
        if step != 1:
            refuse(
                "nvFuser Limitation: All slice operation strides must be of const size 1.",
                "tracefuse.FusionDefinition takes other strides", UnsupportedError,
            )  # fmt: skip
