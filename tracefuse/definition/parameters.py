"""Kinds of parameters: which values each parameter of a definition's calls takes, by the parameter's name.

A kind converts a value to the recording's terms (axes and sizes as Python or symbolic integers, dtypes as DTypes) and
refuses any other value with a hint. Every call of `fd` and `fd.ops` converts its arguments here first, so the code that
records never sees an unexpected type.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DataType, DType, dtype_of
from tracefuse.errors import DtypeError, FusionError, ShapeError, TraceError, TracefuseError, shown
from tracefuse.ir.extents import Expression, symbols
from tracefuse.runtime.devices.masked_arrays import is_masked_array

MOST_AXES = 64
"""The largest rank of a NumPy array."""
SMALLEST, LARGEST = -(2**63), 2**63 - 1
"""The range of a size, a position or a shift."""


class Refused(Exception):
    """The parameter does not take this value, or this entry of it.

    place: the entry, such as "[1]". instead: a hint that replaces the kind's own. error: the class to raise; ShapeError
    if the value has the right kind but not a possible size.
    """

    def __init__(
        self, value: Any, place: str = "", instead: str | None = None, error: type[TracefuseError] = TraceError
    ) -> None:
        super().__init__()
        self.value, self.place, self.instead, self.error = value, place, instead, error


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a parameter takes.

    expected: the hint, after "give". read: `read(recording, value)` converts a value to the recording's terms; it
    raises Refused for any other value.
    """

    expected: str
    read: Callable[[Any, Any], Any]

    def check(self, recording: Any, owner: str, parameter: str, value: Any) -> Any:
        """Converts an argument of the call `owner`.

        Raises FusionError for a handle of another definition, TraceError or ShapeError for any other value that the
        parameter does not take.
        """
        try:
            return self.read(recording, value)
        except Refused as refused:
            message = f"{owner}: {parameter}{refused.place} cannot be {shown(refused.value)}"
            if recording.handle_kind(refused.value) == "foreign":
                message += ", which belongs to another definition"
                raise FusionError(message, hint=f"give {self.expected}") from None
            raise refused.error(message, hint=f"give {refused.instead or self.expected}") from None


# -- conversions ------------------------------------------------------------------------------------------------------


def _number_or_type(recording: Any, value: Any) -> Any:
    return value if isinstance(value, DataType | DType) else _number(recording, value)


def _number(recording: Any, value: Any) -> bool | int | float | complex:
    """Returns a Python number, or the element of an array without axes."""
    if is_masked_array(value):
        raise Refused(value)
    if isinstance(value, np.generic | np.ndarray) or (getattr(value, "shape", None) == () and hasattr(value, "item")):
        if recording is not None and recording.handle_kind(value) is not None:
            raise Refused(value)
        if value.shape != ():
            raise Refused(value, instead="an array as an input: fd.from_array(array) and fd.execute([array])")
        item = value.item()
    else:
        item = value
    if not isinstance(item, bool | int | float | complex):
        raise Refused(value)
    return item


def _integer(recording: Any, value: Any) -> int:
    number = value if type(value) is int else _number(recording, value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise Refused(value)
    if not SMALLEST <= number <= LARGEST:
        raise Refused(value, instead="an integer of 64 bits", error=ShapeError)
    return int(number)


def _real(recording: Any, value: Any) -> float:
    number = _number(recording, value)
    if isinstance(number, bool | complex) or number != number or abs(number) > LARGEST:
        raise Refused(value)
    return number


def _flag(recording: Any, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise Refused(value)


def _size(recording: Any, value: Any) -> Any:
    """Returns an integer, or the symbolic integer of a scalar."""
    if type(value) is int and SMALLEST <= value <= LARGEST:
        return value
    if isinstance(value, Expression):
        if not all(recording.has_extent(symbol.id) for symbol in symbols(value)):
            raise Refused(
                value, instead="a size of this definition, made from its own tensors and scalars", error=ShapeError
            )
        return value
    if recording.handle_kind(value) == "scalar":
        extent = recording.extent_of(value.index)
        if extent is None:
            raise Refused(
                value,
                instead="an integer that a shape can depend on: sizes, integer inputs, and + - * // % of them",
                error=ShapeError,
            )
        return extent
    return _integer(recording, value)


def _offset(recording: Any, value: Any) -> Any:
    offset = _size(recording, value)
    if isinstance(offset, int) and abs(offset) > 2**62:
        raise Refused(value, error=ShapeError)
    return offset


def _operand(recording: Any, value: Any) -> Any:
    return value if recording.handle_kind(value) in ("tensor", "scalar") else _number(recording, value)


def _tensor(recording: Any, value: Any) -> Any:
    if recording.handle_kind(value) != "tensor":
        raise Refused(value)
    return value


def _scalar(recording: Any, value: Any) -> Any:
    return value if recording.handle_kind(value) == "scalar" else _number(recording, value)


def _integer_operand(recording: Any, value: Any) -> Any:
    operand = _operand(recording, value)
    if recording.dtype_kind(operand) not in ("bool", "int", "uint"):
        raise Refused(value)
    return operand


def _integer_tensor(recording: Any, value: Any) -> Any:
    return _integer_operand(recording, _tensor(recording, value))


def _vector(recording: Any, value: Any) -> Any:
    if recording.handle_kind(value) != "vector":
        raise Refused(value)
    return value


def _result(recording: Any, value: Any) -> Any:
    if recording.handle_kind(value) not in ("tensor", "scalar"):
        constant = isinstance(value, bool | int | float | complex)
        raise Refused(value, instead="a tensor filled with the constant: fd.ops.full([], value)" if constant else None)
    return value


def _dtype(recording: Any, value: Any) -> Any:
    if recording.handle_kind(value) is not None:
        raise Refused(value)
    if value is DataType.Null or isinstance(value, DataType | DType):
        return value
    try:
        dtype_of(value)
    except DtypeError as error:
        raise Refused(value, instead=f"a DataType, such as DataType.Float ({error.hint})") from None
    return value


def _entries(recording: Any, value: Any) -> Sequence[Any]:
    """Returns the entries of a list, tuple, range, vector or one-dimensional array."""
    if recording.handle_kind(value) == "vector":
        return value.elements  # type: ignore[no-any-return]
    if isinstance(value, np.ndarray) and not is_masked_array(value) and value.ndim == 1:
        return value.tolist()  # type: ignore[no-any-return]
    if isinstance(value, list | tuple | range):
        return value
    raise Refused(value)


def _each(recording: Any, value: Any, read: Callable[[Any, Any], Any], most: int | None = None) -> tuple[Any, ...]:
    entries = _entries(recording, value)
    if most is not None and len(entries) > most:
        raise Refused(value, instead=f"at most {most} entries: arrays have no more axes", error=ShapeError)
    converted = []
    for position, entry in enumerate(entries):
        try:
            converted.append(read(recording, entry))
        except Refused as refused:
            raise Refused(refused.value, f"[{position}]{refused.place}", refused.instead, refused.error) from None
    return tuple(converted)


def _list_of(read: Callable[[Any, Any], Any], most: int | None = None, least: int = 0) -> Callable[[Any, Any], Any]:
    def read_entries(recording: Any, value: Any) -> tuple[Any, ...]:
        converted = _each(recording, value, read, most)
        if len(converted) < least:
            raise Refused(value)
        return converted

    return read_entries


def _axes(recording: Any, value: Any) -> Any:
    """Returns a tuple of axes from one axis or several."""
    if recording.handle_kind(value) is None and not isinstance(value, list | tuple | range | np.ndarray):
        return (_integer(recording, value),)
    return _each(recording, value, _integer, MOST_AXES)


def _axes_or_type(recording: Any, value: Any) -> Any:
    return value if isinstance(value, DataType | DType) else _axes(recording, value)


def _contiguity(recording: Any, value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return _each(
        recording, value, lambda recording, entry: None if entry is None else _flag(recording, entry), MOST_AXES
    )


def _count_or_entries(recording: Any, value: Any) -> Any:
    if recording.handle_kind(value) is None and not isinstance(value, list | tuple | range | np.ndarray):
        count = _integer(recording, value)
        if not 0 <= count <= MOST_AXES:
            raise Refused(
                value, instead=f"how many new inputs, from 0 to {MOST_AXES}, or the integers", error=ShapeError
            )
        return count
    return _each(recording, value, _size)


def _tensor_or_order(recording: Any, value: Any) -> Any:
    return _each(recording, value, _integer) if isinstance(value, list | tuple) else _operand(recording, value)


def _array(recording: Any, value: Any) -> Any:
    if recording.handle_kind(value) is not None or isinstance(value, type) or not hasattr(value, "dtype"):
        raise Refused(value)
    if not hasattr(value, "shape") or isinstance(value, np.matrix) or is_masked_array(value):
        raise Refused(value, instead="a plain array, such as np.asarray(array)")
    return value


def _sort_kind(recording: Any, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value == "stable"):
        raise Refused(value)
    return value


def _one_of(*choices: int) -> Callable[[Any, Any], Any]:
    def read_choice(recording: Any, value: Any) -> int:
        number = _integer(recording, value)
        if number not in choices:
            raise Refused(value)
        return number

    return read_choice


def _row_update(recording: Any, value: Any) -> str:
    ufunc = getattr(np, value, None) if isinstance(value, str) else None
    is_binary = isinstance(ufunc, np.ufunc) and (ufunc.nin, ufunc.nout) == (2, 1)
    if not isinstance(value, str) or (value != "assign" and not is_binary):
        raise Refused(value)
    return value


def _arguments(recording: Any, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise Refused(value)
    return value


def _predicate(recording: Any, value: Any) -> Any:
    if not callable(value) or isinstance(value, type):
        raise Refused(value)
    return value


def _path(recording: Any, value: Any) -> Any:
    if not isinstance(value, str | os.PathLike):
        raise Refused(value)
    return value


# -- kinds, and the parameters that take them -------------------------------------------------------------------------

TENSOR = Kind("a tensor of this definition", _tensor)
TENSORS = Kind("a list of tensors of this definition, with at least one", _list_of(_tensor, least=1))
OPERAND = Kind("a tensor, a scalar or a Python number", _operand)
SCALAR = Kind("a scalar of this definition or a Python number", _scalar)
INTEGER_OPERAND = Kind("an integer, or a tensor or scalar of integers", _integer_operand)
VECTOR = Kind("a vector: fd.define_vector(...) or tensor.shape()", _vector)
RESULT = Kind("a tensor or scalar of this definition", _result)
FLAG = Kind("True or False", _flag)
FLAGS = Kind("a list of True and False, one for each axis of the result", _list_of(_flag, MOST_AXES))
INTEGER = Kind("an integer", _integer)
REAL = Kind("an integer or a float that is finite", _real)
SIZE = Kind("an integer, or a scalar of this definition that is one", _size)
SIZES = Kind("a list of integers and integer scalars, or a vector", _list_of(_size))
SHAPE = Kind("a list of integers and integer scalars, or a vector", _list_of(_size, MOST_AXES))
AXIS = Kind("one axis as an integer", _integer)
AXES = Kind("axes as a list of integers", _axes)
AXES_OR_TYPE = Kind("axes as a list of integers", _axes_or_type)
DTYPE = Kind("a DataType, such as DataType.Float", _dtype)
PAIRS = Kind("pairs of lists of axes", _list_of(_list_of(_list_of(_integer))))
ARRAY = Kind("an array of NumPy, CuPy, PyTorch or JAX", _array)
ARGUMENTS = Kind("a list with one array or number for each input", _arguments)
PREDICATE = Kind("a function of two groups, such as tracefuse.rules.one_op_a_segment", _predicate)

_NAMES: tuple[tuple[Kind, str], ...] = (
    (TENSOR, "arg tensor input weight query key value grad_output output log_sumexp bias mask arg2 arg3 running_mean "
             "running_var mat1 mat2 scale1 scale2 alpha beta"),
    (Kind("a tensor of integers", _integer_tensor), "index"),
    (TENSORS, "tensors"),
    (OPERAND, "a b c d rest fill_value min max src"),
    (SCALAR, "start step minval maxval mean std dropout_p is_causal scale padding_idx max_norm norm_type "
             "scale_grad_by_freq sparse momentum eps"),
    (INTEGER_OPERAND, "seed offset rng_seed rng_offset philox_seed philox_offset"),
    (VECTOR, "vector"),
    (FLAG, "keepdim descending stable largest sorted manual_padding manual_normalization squeeze_expanded "
           "is_cpu static_sizes training channels_last intrinsic_code timed"),
    (FLAGS, "is_broadcast_dim"),
    (INTEGER, "id position stack_axes summed_axes joined_axes"),
    (REAL, "correction"),
    (SIZE, "length shift width k"),
    (Kind("an integer from -2**62 to 2**62, or a scalar that is one", _offset), "diagonal"),
    (SIZES, "start_indices end_indices strides pad_widths"),
    (SHAPE, "shape new_shape"),
    (AXIS, "dim axis"),
    (AXES, "dims broadcast_dims stride_order a_dims b_dims"),
    (DTYPE, "dtype compute"),
    (PAIRS, "groups"),
    (Kind("0 or 1", _one_of(0, 1)), "half"),
    (Kind("'assign', or the name of a NumPy ufunc of two operands, such as 'maximum'", _row_update), "how"),
    (ARRAY, "array"),
    (PREDICATE, "merge"), (Kind("the path of a file", _path), "path"),
    (ARGUMENTS, "inputs reference_outputs"),
)  # fmt: skip

KIND_OF: dict[str, Kind] = {name: kind for kind, names in _NAMES for name in names.split()}
"""The kind of each parameter, by name; the same name means the same in every call."""

_STATIC_SHAPE = Kind("a list of integers: -1 symbolic, 1 broadcast, n static", _list_of(_integer, MOST_AXES))
_KIND_IN_CALL: dict[tuple[str, str], Kind] = {
    ("define_tensor", "shape"): _STATIC_SHAPE,
    ("define_tensor", "sizes"): Kind("a list of integers, one for each axis", _list_of(_integer, MOST_AXES)),
    ("define_tensor", "strides"): Kind("a list of integers, in elements", _list_of(_integer, MOST_AXES)),
    ("define_tensor", "contiguity"): Kind("True, False, or a list of True, False and None", _contiguity),
    ("define_scalar", "value"): Kind("a Python number, or None or a DataType for an input", _number_or_type),
    ("define_vector", "values"): Kind("integers and scalars in a list, or how many new inputs", _count_or_entries),
    ("add_output", "output"): RESULT,
    ("add_output", "alias_input"): Kind("a tensor of define_tensor", _tensor_or_order),
    ("extent", "value"): Kind("an integer made from fd.extent(id)", _size),
    ("extent_min", "a"): SIZE,
    ("extent_min", "b"): SIZE,
    ("extent_max", "a"): SIZE,
    ("extent_max", "b"): SIZE,
    ("cast", "arg"): OPERAND,
    ("argsort", "kind"): Kind("'stable' or None", _sort_kind),
    ("at", "index"): Kind("a position as an integer", _integer),
    ("select", "index"): INTEGER_OPERAND,
    ("pad", "value"): Kind("a number, or a scalar made of constants", _scalar),
    ("outer_split", "chunks"): Kind("an integer of at least 1", _integer),
    ("set_device_mesh", "devices"): Kind("numbers of devices, in a list or in lists", lambda recording, value: value),
    ("parallelize", "kind"): Kind("a ParallelType, such as ParallelType.stream", lambda recording, value: value),
}
"""Exceptions, by (call, parameter)."""


def kind_of(owner: str, parameter: str) -> Kind:
    """Returns the kind of a parameter of a call. Raises KeyError for an unknown name."""
    exception = _KIND_IN_CALL.get((owner, parameter))
    return KIND_OF[parameter] if exception is None else exception
