"""A definition while it is recorded: its builder, the numbers of its values, and how operands are read.

Integer scalars carry the integer expression that they are, so that a shape made from them stays symbolic. A vector has
a number of the shared numbering, which the IR leaves out.

Knows: the IR and its builder. Must not know: which operations there are, segments, execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import source
from tracefuse.definition.handles import Handle, LoopAxis, Scalar, Tensor, Vector
from tracefuse.definition.signatures import records
from tracefuse.dtypes import DataType, DType, check_fits, dtype_of, python_kind
from tracefuse.errors import FusionError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Fusion, Literal, Op, Operand
from tracefuse.ir.printing import VectorValue, data_operands


class Recording:
    """A definition while it is recorded. `ops`: its operations."""

    ops: Any

    def __init__(self) -> None:
        self._builder = FusionBuilder()
        self._builder.decides_later = True
        self._vectors: dict[int, VectorValue] = {}
        # Of host scalars that compare integers: 1 where it holds, else 0.
        self._truths: dict[int, Extent] = {}
        self._fusion: Fusion | None = None
        self._axes: dict[int, list[LoopAxis]] = {}

    def _record(self) -> FusionBuilder:
        """The builder; FusionError once the definition is complete."""
        if self._fusion is not None:
            raise FusionError(
                "the definition is complete: nothing can be added to it",
                hint="record inside `with FusionDefinition() as fd:`", where=source.user_line(),
            )  # fmt: skip
        return self._builder

    def _loop_axes(self, number: int) -> list[LoopAxis]:
        """The axes of a tensor as splits have left them."""
        whole: list[LoopAxis] = [(axis, "whole", None) for axis in range(len(self._builder.values[number].shape))]
        return self._axes.setdefault(number, whole)

    def _handle(self, number: int) -> Tensor | Scalar:
        return (Tensor if self._builder.values[number].is_tensor else Scalar)(self, number)

    def _vector(self, elements: Sequence[Extent], shape_of: int | None = None) -> Vector:
        number = self._record().new_number()
        self._vectors[number] = VectorValue(number, tuple(elements), shape_of)
        return Vector(self, self._vectors[number])

    def forget_from(self, number: int) -> None:
        """Forgets vectors and comparisons whose numbers are given again."""
        for held in (self._vectors, self._truths):
            while held and next(reversed(held)) >= number:
                held.popitem()

    def handle_kind(self, value: Any) -> str | None:
        """ "tensor", "scalar" or "vector" of this definition, "foreign" for another's, None for other values."""
        if not isinstance(value, Handle | Vector):
            return None
        if value._fd is not self:
            return "foreign"
        return "vector" if isinstance(value, Vector) else "tensor" if isinstance(value, Tensor) else "scalar"

    def has_extent(self, id: int) -> bool:
        """Whether a symbolic integer with this id is one of this definition."""
        return -id <= self._builder.axes if id < 0 else id in self._builder.values

    # -- operands ---------------------------------------------------------------------------------------------------

    def _operand(self, value: Any) -> Operand:
        """A value of this definition by number, or a constant."""
        if isinstance(value, Handle):
            return value._number
        python_kind(value)
        return Literal(value)

    def _kind(self, value: Any) -> str:
        """The kind of dtype of an operand."""
        operand = self._operand(value)
        return python_kind(operand.value) if isinstance(operand, Literal) else self._builder.values[operand].dtype.kind

    def _dtypes(self, numbers: Sequence[int]) -> tuple[list[DType], list[DType]]:
        """The types of the tensors and of the scalars among `numbers`."""
        values = [self._builder.values[n] for n in numbers]
        return [v.dtype for v in values if v.is_tensor], [v.dtype for v in values if not v.is_tensor]

    def _dtype_of(self, operand: Operand) -> DType:
        if isinstance(operand, Literal):
            defaults = {"bool": DataType.Bool, "int": DataType.Int, "float": DataType.Float}
            return dtype_of(defaults.get(python_kind(operand.value), DataType.ComplexFloat))
        return self._builder.values[operand].dtype

    def _extent_or_none(self, operand: Operand) -> Extent | None:
        """The integer expression that an operand is, None for anything but integers."""
        if isinstance(operand, Literal):
            return operand.value if isinstance(operand.value, int) and not isinstance(operand.value, bool) else None
        return self._builder.values[operand].extent

    # -- applying rows ----------------------------------------------------------------------------------------------

    def _apply(
        self, row: Op, operands: Sequence[Operand], attributes: Attributes, compute: DType, dtypes: Sequence[DType],
        *, extents: Sequence[Extent | None] = (),
    ) -> tuple[Tensor | Scalar, ...]:  # fmt: skip
        """Records one node and hands out its results."""
        for operand in data_operands(row, operands):
            if isinstance(operand, Literal):
                check_fits(operand.value, compute, row.name)
        where = source.user_line()
        made = self._record().node(row, operands, attributes, compute, dtypes, where=where, extents=extents)
        return tuple(map(self._handle, made))

    @records
    def extent(self, id: int) -> Extent:
        """The symbolic integer with this id, which takes no number: an axis of the inputs, or an integer scalar.

        id: -1, -2, ... the extents of the input tensors in the order of tensor and axis; from 0 up the number of a
        scalar. The result can be computed with and put into shapes.
        """
        if id >= 0:
            found = self._builder.values[id].extent if id in self._builder.values else None
        else:
            inputs = [self._builder.values[number] for number in self._builder.inputs]
            axes = [extent for value in inputs if value.is_tensor for extent in value.shape]
            found = axes[-id - 1] if -id <= len(axes) else None
        if found is None:
            raise FusionError(
                f"extent: the definition has no extent with id {id}",
                hint="-1, -2, ... are the axes of its inputs, from 0 up its integer scalars",
            )
        return found
