"""What a definition hands out while it records: tensors, scalars and vectors, and the recording that they belong to.

They are names of values of the IR. Integer scalars carry the integer expression that they are, so that a shape made
from them stays symbolic. A vector has a number of the shared numbering, which the IR leaves out.

Knows: the IR and its builder. Must not know: which operations there are, segments, execution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeAlias, TypeVar

from tracefuse import source
from tracefuse.dtypes import DataType, DType, data_type_of, dtype_of, python_kind
from tracefuse.errors import DtypeError, FusionError, ShapeError, TraceError, UnsupportedError
from tracefuse.extents import Extent
from tracefuse.ir import Attributes, Fusion, FusionBuilder, Literal, Op, Operand, Value
from tracefuse.ops.row import normalize_axis
from tracefuse.parallel import ParallelType, Sharding, StreamAxis
from tracefuse.printing import VectorValue

LoopAxis: TypeAlias = tuple[int, str, int | None]
"""An axis of a tensor, "whole", or the "outer" or "inner" part of it, and into how many pieces it is split."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def located(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """An operation whose errors get the user's line and show no frames of tracefuse; a wrong call is a TraceError."""

    @source.hides_own_frames
    @functools.wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            # Where the call itself failed, there is no frame of the function.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            rest = str(error).partition("()")[2]
            raise TraceError(f"fd.ops.{_name_of(function)}(){rest}", hint="see help(fd.ops)") from None

    return call


def _name_of(function: Any) -> str:
    """The name of an operation: of its row, where the function is that of all rows of a kind."""
    row = function.args[0] if isinstance(function, functools.partial) else function
    return str(getattr(row, "name", None) or row.__name__)


@source.methods_hide_own_frames
class Handle:
    """A value of a definition, with the operators of `fd.ops`."""

    __slots__ = ("_fd", "_number")
    __array_priority__ = 1000

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

    def size(self, dim: int) -> Scalar:
        """The extent of one axis, as `fd.ops.size`."""
        return self._apply("size", self, dim)  # type: ignore[no-any-return]

    def shape(self) -> Vector:
        """All extents, as `fd.ops.shape`."""
        return self._apply("shape", self)  # type: ignore[no-any-return]

    def outer_split(self, axis: int, pieces: int) -> None:
        """Splits `axis` in two for `axis(i)`: the pieces, then what each holds (the last may hold less)."""
        axes = self._fd._loop_axes(self._number)
        place = normalize_axis(axis, len(axes), "outer_split: axis")
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            raise ShapeError(f"outer_split: {pieces!r} pieces", hint="give 1 or more", where=source.user_line())
        own, part, _ = axes[place]
        if part != "whole":
            raise UnsupportedError("outer_split: the axis is split already", where=source.user_line())
        axes[place : place + 1] = [(own, "outer", pieces), (own, "inner", pieces)]

    def set_device_mesh(self, devices: Sequence[int]) -> None:
        """The devices, by number, that hold the tensor: all of it, unless an axis is spread over mesh_x."""
        mesh = tuple(devices)
        if not mesh or len(set(mesh)) < len(mesh) or not all(isinstance(d, int) and d >= 0 for d in mesh):
            raise FusionError(
                f"set_device_mesh: {list(devices)}",
                hint="name each device once, by a number from 0",
                where=source.user_line(),
            )
        builder = self._fd._record()
        builder.values[self._number] = replace(builder.values[self._number], sharding=Sharding(mesh))

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

    def parallelize(self, kind: ParallelType) -> None:
        """Spreads the axis: ParallelType.stream computes its slices, or its pieces after a split, on streams; mesh_x
        gives each device of the tensor's mesh one part.

        Raises FusionError for an input, which is there whole, UnsupportedError for what cannot be spread so.
        """
        axis, part, pieces = self._place
        builder, where = self._fd._record(), source.user_line()
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
            raise UnsupportedError(f"parallelize takes a ParallelType, not {kind!r}", where=where)
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

    # -- operands ---------------------------------------------------------------------------------------------------

    def _operand(self, value: Any) -> Operand:
        """A value of this definition by number, or a constant."""
        if isinstance(value, Handle):
            if value._fd is not self:
                raise FusionError(f"{value!r} belongs to another definition", where=source.user_line())
            return value._number
        item = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
        if not isinstance(item, bool | int | float | complex):
            raise DtypeError(
                f"{type(value).__name__} is no operand", hint="give a tensor, a scalar or a Python number",
                where=source.user_line(),
            )  # fmt: skip
        return Literal(item)

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

    def _attribute(self, value: Any) -> Any:
        """A value as it stands in an attribute: a scalar is the integer that it is."""
        if not isinstance(value, Handle):
            return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
        number = self._operand(value)
        extent = self._extent_or_none(number)
        if extent is None:
            raise ShapeError(
                f"{value!r} is no integer that sizes can be made of",
                hint="sizes, integer inputs and + - * // % of them can be", where=source.user_line(),
            )  # fmt: skip
        return extent

    # -- applying rows ----------------------------------------------------------------------------------------------

    def _apply(
        self, row: Op, operands: Sequence[Operand], attributes: Attributes, compute: DType, dtypes: Sequence[DType],
        *, extents: Sequence[Extent | None] = (),
    ) -> tuple[Tensor | Scalar, ...]:  # fmt: skip
        """Records one node and hands out its results."""
        where = source.user_line()
        made = self._record().node(row, operands, attributes, compute, dtypes, where=where, extents=extents)
        return tuple(map(self._handle, made))

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
            raise FusionError(f"the definition has no extent with id {id}", where=source.user_line())
        return found
