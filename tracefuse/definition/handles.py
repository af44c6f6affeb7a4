"""Handles: the tensors, scalars and vectors that a definition returns while it records.

A handle names a value of the IR by number; its operators call `fd.ops` of the definition that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from segments.lazy_dataclasses import replace
from tracefuse import source
from tracefuse.definition.signatures import records
from tracefuse.dtypes import DataType, data_type_of
from tracefuse.errors import FusionError, ShapeError, UnsupportedError, shown
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Value
from tracefuse.ir.parallel_types import ParallelType, StreamAxis
from tracefuse.ir.printing import VectorValue
from tracefuse.ir.shardings import DeviceMesh, Sharding

if TYPE_CHECKING:
    from tracefuse.definition.recording import Recording

LoopAxis: TypeAlias = tuple[int, str, int | None]
"""(axis, part, chunks): part is "whole", or "outer" or "inner" after a split into `chunks` chunks."""


@source.methods_hide_own_frames
class Handle:
    """A value of a definition, with the operators of `fd.ops`."""

    __slots__ = ("_number", "recording")
    # NumPy's arrays and scalars leave operators to the methods here, which refuse arrays.
    __array_ufunc__ = None

    def __init__(self, recording: Recording, number: int) -> None:
        self.recording, self._number = recording, number

    @property
    def ir_value(self) -> Value:
        """The value in the IR: dtype, symbolic shape, sharding."""
        return self.recording.builder.values[self._number]

    @property
    def index(self) -> int:
        """The number of the value in the definition."""
        return self._number

    @property
    def dtype(self) -> DataType:
        return data_type_of(self.ir_value.dtype)

    def is_tensor(self) -> bool:
        """Whether the value is a tensor, not a host scalar."""
        return self.ir_value.is_tensor

    def is_symbolic(self) -> bool:
        """Whether the value is an input of the definition."""
        return self._number in self.recording.builder.inputs

    def _call(self, name: str, *operands: Any) -> Any:
        return getattr(self.recording.ops, name)(*operands)

    def __add__(self, other: Any) -> Any:
        return self._call("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._call("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._call("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._call("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._call("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._call("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._call("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._call("truediv", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._call("floor_divide", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._call("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._call("remainder", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._call("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._call("pow", other, self)

    def __neg__(self) -> Any:
        return self._call("neg", self)

    def __abs__(self) -> Any:
        return self._call("abs", self)

    def __invert__(self) -> Any:
        return self._call("bitwise_not", self)

    def __and__(self, other: Any) -> Any:
        return self._call("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return self._call("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return self._call("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return self._call("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return self._call("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return self._call("bitwise_xor", other, self)

    def __lt__(self, other: Any) -> Any:
        return self._call("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return self._call("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._call("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return self._call("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return self._call("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return self._call("ne", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise FusionError(
            f"{self!r} has no truth value: a definition is recorded before any data exists",
            hint="select with fd.ops.where", where=source.user_line(),
        )  # fmt: skip


@source.methods_hide_own_frames
class Tensor(Handle):
    """A tensor of a definition."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        return len(self.ir_value.shape)

    @records
    def size(self, dim: int) -> Scalar:
        """Records the extent of one axis; same as `fd.ops.size`."""
        return self._call("size", self, dim)  # type: ignore[no-any-return]

    @records
    def shape(self) -> Vector:
        """Records all extents; same as `fd.ops.shape`."""
        return self._call("shape", self)  # type: ignore[no-any-return]

    @records
    def outer_split(self, axis: int, chunks: int) -> None:
        """Splits `axis` into two loop axes, the chunks and the elements of a chunk; the last chunk may be shorter.

        chunks: the number of chunks. Raises ShapeError if it is less than 1, UnsupportedError for an axis that is split
        already.
        """
        axes = self.recording.loop_axes(self._number)
        place = normalize_axis(axis, len(axes), "outer_split: axis")
        if chunks < 1:
            raise ShapeError(f"outer_split: chunks cannot be {chunks}", hint="give 1 or more")
        tensor_axis, part, _ = axes[place]
        if part != "whole":
            raise UnsupportedError(f"outer_split: axis {axis} is the result of a split", hint="split each axis once")
        axes[place : place + 1] = [(tensor_axis, "outer", chunks), (tensor_axis, "inner", chunks)]

    @records
    def set_device_mesh(self, devices: Sequence[Any]) -> None:
        """Places the tensor on devices: replicated, unless an axis is parallelized over mesh_x or mesh_y.

        devices: numbers of devices, or lists of them for a mesh with two axes.
        """
        try:
            mesh = DeviceMesh(devices)
        except (FusionError, ValueError, TypeError):
            mesh = None
        if mesh is None or len(mesh.shape) > 2:
            raise FusionError(
                f"set_device_mesh: devices cannot be {shown(devices)}",
                hint="name each device once, by a number from 0, in a list or in lists of one length",
            )
        values = self.recording.builder.values
        values[self._number] = replace(values[self._number], sharding=Sharding(mesh))

    @records
    def axis(self, axis: int) -> TensorAxis:
        """Returns one axis, counted after the splits of `outer_split`, to call `parallelize` on."""
        axes = self.recording.loop_axes(self._number)
        return TensorAxis(self.recording, self._number, axes[normalize_axis(axis, len(axes), "axis: axis")])

    def __matmul__(self, other: Any) -> Any:
        return self._call("matmul", self, other)

    def __repr__(self) -> str:
        return f"Tensor(T{self._number}: {self.ir_value.type})"


class TensorAxis:
    """An axis of a tensor, or the outer or inner axis of a split."""

    __slots__ = ("_number", "_place", "recording")

    def __init__(self, recording: Recording, number: int, place: LoopAxis) -> None:
        self.recording, self._number, self._place = recording, number, place

    @records
    def parallelize(self, kind: ParallelType) -> None:
        """Parallelizes the axis.

        ParallelType.stream computes each slice, or each chunk after a split, on a stream. ParallelType.mesh_x shards
        the axis over the devices of the tensor's mesh, also as the outer axis of a split into as many chunks. Raises
        FusionError for an input on streams, for a tensor without a mesh and for another split, UnsupportedError for
        other kinds and for the inner axis of a split.
        """
        axis, part, chunks = self._place
        builder, where = self.recording.builder, source.user_line()
        value = builder.values[self._number]
        if kind is ParallelType.mesh_x or kind is ParallelType.mesh_y:
            builder.values[self._number] = replace(value, sharding=self._sharding(value.sharding, kind, where))
            return
        if kind is not ParallelType.stream:
            raise UnsupportedError(
                f"parallelize: kind cannot be {shown(kind)}", hint="give ParallelType.stream, mesh_x or mesh_y",
                where=where,
            )  # fmt: skip
        if part == "inner":
            raise UnsupportedError(
                "parallelize: the inner axis of a split stays on one stream", hint="parallelize the outer axis",
                where=where,
            )  # fmt: skip
        if self._number in builder.inputs:
            raise FusionError(
                f"parallelize: T{self._number} is an input, which no stream computes",
                hint="parallelize a copy: fd.ops.set(x)",
                where=where,
            )
        builder.values[self._number] = replace(value, stream=StreamAxis(axis, chunks))

    def _sharding(self, sharding: Sharding | None, kind: ParallelType, where: str | None) -> Sharding:
        """Returns the sharding of a tensor with this axis over an axis of its mesh, if the axis has chunks for it."""
        axis, part, chunks = self._place
        if sharding is None:
            raise FusionError(
                f"parallelize: T{self._number} has no mesh", hint="call tv.set_device_mesh([0, 1])", where=where
            )
        sharding = self._split(sharding, axis, kind, where)
        devices = sharding.mesh.size(sharding.names(axis)[-1])
        if part == "inner" or (part == "outer" and chunks != devices):
            raise FusionError(
                f"parallelize: the {part} axis of a split into {chunks} chunks over {devices} devices",
                hint=f"call tv.outer_split({axis}, {devices}) and parallelize the outer axis, or do not split",
                where=where,
            )  # fmt: skip
        return sharding

    @staticmethod
    def _split(sharding: Sharding, axis: int, kind: ParallelType, where: str | None) -> Sharding:
        """Returns the sharding with one more axis split. Raises FusionError for an axis that the mesh does not have."""
        position = (ParallelType.mesh_x, ParallelType.mesh_y).index(kind)
        if position >= len(sharding.mesh.names):
            raise FusionError(
                f"parallelize: {kind} on a mesh with one axis", hint="call tv.set_device_mesh([[0, 1], [2, 3]])",
                where=where,
            )  # fmt: skip
        name = sharding.mesh.names[position]
        spec = [tuple(n for n in names if n != name) for names in sharding.spec]
        spec += [()] * (axis + 1 - len(spec))
        spec[axis] = (*spec[axis], name)
        return Sharding(sharding.mesh, spec)


class Scalar(Handle):
    """A host scalar of a definition."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Scalar(S{self._number}: {self.ir_value.dtype.short})"


@source.methods_hide_own_frames
class Vector:
    """A vector of integers under one number: a shape, or the argument of `define_vector`."""

    __slots__ = ("_vector", "recording")

    def __init__(self, recording: Recording, vector: VectorValue) -> None:
        self.recording, self._vector = recording, vector

    @property
    def index(self) -> int:
        return self._vector.number

    @property
    def elements(self) -> tuple[Extent, ...]:
        """The integers: ints or symbolic expressions."""
        return self._vector.elements

    @property
    def size(self) -> int:
        return len(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, index: int) -> Scalar:
        return self.recording.ops.at(self, index)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Vector(V{self._vector.number}: {list(self.elements)})"
