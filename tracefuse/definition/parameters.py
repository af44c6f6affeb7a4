"""What the parameters of a definition's calls take: one kind for each name, with how a value is read and refused.

A kind reads a value into the terms of the recording (axes and sizes as Python integers or symbolic ones, types as
DTypes) and refuses everything else, so that no call meets a value that it does not expect.

Knows: names of parameters, kinds of values. Must not know: rows, how anything is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse.dtypes import DataType, DType, dtype_of
from tracefuse.errors import DtypeError, FusionError, ShapeError, TraceError, TracefuseError, shown
from tracefuse.ir.extents import Expression, symbols

MOST_AXES = 64
"""Axes that a NumPy array can have."""

SMALLEST, LARGEST = -(2**63), 2**63 - 1
"""Of a size, a position or a shift."""


class Refused(Exception):
    """A value, or its entry at `place`, is none that the parameter takes. instead: what to write, if the kind's own
    words do not say it; error: a ShapeError where the value is of the right kind."""

    def __init__(
        self, value: Any, place: str = "", instead: str | None = None, error: type[TracefuseError] = TraceError
    ) -> None:
        super().__init__()
        self.value, self.place, self.instead, self.error = value, place, instead, error


@dataclass(frozen=True, slots=True)
class Kind:
    """What a parameter takes. expected: what a hint tells the user to give; read: the value in the recording's terms.

    `read(fd, value)` raises Refused for a value that is none of this kind.
    """

    expected: str
    read: Callable[[Any, Any], Any]

    def check(self, fd: Any, owner: str, parameter: str, value: Any) -> Any:
        """The value as the operation `owner` takes it; TraceError, ShapeError or FusionError for one that it
        does not take."""
        try:
            return self.read(fd, value)
        except Refused as refused:
            message = f"{owner}: {parameter}{refused.place} cannot be {shown(refused.value)}"
            if fd.handle_kind(refused.value) == "foreign":
                message += ", which belongs to another definition"
                raise FusionError(message, hint=f"give {self.expected}") from None
            raise refused.error(message, hint=f"give {refused.instead or self.expected}") from None


# -- how values are read ----------------------------------------------------------------------------------------------


def _number(fd: Any, value: Any) -> bool | int | float | complex:
    """A Python number, or the one that an array without axes holds."""
    if isinstance(value, np.ma.MaskedArray):
        raise Refused(value)
    if isinstance(value, np.generic | np.ndarray) or (getattr(value, "shape", None) == () and hasattr(value, "item")):
        if fd is not None and fd.handle_kind(value) is not None:
            raise Refused(value)
        if value.shape != ():
            raise Refused(value, instead="an array as an input: fd.from_array(array) and fd.execute([array])")
        item = value.item()
    else:
        item = value
    if not isinstance(item, bool | int | float | complex):
        raise Refused(value)
    return item


def _integer(fd: Any, value: Any) -> int:
    number = value if type(value) is int else _number(fd, value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise Refused(value)
    if not SMALLEST <= number <= LARGEST:
        raise Refused(value, instead="an integer of 64 bits", error=ShapeError)
    return int(number)


def _real(fd: Any, value: Any) -> float:
    number = _number(fd, value)
    if isinstance(number, bool | complex) or number != number or abs(number) > LARGEST:
        raise Refused(value)
    return number


def _flag(fd: Any, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise Refused(value)


def _size(fd: Any, value: Any) -> Any:
    """An integer, or the symbolic one that a scalar is."""
    if type(value) is int and SMALLEST <= value <= LARGEST:
        return value
    if isinstance(value, Expression):
        if not all(fd.has_extent(symbol.id) for symbol in symbols(value)):
            raise Refused(
                value, instead="a size of this definition, made from its own tensors and scalars", error=ShapeError
            )
        return value
    if fd.handle_kind(value) == "scalar":
        extent = fd._extent_or_none(value.index)
        if extent is None:
            raise Refused(
                value,
                instead="an integer that sizes can be made of: sizes, integer inputs and + - * // % of them",
                error=ShapeError,
            )
        return extent
    return _integer(fd, value)


def _offset(fd: Any, value: Any) -> Any:
    made = _size(fd, value)
    if isinstance(made, int) and abs(made) > 2**62:
        raise Refused(value, error=ShapeError)
    return made


def _operand(fd: Any, value: Any) -> Any:
    return value if fd.handle_kind(value) in ("tensor", "scalar") else _number(fd, value)


def _tensor(fd: Any, value: Any) -> Any:
    if fd.handle_kind(value) != "tensor":
        raise Refused(value)
    return value


def _scalar(fd: Any, value: Any) -> Any:
    return value if fd.handle_kind(value) == "scalar" else _number(fd, value)


def _integer_operand(fd: Any, value: Any) -> Any:
    made = _operand(fd, value)
    if fd._kind(made) not in ("bool", "int", "uint"):
        raise Refused(value)
    return made


def _integer_tensor(fd: Any, value: Any) -> Any:
    return _integer_operand(fd, _tensor(fd, value))


def _vector(fd: Any, value: Any) -> Any:
    if fd.handle_kind(value) != "vector":
        raise Refused(value)
    return value


def _result(fd: Any, value: Any) -> Any:
    if fd.handle_kind(value) not in ("tensor", "scalar"):
        constant = isinstance(value, bool | int | float | complex)
        raise Refused(value, instead="a tensor filled with the constant: fd.ops.full([], value)" if constant else None)
    return value


def _dtype(fd: Any, value: Any) -> Any:
    if fd.handle_kind(value) is not None:
        raise Refused(value)
    if value is DataType.Null or isinstance(value, DataType | DType):
        return value
    try:
        dtype_of(value)
    except DtypeError as error:
        raise Refused(value, instead=f"a DataType, such as DataType.Float ({error.hint})") from None
    return value


def _entries(fd: Any, value: Any) -> Sequence[Any]:
    """The entries of a list, a tuple, a range, an array of one axis or a vector."""
    if fd.handle_kind(value) == "vector":
        return value.elements  # type: ignore[no-any-return]
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray) and value.ndim == 1:
        return value.tolist()  # type: ignore[no-any-return]
    if isinstance(value, list | tuple | range):
        return value
    raise Refused(value)


def _each(fd: Any, value: Any, read: Callable[[Any, Any], Any], most: int | None = None) -> tuple[Any, ...]:
    entries = _entries(fd, value)
    if most is not None and len(entries) > most:
        raise Refused(value, instead=f"{most} entries at most: arrays have no more axes", error=ShapeError)
    made = []
    for position, entry in enumerate(entries):
        try:
            made.append(read(fd, entry))
        except Refused as refused:
            raise Refused(refused.value, f"[{position}]{refused.place}", refused.instead, refused.error) from None
    return tuple(made)


def _list_of(read: Callable[[Any, Any], Any], most: int | None = None, least: int = 0) -> Callable[[Any, Any], Any]:
    def entries(fd: Any, value: Any) -> tuple[Any, ...]:
        made = _each(fd, value, read, most)
        if len(made) < least:
            raise Refused(value)
        return made

    return entries


def _axes(fd: Any, value: Any) -> Any:
    """One axis, or several."""
    if fd.handle_kind(value) is None and not isinstance(value, list | tuple | range | np.ndarray):
        return (_integer(fd, value),)
    return _each(fd, value, _integer, MOST_AXES)


def _axes_or_type(fd: Any, value: Any) -> Any:
    return value if isinstance(value, DataType | DType) else _axes(fd, value)


def _contiguity(fd: Any, value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return _each(fd, value, lambda fd, entry: None if entry is None else _flag(fd, entry), MOST_AXES)


def _count_or_entries(fd: Any, value: Any) -> Any:
    if fd.handle_kind(value) is None and not isinstance(value, list | tuple | range | np.ndarray):
        count = _integer(fd, value)
        if not 0 <= count <= MOST_AXES:
            raise Refused(
                value, instead=f"how many new inputs, from 0 to {MOST_AXES}, or the integers", error=ShapeError
            )
        return count
    return _each(fd, value, _size)


def _tensor_or_order(fd: Any, value: Any) -> Any:
    return _each(fd, value, _integer) if isinstance(value, list | tuple) else _operand(fd, value)


def _array(fd: Any, value: Any) -> Any:
    if fd.handle_kind(value) is not None or isinstance(value, type) or not hasattr(value, "dtype"):
        raise Refused(value)
    if not hasattr(value, "shape") or isinstance(value, np.ma.MaskedArray | np.matrix):
        raise Refused(value, instead="a plain array, such as np.asarray(array)")
    return value


def _one_of(*choices: int) -> Callable[[Any, Any], Any]:
    def chosen(fd: Any, value: Any) -> int:
        number = _integer(fd, value)
        if number not in choices:
            raise Refused(value)
        return number

    return chosen


def _arguments(fd: Any, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise Refused(value)
    return value


def _predicate(fd: Any, value: Any) -> Any:
    if not callable(value) or isinstance(value, type):
        raise Refused(value)
    return value


# -- the kinds, and which parameter takes which -----------------------------------------------------------------------

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
ANY = Kind("anything", lambda fd, value: value)

_NAMES: tuple[tuple[Kind, str], ...] = (
    (TENSOR, "arg tensor input weight query key value grad_output output log_sumexp bias mask arg2 arg3"),
    (Kind("a tensor of integers", _integer_tensor), "index"),
    (TENSORS, "tensors"),
    (OPERAND, "a b c d rest fill_value min max"),
    (SCALAR, "start step minval maxval mean std dropout_p is_causal scale"),
    (INTEGER_OPERAND, "seed offset rng_seed rng_offset philox_seed philox_offset"),
    (VECTOR, "vector"),
    (FLAG, "keepdim descending stable largest sorted manual_padding manual_normalization squeeze_expanded "
           "scale_grad_by_freq sparse is_cpu static_sizes"),
    (FLAGS, "is_broadcast_dim"),
    (INTEGER, "padding_idx id position"),
    (REAL, "correction max_norm norm_type"),
    (SIZE, "length shift width k"),
    (Kind("an integer from -2**62 to 2**62, or a scalar that is one", _offset), "diagonal"),
    (SIZES, "start_indices end_indices strides pad_widths"),
    (SHAPE, "shape new_shape"),
    (AXIS, "dim axis"),
    (AXES, "dims broadcast_dims stride_order"),
    (DTYPE, "dtype compute"),
    (PAIRS, "groups"),
    (Kind("0 or 1", _one_of(0, 1)), "half"),
    (ARRAY, "array"),
    (PREDICATE, "merge"),
    (ARGUMENTS, "inputs reference_outputs"),
)  # fmt: skip

KIND_OF: dict[str, Kind] = {name: kind for kind, names in _NAMES for name in names.split()}
"""By the name of the parameter, wherever it means the same."""

_SPELLED_SHAPE = Kind("a list of integers: -1 symbolic, 1 broadcast, n static", _list_of(_integer, MOST_AXES))
_OF_ONE_CALL: dict[tuple[str, str], Kind] = {
    ("define_tensor", "shape"): _SPELLED_SHAPE,
    ("define_tensor", "sizes"): Kind("a list of integers, one for each axis", _list_of(_integer, MOST_AXES)),
    ("define_tensor", "strides"): Kind("a list of integers, in elements", _list_of(_integer, MOST_AXES)),
    ("define_tensor", "contiguity"): Kind("True, False, or a list of True, False and None", _contiguity),
    ("define_scalar", "value"): Kind("a Python number, or None for an input", _number),
    ("define_vector", "values"): Kind("integers and scalars in a list, or how many new inputs", _count_or_entries),
    ("add_output", "output"): RESULT,
    ("add_output", "alias_input"): Kind("a tensor of define_tensor", _tensor_or_order),
    ("extent", "value"): Kind("an integer made from fd.extent(id)", _size),
    ("extent_min", "a"): SIZE,
    ("extent_min", "b"): SIZE,
    ("extent_max", "a"): SIZE,
    ("extent_max", "b"): SIZE,
    ("cast", "arg"): OPERAND,
    ("at", "index"): Kind("a position as an integer", _integer),
    ("select", "index"): INTEGER_OPERAND,
    ("pad", "value"): Kind("a number, or a scalar made of constants", _scalar),
    ("outer_split", "pieces"): Kind("an integer of at least 1", _integer),
    ("set_device_mesh", "devices"): Kind("numbers of devices in a list", _list_of(_integer)),
    ("parallelize", "kind"): Kind("a ParallelType, such as ParallelType.stream", lambda fd, value: value),
}
"""By call and parameter, where a name means something else than elsewhere."""


def kind_of(owner: str, parameter: str) -> Kind:
    """What a parameter of a call takes; KeyError where nothing says so."""
    found = _OF_ONE_CALL.get((owner, parameter))
    return KIND_OF[parameter] if found is None else found
