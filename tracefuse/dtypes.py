"""Element types: their names in NumPy, in the printed IR and in nvFuser's frontend, and their promotion.

There are two promotion rules: `promote_numpy` follows NumPy 2 and the array API (tracers and `xp`), `promote_nvfuser`
follows PyTorch (`fd.ops`).

Must not know: ops, arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import memoized
from tracefuse.errors import DtypeError, shown

KINDS = ("bool", "int", "uint", "float", "complex")


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. There is one object per type, compared by identity.

    name: NumPy's name. short: the name in the printed IR, such as `f32`. kind: one of KINDS. itemsize: in bytes.
    """

    name: str
    short: str
    kind: str
    itemsize: int
    numpy: np.dtype[np.generic]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (dtype_of, (self.name,))

    @property
    def is_half(self) -> bool:
        return self.kind == "float" and self.itemsize == 2

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_floating(self) -> bool:
        return self.kind == "float"

    @property
    def compute(self) -> DType:
        """The type of arithmetic on this type in a kernel: float32 for the half types, else itself."""
        return float32 if self.is_half else self

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def real(self) -> DType:
        """The type of the real part of a complex type, else itself."""
        return _PARTS.get(self, self)

    @property
    def complex(self) -> DType:
        """The complex type with parts of this type; complex64 for the half types, complex128 for integers."""
        if self.is_complex:
            return self
        return complex64 if self.compute is float32 else complex128


def _make(name: str, short: str, kind: str) -> DType:
    dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
    return DType(name, short, kind, dtype.itemsize, dtype)


bool_ = _make("bool", "bool", "bool")
int8, int16, int32, int64 = (_make(f"int{n}", f"i{n}", "int") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_make(f"uint{n}", f"u{n}", "uint") for n in (8, 16, 32, 64))
float16, float32, float64 = (_make(f"float{n}", f"f{n}", "float") for n in (16, 32, 64))
bfloat16 = _make("bfloat16", "bf16", "float")
complex64, complex128 = (_make(f"complex{n}", f"c{n}", "complex") for n in (64, 128))

_PARTS = {complex64: float32, complex128: float64}

ALL = (
    *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64, complex64, complex128),
)
INTEGERS = tuple(d for d in ALL if d.is_integer)
FLOATS = tuple(d for d in ALL if d.is_floating)
COMPLEXES = (complex64, complex128)
NUMBERS = (*INTEGERS, *FLOATS, *COMPLEXES)
REALS = (*INTEGERS, *FLOATS)

_BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL}


class DataType(Enum):
    """nvFuser's names of the element types, as in its frontend and its printed definitions."""

    Double = "float64"
    Float = "float32"
    Half = "float16"
    BFloat16 = "bfloat16"
    Int = "int64"
    Int32 = "int32"
    Int16 = "int16"
    Char = "int8"
    Byte = "uint8"
    UInt16 = "uint16"
    UInt32 = "uint32"
    UInt64 = "uint64"
    Bool = "bool"
    ComplexFloat = "complex64"
    ComplexDouble = "complex128"
    Index = "index"
    Null = "null"

    def __repr__(self) -> str:
        return f"DataType.{self.name}"

    __str__ = __repr__

    def __call__(self) -> DataType:
        """Returns the type itself: newer scripts of nvFuser write `tensor.dtype()` for `tensor.dtype`."""
        return self


_DATA_TYPE_OF = {d.value: d for d in DataType}


def data_type_of(dtype: DType) -> DataType:
    """The nvFuser name of `dtype`."""
    return _DATA_TYPE_OF[dtype.name]


@memoized("the element type that a dtype, a name or a `DataType` names", key="dtype, name or `DataType`", most=256)
def _dtype_of(spec: object) -> DType:
    if isinstance(spec, DataType):
        name = "int64" if spec is DataType.Index else spec.value
        if name in _BY_NAME:
            return _BY_NAME[name]
        raise DtypeError(f"{shown(spec)} is not the type of a value", hint="name a concrete type, as DataType.Float")
    may_name_dtype = spec is None or isinstance(spec, str | type | np.dtype | tuple) or hasattr(spec, "dtype")
    try:
        name_or_type: Any = "bfloat16" if spec is ml_dtypes.bfloat16 else spec
        dtype = _BY_NUMPY.get(np.dtype(name_or_type)) if may_name_dtype else None
    except (TypeError, ValueError, SyntaxError):  # np.dtype parses strings and tuples
        dtype = None
    if dtype is None or (isinstance(spec, np.dtype) and not spec.isnative):
        known = np.dtype(spec) if isinstance(spec, type | np.dtype) else None
        name = shown(spec) if known is None else str(known) if known.kind == "V" else known.name
        raise DtypeError(f"dtype {name} is not supported", hint=_instead_of(spec), runs_function=bool(_kind_of(spec)))
    return dtype


def _kind_of(spec: object) -> str:
    """The kind of the dtype that `spec` names; "" if NumPy has none of this name."""
    try:
        return np.dtype(spec).kind  # type: ignore[call-overload, no-any-return]
    except Exception:
        return ""


def _instead_of(spec: object) -> str:
    """Returns what to write in place of an unsupported dtype."""
    kind = _kind_of(spec)
    if kind == "V":
        return "make an array for each field, or records of them outside the fused function"
    if kind in _WITHOUT_NUMBERS:
        return f"return the array of numbers and convert it to {_WITHOUT_NUMBERS[kind]} outside the fused function"
    return f"convert to one of: {', '.join(_BY_NAME)}"


_WITHOUT_NUMBERS = {"U": "text", "S": "bytes", "O": "objects", "M": "dates", "m": "times"}
"""The elements of arrays without numbers, by the kind of their dtype."""


def dtype_of(spec: object) -> DType:
    """The DType of a DType, DataType, NumPy dtype or scalar type, name, or Python's bool, int, float or complex.

    Raises DtypeError for a type that tracefuse does not support.
    """
    if isinstance(spec, DType):
        return spec
    try:
        # A list has no hash, and numbers of other types are equal.
        return _dtype_of(np.dtype(spec) if isinstance(spec, (list, np.generic)) else spec)
    except TypeError as error:
        if isinstance(error, DtypeError):
            raise
        raise DtypeError(f"{shown(spec)} does not name a dtype", hint="use a NumPy dtype such as np.float32") from None


PYTHON_TYPES: dict[str | None, Any] = {"bool": bool, "int": int, "float": float, "complex": complex}
"""Python's types of numbers, by kind."""

NUMPY_TYPES: dict[str | None, DType] = {"bool": bool_, "int": int64, "float": float64, "complex": complex128}
"""The types that hold truth values, integers of 64 bits, floats and complex numbers of Python exactly, by kind."""


def is_weak(value: object) -> bool:
    """Whether a value is a number of Python that takes the type of the arrays beside it.

    NumPy takes instances of subclasses, such as members of an IntEnum, as arrays of int64, float64 or complex128.
    """
    return type(value) in (bool, int, float, complex)


def python_kind(value: object) -> str:
    """The kind of a weak Python scalar. Raises DtypeError for any other value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    if isinstance(value, complex):
        return "complex"
    raise DtypeError(f"{type(value).__name__} is not a Python scalar", hint="use bool, int, float or complex")


def check_fits(value: bool | int | float | complex, dtype: DType, name: str) -> None:
    """Raises DtypeError for a Python number that `dtype` cannot represent: an integer with too many bits, NaN or
    infinity in an integer type, a complex number in a real type.

    Negative integers wrap in unsigned types, as do integers up to the unsigned maximum in narrow signed types.
    Fractions are truncated.
    """
    if dtype.kind == "bool" or (dtype.is_complex and isinstance(value, complex)):
        return
    if not isinstance(value, complex):
        if not dtype.is_integer:
            if isinstance(value, float) or value.bit_length() <= 1023:
                return
        else:
            bits = 8 * dtype.itemsize
            most = 2 ** (63 if dtype is int64 else bits)
            if value - value == 0 and -(2 ** (bits - 1)) <= int(value) < most:
                return
    raise DtypeError(
        f"{name}: {shown(value)} does not fit {dtype}", hint="give a number of that type, or another dtype"
    )


_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def _promote_two_numpy(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if bfloat16 in (a, b):
        other = b if a is bfloat16 else a
        # As NumPy promotes float16, with bfloat16 in its place. float16 with bfloat16 gives float32.
        if other is float16:
            return float32
        twin = _promote_two_numpy(float16, other)
        return bfloat16 if twin is float16 else twin
    return _BY_NUMPY[np.promote_types(a.numpy, b.numpy)]


def _weak(kind: str, strong: DType | None, default: dict[str, DType]) -> DType:
    """Promotes a strong type with a Python scalar of `kind`: the strong type, unless the kind is higher."""
    if strong is None:
        return default[kind]
    if _RANK[kind] <= _RANK[strong.kind]:
        return strong
    if kind == "complex" and strong.is_floating:
        return complex128 if strong is float64 else complex64
    return default[kind]


_NUMPY_DEFAULT = {"bool": bool_, "int": int64, "float": float64, "complex": complex128}
_NVFUSER_DEFAULT = {"bool": bool_, "int": int64, "float": float32, "complex": complex64}


def promote_numpy(strong: Iterable[DType], weak: Iterable[str] = ()) -> DType:
    """The common type under NumPy 2. strong: types of arrays and NumPy scalars. weak: kinds of Python scalars."""
    types = list(strong)
    common = functools.reduce(_promote_two_numpy, types) if types else None
    for kind in sorted(weak, key=_RANK.__getitem__, reverse=True):
        common = _weak(kind, common, _NUMPY_DEFAULT)
    if common is None:
        raise DtypeError("no operand to promote", hint="give at least one array or scalar")
    return common


def _promote_two_nvfuser(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        low, high = sorted((a, b), key=lambda d: _RANK[d.kind])
        if high is complex64 and low is float64:
            return complex128
        return high
    if a.is_half and b.is_half:
        return float32
    if a.is_integer:
        # PyTorch: uint8 with a signed type promotes to the next wider signed type.
        return _BY_NUMPY[np.promote_types(a.numpy, b.numpy)] if uint64 not in (a, b) else int64
    return a if a.itemsize > b.itemsize else b


def promote_nvfuser(tensors: Iterable[DType], scalars: Iterable[DType] = (), weak: Iterable[str] = ()) -> DType:
    """The common type under PyTorch: fd scalars and `weak` Python kinds never widen a tensor within its kind."""
    types = list(tensors)
    common = functools.reduce(_promote_two_nvfuser, types) if types else None
    for scalar in scalars:
        if common is None:
            common = scalar
        elif types:
            kind = "int" if scalar.kind == "uint" else scalar.kind
            common = _weak(kind, common, _NVFUSER_DEFAULT)
        else:
            common = _promote_two_nvfuser(common, scalar)
    for kind in weak:
        common = _weak(kind, common, _NVFUSER_DEFAULT)
    if common is None:
        raise DtypeError("no operand to promote", hint="give at least one tensor or scalar")
    return common
