"""The recording interface: what `fd`, `fd.ops` and the handles use to add to a definition.

`Recording` owns the IR builder of one definition and translates between handles, value numbers and Python constants.
Integer scalars carry their symbolic extent, so a shape built from them stays symbolic. A vector takes a number in the
same numbering as the values; the IR itself has no vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import source
from tracefuse.definition.handles import Handle, LoopAxis, Scalar, Tensor, Vector
from tracefuse.dtypes import DataType, DType, check_fits, dtype_of, python_kind
from tracefuse.errors import FusionError, ShapeError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Fusion, Literal, Op, Operand
from tracefuse.ir.printing import VectorValue, data_operands
from tracefuse.ir.reference import evaluate
from tracefuse.ir.subfusion import extents_in
from tracefuse.ops import Pointwise


class Recording:
    """The state of one definition while it is recorded.

    ops: the operations (`fd.ops`), which implement the operators of handles. builder: the IR builder. vectors: vectors
    by number. comparisons: for each host scalar that compares integers, the extent that is 1 where it holds, else 0.
    stride_orders, output_orders: the order in memory that the user chose for values, and for outputs, by number.
    fusion: the complete fusion; None while the definition is open. add_output: that of the
    definition. record_part: records a function as a definition of its own, for a control-flow op.
    """

    ops: Any
    add_output: Callable[..., None]
    record_part: Callable[[Callable[[Any], None]], Fusion]

    def __init__(self) -> None:
        self.builder = FusionBuilder()
        self.builder.decides_later = True
        self.vectors: dict[int, VectorValue] = {}
        self.comparisons: dict[int, Extent] = {}
        self.stride_orders: dict[int, tuple[int, ...]] = {}
        self.output_orders: dict[int, tuple[int, ...]] = {}
        self.fusion: Fusion | None = None
        self._loop_axes: dict[int, list[LoopAxis]] = {}

    def require_builder(self) -> FusionBuilder:
        """Returns the builder. Raises FusionError once the definition is complete."""
        if self.fusion is not None:
            raise FusionError(
                "the definition is complete: nothing can be added to it",
                hint="record inside `with FusionDefinition() as fd:`", where=source.user_line(),
            )  # fmt: skip
        return self.builder

    @property
    def current(self) -> Fusion:
        """The fusion; while the definition is open, what has been recorded so far."""
        return self.builder.build() if self.fusion is None else self.fusion

    def memory_order(self, number: int, order: Sequence[int] | None) -> tuple[int, ...] | None:
        """Returns the stride order of a value, None for row-major order. order: the user's; None: that of the value.

        Raises ShapeError for an order that does not rank every axis of the value.
        """
        rank = len(self.builder.values[number].shape)
        chosen = self.stride_orders.get(number) if order is None else tuple(order)
        if chosen is not None and sorted(chosen) != list(range(rank)):
            raise ShapeError(
                f"stride_order {list(chosen)} does not order the {rank} axes of T{number}",
                hint="give each axis its rank by stride, 0 for the innermost one", where=source.user_line(),
            )  # fmt: skip
        return None if chosen == tuple(reversed(range(rank))) else chosen

    # -- handles ------------------------------------------------------------------------------------------------------

    def new_handle(self, number: int) -> Tensor | Scalar:
        """Returns the tensor or scalar handle of value `number`."""
        return (Tensor if self.builder.values[number].is_tensor else Scalar)(self, number)

    def new_vector(self, elements: Sequence[Extent], shape_of: int | None = None) -> Vector:
        """Adds a vector. shape_of: the tensor whose extents the elements are."""
        number = self.require_builder().new_number()
        self.vectors[number] = VectorValue(number, tuple(elements), shape_of)
        return Vector(self, self.vectors[number])

    def loop_axes(self, number: int) -> list[LoopAxis]:
        """Returns the axes of a tensor after its splits; splitting edits this list in place."""
        unsplit: list[LoopAxis] = [(axis, "whole", None) for axis in range(len(self.builder.values[number].shape))]
        return self._loop_axes.setdefault(number, unsplit)

    def forget_from(self, number: int) -> None:
        """Drops the vectors, comparisons and orders numbered `number` or higher; the builder reuses these numbers."""
        for by_number in (self.vectors, self.comparisons, self.stride_orders):
            while by_number and next(reversed(by_number)) >= number:
                by_number.popitem()

    def handle_kind(self, value: Any) -> str | None:
        """Returns "tensor", "scalar" or "vector" for this definition's handles, "foreign" for another's, else None."""
        if not isinstance(value, Handle | Vector):
            return None
        if value.recording is not self:
            return "foreign"
        return "vector" if isinstance(value, Vector) else "tensor" if isinstance(value, Tensor) else "scalar"

    # -- symbolic integers --------------------------------------------------------------------------------------------

    def has_extent(self, id: int) -> bool:
        """Whether a symbolic integer with this id belongs to this definition."""
        return -id <= self.builder.axes if id < 0 else id in self.builder.values

    def find_extent(self, id: int) -> Extent:
        """Returns the extent with this id (see `FusionDefinition.extent`). Raises FusionError for an unknown id."""
        if id >= 0:
            extent = self.builder.values[id].extent if id in self.builder.values else None
        else:
            inputs = [self.builder.values[number] for number in self.builder.inputs]
            axes = [extent for value in inputs if value.is_tensor for extent in value.shape]
            extent = axes[-id - 1] if -id <= len(axes) else None
        if extent is None:
            raise FusionError(
                f"extent: the definition has no extent with id {id}",
                hint="-1, -2, ... are the axes of its inputs, from 0 up its integer scalars",
            )
        return extent

    # -- operands -----------------------------------------------------------------------------------------------------

    def operand_of(self, value: Any) -> Operand:
        """Returns the number of a handle, or a Python constant as a Literal."""
        if isinstance(value, Handle):
            return value.index
        python_kind(value)
        return Literal(value)

    def dtype_kind(self, value: Any) -> str:
        """Returns the dtype kind ("bool", "int", "uint", "float" or "complex") of a handle or constant."""
        operand = self.operand_of(value)
        return python_kind(operand.value) if isinstance(operand, Literal) else self.builder.values[operand].dtype.kind

    def dtypes_of(self, numbers: Sequence[int]) -> tuple[list[DType], list[DType]]:
        """Returns the dtypes of the tensors and those of the scalars among `numbers`."""
        values = [self.builder.values[n] for n in numbers]
        return [v.dtype for v in values if v.is_tensor], [v.dtype for v in values if not v.is_tensor]

    def operand_dtype(self, operand: Operand) -> DType:
        """Returns the dtype of an operand; a Python float is Float, as in nvFuser."""
        if isinstance(operand, Literal):
            defaults = {"bool": DataType.Bool, "int": DataType.Int, "float": DataType.Float}
            return dtype_of(defaults.get(python_kind(operand.value), DataType.ComplexFloat))
        return self.builder.values[operand].dtype

    def extent_of(self, operand: Operand) -> Extent | None:
        """Returns the extent of an integer operand; None for other operands."""
        if isinstance(operand, Literal):
            return operand.value if isinstance(operand.value, int) and not isinstance(operand.value, bool) else None
        return self.builder.values[operand].extent

    def constant_of(self, value: Any) -> bool | int | float | complex | None:
        """Returns a Python number, or the value of a scalar computed from constants; None if only a call knows it."""
        operand = self.operand_of(value)
        if isinstance(operand, Literal):
            return operand.value
        builder = self.builder
        node = next((n for n in builder.nodes if operand in n.outputs), None)
        if node is None or builder.values[operand].is_tensor or list(extents_in(node.attributes)):
            return None
        varies = isinstance(node.op, Pointwise) and node.op.varies
        if varies or not all(isinstance(o, Literal) for o in node.operands):
            return None
        (result,) = evaluate(Fusion({operand: builder.values[operand]}, (), (node,), (operand,)), [])
        return result.item()  # type: ignore[no-any-return]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def record_node(
        self, op: Op, operands: Sequence[Operand], attributes: Attributes, compute: DType, dtypes: Sequence[DType],
        *, extents: Sequence[Extent | None] = (),
    ) -> tuple[Tensor | Scalar, ...]:  # fmt: skip
        """Records one node and returns a handle for each of its results.

        compute: the dtype to compute in. dtypes: of the results. extents: for integer scalar results, the symbolic
        integer that each one is. Raises DtypeError for a constant that `compute` cannot represent.
        """
        for operand in data_operands(op, operands):
            if isinstance(operand, Literal):
                check_fits(operand.value, compute, op.name)
        where = source.user_line()
        numbers = self.require_builder().node(op, operands, attributes, compute, dtypes, where=where, extents=extents)
        return tuple(map(self.new_handle, numbers))
