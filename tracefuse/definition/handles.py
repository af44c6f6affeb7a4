"""What a definition hands out while it records: tensors, scalars and vectors, as names of values of the IR.

Their operators are the operations of the recording that they belong to.

Knows: values of the IR, axes, meshes. Must not know: how an operation is recorded, segments, execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tracefuse import source
from tracefuse.definition.signatures import records
from tracefuse.dtypes import DataType, data_type_of
from tracefuse.errors import FusionError, ShapeError, UnsupportedError, shown
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Value
from tracefuse.ir.parallel_types import ParallelType, Sharding, StreamAxis
from tracefuse.ir.printing import VectorValue

if TYPE_CHECKING:
    from tracefuse.definition.recording import Recording

LoopAxis: TypeAlias = tuple[int, str, int | None]
"""An axis of a tensor, "whole", or the "outer" or "inner" part of it, and into how many pieces it is split."""


@source.methods_hide_own_frames
class Handle:
    """A value of a definition, with the operators of `fd.ops`."""

    __slots__ = ("_fd", "_number")
    # NumPy's arrays and scalars leave operators to the methods here, which refuse arrays.
    __array_ufunc__ = None

    def __init__(self, fd: Recording, number: int) -> None:
        self._fd, self._number = fd, number

    @property
    def _value(self) -> Value:
        return self._fd._builder.values[self._number]

    @property
    def index(self) -> int:
        """The number in the definition's numbering."""
        return self._number

    @property
    def dtype(self) -> DataType:
        return data_type_of(self._value.dtype)

    def _apply(self, name: str, *operands: Any) -> Any:
        return getattr(self._fd.ops, name)(*operands)

    def __add__(self, other: Any) -> Any:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("truediv", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._apply("floor_divide", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._apply("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._apply("remainder", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._apply("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._apply("pow", other, self)

    def __neg__(self) -> Any:
        return self._apply("neg", self)

    def __abs__(self) -> Any:
        return self._apply("abs", self)

    def __invert__(self) -> Any:
        return self._apply("bitwise_not", self)

    def __and__(self, other: Any) -> Any:
        return self._apply("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return self._apply("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return self._apply("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return self._apply("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return self._apply("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return self._apply("bitwise_xor", other, self)

    def __lt__(self, other: Any) -> Any:
        return self._apply("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return self._apply("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._apply("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return self._apply("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return self._apply("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return self._apply("ne", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise FusionError(
            f"{self!r} has no truth value: a definition is recorded before there are values",
            hint="select with fd.ops.where", where=source.user_line(),
        )  # fmt: skip


@source.methods_hide_own_frames
class Tensor(Handle):
    """A tensor of a definition."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        return len(self._value.shape)

    @records
    def size(self, dim: int) -> Scalar:
        """The extent of one axis, as `fd.ops.size`."""
        return self._apply("size", self, dim)  # type: ignore[no-any-return]

    @records
    def shape(self) -> Vector:
        """All extents, as `fd.ops.shape`."""
        return self._apply("shape", self)  # type: ignore[no-any-return]

    @records
    def outer_split(self, axis: int, pieces: int) -> None:
        """Splits `axis` in two for `axis(i)`: the pieces, then what each holds (the last may hold less)."""
        axes = self._fd._loop_axes(self._number)
        place = normalize_axis(axis, len(axes), "outer_split: axis")
        if pieces < 1:
            raise ShapeError(f"outer_split: pieces cannot be {pieces}", hint="give 1 or more")
        own, part, _ = axes[place]
        if part != "whole":
            raise UnsupportedError(f"outer_split: axis {axis} is a part of a split", hint="split each axis once")
        axes[place : place + 1] = [(own, "outer", pieces), (own, "inner", pieces)]

    @records
    def set_device_mesh(self, devices: Sequence[int]) -> None:
        """The devices, by number, that hold the tensor: all of it, unless an axis is spread over mesh_x."""
        if not devices or len(set(devices)) < len(devices) or min(devices) < 0:
            raise FusionError(
                f"set_device_mesh: devices cannot be {list(devices)}", hint="name each device once, by a number from 0"
            )
        values = self._fd._builder.values
        values[self._number] = replace(values[self._number], sharding=Sharding(tuple(devices)))

    @records
    def axis(self, axis: int) -> Axis:
        """One axis, after the splits made by `outer_split`, to be spread with `parallelize`."""
        axes = self._fd._loop_axes(self._number)
        return Axis(self._fd, self._number, axes[normalize_axis(axis, len(axes), "axis: axis")])

    def __matmul__(self, other: Any) -> Any:
        return self._apply("matmul", self, other)

    def __repr__(self) -> str:
        return f"Tensor(T{self._number}: {self._value.type})"


class Axis:
    """An axis of a tensor of a definition, or a part of one."""

    __slots__ = ("_fd", "_number", "_place")

    def __init__(self, fd: Recording, number: int, place: LoopAxis) -> None:
        self._fd, self._number, self._place = fd, number, place

    @records
    def parallelize(self, kind: ParallelType) -> None:
        """Spreads the axis: ParallelType.stream computes its slices, or its pieces after a split, on streams; mesh_x
        gives each device of the tensor's mesh one part.

        Raises FusionError for an input, which is there whole, UnsupportedError for what cannot be spread so.
        """
        axis, part, pieces = self._place
        builder, where = self._fd._builder, source.user_line()
        value = builder.values[self._number]
        if kind is ParallelType.mesh_x:
            if value.sharding is None or part != "whole":
                raise FusionError(
                    "parallelize: the tensor has no mesh", hint="call tv.set_device_mesh([0, 1]) first, split nothing",
                    where=where,
                )  # fmt: skip
            builder.values[self._number] = replace(value, sharding=replace(value.sharding, axis=axis))
            return
        if kind is not ParallelType.stream:
            raise UnsupportedError(
                f"parallelize: kind cannot be {shown(kind)}", hint="give ParallelType.stream or ParallelType.mesh_x",
                where=where,
            )  # fmt: skip
        if part == "inner":
            raise UnsupportedError(
                "parallelize: what a piece holds stays on its stream", hint="spread the outer part of the split",
                where=where,
            )  # fmt: skip
        if self._number in builder.inputs:
            raise FusionError(
                f"parallelize: input T{self._number} is there whole", hint="spread a copy: fd.ops.set(x)", where=where
            )
        builder.values[self._number] = replace(value, stream=StreamAxis(axis, pieces))


class Scalar(Handle):
    """A host scalar of a definition."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Scalar(S{self._number}: {self._value.dtype.short})"


@source.methods_hide_own_frames
class Vector:
    """Integers under one number: a shape, or what `define_vector` was given."""

    __slots__ = ("_fd", "_held")

    def __init__(self, fd: Recording, held: VectorValue) -> None:
        self._fd, self._held = fd, held

    @property
    def index(self) -> int:
        return self._held.number

    @property
    def elements(self) -> tuple[Extent, ...]:
        """The integers, as ints and symbolic expressions."""
        return self._held.elements

    @property
    def size(self) -> int:
        return len(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, index: int) -> Scalar:
        return self._fd.ops.at(self, index)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Vector(V{self._held.number}: {list(self.elements)})"
