"""What a definition declares: its inputs, outputs and symbolic integers.

`FusionDefinition` inherits these calls; they add to the recording and run nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import source
from tracefuse.definition.handles import Scalar, Tensor, Vector
from tracefuse.definition.output_checks import aliased_input
from tracefuse.definition.recording import Recording
from tracefuse.definition.signatures import records
from tracefuse.dtypes import DataType, DType, check_fits, dtype_of, python_kind
from tracefuse.errors import DtypeError, ShapeError
from tracefuse.ir.extents import Extent, maximum, minimum
from tracefuse.ir.fusion import Layout, Literal
from tracefuse.ops import REGISTRY
from tracefuse.runtime.devices.array_descriptions import contiguity_of, description, layout_of

_SCALAR_DEFAULTS = {
    "bool": DataType.Bool,
    "int": DataType.Int,
    "float": DataType.Double,
    "complex": DataType.ComplexDouble,
}


@source.methods_hide_own_frames
class Declarations:
    """The calls of a definition that declare inputs and outputs. recording: what they add to."""

    recording: Recording

    @records
    def define_tensor(
        self, shape: Sequence[int] | None = None, contiguity: bool | Sequence[bool | None] | None = None,
        dtype: Any = DataType.Float, is_cpu: bool = False, stride_order: Sequence[int] | None = None, *,
        sizes: Sequence[int] | None = None, strides: Sequence[int] | None = None, static_sizes: bool = False,
    ) -> Tensor:  # fmt: skip
        """Adds an input tensor, by `shape` (-1 symbolic, 1 broadcast, n static) and contiguity or by sizes and strides.

        contiguity: one bool, or one per axis, None for a broadcast axis. strides: in elements. static_sizes: keep
        `sizes` as static extents. Raises ShapeError if the arguments do not describe one layout.
        """
        if sizes is not None or strides is not None:
            if sizes is None or strides is None or len(sizes) != len(strides):
                raise ShapeError(
                    f"define_tensor: sizes {sizes} and strides {strides}", hint="give both, one entry per axis",
                    where=source.user_line(),
                )  # fmt: skip
            shape = [int(s) if static_sizes or s == 1 else -1 for s in sizes]
            contiguity, stride_order = layout_of(sizes, strides)
        if shape is None:
            raise ShapeError("define_tensor needs a shape, or sizes and strides", where=source.user_line())
        order = tuple(stride_order or ())
        if order and sorted(order) != list(range(len(shape))):
            raise ShapeError(
                f"define_tensor: stride_order {list(order)} does not order {len(shape)} axes",
                hint="give each axis its rank by stride", where=source.user_line(),
            )  # fmt: skip
        layout = Layout(contiguity_of(shape, contiguity), order, bool(is_cpu))
        builder, where = self.recording.require_builder(), source.user_line()
        return Tensor(self.recording, builder.tensor_input(dtype_of(dtype), list(shape), layout=layout, where=where))

    @records
    def define_scalar(self, value: Any = None, dtype: Any = None) -> Scalar:
        """Adds a scalar: a constant, or an input if `value` is None (Double by default) or a DataType."""
        if dtype is None and isinstance(value, DataType | DType):
            value, dtype = None, value
        if value is None:
            chosen = dtype_of(DataType.Double if dtype is None else dtype)
            return Scalar(
                self.recording, self.recording.require_builder().scalar_input(chosen, where=source.user_line())
            )
        chosen = dtype_of(_SCALAR_DEFAULTS[python_kind(value)] if dtype is None else dtype)
        check_fits(value, chosen, "define_scalar")
        extent = int(value) if chosen.is_integer else None
        scalars = self.recording.record_node(REGISTRY["set"], [Literal(value)], {}, chosen, (chosen,), extents=[extent])
        return scalars[0]  # type: ignore[return-value]

    @records
    def define_vector(self, values: int | Sequence[Any], dtype: Any = DataType.Int) -> Vector:
        """Adds a vector of the given integers and scalars, or of `values` new integer inputs.

        `execute` takes the inputs of a vector one by one or as one list.
        """
        if isinstance(values, int):
            if not dtype_of(dtype).is_integer:
                raise DtypeError(f"define_vector: dtype cannot be {dtype!r}", hint="name an integer type: DataType.Int")
            inputs = [self.define_scalar(dtype=dtype).index for _ in range(values)]
            extents = [self.recording.builder.values[number].extent for number in inputs]
            return self.recording.new_vector([extent for extent in extents if extent is not None])
        return self.recording.new_vector(values)

    @records
    def from_array(self, array: Any, static_sizes: bool = False) -> Tensor:
        """Adds an input with the rank, dtype, broadcast axes and contiguity of `array`; static_sizes fixes sizes."""
        sizes, strides, dtype = description(array)
        return self.define_tensor(sizes=sizes, strides=strides, dtype=dtype, static_sizes=static_sizes)

    @records
    def from_pytorch(self, array: Any, static_sizes: bool = False) -> Tensor:
        """Same as `from_array`; nvFuser's name."""
        return self.from_array(array, static_sizes)

    @records
    def add_output(self, output: Tensor | Scalar, alias_input: Any = None, stride_order: Any = None) -> None:
        """Marks a value as an output.

        alias_input: an input tensor to update in place with the value. `execute` does not return such an output, and
        every other op reads the input's old value. stride_order: the rank of each axis of the result by stride, 0 for
        the innermost axis; the kernel writes in this order. By default results are C-contiguous, or in the order that
        `fd.ops.stride_order` gave the value.

        An output that is an input returns a copy, or the argument itself if another output updates it. Raises
        FusionError if alias_input is not an input or is already updated, ShapeError or DtypeError if the shape or
        dtype differs, ShapeError for a stride_order that does not order the axes.
        """
        if isinstance(alias_input, tuple):  # nvFuser's add_output(output, stride_order)
            alias_input, stride_order = None, alias_input
        number, builder = output.index, self.recording.require_builder()
        order = self.recording.memory_order(number, stride_order)
        shared = builder.aliases if alias_input is None else (*builder.inputs, *builder.outputs)
        if number in shared or (order is not None and number in (*builder.inputs, *builder.outputs)):
            number = self.recording.ops.set(output).index  # one buffer has one order, and holds one result
        owner = None if alias_input is None else aliased_input(builder, number, self.recording.operand_of(alias_input))
        builder.output(number, owner)
        if order is not None and owner is None:
            self.recording.output_orders[number] = order

    @records
    def extent(self, id: int) -> Extent:
        """Returns a symbolic integer: the extent of an input axis, or an integer scalar. It takes no number.

        id: -1, -2, ... for the axes of the input tensors in order; from 0 up, the number of a scalar. The result
        supports arithmetic and can be an entry of a shape. Raises FusionError for an unknown id.
        """
        return self.recording.find_extent(id)

    @records
    def extent_min(self, a: Extent, b: Extent) -> Extent:
        """Returns the smaller of two symbolic integers (see `extent`)."""
        return minimum(a, b)

    @records
    def extent_max(self, a: Extent, b: Extent) -> Extent:
        """Returns the larger of two symbolic integers (see `extent`)."""
        return maximum(a, b)

    def inputs(self) -> list[int]:
        """Returns the numbers of the inputs, in order."""
        return list(self.recording.current.inputs)

    def outputs(self) -> list[int]:
        """Returns the numbers of the outputs, in order."""
        return list(self.recording.current.outputs)

    def extents(self) -> list[int]:
        """Returns the ids of the extents of the input tensors: -1, -2, ... in the order of tensor and axis."""
        return [key for key, _, _ in self.recording.current.axis_ids()]
